//! Formulas of special functions, in f64: erfinv, lgamma, digamma.
//!
//! Polynomials are near-minimax fits (Chebyshev, at 60 digits) of the functions in their docs; their errors are below
//! that of rounding. The asymptotic series are Stirling's, with Bernoulli numbers (DLMF 5.11.1 and 5.11.2); the
//! reflections are DLMF 5.5.3 and 5.5.4. `erfinv(x) / x` is smooth in `w = -log(1 - x²)` (M. Giles, "Approximating the
//! erfinv function", 2010).
use super::Built;
use crate::{BinaryOp, CompareOp, Graph, UnaryOp, ValueId};
use BinaryOp::{Add, Div, Min, Mul, Sub};
use CompareOp::{Eq, Gt, Lt};
use std::f64::consts::PI;

/// `erfinv(x) / x` for w from 0 to 6.25, in w - 3.125.
const CENTRE: &[f64] = &[
    -3.5932028927020693e-22,
    3.194015548136271e-21,
    1.999259988861535e-20,
    -3.4734793888538036e-19,
    6.075050702072414e-19,
    1.5510787009902526e-17,
    -1.2215637192404172e-16,
    -3.94018812230432e-17,
    6.521333511502239e-15,
    -4.0020031087558496e-14,
    -8.07192593899004e-14,
    2.6305268312595183e-12,
    -1.2978805369932565e-11,
    -5.414303283919504e-11,
    1.051223377050429e-09,
    -4.1126604371632185e-09,
    -2.907039127564132e-08,
    4.23478816822246e-07,
    -1.3654691758785656e-06,
    -1.3882523393957483e-05,
    0.00018673420801981186,
    -0.0007407025341546431,
    -0.006033670871426851,
    0.24015818242558834,
    1.6536545626831027,
];
/// `erfinv(x) / x` for w from 6.25 to 16, in sqrt(w) - 3.25.
const TAIL: &[f64] = &[
    -5.508714490952429e-10,
    -1.3642746356447974e-09,
    9.303061750813343e-09,
    -1.1265651590107561e-08,
    -2.296292648388391e-08,
    1.2645854486818457e-07,
    -2.4405164215404765e-07,
    -2.397266269818646e-08,
    1.4809717310912044e-06,
    -3.987294601217741e-06,
    2.9327494598870005e-06,
    1.24654656999624e-05,
    -4.732070992437172e-05,
    6.828704184072581e-05,
    2.403151587282171e-05,
    -0.0003550378059365349,
    0.0009532893414096963,
    -0.0016882755358974366,
    0.0024914420979613473,
    -0.0037512085082129646,
    0.005370914553555,
    1.0052589676941652,
    3.0838856104922208,
];
/// `erfinv(x) / x` for w from 16 to 37.5 (x is the f64 next to 1), in sqrt(w) - 5.
const FAR: &[f64] = &[
    -3.293672383007505e-14,
    -8.425420380895237e-13,
    6.064212260278438e-12,
    -1.6201722160632063e-11,
    1.428357492511048e-11,
    6.06777817193002e-11,
    -3.801445153101392e-10,
    1.3265074765292998e-09,
    -3.5347133151718535e-09,
    7.81385154525511e-09,
    -1.5213328965351708e-08,
    2.9022071341946052e-08,
    -6.757286085021307e-08,
    2.290518678996972e-07,
    -9.930254684255092e-07,
    4.526052678777463e-06,
    -1.9681771198848122e-05,
    7.59952780842354e-05,
    -0.00021503011979905604,
    -0.00013871931837974473,
    1.0103004648645448,
    4.849906401408584,
];
/// `lgamma(y) / ((y - 1) (y - 2))` for y from 1 to 2, in y - 1.5.
const BETWEEN_ZEROS: &[f64] = &[
    -7.760660152513446e-06,
    1.2140008083973407e-05,
    -8.355075869795273e-06,
    1.3186019073996835e-05,
    -2.7201673025504752e-05,
    4.30276814976503e-05,
    -6.614136022346414e-05,
    0.00010535512483785591,
    -0.0001689178215524898,
    0.00027131373861446925,
    -0.00043799307479613914,
    0.000711519067515296,
    -0.0011644145847310124,
    0.0019229163127905161,
    -0.0032120740737152814,
    0.005446457839126065,
    -0.009425622448525798,
    0.01679709863127416,
    -0.031308487501010646,
    0.06291140107456439,
    -0.14595989591430608,
    0.4831289505409809,
];
/// Stirling's series of lgamma, in 1/z²: B(2n) / (2n (2n - 1)).
const STIRLING: &[f64] = &[
    0.17964437236883057,
    -0.029550653594771242,
    0.00641025641025641,
    -0.0019175269175269176,
    0.0008417508417508417,
    -0.0005952380952380953,
    0.0007936507936507937,
    -0.002777777777777778,
    0.08333333333333333,
];
/// The series of digamma, in 1/z²: B(2n) / 2n.
const DERIVED: &[f64] = &[
    -0.4432598039215686,
    0.08333333333333333,
    -0.021092796092796094,
    0.007575757575757576,
    -0.004166666666666667,
    0.003968253968253968,
    -0.008333333333333333,
    0.08333333333333333,
];
/// `sin(πr) / r` for r up to 1/2, in r².
const SIN_PI: &[f64] = &[
    7.697826768224191e-07,
    -2.1903497074626018e-05,
    0.0004662998161898394,
    -0.007370430505916944,
    0.0821458865731029,
    -0.5992645293189447,
    2.5501640398773007,
    -5.167712780049969,
    PI,
];
/// `cos(πr)` for r up to 1/2, in r².
const COS_PI: &[f64] = &[
    -1.34352129509532e-07,
    4.300724172734847e-06,
    -0.00010463741681752138,
    0.0019295741872812349,
    -0.025806891376592964,
    0.235330630357995,
    -1.3352627688545549,
    4.058712126416768,
    -4.934802200544679,
    1.0,
];

