//! Reordering and repeating elements: rolls, windows, triangles, diagonals, shuffles.
use super::diagonal_start;
use crate::{
    convert::context::{Ctx, Res, along, at, normal_axis},
    mutation::views::row_major,
    raw::{Arg, Call},
};
use kiln_graph::{BinaryOp, CompareOp, DType, Op, ReduceOp, Scalar, Type, ValueId};

fn one(v: ValueId) -> Res<Vec<ValueId>> {
    Ok(vec![v])
}

pub fn flip(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let rank = c.rank(x);
    if rank == 0 {
        return one(x);
    }
    let axes: Vec<usize> = c.ints(call, 1)?.into_iter().map(|a| normal_axis(a, rank)).collect::<Res<_>>()?;
    one(c.node(Op::Flip(axes), &[x])?)
}

pub fn flip_axis(c: &mut Ctx, call: &Call, axis: usize) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    one(c.node(Op::Flip(vec![axis]), &[x])?)
}

/// `(a, b, axis?)`: cross products of vectors of three along an axis: `a' b'' - a'' b'`, with ' a roll by one.
pub fn cross(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let axis = match c.opt_int(call, 2)? {
        Some(axis) => normal_axis(axis, ty.rank())?,
        None => ty.shape.iter().position(|n| *n == 3).ok_or("no axis of three")?,
    };
    let (a, b) = (c.cast(a, ty.dtype.compute())?, c.cast(b, ty.dtype.compute())?);
    let (a, b) = (c.broadcast(a, &ty.shape)?, c.broadcast(b, &ty.shape)?);
    let (a1, b1) = (roll_axis(c, a, axis, -1)?, roll_axis(c, b, axis, -1)?);
    let (a2, b2) = (roll_axis(c, a, axis, 1)?, roll_axis(c, b, axis, 1)?);
    let (plus, minus) = (c.binary(BinaryOp::Mul, a1, b2)?, c.binary(BinaryOp::Mul, a2, b1)?);
    let r = c.binary(BinaryOp::Sub, plus, minus)?;
    one(c.cast(r, ty.dtype)?)
}

/// Each makes three ops.
const MOST_DIFFERENCES: i64 = 256;

/// `(x, times, axis, before?, after?)`: differences of neighbours along an axis, taken so many times; of bool, where
/// they differ.
pub fn diff(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let mut x = c.tensor(call, 0)?;
    let axis = c.axis(call, 2, c.rank(x))?;
    let (before, after) = (c.opt_tensor(call, 3)?, c.opt_tensor(call, 4)?);
    let parts: Vec<ValueId> = before.into_iter().chain([x]).chain(after).collect();
    x = c.concat(&parts, axis)?;
    let times = c.int(call, 1)?;
    if times > MOST_DIFFERENCES {
        return Err(format!("differences taken {times} times"));
    }
    for _ in 0..times {
        let size = *c.shape(x).get(axis).ok_or("diff of rank 0")?;
        let Some(len) = size.checked_sub(1) else { break };
        let (low, high) = (c.slice(x, axis, 0, len, 1)?, c.slice(x, axis, 1, len, 1)?);
        let op = if c.dtype(x) == DType::Bool { BinaryOp::Xor } else { BinaryOp::Sub };
        x = c.binary(op, high, low)?;
        if len == 0 {
            break;
        }
    }
    one(x)
}

/// The sum of a matrix's diagonal.
pub fn trace(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let [rows, columns] = c.shape(x)[..] else { return Err("trace of other than a matrix".into()) };
    let flat = c.reshape(x, &[rows * columns])?;
    let diagonal = c.slice(flat, 0, 0, rows.min(columns), columns + 1)?;
    let wide = c.cast(diagonal, ty.dtype)?;
    let sum = c.reduce(ReduceOp::Sum, wide, &[0])?;
    one(c.reshape(sum, &[])?)
}

