//! Reading and writing by index tensors: embedding, gather, scatter, advanced indexing.
mod bags;
mod counting;
mod masked;
mod sorted;

use super::{
    Table,
    context::{Ctx, Res, along, at, from, with_size},
    pointwise::operand,
    scalars::{as_value, scale},
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp, CompareOp, DType, Op, Scalar, ScatterMode, Type, ValueId};

pub const TABLE: Table = &[
    ("aten::embedding", embedding),
    ("aten::index_select", index_select),
    ("aten::gather", gather),
    ("aten::take_along_dim", take_along_dim),
    ("aten::index", index),
    ("aten::embedding_dense_backward", embedding_gradient),
    ("aten::scatter", scatter),
    ("aten::scatter_add", |c, call| scatter_by(c, call, ScatterMode::Add)),
    ("aten::scatter_reduce", scatter_reduce),
    ("aten::index_add", index_add),
    ("aten::index_copy", index_copy),
    ("aten::index_fill", index_fill),
    ("aten::index_put", index_put),
    ("aten::one_hot", one_hot),
    ("aten::take", take),
    ("aten::embedding_bag", bags::embedding_bag),
    ("aten::_embedding_bag", bags::embedding_bag),
    ("aten::masked_scatter", masked::masked_scatter),
    ("aten::_unsafe_masked_index", masked::unsafe_masked_index),
    ("aten::bucketize", sorted::bucketize),
    ("aten::searchsorted", sorted::searchsorted),
    ("aten::isin", sorted::isin),
];

fn one(v: ValueId) -> Res<Vec<ValueId>> {
    Ok(vec![v])
}

/// `(weight, indices, …)`.
fn embedding(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (w, i) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    one(c.node(Op::Take { axis: 0 }, &[w, i])?)
}

/// `(gradient, indices, rows, padding index, by frequency)`: the sum of what arrives at each row of the table. Rows of
/// the padding index get nothing.
fn embedding_gradient(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (mut g, i, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    if c.bool(call, 4)? {
        return Err("scale_grad_by_freq=True".into());
    }
    let Some(&width) = c.shape(g).last() else { return Err("a gradient of rank 0".into()) };
    let n = c.ty(i).count();
    let i = c.reshape(i, &[n])?;
    g = c.reshape(g, &[n, width])?;
    let at = spread_index(c, i, 0, &[n, width])?;
    if let padding @ 0.. = c.int(call, 3)? {
        let dtype = c.dtype(at);
        let (padding, none) = (c.constant(dtype, Scalar::Int(padding)), c.constant(c.dtype(g), Scalar::Float(0.0)));
        let is_padding = c.compare(CompareOp::Eq, at, padding)?;
        g = c.select(is_padding, none, g)?;
    }
    let none = c.full(&ty, Scalar::Float(0.0))?;
    one(c.node(Op::Scatter { axis: 0, mode: ScatterMode::Add }, &[none, at, g])?)
}

/// A rank-0 value as a vector of one element.
fn at_least_vector(c: &mut Ctx, x: ValueId) -> Res<ValueId> {
    if c.rank(x) == 0 { c.reshape(x, &[1]) } else { Ok(x) }
}

fn index_select(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, i, ty) = (c.tensor(call, 0)?, c.tensor(call, 2)?, c.out(call, 0)?);
    let x = at_least_vector(c, x)?;
    let axis = c.axis(call, 1, c.rank(x))?;
    let r = c.node(Op::Take { axis }, &[x, i])?;
    one(c.reshape(r, &ty.shape)?)
}

fn gather(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, i, ty) = (c.tensor(call, 0)?, c.tensor(call, 2)?, c.out(call, 0)?);
    let (x, i) = (at_least_vector(c, x)?, at_least_vector(c, i)?);
    let axis = c.axis(call, 1, c.rank(x))?;
    let r = c.node(Op::Gather { axis }, &[x, i])?;
    one(c.reshape(r, &ty.shape)?)
}

/// `(x, indices, axis?)`: a gather after both are broadcast, except along the axis. Negative indices count from the
/// end.
fn take_along_dim(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, i, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    if *c.arg(call, 2) == Arg::None {
        return Err("take_along_dim of the flattened tensor".into());
    }
    let axis = c.axis(call, 2, c.rank(x))?;
    let mut full = ty.shape.clone();
    let (Some(all), Some(size)) = (full.get_mut(axis), c.shape(x).get(axis).copied()) else {
        return Err("take_along_dim of rank 0 along an axis".into());
    };
    *all = size;
    let i = c.cast(i, DType::I64)?;
    let i = wrapped(c, i, size)?;
    let (x, i) = (c.broadcast(x, &full)?, c.broadcast(i, &ty.shape)?);
    one(c.node(Op::Gather { axis }, &[x, i])?)
}