/// Horner's rule, the highest coefficient first.
fn polynomial(g: &mut Graph, x: ValueId, coefficients: &[f64]) -> Built {
    let mut y = g.constant_like(x, coefficients[0])?;
    for c in &coefficients[1..] {
        y = g.binary(Mul, y, x)?;
        y = g.binary_scalar(Add, y, *c)?;
    }
    Ok(y)
}
/// `below` if `x < limit`, else `other`.
fn select_below(g: &mut Graph, x: ValueId, limit: f64, below: ValueId, other: ValueId) -> Built {
    let limit = g.constant_like(x, limit)?;
    let is_below = g.compare(Lt, x, limit)?;
    g.select(is_below, below, other)
}
/// `c - x`.
fn from(g: &mut Graph, c: f64, x: ValueId) -> Built {
    let c = g.constant_like(x, c)?;
    g.binary(Sub, c, x)
}
/// `x` minus the nearest integer: from -1/2 to 1/2.
fn off_whole(g: &mut Graph, x: ValueId) -> Built {
    let whole = g.unary(UnaryOp::Round, x)?;
    g.binary(Sub, x, whole)
}
/// `sin(πr)` for r from -1/2 to 1/2, and r².
fn sin_pi(g: &mut Graph, r: ValueId) -> Result<(ValueId, ValueId), crate::GraphError> {
    let square = g.binary(Mul, r, r)?;
    let over_r = polynomial(g, square, SIN_PI)?;
    Ok((g.binary(Mul, r, over_r)?, square))
}

pub(super) fn erfinv(g: &mut Graph, x: ValueId) -> Built {
    let below = from(g, 1.0, x)?;
    let above = g.binary_scalar(Add, x, 1.0)?;
    let both = g.binary(Mul, below, above)?;
    let log = g.unary(UnaryOp::Log, both)?;
    let w = g.unary(UnaryOp::Neg, log)?;
    let centred = g.binary_scalar(Sub, w, 3.125)?;
    let centre = polynomial(g, centred, CENTRE)?;
    let root = g.unary(UnaryOp::Sqrt, w)?;
    let tail = g.binary_scalar(Sub, root, 3.25)?;
    let tail = polynomial(g, tail, TAIL)?;
    let far = g.binary_scalar(Sub, root, 5.0)?;
    let far = polynomial(g, far, FAR)?;
    let outer = select_below(g, w, 16.0, tail, far)?;
    let slope = select_below(g, w, 6.25, centre, outer)?;
    let inside = g.binary(Mul, x, slope)?;
    let size = g.unary(UnaryOp::Abs, x)?;
    let one = g.constant_like(x, 1.0)?;
    let at_end = g.compare(Eq, size, one)?;
    let end = g.binary_scalar(Mul, x, f64::INFINITY)?;
    g.select(at_end, end, inside)
}

