//! Operators of one and two sides.
use super::convert::{broadcast, cast_number, scalar_constant, to_tensor};
use crate::emit::Emitter;
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::syntax::tree::{BinaryOp, CompareOp, UnaryOp};
use crate::types::{Arithmetic, Number, Operand, Scalar, Strength, promoted, promoted_int};
use crate::value::{Constant, Tensor, Value};
use kiln_block as block;

/// Two operands in their common type and shape.
pub struct Pair {
    pub a: Tensor,
    pub b: Tensor,
    pub number: Number,
}

fn operand(value: &Value) -> Eval<Operand> {
    match value {
        Value::Constant(constant) => Ok(Operand { number: constant.number()?, strength: Strength::Literal }),
        Value::Tensor(tensor) => Ok(Operand { number: tensor.number()?, strength: Strength::Full }),
        other => Err(type_error(
            format!("{} is no operand of an operator", other.describe()),
            "operands are numbers and blocks",
        )),
    }
}

fn converted(emit: &mut Emitter, value: &Value, number: Number) -> Eval<Tensor> {
    match value {
        Value::Constant(constant) => {
            let negative = constant.as_int().is_some_and(|value| value < 0);
            if negative && number.is_unsigned() && number != Number::Int1 {
                return Err(value_error(
                    format!("the negative number {} meets a value of type {number}", constant.repr()),
                    "cast the value to a signed type with `.to(...)`",
                ));
            }
            scalar_constant(emit, constant, number)
        }
        _ => {
            let tensor = to_tensor(emit, value)?;
            cast_number(emit, &tensor, number)
        }
    }
}

/// Promotes and broadcasts two operands.
pub fn promote(emit: &mut Emitter, a: &Value, b: &Value, arithmetic: Arithmetic) -> Eval<Pair> {
    let number = promoted(operand(a)?, operand(b)?, arithmetic)?;
    let (a, b) = (converted(emit, a, number)?, converted(emit, b, number)?);
    let (a, b) = broadcast(emit, &a, &b)?;
    Ok(Pair { a, b, number })
}

fn is_pointer(value: &Value) -> bool {
    value.tensor().is_some_and(Tensor::is_pointer)
}

pub fn binary(emit: &mut Emitter, op: BinaryOp, a: &Value, b: &Value) -> Eval<Tensor> {
    if is_pointer(a) || is_pointer(b) {
        return pointer_arithmetic(emit, op, a, b);
    }
    match op {
        BinaryOp::Add => arithmetic(emit, block::BinaryOp::Add, a, b),
        BinaryOp::Sub => arithmetic(emit, block::BinaryOp::Sub, a, b),
        BinaryOp::Mul => arithmetic(emit, block::BinaryOp::Mul, a, b),
        BinaryOp::Div => divide(emit, a, b),
        BinaryOp::FloorDiv => integer_divide(emit, a, b),
        BinaryOp::Mod => remainder(emit, a, b),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl => bitwise(emit, op, a, b),
        BinaryOp::Shr => shift_right(emit, a, b),
        BinaryOp::Pow => Err(unsupported(
            "`**` is not defined on run-time values",
            "multiply, or use `exp2(y * log2(x))`, or `libdevice.pow(x, y)`",
        )),
        BinaryOp::MatMul => Err(unsupported("`@` is not defined on blocks", "use `dot(a, b)`")),
    }
}

/// `+`, `-` and `*`; of bools as of integers of one bit.
fn arithmetic(emit: &mut Emitter, op: block::BinaryOp, a: &Value, b: &Value) -> Eval<Tensor> {
    let pair = promote(emit, a, b, Arithmetic::Plain)?;
    let op = match (pair.number, op) {
        (Number::Int1, block::BinaryOp::Mul) => block::BinaryOp::And,
        (Number::Int1, _) => block::BinaryOp::Xor,
        _ => op,
    };
    refuse_f8(pair.number)?;
    emit.binary(op, &pair.a, &pair.b)
}