/// `x[i, :, j]`.
fn index(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let indices = index_list(c, call)?;
    one(index_as(c, call, indices)?)
}

/// Result of the call if its first argument is indexed along these axes: permutes the indexed axes next to each other,
/// flattens them, combines their indices into one, and takes.
fn index_as(c: &mut Ctx, call: &Call, indices: Vec<(usize, ValueId)>) -> Res<ValueId> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let place = Indexed::new(&indices, c.rank(x))?;
    let sizes: Vec<usize> = place.axes.iter().map(|a| c.size(x, *a)).collect::<Res<_>>()?;
    let moved = c.permute(x, &place.order)?;
    if let Some(part) = counting::slice(c, moved, &place)? {
        return c.reshape(part, &ty.shape);
    }
    let mut flat = c.shape(moved);
    flat.splice(place.first..place.first + sizes.len(), [sizes.iter().product()]);
    let table = c.reshape(moved, &flat)?;
    let at = combined(c, &place.indices, &sizes)?;
    let r = c.node(Op::Take { axis: place.first }, &[table, at])?;
    c.reshape(r, &ty.shape)
}

/// How `x[i, :, j]` orders axes: adjacent indexed axes stay in place, others move to the front, as in PyTorch.
struct Indexed {
    axes: Vec<usize>,
    indices: Vec<ValueId>,
    /// All axes of x, with the indexed ones next to each other.
    order: Vec<usize>,
    /// Where in this order the first indexed axis is.
    first: usize,
}

impl Indexed {
    fn new(indices: &[(usize, ValueId)], rank: usize) -> Res<Indexed> {
        let (axes, indices): (Vec<usize>, Vec<ValueId>) = indices.iter().copied().unzip();
        let adjacent = axes.iter().zip(axes.iter().skip(1)).all(|(a, b)| *b == a + 1);
        let first = if adjacent { *axes.first().ok_or("no index")? } else { 0 };
        let mut order: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
        if axes.iter().any(|a| *a >= rank) {
            return Err("more indices than axes".into());
        }
        order.splice(first..first, axes.iter().copied());
        Ok(Indexed { axes, indices, order, first })
    }
}

/// The axes that argument 1 indexes, each with its index tensor (i64, not yet broadcast together).
fn index_list(c: &mut Ctx, call: &Call) -> Res<Vec<(usize, ValueId)>> {
    let Arg::List(items) = c.arg(call, 1) else { return Err("argument 1 is not a list of indices".into()) };
    let mut found = vec![];
    for (axis, item) in items.iter().enumerate() {
        if let Arg::Value(id) = item {
            let v = c.value(*id)?;
            if !matches!(c.dtype(v), DType::I64 | DType::I32) {
                return Err(format!("indexing by a tensor of {}", c.dtype(v)));
            }
            found.push((axis, c.cast(v, DType::I64)?));
        }
    }
    if found.is_empty() { Err("no index".into()) } else { Ok(found) }
}

/// `(x, index)`: elements of the flattened tensor; negative indices count from the end.
fn take(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, i) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let n = c.ty(x).count();
    let flat = c.reshape(x, &[n])?;
    let i = c.cast(i, DType::I64)?;
    let i = wrapped(c, i, n)?;
    one(c.node(Op::Take { axis: 0 }, &[flat, i])?)
}

/// Row-major position from one index per axis; negative indices count from the end. If any index is out of range, so is
/// the position.
fn combined(c: &mut Ctx, indices: &[ValueId], sizes: &[usize]) -> Res<ValueId> {
    let ([first, rest @ ..], [size, more @ ..]) = (indices, sizes) else { return Err("no index".into()) };
    let mut at = wrapped(c, *first, *size)?;
    if rest.is_empty() {
        return Ok(at);
    }
    let mut outside = beyond(c, at, *size)?;
    for (i, size) in rest.iter().zip(more) {
        let i = wrapped(c, *i, *size)?;
        let also = beyond(c, i, *size)?;
        outside = c.binary(BinaryOp::Or, outside, also)?;
        let n = c.constant(DType::I64, Scalar::Int(*size as i64));
        at = c.binary(BinaryOp::Mul, at, n)?;
        at = c.binary(BinaryOp::Add, at, i)?;
    }
    let nowhere = c.constant(DType::I64, Scalar::Int(NOWHERE));
    c.select(outside, nowhere, at)
}

/// A position out of range for every axis, far enough from the ends of i64 that adding offsets cannot overflow.
const NOWHERE: i64 = -(1 << 62);

