//! Elementary functions, without a device library.
//!
//! Most functions of f32 are polynomials in f32 within 2 ulp ([`exp`], [`log`], [`single`], …). The others (remainders,
//! sine and cosine far from 0) are computed in f64 ([`wide`], [`trig`]) and rounded once; some f64 functions use pairs
//! of f64 internally ([`double`]), and the remainder of f64 is a loop ([`remainder`]). Sources: exp by `ex2` with a
//! two-part log2 e, as CUDA's `expf`; log and erf after N. Juffa's published minimax polynomials; polynomials of tanh
//! and of the inverse functions from Cephes. NaN and infinities follow IEEE and C. The only fast-math flag is
//! contraction of a product and a sum.
mod double;
mod exp_log;
mod remainder;
mod single;
mod trig;
mod wide;

use super::emit::{Emit, Fail, Res, int};
use inkwell::FloatPredicate;
use inkwell::values::{FloatValue, IntValue};
use kiln_block::{BinaryOp, UnaryOp};

pub(super) type F<'c> = FloatValue<'c>;

fn is_double(x: F) -> bool {
    x.get_type().get_bit_width() == 64
}

pub(super) fn unary<'c>(e: &Emit<'c>, op: UnaryOp, x: F<'c>) -> Res<F<'c>> {
    match op {
        UnaryOp::Neg => return e.fneg(x),
        UnaryOp::Abs => return e.call_float("llvm.fabs", &[x]),
        UnaryOp::Sqrt | UnaryOp::SqrtRn => return e.call_float("llvm.sqrt", &[x]),
        UnaryOp::Floor => return e.call_float("llvm.floor", &[x]),
        UnaryOp::Ceil => return e.call_float("llvm.ceil", &[x]),
        UnaryOp::Round => return e.call_float("llvm.roundeven", &[x]),
        UnaryOp::Trunc => return e.call_float("llvm.trunc", &[x]),
        UnaryOp::Tf32 => {
            let bits = e.call("llvm.nvvm.f2tf32.rna", &[], &[x.into()])?;
            return e.float_of_bits(int(bits)?, e.f32());
        }
        UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => return Err(Fail::Unsupported(format!("{op:?} of floats"))),
        _ => {}
    }
    if is_double(x) {
        return wide::unary(e, op, x);
    }
    match op {
        UnaryOp::Exp => exp(e, x),
        UnaryOp::Exp2 => exp2(e, x),
        UnaryOp::Exp2Approx => e.ex2(x),
        UnaryOp::Log => log(e, x),
        UnaryOp::Log2 => log_of_base(e, x, std::f64::consts::LOG2_E, 1.0),
        UnaryOp::Log10 => log_of_base(e, x, std::f64::consts::LOG10_E, std::f64::consts::LOG10_2),
        UnaryOp::Log1p => log1p(e, x),
        UnaryOp::Expm1 => expm1(e, x),
        UnaryOp::Sinh => single::sinh(e, x),
        UnaryOp::Cosh => single::cosh(e, x),
        UnaryOp::Atan => single::atan(e, x),
        UnaryOp::Asin => single::asin(e, x),
        UnaryOp::Acos => single::acos(e, x),
        UnaryOp::Tanh => tanh(e, x),
        UnaryOp::TanhApprox if e.host => tanh(e, x),
        UnaryOp::TanhApprox => e.tanh(x),
        UnaryOp::Erf => erf(e, x),
        UnaryOp::Gelu => gelu(e, x),
        UnaryOp::Rsqrt => rsqrt(e, x),
        UnaryOp::Sin | UnaryOp::Cos | UnaryOp::Tan => trig::of_single(e, op, x),
        _ => {
            let y = wide::unary(e, op, widened(e, x)?)?;
            Ok(e.b.build_float_trunc(y, e.f32(), "")?)
        }
    }
}