fn refuse_f8(number: Number) -> Eval<()> {
    if !number.is_f8() {
        return Ok(());
    }
    Err(unsupported(
        format!("there is no arithmetic on {number}"),
        "cast to float16 or float32 first; `dot` takes 8-bit floats as they are",
    ))
}

/// Integers are divided as f32.
fn divide(emit: &mut Emitter, a: &Value, b: &Value) -> Eval<Tensor> {
    let mut pair = promote(emit, a, b, Arithmetic::Division)?;
    if pair.number.is_int() {
        pair.a = cast_number(emit, &pair.a, Number::Float32)?;
        pair.b = cast_number(emit, &pair.b, Number::Float32)?;
    }
    refuse_f8(pair.number)?;
    emit.binary(block::BinaryOp::Div, &pair.a, &pair.b)
}

/// Towards zero, as in C.
fn integer_divide(emit: &mut Emitter, a: &Value, b: &Value) -> Eval<Tensor> {
    let pair = promote(emit, a, b, Arithmetic::Division)?;
    if pair.number.is_float() {
        return Err(type_error(
            format!("`//` is not defined on {}", pair.number),
            "use `floor(x / y)`, or cast both to integers",
        ));
    }
    emit.binary(block::BinaryOp::Div, &pair.a, &pair.b)
}

/// With the sign of the dividend, as in C.
fn remainder(emit: &mut Emitter, a: &Value, b: &Value) -> Eval<Tensor> {
    let pair = promote(emit, a, b, Arithmetic::Division)?;
    refuse_f8(pair.number)?;
    emit.binary(block::BinaryOp::Rem, &pair.a, &pair.b)
}

fn bitwise(emit: &mut Emitter, op: BinaryOp, a: &Value, b: &Value) -> Eval<Tensor> {
    let pair = integers(emit, op, a, b)?;
    let op = match op {
        BinaryOp::And => block::BinaryOp::And,
        BinaryOp::Or => block::BinaryOp::Or,
        BinaryOp::Xor => block::BinaryOp::Xor,
        _ => block::BinaryOp::Shl,
    };
    emit.binary(op, &pair.a, &pair.b)
}

/// Operands of an operator on bits.
fn integers(emit: &mut Emitter, op: BinaryOp, a: &Value, b: &Value) -> Eval<Pair> {
    let (left, right) = (operand(a)?.number, operand(b)?.number);
    if left.is_float() || right.is_float() {
        return Err(type_error(
            format!("`{}` has invalid operands of type {left} and {right}: it takes integers", op.symbol()),
            "compare to get a bool, or take the bits with `.to(tl.int32, bitcast=True)`",
        ));
    }
    promote(emit, a, b, Arithmetic::Plain)
}

/// By the sign of the left side; of a constant's right side if the left is one.
fn shift_right(emit: &mut Emitter, a: &Value, b: &Value) -> Eval<Tensor> {
    let by_sign_of = if a.tensor().is_some() { a } else { b };
    let signed = by_sign_of.tensor().map(Tensor::number).transpose()?.is_some_and(Number::is_signed);
    let pair = integers(emit, BinaryOp::Shr, a, b)?;
    if signed == pair.number.is_signed() {
        return emit.binary(block::BinaryOp::Shr, &pair.a, &pair.b);
    }
    let Some(as_shifted) = Number::int_of(pair.number.bits(), signed).map(Scalar::Number) else {
        return emit.binary(block::BinaryOp::Shr, &pair.a, &pair.b);
    };
    let (left, right) = (emit.bitcast(&pair.a, as_shifted)?, emit.bitcast(&pair.b, as_shifted)?);
    let shifted = emit.binary(block::BinaryOp::Shr, &left, &right)?;
    emit.bitcast(&shifted, Scalar::Number(pair.number))
}

