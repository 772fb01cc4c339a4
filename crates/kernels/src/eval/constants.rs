//! Python's arithmetic on values that are known while compiling.
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::syntax::tree::{BinaryOp, CompareOp, UnaryOp};
use crate::value::{Constant, Value};
use std::cmp::Ordering;

pub fn unary(op: UnaryOp, x: &Constant) -> Eval<Constant> {
    let wrong = || type_error(format!("`{}` is not defined on {}", op.symbol(), x.repr()), "it takes a number");
    match (op, x) {
        (UnaryOp::Not, _) => Ok(Constant::Bool(!x.truth())),
        (UnaryOp::Plus, Constant::Float(_)) => Ok(x.clone()),
        (UnaryOp::Minus, Constant::Float(value)) => Ok(Constant::Float(-value)),
        (UnaryOp::Plus, _) => x.as_int().map(Constant::Int).ok_or_else(wrong),
        (UnaryOp::Minus, _) => x.as_int().and_then(i128::checked_neg).map(Constant::Int).ok_or_else(wrong),
        (UnaryOp::Invert, _) => x.as_int().map(|value| Constant::Int(!value)).ok_or_else(wrong),
    }
}

pub fn binary(op: BinaryOp, a: &Constant, b: &Constant) -> Eval<Constant> {
    if let (Constant::Str(a), Constant::Str(b), BinaryOp::Add) = (a, b, op) {
        return Ok(Constant::Str(format!("{a}{b}").into()));
    }
    let bools = matches!((a, b), (Constant::Bool(_), Constant::Bool(_)));
    match (a.as_int(), b.as_int(), a.as_float(), b.as_float()) {
        (Some(x), Some(y), ..) => {
            let result = integers(op, x, y)?;
            match (bools, op, &result) {
                (true, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor, Constant::Int(value)) => {
                    Ok(Constant::Bool(*value != 0))
                }
                _ => Ok(result),
            }
        }
        (_, _, Some(x), Some(y)) => floats(op, x, y).map(Constant::Float),
        _ => Err(type_error(
            format!("`{}` is not defined on {} and {}", op.symbol(), a.repr(), b.repr()),
            "both sides are numbers",
        )),
    }
}

fn integers(op: BinaryOp, x: i128, y: i128) -> Eval<Constant> {
    let by_zero = || value_error("division by zero at compile time", "guard it with a compile-time `if`");
    let checked = |value: Option<i128>| {
        value
            .map(Constant::Int)
            .ok_or_else(|| unsupported("a compile-time integer has more than 128 bits", "compute with smaller numbers"))
    };
    let shift = |y: i128| u32::try_from(y).ok().filter(|y| *y < 127);
    match op {
        BinaryOp::Add => checked(x.checked_add(y)),
        BinaryOp::Sub => checked(x.checked_sub(y)),
        BinaryOp::Mul => checked(x.checked_mul(y)),
        BinaryOp::Div if y == 0 => Err(by_zero()),
        BinaryOp::Div => Ok(Constant::Float(x as f64 / y as f64)),
        BinaryOp::FloorDiv | BinaryOp::Mod if y == 0 => Err(by_zero()),
        BinaryOp::FloorDiv => {
            checked(x.checked_div(y).map(|q| if x % y != 0 && (x < 0) != (y < 0) { q - 1 } else { q }))
        }
        BinaryOp::Mod => checked(x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r })),
        BinaryOp::Pow if y < 0 => Ok(Constant::Float((x as f64).powf(y as f64))),
        BinaryOp::Pow => checked(u32::try_from(y).ok().and_then(|y| x.checked_pow(y))),
        BinaryOp::Shl => checked(shift(y).and_then(|y| x.checked_mul(1i128 << y))),
        BinaryOp::Shr => Ok(Constant::Int(x >> shift(y).unwrap_or(127))),
        BinaryOp::And => Ok(Constant::Int(x & y)),
        BinaryOp::Or => Ok(Constant::Int(x | y)),
        BinaryOp::Xor => Ok(Constant::Int(x ^ y)),
        BinaryOp::MatMul => Err(type_error("`@` is not defined on numbers", "use `*`")),
    }
}