fn roll_axis(c: &mut Ctx, x: ValueId, axis: usize, shift: i64) -> Res<ValueId> {
    let size = *c.shape(x).get(axis).ok_or("roll of rank 0 along an axis")?;
    if size == 0 {
        return Ok(x);
    }
    let forward = shift.rem_euclid(size as i64) as usize;
    if forward == 0 {
        return Ok(x);
    }
    let cut = size - forward;
    let (head, tail) = (c.slice(x, axis, 0, cut, 1)?, c.slice(x, axis, cut, size - cut, 1)?);
    c.concat(&[tail, head], axis)
}

/// Rolls each given axis; without axes, the flattened tensor.
pub fn roll(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let mut x = c.tensor(call, 0)?;
    let (shifts, axes, shape) = (c.ints(call, 1)?, c.ints(call, 2)?, c.shape(x));
    if axes.is_empty() {
        let flat = c.reshape(x, &[shape.iter().product()])?;
        let r = roll_axis(c, flat, 0, shifts.first().copied().unwrap_or(0))?;
        return one(c.reshape(r, &shape)?);
    }
    for (shift, axis) in shifts.into_iter().zip(axes) {
        x = roll_axis(c, x, normal_axis(axis, shape.len())?, shift)?;
    }
    one(x)
}

pub fn rot90(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let rank = c.rank(x);
    let (turns, axes) = (c.int(call, 1)?.rem_euclid(4), c.ints(call, 2)?);
    let [a, b] = axes[..] else { return Err("rot90 wants two axes".into()) };
    let (a, b) = (normal_axis(a, rank)?, normal_axis(b, rank)?);
    let swap: Vec<usize> = (0..rank)
        .map(|axis| {
            if axis == a {
                b
            } else if axis == b {
                a
            } else {
                axis
            }
        })
        .collect();
    one(match turns {
        1 => {
            let f = c.node(Op::Flip(vec![b]), &[x])?;
            c.permute(f, &swap)?
        }
        2 => c.node(Op::Flip(vec![a, b]), &[x])?,
        3 => {
            let f = c.node(Op::Flip(vec![a]), &[x])?;
            c.permute(f, &swap)?
        }
        _ => x,
    })
}

/// Inserts an axis of repeats before each axis, then merges the two.
pub fn repeat(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let more = ty.rank().checked_sub(c.rank(x)).ok_or("a result of lower rank than its operand")?;
    let shape = [vec![1; more], c.shape(x)].concat();
    let (mut split, mut full) = (vec![], vec![]);
    for (size, total) in shape.iter().zip(&ty.shape) {
        split.extend([1, *size]);
        full.extend([total.checked_div(*size).unwrap_or(1), *size]);
    }
    if ty.count() == 0 {
        return one(c.full(&ty, Scalar::Int(0))?);
    }
    let r = c.reshape(x, &split)?;
    let r = c.broadcast(r, &full)?;
    one(c.reshape(r, &ty.shape)?)
}