/// Whether an index is out of range for an axis.
fn beyond(c: &mut Ctx, i: ValueId, size: usize) -> Res<ValueId> {
    let (zero, n) = (c.constant(DType::I64, Scalar::Int(0)), c.constant(DType::I64, Scalar::Int(size as i64)));
    let (below, above) = (c.compare(CompareOp::Lt, i, zero)?, c.compare(CompareOp::Ge, i, n)?);
    c.binary(BinaryOp::Or, below, above)
}

/// Adds `size` to negative indices.
fn wrapped(c: &mut Ctx, i: ValueId, size: usize) -> Res<ValueId> {
    let (zero, n) = (c.constant(DType::I64, Scalar::Int(0)), c.constant(DType::I64, Scalar::Int(size as i64)));
    let negative = c.compare(CompareOp::Lt, i, zero)?;
    let up = c.binary(BinaryOp::Add, i, n)?;
    c.select(negative, up, i)
}

/// `(x, axis, index, source)`; the source is cropped to the index's shape.
fn scatter_by(c: &mut Ctx, call: &Call, mode: ScatterMode) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    scatter_onto(c, call, x, mode)
}

/// The same with another tensor in the place of x.
fn scatter_onto(c: &mut Ctx, call: &Call, x: ValueId, mode: ScatterMode) -> Res<Vec<ValueId>> {
    let (i, ty) = (c.tensor(call, 2)?, c.out(call, 0)?);
    let (x, i) = (at_least_vector(c, x)?, at_least_vector(c, i)?);
    let axis = c.axis(call, 1, c.rank(x))?;
    let shape = c.shape(i);
    let src = match operand(c, call, 3)? {
        super::scalars::Operand::Value(v) if c.rank(v) == shape.len() => {
            let mut v = c.cast(v, c.dtype(x))?;
            for (a, len) in shape.iter().enumerate() {
                v = c.slice(v, a, 0, *len, 1)?;
            }
            v
        }
        number => {
            let v = as_value(c, number, c.dtype(x))?;
            c.broadcast(v, &shape)?
        }
    };
    let r = c.node(Op::Scatter { axis, mode }, &[x, i, src])?;
    one(c.reshape(r, &ty.shape)?)
}

/// `scatter`, plain or with `reduce="add"`.
fn scatter(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    match c.arg(call, 4) {
        Arg::Str(s) if s == "add" => scatter_by(c, call, ScatterMode::Add),
        Arg::Str(s) => Err(format!("scatter with reduce={s}")),
        _ => scatter_by(c, call, ScatterMode::Replace),
    }
}

/// `(x, axis, index, source, reduce, include_self)`: sums; without x's own elements, those that are written to become
/// zero before.
fn scatter_reduce(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, i) = (c.tensor(call, 0)?, c.tensor(call, 2)?);
    let axis = c.axis(call, 1, c.rank(x))?;
    let onto = match (c.str(call, 4)?, c.bool(call, 5)?) {
        ("sum", true) => x,
        ("sum", false) => {
            let none = c.full(&Type::new(c.dtype(x), c.shape(i)), Scalar::Int(0))?;
            c.node(Op::Scatter { axis, mode: ScatterMode::Replace }, &[x, i, none])?
        }
        (how, _) => return Err(format!("scatter_reduce with {how}")),
    };
    scatter_onto(c, call, onto, ScatterMode::Add)
}

/// A vector of indices laid along `axis` and broadcast over the other axes of `like`.
fn spread_index(c: &mut Ctx, i: ValueId, axis: usize, like: &[usize]) -> Res<ValueId> {
    let n = c.ty(i).count();
    let i = c.reshape(i, &along(like.len(), axis, n)?)?;
    c.broadcast(i, &with_size(like, axis, n)?)
}

/// How an operator treats negative indices: they count from the end, or are out of range.
enum FromEnd {
    Counted,
    Refused,
}

/// `(x, axis, index, …)`: writes the slices of x along the axis that the index names. `source` receives the shape of
/// the written slices and builds them. A rank-0 operand counts as one slice of one element.
fn write_rows(
    c: &mut Ctx,
    call: &Call,
    (mode, from_end): (ScatterMode, FromEnd),
    source: impl FnOnce(&mut Ctx, &[usize]) -> Res<ValueId>,
) -> Res<Vec<ValueId>> {
    let (x, i, ty) = (c.tensor(call, 0)?, c.tensor(call, 2)?, c.out(call, 0)?);
    let axis = c.axis(call, 1, c.rank(x))?;
    let rows = at_least_vector(c, x)?;
    let i = match (from_end, c.shape(rows).get(axis)) {
        (FromEnd::Counted, Some(&len)) => {
            let i = c.cast(i, DType::I64)?;
            wrapped(c, i, len)?
        }
        _ => i,
    };
    let i = spread_index(c, i, axis, &c.shape(rows))?;
    let src = source(c, &c.shape(i))?;
    let r = c.node(Op::Scatter { axis, mode }, &[rows, i, src])?;
    one(c.reshape(r, &ty.shape)?)
}

