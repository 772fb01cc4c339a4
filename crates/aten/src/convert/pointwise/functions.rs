//! Functions without an op of their own, composed of primitives in f32 for narrower floats, and rounded once.
use super::{one, operand, unary};
use crate::convert::{
    context::{Ctx, Res},
    scalars::as_value,
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp, CompareOp, DType, Scalar, UnaryOp, ValueId};
use std::f64::consts::{LN_2, PI};
use {BinaryOp::*, CompareOp::*, UnaryOp::*};

/// Applies `body` to argument 0, in the compute type of the result.
fn of_one(c: &mut Ctx, call: &Call, body: impl FnOnce(&mut Ctx, ValueId) -> Res<ValueId>) -> Res<Vec<ValueId>> {
    let (x, dtype) = (c.tensor(call, 0)?, c.out(call, 0)?.dtype);
    one(c.in_compute(x, dtype, body)?)
}

/// Applies `body` to arguments 0 and 1, tensors or numbers, in the compute type of the result.
fn of_two(
    c: &mut Ctx,
    call: &Call,
    body: impl FnOnce(&mut Ctx, ValueId, ValueId) -> Res<ValueId>,
) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
    let (a, b) = (as_value(c, a, dtype.compute())?, as_value(c, b, dtype.compute())?);
    let r = body(c, a, b)?;
    one(c.cast(r, dtype)?)
}

fn constant(c: &mut Ctx, like: ValueId, v: f64) -> ValueId {
    c.float_const(c.dtype(like), v)
}

/// Whether the sign bit is set: below zero, or minus zero, whose reciprocal is minus infinity. A NaN counts as
/// positive.
fn negative(c: &mut Ctx, x: ValueId) -> Res<ValueId> {
    let below = c.compare_with(Lt, x, 0.0)?;
    if !c.dtype(x).is_float() {
        return Ok(below);
    }
    let inverse = c.unary(Reciprocal, x)?;
    let minus = c.compare_with(Eq, inverse, f64::NEG_INFINITY)?;
    c.binary(Or, below, minus)
}

/// `size` with the sign of `sign`.
fn signed(c: &mut Ctx, size: ValueId, sign: ValueId) -> Res<ValueId> {
    let minus = c.unary(Neg, size)?;
    let negative = negative(c, sign)?;
    c.select(negative, minus, size)
}

pub fn copysign(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_two(c, call, |c, a, b| {
        let size = c.unary(Abs, a)?;
        signed(c, size, b)
    })
}

/// A float below 2 to this power has a square that f32 holds.
const SQUARE_LIMIT: f64 = (1u64 << 60) as f64;

/// `log(|x| + sqrt(x² + 1))` with x's sign, as `log1p(a + a² / (1 + sqrt(a² + 1)))`, which is exact near 0; `log(2 a)`
/// where the square overflows.
pub fn asinh(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_one(c, call, |c, x| {
        let a = c.unary(Abs, x)?;
        let aa = c.binary(Mul, a, a)?;
        let root = c.with(Add, aa, 1.0)?;
        let root = c.unary(Sqrt, root)?;
        let below = c.with(Add, root, 1.0)?;
        let more = c.binary(Div, aa, below)?;
        let sum = c.binary(Add, a, more)?;
        let near = c.unary(Log1p, sum)?;
        let r = or_doubled_log(c, a, near)?;
        signed(c, r, x)
    })
}

/// `log(2 a)` for large `a`, else `near`.
fn or_doubled_log(c: &mut Ctx, a: ValueId, near: ValueId) -> Res<ValueId> {
    let log = c.unary(Log, a)?;
    let far = c.with(Add, log, LN_2)?;
    let large = c.compare_with(Gt, a, SQUARE_LIMIT)?;
    c.select(large, far, near)
}