fn floats(op: BinaryOp, x: f64, y: f64) -> Eval<f64> {
    match op {
        BinaryOp::Add => Ok(x + y),
        BinaryOp::Sub => Ok(x - y),
        BinaryOp::Mul => Ok(x * y),
        BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Mod if y == 0.0 => {
            Err(value_error("division by zero at compile time", "guard it with a compile-time `if`"))
        }
        BinaryOp::Div => Ok(x / y),
        BinaryOp::FloorDiv => Ok((x / y).floor()),
        BinaryOp::Mod => Ok(x - y * (x / y).floor()),
        BinaryOp::Pow => Ok(x.powf(y)),
        _ => Err(type_error(format!("`{}` is not defined on floats", op.symbol()), "use integers")),
    }
}

/// Orders and equality of values that are known while compiling.
pub fn compare(op: CompareOp, a: &Value, b: &Value) -> Eval<bool> {
    match op {
        CompareOp::Eq => return Ok(equal(a, b)),
        CompareOp::Ne => return Ok(!equal(a, b)),
        _ => {}
    }
    let order = match (a, b) {
        (Value::Constant(Constant::Str(a)), Value::Constant(Constant::Str(b))) => Some(a.cmp(b)),
        (Value::Constant(a), Value::Constant(b)) => order(a, b)?,
        _ => return Err(not_ordered(op, a, b)),
    };
    Ok(match op {
        CompareOp::Lt => order == Some(Ordering::Less),
        CompareOp::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        CompareOp::Gt => order == Some(Ordering::Greater),
        CompareOp::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        CompareOp::Eq | CompareOp::Ne | CompareOp::Is | CompareOp::IsNot | CompareOp::In | CompareOp::NotIn => {
            return Err(not_ordered(op, a, b));
        }
    })
}

fn order(a: &Constant, b: &Constant) -> Eval<Option<Ordering>> {
    match (a.as_int(), b.as_int(), a.as_float(), b.as_float()) {
        (Some(x), Some(y), ..) => Ok(Some(x.cmp(&y))),
        (_, _, Some(x), Some(y)) => Ok(x.partial_cmp(&y)),
        _ => Err(type_error(format!("{} and {} have no order", a.repr(), b.repr()), "compare numbers")),
    }
}

fn not_ordered(op: CompareOp, a: &Value, b: &Value) -> Box<crate::KernelError> {
    type_error(format!("`{}` is not defined on {} and {}", op.symbol(), a.describe(), b.describe()), "compare numbers")
}

/// `==`; values of different kinds differ.
pub fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Constant(Constant::Str(a)), Value::Constant(Constant::Str(b))) => a == b,
        (Value::Constant(Constant::None), Value::Constant(Constant::None)) => true,
        (Value::Constant(a), Value::Constant(b)) => matches!(order(a, b), Ok(Some(Ordering::Equal))),
        (Value::Tuple(a), Value::Tuple(b)) => {
            a.values.len() == b.values.len() && a.values.iter().zip(b.values.iter()).all(|(a, b)| equal(a, b))
        }
        (Value::Type(a), Value::Type(b)) => a == b,
        _ => same(a, b),
    }
}

/// `is`.
pub fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Constant(a), Value::Constant(b)) => a == b,
        (Value::Type(a), Value::Type(b)) => a == b,
        (Value::Callee(_), Value::Callee(_)) => super::merge::alike(a, b).is_ok(),
        _ => false,
    }
}

/// `in`.
pub fn contains(container: &Value, value: &Value) -> Eval<bool> {
    match (container, value) {
        (Value::Tuple(tuple), _) => Ok(tuple.values.iter().any(|item| equal(item, value))),
        (Value::Constant(Constant::Str(text)), Value::Constant(Constant::Str(part))) => Ok(text.contains(&part[..])),
        _ => Err(type_error(
            format!("`in` is not defined on {}", container.describe()),
            "it takes a tuple that is known at compile time",
        )),
    }
}