/// `(x, axis, index, source, alpha)`.
fn index_add(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (src, alpha) = (c.tensor(call, 3)?, c.scalar(call, 4)?);
    write_rows(c, call, (ScatterMode::Add, FromEnd::Refused), |c, shape| {
        let src = scale(c, src, alpha)?;
        c.reshape(src, shape)
    })
}

fn index_copy(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let src = c.tensor(call, 3)?;
    write_rows(c, call, (ScatterMode::Replace, FromEnd::Refused), |c, shape| c.reshape(src, shape))
}

/// `(x, axis, index, value)`.
fn index_fill(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let value = operand(c, call, 3)?;
    let dtype = c.out(call, 0)?.dtype;
    // Unlike index_add and index_copy, index_fill counts negative indices from the end.
    write_rows(c, call, (ScatterMode::Replace, FromEnd::Counted), |c, shape| {
        let value = as_value(c, value, dtype)?;
        c.broadcast(value, shape)
    })
}

/// `(x, indices, values, accumulate)`: a single bool mask with one value becomes a select; integer indices become a
/// scatter of rows, with the indexed axes in front.
fn index_put(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, values, add) = (c.tensor(call, 0)?, c.tensor(call, 2)?, c.bool(call, 3)?);
    if let Arg::List(items) = c.arg(call, 1)
        && let [Arg::Value(id)] = items[..]
    {
        let mask = c.value(id)?;
        if c.dtype(mask) == DType::Bool && c.ty(values).count() == 1 && !add {
            let mut shape = c.shape(mask);
            shape.resize(c.rank(x), 1);
            let (mask, value) = (c.reshape(mask, &shape)?, c.reshape(values, &[])?);
            return one(c.select(mask, value, x)?);
        }
    }
    let indices = index_list(c, call)?;
    let (shape, place) = (c.shape(x), Indexed::new(&indices, c.rank(x))?);
    let indexed = place.axes.len();
    let sizes: Vec<usize> = place.axes.iter().map(|a| at(&shape, *a)).collect::<Res<_>>()?;
    let place_of = combined(c, &place.indices, &sizes)?;
    let (n, picked) = (c.ty(place_of).count(), c.rank(place_of));
    // The values have the shape of `x[indices]`; there as in x, the indexed axes go to the front.
    let rest: Vec<usize> = place.order.iter().copied().filter(|a| !place.axes.contains(a)).collect();
    let kept: Vec<usize> = rest.iter().map(|a| at(&shape, *a)).collect::<Res<_>>()?;
    let (before, after) = kept.split_at_checked(place.first).ok_or("indices beyond the axes")?;
    let full = [before, &c.shape(place_of), after].concat();
    let values = c.broadcast(values, &full)?;
    let last = place.first + picked;
    let front: Vec<usize> = (place.first..last).chain(0..place.first).chain(last..full.len()).collect();
    let values = c.permute(values, &front)?;
    let rows = [&[n], &kept[..]].concat();
    let values = c.reshape(values, &rows)?;
    let order = [&place.axes[..], &rest].concat();
    let moved = c.permute(x, &order)?;
    let moved_shape = c.shape(moved);
    let table = c.reshape(moved, &[&[sizes.iter().product()], from(&moved_shape, indexed)?].concat())?;
    let at = spread_index(c, place_of, 0, &rows)?;
    let mode = if add { ScatterMode::Add } else { ScatterMode::Replace };
    let r = c.node(Op::Scatter { axis: 0, mode }, &[table, at, values])?;
    let r = c.reshape(r, &moved_shape)?;
    let back: Vec<usize> = (0..shape.len()).map(|a| order.iter().position(|o| *o == a).unwrap_or(a)).collect();
    one(c.permute(r, &back)?)
}

/// Compares each index with the class numbers along a new last axis.
fn one_hot(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (i, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let classes = *ty.shape.last().ok_or("one_hot of rank 0")?;
    if c.int(call, 1)? < 0 {
        return Err("one_hot with a number of classes that depends on the data".into());
    }
    let mut shape = c.shape(i);
    shape.push(1);
    let i = c.reshape(i, &shape)?;
    let numbers = c.iota(Type::new(c.dtype(i), [classes]), 0);
    let hit = c.compare(CompareOp::Eq, i, numbers)?;
    one(c.cast(hit, DType::I64)?)
}
