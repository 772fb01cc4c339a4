//! `x.name`: attributes of blocks, types, tuples and modules. What is not known as an attribute of a block is a method.
use super::Evaluator;
use crate::error::{Eval, name_error};
use crate::ops::shape::transpose;
use crate::primitives;
use crate::types::{Number, Scalar, TensorType};
use crate::value::{Tensor, Value};

impl Evaluator<'_> {
    pub(super) fn attribute(&mut self, base: &Value, name: &str) -> Eval<Value> {
        match base {
            Value::Tensor(tensor) => self.tensor_attribute(tensor, name),
            Value::Type(ty) => type_attribute(ty, name),
            Value::Module(path) => self.module_attribute(path, name),
            Value::Tuple(tuple) => {
                let at = tuple.fields.as_ref().and_then(|fields| fields.iter().position(|field| field == name));
                match at.and_then(|at| tuple.values.get(at)) {
                    Some(value) => Ok(value.clone()),
                    None => Err(no_attribute(base, name)),
                }
            }
            Value::Constant(_) if name == "value" => Ok(base.clone()),
            Value::Constant(constant) if matches!(name, "dtype" | "type") => {
                constant.number().map(|number| Value::Type(TensorType::scalar(number)))
            }
            Value::Constant(_) if primitives::is_method(name) => Ok(method(base, name)),
            Value::Callee(_) if matches!(name, "fn" | "value") => Ok(base.clone()),
            Value::Descriptor(descriptor) => match name {
                "dtype" => Ok(Value::Type(pointee(&descriptor.base))),
                "block_shape" => Ok(sizes(&descriptor.block)),
                "shape" => Ok(Value::tuple(descriptor.shape.iter().cloned().map(Value::Tensor).collect())),
                "strides" => Ok(Value::tuple(descriptor.strides.iter().cloned().map(Value::Tensor).collect())),
                _ => Ok(method(base, name)),
            },
            Value::Array(array) => match name {
                "dtype" => Ok(Value::Type(pointee(&array.base))),
                "base" => Ok(Value::Tensor(array.base.clone())),
                "shape" => Ok(Value::tuple(array.shape.iter().cloned().map(Value::Tensor).collect())),
                "strides" => Ok(Value::tuple(array.strides.iter().cloned().map(Value::Tensor).collect())),
                "stride" => Ok(method(base, name)),
                _ => Err(no_attribute(base, name)),
            },
            Value::BlockPointer(pointer) => match name {
                "dtype" => Ok(Value::Type(pointer.base.ty.clone())),
                "type" => {
                    let ty = TensorType { scalar: Scalar::Pointer(pointee_number(&pointer.base)), shape: vec![] };
                    Ok(Value::Type(ty))
                }
                "shape" => Ok(sizes(&pointer.block)),
                _ => Ok(method(base, name)),
            },
            _ => Err(no_attribute(base, name)),
        }
    }

    fn tensor_attribute(&mut self, tensor: &Tensor, name: &str) -> Eval<Value> {
        match name {
            "shape" => Ok(sizes(&tensor.ty.shape)),
            "dtype" => Ok(Value::Type(TensorType { scalar: tensor.ty.scalar, shape: vec![] })),
            "type" => Ok(Value::Type(tensor.ty.clone())),
            "numel" => Ok(Value::int(tensor.ty.count() as i128)),
            "T" => transpose(&mut self.emit, tensor).map(Value::Tensor),
            _ if primitives::is_method(name) => Ok(method(&Value::Tensor(tensor.clone()), name)),
            _ => Err(no_attribute(&Value::Tensor(tensor.clone()), name)),
        }
    }
}

fn method(receiver: &Value, name: &str) -> Value {
    Value::Method { receiver: Box::new(receiver.clone()), name: name.into() }
}

fn sizes(shape: &[usize]) -> Value {
    Value::tuple(shape.iter().map(|size| Value::int(*size as i128)).collect())
}

fn pointee_number(pointer: &Tensor) -> Number {
    pointer.pointee().unwrap_or(Number::Int8)
}

fn pointee(pointer: &Tensor) -> TensorType {
    TensorType::scalar(pointee_number(pointer))
}

fn no_attribute(base: &Value, name: &str) -> Box<crate::KernelError> {
    name_error(
        format!("{} has no attribute `{name}`", base.describe()),
        match primitives::near(name) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "see the guide for what a kernel may use".into(),
        },
    )
}

/// Attributes of types; predicates such as `is_fp16` are methods without arguments.
fn type_attribute(ty: &TensorType, name: &str) -> Eval<Value> {
    let base = Value::Type(ty.clone());
    let number = ty.scalar.number();
    match name {
        "value" => Ok(base),
        "scalar" => Ok(Value::Type(TensorType { scalar: ty.scalar, shape: vec![] })),
        "element_ty" => match (ty.is_block(), ty.scalar) {
            (true, scalar) => Ok(Value::Type(TensorType { scalar, shape: vec![] })),
            (false, Scalar::Pointer(elem) | Scalar::ConstPointer(elem)) => Ok(Value::number(elem)),
            (false, Scalar::Number(_)) => Err(no_attribute(&base, name)),
        },
        "shape" => Ok(sizes(&ty.shape)),
        "numel" => Ok(Value::int(ty.count() as i128)),
        "name" => Ok(Value::str(number.map_or_else(|| ty.to_string(), |number| number.short_name().into()))),
        "primitive_bitwidth" | "int_bitwidth" => Ok(Value::int(i128::from(ty.scalar.bits()))),
        "itemsize" => Ok(Value::int(i128::from(ty.scalar.bits() / 8))),
        "fp_mantissa_width" => match number.and_then(Number::mantissa) {
            Some(width) => Ok(Value::int(i128::from(width))),
            None => Err(no_attribute(&base, name)),
        },
        "exponent_bias" => match number.and_then(Number::exponent_bias) {
            Some(bias) => Ok(Value::int(i128::from(bias))),
            None => Err(no_attribute(&base, name)),
        },
        "int_signedness" => Ok(Value::str(if number.is_some_and(Number::is_signed) { "SIGNED" } else { "UNSIGNED" })),
        _ if type_predicate(ty, name).is_some() || matches!(name, "get_int_max_value" | "get_int_min_value") => {
            Ok(method(&base, name))
        }
        _ => Err(no_attribute(&base, name)),
    }
}

/// The answer of `dtype.is_…()`.
pub fn type_predicate(ty: &TensorType, name: &str) -> Option<bool> {
    let number = ty.scalar.number();
    let is = |test: fn(Number) -> bool| number.is_some_and(test);
    Some(match name {
        "is_ptr" => ty.scalar.is_pointer() && !ty.is_block(),
        "is_block" => ty.is_block(),
        "is_floating" => is(Number::is_float),
        "is_standard_floating" => is(|n| n.is_float() && !n.is_f8()),
        "is_int" => is(Number::is_int),
        "is_int_signed" => is(Number::is_signed),
        "is_int_unsigned" => is(Number::is_unsigned),
        "is_bool" | "is_int1" => number == Some(Number::Int1),
        "is_fp8" => is(Number::is_f8),
        "is_const" => matches!(ty.scalar, Scalar::ConstPointer(_)),
        "is_void" => false,
        _ => {
            let named = Number::named(name.strip_prefix("is_")?)?;
            number == Some(named)
        }
    })
}