fn pointer_arithmetic(emit: &mut Emitter, op: BinaryOp, a: &Value, b: &Value) -> Eval<Tensor> {
    let (pointer, offset) = match (a, b) {
        (Value::Tensor(p), other) if p.is_pointer() && !is_pointer(other) => (p, other),
        (other, Value::Tensor(p)) if op == BinaryOp::Add && !is_pointer(other) => (p, other),
        _ => return Err(no_pointer_operator(op, a, b)),
    };
    let mut offset = to_tensor(emit, offset)?;
    let number = offset.number()?;
    if !number.is_int() || !matches!(op, BinaryOp::Add | BinaryOp::Sub) {
        return Err(no_pointer_operator(op, a, b));
    }
    // Unsigned offsets are extended by zeros, others by their sign.
    let wide = if number == Number::Int64 || number == Number::UInt64 || number == Number::UInt32 {
        Number::Int64
    } else {
        Number::Int32
    };
    offset = emit.cast(&offset, wide)?;
    if op == BinaryOp::Sub {
        offset = negate(emit, &offset)?;
    }
    let (pointer, offset) = broadcast(emit, pointer, &offset)?;
    emit.pointer_add(&pointer, &offset)
}

fn no_pointer_operator(op: BinaryOp, a: &Value, b: &Value) -> Box<crate::KernelError> {
    type_error(
        format!("`{}` is not defined on {} and {}", op.symbol(), a.describe(), b.describe()),
        "add an integer, or a block of integers, to a pointer",
    )
}

fn negate(emit: &mut Emitter, x: &Tensor) -> Eval<Tensor> {
    let number = x.number()?;
    refuse_f8(number)?;
    if number.is_float() || number.is_signed() {
        return emit.unary(block::UnaryOp::Neg, x);
    }
    let zero = emit.int(number, 0)?;
    let zero = emit.splat(&zero, &x.ty.shape)?;
    let op = if number == Number::Int1 { block::BinaryOp::Xor } else { block::BinaryOp::Sub };
    emit.binary(op, &zero, x)
}

pub fn unary(emit: &mut Emitter, op: UnaryOp, x: &Tensor) -> Eval<Tensor> {
    let number = x.number()?;
    match op {
        UnaryOp::Plus => Ok(x.clone()),
        UnaryOp::Minus => negate(emit, x),
        UnaryOp::Not => {
            let truth = to_truth(emit, x)?;
            emit.unary(block::UnaryOp::Not, &truth)
        }
        UnaryOp::Invert if number.is_float() => {
            Err(type_error(format!("`~` is not defined on {number}"), "compare to get a bool, and invert that"))
        }
        UnaryOp::Invert => emit.unary(block::UnaryOp::Not, x),
    }
}

/// A bool: whether a number is not 0.
pub fn to_truth(emit: &mut Emitter, x: &Tensor) -> Eval<Tensor> {
    cast_number(emit, x, Number::Int1)
}

/// Constants are not weak in comparisons: they have the type that they have alone.
pub fn compare(emit: &mut Emitter, op: CompareOp, a: &Value, b: &Value) -> Eval<Tensor> {
    let op = match op {
        CompareOp::Eq => block::CmpOp::Eq,
        CompareOp::Ne => block::CmpOp::Ne,
        CompareOp::Lt => block::CmpOp::Lt,
        CompareOp::Le => block::CmpOp::Le,
        CompareOp::Gt => block::CmpOp::Gt,
        CompareOp::Ge => block::CmpOp::Ge,
        CompareOp::Is | CompareOp::IsNot | CompareOp::In | CompareOp::NotIn => {
            return Err(type_error(
                format!("`{}` is not defined on run-time values", op.symbol()),
                "use `==` for values; `is None` for arguments",
            ));
        }
    };
    if is_pointer(a) || is_pointer(b) {
        let [a, b] = [address(emit, a)?, address(emit, b)?];
        let (a, b) = broadcast(emit, &a, &b)?;
        return emit.compare(op, &a, &b);
    }
    let full = |emit: &mut Emitter, side: &Value| to_tensor(emit, side).map(Value::Tensor);
    let (a, b) = (full(emit, a)?, full(emit, b)?);
    let pair = promote(emit, &a, &b, Arithmetic::Plain)?;
    refuse_f8(pair.number)?;
    emit.compare(op, &pair.a, &pair.b)
}