pub(super) fn binary<'c>(e: &Emit<'c>, op: BinaryOp, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    match op {
        BinaryOp::Add => e.contracted(e.fadd(x, y)?),
        // Not contracted: x - mean(x) is zero where all of x is equal only if both use the same rounded x.
        BinaryOp::Sub => e.fsub(x, y),
        BinaryOp::Mul => e.contracted(e.fmul(x, y)?),
        BinaryOp::Div if e.rounded && !e.host && !is_double(x) => {
            super::emit::float(e.call("llvm.nvvm.div.full", &[], &[x.into(), y.into()])?)
        }
        BinaryOp::Div | BinaryOp::DivRn => e.fdiv(x, y),
        BinaryOp::Max => e.call_float("llvm.maximum", &[x, y]),
        BinaryOp::Min => e.call_float("llvm.minimum", &[x, y]),
        BinaryOp::MaxNum => e.call_float("llvm.maxnum", &[x, y]),
        BinaryOp::MinNum => e.call_float("llvm.minnum", &[x, y]),
        BinaryOp::Atan2 if is_double(x) => trig::atan2(e, x, y),
        BinaryOp::Pow if is_double(x) => wide::pow(e, x, y),
        BinaryOp::Rem if is_double(x) => remainder::of_double(e, x, y),
        BinaryOp::Pow if e.rounded => single::rounded_pow(e, x, y),
        BinaryOp::Pow => single::pow(e, x, y),
        BinaryOp::Rem | BinaryOp::Atan2 if !is_double(x) => {
            let (a, b) = (widened(e, x)?, widened(e, y)?);
            let v = match op {
                BinaryOp::Rem => wide::rem(e, a, b)?,
                _ => trig::atan2(e, a, b)?,
            };
            Ok(e.b.build_float_trunc(v, e.f32(), "")?)
        }
        other => Err(Fail::Unsupported(format!("{other:?} of {}", if is_double(x) { "f64" } else { "f32" }))),
    }
}

fn widened<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    Ok(e.b.build_float_ext(x, e.cx.f64_type(), "")?)
}
/// A constant of x's type.
fn c<'c>(x: F<'c>, v: f64) -> F<'c> {
    x.get_type().const_float(v)
}
pub(super) fn fma<'c>(e: &Emit<'c>, a: F<'c>, b: F<'c>, s: F<'c>) -> Res<F<'c>> {
    e.call_float("llvm.fma", &[a, b, s])
}
/// Polynomial, highest coefficient first.
fn horner<'c>(e: &Emit<'c>, x: F<'c>, coefficients: &[f64]) -> Res<F<'c>> {
    let mut r = c(x, coefficients[0]);
    for k in &coefficients[1..] {
        r = fma(e, r, x, c(x, *k))?;
    }
    Ok(r)
}
/// NaN stays NaN.
fn clamp<'c>(e: &Emit<'c>, x: F<'c>, lo: f64, hi: f64) -> Res<F<'c>> {
    let x = e.call_float("llvm.minimum", &[x, c(x, hi)])?;
    e.call_float("llvm.maximum", &[x, c(x, lo)])
}
fn abs<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    e.call_float("llvm.fabs", &[x])
}
fn copysign<'c>(e: &Emit<'c>, size: F<'c>, sign: F<'c>) -> Res<F<'c>> {
    e.call_float("llvm.copysign", &[size, sign])
}

/// 1.5 · 2^23: a sum with it rounds to an integer, in the low bits.
const ROUND: f64 = 12582912.0;
const ROUND_BITS: i64 = 0x4b40_0000;

/// 2^f · 2^i for f in [-0.5, 0.5], `shifted` = i + [`ROUND`], |i| ≤ 160: in two steps, so that the smallest numbers are
/// rounded once.
fn scaled<'c>(e: &Emit<'c>, f: F<'c>, shifted: F<'c>) -> Res<F<'c>> {
    times_power(e, e.ex2(f)?, shifted)
}

/// p · 2^i in the same way, for p in [0.7, 1.5].
fn times_power<'c>(e: &Emit<'c>, p: F<'c>, shifted: F<'c>) -> Res<F<'c>> {
    let i = e.sub(e.bits_of_float(shifted, e.i32())?, e.int(ROUND_BITS))?;
    let first = e.ashr(i, e.int(1))?;
    let power = |i| e.float_of_bits(e.shl(e.add(i, e.int(127))?, e.int(23))?, e.f32());
    e.fmul(e.fmul(p, power(first)?)?, power(e.sub(i, first)?)?)
}

