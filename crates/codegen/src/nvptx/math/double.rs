//! f64 functions that need more than f64 precision internally, within 2 ulp: powers by a logarithm in two numbers, and
//! erf.
//!
//! Coefficients interpolate the functions at Chebyshev points, computed with 60 digits and rounded to f64.
use super::exp_log::{exp, exp_of_sum, fraction};
use super::{F, abs, c, clamp, copysign, fma, horner, log_ends};
use crate::nvptx::emit::{Emit, Res};
use inkwell::FloatPredicate;

/// An unevaluated sum of two numbers, the second far smaller.
#[derive(Clone, Copy)]
struct Pair<'c> {
    high: F<'c>,
    low: F<'c>,
}

/// a + b exactly, where a is zero or the larger.
fn sum<'c>(e: &Emit<'c>, a: F<'c>, b: F<'c>) -> Res<Pair<'c>> {
    let high = e.fadd(a, b)?;
    Ok(Pair { high, low: e.fsub(b, e.fsub(high, a)?)? })
}
/// a · b exactly.
fn product<'c>(e: &Emit<'c>, a: F<'c>, b: F<'c>) -> Res<Pair<'c>> {
    let high = e.fmul(a, b)?;
    Ok(Pair { high, low: fma(e, a, b, e.fneg(high)?)? })
}
/// a · b without the product of the small parts.
fn times<'c>(e: &Emit<'c>, a: Pair<'c>, b: Pair<'c>) -> Res<Pair<'c>> {
    let p = product(e, a.high, b.high)?;
    let low = fma(e, a.high, b.low, p.low)?;
    Ok(Pair { high: p.high, low: fma(e, a.low, b.high, low)? })
}

/// With s = (m - 1) / (m + 1), m in [√½, √2]: log m = 2s + s³ (2/3 + s² q(s²)).
const LOGARITHM: [f64; 8] = [
    0.11723178644560381,
    0.117062363375132,
    0.13334804693921176,
    0.15384594962517073,
    0.18181818335392813,
    0.22222222221655885,
    0.28571428571429364,
    0.4,
];
/// 2/3 in two parts.
const TWO_THIRDS: [f64; 2] = [0.6666666666666666, 3.700743415417188e-17];
/// The logarithm of 2 in two parts, the first of 38 bits, so that its multiples by exponents are exact.
const LN_2: [f64; 2] = [0.6931471805582987, 1.6465949582897082e-12];

/// The logarithm, to 64 bits; zero, infinity and NaN give a result in the first number only.
fn log<'c>(e: &Emit<'c>, x: F<'c>) -> Res<Pair<'c>> {
    let (k, m) = fraction(e, x)?;
    let one = c(x, 1.0);
    let f = e.fsub(m, one)?;
    let above = e.fadd(m, one)?;
    let taken = e.fsub(above, m)?;
    let lost = e.fadd(e.fsub(m, e.fsub(above, taken)?)?, e.fsub(one, taken)?)?;
    let high = e.fdiv(f, above)?;
    let minus = e.fneg(high)?;
    let rest = fma(e, minus, lost, fma(e, minus, above, f)?)?;
    let s = Pair { high, low: e.fdiv(rest, above)? };
    let square = times(e, s, s)?;
    let inner = sum(e, c(x, TWO_THIRDS[0]), e.fmul(square.high, horner(e, square.high, &LOGARITHM)?)?)?;
    let inner = Pair { low: e.fadd(inner.low, c(x, TWO_THIRDS[1]))?, ..inner };
    let cube = times(e, s, times(e, square, inner)?)?;
    let of_m = sum(e, e.fadd(s.high, s.high)?, cube.high)?;
    let low = e.fadd(of_m.low, e.fadd(cube.low, e.fadd(s.low, s.low)?)?)?;
    let whole = sum(e, e.fmul(k, c(x, LN_2[0]))?, of_m.high)?;
    let low = e.fadd(whole.low, fma(e, k, c(x, LN_2[1]), low)?)?;
    let r = sum(e, whole.high, low)?;
    let finite = e.fcmp(FloatPredicate::OLT, x, c(x, f64::INFINITY))?;
    let inside = e.and(e.fcmp(FloatPredicate::OGT, x, c(x, 0.0))?, finite)?;
    Ok(Pair { high: log_ends(e, x, r.high)?, low: e.fselect(inside, r.low, c(x, 0.0))? })
}

/// a^y for a ≥ 0, NaN where y is infinite and a is 1.
pub(super) fn power<'c>(e: &Emit<'c>, a: F<'c>, y: F<'c>) -> Res<F<'c>> {
    let l = log(e, a)?;
    let t = product(e, y, l.high)?;
    let low = fma(e, y, l.low, t.low)?;
    // For large exponents, where the parts may be infinite, the power is 0 or infinity anyway.
    let near = e.fcmp(FloatPredicate::OLT, abs(e, t.high)?, c(a, 1000.0))?;
    exp_of_sum(e, t.high, e.fselect(near, low, c(a, 0.0))?)
}

/// erf x / x - 1 for |x| ≤ 1, in x².
const ERF: [f64; 13] = [
    5.957176147748911e-11,
    -1.1372848856791674e-09,
    1.4659775274047436e-08,
    -1.6350312701054695e-07,
    1.6461000484121368e-06,
    -1.4925595266831182e-05,
    0.0001205533111164271,
    -0.000854832698083379,
    0.0052239776248180145,
    -0.026866170645076792,
    0.11283791670954879,
    -0.3761263890318375,
    0.1283791670955126,
];
/// (1 - erf x) e^(x²) for 1 ≤ x ≤ 6, in (x - 2) / (x + 2).
const TAIL: [f64; 17] = [
    -1.1352571477273627e-06,
    1.272567661840228e-06,
    4.011749647325067e-06,
    1.3058577122278017e-06,
    -1.3998283772784976e-05,
    -2.7562209161129353e-05,
    2.7527175557227246e-05,
    0.00017435947400205157,
    4.355558686575482e-05,
    -0.0009819769411038642,
    -0.00084714325299195,
    0.006997461736971578,
    0.0037328924043978336,
    -0.07897858101570611,
    0.24165819424246585,
    -0.4271858474139585,
    0.25539567631050575,
];

pub(super) fn erf<'c>(e: &Emit<'c>, x: F<'c>) -> Res<F<'c>> {
    let a = abs(e, x)?;
    let little = fma(e, horner(e, e.fmul(x, x)?, &ERF)?, x, x)?;
    // Beyond 6 it is 1.
    let far = clamp(e, a, 1.0, 6.0)?;
    let t = e.fdiv(e.fsub(far, c(x, 2.0))?, e.fadd(far, c(x, 2.0))?)?;
    let power = exp(e, e.fneg(e.fmul(far, far)?)?)?;
    let big = fma(e, e.fneg(horner(e, t, &TAIL)?)?, power, c(x, 1.0))?;
    let below = e.fcmp(FloatPredicate::OLT, a, c(x, 1.0))?;
    e.fselect(below, little, copysign(e, big, x)?)
}
