//! Elementary functions.
use super::emit::{Emit, Fail, Res};
use inkwell::values::FloatValue;
use kiln_block::{BinaryOp, UnaryOp};

type F<'c> = FloatValue<'c>;

pub(super) fn unary<'c>(e: &Emit<'c>, op: UnaryOp, x: F<'c>) -> Res<F<'c>> {
    match op {
        UnaryOp::Neg => e.fneg(x),
        UnaryOp::Abs => e.call_float("llvm.fabs", &[x]),
        UnaryOp::Sqrt => e.call_float("llvm.sqrt", &[x]),
        UnaryOp::Floor => e.call_float("llvm.floor", &[x]),
        UnaryOp::Ceil => e.call_float("llvm.ceil", &[x]),
        UnaryOp::Round => e.call_float("llvm.roundeven", &[x]),
        UnaryOp::Trunc => e.call_float("llvm.trunc", &[x]),
        other => Err(Fail::Unsupported(format!("{other:?}"))),
    }
}

pub(super) fn binary<'c>(e: &Emit<'c>, op: BinaryOp, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    match op {
        BinaryOp::Add => e.fadd(x, y),
        BinaryOp::Sub => e.fsub(x, y),
        BinaryOp::Mul => e.fmul(x, y),
        BinaryOp::Div => e.fdiv(x, y),
        BinaryOp::Max => e.call_float("llvm.maximum", &[x, y]),
        BinaryOp::Min => e.call_float("llvm.minimum", &[x, y]),
        other => Err(Fail::Unsupported(format!("{other:?} of floats"))),
    }
}
