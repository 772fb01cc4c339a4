//! Functions of f32 in f32: hyperbolic ones by [`exp`] and [`expm1`], inverse ones by Cephes' polynomials, powers for results that are rounded
//! to half types.
use super::{F, abs, c, clamp, copysign, exp, expm1, fma, horner, log_of_base, wide};
use crate::nvptx::emit::{Emit, Res};
use inkwell::FloatPredicate;
use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};

pub(super) fn sinh<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let a = abs(e, x)?;
    let m = expm1(e, clamp(e, a, 0.0, 88.0)?)?;
    let v = e.fmul(c(x, 0.5), e.fadd(m, e.fdiv(m, e.fadd(m, c(x, 1.0))?)?)?)?;
    copysign(e, far(e, a, v)?, x)
}

pub(super) fn cosh<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let a = abs(e, x)?;
    let p = exp(e, clamp(e, a, 0.0, 88.0)?)?;
    let v = fma(e, p, c(x, 0.5), e.fdiv(c(x, 0.5), p)?)?;
    far(e, a, v)
}

/// `v`, but e^a / 2 beyond 88, where e^a alone would overflow.
fn far<'c>(e: &Emit<'c>, a: F<'c>, v: F<'c>) -> Res<F<'c>> {
    // e^(a - log 2), with the part of log 2 that the difference loses.
    let below = e.fsub(a, c(a, 0.693_359_375))?;
    let p = exp(e, below)?;
    let large = fma(e, p, c(a, 2.121_944_4e-4), p)?;
    e.fselect(e.fcmp(FloatPredicate::OGT, a, c(a, 88.0))?, large, v)
}

pub(super) fn atan<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    const TAN_3_8: f64 = 2.414_213_562_373_095;
    const TAN_1_8: f64 = 0.414_213_562_373_095;
    let (a, one) = (abs(e, x)?, c(x, 1.0));
    let far = e.fcmp(FloatPredicate::OGT, a, c(x, TAN_3_8))?;
    let middle = e.fcmp(FloatPredicate::OGT, a, c(x, TAN_1_8))?;
    // -1/a, (a - 1)/(a + 1) or a; NaN is its own.
    let above = e.fselect(far, c(x, -1.0), e.fselect(middle, e.fsub(a, one)?, a)?)?;
    let below = e.fselect(far, a, e.fselect(middle, e.fadd(a, one)?, one)?)?;
    let r = e.fdiv(above, below)?;
    let start = e.fselect(far, c(x, FRAC_PI_2), e.fselect(middle, c(x, FRAC_PI_4), c(x, 0.0))?)?;
    let s = e.fmul(r, r)?;
    let p = horner(e, s, &[8.053_744_495_38e-2, -1.387_768_560_32e-1, 1.997_771_064_78e-1, -3.333_294_915_39e-1])?;
    // What the quarters of pi lost as f32.
    let lost = e.fmul(start, c(x, FRAC_PI_2 / f64::from(FRAC_PI_2 as f32) - 1.0))?;
    let little = e.fadd(r, fma(e, e.fmul(p, s)?, r, lost)?)?;
    copysign(e, e.fadd(start, little)?, x)
}

/// (asin of r, |x| is above a half) where r is |x|, or beyond a half the root of (1 - |x|)/2, whose angle is half of what is left to a right one.
fn half_angle<'c>(e: &Emit<'c>, x: F<'c>) -> Res<(F<'c>, inkwell::values::IntValue<'c>)> {
    let a = abs(e, x)?;
    let beyond = e.fcmp(FloatPredicate::OGT, a, c(x, 0.5))?;
    let rest = fma(e, a, c(x, -0.5), c(x, 0.5))?;
    let s = e.fselect(beyond, rest, e.fmul(a, a)?)?;
    let r = e.fselect(beyond, e.call_float("llvm.sqrt", &[rest])?, a)?;
    let p = horner(
        e,
        s,
        &[4.216_319_904_8e-2, 2.418_131_104_9e-2, 4.547_002_599_8e-2, 7.495_300_268_6e-2, 1.666_675_242_2e-1],
    )?;
    Ok((fma(e, e.fmul(p, s)?, r, r)?, beyond))
}

pub(super) fn asin<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let (angle, beyond) = half_angle(e, x)?;
    let right = fma(e, angle, c(x, -2.0), c(x, FRAC_PI_2))?;
    copysign(e, e.fselect(beyond, right, angle)?, x)
}

pub(super) fn acos<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let (angle, beyond) = half_angle(e, x)?;
    let negative = e.fcmp(FloatPredicate::OLT, x, c(x, 0.0))?;
    let twice = e.fadd(angle, angle)?;
    let far = e.fselect(negative, e.fsub(c(x, PI), twice)?, twice)?;
    let near = e.fsub(c(x, FRAC_PI_2), copysign(e, angle, x)?)?;
    e.fselect(beyond, far, near)
}

/// x^y for results that are rounded to half types: the logarithm's error of an ulp, times an exponent that does not overflow, is less than
/// 2^-16 of the result.
pub(super) fn pow<'c>(e: &Emit<'c>, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    let log = log_of_base(e, abs(e, x)?, std::f64::consts::LOG2_E, 1.0)?;
    let size = e.ex2(e.fmul(y, log)?)?;
    wide::with_cases(e, x, y, size)
}
