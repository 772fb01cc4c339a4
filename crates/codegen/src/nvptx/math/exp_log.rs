//! Exponentials and logarithms in f64, and their reductions: what other functions are made of.
//!
//! exp and expm1 by reduction to |r| ≤ ln 2 / 2 and Taylor's polynomial; log as in FreeBSD's `e_log.c`.
use super::{F, abs, c, clamp, copysign, fma, horner, log_ends};
use crate::nvptx::emit::{Emit, Res};
use inkwell::FloatPredicate;
use inkwell::values::IntValue;

/// 1.5 · 2^52: a sum with it rounds to an integer, in the low bits.
pub(super) const ROUND: f64 = 6_755_399_441_055_744.0;

/// The integer in the low 32 bits of a sum with [`ROUND`].
pub(super) fn low_integer<'c>(e: &Emit<'c>, shifted: F<'c>) -> Res<IntValue<'c>> {
    let bits = e.bits_of_float(shifted, e.i64())?;
    e.sext(e.trunc(bits, e.i32())?, e.i64())
}
/// 2^i for -1022 ≤ i ≤ 1023.
pub(super) fn power<'c>(e: &Emit<'c>, i: IntValue<'c>) -> Res<F<'c>> {
    let bits = e.shl(e.add(i, e.int_of(e.i64(), 1023))?, e.int_of(e.i64(), 52))?;
    e.float_of_bits(bits, e.cx.f64_type())
}

/// 1/n! from n = 13 down to 2.
const TAYLOR: [f64; 12] = [
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
];

/// x = k ln 2 + r: (k + [`ROUND`], r).
pub(super) fn reduced<'c>(e: &Emit<'c>, x: F<'c>) -> Res<(F<'c>, F<'c>)> {
    let shifted = fma(e, x, c(x, std::f64::consts::LOG2_E), c(x, ROUND))?;
    let k = e.fsub(shifted, c(x, ROUND))?;
    let r = fma(e, k, c(x, -0.6931471803691238), x)?;
    Ok((shifted, fma(e, k, c(x, -1.9082149292705877e-10), r)?))
}
/// e^r - 1 for |r| ≤ ln 2 / 2.
pub(super) fn little<'c>(e: &Emit<'c>, r: F<'c>) -> Res<F<'c>> {
    let p = horner(e, r, &TAYLOR)?;
    fma(e, e.fmul(r, r)?, p, r)
}
/// p · 2^k in two steps.
pub(super) fn scaled<'c>(e: &Emit<'c>, p: F<'c>, shifted: F<'c>) -> Res<F<'c>> {
    let k = low_integer(e, shifted)?;
    let first = e.ashr(k, e.int_of(e.i64(), 1))?;
    e.fmul(e.fmul(p, power(e, first)?)?, power(e, e.sub(k, first)?)?)
}
pub(super) fn exp<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let x = clamp(e, x, -746.0, 710.0)?;
    let (shifted, r) = reduced(e, x)?;
    scaled(e, e.fadd(little(e, r)?, c(x, 1.0))?, shifted)
}
/// e^(x + low) for an x of at least 2^-53 of which `low` is a part in 2^50 or less.
pub(super) fn exp_of_sum<'c>(e: &Emit<'c>, x: F<'c>, low: F<'c>) -> Res<F<'c>> {
    let x = clamp(e, x, -746.0, 710.0)?;
    let (shifted, r) = reduced(e, x)?;
    scaled(e, e.fadd(little(e, e.fadd(r, low)?)?, c(x, 1.0))?, shifted)
}
pub(super) fn exp2<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let x = clamp(e, x, -1076.0, 1025.0)?;
    let shifted = e.fadd(x, c(x, ROUND))?;
    let f = e.fsub(x, e.fsub(shifted, c(x, ROUND))?)?;
    let r = e.fmul(f, c(x, std::f64::consts::LN_2))?;
    scaled(e, e.fadd(little(e, r)?, c(x, 1.0))?, shifted)
}
pub(super) fn expm1<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let a = clamp(e, x, -60.0, 710.0)?;
    let (shifted, r) = reduced(e, a)?;
    // Half the power, so that the largest is finite.
    let k = e.sub(low_integer(e, shifted)?, e.int_of(e.i64(), 1))?;
    let half = power(e, k)?;
    let v = fma(e, little(e, r)?, half, e.fsub(half, c(x, 0.5))?)?;
    copysign(e, e.fadd(v, v)?, x)
}
pub(super) fn sinh<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let a = abs(e, x)?;
    let (half, one) = (c(x, 0.5), c(x, 1.0));
    let m = expm1(e, clamp(e, a, 0.0, 700.0)?)?;
    let v = e.fmul(half, e.fadd(m, e.fdiv(m, e.fadd(m, one)?)?)?)?;
    copysign(e, far(e, a, v)?, x)
}
pub(super) fn cosh<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let a = abs(e, x)?;
    let (half, one) = (c(x, 0.5), c(x, 1.0));
    let p = exp(e, clamp(e, a, 0.0, 700.0)?)?;
    let v = e.fmul(half, e.fadd(p, e.fdiv(one, p)?)?)?;
    far(e, a, v)
}
/// `v`, but e^a / 2 beyond 700, where e^a alone would overflow.
pub(super) fn far<'c>(e: &Emit<'c>, a: F<'c>, v: F<'c>) -> Res<F<'c>> {
    let half = c(a, 0.5);
    let root = exp(e, e.fmul(a, half)?)?;
    let large = e.fmul(e.fmul(root, half)?, root)?;
    e.fselect(e.fcmp(FloatPredicate::OGT, a, c(a, 700.0))?, large, v)
}

