//! Constants as run-time values, casts, and broadcasting.
use crate::emit::Emitter;
use crate::error::{Eval, type_error, value_error};
use crate::types::{Number, Scalar, broadcast_shape};
use crate::value::{Constant, Tensor, Value};
use kiln_block::BinaryOp;

/// A run-time value; a constant gets the type that it has where it stands alone.
pub fn to_tensor(emit: &mut Emitter, value: &Value) -> Eval<Tensor> {
    match value {
        Value::Tensor(tensor) => Ok(tensor.clone()),
        Value::Constant(constant) => {
            let number = constant.number()?;
            scalar_constant(emit, constant, number)
        }
        Value::Missing(missing) => Err(crate::error::name_error(missing.why.clone(), missing.hint.clone())),
        other => Err(type_error(
            format!("{} is not a number or a block", other.describe()),
            "a run-time value or a number is needed here",
        )),
    }
}

/// A constant as a scalar of a type.
pub fn scalar_constant(emit: &mut Emitter, constant: &Constant, number: Number) -> Eval<Tensor> {
    if number.is_float() {
        let value = constant.as_float().ok_or_else(|| not_a_number(constant))?;
        return emit.float(number, value);
    }
    let value = match constant {
        Constant::Float(value) if value.is_finite() => *value as i128,
        _ => constant.as_int().ok_or_else(|| not_a_number(constant))?,
    };
    if number == Number::Int1 {
        return emit.int(number, i128::from(value != 0));
    }
    match number.range() {
        Some((least, most)) if !(least..=most).contains(&value) => Err(value_error(
            format!("{value} is out of range for {number}, which holds {least} to {most}"),
            "cast the other operand to a wider type",
        )),
        _ => emit.int(number, value),
    }
}

fn not_a_number(constant: &Constant) -> Box<crate::KernelError> {
    type_error(format!("{} is not a finite number", constant.repr()), "a number is needed here")
}

/// The value as another type: floats round to nearest, floats to integers truncate, anything to bool compares with 0.
pub fn cast(emit: &mut Emitter, x: &Tensor, to: Scalar) -> Eval<Tensor> {
    match (x.ty.scalar, to) {
        (from, to) if from == to => Ok(x.clone()),
        (Scalar::Number(from), Scalar::Number(number)) if from.is_float() && !from.is_f8() && number.is_f8() => {
            let within = clamp_to_f8(emit, x, number)?;
            emit.cast(&within, number)
        }
        (Scalar::Number(_), Scalar::Number(number)) => emit.cast(x, number),
        (from, to) if from.is_pointer() && to.is_pointer() => emit.bitcast(x, to),
        (Scalar::Number(number), to) if number.is_int() => {
            let address = emit.cast(x, Number::Int64)?;
            emit.bitcast(&address, to)
        }
        (_, Scalar::Number(number @ (Number::Int1 | Number::Int64 | Number::UInt64))) => {
            let address = emit.bitcast(x, Scalar::Number(Number::Int64))?;
            emit.cast(&address, number)
        }
        (from, to) => Err(type_error(format!("{from} is not converted to {to}"), "cast to int64 in between")),
    }
}

/// A float within the finite numbers of an 8-bit format; NaN stays NaN. Casts saturate, as Triton's do.
fn clamp_to_f8(emit: &mut Emitter, x: &Tensor, to: Number) -> Eval<Tensor> {
    let most = if to == Number::Float8E4M3 { 448.0 } else { 57344.0 };
    let wide = if x.number()? == Number::Float64 { x.clone() } else { emit.cast(x, Number::Float32)? };
    let number = wide.number()?;
    let mut bound = |value: f64| {
        let bound = emit.float(number, value)?;
        broadcast_to(emit, &bound, &wide.ty.shape)
    };
    let (least, most) = (bound(-most)?, bound(most)?);
    let above = emit.binary(BinaryOp::Max, &wide, &least)?;
    emit.binary(BinaryOp::Min, &above, &most)
}

pub fn cast_number(emit: &mut Emitter, x: &Tensor, to: Number) -> Eval<Tensor> {
    cast(emit, x, Scalar::Number(to))
}

/// The same bits as another type of the same width.
pub fn bitcast(emit: &mut Emitter, x: &Tensor, to: Scalar) -> Eval<Tensor> {
    let (Scalar::Number(from), Scalar::Number(number)) = (x.ty.scalar, to) else {
        return cast(emit, x, to);
    };
    if from.bits() != number.bits() {
        return Err(value_error(
            format!("{from} has {} bits and {number} has {}, so bits are not carried over", from.bits(), number.bits()),
            "cast to an integer of the width of the result first",
        ));
    }
    emit.bitcast(x, to)
}

/// A value in a shape that it broadcasts to: axes are added in front, sizes of 1 are repeated.
pub fn broadcast_to(emit: &mut Emitter, x: &Tensor, shape: &[usize]) -> Eval<Tensor> {
    if !x.ty.is_block() {
        return emit.splat(x, shape);
    }
    let mut wide = x.clone();
    while wide.ty.shape.len() < shape.len() {
        wide = emit.expand_dims(&wide, 0)?;
    }
    emit.broadcast(&wide, shape)
}

/// Both in the shape that they broadcast to.
pub fn broadcast(emit: &mut Emitter, a: &Tensor, b: &Tensor) -> Eval<(Tensor, Tensor)> {
    let shape = broadcast_shape(&a.ty.shape, &b.ty.shape)?;
    Ok((broadcast_to(emit, a, &shape)?, broadcast_to(emit, b, &shape)?))
}
