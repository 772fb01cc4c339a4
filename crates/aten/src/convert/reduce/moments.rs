//! Variances, p-norms and distances, computed in f32 for narrower floats.
use super::{axes_or_all, one};
use crate::{
    convert::context::{Ctx, Res},
    raw::{Arg, Call},
};
use kiln_graph::{BinaryOp, CompareOp, ReduceOp, Scalar, UnaryOp, ValueId};

/// Mean and variance, the latter with divisor `n - correction`; the axes keep size 1.
fn moments(c: &mut Ctx, x: ValueId, axes: &[usize], correction: f64) -> Res<(ValueId, ValueId)> {
    let n = axes.iter().map(|a| c.size(x, *a)).product::<Res<usize>>()?;
    let mean = c.reduce(ReduceOp::Mean, x, axes)?;
    let d = c.binary(BinaryOp::Sub, x, mean)?;
    let dd = c.binary(BinaryOp::Mul, d, d)?;
    let sum = c.reduce(ReduceOp::Sum, dd, axes)?;
    let var = c.with(BinaryOp::Div, sum, (n as f64 - correction).max(0.0))?;
    Ok((mean, var))
}

/// Axes and correction from `(x, unbiased)`, `(x, axes?, unbiased, keepdim)` or `(x, axes?, correction?, keepdim)`.
fn arguments(c: &Ctx, call: &Call, x: ValueId) -> Res<(Vec<usize>, f64)> {
    if call.args.len() == 2 {
        return Ok(((0..c.rank(x)).collect(), f64::from(u8::from(c.bool(call, 1)?))));
    }
    let correction = c.opt_scalar(call, 2)?.unwrap_or(Scalar::Int(1)).as_f64();
    Ok((c.axes(call, 1, c.rank(x))?, correction))
}

/// The results of `var`, or of `std` if `root`; followed by the mean if `mean`.
fn spread(c: &mut Ctx, call: &Call, root: bool, mean: bool) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let (axes, correction) = arguments(c, call, x)?;
    let wide = c.cast(x, ty.dtype.compute())?;
    let (m, mut v) = moments(c, wide, &axes, correction)?;
    if root {
        v = c.unary(UnaryOp::Sqrt, v)?;
    }
    let mut results = vec![];
    for r in if mean { vec![v, m] } else { vec![v] } {
        let r = c.cast(r, ty.dtype)?;
        results.push(c.reshape(r, &ty.shape)?);
    }
    Ok(results)
}

pub fn var(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    spread(c, call, false, false)
}
pub fn std(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    spread(c, call, true, false)
}
pub fn var_mean(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    spread(c, call, false, true)
}
pub fn std_mean(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    spread(c, call, true, true)
}

/// The p-norm over `axes`, which keep size 1.
pub fn p_norm(c: &mut Ctx, x: ValueId, p: f64, axes: &[usize]) -> Res<ValueId> {
    let size = c.unary(UnaryOp::Abs, x)?;
    if p == f64::INFINITY {
        c.reduce(ReduceOp::Max, size, axes)
    } else if p == f64::NEG_INFINITY {
        c.reduce(ReduceOp::Min, size, axes)
    } else if p == 0.0 {
        let some = c.compare_with(CompareOp::Ne, x, 0.0)?;
        let some = c.cast(some, c.dtype(x))?;
        c.reduce(ReduceOp::Sum, some, axes)
    } else if p == 1.0 {
        c.reduce(ReduceOp::Sum, size, axes)
    } else if p == 2.0 {
        let xx = c.binary(BinaryOp::Mul, x, x)?;
        let s = c.reduce(ReduceOp::Sum, xx, axes)?;
        c.unary(UnaryOp::Sqrt, s)
    } else {
        let powers = c.with(BinaryOp::Pow, size, p)?;
        let s = c.reduce(ReduceOp::Sum, powers, axes)?;
        c.with(BinaryOp::Pow, s, 1.0 / p)
    }
}