/// `log(x + sqrt(x² - 1))`, with t = x - 1 as `log1p(t + sqrt(2 t + t²))`, which is exact near 1.
pub fn acosh(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_one(c, call, |c, x| {
        let t = c.with(Sub, x, 1.0)?;
        let (twice, square) = (c.with(Mul, t, 2.0)?, c.binary(Mul, t, t)?);
        let root = c.binary(Add, twice, square)?;
        let root = c.unary(Sqrt, root)?;
        let sum = c.binary(Add, t, root)?;
        let near = c.unary(Log1p, sum)?;
        let r = or_doubled_log(c, x, near)?;
        // Far below 1 the sum rounds to -1.
        let (below, none) = (c.compare_with(Lt, x, 1.0)?, constant(c, x, f64::NAN));
        c.select(below, none, r)
    })
}

/// `log1p(2 a / (1 - a)) / 2` of the absolute value, with x's sign.
pub fn atanh(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_one(c, call, |c, x| {
        let a = c.unary(Abs, x)?;
        let (twice, unit) = (c.with(Mul, a, 2.0)?, constant(c, a, 1.0));
        let rest = c.binary(Sub, unit, a)?;
        let quotient = c.binary(Div, twice, rest)?;
        let log = c.unary(Log1p, quotient)?;
        let r = c.with(Mul, log, 0.5)?;
        signed(c, r, x)
    })
}

pub fn hypot(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_two(c, call, hypotenuse)
}

/// `sqrt(a² + b²)` without overflow: the larger times `sqrt(1 + q²)` with q the quotient. Infinite if either is.
pub fn hypotenuse(c: &mut Ctx, a: ValueId, b: ValueId) -> Res<ValueId> {
    let (a, b) = (c.unary(Abs, a)?, c.unary(Abs, b)?);
    let (large, small) = (c.binary(Max, a, b)?, c.binary(Min, a, b)?);
    let q = c.binary(Div, small, large)?;
    let qq = c.binary(Mul, q, q)?;
    let sum = c.with(Add, qq, 1.0)?;
    let root = c.unary(Sqrt, sum)?;
    let r = c.binary(Mul, large, root)?;
    let none = c.compare_with(Eq, large, 0.0)?;
    let r = c.select(none, large, r)?;
    let (far, also) = (c.unary(IsInf, a)?, c.unary(IsInf, b)?);
    let far = c.binary(Or, far, also)?;
    let infinite = constant(c, r, f64::INFINITY);
    c.select(far, infinite, r)
}

/// `(x, eps?)`: `log(x / (1 - x))` of x limited to eps and 1 - eps.
pub fn logit(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let eps = c.opt_scalar(call, 1)?.map(Scalar::as_f64);
    of_one(c, call, |c, mut x| {
        if let Some(eps) = eps {
            x = c.with(Max, x, eps)?;
            x = c.with(Min, x, 1.0 - eps)?;
        }
        let unit = constant(c, x, 1.0);
        let rest = c.binary(Sub, unit, x)?;
        let odds = c.binary(Div, x, rest)?;
        c.unary(Log, odds)
    })
}

/// Whether x is one of the two infinities.
pub fn is_infinity(c: &mut Ctx, call: &Call, which: f64) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    if !c.dtype(x).is_float() {
        return one(c.full(&ty, Scalar::Bool(false))?);
    }
    one(c.compare_with(Eq, x, which)?)
}

/// `(x, value)`: 0 below zero, 1 above, the value at zero.
pub fn heaviside(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let (x, value) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let zero = c.constant(c.dtype(x), Scalar::Int(0));
    let (above, at) = (c.compare(Gt, x, zero)?, c.compare(Eq, x, zero)?);
    let (step, value) = (c.cast(above, dtype)?, c.cast(value, dtype)?);
    one(c.select(at, value, step)?)
}

/// `sin(πx) / πx`; 1 at 0.
pub fn sinc(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_one(c, call, |c, x| {
        let angle = c.with(Mul, x, PI)?;
        let sin = c.unary(Sin, angle)?;
        let r = c.binary(Div, sin, angle)?;
        let (zero, unit) = (c.compare_with(Eq, x, 0.0)?, constant(c, x, 1.0));
        c.select(zero, unit, r)
    })
}

/// `x * factor`.
pub fn times(c: &mut Ctx, call: &Call, factor: f64) -> Res<Vec<ValueId>> {
    of_one(c, call, |c, x| c.with(Mul, x, factor))
}