/// With k = round(x log2 e) and f the remainder: 2^f by the GPU's instruction, times 2^k made of bits. k is clamped to
/// ±126 by a saturating sum; beyond, f grows instead, so the ends come out right: the smallest numbers rounded once,
/// overflow as infinity, NaN as it is.
pub(super) fn exp<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    const LOG2_E: f64 = std::f64::consts::LOG2_E;
    if e.rounded {
        return e.ex2(e.fmul(x, c(x, LOG2_E))?);
    }
    let unit = e.fma_unit(x, c(x, LOG2_E / 252.0), c(x, 0.5))?;
    // k + 126 + 1 in the low bits.
    let shifted = fma(e, unit, c(x, 252.0), c(x, ROUND + 1.0))?;
    let k = e.fsub(shifted, c(x, ROUND + 127.0))?;
    let f = fma(e, x, c(x, 1.442_695_02), e.fneg(k)?)?;
    let f = fma(e, x, c(x, 1.925_963_033e-8), f)?;
    let power = e.shl(e.bits_of_float(shifted, e.i32())?, e.int(23))?;
    e.fmul(e.ex2(f)?, e.float_of_bits(power, e.f32())?)
}

fn exp2<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    if e.rounded {
        return e.ex2(x);
    }
    let x = clamp(e, x, -151.0, 129.0)?;
    let shifted = e.fadd(x, c(x, ROUND))?;
    let f = e.fsub(x, e.fsub(shifted, c(x, ROUND))?)?;
    scaled(e, f, shifted)
}

fn log<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let (f, k) = near_one(e, x)?;
    log_ends(e, x, log_near_one(e, f, k, None)?)
}

/// log x by `unit`, the logarithm of e; `of_two` is that of two.
fn log_of_base<'c>(e: &Emit<'c>, x: F<'c>, unit: f64, of_two: f64) -> Res<F<'c>> {
    let (f, k) = near_one(e, x)?;
    let r = log_near_one(e, f, c(x, 0.0), None)?;
    // The unit in two parts: most of the error of the product would be its rounding.
    let large = f64::from(unit as f32);
    let r = fma(e, r, c(x, large), e.fmul(r, c(x, unit - large))?)?;
    log_ends(e, x, fma(e, k, c(x, of_two), r)?)
}

/// (f, k) with x = (1 + f) · 2^k and f in [-1/3, 1/3).
fn near_one<'c>(e: &Emit<'c>, x: F<'c>) -> Res<(F<'c>, F<'c>)> {
    // Subnormal numbers are raised to normal ones first.
    let small = e.fcmp(FloatPredicate::OLT, x, c(x, 1.175_494_350_822_287_5e-38))?;
    let a = e.fselect(small, e.fmul(x, c(x, 8_388_608.0))?, x)?;
    let start = e.fselect(small, c(x, -23.0), c(x, 0.0))?;
    let (k, whole) = exponent(e, a)?;
    let m = e.float_of_bits(e.sub(e.bits_of_float(a, e.i32())?, k)?, e.f32())?;
    Ok((e.fsub(m, c(x, 1.0))?, fma(e, whole, c(x, 1.192_092_9e-7), start)?))
}

/// The logarithm of u = 1 + x from f = x · 2^-k + (2^-k - 1), in which nothing of x is lost although u is rounded.
fn log1p<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let u = e.fadd(x, c(x, 1.0))?;
    let (k, whole) = exponent(e, u)?;
    let m = e.float_of_bits(e.sub(e.bits_of_float(x, e.i32())?, k)?, e.f32())?;
    // 4 · 2^-k, which is a normal number for the largest k too.
    let power = e.float_of_bits(e.sub(e.int(0x4080_0000), k)?, e.f32())?;
    let rest = fma(e, power, c(x, 0.25), c(x, -1.0))?;
    let f = e.fadd(m, rest)?;
    // What the sum lost, over 1 + f.
    let lost = e.fsub(m, e.fsub(f, rest)?)?;
    let lost = fma(e, e.fneg(f)?, lost, lost)?;
    let r = log_near_one(e, f, e.fmul(whole, c(x, 1.192_092_9e-7))?, Some(lost))?;
    let zero = e.fcmp(FloatPredicate::OEQ, x, c(x, 0.0))?;
    e.fselect(zero, x, log_ends(e, u, r)?)
}

/// k · 2^23 of a = m · 2^k with m in [2/3, 4/3), as an integer and as a number.
fn exponent<'c>(e: &Emit<'c>, a: F<'c>) -> Res<(IntValue<'c>, F<'c>)> {
    let bits = e.bits_of_float(a, e.i32())?;
    let k = e.and(e.sub(bits, e.int(0x3f2a_aaab))?, e.int(0xff80_0000_u32 as i32 as i64))?;
    Ok((k, e.b.build_signed_int_to_float(k, e.f32(), "")?))
}

