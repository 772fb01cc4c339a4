//! Concatenation and padding.
use crate::{
    convert::{
        context::{Ctx, Res, along, at, with_size},
        scalars::promote,
    },
    raw::Call,
};
use kiln_graph::{DType, Op, Scalar, ValueId};

fn one(v: ValueId) -> Res<Vec<ValueId>> {
    Ok(vec![v])
}

/// Casts all operands to their common dtype.
fn promoted(c: &mut Ctx, parts: Vec<ValueId>) -> Res<Vec<ValueId>> {
    let dtype = parts.iter().map(|p| c.dtype(*p)).reduce(promote).unwrap_or(DType::F32);
    parts.into_iter().map(|p| c.cast(p, dtype)).collect()
}

pub fn cat(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let parts = c.tensors(call, 0)?;
    let rank = c.out(call, 0)?.rank();
    let axis = c.axis(call, 1, rank)?;
    let parts = promoted(c, parts)?;
    // torch skips empty rank-1 tensors, whatever the rank of the others.
    let parts: Vec<ValueId> = parts.into_iter().filter(|p| c.rank(*p) == rank).collect();
    one(c.concat(&parts, axis)?)
}

pub fn stack(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let parts = c.tensors(call, 0)?;
    let axis = c.axis(call, 1, c.out(call, 0)?.rank())?;
    let parts = promoted(c, parts)?;
    let mut rows = vec![];
    for p in parts {
        let mut shape = c.shape(p);
        if axis > shape.len() {
            return Err("stacked along an axis beyond the operands'".into());
        }
        shape.insert(axis, 1);
        rows.push(c.reshape(p, &shape)?);
    }
    one(c.concat(&rows, axis)?)
}

pub fn hstack(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let parts = c.tensors(call, 0)?;
    let parts = promoted(c, parts)?;
    let mut rows = vec![];
    for p in parts {
        let shape = if c.rank(p) == 0 { vec![1] } else { c.shape(p) };
        rows.push(c.reshape(p, &shape)?);
    }
    let axis = usize::from(rows.first().is_some_and(|r| c.rank(*r) > 1));
    one(c.concat(&rows, axis)?)
}

pub fn vstack(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let parts = c.tensors(call, 0)?;
    let parts = promoted(c, parts)?;
    let mut rows = vec![];
    for p in parts {
        let shape = match c.shape(p)[..] {
            [] => vec![1, 1],
            [n] => vec![1, n],
            ref s => s.to_vec(),
        };
        rows.push(c.reshape(p, &shape)?);
    }
    one(c.concat(&rows, 0)?)
}

/// Vector i varies along axis i; with indexing "xy" the first two axes are swapped.
pub fn meshgrid(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let parts = c.tensors(call, 0)?;
    let xy = c.str(call, 1).is_ok_and(|s| s == "xy");
    let mut grids = vec![];
    for (i, p) in parts.iter().enumerate() {
        let ty = c.out(call, i)?;
        let own = if xy && i < 2 && ty.rank() >= 2 { 1 - i } else { i };
        let line = c.reshape(*p, &along(ty.rank(), own, at(&ty.shape, own)?)?)?;
        grids.push(c.broadcast(line, &ty.shape)?);
    }
    Ok(grids)
}

/// torch's padding list: (before, after) pairs, from the last axis backwards.
fn pads(c: &Ctx, call: &Call, rank: usize) -> Res<(Vec<i64>, Vec<i64>)> {
    let list = c.ints(call, 1)?;
    if list.len() % 2 != 0 || list.len() / 2 > rank {
        return Err(format!("padding {list:?} for {rank} axes"));
    }
    let (mut lo, mut hi) = (vec![0; rank], vec![0; rank]);
    for ((lo, hi), pair) in lo.iter_mut().zip(&mut hi).rev().zip(list.chunks(2)) {
        if let [before, after] = pair {
            (*lo, *hi) = (*before, *after);
        }
    }
    Ok((lo, hi))
}

fn pad_with(c: &mut Ctx, call: &Call, value: Scalar) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let (lo, hi) = pads(c, call, c.rank(x))?;
    if lo.iter().chain(&hi).all(|p| *p == 0) {
        return one(x);
    }
    let value = c.constant(c.dtype(x), value);
    one(c.node(Op::Pad { lo, hi }, &[x, value])?)
}

