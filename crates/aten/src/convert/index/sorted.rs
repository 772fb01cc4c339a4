//! Places in sorted sequences, and membership, by comparison with every element: fit for short sequences alone.
use super::one;
use crate::convert::{
    context::{Ctx, Res},
    pointwise::operand,
    scalars::{Operand, as_value, result_type},
};
use crate::raw::{Arg, Call};
use kiln_graph::{CompareOp, DType, ReduceOp, UnaryOp, ValueId};

/// Above this length a binary search, which is libtorch's, does less work than comparisons.
const LONGEST: usize = 256;

/// Number of elements along the last axis of `sequence` that are before a place for `x`: the elements below x, or not
/// above it if `right`. A NaN is above all.
fn place(c: &mut Ctx, call: &Call, x: Operand, sequence: ValueId, right: bool) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let shape = c.shape(sequence);
    let [lead @ .., length] = &shape[..] else { return Err("a sequence of rank 0".into()) };
    let length = *length;
    if length > LONGEST {
        return Err(format!("a place in a sequence of {length}: above {LONGEST} it is searched for"));
    }
    let dtype = result_type(c, &[x, Operand::Value(sequence)]);
    let (x, mut sequence) = (as_value(c, x, dtype)?, c.cast(sequence, dtype)?);
    let rank = c.rank(x);
    if !lead.is_empty() {
        // Rows of values belong to rows of sequences.
        sequence = c.reshape(sequence, &[lead, &[1, length]].concat())?;
    }
    let x = c.reshape(x, &[&c.shape(x)[..], &[1]].concat())?;
    let above = c.compare(if right { CompareOp::Gt } else { CompareOp::Ge }, sequence, x)?;
    let before = c.unary(UnaryOp::Not, above)?;
    let before = c.cast(before, ty.dtype)?;
    let count = c.reduce(ReduceOp::Sum, before, &[rank])?;
    one(c.reshape(count, &ty.shape)?)
}

/// `(x, boundaries, i32?, right)`.
pub fn bucketize(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, boundaries) = (operand(c, call, 0)?, c.tensor(call, 1)?);
    place(c, call, x, boundaries, c.bool(call, 3)?)
}

/// `(sequence, x, i32?, right, side?, order?)`.
pub fn searchsorted(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (sequence, x) = (c.tensor(call, 0)?, operand(c, call, 1)?);
    if *c.arg(call, 5) != Arg::None {
        return Err("searchsorted in the order of a sorter".into());
    }
    let right = c.bool(call, 3)? || matches!(c.arg(call, 4), Arg::Str(s) if s == "right");
    place(c, call, x, sequence, right)
}

/// `(elements, tests, assume_unique, invert)`: whether each element is among the tests.
pub fn isin(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (elements, tests, ty) = (operand(c, call, 0)?, operand(c, call, 1)?, c.out(call, 0)?);
    let dtype = result_type(c, &[elements, tests]).compute();
    let (elements, tests) = (as_value(c, elements, dtype)?, as_value(c, tests, dtype)?);
    let count = c.ty(tests).count();
    if count > LONGEST || dtype == DType::Bool {
        return Err(format!("isin among {count} values of {dtype}"));
    }
    let rank = c.rank(elements);
    let x = c.reshape(elements, &[&c.shape(elements)[..], &[1]].concat())?;
    let tests = c.reshape(tests, &[count])?;
    let equal = c.compare(CompareOp::Eq, x, tests)?;
    let mut found = c.reduce(ReduceOp::Any, equal, &[rank])?;
    if c.bool(call, 3)? {
        found = c.unary(UnaryOp::Not, found)?;
    }
    one(c.reshape(found, &ty.shape)?)
}
