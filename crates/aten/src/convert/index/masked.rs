//! Reading and writing where a mask is set.
use super::{index_as, one};
use crate::convert::{
    context::{Ctx, Res},
    pointwise::operand,
    scalars::as_value,
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp, DType, Op, Scalar, ScanOp, ValueId};

/// `(x, mask, source)`: the elements under the mask become those of the source, in order. Too short a source is an
/// index out of range.
pub fn masked_scatter(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, mask, source, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?, c.out(call, 0)?);
    if ty.count() == 0 || c.ty(source).count() == 0 {
        return Err("masked_scatter of no elements".into());
    }
    let (x, mask) = (c.broadcast(x, &ty.shape)?, c.broadcast(mask, &ty.shape)?);
    let flat = c.reshape(mask, &[ty.count()])?;
    let ones = c.cast(flat, DType::I64)?;
    let seen = c.node(Op::Scan { op: ScanOp::Sum, axis: 0 }, &[ones])?;
    let which = c.with(BinaryOp::Sub, seen, 1.0)?;
    let zero = c.constant(DType::I64, Scalar::Int(0));
    let which = c.select(flat, which, zero)?;
    let which = c.reshape(which, &ty.shape)?;
    let elements = c.reshape(source, &[c.ty(source).count()])?;
    let taken = c.node(Op::Take { axis: 0 }, &[elements, which])?;
    one(c.select(mask, taken, x)?)
}

/// `(x, mask, indices, fill)`: `x[indices]` under the mask, where alone the indices need be in range; the fill
/// elsewhere.
pub fn unsafe_masked_index(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (mask, fill, ty) = (c.tensor(call, 1)?, operand(c, call, 3)?, c.out(call, 0)?);
    let Arg::List(items) = c.arg(call, 2) else { return Err("argument 2 is not a list of indices".into()) };
    let mut indices = vec![];
    for (axis, item) in items.iter().enumerate() {
        let Arg::Value(id) = item else { return Err("a masked index of some axes".into()) };
        let i = c.value(*id)?;
        let i = c.cast(i, DType::I64)?;
        let zero = c.constant(DType::I64, Scalar::Int(0));
        indices.push((axis, c.select(mask, i, zero)?));
    }
    let taken = index_as(c, call, indices)?;
    let fill = as_value(c, fill, ty.dtype)?;
    one(c.select(mask, taken, fill)?)
}
