//! Pointwise operators: arithmetic, comparison, selection, casts.
mod activations;
pub mod functions;
mod shifts;

use super::{
    Table,
    context::{Ctx, Res},
    scalars::{Operand, as_value, binary, result_type, scale},
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp, CompareOp, DType, Op, Scalar, UnaryOp, ValueId, infer::Domain};

macro_rules! arithmetic {
    ($op:ident) => {
        |c, call| arithmetic(c, call, BinaryOp::$op)
    };
}
macro_rules! compare {
    ($op:ident) => {
        |c, call| compare(c, call, CompareOp::$op)
    };
}
macro_rules! logical {
    ($op:ident) => {
        |c, call| logical(c, call, BinaryOp::$op)
    };
}

pub const TABLE: Table = &[
    ("aten::round", functions::round),
    ("aten::frac", frac),
    ("aten::square", square),
    ("aten::logical_not", logical_not),
    ("aten::isfinite", isfinite),
    ("aten::add", add),
    ("aten::sub", sub),
    ("aten::rsub", rsub),
    ("aten::mul", arithmetic!(Mul)),
    ("aten::div", div),
    ("aten::true_divide", div),
    ("aten::floor_divide", arithmetic!(FloorDiv)),
    ("aten::remainder", arithmetic!(Remainder)),
    ("aten::fmod", arithmetic!(Fmod)),
    ("aten::atan2", arithmetic!(Atan2)),
    ("aten::maximum", arithmetic!(Max)),
    ("aten::minimum", arithmetic!(Min)),
    ("aten::fmax", |c, call| ignoring_nan(c, call, BinaryOp::Max)),
    ("aten::fmin", |c, call| ignoring_nan(c, call, BinaryOp::Min)),
    ("aten::pow", pow),
    ("aten::bitwise_and", arithmetic!(And)),
    ("aten::bitwise_or", arithmetic!(Or)),
    ("aten::bitwise_xor", arithmetic!(Xor)),
    ("aten::__and__", arithmetic!(And)),
    ("aten::__or__", arithmetic!(Or)),
    ("aten::__xor__", arithmetic!(Xor)),
    ("aten::__lshift__", |c, call| shifts::shift(c, call, BinaryOp::Mul)),
    ("aten::__rshift__", |c, call| shifts::shift(c, call, BinaryOp::FloorDiv)),
    ("aten::bitwise_left_shift", |c, call| shifts::shift(c, call, BinaryOp::Mul)),
    ("aten::bitwise_right_shift", |c, call| shifts::shift(c, call, BinaryOp::FloorDiv)),
    ("aten::logical_and", logical!(And)),
    ("aten::logical_or", logical!(Or)),
    ("aten::logical_xor", logical!(Xor)),
    ("aten::eq", compare!(Eq)),
    ("aten::ne", compare!(Ne)),
    ("aten::lt", compare!(Lt)),
    ("aten::le", compare!(Le)),
    ("aten::gt", compare!(Gt)),
    ("aten::ge", compare!(Ge)),
    ("aten::isclose", functions::isclose),
    ("aten::where", select),
    ("aten::masked_fill", masked_fill),
    ("aten::lerp", lerp),
    ("aten::addcmul", |c, call| addc(c, call, BinaryOp::Mul)),
    ("aten::addcdiv", |c, call| addc(c, call, BinaryOp::Div)),
    ("aten::logaddexp", |c, call| composite(c, call, Op::Logaddexp, 2)),
    ("aten::logaddexp2", functions::logaddexp2),
    ("aten::xlogy", |c, call| functions::times_log(c, call, UnaryOp::Log)),
    ("aten::special_xlog1py", |c, call| functions::times_log(c, call, UnaryOp::Log1p)),
    ("aten::acosh", functions::acosh),
    ("aten::asinh", functions::asinh),
    ("aten::atanh", functions::atanh),
    ("aten::copysign", functions::copysign),
    ("aten::deg2rad", |c, call| functions::times(c, call, std::f64::consts::PI / 180.0)),
    ("aten::rad2deg", |c, call| functions::times(c, call, 180.0 / std::f64::consts::PI)),
    ("aten::heaviside", functions::heaviside),
    ("aten::hypot", functions::hypot),
    ("aten::isposinf", |c, call| functions::is_infinity(c, call, f64::INFINITY)),
    ("aten::isneginf", |c, call| functions::is_infinity(c, call, f64::NEG_INFINITY)),
    ("aten::ldexp", functions::ldexp),
    ("aten::logit", functions::logit),
    ("aten::signbit", functions::signbit),
    ("aten::sinc", functions::sinc),
    ("aten::nan_to_num", nan_to_num),
    ("aten::to", cast),
    ("aten::_to_copy", cast),
    ("aten::type_as", cast),
    ("prims::convert_element_type", cast),
    ("aten::float", cast),
    ("aten::half", cast),
    // Activations.
    ("aten::gelu", activations::gelu),
    ("aten::softplus", activations::softplus),
    ("aten::clamp", activations::clamp),
    ("aten::clip", activations::clamp),
    ("aten::hardtanh", activations::clamp),
    ("aten::relu6", activations::relu6),
    ("aten::clamp_min", activations::clamp_min),
    ("aten::clamp_max", activations::clamp_max),
    ("aten::elu", activations::elu),
    ("aten::celu", activations::celu),
    ("aten::selu", activations::selu),
    ("aten::leaky_relu", activations::leaky_relu),
    ("aten::prelu", activations::prelu),
    ("aten::_prelu_kernel", activations::prelu),
    ("aten::hardshrink", activations::hardshrink),
    ("aten::softshrink", activations::softshrink),
    ("aten::threshold", activations::threshold),
    ("aten::glu", activations::glu),
    ("aten::rrelu", functions::rrelu),
];

