//! Loads and stores by pointers.
use super::convert::{broadcast_to, cast, to_tensor};
use crate::emit::{Access, Emitter};
use crate::error::{Eval, type_error, value_error};
use crate::types::{Number, Scalar, broadcast_shape};
use crate::value::{Constant, Tensor, Value};
use kiln_block::CachePolicy;

/// A mask and a value for elements outside, `None` where they are not given, and a hint to caches.
pub struct LoadOperands<'a> {
    pub mask: &'a Value,
    pub other: &'a Value,
    pub cache: CachePolicy,
}

pub fn load(emit: &mut Emitter, pointer: &Tensor, operands: &LoadOperands) -> Eval<Tensor> {
    let elem = pointee("load", pointer)?;
    if operands.mask.is_none() && !operands.other.is_none() {
        return Err(value_error("`other` is given without `mask`", "give the mask whose other side it is"));
    }
    let mask = mask(emit, operands.mask)?;
    let other = match operands.other {
        other if other.is_none() => None,
        Value::Constant(constant) => {
            let other = element_constant(emit, constant, elem)?;
            Some(cast(emit, &other, Scalar::Number(elem))?)
        }
        other => {
            let other = to_tensor(emit, other)?;
            Some(cast(emit, &other, Scalar::Number(elem))?)
        }
    };
    let shape = access_shape("load", pointer, [mask.as_ref(), other.as_ref()])?;
    let pointer = broadcast_to(emit, pointer, &shape)?;
    let mask = mask.map(|mask| broadcast_to(emit, &mask, &shape)).transpose()?;
    let other = other.map(|other| broadcast_to(emit, &other, &shape)).transpose()?;
    emit.load(&pointer, &Access { mask, other, cache: operands.cache })
}

/// `operands.other` is not used.
pub fn store(emit: &mut Emitter, pointer: &Tensor, value: &Value, operands: &LoadOperands) -> Eval<()> {
    let elem = writable("store", pointer)?;
    let value = match value {
        Value::Constant(constant) if super::arithmetic::is_number(constant) => element_constant(emit, constant, elem)?,
        _ => to_tensor(emit, value)?,
    };
    let mask = mask(emit, operands.mask)?;
    let shape = access_shape("store", pointer, [Some(&value), mask.as_ref()])?;
    let value = cast(emit, &value, Scalar::Number(elem))?;
    let pointer = broadcast_to(emit, pointer, &shape)?;
    let value = broadcast_to(emit, &value, &shape)?;
    let mask = mask.map(|mask| broadcast_to(emit, &mask, &shape)).transpose()?;
    emit.store(&pointer, &value, &Access { mask, other: None, cache: operands.cache })
}

/// In the element's type where that holds it; else it is cast as a run-time value is.
pub fn element_constant(emit: &mut Emitter, constant: &Constant, elem: Number) -> Eval<Tensor> {
    let fits = match (elem.range(), constant.as_int()) {
        (Some((least, most)), Some(value)) => (least..=most).contains(&value),
        (None, _) => true,
        _ => false,
    };
    match fits {
        true => super::convert::scalar_constant(emit, constant, elem),
        false => to_tensor(emit, &Value::Constant(constant.clone())),
    }
}

/// A bool, if there is a mask.
pub fn mask(emit: &mut Emitter, value: &Value) -> Eval<Option<Tensor>> {
    if value.is_none() {
        return Ok(None);
    }
    let mask = to_tensor(emit, value)?;
    match mask.number()? {
        Number::Int1 => Ok(Some(mask)),
        number if number.is_int() => super::arithmetic::to_truth(emit, &mask).map(Some),
        number => Err(type_error(format!("the mask is {number}"), "a mask is a comparison, or of type int1")),
    }
}

pub fn pointee(name: &str, pointer: &Tensor) -> Eval<Number> {
    pointer.pointee().ok_or_else(|| {
        type_error(
            format!("{name} takes a pointer; this is {}", pointer.ty),
            "add offsets to a pointer argument, such as `x_ptr + offsets`",
        )
    })
}

/// What is behind a pointer that may be written through.
pub fn writable(name: &str, pointer: &Tensor) -> Eval<Number> {
    match pointer.ty.scalar {
        Scalar::ConstPointer(_) => Err(type_error(
            format!("Cannot store to a constant pointer: {name} takes {}", pointer.ty),
            "leave out the annotation `tl.const` of the parameter",
        )),
        _ => pointee(name, pointer),
    }
}

/// The shape of an access; a scalar's operands are scalars.
pub fn access_shape(name: &str, pointer: &Tensor, operands: [Option<&Tensor>; 2]) -> Eval<Vec<usize>> {
    let mut shape = pointer.ty.shape.clone();
    for operand in operands.into_iter().flatten() {
        if !pointer.ty.is_block() && operand.ty.is_block() {
            return Err(type_error(
                format!("{name} takes {}, a single pointer, with a block of type {}", pointer.ty, operand.ty),
                "add a block of offsets to the pointer, such as `arange(0, BLOCK)`",
            ));
        }
        shape = broadcast_shape(&shape, &operand.ty.shape)?;
    }
    Ok(shape)
}
