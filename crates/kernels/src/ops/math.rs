//! Elementary functions.
use super::arithmetic::promote;
use super::convert::to_tensor;
use crate::emit::Emitter;
use crate::error::{Eval, type_error};
use crate::types::{Arithmetic, Number};
use crate::value::{Tensor, Value};
use kiln_block::{BinaryOp, UnaryOp};

/// A function of one float of 32 or 64 bits.
pub fn unary(emit: &mut Emitter, name: &str, op: UnaryOp, x: &Value) -> Eval<Tensor> {
    let x = to_tensor(emit, x)?;
    let number = x.number()?;
    if !matches!(number, Number::Float32 | Number::Float64) {
        return Err(type_error(
            format!("{name} takes float32 or float64; this is {}", x.ty),
            "cast it with `.to(tl.float32)`",
        ));
    }
    emit.unary(op, &x)
}

/// e^x or 2^x. Of f32 it is one instruction of a GPU, as kernels that were written for others expect: e^x errs by up to
/// |x| 2^-24 of itself, which is the rounding of x log2 e, and 2^-22 more.
pub fn exponential(emit: &mut Emitter, name: &str, op: UnaryOp, x: &Value) -> Eval<Tensor> {
    let x = to_tensor(emit, x)?;
    if x.number()? != Number::Float32 {
        return unary(emit, name, op, &Value::Tensor(x));
    }
    let unit = emit.float(Number::Float32, std::f64::consts::LOG2_E)?;
    let power = match op {
        UnaryOp::Exp => binary(emit, name, BinaryOp::Mul, &Value::Tensor(x), &Value::Tensor(unit))?,
        _ => x,
    };
    emit.unary(UnaryOp::Exp2Approx, &power)
}

/// Of integers and floats.
pub fn abs(emit: &mut Emitter, x: &Value) -> Eval<Tensor> {
    let x = to_tensor(emit, x)?;
    let number = x.number()?;
    if number.is_unsigned() {
        return Ok(x);
    }
    if number.is_f8() {
        return Err(type_error(format!("there is no arithmetic on {number}"), "cast to float16 or float32 first"));
    }
    emit.unary(UnaryOp::Abs, &x)
}

/// A function of two floats, promoted to one type.
pub fn binary(emit: &mut Emitter, name: &str, op: BinaryOp, a: &Value, b: &Value) -> Eval<Tensor> {
    let pair = float_pair(emit, name, a, b)?;
    emit.binary(op, &pair.0, &pair.1)
}

fn float_pair(emit: &mut Emitter, name: &str, a: &Value, b: &Value) -> Eval<(Tensor, Tensor)> {
    let (a, b) = (Value::Tensor(to_tensor(emit, a)?), Value::Tensor(to_tensor(emit, b)?));
    let pair = promote(emit, &a, &b, Arithmetic::Plain)?;
    if !pair.number.is_float() {
        return Err(type_error(
            format!("{name} takes floats; these are of type {}", pair.number),
            "cast them with `.to(tl.float32)`",
        ));
    }
    Ok((pair.a, pair.b))
}

/// How a quotient is rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Division {
    /// As the program's arithmetic says.
    Plain,
    /// To nearest.
    Rounded,
}

/// `fdiv` and `div_rn`: both are floats before promotion.
pub fn divide(emit: &mut Emitter, division: Division, a: &Value, b: &Value) -> Eval<Tensor> {
    let (a, b) = (to_tensor(emit, a)?, to_tensor(emit, b)?);
    if !a.number()?.is_float() || !b.number()?.is_float() {
        return Err(type_error(format!("fdiv takes floats; these are {} and {}", a.ty, b.ty), "use `/`"));
    }
    let pair = promote(emit, &Value::Tensor(a), &Value::Tensor(b), Arithmetic::Division)?;
    let rounds = division == Division::Rounded && matches!(pair.number, Number::Float32 | Number::Float64);
    emit.binary(if rounds { BinaryOp::DivRn } else { BinaryOp::Div }, &pair.a, &pair.b)
}

pub fn fma(emit: &mut Emitter, a: &Value, b: &Value, c: &Value) -> Eval<Tensor> {
    let full = |emit: &mut Emitter, side: &Value| to_tensor(emit, side).map(Value::Tensor);
    let (a, b, c) = (full(emit, a)?, full(emit, b)?, full(emit, c)?);
    let product = promote(emit, &a, &b, Arithmetic::Plain)?;
    let left = promote(emit, &c, &Value::Tensor(product.a), Arithmetic::Plain)?;
    let right = promote(emit, &Value::Tensor(left.a), &Value::Tensor(product.b), Arithmetic::Plain)?;
    emit.fma(&left.b, &right.b, &right.a)
}

/// The upper half of a product of integers.
pub fn mulhi(emit: &mut Emitter, a: &Value, b: &Value) -> Eval<Tensor> {
    let full = |emit: &mut Emitter, side: &Value| to_tensor(emit, side).map(Value::Tensor);
    let (a, b) = (full(emit, a)?, full(emit, b)?);
    let pair = promote(emit, &a, &b, Arithmetic::Plain)?;
    if !pair.number.is_int() || pair.number.bits() < 32 {
        return Err(type_error(
            format!("umulhi takes integers of 32 or 64 bits; these are of type {}", pair.number),
            "cast them with `.to(tl.uint32)`",
        ));
    }
    emit.binary(BinaryOp::MulHi, &pair.a, &pair.b)
}