pub(super) fn lgamma(g: &mut Graph, x: ValueId) -> Built {
    let a = g.unary(UnaryOp::Abs, x)?;
    let (small, large) = (lgamma_below_3(g, a)?, lgamma_from_3(g, a)?);
    let positive = select_below(g, a, 3.0, small, large)?;
    // lgamma(x) = log(π / |x sin πx|) - lgamma(-x). Near zero the product underflows, and the result is lgamma(-x).
    let r = off_whole(g, a)?;
    let (sin, _) = sin_pi(g, r)?;
    let product = g.binary(Mul, a, sin)?;
    let product = g.unary(UnaryOp::Abs, product)?;
    let pi = g.constant_like(x, PI)?;
    let quotient = g.binary(Div, pi, product)?;
    let log = g.unary(UnaryOp::Log, quotient)?;
    let reflected = g.binary(Sub, log, positive)?;
    let reflected = select_below(g, a, 1e-30, positive, reflected)?;
    let negative = select_below(g, x, 0.0, reflected, positive)?;
    // All finite f64 below -2^52 are integers, where the function has poles; minus infinity gives infinity too.
    let whole = g.constant_like(x, f64::INFINITY)?;
    select_below(g, x, -4503599627370496.0, whole, negative)
}

/// From 1 to 2 by a polynomial times the function's zeros; elsewhere reduced to that by lgamma(y + 1) = lgamma(y) +
/// log(y).
fn lgamma_below_3(g: &mut Graph, a: ValueId) -> Built {
    let (up, down) = (g.binary_scalar(Add, a, 1.0)?, g.binary_scalar(Sub, a, 1.0)?);
    let upper = select_below(g, a, 2.0, a, down)?;
    let y = select_below(g, a, 1.0, up, upper)?;
    let centred = g.binary_scalar(Sub, y, 1.5)?;
    let p = polynomial(g, centred, BETWEEN_ZEROS)?;
    let (first, second) = (g.binary_scalar(Sub, y, 1.0)?, g.binary_scalar(Sub, y, 2.0)?);
    let zeros = g.binary(Mul, first, second)?;
    let middle = g.binary(Mul, zeros, p)?;
    // log(1) if no step was taken; minus log(a) if the step was up.
    let one = g.constant_like(a, 1.0)?;
    let step = select_below(g, a, 2.0, one, down)?;
    let step = select_below(g, a, 1.0, a, step)?;
    let log = g.unary(UnaryOp::Log, step)?;
    let minus = g.unary(UnaryOp::Neg, log)?;
    let log = select_below(g, a, 1.0, minus, log)?;
    g.binary(Add, middle, log)
}

/// Stirling's series from 8 on; below 8, the series at `a + 5` minus `log(a (a + 1) … (a + 4))`.
fn lgamma_from_3(g: &mut Graph, a: ValueId) -> Built {
    let mut factors = a;
    for k in 1..5 {
        let next = g.binary_scalar(Add, a, f64::from(k))?;
        factors = g.binary(Mul, factors, next)?;
    }
    let one = g.constant_like(a, 1.0)?;
    let factors = select_below(g, a, 8.0, factors, one)?;
    let shifted = g.binary_scalar(Add, a, 5.0)?;
    let z = select_below(g, a, 8.0, shifted, a)?;
    // (z - 1/2) (log z - 1) - 1/2 + log(2π)/2 + series.
    let log = g.unary(UnaryOp::Log, z)?;
    let log = g.binary_scalar(Sub, log, 1.0)?;
    let half = g.binary_scalar(Sub, z, 0.5)?;
    let main = g.binary(Mul, half, log)?;
    let one = g.constant_like(z, 1.0)?;
    let inverse = g.binary(Div, one, z)?;
    let square = g.binary(Mul, inverse, inverse)?;
    let series = polynomial(g, square, STIRLING)?;
    let series = g.binary(Mul, series, inverse)?;
    let series = g.binary_scalar(Add, series, 0.5 * (2.0 * PI).ln() - 0.5)?;
    let stirling = g.binary(Add, main, series)?;
    let less = g.unary(UnaryOp::Log, factors)?;
    g.binary(Sub, stirling, less)
}

