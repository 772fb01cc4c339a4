//! Arguments of primitives: read as what they have to be, else refused by name.
use super::Walk;
use crate::error::{Eval, type_error, value_error};
use crate::ops::convert::to_tensor;
use crate::types::TensorType;
use crate::value::{Constant, Tensor, Value};

/// A run-time value; a constant becomes one.
pub fn tensor(walk: &mut dyn Walk, value: &Value) -> Eval<Tensor> {
    to_tensor(walk.emit(), value)
}

/// The blocks of a tuple, or the only one.
pub fn tensors(walk: &mut dyn Walk, value: &Value) -> Eval<Vec<Tensor>> {
    match value {
        Value::Tuple(tuple) => tuple.values.iter().map(|value| tensor(walk, value)).collect(),
        other => Ok(vec![tensor(walk, other)?]),
    }
}

/// The values of a tuple.
pub fn sequence(value: &Value) -> Eval<Vec<Value>> {
    match value {
        Value::Tuple(tuple) => Ok(tuple.values.to_vec()),
        other => Err(type_error(format!("{} is not a tuple", other.describe()), "a tuple or a list is needed here")),
    }
}

/// A shape: a tuple of constants, or a constant.
pub fn sizes(value: &Value) -> Eval<Vec<i128>> {
    let size = |value: &Value| {
        value.constant().and_then(Constant::as_int).ok_or_else(|| {
            type_error(
                format!("a size of a shape is {}", value.describe()),
                "sizes are known at compile time: declare the parameter `: tl.constexpr`",
            )
        })
    };
    match value {
        Value::Tuple(tuple) => tuple.values.iter().map(size).collect(),
        other => Ok(vec![size(other)?]),
    }
}

/// The type that a dtype argument names.
pub fn type_of(value: &Value) -> Eval<TensorType> {
    match value {
        Value::Type(ty) => Ok(ty.clone()),
        other => {
            Err(type_error(format!("{} is not a type", other.describe()), "a dtype is needed, such as tl.float32"))
        }
    }
}

/// A flag that is known while compiling.
pub fn known_flag(name: &str, value: &Value) -> Eval<bool> {
    value.constant().map(|constant| constant.truth()).ok_or_else(|| known(name, value))
}

pub fn known(name: &str, value: &Value) -> Box<crate::KernelError> {
    type_error(
        format!("`{name}` is {}", value.describe()),
        "it is known at compile time: a literal, or a parameter declared `: tl.constexpr`",
    )
}

/// An integer that is known while compiling.
pub fn known_int(name: &str, value: &Value) -> Eval<i128> {
    value.constant().and_then(|constant| constant.as_int()).ok_or_else(|| known(name, value))
}

/// A text that is known while compiling; empty for `None`.
pub fn known_text(name: &str, value: &Value) -> Eval<String> {
    match value {
        Value::Constant(Constant::Str(text)) => Ok(text.to_string()),
        Value::Constant(Constant::None) => Ok(String::new()),
        other => Err(known(name, other)),
    }
}

/// Refuses an option whose value is none of those that exist.
pub fn one_of(name: &str, value: &str, options: &[&str]) -> Eval<()> {
    if value.is_empty() || options.contains(&value) {
        return Ok(());
    }
    Err(value_error(format!("{name} '{value}' does not exist"), format!("it is one of {options:?}")))
}