/// Repeats by one number: inserts an axis of repeats after the axis, then merges the two.
pub fn repeat_interleave(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (mut x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    if call.overload == "Tensor" {
        return Err("repeat_interleave of positions".into());
    }
    if let Arg::Value(repeats) = c.arg(call, 1)
        && c.info(*repeats).shape.iter().product::<usize>() != 1
    {
        return Err("repeat_interleave with a number for each element".into());
    }
    let axis = match c.opt_int(call, 2)? {
        Some(a) => normal_axis(a, c.rank(x))?,
        None => {
            let n = c.ty(x).count();
            x = c.reshape(x, &[n])?;
            0
        }
    };
    let times = at(&ty.shape, axis)?.checked_div(c.size(x, axis)?).unwrap_or(0);
    let r = c.repeated(x, axis, times)?;
    one(c.reshape(r, &ty.shape)?)
}

/// `(x, axis, size, step)`: sliding windows along an axis; the elements of a window lie along a new last axis.
pub fn unfold(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axis = c.axis(call, 1, c.rank(x))?;
    let (size, step) = (c.int(call, 2)?.max(0) as usize, c.int(call, 3)?.max(1) as usize);
    if c.rank(x) == 0 || size == 0 {
        return Err("unfold of no elements".into());
    }
    let room = c.size(x, axis)?.checked_sub(size).ok_or("windows longer than the axis")?;
    let count = room / step + 1;
    let (window, place) = grid(c, count, size);
    let first = c.with(BinaryOp::Mul, window, step as f64)?;
    let index = c.binary(BinaryOp::Add, first, place)?;
    let taken = c.node(Op::Take { axis }, &[x, index])?;
    let order: Vec<usize> = (0..=c.rank(x)).filter(|a| *a != axis + 1).chain([axis + 1]).collect();
    one(c.permute(taken, &order)?)
}

/// `(x, sizes, strides, offset)`. Graph values have no strides, so x must be known to be all of its memory, in memory
/// order: a new vector, or what `cpp/views.cpp` makes of other operands.
pub fn as_strided(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty, strides) = (c.tensor(call, 0)?, c.out(call, 0)?, c.sizes(call, 2)?);
    if !matches!(c.arg(call, 0), Arg::Value(id) if row_major(c.raw, *id)) || strides.len() != ty.rank() {
        return Err("as_strided of a tensor whose order in memory is not known".into());
    }
    let count = c.ty(x).count();
    let x = c.reshape(x, &[count])?;
    let offset = usize::try_from(c.opt_int(call, 3)?.unwrap_or(0)).map_err(|_| "as_strided before its operand")?;
    let end = ty
        .shape
        .iter()
        .zip(&strides)
        .try_fold(offset, |end, (n, s)| end.checked_add(n.saturating_sub(1).checked_mul(*s)?));
    if ty.count() > 0 && end.is_none_or(|end| end >= count) {
        return Err("as_strided beyond its operand".into());
    }
    if ty.count() == 0 {
        return one(c.full(&ty, Scalar::Int(0))?);
    }
    let dense = strides.iter().zip(ty.strides()).zip(&ty.shape).all(|((s, row_major), n)| *s == row_major || *n == 1);
    if dense {
        let run = c.slice(x, 0, offset, ty.count(), 1)?;
        return one(c.reshape(run, &ty.shape)?);
    }
    let mut index = c.constant(DType::I64, Scalar::Int(offset as i64));
    for (axis, (stride, size)) in
        strides.into_iter().zip(&ty.shape).enumerate().filter(|(_, (s, n))| **n > 1 && *s != 0)
    {
        let place = c.iota(Type::new(DType::I64, along(ty.rank(), axis, *size)?), axis);
        let stride = c.constant(DType::I64, Scalar::Int(stride as i64));
        let place = c.binary(BinaryOp::Mul, place, stride)?;
        index = c.binary(BinaryOp::Add, index, place)?;
    }
    let index = c.broadcast(index, &ty.shape)?;
    one(c.node(Op::Take { axis: 0 }, &[x, index])?)
}

/// Row and column numbers of the last two axes, as `[rows, 1]` and `[1, columns]`.
fn grid(c: &mut Ctx, rows: usize, columns: usize) -> (ValueId, ValueId) {
    let row = c.iota(Type::new(DType::I64, [rows, 1]), 0);
    let column = c.iota(Type::new(DType::I64, [1, columns]), 1);
    (row, column)
}

/// Keeps the elements with `column - row <= k` (lower) or `>= k` (upper); zero elsewhere.
pub fn triangle(c: &mut Ctx, call: &Call, lower: bool) -> Res<Vec<ValueId>> {
    let (x, k) = (c.tensor(call, 0)?, c.int(call, 1)?);
    let [.., rows, columns] = c.shape(x)[..] else { return Err("a triangle of a vector".into()) };
    let (row, column) = grid(c, rows, columns);
    let k = c.constant(DType::I64, Scalar::Int(k));
    let limit = c.binary(BinaryOp::Add, row, k)?;
    let inside = c.compare(if lower { CompareOp::Le } else { CompareOp::Ge }, column, limit)?;
    let zero = c.constant(c.dtype(x), Scalar::Int(0));
    one(c.select(inside, x, zero)?)
}