/// log(1 + f) + k log 2 for f in [-1/3, 1/3], plus a little.
fn log_near_one<'c>(e: &Emit<'c>, f: F<'c>, k: F<'c>, more: Option<F<'c>>) -> Res<F<'c>> {
    let s = e.fmul(f, f)?;
    let r = horner(e, s, &[-0.130_310_059, -0.121_483_512, -0.166_846_126, -0.249_996_200])?;
    let t = horner(e, s, &[0.140_869_141, 0.139_814_854, 0.200_120_345])?;
    let r = fma(e, t, f, r)?;
    let r = fma(e, r, f, c(f, 0.333_331_972))?;
    let r = fma(e, r, f, c(f, -0.5))?;
    let r = match more {
        Some(more) => e.fadd(f, fma(e, r, s, more)?)?,
        None => fma(e, r, s, f)?,
    };
    fma(e, k, c(f, std::f64::consts::LN_2), r)
}

/// With k = round(x log2 e) and f the remainder: 2^k (e^f - 1) + (2^k - 1), with half of each, so that the largest is
/// finite.
fn expm1<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let a = clamp(e, x, -60.0, 89.0)?;
    let shifted = fma(e, a, c(x, std::f64::consts::LOG2_E), c(x, ROUND))?;
    let k = e.fneg(e.fsub(shifted, c(x, ROUND))?)?;
    let f = fma(e, k, c(x, 0.693_145_751_953_125), a)?;
    let f = fma(e, k, c(x, 1.428_606_765_330_187e-6), f)?;
    let taylor = [1.0 / 40_320.0, 1.0 / 5_040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    let little = fma(e, e.fmul(f, f)?, horner(e, f, &taylor)?, f)?;
    let i = e.sub(e.bits_of_float(shifted, e.i32())?, e.int(ROUND_BITS - 126))?;
    let half = e.float_of_bits(e.shl(i, e.int(23))?, e.f32())?;
    let v = fma(e, little, half, e.fsub(half, c(x, 0.5))?)?;
    copysign(e, e.fadd(v, v)?, x)
}

/// `r`, with the logarithm's values outside of the positive finite numbers.
fn log_ends<'c>(e: &Emit<'c>, x: F<'c>, r: F<'c>) -> Res<F<'c>> {
    let zero = c(x, 0.0);
    let inside = e.fcmp(FloatPredicate::OGT, x, zero)?;
    let finite = e.fcmp(FloatPredicate::OLT, x, c(x, f64::INFINITY))?;
    let is_zero = e.fcmp(FloatPredicate::OEQ, x, zero)?;
    let negative = e.fcmp(FloatPredicate::OLT, x, zero)?;
    // Infinity and NaN plus themselves are themselves.
    let other = e.fselect(negative, c(x, f64::NAN), e.fadd(x, x)?)?;
    let other = e.fselect(is_zero, c(x, f64::NEG_INFINITY), other)?;
    e.fselect(e.and(inside, finite)?, r, other)
}

fn tanh<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let one = c(x, 1.0);
    let a = abs(e, x)?;
    let twice = e.fadd(a, a)?;
    let below_one = e.fadd(exp(e, twice)?, one)?;
    let big = if e.rounded { e.fmul(c(x, -2.0), e.rcp(below_one)?)? } else { e.fdiv(c(x, -2.0), below_one)? };
    let big = copysign(e, e.fadd(big, one)?, x)?;
    let s = e.fmul(x, x)?;
    let p = horner(
        e,
        s,
        &[-5.704_988_727_45e-3, 2.063_908_885_36e-2, -5.373_971_403_61e-2, 1.333_144_218_18e-1, -3.333_328_194_22e-1],
    )?;
    // Plus zero, so that minus zero keeps its sign.
    let little = fma(e, fma(e, p, s, c(x, 0.0))?, x, x)?;
    let below = e.fcmp(FloatPredicate::OLT, a, c(x, 0.625))?;
    e.fselect(below, little, big)
}

