//! Functions of f32 in f32: hyperbolic ones by [`exp`] and [`expm1`], inverse ones by Cephes' polynomials, powers for
//! results that are rounded to half types.
use super::{
    F, ROUND, abs, c, clamp, copysign, exp, expm1, fma, horner, log_of_base, near_one, reciprocal, times_power, wide,
};
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

/// (asin of r, |x| is above a half) where r is |x|, or beyond a half the root of (1 - |x|)/2, whose angle is half of
/// what is left to a right one.
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

/// x^y for results that are rounded to half types: the logarithm's error of an ulp, times an exponent that does not
/// overflow, is less than 2^-16 of the result.
pub(super) fn rounded_pow<'c>(e: &Emit<'c>, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    let log = log_of_base(e, abs(e, x)?, std::f64::consts::LOG2_E, 1.0)?;
    let size = e.ex2(e.fmul(y, log)?)?;
    wide::with_cases(e, x, y, size)
}

/// x^y. The logarithm is a sum of two numbers, so that its error, times an exponent that does not overflow, is less
/// than an ulp of the result.
pub(super) fn pow<'c>(e: &Emit<'c>, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    let (a, zero) = (abs(e, x)?, c(x, 0.0));
    let (log, low) = log2_in_two(e, a)?;
    let positive = e.fcmp(FloatPredicate::OGT, a, zero)?;
    let finite = e.fcmp(FloatPredicate::OLT, a, c(x, f64::INFINITY))?;
    let log = e.fselect(e.fcmp(FloatPredicate::OEQ, a, zero)?, c(x, f64::NEG_INFINITY), log)?;
    let both = e.and(positive, finite)?;
    let log = e.fselect(e.and(finite, e.not(positive)?)?, log, e.fselect(both, log, a)?)?;
    let power = e.fmul(y, log)?;
    let inside = e.and(both, e.fcmp(FloatPredicate::OLE, abs(e, power)?, c(x, 160.0))?)?;
    let rest = fma(e, y, low, fma(e, y, log, e.fneg(power)?)?)?;
    let rest = e.fselect(inside, rest, zero)?;
    let power = clamp(e, power, -160.0, 160.0)?;
    let shifted = e.fadd(power, c(x, ROUND))?;
    let f = e.fadd(e.fsub(power, e.fsub(shifted, c(x, ROUND))?)?, rest)?;
    // 2^f for f in [-0.5, 0.5]: log(2)^n / n!
    let series: Vec<f64> = (0..8u32).rev().map(|n| std::f64::consts::LN_2.powi(n as i32) / factorial(n)).collect();
    let size = times_power(e, horner(e, f, &series)?, shifted)?;
    wide::with_cases(e, x, y, size)
}

fn factorial(n: u32) -> f64 {
    (1..=n).map(f64::from).product()
}

/// The binary logarithm of a positive number as a sum of two, of 30 bits where it is not near a whole number.
fn log2_in_two<'c>(e: &Emit<'c>, a: F<'c>) -> Res<(F<'c>, F<'c>)> {
    let (f, k) = near_one(e, a)?;
    // log(1 + f) = 2 (s + s^3 / 3 + s^5 / 5 + …) for s = f / (2 + f), which is s + low.
    let d = e.fadd(f, c(a, 2.0))?;
    let lost = e.fsub(f, e.fsub(d, c(a, 2.0))?)?;
    let r = reciprocal(e, d)?;
    let s = e.fmul(f, r)?;
    let minus = e.fneg(s)?;
    let left = fma(e, minus, lost, fma(e, minus, d, f)?)?;
    let low = e.fmul(left, r)?;
    let t = e.fmul(s, s)?;
    let more = fma(e, e.fadd(s, s)?, low, fma(e, s, s, e.fneg(t)?)?)?;
    // The first term of the series is exact, the others are small.
    let third = 1.0f32 / 3.0;
    let first = 1.0 / 3.0 - f64::from(third);
    let third = c(a, f64::from(third));
    let q = horner(e, t, &[1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, first])?;
    let twice = e.fadd(s, s)?;
    let square = e.fmul(t, third)?;
    let beside = fma(e, t, third, e.fneg(square)?)?;
    let beside = fma(e, more, third, fma(e, t, q, beside)?)?;
    let cube = e.fmul(twice, square)?;
    let under = fma(e, twice, square, e.fneg(cube)?)?;
    let low = e.fadd(low, low)?;
    let under = e.fadd(fma(e, twice, beside, under)?, fma(e, low, square, low)?)?;
    let h = e.fadd(twice, cube)?;
    let l = e.fadd(e.fsub(cube, e.fsub(h, twice)?)?, under)?;
    let (high, rest) = (std::f64::consts::LOG2_E as f32, std::f64::consts::LOG2_E);
    let rest = c(a, rest - f64::from(high));
    let high = c(a, f64::from(high));
    let product = e.fmul(h, high)?;
    let under = fma(e, h, rest, fma(e, l, high, fma(e, h, high, e.fneg(product)?)?)?)?;
    let log = e.fadd(k, product)?;
    let low = e.fadd(e.fsub(product, e.fsub(log, k)?)?, under)?;
    Ok((log, low))
}
