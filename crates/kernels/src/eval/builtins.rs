//! Python's own functions, on values that are known while compiling. `min` and `max` also take run-time values.
use super::Evaluator;
use super::loops::known_range;
use crate::emit::Shown;
use crate::error::{Eval, type_error, unsupported};
use crate::ops::arithmetic::{Extreme, NanRule, extreme};
use crate::ops::report;
use crate::syntax::tree::CompareOp;
use crate::unit::Variable;
use crate::value::{Arguments, Builtin, Callee, Constant, Tensor, Value};

impl Evaluator<'_> {
    /// Stops the interpreter with the variables that have run-time values; compiled code does not stop.
    fn breakpoint(&mut self) -> Eval<Value> {
        if self.options.interpret {
            let variables = self.frame()?.scope.iter();
            let variables: Vec<(String, Tensor)> =
                variables.filter_map(|(name, slot)| Some((name.clone(), slot.value.tensor()?.clone()))).collect();
            let last = variables.len();
            for (n, (name, value)) in variables.into_iter().enumerate() {
                let variable = Some(Variable { name, is_last: n + 1 == last });
                self.emit.print("breakpoint", Some(Shown { value, variable }))?;
            }
        }
        Ok(Value::NONE)
    }
    /// A message with the place of the statement or call.
    pub(super) fn with_place(&self, message: &str) -> String {
        match self.unit.place(self.emit.site) {
            Some(place) => format!("{message} ({}:{})", place.file, place.line),
            None => message.to_string(),
        }
    }
    pub(super) fn builtin(&mut self, builtin: Builtin, arguments: Arguments) -> Eval<Value> {
        let values = arguments.positional;
        match (builtin, &values[..]) {
            (Builtin::Len, [Value::Tuple(tuple)]) => Ok(Value::int(tuple.values.len() as i128)),
            (Builtin::Len, [Value::Constant(Constant::Str(text))]) => Ok(Value::int(text.chars().count() as i128)),
            (Builtin::Len, [Value::Tensor(tensor)]) if tensor.ty.is_block() => {
                Ok(Value::int(tensor.ty.shape[0] as i128))
            }
            (Builtin::Min, _) => self.extreme_of(Extreme::Min, &values),
            (Builtin::Max, _) => self.extreme_of(Extreme::Max, &values),
            (Builtin::Abs, [Value::Constant(Constant::Float(x))]) => Ok(Value::Constant(Constant::Float(x.abs()))),
            (Builtin::Abs, [Value::Constant(Constant::Bool(x))]) => Ok(Value::int(i128::from(*x))),
            (Builtin::Abs, [Value::Constant(Constant::Int(x))]) => Ok(Value::int(x.saturating_abs())),
            (Builtin::Abs, [value]) => crate::ops::math::abs(&mut self.emit, value).map(Value::Tensor),
            (Builtin::Int, [Value::Constant(Constant::Float(x))]) if x.is_finite() => Ok(Value::int(*x as i128)),
            (Builtin::Int, [Value::Constant(Constant::Str(text))]) => {
                text.trim().parse().map(|value: i128| Value::int(value)).map_err(|_| not_a_number(text))
            }
            (Builtin::Int, [Value::Constant(x)]) if x.as_int().is_some() => Ok(Value::int(x.as_int().unwrap_or(0))),
            (Builtin::Float, [Value::Constant(Constant::Str(text))]) => float_of(text),
            (Builtin::Float, [Value::Constant(x)]) if x.as_float().is_some() => {
                Ok(Value::Constant(Constant::Float(x.as_float().unwrap_or(0.0))))
            }
            (Builtin::Bool, [value]) if value.tensor().is_none() => Ok(Value::bool(value.truth()?.unwrap_or(true))),
            (Builtin::Str | Builtin::Repr, [value]) => Ok(Value::str(value.text())),
            (Builtin::Print, _) if values.iter().any(|value| value.tensor().is_some()) => {
                report::print(&mut self.emit, &values)?;
                Ok(Value::NONE)
            }
            (Builtin::Breakpoint, _) => self.breakpoint(),
            (Builtin::Print, _) => {
                let shown: Vec<String> = values.iter().map(Value::text).collect();
                self.printed.push(shown.join(" "));
                Ok(Value::NONE)
            }
            (Builtin::Range, _) => known_values(&values),
            (Builtin::Tuple, [value @ Value::Tuple(_)]) => Ok(value.clone()),
            (Builtin::Tuple, []) => Ok(Value::tuple(vec![])),
            (Builtin::Zip, _) => self.zip(&values),
            (Builtin::Enumerate, [value]) => {
                let items = self.sequence(value)?.into_iter().enumerate();
                Ok(Value::tuple(items.map(|(at, item)| Value::tuple(vec![Value::int(at as i128), item])).collect()))
            }
            (Builtin::IsInstance, [value, class]) => is_instance(value, class).map(Value::bool),
            (Builtin::HasAttr, [value, Value::Constant(Constant::Str(name))]) => {
                Ok(Value::bool(self.attribute(value, name).is_ok()))
            }
            (Builtin::GetAttr, [value, Value::Constant(Constant::Str(name)), default @ ..]) => {
                match (self.attribute(value, name), default) {
                    (Err(_), [default]) => Ok(default.clone()),
                    (found, _) => found,
                }
            }
            (builtin, _) => {
                let shown: Vec<String> = values.iter().map(Value::describe).collect();
                Err(type_error(
                    format!("`{builtin:?}` of {} is not known at compile time", shown.join(", ")).to_lowercase(),
                    "use functions of the language on run-time values, such as `x.to(tl.int32)`",
                ))
            }
        }
    }

    fn extreme_of(&mut self, which: Extreme, values: &[Value]) -> Eval<Value> {
        let listed;
        let values = match values {
            [Value::Tuple(tuple)] => {
                listed = tuple.values.to_vec();
                &listed[..]
            }
            _ => values,
        };
        let (Some(head), true) = (values.first(), values.len() >= 2) else {
            return match values {
                [only] => Ok(only.clone()),
                _ => Err(type_error("min and max take at least two values", "name two values")),
            };
        };
        let mut best = head.clone();
        for value in &values[1..] {
            best = match (&best, value) {
                (Value::Constant(_), Value::Constant(_)) => {
                    let op = if which == Extreme::Max { CompareOp::Gt } else { CompareOp::Lt };
                    if super::constants::compare(op, value, &best)? { value.clone() } else { best }
                }
                _ => extreme(&mut self.emit, which, &best, value, NanRule::Ignore).map(Value::Tensor)?,
            };
        }
        Ok(best)
    }

    fn zip(&self, values: &[Value]) -> Eval<Value> {
        let columns: Vec<Vec<Value>> = values.iter().map(|value| self.sequence(value)).collect::<Eval<_>>()?;
        let count = columns.iter().map(Vec::len).min().unwrap_or(0);
        let row = |at: usize| Value::tuple(columns.iter().map(|column| column[at].clone()).collect());
        Ok(Value::tuple((0..count).map(row).collect()))
    }
}

