//! What exists while compiling only: constants, types, checks, printing; and the grid.
use super::arguments::{known_int, known_text, sequence, sizes, tensor, type_of};
use super::{Primitive, Walk, row};
use crate::error::{ErrorKind, Eval, KernelError, type_error, unsupported, value_error};
use crate::types::{Number, Scalar, TensorType, checked_shape};
use crate::value::{Constant, Value};

pub const TABLE: &[Primitive] = &[
    row("program_id", "axis", |e, a| e.emit().program_id(grid_axis(&a[0])?).map(Value::Tensor)),
    row("num_programs", "axis", |e, a| e.emit().num_programs(grid_axis(&a[0])?).map(Value::Tensor)),
    row("constexpr", "value", |_, a| Ok(a[0].clone())),
    row("to_tensor", "value", |e, a| tensor(e, &a[0]).map(Value::Tensor)),
    row("static_assert", "cond, msg=''", static_assert),
    row("static_print", "*values", static_print),
    row("pointer_type", "element_ty, address_space=1, const=False", pointer_type),
    row("block_type", "element_ty, shape", |_, a| {
        Ok(Value::Type(type_of(&a[0])?.with_shape(checked_shape(&sizes(&a[1])?)?)))
    }),
    row("dtype", "name", dtype),
    row("tuple", "values", |_, a| sequence(&a[0]).map(Value::tuple)),
    row("Array", "value", |_, _| Err(no_constructor("Array"))),
    row("tensor", "value", |_, _| Err(no_constructor("tensor"))),
    row("tensor_descriptor", "value", |_, _| Err(no_constructor("tensor_descriptor"))),
    row("range", "start, end=None, step=1", |_, _| Err(only_in_for("range"))),
    row("static_range", "start, end=None, step=1", |_, _| Err(only_in_for("static_range"))),
    row("condition", "arg1, disable_licm=False", |_, a| Ok(a[0].clone())),
    row("next_power_of_2", "n", next_power_of_two),
    row("_exact_log2", "n", exact_log2),
    row("_log2", "i", floor_log2),
    row("get_int_dtype", "bitwidth, signed", int_dtype),
];

fn grid_axis(value: &Value) -> Eval<u8> {
    match known_int("axis", value)? {
        axis @ 0..=2 => Ok(axis as u8),
        axis => Err(value_error(format!("the grid has no axis {axis}"), "its axes are 0, 1 and 2")),
    }
}

fn static_assert(_: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let message = arguments[1].text();
    match arguments[0].truth()? {
        Some(true) => Ok(Value::NONE),
        Some(false) => {
            let message = if message.is_empty() { "the condition is false".to_string() } else { message };
            Err(KernelError::new(ErrorKind::Assertion, message).with_hint("the condition is known at compile time"))
        }
        None => Err(type_error(
            "the condition of static_assert is known only at run time",
            "use device_assert for run-time values",
        )),
    }
}

fn static_print(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let values = sequence(&arguments[0])?;
    let shown: Vec<String> = values.iter().map(Value::text).collect();
    walk.print(shown.join(" "));
    Ok(Value::NONE)
}

fn pointer_type(_: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    match type_of(&arguments[0])?.scalar {
        Scalar::Number(elem) => Ok(Value::Type(TensorType { scalar: Scalar::Pointer(elem), shape: vec![] })),
        Scalar::Pointer(_) | Scalar::ConstPointer(_) => {
            Err(unsupported("pointers to pointers are not supported", "load addresses as int64, and cast them"))
        }
    }
}

fn dtype(_: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let name = known_text("name", &arguments[0])?;
    Number::named(&name)
        .map(Value::number)
        .ok_or_else(|| value_error(format!("there is no type '{name}'"), "'fp32' is one"))
}

fn no_constructor(name: &str) -> Box<KernelError> {
    unsupported(format!("`{name}` is not called in a kernel"), "values come from operators and functions")
}

fn only_in_for(name: &str) -> Box<KernelError> {
    unsupported(format!("`{name}` stands only in `for`"), format!("write `for i in {name}(n):`"))
}

fn floor_log2(_: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let value = known_int("i", &arguments[0])?;
    Ok(Value::int(value.checked_ilog2().map_or(0, i128::from)))
}

fn next_power_of_two(_: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let value = known_int("n", &arguments[0])?;
    match u64::try_from(value.max(1)).ok().and_then(u64::checked_next_power_of_two) {
        Some(power) => Ok(Value::int(i128::from(power))),
        None => Err(value_error(format!("there is no next power of two of {value}"), "take a smaller number")),
    }
}

fn exact_log2(_: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let value = known_int("n", &arguments[0])?;
    match u64::try_from(value) {
        Ok(n) if n.is_power_of_two() => Ok(Value::int(i128::from(n.trailing_zeros()))),
        _ => Err(value_error(format!("{value} is no power of two"), "take `next_power_of_2` of it")),
    }
}

fn int_dtype(_: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let bits = known_int("bitwidth", &arguments[0])?;
    let signed = arguments[1].constant().is_some_and(Constant::truth);
    u32::try_from(bits)
        .ok()
        .and_then(|bits| Number::int_of(bits, signed))
        .map(Value::number)
        .ok_or_else(|| value_error(format!("no integer has {bits} bits"), "there are 1, 8, 16, 32 and 64"))
}
