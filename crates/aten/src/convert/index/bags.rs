//! Embedding bags: sums and means of rows of a table over runs of indices.
use super::spread_index;
use crate::convert::context::{Ctx, Res};
use crate::raw::Call;
use kiln_graph::{BinaryOp, CompareOp, DType, Op, ReduceOp, Scalar, ScatterMode, Type, ValueId};

/// Modes of the operator; the third is the maximum.
const SUM: i64 = 0;
const MEAN: i64 = 1;

/// `(weight, indices, offsets, scale_grad, mode, sparse, weights of the indices?, offsets with the end, padding
/// index?)`. Bag i has the indices from offset i to the next: the bag of an index is the number of offsets up to its
/// position, less one.
pub fn embedding_bag(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (table, indices, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let (mut offsets, mode) = (c.tensor(call, 2)?, c.int(call, 4)?);
    if c.rank(indices) != 1 || !matches!(mode, SUM | MEAN) {
        return Err("embedding_bag of maxima, or without offsets".into());
    }
    let [bags, width] = ty.shape[..] else { return Err("embedding_bag that gives no matrix".into()) };
    let count = c.ty(indices).count();
    if c.bool(call, 7)? {
        offsets = c.slice(offsets, 0, 0, bags, 1)?;
    }
    let offsets = c.cast(offsets, DType::I64)?;
    let offsets = c.reshape(offsets, &[1, bags])?;
    let place = c.iota(Type::new(DType::I64, [count, 1]), 0);
    let begun = c.compare(CompareOp::Le, offsets, place)?;
    let begun = c.cast(begun, DType::I64)?;
    let begun = c.reduce(ReduceOp::Sum, begun, &[1])?;
    let bag = c.with(BinaryOp::Sub, begun, 1.0)?;
    let bag = c.reshape(bag, &[count])?;

    let work = ty.dtype.compute();
    let rows = c.node(Op::Take { axis: 0 }, &[table, indices])?;
    let mut rows = c.cast(rows, work)?;
    if let Some(weights) = c.opt_tensor(call, 6)? {
        let weights = c.cast(weights, work)?;
        let weights = c.reshape(weights, &[count, 1])?;
        rows = c.binary(BinaryOp::Mul, rows, weights)?;
    }
    let mut counted = c.full(&Type::new(work, [count]), Scalar::Int(1))?;
    // Indices that are padding are in no bag. -1 is none in `_embedding_bag`; the public form counts it from the end.
    let padding = c.opt_int(call, 8)?.filter(|p| *p >= 0 || call.name == "aten::embedding_bag");
    if let Some(padding) = padding {
        let padding = if padding < 0 { padding.saturating_add(c.size(table, 0)? as i64) } else { padding };
        let padding = c.constant(c.dtype(indices), Scalar::Int(padding));
        let kept = c.compare(CompareOp::Ne, indices, padding)?;
        counted = c.cast(kept, work)?;
        let kept = c.reshape(kept, &[count, 1])?;
        let zero = c.float_const(work, 0.0);
        rows = c.select(kept, rows, zero)?;
    }
    let add = Op::Scatter { axis: 0, mode: ScatterMode::Add };
    let none = c.full(&Type::new(work, [bags, width]), Scalar::Int(0))?;
    let along = spread_index(c, bag, 0, &[count, width])?;
    let mut r = c.node(add.clone(), &[none, along, rows])?;
    if mode == MEAN {
        let none = c.full(&Type::new(work, [bags]), Scalar::Int(0))?;
        let sizes = c.node(add, &[none, bag, counted])?;
        let sizes = c.with(BinaryOp::Max, sizes, 1.0)?;
        let sizes = c.reshape(sizes, &[bags, 1])?;
        r = c.binary(BinaryOp::Div, r, sizes)?;
    }
    Ok(vec![c.cast(r, ty.dtype)?])
}