/// Argument `i`, which is a tensor or a number.
pub fn operand(c: &mut Ctx, call: &Call, i: usize) -> Res<Operand> {
    match c.arg(call, i) {
        Arg::Value(_) => Ok(Operand::Value(c.tensor(call, i)?)),
        _ => Ok(Operand::Number(c.scalar(call, i)?)),
    }
}

fn one(v: ValueId) -> Res<Vec<ValueId>> {
    Ok(vec![v])
}

/// Converts an operator that the registry lists as a function of one tensor under `name`; `None` for all others.
pub fn function(c: &mut Ctx, call: &Call, name: &str) -> Option<Res<Vec<ValueId>>> {
    UnaryOp::of_torch(name.strip_prefix("aten::")?).map(|op| unary(c, call, op))
}

/// Applies `op` in the result's dtype: integers are cast to float first if the function requires it.
fn unary(c: &mut Ctx, call: &Call, op: UnaryOp) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let takes_any = op.function().domain == Domain::Any;
    let x = if takes_any { x } else { c.cast(x, c.out(call, 0)?.dtype)? };
    one(c.unary(op, x)?)
}

fn isfinite(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let (nan, inf) = (c.unary(UnaryOp::IsNan, x)?, c.unary(UnaryOp::IsInf, x)?);
    let bad = c.binary(BinaryOp::Or, nan, inf)?;
    one(c.unary(UnaryOp::Not, bad)?)
}

fn frac(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let t = c.unary(UnaryOp::Trunc, x)?;
    one(c.binary(BinaryOp::Sub, x, t)?)
}

fn square(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let x = c.cast(x, c.out(call, 0)?.dtype)?;
    one(c.binary(BinaryOp::Mul, x, x)?)
}

fn logical_not(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let x = c.cast(x, DType::Bool)?;
    one(c.unary(UnaryOp::Not, x)?)
}

fn arithmetic(c: &mut Ctx, call: &Call, op: BinaryOp) -> Res<Vec<ValueId>> {
    let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
    one(binary(c, op, a, b, c.out(call, 0)?.dtype)?)
}

/// `a ± alpha * b`.
fn scaled(c: &mut Ctx, op: BinaryOp, a: Operand, b: Operand, alpha: Scalar, dtype: DType) -> Res<Vec<ValueId>> {
    if alpha.as_f64() == 1.0 {
        return one(binary(c, op, a, b, dtype)?);
    }
    if dtype == DType::Bool {
        return Err("alpha with bool operands".into());
    }
    let work = dtype.compute();
    let (a, b) = (as_value(c, a, work)?, as_value(c, b, work)?);
    let b = scale(c, b, alpha)?;
    let r = c.binary(op, a, b)?;
    one(c.cast(r, dtype)?)
}

