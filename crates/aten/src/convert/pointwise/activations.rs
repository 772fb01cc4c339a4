//! Activations. Those without an op of their own are composed of primitives, in f32 for narrower floats, and rounded
//! once.
use super::{one, operand};
use crate::{
    convert::{
        context::{Ctx, Res, along},
        scalars::as_value,
    },
    raw::{Arg, Call},
};
use kiln_graph::{BinaryOp, CompareOp, UnaryOp, ValueId};

pub fn gelu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let tanh = matches!(c.arg(call, 1), Arg::Str(s) if s == "tanh");
    one(c.unary(if tanh { UnaryOp::GeluTanh } else { UnaryOp::GeluErf }, x)?)
}

/// `log1p(exp(beta x)) / beta`; x where `beta x` exceeds the threshold.
pub fn softplus(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let (beta, threshold) = (c.float(call, 1)?, c.float(call, 2)?);
    if beta == 1.0 && threshold == 20.0 {
        return one(c.unary(UnaryOp::Softplus, x)?);
    }
    one(c.in_compute(x, c.dtype(x), |c, x| {
        let bx = c.with(BinaryOp::Mul, x, beta)?;
        let e = c.unary(UnaryOp::Exp, bx)?;
        let l = c.unary(UnaryOp::Log1p, e)?;
        let l = c.with(BinaryOp::Div, l, beta)?;
        let large = c.compare_with(CompareOp::Gt, bx, threshold)?;
        c.select(large, x, l)
    })?)
}

/// `min(max(x, lo), hi)`. `lo` and `hi` are argument positions; each bound is a number, a tensor, or missing.
fn bounded(c: &mut Ctx, call: &Call, lo: Option<usize>, hi: Option<usize>) -> Res<Vec<ValueId>> {
    let dtype = c.out(call, 0)?.dtype;
    let x = c.tensor(call, 0)?;
    let mut r = c.cast(x, dtype)?;
    for (at, op) in [(lo, BinaryOp::Max), (hi, BinaryOp::Min)] {
        if let Some(at) = at
            && *c.arg(call, at) != Arg::None
        {
            let bound = operand(c, call, at)?;
            let bound = as_value(c, bound, dtype)?;
            r = c.binary(op, r, bound)?;
        }
    }
    one(r)
}

pub fn clamp(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    bounded(c, call, Some(1), Some(2))
}

pub fn clamp_min(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    bounded(c, call, Some(1), None)
}

pub fn clamp_max(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    bounded(c, call, None, Some(1))
}

pub fn relu6(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let low = c.with(BinaryOp::Max, x, 0.0)?;
    one(c.with(BinaryOp::Min, low, 6.0)?)
}

fn elu_with(c: &mut Ctx, call: &Call, alpha: f64, scale: f64, input_scale: f64) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    one(c.in_compute(x, c.dtype(x), |c, x| {
        let inner = c.with(BinaryOp::Mul, x, input_scale)?;
        let e = c.unary(UnaryOp::Expm1, inner)?;
        let low = c.with(BinaryOp::Mul, e, alpha * scale)?;
        let high = c.with(BinaryOp::Mul, x, scale)?;
        let negative = c.compare_with(CompareOp::Le, x, 0.0)?;
        c.select(negative, low, high)
    })?)
}

pub fn elu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    elu_with(c, call, c.float(call, 1)?, c.float(call, 2)?, c.float(call, 3)?)
}

pub fn celu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let alpha = c.float(call, 1)?;
    elu_with(c, call, alpha, 1.0, 1.0 / alpha)
}

/// Klambauer et al., "Self-normalizing neural networks" (2017): the fixed alpha and scale.
pub fn selu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    elu_with(c, call, 1.673_263_242_354_377_2, 1.050_700_987_355_480_5, 1.0)
}

pub fn leaky_relu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, slope) = (c.tensor(call, 0)?, c.float(call, 1)?);
    one(c.in_compute(x, c.dtype(x), |c, x| {
        let low = c.with(BinaryOp::Mul, x, slope)?;
        let positive = c.compare_with(CompareOp::Gt, x, 0.0)?;
        c.select(positive, x, low)
    })?)
}

/// Slopes apply to axis 1.
pub fn prelu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, w) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let slopes: usize = c.shape(w).iter().product();
    let shape = match c.rank(w) {
        1 if slopes > 1 => along(c.rank(x), 1, slopes)?,
        0 | 1 => vec![1; c.rank(x)],
        _ => c.shape(w),
    };
    let w = c.reshape(w, &shape)?;
    one(c.in_compute(x, c.dtype(x), |c, x| {
        let w = c.cast(w, c.dtype(x))?;
        let low = c.binary(BinaryOp::Mul, x, w)?;
        let positive = c.compare_with(CompareOp::Gt, x, 0.0)?;
        c.select(positive, x, low)
    })?)
}

pub fn hardshrink(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, limit) = (c.tensor(call, 0)?, c.float(call, 1)?);
    one(c.in_compute(x, c.dtype(x), |c, x| {
        let (above, below) = (c.compare_with(CompareOp::Ge, x, -limit)?, c.compare_with(CompareOp::Le, x, limit)?);
        let inside = c.binary(BinaryOp::And, above, below)?;
        let zero = c.float_const(c.dtype(x), 0.0);
        c.select(inside, zero, x)
    })?)
}

pub fn softshrink(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, limit) = (c.tensor(call, 0)?, c.float(call, 1)?);
    one(c.in_compute(x, c.dtype(x), |c, x| {
        let (down, up) = (c.with(BinaryOp::Sub, x, limit)?, c.with(BinaryOp::Add, x, limit)?);
        let middle = c.with(BinaryOp::Mul, x, 0.0)?;
        let low = c.compare_with(CompareOp::Lt, x, -limit)?;
        let r = c.select(low, up, middle)?;
        let high = c.compare_with(CompareOp::Gt, x, limit)?;
        c.select(high, down, r)
    })?)
}

/// `value` where `x <= threshold`.
pub fn threshold(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, limit, value) = (c.tensor(call, 0)?, c.float(call, 1)?, c.scalar(call, 2)?);
    let value = c.constant(c.dtype(x), value);
    let low = c.compare_with(CompareOp::Le, x, limit)?;
    one(c.select(low, value, x)?)
}

/// First half times the sigmoid of the second.
pub fn glu(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axis = c.axis(call, 1, c.rank(x))?;
    let half = c.size(x, axis)? / 2;
    let (a, b) = (c.slice(x, axis, 0, half, 1)?, c.slice(x, axis, half, half, 1)?);
    let gate = c.unary(UnaryOp::Sigmoid, b)?;
    one(c.binary(BinaryOp::Mul, a, gate)?)
}