/// Places a vector (or the last axis) on a diagonal of the last two axes of the result.
fn embed(c: &mut Ctx, x: ValueId, offset: i64, n: usize) -> Res<ValueId> {
    let shape = c.shape(x);
    let [lead @ .., len] = &shape[..] else { return Err("a diagonal of rank 0".into()) };
    let (row, column) = grid(c, n, n);
    let k = c.constant(DType::I64, Scalar::Int(offset));
    let at = c.binary(BinaryOp::Add, row, k)?;
    let on = c.compare(CompareOp::Eq, column, at)?;
    // The diagonal element is x[row] for offsets >= 0, else x[column]: pad x to n, and broadcast it along the other
    // axis.
    let pad = n.checked_sub(*len).ok_or("a diagonal longer than its matrix")?;
    let hi = [vec![0; lead.len()], vec![pad as i64]].concat();
    let zero = c.constant(c.dtype(x), Scalar::Int(0));
    let padded = if pad == 0 { x } else { c.node(Op::Pad { lo: vec![0; shape.len()], hi }, &[x, zero])? };
    let last = if offset >= 0 { [n, 1] } else { [1, n] };
    let vector = c.reshape(padded, &[lead, &last].concat())?;
    let r = c.select(on, vector, zero)?;
    c.broadcast(r, &[lead, &[n, n]].concat())
}

pub fn diag_embed(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let rank = ty.rank();
    let (a, b) = (c.axis(call, 2, rank)?, c.axis(call, 3, rank)?);
    let last = embed(c, x, c.int(call, 1)?, *ty.shape.get(a).ok_or("diag_embed that gives no matrix")?)?;
    let mut places = (0..rank).filter(|axis| *axis != a && *axis != b).chain([a, b]).enumerate().collect::<Vec<_>>();
    places.sort_by_key(|(_, axis)| *axis);
    let perm: Vec<usize> = places.into_iter().map(|(place, _)| place).collect();
    one(c.permute(last, &perm)?)
}

pub fn diag(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let offset = c.int(call, 1)?;
    if c.rank(x) == 1 {
        return one(embed(c, x, offset, at(&ty.shape, 0)?)?);
    }
    let columns = c.size(x, 1)?;
    let n = c.ty(x).count();
    let start = diagonal_start(offset, columns, ty.count())?;
    let flat = c.reshape(x, &[n])?;
    one(c.slice(flat, 0, start, ty.count(), columns + 1)?)
}

/// `[.., C r r, H, W]` to `[.., C, H r, W r]`.
pub fn pixel_shuffle(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty, r) = (c.tensor(call, 0)?, c.out(call, 0)?, c.positive(call, 1)?);
    let shape = c.shape(x);
    let [lead @ .., channels, h, w] = &shape[..] else { return Err("pixel_shuffle of rank below 3".into()) };
    let n = lead.len();
    let split = c.reshape(x, &[lead, &[channels / r / r, r, r, *h, *w]].concat())?;
    let mut perm: Vec<usize> = (0..n).collect();
    perm.extend([n, n + 3, n + 1, n + 4, n + 2]);
    let p = c.permute(split, &perm)?;
    one(c.reshape(p, &ty.shape)?)
}

/// `[.., C, H r, W r]` to `[.., C r r, H, W]`.
pub fn pixel_unshuffle(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty, r) = (c.tensor(call, 0)?, c.out(call, 0)?, c.positive(call, 1)?);
    let shape = c.shape(x);
    let [lead @ .., channels, h, w] = &shape[..] else { return Err("pixel_unshuffle of rank below 3".into()) };
    let n = lead.len();
    let split = c.reshape(x, &[lead, &[*channels, h / r, r, w / r, r]].concat())?;
    let mut perm: Vec<usize> = (0..n).collect();
    perm.extend([n, n + 2, n + 4, n + 1, n + 3]);
    let p = c.permute(split, &perm)?;
    one(c.reshape(p, &ty.shape)?)
}

pub fn channel_shuffle(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, groups) = (c.tensor(call, 0)?, c.positive(call, 1)?);
    let shape = c.shape(x);
    let [batch, channels, rest @ ..] = &shape[..] else { return Err("channel_shuffle of rank below 2".into()) };
    let split = c.reshape(x, &[&[*batch, groups, channels / groups], rest].concat())?;
    let perm: Vec<usize> = [0, 2, 1].into_iter().chain(3..=shape.len()).collect();
    let p = c.permute(split, &perm)?;
    one(c.reshape(p, &shape)?)
}
