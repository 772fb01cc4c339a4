//! Special functions by their formulas, in f64: erfinv, lgamma, digamma.
//!
//! Polynomials are near-minimax fits (Chebyshev, at 60 digits) of the functions named beside them; their errors are below that of
//! rounding. The asymptotic series are Stirling's, with Bernoulli numbers (DLMF 5.11.1 and 5.11.2); the reflections are DLMF 5.5.3
//! and 5.5.4. `erfinv(x) / x` is smooth in `w = -log(1 - x²)`, as M. Giles found ("Approximating the erfinv function", 2010).
use super::Built;
use crate::{BinaryOp, CompareOp, Graph, UnaryOp, ValueId};
use BinaryOp::{Add, Div, Min, Mul, Sub};
use CompareOp::{Eq, Gt, Lt};
use std::f64::consts::PI;

/// `erfinv(x) / x` for w from 0 to 6.25, in w - 3.125.
const CENTRE: &[f64] = &[
    -2.362369698566107e-22,
    -1.6787330615256773e-19,
    1.1027771591500033e-18,
    1.1125794759379464e-17,
    -1.290702354613073e-16,
    2.166994626283574e-17,
    6.581955305929239e-15,
    -4.0554139746886e-14,
    -8.106594456438496e-14,
    2.6335724924608484e-12,
    -1.2977505202014966e-11,
    -5.4154417754696635e-11,
    1.0512202440121784e-09,
    -4.112633104297614e-09,
    -2.907038666019143e-08,
    4.2347877672780653e-07,
    -1.3654691796592068e-06,
    -1.3882523361276876e-05,
    0.0001867342080212427,
    -0.0007407025341669402,
    -0.006033670871427011,
    0.2401581824255897,
    1.6536545626831027,
];
/// For w from 6.25 to 16, in sqrt(w) - 3.25.
const TAIL: &[f64] = &[
    -3.831039946072411e-10,
    9.071950571029922e-08,
    -2.6860975725571463e-07,
    1.832399988132858e-08,
    1.4958263152984917e-06,
    -4.013946398190292e-06,
    2.9273722115986924e-06,
    1.2475343474376931e-05,
    -4.731952918337189e-05,
    6.828484052292924e-05,
    2.4031363245440546e-05,
    -0.00035503751863069763,
    0.0009532893521118177,
    -0.0016882755561681802,
    0.0024914420976198813,
    -0.0037512085075638536,
    0.0053709145535581985,
    1.0052589676941592,
    3.0838856104922208,
];
/// For w from 16 to 37.5 (an f64 next to 1), in sqrt(w) - 5.
const FAR: &[f64] = &[
    9.115478190206694e-12,
    -2.580512383950455e-10,
    1.361572376701482e-09,
    -3.780803322904699e-09,
    7.855054796748842e-09,
    -1.497193257706563e-08,
    2.8943764009019073e-08,
    -6.770380047135616e-08,
    2.291012848856686e-07,
    -9.929856908313493e-07,
    4.5260378698262734e-06,
    -1.968177757015876e-05,
    7.5995280138691e-05,
    -0.00021503011934177323,
    -0.0001387193184848061,
    1.0103004648645353,
    4.849906401408585,
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
/// What `x` is away from the nearest whole number: from -1/2 to 1/2.
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
    // lgamma(x) = log(π / |sin πx|) - log(-x) - lgamma(-x).
    let r = off_whole(g, a)?;
    let (sin, _) = sin_pi(g, r)?;
    let sin = g.unary(UnaryOp::Abs, sin)?;
    let pi = g.constant_like(x, PI)?;
    let quotient = g.binary(Div, pi, sin)?;
    let log = g.unary(UnaryOp::Log, quotient)?;
    let size = g.unary(UnaryOp::Log, a)?;
    let reflected = g.binary(Sub, log, size)?;
    let reflected = g.binary(Sub, reflected, positive)?;
    let negative = select_below(g, x, 0.0, reflected, positive)?;
    // All numbers from 2^52 on are whole; so are the infinities.
    let whole = g.constant_like(x, f64::INFINITY)?;
    select_below(g, x, -4503599627370496.0, whole, negative)
}

/// From 1 to 2 by a polynomial with the function's zeros; elsewhere by lgamma(y + 1) = lgamma(y) + log(y).
fn lgamma_below_3(g: &mut Graph, a: ValueId) -> Built {
    let (up, down) = (g.binary_scalar(Add, a, 1.0)?, g.binary_scalar(Sub, a, 1.0)?);
    let upper = select_below(g, a, 2.0, a, down)?;
    let y = select_below(g, a, 1.0, up, upper)?;
    let centred = g.binary_scalar(Sub, y, 1.5)?;
    let p = polynomial(g, centred, BETWEEN_ZEROS)?;
    let (first, second) = (g.binary_scalar(Sub, y, 1.0)?, g.binary_scalar(Sub, y, 2.0)?);
    let zeros = g.binary(Mul, first, second)?;
    let middle = g.binary(Mul, zeros, p)?;
    // log(1) where there is no step; minus log(a) where the step is up.
    let one = g.constant_like(a, 1.0)?;
    let step = select_below(g, a, 2.0, one, down)?;
    let step = select_below(g, a, 1.0, a, step)?;
    let log = g.unary(UnaryOp::Log, step)?;
    let minus = g.unary(UnaryOp::Neg, log)?;
    let log = select_below(g, a, 1.0, minus, log)?;
    g.binary(Add, middle, log)
}

/// Stirling's series from 8 on; below, of `a + 5`, less the logarithm of what lies between.
fn lgamma_from_3(g: &mut Graph, a: ValueId) -> Built {
    let mut between = a;
    for k in 1..5 {
        let next = g.binary_scalar(Add, a, f64::from(k))?;
        between = g.binary(Mul, between, next)?;
    }
    let one = g.constant_like(a, 1.0)?;
    let between = select_below(g, a, 8.0, between, one)?;
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
    let less = g.unary(UnaryOp::Log, between)?;
    g.binary(Sub, stirling, less)
}

pub(super) fn digamma(g: &mut Graph, x: ValueId) -> Built {
    // digamma(x) = digamma(1 - x) - π / tan πx.
    let mirrored = from(g, 1.0, x)?;
    let y = select_below(g, x, 0.0, mirrored, x)?;
    // Ten steps of digamma(y) = digamma(y + 1) - 1/y: the sum of 1/(y + k) as one quotient.
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
    // No limit at a negative whole number.
    let size = g.unary(UnaryOp::Abs, r)?;
    let none = g.constant_like(x, f64::NAN)?;
    let zero = g.constant_like(x, 0.0)?;
    let between = g.compare(Gt, size, zero)?;
    let reflected = g.select(between, reflected, none)?;
    let result = select_below(g, x, 0.0, reflected, positive)?;
    // Minus infinity at 0, infinity at -0, as PyTorch.
    let at_zero = g.compare(Eq, x, zero)?;
    let minus_one = g.constant_like(x, -1.0)?;
    let pole = g.binary(Div, minus_one, x)?;
    g.select(at_zero, pole, result)
}

/// The same functions by other ways: what the formulas are checked against.
pub(super) mod reference {
    use std::f64::consts::PI;

    /// Newton's method on erf in the middle and on the logarithm of erfc in the tails, from a rough start.
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

    /// The recurrence up to 30, then the series, which needs five terms there; reflected by the tangent.
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