/// (k, m) with x = m · 2^k and m from sqrt(1/2) to sqrt(2).
pub(super) fn fraction<'c>(e: &Emit<'c>, x: F<'c>) -> Res<(F<'c>, F<'c>)> {
    let small = e.fcmp(FloatPredicate::OLT, x, c(x, f64::MIN_POSITIVE))?;
    let a = e.fselect(small, e.fmul(x, c(x, 18_014_398_509_481_984.0))?, x)?;
    let start = e.fselect(small, c(x, -54.0), c(x, 0.0))?;
    let i64 = e.i64();
    let bits = e.bits_of_float(a, i64)?;
    let k = e.ashr(e.sub(bits, e.int_of(i64, 0x3fe6_a09e_667f_3bcd))?, e.int_of(i64, 52))?;
    let m = e.float_of_bits(e.sub(bits, e.shl(k, e.int_of(i64, 52))?)?, e.cx.f64_type())?;
    let k = e.b.build_signed_int_to_float(e.trunc(k, e.i32())?, e.cx.f64_type(), "")?;
    Ok((e.fadd(k, start)?, m))
}
/// (k, log m) with x = m · 2^k and m about 1.
pub(super) fn log_parts<'c>(e: &Emit<'c>, x: F<'c>) -> Res<(F<'c>, F<'c>)> {
    let (k, m) = fraction(e, x)?;
    let f = e.fsub(m, c(x, 1.0))?;
    let s = e.fdiv(f, e.fadd(f, c(x, 2.0))?)?;
    let z = e.fmul(s, s)?;
    let r = horner(
        e,
        z,
        &[
            0.14798198605116586,
            0.15313837699209373,
            0.1818357216161805,
            0.22222198432149784,
            0.2857142874366239,
            0.3999999999940942,
            0.6666666666666735,
        ],
    )?;
    let r = e.fmul(r, z)?;
    let half = e.fmul(c(x, 0.5), e.fmul(f, f)?)?;
    let rest = fma(e, s, e.fadd(half, r)?, e.fneg(half)?)?;
    Ok((k, e.fadd(f, rest)?))
}
/// The logarithm as k · `of_two` + log m · `unit`.
pub(super) fn log<'c>(e: &Emit<'c>, x: F<'c>, unit: f64, of_two: f64) -> Res<F<'c>> {
    let (k, m) = log_parts(e, x)?;
    let m = if unit == 1.0 { m } else { e.fmul(m, c(x, unit))? };
    let r = fma(e, k, c(x, of_two), m)?;
    log_ends(e, x, r)
}
pub(super) fn log1p<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let one = c(x, 1.0);
    let u = e.fadd(one, x)?;
    let lost = e.fsub(x, e.fsub(u, one)?)?;
    let share = e.fdiv(lost, u)?;
    let inside = e.fcmp(FloatPredicate::OGT, u, c(x, 0.0))?;
    let finite = e.fcmp(FloatPredicate::OLT, u, c(x, f64::INFINITY))?;
    let share = e.fselect(e.and(inside, finite)?, share, c(x, 0.0))?;
    let v = e.fadd(log(e, u, 1.0, std::f64::consts::LN_2)?, share)?;
    // Minus zero gives itself.
    let zero = e.fcmp(FloatPredicate::OEQ, x, c(x, 0.0))?;
    e.fselect(zero, x, v)
}
