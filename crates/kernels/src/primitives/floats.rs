//! Elementary functions, under the names of the language and of `libdevice`.
use super::arguments::known_flag;
use super::{Primitive, Walk, row};
use crate::error::Eval;
use crate::ops::math::{self, Division};
use crate::value::Value;
use kiln_block::{BinaryOp, UnaryOp};

/// Rows of functions of one float: each name with its op.
macro_rules! unary_rows {
    ($($name:literal $op:ident,)*) => {
        [$(row($name, "x", |e, a| unary(e, $name, UnaryOp::$op, a)),)*]
    };
}

pub const UNARY: &[Primitive] = &unary_rows![
    "libdevice.exp" Exp,
    "libdevice.exp2" Exp2,
    "expm1" Expm1,
    "log" Log,
    "log2" Log2,
    "log10" Log10,
    "log1p" Log1p,
    "sqrt" Sqrt,
    "sqrt_rn" SqrtRn,
    "rsqrt" Rsqrt,
    "rsqrt_rn" Rsqrt,
    "sin" Sin,
    "cos" Cos,
    "tan" Tan,
    "asin" Asin,
    "acos" Acos,
    "atan" Atan,
    "sinh" Sinh,
    "cosh" Cosh,
    "tanh" Tanh,
    "erf" Erf,
    "floor" Floor,
    "ceil" Ceil,
    "trunc" Trunc,
    "rint" Round,
    "nearbyint" Round,
    "isnan" IsNan,
    "isinf" IsInf,
    "isnanf" IsNan,
    "isinff" IsInf,
    "fast_logf" Log,
    "fast_log2f" Log2,
    "fast_log10f" Log10,
    "fast_sinf" Sin,
    "fast_cosf" Cos,
    "fast_tanf" Tan,
    "fast_tanhf" Tanh,
    "tanh_approx" Tanh,
    "sqrtf" Sqrt,
    "fast_sqrtf" Sqrt,
];

pub const OTHERS: &[Primitive] = &[
    row("exp", "x", |e, a| math::exponential(e.emit(), "exp", UnaryOp::Exp, &a[0]).map(Value::Tensor)),
    row("exp2", "x", |e, a| math::exponential(e.emit(), "exp2", UnaryOp::Exp2, &a[0]).map(Value::Tensor)),
    row("fast_expf", "x", |e, a| math::exponential(e.emit(), "exp", UnaryOp::Exp, &a[0]).map(Value::Tensor)),
    row("fast_exp2f", "x", |e, a| math::exponential(e.emit(), "exp2", UnaryOp::Exp2, &a[0]).map(Value::Tensor)),
    row("abs", "x", |e, a| math::abs(e.emit(), &a[0]).map(Value::Tensor)),
    row("fabs", "x", |e, a| math::abs(e.emit(), &a[0]).map(Value::Tensor)),
    row("fdiv", "x, y, ieee_rounding=False", divide),
    row("div_rn", "x, y", |e, a| math::divide(e.emit(), Division::Rounded, &a[0], &a[1]).map(Value::Tensor)),
    row("fast_dividef", "x, y", |e, a| math::divide(e.emit(), Division::Plain, &a[0], &a[1]).map(Value::Tensor)),
    row("fma", "x, y, z", |e, a| math::fma(e.emit(), &a[0], &a[1], &a[2]).map(Value::Tensor)),
    row("umulhi", "x, y", |e, a| math::mulhi(e.emit(), &a[0], &a[1]).map(Value::Tensor)),
    row("mulhi", "x, y", |e, a| math::mulhi(e.emit(), &a[0], &a[1]).map(Value::Tensor)),
    row("pow", "x, y", |e, a| binary(e, "pow", BinaryOp::Pow, a)),
    row("fast_powf", "x, y", |e, a| binary(e, "fast_powf", BinaryOp::Pow, a)),
    row("atan2", "x, y", |e, a| binary(e, "atan2", BinaryOp::Atan2, a)),
    row("fmod", "x, y", |e, a| binary(e, "fmod", BinaryOp::Rem, a)),
];

fn unary(walk: &mut dyn Walk, name: &str, op: UnaryOp, arguments: &[Value]) -> Eval<Value> {
    math::unary(walk.emit(), name, op, &arguments[0]).map(Value::Tensor)
}

fn binary(walk: &mut dyn Walk, name: &str, op: BinaryOp, arguments: &[Value]) -> Eval<Value> {
    math::binary(walk.emit(), name, op, &arguments[0], &arguments[1]).map(Value::Tensor)
}

fn divide(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let division = if known_flag("ieee_rounding", &arguments[2])? { Division::Rounded } else { Division::Plain };
    math::divide(walk.emit(), division, &arguments[0], &arguments[1]).map(Value::Tensor)
}
