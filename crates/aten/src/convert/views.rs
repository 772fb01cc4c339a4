//! Shapes and data movement. Whether torch returns a view or a copy does not matter here, since graph values are
//! immutable.
mod joins;
mod moves;
mod writes;

use super::{
    Table,
    context::{Ctx, Res, at, normal_axis},
};
use crate::raw::{Arg, Call};
use kiln_graph::{Scalar, ValueId};

pub const TABLE: Table = &[
    ("aten::view", reshape),
    ("aten::reshape", reshape),
    ("aten::flatten", reshape),
    ("aten::unflatten", reshape),
    ("aten::unsqueeze", reshape),
    ("aten::squeeze", reshape),
    ("aten::view_as", reshape),
    ("aten::reshape_as", reshape),
    ("aten::ravel", reshape),
    ("aten::_unsafe_view", reshape),
    ("aten::atleast_1d", reshape),
    ("aten::atleast_2d", reshape),
    ("aten::atleast_3d", reshape),
    ("aten::alias", reshape),
    ("aten::detach", reshape),
    ("aten::contiguous", reshape),
    ("aten::clone", reshape),
    ("aten::lift_fresh", reshape),
    ("aten::lift_fresh_copy", reshape),
    ("aten::positive", reshape),
    // Dropout that is on is refused before.
    ("aten::dropout", reshape),
    ("aten::feature_dropout", reshape),
    ("aten::alpha_dropout", reshape),
    ("aten::feature_alpha_dropout", reshape),
    ("aten::native_dropout", native_dropout),
    ("aten::t", transposed),
    ("aten::numpy_T", reversed),
    ("aten::mT", transposed),
    ("aten::adjoint", transposed),
    ("aten::transpose", swap),
    ("aten::swapaxes", swap),
    ("aten::swapdims", swap),
    ("aten::permute", permute),
    ("aten::movedim", movedim),
    ("aten::moveaxis", movedim),
    ("aten::expand", broadcast),
    ("aten::expand_as", broadcast),
    ("aten::broadcast_to", broadcast),
    ("aten::broadcast_tensors", broadcast_all),
    ("aten::slice", slice),
    ("aten::narrow", narrow),
    ("aten::select", select),
    ("aten::split", |c, call| pieces(c, call, 2)),
    ("aten::unsafe_split", |c, call| pieces(c, call, 2)),
    ("aten::split_with_sizes", |c, call| pieces(c, call, 2)),
    ("aten::unsafe_split_with_sizes", |c, call| pieces(c, call, 2)),
    ("aten::chunk", |c, call| pieces(c, call, 2)),
    ("aten::unsafe_chunk", |c, call| pieces(c, call, 2)),
    ("aten::tensor_split", |c, call| tensor_split(c, call, 2)),
    ("aten::hsplit", |c, call| split_along(c, call, 1)),
    ("aten::vsplit", |c, call| split_along(c, call, 0)),
    ("aten::dsplit", |c, call| split_along(c, call, 2)),
    ("aten::unbind", unbind),
    ("aten::diagonal", diagonal),
    ("aten::cat", joins::cat),
    ("aten::concat", joins::cat),
    ("aten::concatenate", joins::cat),
    ("aten::stack", joins::stack),
    ("aten::hstack", joins::hstack),
    ("aten::vstack", joins::vstack),
    ("aten::dstack", joins::dstack),
    ("aten::column_stack", joins::column_stack),
    ("aten::block_diag", joins::block_diag),
    ("aten::meshgrid", joins::meshgrid),
    ("aten::constant_pad_nd", joins::constant_pad),
    ("aten::pad", joins::pad),
    ("aten::reflection_pad1d", |c, call| joins::pad_by(c, call, "reflect")),
    ("aten::reflection_pad2d", |c, call| joins::pad_by(c, call, "reflect")),
    ("aten::reflection_pad3d", |c, call| joins::pad_by(c, call, "reflect")),
    ("aten::replication_pad1d", |c, call| joins::pad_by(c, call, "replicate")),
    ("aten::replication_pad2d", |c, call| joins::pad_by(c, call, "replicate")),
    ("aten::replication_pad3d", |c, call| joins::pad_by(c, call, "replicate")),
    ("aten::_pad_circular", |c, call| joins::pad_by(c, call, "circular")),
    ("aten::slice_scatter", writes::slice_scatter),
    ("aten::select_scatter", writes::select_scatter),
    ("aten::diagonal_scatter", writes::diagonal_scatter),
    ("aten::flip", moves::flip),
    ("aten::flipud", |c, call| moves::flip_axis(c, call, 0)),
    ("aten::fliplr", |c, call| moves::flip_axis(c, call, 1)),
    ("aten::roll", moves::roll),
    ("aten::rot90", moves::rot90),
    ("aten::repeat", moves::repeat),
    ("aten::tile", moves::repeat),
    ("aten::repeat_interleave", moves::repeat_interleave),
    ("aten::unfold", moves::unfold),
    ("aten::as_strided", moves::as_strided),
    ("aten::tril", |c, call| moves::triangle(c, call, true)),
    ("aten::triu", |c, call| moves::triangle(c, call, false)),
    ("aten::diag_embed", moves::diag_embed),
    ("aten::diag", moves::diag),
    ("aten::trace", moves::trace),
    ("aten::diff", moves::diff),
    ("aten::linalg_cross", moves::cross),
    ("aten::cross", moves::cross),
    ("aten::pixel_shuffle", moves::pixel_shuffle),
    ("aten::pixel_unshuffle", moves::pixel_unshuffle),
    ("aten::channel_shuffle", moves::channel_shuffle),
];

