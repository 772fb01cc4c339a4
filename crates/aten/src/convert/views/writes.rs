//! Writing a part into a tensor: slices, one index of an axis, diagonals.
use super::{bounds, normal_start};
use crate::{
    convert::context::{Ctx, Res, along, with_size},
    raw::Call,
};
use kiln_graph::{BinaryOp, CompareOp, DType, Op, Scalar, Type, ValueId};

fn one(v: ValueId) -> Res<Vec<ValueId>> {
    Ok(vec![v])
}

/// `x` with `start..start + len` along `axis` replaced by `part`.
fn replace(c: &mut Ctx, x: ValueId, part: ValueId, axis: usize, start: usize, len: usize) -> Res<ValueId> {
    let size = c.size(x, axis)?;
    let end = start.checked_add(len).filter(|end| *end <= size).ok_or("a part beyond the end of the axis")?;
    let part = c.cast(part, c.dtype(x))?;
    let mut parts = vec![];
    if start > 0 {
        parts.push(c.slice(x, axis, 0, start, 1)?);
    }
    if len > 0 {
        parts.push(part);
    }
    if end < size {
        parts.push(c.slice(x, axis, end, size - end, 1)?);
    }
    c.concat(&parts, axis)
}

pub fn slice_scatter(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, part) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let axis = c.axis(call, 2, c.rank(x))?;
    let (start, len, step) = bounds(c, call, 3, c.size(x, axis)?)?;
    one(if step == 1 { replace(c, x, part, axis, start, len)? } else { interleave(c, x, part, axis, (start, step))? })
}

/// `x` with every `step`-th index of `axis` from `start` replaced by the next of `part`.
fn interleave(c: &mut Ctx, x: ValueId, part: ValueId, axis: usize, (start, step): (usize, usize)) -> Res<ValueId> {
    let part = c.cast(part, c.dtype(x))?;
    let size = c.size(x, axis)?;
    let len = *c.shape(part).get(axis).ok_or("a part of another rank")?;
    let number = |c: &mut Ctx, n: usize| c.constant(DType::I64, Scalar::Int(n as i64));
    let place = c.iota(Type::new(DType::I64, [size]), 0);
    let (start, step, last) = (number(c, start), number(c, step), number(c, len.saturating_sub(1)));
    let from = c.binary(BinaryOp::Sub, place, start)?;
    let which = c.binary(BinaryOp::FloorDiv, from, step)?;
    let zero = number(c, 0);
    let nearest = c.binary(BinaryOp::Max, which, zero)?;
    let nearest = c.binary(BinaryOp::Min, nearest, last)?;
    let at = c.binary(BinaryOp::Mul, nearest, step)?;
    let hit = c.compare(CompareOp::Eq, at, from)?;
    let spread = c.node(Op::Take { axis }, &[part, nearest])?;
    let hit = c.reshape(hit, &along(c.rank(x), axis, size)?)?;
    c.select(hit, spread, x)
}

pub fn select_scatter(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, part) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let axis = c.axis(call, 2, c.rank(x))?;
    let at = normal_start(c.int(call, 3)?, c.size(x, axis)?);
    let part = c.reshape(part, &with_size(&c.shape(x), axis, 1)?)?;
    one(replace(c, x, part, axis, at, 1)?)
}

/// `(x, part, offset, axis, axis)`: the diagonal of two axes, which the last axis of the part is written to.
pub fn diagonal_scatter(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, part, offset) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.int(call, 2)?);
    let rank = c.rank(x);
    let (a, b) = (c.axis(call, 3, rank)?, c.axis(call, 4, rank)?);
    let mut perm: Vec<usize> = (0..rank).filter(|d| *d != a && *d != b).collect();
    perm.extend([a, b]);
    let back: Vec<usize> = (0..rank).map(|axis| perm.iter().position(|p| *p == axis).unwrap_or(axis)).collect();
    let matrices = c.permute(x, &perm)?;
    let part = c.cast(part, c.dtype(x))?;
    let [.., rows, columns] = c.shape(matrices)[..] else { return Err("a diagonal of a vector".into()) };
    if c.ty(part).count() == 0 {
        return one(x);
    }
    let row = c.iota(Type::new(DType::I64, [rows, 1]), 0);
    let column = c.iota(Type::new(DType::I64, [1, columns]), 1);
    let shift = c.constant(DType::I64, Scalar::Int(offset));
    let at = c.binary(BinaryOp::Add, row, shift)?;
    let on = c.compare(CompareOp::Eq, column, at)?;
    // An element of the diagonal is `part[row]` for offsets from 0, else `part[column]`: pad the part to that axis, and
    // broadcast it along the other one.
    let by_row = offset >= 0;
    let shape = c.shape(part);
    let [lead @ .., len] = &shape[..] else { return Err("a diagonal of rank 0".into()) };
    let all = if by_row { rows } else { columns };
    let missing = all.checked_sub(*len).ok_or("a diagonal longer than its matrix")?;
    let hi = [vec![0; lead.len()], vec![missing as i64]].concat();
    let zero = c.constant(c.dtype(x), Scalar::Int(0));
    let padded = if missing == 0 { part } else { c.node(Op::Pad { lo: vec![0; shape.len()], hi }, &[part, zero])? };
    let line = if by_row { [all, 1] } else { [1, all] };
    let spread = c.reshape(padded, &[lead, &line].concat())?;
    let r = c.select(on, spread, matrices)?;
    one(c.permute(r, &back)?)
}