/// `scale` (1 - erf |x unit|) as two factors, within 2^-22 of `scale` (Abramowitz and Stegun, 7.1.26).
fn erf_tail<'c>(e: &Emit<'c>, x: F<'c>, unit: f64, scale: f64) -> Res<(F<'c>, F<'c>)> {
    let k = e.rcp(fma(e, abs(e, x)?, c(x, 0.327_591_1 * unit), c(x, 1.0))?)?;
    let coefficients = [1.061_405_429, -1.453_152_027, 1.421_413_741, -0.284_496_736, 0.254_829_592];
    let p = horner(e, k, &coefficients.map(|a| a * scale))?;
    let power = e.fmul(e.fmul(x, c(x, -std::f64::consts::LOG2_E * unit * unit))?, x)?;
    Ok((e.fmul(p, k)?, e.ex2(power)?))
}
/// x/2 + |x| (1/2 - tail/2), which is x for infinity and NaN for minus infinity, as x/2 (1 + erf).
fn gelu<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    use std::f64::consts::FRAC_1_SQRT_2;
    let half = e.fmul(x, c(x, 0.5))?;
    if e.rounded {
        let (p, power) = erf_tail(e, x, FRAC_1_SQRT_2, -0.5)?;
        let beside = fma(e, p, power, c(x, 0.5))?;
        return fma(e, abs(e, x)?, beside, half);
    }
    let erf = erf(e, e.fmul(x, c(x, FRAC_1_SQRT_2))?)?;
    e.fmul(half, e.fadd(erf, c(x, 1.0))?)
}
/// Near 0 the first terms of the series.
fn erf_rounded<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let (t, s) = (abs(e, x)?, e.fmul(x, x)?);
    let (p, power) = erf_tail(e, x, 1.0, -1.0)?;
    let big = copysign(e, fma(e, p, power, c(x, 1.0))?, x)?;
    let series = [-0.026_866_17, 0.112_837_92, -0.376_126_39, std::f64::consts::FRAC_2_SQRT_PI];
    let little = e.fmul(x, horner(e, s, &series)?)?;
    let below = e.fcmp(FloatPredicate::OLT, t, c(x, 0.25))?;
    e.fselect(below, little, big)
}

fn erf<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    if e.rounded {
        return erf_rounded(e, x);
    }
    let t = abs(e, x)?;
    let s = e.fmul(x, x)?;
    // Beyond 4 it is 1.
    let (tc, sc) = (clamp(e, t, 0.0, 4.0)?, clamp(e, s, 0.0, 16.0)?);
    let r = horner(e, tc, &[1.729_489_30e-5, -3.832_086_80e-4])?;
    let u = horner(e, tc, &[3.883_934_35e-3, -2.425_456_05e-2])?;
    let r = fma(e, r, sc, u)?;
    let r = horner_from(e, r, tc, &[1.067_778_47e-1, 6.348_466_87e-1, 1.287_175_12e-1])?;
    let r = fma(e, r, tc, tc)?;
    let big = e.fsub(c(x, 1.0), exp(e, e.fneg(r)?)?)?;
    let big = copysign(e, big, x)?;
    let little = horner(
        e,
        s,
        &[-5.991_049_69e-4, 4.993_395_88e-3, -2.676_673_42e-2, 1.128_180_25e-1, -3.761_248_59e-1, 1.283_791_51e-1],
    )?;
    let little = fma(e, little, x, x)?;
    let above = e.fcmp(FloatPredicate::OGT, t, c(x, 0.921_875))?;
    e.fselect(above, big, little)
}
fn horner_from<'c>(e: &Emit<'c>, start: F<'c>, x: F<'c>, coefficients: &[f64]) -> Res<F<'c>> {
    coefficients.iter().try_fold(start, |r, k| fma(e, r, x, c(x, *k)))
}

/// The GPU's approximation, within an ulp, of a normal number.
fn reciprocal<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    match e.host {
        true => e.fdiv(c(x, 1.0), x),
        false => super::emit::float(e.call("llvm.nvvm.rcp.approx.ftz.f", &[], &[x.into()])?),
    }
}

/// The GPU's approximation, within 2 ulp.
fn rsqrt<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    match e.host {
        true => e.fdiv(c(x, 1.0), e.call_float("llvm.sqrt", &[x])?),
        false => super::emit::float(e.call("llvm.nvvm.rsqrt.approx.f", &[], &[x.into()])?),
    }
}

#[cfg(test)]
mod tests;