/// Reshapes to the shape of the example run, whatever the arguments; of a list, each tensor.
fn reshape(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    if matches!(c.arg(call, 0), Arg::List(_)) {
        let parts = c.tensors(call, 0)?.into_iter().enumerate();
        return parts.map(|(i, x)| c.out(call, i).and_then(|ty| c.reshape(x, &ty.shape))).collect();
    }
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    Ok(vec![c.reshape(x, &ty.shape)?])
}

/// `(x, rate, train?)`, off: x, and a mask that keeps everything.
fn native_dropout(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let mask = c.full(&c.out(call, 1)?, Scalar::Bool(true))?;
    Ok(vec![x, mask])
}

fn transposed(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    Ok(vec![c.transpose(x)?])
}

fn reversed(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let perm: Vec<usize> = (0..c.rank(x)).rev().collect();
    Ok(vec![c.permute(x, &perm)?])
}

fn swap(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let rank = c.rank(x);
    let (a, b) = (c.axis(call, 1, rank)?, c.axis(call, 2, rank)?);
    let mut perm: Vec<usize> = (0..rank).collect();
    if a.max(b) < rank {
        perm.swap(a, b);
    }
    Ok(vec![c.permute(x, &perm)?])
}

fn permute(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let rank = c.rank(x);
    let perm: Vec<usize> = c.ints(call, 1)?.into_iter().map(|a| normal_axis(a, rank)).collect::<Res<_>>()?;
    Ok(vec![c.permute(x, &perm)?])
}

fn movedim(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let rank = c.rank(x);
    let normal = |v: Vec<i64>| v.into_iter().map(|a| normal_axis(a, rank)).collect::<Res<Vec<_>>>();
    let (from, to) = (normal(c.ints(call, 1)?)?, normal(c.ints(call, 2)?)?);
    let mut perm = vec![usize::MAX; rank];
    for (f, t) in from.iter().zip(&to) {
        *perm.get_mut(*t).ok_or("an axis of rank 0")? = *f;
    }
    let mut rest = (0..rank).filter(|a| !from.contains(a));
    for slot in perm.iter_mut().filter(|p| **p == usize::MAX) {
        *slot = rest.next().ok_or("axes named twice")?;
    }
    Ok(vec![c.permute(x, &perm)?])
}

fn broadcast(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    Ok(vec![c.broadcast(x, &ty.shape)?])
}

fn broadcast_all(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let xs = c.tensors(call, 0)?;
    xs.into_iter().enumerate().map(|(i, x)| c.out(call, i).and_then(|ty| c.broadcast(x, &ty.shape))).collect()
}

/// `start:end:step` with torch's wrapping and clamping; a missing or huge end means the end of the axis.
fn slice(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axis = c.axis(call, 1, c.rank(x))?;
    let (start, len, step) = bounds(c, call, 2, c.size(x, axis)?)?;
    Ok(vec![c.slice(x, axis, start, len, step)?])
}

/// Start, length and step from the three arguments at `i`.
fn bounds(c: &Ctx, call: &Call, i: usize, size: usize) -> Res<(usize, usize, usize)> {
    let n = size as i64;
    // Invariant: sizes are below 2^46.
    let place = |v: i64| if v < 0 { v.saturating_add(n).max(0) } else { v.min(n) };
    let start = place(c.opt_int(call, i)?.unwrap_or(0));
    let end = place(c.opt_int(call, i + 1)?.unwrap_or(n)).max(start);
    let step = c.opt_int(call, i + 2)?.unwrap_or(1).max(1) as usize;
    let len = ((end - start) as usize).div_ceil(step);
    // With at most one element the step is irrelevant, and may be any number.
    Ok((start as usize, len, if len > 1 { step } else { 1 }))
}

fn narrow(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axis = c.axis(call, 1, c.rank(x))?;
    let (start, len) = (normal_start(c.int(call, 2)?, c.size(x, axis)?), c.count(call, 3)?);
    Ok(vec![c.slice(x, axis, start, len, 1)?])
}