fn norm_of(c: &mut Ctx, call: &Call, x: ValueId, p: f64, axes: &[usize]) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let r = c.in_compute(x, ty.dtype, |c, x| p_norm(c, x, p, axes))?;
    one(c.reshape(r, &ty.shape)?)
}

/// `(x, p)`, `(x, p?, axes, keepdim, …)`, `(x, p?, dtype)`.
pub fn norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let p = c.opt_scalar(call, 1)?.map_or(2.0, Scalar::as_f64);
    let axes = match c.arg(call, 2) {
        Arg::Ints(_) | Arg::List(_) => c.axes(call, 2, c.rank(x))?,
        _ => (0..c.rank(x)).collect(),
    };
    norm_of(c, call, x, p, &axes)
}

/// `(x, p, axes?, keepdim, dtype?)`.
pub fn vector_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, p) = (c.tensor(call, 0)?, c.float(call, 1)?);
    let axes = c.axes(call, 2, c.rank(x))?;
    norm_of(c, call, x, p, &axes)
}

/// Without an order, the 2-norm of all elements. Matrix norms fall back to libtorch.
pub fn linalg_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axes = c.axes(call, 2, c.rank(x))?;
    match c.arg(call, 1) {
        Arg::None => norm_of(c, call, x, 2.0, &axes),
        Arg::Str(_) => Err("a matrix norm".into()),
        _ if axes.len() == 1 => norm_of(c, call, x, c.float(call, 1)?, &axes),
        _ => Err("a matrix norm".into()),
    }
}

pub fn frobenius_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axes = axes_or_all(c, call, x)?;
    norm_of(c, call, x, 2.0, &axes)
}

/// `(a, b, p)`: the p-norm of all differences.
pub fn dist(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, p) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.float(call, 2)?);
    let d = c.binary(BinaryOp::Sub, a, b)?;
    let axes: Vec<usize> = (0..c.rank(d)).collect();
    norm_of(c, call, d, p, &axes)
}

/// `norm(a - b + eps)` over the last axis.
pub fn pairwise_distance(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let (p, eps) = (c.float(call, 2)?, c.float(call, 3)?);
    let d = c.binary(BinaryOp::Sub, a, b)?;
    let d = c.with(BinaryOp::Add, d, eps)?;
    let last = c.last_axis(d)?;
    let r = c.in_compute(d, ty.dtype, |c, d| p_norm(c, d, p, &[last]))?;
    one(c.reshape(r, &ty.shape)?)
}

/// Divides each operand by its own norm (at least eps), multiplies, and sums.
pub fn cosine_similarity(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let eps = c.float(call, 3)?;
    let rank = c.rank(a).max(c.rank(b));
    let axis = c.axis(call, 2, rank)?;
    if c.rank(a) != c.rank(b) {
        return Err("operands of different rank".into());
    }
    let unit = |c: &mut Ctx, x| {
        let n = p_norm(c, x, 2.0, &[axis])?;
        let n = c.with(BinaryOp::Max, n, eps)?;
        c.binary(BinaryOp::Div, x, n)
    };
    let work = ty.dtype.compute();
    let (a, b) = (c.cast(a, work)?, c.cast(b, work)?);
    // Norms are over the broadcast length of the axis.
    let [na, nb] = [a, b].map(|x| c.shape(x).get(axis).copied().unwrap_or(1));
    let along = |c: &mut Ctx, x, n| {
        let mut shape = c.shape(x);
        *shape.get_mut(axis).ok_or("cosine_similarity of rank 0")? = n;
        c.broadcast(x, &shape)
    };
    let (a, b) = (along(c, a, if na == 1 { nb } else { na })?, along(c, b, if nb == 1 { na } else { nb })?);
    let (a, b) = (unit(c, a)?, unit(c, b)?);
    let product = c.binary(BinaryOp::Mul, a, b)?;
    let r = c.reduce(ReduceOp::Sum, product, &[axis])?;
    let r = c.cast(r, ty.dtype)?;
    one(c.reshape(r, &ty.shape)?)
}
