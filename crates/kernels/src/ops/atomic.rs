//! Atomic updates of memory. The IR has those of integers and the addition of floats; the largest and the least float
//! are updates of its bits.
use super::arithmetic::{compare, logical};
use super::convert::{bitcast, broadcast_to, cast, to_tensor};
use super::memory::{access_shape, element_constant, mask, writable};
use crate::emit::{Emitter, Update};
use crate::error::{Eval, type_error};
use crate::syntax::tree::CompareOp;
use crate::types::{Number, Scalar};
use crate::value::{Tensor, Value};
use kiln_block::{AtomicOp, Atomicity, BinaryOp, UnaryOp};

/// Values are cast to the pointer's type; gives the old elements.
pub fn update(emit: &mut Emitter, update: Update, pointer: &Tensor, value: &Value, mask_value: &Value) -> Eval<Tensor> {
    let elem = writable("an atomic update", pointer)?;
    if elem == Number::Int1 || elem.is_f8() {
        return Err(type_error(format!("elements of type {elem} have no atomic updates"), "use int32"));
    }
    let value = stored(emit, value, elem)?;
    let mask = mask(emit, mask_value)?;
    let shape = access_shape("an atomic update", pointer, [Some(&value), mask.as_ref()])?;
    let pointer = broadcast_to(emit, pointer, &shape)?;
    let value = broadcast_to(emit, &value, &shape)?;
    let mask = mask.map(|mask| broadcast_to(emit, &mask, &shape)).transpose()?;
    let orders = matches!(update.op, AtomicOp::Max | AtomicOp::Min);
    if orders && matches!(elem, Number::Float32 | Number::Float64) {
        return float_extreme(emit, update, &pointer, &value, mask.as_ref());
    }
    emit.atomic(update, &pointer, &value, mask.as_ref())
}

fn stored(emit: &mut Emitter, value: &Value, elem: Number) -> Eval<Tensor> {
    let value = match value {
        Value::Constant(constant) => element_constant(emit, constant, elem)?,
        _ => to_tensor(emit, value)?,
    };
    cast(emit, &value, Scalar::Number(elem))
}

/// Floats of positive sign are ordered as their bits are as signed integers, and those of negative sign the other way
/// round as unsigned ones.
fn float_extreme(
    emit: &mut Emitter,
    update: Update,
    pointer: &Tensor,
    value: &Tensor,
    mask: Option<&Tensor>,
) -> Eval<Tensor> {
    let (signed, unsigned) = match value.number()?.bits() {
        32 => (Number::Int32, Number::UInt32),
        _ => (Number::Int64, Number::UInt64),
    };
    let bits = bitcast(emit, value, Scalar::Number(signed))?;
    let positive = compare(emit, CompareOp::Ge, &Value::Tensor(bits), &Value::int(0))?;
    let negative = emit.unary(UnaryOp::Not, &positive)?;
    let opposite = if update.op == AtomicOp::Max { AtomicOp::Min } else { AtomicOp::Max };
    let mut side = |number: Number, op: AtomicOp, chosen: &Tensor| -> Eval<Tensor> {
        let pointer = bitcast(emit, pointer, Scalar::Pointer(number))?;
        let bits = bitcast(emit, value, Scalar::Number(number))?;
        let mask = match mask {
            Some(mask) => logical(emit, BinaryOp::And, mask, chosen)?,
            None => chosen.clone(),
        };
        let old = emit.atomic(Update { op, ..update }, &pointer, &bits, Some(&mask))?;
        bitcast(emit, &old, value.ty.scalar)
    };
    let of_positive = side(signed, update.op, &positive)?;
    let of_negative = side(unsigned, opposite, &negative)?;
    emit.select(&positive, &of_positive, &of_negative)
}

pub fn compare_swap(
    emit: &mut Emitter,
    how: Atomicity,
    pointer: &Tensor,
    expected: &Value,
    new: &Value,
) -> Eval<Tensor> {
    let elem = writable("atomic_cas", pointer)?;
    let expected = stored(emit, expected, elem)?;
    let new = stored(emit, new, elem)?;
    let shape = access_shape("atomic_cas", pointer, [Some(&expected), Some(&new)])?;
    let pointer = broadcast_to(emit, pointer, &shape)?;
    let (expected, new) = (broadcast_to(emit, &expected, &shape)?, broadcast_to(emit, &new, &shape)?);
    emit.compare_swap(how, &pointer, &expected, &new)
}