fn not_a_number(text: &str) -> Box<crate::KernelError> {
    type_error(format!("'{text}' is not a number"), "write the number itself")
}

fn float_of(text: &str) -> Eval<Value> {
    let value = match text.trim().to_lowercase().trim_start_matches('+') {
        "inf" | "infinity" => Some(f64::INFINITY),
        "-inf" | "-infinity" => Some(f64::NEG_INFINITY),
        "nan" | "-nan" => Some(f64::NAN),
        number => number.parse().ok(),
    };
    value.map(|value| Value::Constant(Constant::Float(value))).ok_or_else(|| not_a_number(text))
}

fn known_values(values: &[Value]) -> Eval<Value> {
    let known: Option<Vec<i128>> = values.iter().map(|v| v.constant().and_then(Constant::as_int)).collect();
    let bounds = match known.as_deref() {
        Some([to]) => [0, *to, 1],
        Some([from, to]) => [*from, *to, 1],
        Some([from, to, step]) => [*from, *to, *step],
        _ => return Err(unsupported("a range is a value only if its bounds are known", "loop over it with `for`")),
    };
    Ok(Value::tuple(known_range(bounds)?.into_iter().map(Value::int).collect()))
}

fn is_instance(value: &Value, class: &Value) -> Eval<bool> {
    let classes = match class {
        Value::Tuple(tuple) => tuple.values.to_vec(),
        other => vec![other.clone()],
    };
    for class in &classes {
        let found = match class {
            Value::Callee(Callee::Builtin(Builtin::Int)) => {
                matches!(value, Value::Constant(Constant::Int(_) | Constant::Bool(_)))
            }
            Value::Callee(Callee::Builtin(Builtin::Float)) => matches!(value, Value::Constant(Constant::Float(_))),
            Value::Callee(Callee::Builtin(Builtin::Bool)) => matches!(value, Value::Constant(Constant::Bool(_))),
            Value::Callee(Callee::Builtin(Builtin::Str)) => matches!(value, Value::Constant(Constant::Str(_))),
            Value::Callee(Callee::Builtin(Builtin::Tuple)) => matches!(value, Value::Tuple(_)),
            Value::Callee(Callee::Primitive(primitive)) => match *primitive {
                "tensor" => value.tensor().is_some(),
                "constexpr" => value.constant().is_some(),
                "tuple" => matches!(value, Value::Tuple(_)),
                "dtype" => matches!(value, Value::Type(_)),
                "Array" => matches!(value, Value::Array(_)),
                "tensor_descriptor" => matches!(value, Value::Descriptor(_)),
                "pointer_type" => matches!(value, Value::Type(ty) if ty.scalar.is_pointer() && !ty.is_block()),
                _ => return Err(no_class(class)),
            },
            other => return Err(no_class(other)),
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn no_class(class: &Value) -> Box<crate::KernelError> {
    type_error(
        format!("isinstance of {}", class.describe()),
        "it takes int, float, bool, str, tuple, tensor, constexpr",
    )
}