fn alpha(c: &Ctx, call: &Call) -> Res<Scalar> {
    Ok(c.opt_scalar(call, 2)?.unwrap_or(Scalar::Int(1)))
}

fn add(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
    scaled(c, BinaryOp::Add, a, b, alpha(c, call)?, c.out(call, 0)?.dtype)
}

fn sub(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
    scaled(c, BinaryOp::Sub, a, b, alpha(c, call)?, c.out(call, 0)?.dtype)
}

/// `b - alpha * a`.
fn rsub(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
    scaled(c, BinaryOp::Sub, b, a, alpha(c, call)?, c.out(call, 0)?.dtype)
}

fn div(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
    let mode = if let Arg::Str(s) = c.arg(call, 2) { s.as_str() } else { "" };
    match mode {
        "floor" => one(binary(c, BinaryOp::FloorDiv, a, b, dtype)?),
        // torch truncates the quotient as it is rounded to the dtype.
        "trunc" if dtype.is_float() => {
            let q = binary(c, BinaryOp::Div, a, b, dtype)?;
            one(c.unary(UnaryOp::Trunc, q)?)
        }
        _ => one(binary(c, BinaryOp::Div, a, b, dtype)?),
    }
}

/// `fmax` and `fmin`: if one operand is NaN, the other one.
fn ignoring_nan(c: &mut Ctx, call: &Call, op: BinaryOp) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let (a, b) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let (a, b) = (c.cast(a, dtype)?, c.cast(b, dtype)?);
    let best = c.binary(op, a, b)?;
    if !dtype.is_float() {
        return one(best);
    }
    let (na, nb) = (c.unary(UnaryOp::IsNan, a)?, c.unary(UnaryOp::IsNan, b)?);
    let without_b = c.select(nb, a, best)?;
    one(c.select(na, b, without_b)?)
}

/// Special-cases constant exponents, as torch does.
fn pow(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let (base, exponent) = (operand(c, call, 0)?, operand(c, call, 1)?);
    let Operand::Number(e) = exponent else { return one(binary(c, BinaryOp::Pow, base, exponent, dtype)?) };
    let x = as_value(c, base, dtype)?;
    let float = dtype.is_float();
    let e = e.as_f64();
    if e == 1.0 {
        one(x)
    } else if e == 0.0 {
        let ty = c.ty(x).clone();
        one(c.full(&ty, Scalar::Int(1))?)
    } else if e == 2.0 {
        one(c.binary(BinaryOp::Mul, x, x)?)
    } else if e == 3.0 {
        one(c.in_compute(x, dtype, |c, x| {
            let xx = c.binary(BinaryOp::Mul, x, x)?;
            c.binary(BinaryOp::Mul, xx, x)
        })?)
    } else if float && e == 0.5 {
        one(c.unary(UnaryOp::Sqrt, x)?)
    } else if float && e == -0.5 {
        one(c.unary(UnaryOp::Rsqrt, x)?)
    } else if float && e == -1.0 {
        one(c.unary(UnaryOp::Reciprocal, x)?)
    } else if float && e == -2.0 {
        one(c.in_compute(x, dtype, |c, x| {
            let xx = c.binary(BinaryOp::Mul, x, x)?;
            c.unary(UnaryOp::Reciprocal, xx)
        })?)
    } else {
        one(binary(c, BinaryOp::Pow, base, exponent, dtype)?)
    }
}

fn logical(c: &mut Ctx, call: &Call, op: BinaryOp) -> Res<Vec<ValueId>> {
    let (a, b) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let (a, b) = (c.cast(a, DType::Bool)?, c.cast(b, DType::Bool)?);
    one(c.binary(op, a, b)?)
}

/// Compares in the compute type of the operands' common dtype.
fn compare(c: &mut Ctx, call: &Call, op: CompareOp) -> Res<Vec<ValueId>> {
    let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
    let dtype = result_type(c, &[a, b]).compute();
    let (a, b) = (as_value(c, a, dtype)?, as_value(c, b, dtype)?);
    one(c.compare(op, a, b)?)
}

