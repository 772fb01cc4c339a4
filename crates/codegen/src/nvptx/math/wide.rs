//! f64 functions: within a few ulp in f64, and so correctly rounded but for rare cases when used for f32.
use super::exp_log::*;
use super::{F, abs, c, clamp, copysign, fma};
use super::{double, trig};
use crate::nvptx::emit::{Emit, Fail, Res};
use inkwell::FloatPredicate;
use kiln_block::UnaryOp;

pub(super) fn unary<'c>(e: &Emit<'c>, op: UnaryOp, x: F<'c>) -> Res<F<'c>> {
    use std::f64::consts;
    match op {
        UnaryOp::Exp => exp(e, x),
        UnaryOp::Exp2 => exp2(e, x),
        UnaryOp::Expm1 => expm1(e, x),
        UnaryOp::Log => log(e, x, 1.0, consts::LN_2),
        UnaryOp::Log2 => log(e, x, consts::LOG2_E, 1.0),
        UnaryOp::Log10 => log(e, x, consts::LOG10_E, consts::LOG10_2),
        UnaryOp::Log1p => log1p(e, x),
        UnaryOp::Rsqrt => e.fdiv(c(x, 1.0), e.call_float("llvm.sqrt", &[x])?),
        UnaryOp::Sinh => sinh(e, x),
        UnaryOp::Cosh => cosh(e, x),
        UnaryOp::Tanh => {
            let a = clamp(e, abs(e, x)?, 0.0, 22.0)?;
            let m = expm1(e, e.fadd(a, a)?)?;
            copysign(e, e.fdiv(m, e.fadd(m, c(x, 2.0))?)?, x)
        }
        UnaryOp::Asin => trig::atan2(e, x, other_leg(e, x)?),
        UnaryOp::Acos => trig::atan2(e, other_leg(e, x)?, x),
        UnaryOp::Atan => trig::atan2(e, x, c(x, 1.0)),
        UnaryOp::Erf => double::erf(e, x),
        other => Err(Fail::Unsupported(format!("{other:?} of f64"))),
    }
}

/// sqrt(1 - x²)
fn other_leg<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let one = c(x, 1.0);
    e.call_float("llvm.sqrt", &[e.fmul(e.fsub(one, x)?, e.fadd(one, x)?)?])
}

/// x^y with C's special cases.
pub(super) fn pow<'c>(e: &Emit<'c>, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    let size = double::power(e, abs(e, x)?, y)?;
    with_cases(e, x, y, size)
}

/// x^y from |x|^y, with C's special cases.
pub(super) fn with_cases<'c>(e: &Emit<'c>, x: F<'c>, y: F<'c>, size: F<'c>) -> Res<F<'c>> {
    let (zero, one) = (c(x, 0.0), c(x, 1.0));
    let a = abs(e, x)?;
    // 1 to an infinite power is 1.
    let unit = e.fcmp(FloatPredicate::OEQ, a, one)?;
    let ordered = e.fcmp(FloatPredicate::ORD, y, y)?;
    let size = e.fselect(e.and(unit, ordered)?, one, size)?;
    let whole = e.fcmp(FloatPredicate::OEQ, e.call_float("llvm.trunc", &[y])?, y)?;
    let half = e.fmul(y, c(x, 0.5))?;
    let even = e.fcmp(FloatPredicate::OEQ, e.call_float("llvm.trunc", &[half])?, half)?;
    let odd = e.and(whole, e.not(even)?)?;
    let v = e.fselect(odd, copysign(e, size, x)?, size)?;
    let negative = e.fcmp(FloatPredicate::OLT, x, zero)?;
    let finite = e.fcmp(FloatPredicate::OGT, x, c(x, f64::NEG_INFINITY))?;
    let undefined = e.and(e.and(negative, finite)?, e.not(whole)?)?;
    let v = e.fselect(undefined, c(x, f64::NAN), v)?;
    let always = e.or(e.fcmp(FloatPredicate::OEQ, x, one)?, e.fcmp(FloatPredicate::OEQ, y, zero)?)?;
    e.fselect(always, one, v)
}

/// The remainder with the sign of x, exact, for numbers that come from f32: every step takes 52 bits off the quotient.
pub(super) fn rem<'c>(e: &Emit<'c>, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    let (a, b) = (abs(e, x)?, abs(e, y)?);
    let mut r = a;
    for _ in 0..6 {
        let q = e.call_float("llvm.trunc", &[e.fdiv(r, b)?])?;
        r = fma(e, e.fneg(q)?, b, r)?;
    }
    let below = e.fcmp(FloatPredicate::OLT, r, c(x, 0.0))?;
    let r = e.fselect(below, e.fadd(r, b)?, r)?;
    let v = copysign(e, r, x)?;
    // A finite number is its own remainder by infinity.
    let inf = c(x, f64::INFINITY);
    let own = e.and(e.fcmp(FloatPredicate::OEQ, b, inf)?, e.fcmp(FloatPredicate::OLT, a, inf)?)?;
    e.fselect(own, x, v)
}