/// `x log y`, or `x log(1 + y)` with [`Log1p`]; 0 where x is 0, unless y is NaN.
pub fn times_log(c: &mut Ctx, call: &Call, log: UnaryOp) -> Res<Vec<ValueId>> {
    of_two(c, call, |c, x, y| {
        let log = c.unary(log, y)?;
        let product = c.binary(Mul, x, log)?;
        let (zero, none) = (constant(c, x, 0.0), c.compare_with(Eq, x, 0.0)?);
        let r = c.select(none, zero, product)?;
        let nan = c.unary(IsNan, y)?;
        c.select(nan, y, r)
    })
}

/// `log2(2^a + 2^b)` without overflow.
pub fn logaddexp2(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_two(c, call, |c, a, b| {
        let (most, difference) = (c.binary(Max, a, b)?, c.binary(Sub, a, b)?);
        let size = c.unary(Abs, difference)?;
        let below = c.unary(Neg, size)?;
        let power = c.unary(Exp2, below)?;
        let log = c.unary(Log1p, power)?;
        let log = c.with(Div, log, LN_2)?;
        let sum = c.binary(Add, most, log)?;
        let (infinite, same) = (c.unary(IsInf, a)?, c.compare(Eq, a, b)?);
        let keep = c.binary(And, infinite, same)?;
        c.select(keep, most, sum)
    })
}

/// `x 2^y`.
pub fn ldexp(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    of_two(c, call, |c, x, y| {
        let power = c.unary(Exp2, y)?;
        c.binary(Mul, x, power)
    })
}

/// `(x, lower, upper, training, …)` in evaluation: a leaky ReLU with the mean slope.
pub fn rrelu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let slope = (c.float(call, 1)? + c.float(call, 2)?) / 2.0;
    of_one(c, call, |c, x| {
        let low = c.with(Mul, x, slope)?;
        let negative = c.compare_with(Le, x, 0.0)?;
        c.select(negative, low, x)
    })
}

/// `isclose`: `a == b`, or both finite with `|a - b| <= atol + |rtol * b|`; with `equal_nan` also where both are NaN.
pub fn isclose(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let (rtol, atol) = (c.float(call, 2)?, c.float(call, 3)?);
    if !c.dtype(a).is_float() {
        return Err("isclose of integers".into());
    }
    let mut equal = c.compare(Eq, a, b)?;
    if c.bool(call, 4)? {
        let (none, also) = (c.unary(IsNan, a)?, c.unary(IsNan, b)?);
        let none = c.binary(And, none, also)?;
        equal = c.binary(Or, equal, none)?;
    }
    let allowed = c.with(Mul, b, rtol)?;
    let allowed = c.unary(Abs, allowed)?;
    let allowed = c.with(Add, allowed, atol)?;
    let diff = c.binary(Sub, a, b)?;
    let diff = c.unary(Abs, diff)?;
    let finite = c.compare_with(Lt, diff, f64::INFINITY)?;
    let near = c.compare(Le, diff, allowed)?;
    let near = c.binary(And, finite, near)?;
    one(c.binary(Or, equal, near)?)
}

/// `round`, to a number of decimals if it is given.
pub fn round(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let decimals = if *c.arg(call, 1) == Arg::None { 0 } else { c.int(call, 1)? };
    if decimals == 0 {
        return unary(c, call, Round);
    }
    let ten = 10f64.powi(decimals.unsigned_abs().min(300) as i32);
    let (up, down) = if decimals > 0 { (Mul, Div) } else { (Div, Mul) };
    of_one(c, call, |c, x| {
        let y = c.with(up, x, ten)?;
        let y = c.unary(Round, y)?;
        c.with(down, y, ten)
    })
}

/// Where the sign bit is set; a NaN counts as positive.
pub fn signbit(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    if c.dtype(x) == DType::Bool {
        return Err("signbit of bool".into());
    }
    let wide = c.cast(x, c.dtype(x).compute())?;
    one(negative(c, wide)?)
}