fn address(emit: &mut Emitter, value: &Value) -> Eval<Tensor> {
    let tensor = to_tensor(emit, value)?;
    cast_number(emit, &tensor, Number::Int64)
}

/// `and`, `or`: both sides are bools, and both are evaluated.
pub fn logical(emit: &mut Emitter, op: block::BinaryOp, a: &Tensor, b: &Tensor) -> Eval<Tensor> {
    let (a, b) = (to_truth(emit, a)?, to_truth(emit, b)?);
    let (a, b) = broadcast(emit, &a, &b)?;
    emit.binary(op, &a, &b)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extreme {
    Max,
    Min,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NanRule {
    /// The other operand, if one is NaN.
    Ignore,
    Propagate,
}

/// `maximum` and `minimum`: bf16 is compared as f32, and constants are not weak.
pub fn extreme(emit: &mut Emitter, extreme: Extreme, a: &Value, b: &Value, nan: NanRule) -> Eval<Tensor> {
    let widened = |emit: &mut Emitter, side: &Value| -> Eval<Value> {
        let tensor = to_tensor(emit, side)?;
        match tensor.number()? {
            Number::BFloat16 => cast_number(emit, &tensor, Number::Float32).map(Value::Tensor),
            _ => Ok(Value::Tensor(tensor)),
        }
    };
    let (a, b) = (widened(emit, a)?, widened(emit, b)?);
    let pair = promote(emit, &a, &b, Arithmetic::Plain)?;
    refuse_f8(pair.number)?;
    let ignores_nan = pair.number.is_float() && nan == NanRule::Ignore;
    let op = match (extreme, pair.number, ignores_nan) {
        (Extreme::Max, Number::Int1, _) => block::BinaryOp::Or,
        (Extreme::Min, Number::Int1, _) => block::BinaryOp::And,
        (Extreme::Max, _, true) => block::BinaryOp::MaxNum,
        (Extreme::Min, _, true) => block::BinaryOp::MinNum,
        (Extreme::Max, _, false) => block::BinaryOp::Max,
        (Extreme::Min, _, false) => block::BinaryOp::Min,
    };
    emit.binary(op, &pair.a, &pair.b)
}

/// Both sides promoted and all three broadcast.
pub fn select(emit: &mut Emitter, condition: &Value, a: &Value, b: &Value) -> Eval<Tensor> {
    let condition = to_tensor(emit, condition)?;
    let condition = to_truth(emit, &condition)?;
    let (a, b) = if is_pointer(a) || is_pointer(b) {
        let (a, b) = (to_tensor(emit, a)?, to_tensor(emit, b)?);
        if a.ty.scalar != b.ty.scalar {
            return Err(type_error(
                format!("`where` chooses between {} and {}", a.ty, b.ty),
                "choose between pointers of one type",
            ));
        }
        broadcast(emit, &a, &b)?
    } else {
        let pair = promote(emit, a, b, Arithmetic::Plain)?;
        (pair.a, pair.b)
    };
    let (condition, a) = broadcast(emit, &condition, &a)?;
    let (a, b) = broadcast(emit, &a, &b)?;
    emit.select(&condition, &a, &b)
}

/// The type of the index of a loop over these bounds.
pub fn index_type(bounds: [Number; 3]) -> Number {
    promoted_int(promoted_int(bounds[0], bounds[1]), bounds[2])
}

/// Whether a literal takes part as a number.
pub fn is_number(constant: &Constant) -> bool {
    constant.as_float().is_some()
}