fn select(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let cond = c.tensor(call, 0)?;
    let cond = c.cast(cond, DType::Bool)?;
    let dtype = c.out(call, 0)?.dtype;
    let (a, b) = (operand(c, call, 1)?, operand(c, call, 2)?);
    let (a, b) = (as_value(c, a, dtype)?, as_value(c, b, dtype)?);
    one(c.select(cond, a, b)?)
}

fn masked_fill(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, mask, value) = (c.tensor(call, 0)?, c.tensor(call, 1)?, operand(c, call, 2)?);
    let value = as_value(c, value, c.dtype(x))?;
    one(c.select(mask, value, x)?)
}

/// Interpolates from the nearer end, as torch does: `a + w (b - a)` for `|w| < 0.5`, else `b - (b - a)(1 - w)`.
fn lerp(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let work = dtype.compute();
    let (a, b, w) = (c.tensor(call, 0)?, c.tensor(call, 1)?, operand(c, call, 2)?);
    let (a, b) = (c.cast(a, work)?, c.cast(b, work)?);
    let diff = c.binary(BinaryOp::Sub, b, a)?;
    let w_value = as_value(c, w, work)?;
    let near_a = {
        let step = c.binary(BinaryOp::Mul, w_value, diff)?;
        c.binary(BinaryOp::Add, a, step)?
    };
    let near_b = {
        let unit = c.float_const(work, 1.0);
        let rest = c.binary(BinaryOp::Sub, unit, w_value)?;
        let step = c.binary(BinaryOp::Mul, diff, rest)?;
        c.binary(BinaryOp::Sub, b, step)?
    };
    let r = match w {
        Operand::Number(s) if s.as_f64().abs() < 0.5 => near_a,
        Operand::Number(_) => near_b,
        Operand::Value(_) => {
            let size = c.unary(UnaryOp::Abs, w_value)?;
            let small = c.compare_with(CompareOp::Lt, size, 0.5)?;
            c.select(small, near_a, near_b)?
        }
    };
    one(c.cast(r, dtype)?)
}

/// `x + value * (a op b)`, evaluated as `x + ((value * a) op b)`.
fn addc(c: &mut Ctx, call: &Call, op: BinaryOp) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let work = dtype.compute();
    let get = |c: &mut Ctx, i| c.tensor(call, i).and_then(|v| c.cast(v, work));
    let (x, a, b) = (get(c, 0)?, get(c, 1)?, get(c, 2)?);
    let a = scale(c, a, c.scalar(call, 3)?)?;
    let step = c.binary(op, a, b)?;
    let r = c.binary(BinaryOp::Add, x, step)?;
    one(c.cast(r, dtype)?)
}

/// An operator that is an op of the graph, on its operands in the result's type.
fn composite(c: &mut Ctx, call: &Call, op: Op, operands: usize) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let args: Res<Vec<ValueId>> = (0..operands).map(|i| c.tensor(call, i).and_then(|v| c.cast(v, dtype))).collect();
    one(c.node(op, &args?)?)
}

fn nan_to_num(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let dtype = c.dtype(x);
    let Some(largest) = dtype.format().map(|f| f.largest()) else { return one(x) };
    let pick = |c: &Ctx, i, otherwise| Ok::<f64, String>(c.opt_scalar(call, i)?.map_or(otherwise, Scalar::as_f64));
    let (nan, high, low) = (pick(c, 1, 0.0)?, pick(c, 2, largest)?, pick(c, 3, -largest)?);
    let nan = c.float_const(dtype, nan);
    let is_nan = c.unary(UnaryOp::IsNan, x)?;
    let mut r = c.select(is_nan, nan, x)?;
    for (limit, value) in [(f64::INFINITY, high), (f64::NEG_INFINITY, low)] {
        let hit = c.compare_with(CompareOp::Eq, x, limit)?;
        let value = c.float_const(dtype, value);
        r = c.select(hit, value, r)?;
    }
    one(r)
}

/// Of a tensor, or of a number, which torch traces where it is mapped over axes with a tensor.
fn cast(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    if let Ok(number) = c.scalar(call, 0) {
        return one(c.constant(dtype, number));
    }
    let x = c.tensor(call, 0)?;
    one(c.cast(x, dtype)?)
}