fn normal_start(start: i64, size: usize) -> usize {
    if start < 0 { start.saturating_add(size as i64).max(0) as usize } else { start as usize }
}

fn select(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let axis = c.axis(call, 1, c.rank(x))?;
    let at = normal_start(c.int(call, 2)?, c.size(x, axis)?);
    let row = c.slice(x, axis, at, 1, 1)?;
    Ok(vec![c.reshape(row, &ty.shape)?])
}

/// Consecutive slices along the axis in argument `axis_at`, with the sizes of the example run.
fn pieces(c: &mut Ctx, call: &Call, axis_at: usize) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axis = c.axis(call, axis_at, c.rank(x))?;
    let mut start = 0;
    let mut parts = vec![];
    for i in 0..call.outs.len() {
        let len = at(&c.out(call, i)?.shape, axis)?;
        parts.push(c.slice(x, axis, start, len, 1)?);
        start += len;
    }
    Ok(parts)
}

/// `(x, number of parts or indices, axis)`: parts between the indices, with the sizes of the example run.
fn tensor_split(c: &mut Ctx, call: &Call, axis_at: usize) -> Res<Vec<ValueId>> {
    match c.arg(call, 1) {
        Arg::Int(_) => pieces(c, call, axis_at),
        Arg::Ints(indices) => {
            let x = c.tensor(call, 0)?;
            let axis = c.axis(call, axis_at, c.rank(x))?;
            split_at(c, call, x, axis, indices)
        }
        _ => Err("tensor_split at the elements of a tensor".into()),
    }
}

/// The parts of `x` that begin at the start of `axis` and at each index, which may count from the end or exceed the
/// axis.
fn split_at(c: &mut Ctx, call: &Call, x: ValueId, axis: usize, indices: &[i64]) -> Res<Vec<ValueId>> {
    let size = c.shape(x).get(axis).copied().ok_or("a split of rank 0")?;
    let starts = std::iter::once(0).chain(indices.iter().map(|i| normal_start(*i, size).min(size)));
    let part = |(i, start): (usize, usize)| {
        let len = *c.out(call, i)?.shape.get(axis).ok_or("a part of rank 0")?;
        c.slice(x, axis, start, len, 1)
    };
    starts.enumerate().map(part).collect()
}

/// `(x, number of parts or indices)` along a fixed axis; `hsplit` of a vector splits its only axis.
fn split_along(c: &mut Ctx, call: &Call, axis: usize) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axis = axis.min(c.rank(x).saturating_sub(1));
    let indices = match c.arg(call, 1) {
        Arg::Int(parts) => {
            let each = c.shape(x).get(axis).copied().unwrap_or(0) as i64 / (*parts).max(1);
            (1..call.outs.len() as i64).map(|i| i.saturating_mul(each)).collect()
        }
        _ => c.ints(call, 1)?,
    };
    split_at(c, call, x, axis, &indices)
}

fn unbind(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axis = c.axis(call, 1, c.rank(x))?;
    let row = |i| {
        let ty = c.out(call, i)?;
        let row = c.slice(x, axis, i, 1, 1)?;
        c.reshape(row, &ty.shape)
    };
    (0..call.outs.len()).map(row).collect()
}

/// Moves the two axes last and flattens them; the diagonal is then every (columns + 1)-th element.
fn diagonal(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let rank = c.rank(x);
    let (offset, a, b) = (c.int(call, 1)?, c.axis(call, 2, rank)?, c.axis(call, 3, rank)?);
    let mut perm: Vec<usize> = (0..rank).filter(|d| *d != a && *d != b).collect();
    perm.extend([a, b]);
    let x = c.permute(x, &perm)?;
    let shape = c.shape(x);
    let [lead @ .., rows, columns] = &shape[..] else { return Err("a diagonal of a vector".into()) };
    let len = *ty.shape.last().ok_or("a diagonal of rank 0")?;
    let start = diagonal_start(offset, *columns, len)?;
    let x = c.reshape(x, &[lead, &[rows * columns]].concat())?;
    Ok(vec![c.slice(x, lead.len(), start, len, columns + 1)?])
}

/// Start of a diagonal of `len` elements in a flattened matrix with `columns` columns. An empty diagonal may have any
/// offset.
fn diagonal_start(offset: i64, columns: usize, len: usize) -> Res<usize> {
    let distance = usize::try_from(offset.unsigned_abs()).ok();
    match len {
        0 => Ok(0),
        _ if offset >= 0 => distance.ok_or_else(|| format!("a diagonal {offset} columns to the right")),
        _ => distance.and_then(|d| d.checked_mul(columns)).ok_or_else(|| format!("a diagonal {offset} rows down")),
    }
}
