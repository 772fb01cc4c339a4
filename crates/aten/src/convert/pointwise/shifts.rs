//! Shifts of integers, as multiplication or floor division by a power of two.
use super::{one, operand};
use crate::{
    convert::{
        context::{Ctx, Res},
        scalars::{Operand, as_value, binary},
    },
    raw::{Arg, Call},
};
use kiln_graph::{BinaryOp, CompareOp, DType, Scalar, ValueId};

/// `op` is the multiplication of a shift to the left, or the floor division of one to the right.
pub fn shift(c: &mut Ctx, call: &Call, op: BinaryOp) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    if !dtype.is_int() {
        return Err(format!("a shift of {dtype}"));
    }
    if matches!(c.arg(call, 1), Arg::Value(_)) {
        return by_tensor(c, call, op, dtype);
    }
    let by = c.int(call, 1)?;
    if !(0..dtype.bytes() as i64 * 8 - 1).contains(&by) {
        return Err(format!("a shift of {dtype} by {by}"));
    }
    let x = operand(c, call, 0)?;
    one(binary(c, op, x, Operand::Number(Scalar::Int(1 << by)), dtype)?)
}

/// A distance below zero or beyond the bits shifts everything out: zero remains, or -1 of a negative number that is
/// shifted to the right.
fn by_tensor(c: &mut Ctx, call: &Call, op: BinaryOp, dtype: DType) -> Res<Vec<ValueId>> {
    let (x, by) = (operand(c, call, 0)?, operand(c, call, 1)?);
    let (x, by) = (as_value(c, x, dtype)?, as_value(c, by, dtype)?);
    let bits = dtype.bytes() as i64 * 8;
    let signed = dtype != DType::U8;
    let number = |c: &mut Ctx, v: i64| c.constant(dtype, Scalar::Int(v));
    let zero = number(c, 0);
    // The largest distance whose power of two the dtype holds; one more is this and a step of one.
    let most = if signed { bits - 2 } else { bits - 1 };
    let (last, end, two) = (number(c, most), number(c, bits), number(c, 2));
    let near = c.binary(BinaryOp::Max, by, zero)?;
    let near = c.binary(BinaryOp::Min, near, last)?;
    let power = c.binary(BinaryOp::Pow, two, near)?;
    let mut r = c.binary(op, x, power)?;
    if signed {
        let beyond = c.compare(CompareOp::Gt, by, last)?;
        let step = c.binary(op, r, two)?;
        r = c.select(beyond, step, r)?;
    }
    let (below, above) = (c.compare(CompareOp::Lt, by, zero)?, c.compare(CompareOp::Ge, by, end)?);
    let out = c.binary(BinaryOp::Or, below, above)?;
    let rest = if op == BinaryOp::FloorDiv && signed {
        let negative = c.compare(CompareOp::Lt, x, zero)?;
        let minus = number(c, -1);
        c.select(negative, minus, zero)?
    } else {
        zero
    };
    one(c.select(out, rest, r)?)
}