pub fn constant_pad(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    pad_with(c, call, c.opt_scalar(call, 2)?.unwrap_or(Scalar::Int(0)))
}

pub fn pad(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    match c.str(call, 2)? {
        "constant" => pad_with(c, call, c.opt_scalar(call, 3)?.unwrap_or(Scalar::Int(0))),
        mode => pad_by(c, call, mode),
    }
}

/// Padding from the operand's own elements: `reflect`, `replicate` or `circular`.
pub fn pad_by(c: &mut Ctx, call: &Call, mode: &str) -> Res<Vec<ValueId>> {
    let mut x = c.tensor(call, 0)?;
    let (lo, hi) = pads(c, call, c.rank(x))?;
    if lo.iter().chain(&hi).any(|p| *p < 0) {
        return Err(format!("negative padding with mode {mode}"));
    }
    for (axis, (lo, hi)) in lo.into_iter().zip(hi).enumerate() {
        let (before, after, size) = (lo as usize, hi as usize, c.size(x, axis)?);
        let mut parts = vec![];
        if before > 0 {
            parts.push(border(c, x, axis, mode, before, true, size)?);
        }
        parts.push(x);
        if after > 0 {
            parts.push(border(c, x, axis, mode, after, false, size)?);
        }
        x = c.concat(&parts, axis)?;
    }
    one(x)
}

fn border(c: &mut Ctx, x: ValueId, axis: usize, mode: &str, n: usize, before: bool, size: usize) -> Res<ValueId> {
    match mode {
        "reflect" => {
            let start = if before {
                1
            } else {
                size.checked_sub(1).and_then(|s| s.checked_sub(n)).ok_or("padding longer than the axis")?
            };
            let part = c.slice(x, axis, start, n, 1)?;
            c.node(Op::Flip(vec![axis]), &[part])
        }
        "replicate" => {
            let last = size.checked_sub(1).ok_or("padding of no elements by their last")?;
            let part = c.slice(x, axis, if before { 0 } else { last }, 1, 1)?;
            c.broadcast(part, &with_size(&c.shape(x), axis, n)?)
        }
        "circular" => {
            let start = if before { size.checked_sub(n).ok_or("padding longer than the axis")? } else { 0 };
            c.slice(x, axis, start, n, 1)
        }
        _ => Err(format!("padding mode {mode}")),
    }
}

/// Gives each operand the shape that `shape` makes of its own, and concatenates them along `axis`.
fn joined(c: &mut Ctx, call: &Call, axis: usize, shape: impl Fn(&[usize]) -> Vec<usize>) -> Res<Vec<ValueId>> {
    let parts = c.tensors(call, 0)?;
    let mut shaped = vec![];
    for p in promoted(c, parts)? {
        let shape = shape(&c.shape(p));
        shaped.push(c.reshape(p, &shape)?);
    }
    one(c.concat(&shaped, axis)?)
}

pub fn dstack(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    joined(c, call, 2, |shape| match *shape {
        [] => vec![1, 1, 1],
        [n] => vec![1, n, 1],
        [a, b] => vec![a, b, 1],
        _ => shape.to_vec(),
    })
}

pub fn column_stack(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    joined(c, call, 1, |shape| match *shape {
        [] => vec![1, 1],
        [n] => vec![n, 1],
        _ => shape.to_vec(),
    })
}

/// Matrices along the diagonal of a matrix of zeros; a vector is a row.
pub fn block_diag(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (parts, ty) = (c.tensors(call, 0)?, c.out(call, 0)?);
    let [_, width] = ty.shape[..] else { return Err("block_diag that gives no matrix".into()) };
    let (mut rows, mut before) = (vec![], 0);
    for p in parts {
        let p = c.cast(p, ty.dtype)?;
        let (height, own) = match c.shape(p)[..] {
            [] => (1, 1),
            [n] => (1, n),
            [a, b] => (a, b),
            _ => return Err("block_diag of more than two axes".into()),
        };
        let block = c.reshape(p, &[height, own])?;
        let after = width.checked_sub(before + own).ok_or("blocks wider than the result")?;
        let zero = c.constant(ty.dtype, Scalar::Int(0));
        rows.push(c.node(Op::Pad { lo: vec![0, before as i64], hi: vec![0, after as i64] }, &[block, zero])?);
        before += own;
    }
    one(c.concat(&rows, 0)?)
}