pub(super) fn digamma(g: &mut Graph, x: ValueId) -> Built {
    // Reflection for x < 0: digamma(x) = digamma(1 - x) - π / tan πx.
    let mirrored = from(g, 1.0, x)?;
    let y = select_below(g, x, 0.0, mirrored, x)?;
    // Ten steps of digamma(y) = digamma(y + 1) - 1/y, with the sum of 1/(y + k) as one quotient.
    let near = g.binary_scalar(Min, y, 10.0)?;
    let mut bottom = near;
    let mut top = g.constant_like(y, 1.0)?;
    for k in 1..10 {
        let next = g.binary_scalar(Add, near, f64::from(k))?;
        let more = g.binary(Mul, top, next)?;
        top = g.binary(Add, more, bottom)?;
        bottom = g.binary(Mul, bottom, next)?;
    }
    let steps = g.binary(Div, top, bottom)?;
    let zero = g.constant_like(y, 0.0)?;
    let steps = select_below(g, y, 10.0, steps, zero)?;
    let shifted = g.binary_scalar(Add, y, 10.0)?;
    let z = select_below(g, y, 10.0, shifted, y)?;
    let log = g.unary(UnaryOp::Log, z)?;
    let one = g.constant_like(z, 1.0)?;
    let inverse = g.binary(Div, one, z)?;
    let half = g.binary_scalar(Mul, inverse, 0.5)?;
    let square = g.binary(Mul, inverse, inverse)?;
    let series = polynomial(g, square, DERIVED)?;
    let series = g.binary(Mul, series, square)?;
    let series = g.binary(Add, series, half)?;
    let asymptotic = g.binary(Sub, log, series)?;
    let positive = g.binary(Sub, asymptotic, steps)?;

    let r = off_whole(g, x)?;
    let (sin, square) = sin_pi(g, r)?;
    let cos = polynomial(g, square, COS_PI)?;
    let cos = g.binary_scalar(Mul, cos, PI)?;
    let cotangent = g.binary(Div, cos, sin)?;
    let reflected = g.binary(Sub, positive, cotangent)?;
    // A pole at a negative integer, whose two sides differ: NaN.
    let size = g.unary(UnaryOp::Abs, r)?;
    let none = g.constant_like(x, f64::NAN)?;
    let zero = g.constant_like(x, 0.0)?;
    let between = g.compare(Gt, size, zero)?;
    let reflected = g.select(between, reflected, none)?;
    let result = select_below(g, x, 0.0, reflected, positive)?;
    // Minus infinity at 0, infinity at -0, as in PyTorch.
    let at_zero = g.compare(Eq, x, zero)?;
    let minus_one = g.constant_like(x, -1.0)?;
    let pole = g.binary(Div, minus_one, x)?;
    g.select(at_zero, pole, result)
}

/// Independent implementations, against which the formulas are checked.
pub(super) mod reference {
    use std::f64::consts::PI;

    /// Newton's method, on erf in the middle and on the logarithm of erfc in the tails, from an approximate start.
    pub fn erfinv(x: f64) -> f64 {
        let size = x.abs();
        if size.is_nan() || size > 1.0 {
            return f64::NAN;
        }
        if size == 1.0 {
            return x * f64::INFINITY;
        }
        let tail = 1.0 - size;
        // S. Winitzki's approximation, within 0.4 %.
        let log = libm::log1p(-x * x);
        let a = 0.147;
        let half = 2.0 / (PI * a) + log / 2.0;
        let mut y = ((half * half - log / a).sqrt() - half).sqrt();
        for _ in 0..4 {
            let slope = 2.0 / PI.sqrt() * libm::exp(-y * y);
            let step = if size < 0.5 {
                (libm::erf(y) - size) / slope
            } else {
                // d log(erfc(y)) / dy = -slope / erfc(y).
                let q = libm::erfc(y);
                -libm::log(q / tail) * q / slope
            };
            if step.is_finite() {
                y -= step;
            }
        }
        let y = if size < 1e-9 { size * PI.sqrt() / 2.0 } else { y };
        y.copysign(x)
    }

    /// The recurrence up to 30, then five terms of the asymptotic series; negative arguments by reflection.
    pub fn digamma(x: f64) -> f64 {
        if x == 0.0 {
            return (1.0 / -x).signum() * f64::INFINITY;
        }
        if x < 0.0 {
            let r = x - x.round();
            return if r == 0.0 || r.is_nan() { f64::NAN } else { digamma(1.0 - x) - PI / libm::tan(PI * r) };
        }
        let (mut z, mut sum) = (x, 0.0);
        while z < 30.0 {
            sum += 1.0 / z;
            z += 1.0;
        }
        let s = 1.0 / (z * z);
        let series = s * (1.0 / 12.0 - s * (1.0 / 120.0 - s * (1.0 / 252.0 - s * (1.0 / 240.0 - s / 132.0))));
        libm::log(z) - 0.5 / z - series - sum
    }
}
