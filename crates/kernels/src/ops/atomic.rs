//! Atomic updates of memory.
use super::convert::{broadcast_to, cast, scalar_constant, to_tensor};
use super::memory::{access_shape, mask, pointee};
use crate::emit::{AtomicUpdate, Emitter};
use crate::error::{Eval, type_error};
use crate::types::{Number, Scalar};
use crate::value::{Tensor, Value};

/// Values are cast to the pointer's type; gives the old elements if the IR can.
pub fn update(
    emit: &mut Emitter,
    update: AtomicUpdate,
    pointer: &Tensor,
    value: &Value,
    mask_value: &Value,
) -> Eval<Option<Tensor>> {
    let elem = pointee("an atomic update", pointer)?;
    if elem == Number::Int1 || elem.is_f8() {
        return Err(type_error(format!("elements of type {elem} have no atomic updates"), "use int32"));
    }
    let value = match value {
        Value::Constant(constant) => scalar_constant(emit, constant, elem)?,
        _ => {
            let value = to_tensor(emit, value)?;
            cast(emit, &value, Scalar::Number(elem))?
        }
    };
    let mask = mask(emit, mask_value)?;
    let shape = access_shape("an atomic update", pointer, [Some(&value), mask.as_ref()])?;
    let pointer = broadcast_to(emit, pointer, &shape)?;
    let value = broadcast_to(emit, &value, &shape)?;
    let mask = mask.map(|mask| broadcast_to(emit, &mask, &shape)).transpose()?;
    emit.atomic(update, &pointer, &value, mask.as_ref())
}

pub fn compare_and_swap(emit: &mut Emitter, pointer: &Tensor, compare: &Value, value: &Value) -> Eval<Tensor> {
    let elem = pointee("atomic_cas", pointer)?;
    let mut converted = |value: &Value| -> Eval<Tensor> {
        let value = match value {
            Value::Constant(constant) => scalar_constant(emit, constant, elem)?,
            _ => {
                let value = to_tensor(emit, value)?;
                cast(emit, &value, Scalar::Number(elem))?
            }
        };
        broadcast_to(emit, &value, &pointer.ty.shape)
    };
    let (compare, value) = (converted(compare)?, converted(value)?);
    emit.compare_and_swap(pointer, &compare, &value)
}
