//! Reductions, scans, softmax, losses. Graph reductions keep their axes; a reshape drops them if torch does.
mod losses;
pub mod moments;

use super::{
    Table,
    context::{Ctx, Res, normal_axis},
    pointwise::operand,
    scalars::as_value,
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp, CompareOp, DType, Op, ReduceOp, Scalar, ScanOp, UnaryOp, ValueId};

pub const TABLE: Table = &[
    ("aten::sum", |c, call| summed(c, call, ReduceOp::Sum)),
    ("aten::mean", |c, call| summed(c, call, ReduceOp::Mean)),
    ("aten::nansum", nansum),
    ("aten::prod", prod),
    ("aten::amax", |c, call| over_axes(c, call, ReduceOp::Max)),
    ("aten::amin", |c, call| over_axes(c, call, ReduceOp::Min)),
    ("aten::max", |c, call| extreme(c, call, ReduceOp::Max, ReduceOp::ArgMax, BinaryOp::Max)),
    ("aten::min", |c, call| extreme(c, call, ReduceOp::Min, ReduceOp::ArgMin, BinaryOp::Min)),
    ("aten::argmax", |c, call| arg_extreme(c, call, ReduceOp::ArgMax)),
    ("aten::argmin", |c, call| arg_extreme(c, call, ReduceOp::ArgMin)),
    ("aten::any", |c, call| truth(c, call, ReduceOp::Any)),
    ("aten::all", |c, call| truth(c, call, ReduceOp::All)),
    ("aten::count_nonzero", count_nonzero),
    ("aten::aminmax", aminmax),
    ("aten::nanmean", nanmean),
    ("aten::var", moments::var),
    ("aten::std", moments::std),
    ("aten::var_mean", moments::var_mean),
    ("aten::std_mean", moments::std_mean),
    ("aten::norm", moments::norm),
    ("aten::linalg_vector_norm", moments::vector_norm),
    ("aten::linalg_norm", moments::linalg_norm),
    ("aten::frobenius_norm", moments::frobenius_norm),
    ("aten::dist", moments::dist),
    ("aten::pairwise_distance", moments::pairwise_distance),
    ("aten::cosine_similarity", moments::cosine_similarity),
    ("aten::logsumexp", logsumexp),
    ("aten::softmax", |c, call| softmax(c, call, false)),
    ("aten::_softmax", |c, call| softmax(c, call, false)),
    ("aten::special_softmax", |c, call| softmax(c, call, false)),
    ("aten::_safe_softmax", safe_softmax),
    ("aten::log_softmax", |c, call| softmax(c, call, true)),
    ("aten::_log_softmax", |c, call| softmax(c, call, true)),
    ("aten::special_log_softmax", |c, call| softmax(c, call, true)),
    ("aten::cumsum", |c, call| scan(c, call, ScanOp::Sum)),
    ("aten::cumprod", |c, call| scan(c, call, ScanOp::Prod)),
    ("aten::mse_loss", losses::mse),
    ("aten::l1_loss", losses::l1),
    ("aten::smooth_l1_loss", losses::smooth_l1),
    ("aten::huber_loss", losses::huber),
    ("aten::kl_div", losses::kl_div),
    ("aten::binary_cross_entropy", losses::bce),
    ("aten::binary_cross_entropy_with_logits", losses::bce_with_logits),
    ("aten::nll_loss", losses::nll),
    ("aten::nll_loss_nd", losses::nll),
    ("aten::cross_entropy_loss", losses::cross_entropy),
];

fn one(v: ValueId) -> Res<Vec<ValueId>> {
    Ok(vec![v])
}

/// The axes in argument 1; all axes for the overload without axes, whose argument 1 is the optional dtype.
pub fn axes_or_all(c: &Ctx, call: &Call, x: ValueId) -> Res<Vec<usize>> {
    let rank = c.rank(x);
    match c.arg(call, 1) {
        Arg::Ints(_) | Arg::List(_) => c.axes(call, 1, rank),
        Arg::Int(_) if call.args.len() > 2 => c.axes(call, 1, rank),
        _ => Ok((0..rank).collect()),
    }
}

/// Reduces `x`, then casts and reshapes to the result's type.
pub fn finish(c: &mut Ctx, call: &Call, op: ReduceOp, x: ValueId, axes: &[usize]) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let r = c.reduce(op, x, axes)?;
    let r = c.cast(r, ty.dtype)?;
    one(c.reshape(r, &ty.shape)?)
}

/// `(x, dtype?)` or `(x, axes?, keepdim, dtype?)`: `x` is cast to the result's dtype before the reduction.
fn summed(c: &mut Ctx, call: &Call, op: ReduceOp) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let x = c.cast(x, c.out(call, 0)?.dtype)?;
    let axes = axes_or_all(c, call, x)?;
    finish(c, call, op, x, &axes)
}

fn nansum(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axes = axes_or_all(c, call, x)?;
    let zero = c.constant(c.dtype(x), Scalar::Int(0));
    let nan = c.unary(UnaryOp::IsNan, x)?;
    let x = c.select(nan, zero, x)?;
    let x = c.cast(x, c.out(call, 0)?.dtype)?;
    finish(c, call, ReduceOp::Sum, x, &axes)
}

/// `(x, dtype?)` or `(x, axis, keepdim, dtype?)`.
fn prod(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let x = c.cast(x, c.out(call, 0)?.dtype)?;
    let along_one = call.args.len() > 2 && c.rank(x) > 0;
    let axes = if along_one { vec![c.axis(call, 1, c.rank(x))?] } else { (0..c.rank(x)).collect() };
    finish(c, call, ReduceOp::Prod, x, &axes)
}

fn over_axes(c: &mut Ctx, call: &Call, op: ReduceOp) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axes = c.axes(call, 1, c.rank(x))?;
    finish(c, call, op, x, &axes)
}

/// `max(x)`, `max(x, other)`, or `max(x, axis, keepdim)` with values and indices.
fn extreme(c: &mut Ctx, call: &Call, op: ReduceOp, arg: ReduceOp, pair: BinaryOp) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    match call.args.len() {
        1 => {
            let axes: Vec<usize> = (0..c.rank(x)).collect();
            finish(c, call, op, x, &axes)
        }
        2 => {
            let dtype = c.out(call, 0)?.dtype;
            let (a, b) = (operand(c, call, 0)?, operand(c, call, 1)?);
            let (a, b) = (as_value(c, a, dtype)?, as_value(c, b, dtype)?);
            one(c.binary(pair, a, b)?)
        }
        _ if c.rank(x) == 0 => {
            let zero = c.constant(DType::I64, Scalar::Int(0));
            Ok(vec![x, zero])
        }
        _ => {
            let axis = c.axis(call, 1, c.rank(x))?;
            let (values, indices) = (c.out(call, 0)?, c.out(call, 1)?);
            let v = c.reduce(op, x, &[axis])?;
            let i = c.reduce(arg, x, &[axis])?;
            Ok(vec![c.reshape(v, &values.shape)?, c.reshape(i, &indices.shape)?])
        }
    }
}

/// Without an axis, the position in the flattened tensor.
fn arg_extreme(c: &mut Ctx, call: &Call, op: ReduceOp) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    match c.opt_int(call, 1)? {
        Some(axis) if c.rank(x) > 0 => {
            let axis = normal_axis(axis, c.rank(x))?;
            finish(c, call, op, x, &[axis])
        }
        _ => {
            let n = c.ty(x).count();
            let flat = c.reshape(x, &[n])?;
            finish(c, call, op, flat, &[0])
        }
    }
}

fn truth(c: &mut Ctx, call: &Call, op: ReduceOp) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axes = axes_or_all(c, call, x)?;
    let x = c.cast(x, DType::Bool)?;
    finish(c, call, op, x, &axes)
}

/// `m + log(sum(exp(x - m)))`, with m the maximum, or 0 if that is infinite.
fn logsumexp(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let axes = c.axes(call, 1, c.rank(x))?;
    let r = c.in_compute(x, ty.dtype, |c, x| {
        let m = c.reduce(ReduceOp::Max, x, &axes)?;
        let size = c.unary(UnaryOp::Abs, m)?;
        let infinite = c.compare_with(CompareOp::Eq, size, f64::INFINITY)?;
        let zero = c.float_const(c.dtype(m), 0.0);
        let m = c.select(infinite, zero, m)?;
        let d = c.binary(BinaryOp::Sub, x, m)?;
        let e = c.unary(UnaryOp::Exp, d)?;
        let s = c.reduce(ReduceOp::Sum, e, &axes)?;
        let l = c.unary(UnaryOp::Log, s)?;
        c.binary(BinaryOp::Add, l, m)
    })?;
    one(c.reshape(r, &ty.shape)?)
}

fn softmax(c: &mut Ctx, call: &Call, log: bool) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let mut x = c.cast(x, ty.dtype)?;
    if ty.rank() == 0 {
        x = c.reshape(x, &[1])?;
    }
    let axis = c.axis(call, 1, c.rank(x))?;
    let r = c.node(if log { Op::LogSoftmax { axis } } else { Op::Softmax { axis } }, &[x])?;
    one(c.reshape(r, &ty.shape)?)
}

/// Softmax that is zero, not NaN, where all of a row is minus infinity.
fn safe_softmax(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let given = c.tensor(call, 0)?;
    let x = c.cast(given, c.out(call, 0)?.dtype)?;
    let [plain] = softmax(c, call, false)?[..] else { return Err("a softmax of several results".into()) };
    let axes: Vec<usize> = if c.rank(x) == 0 { vec![] } else { vec![c.axis(call, 1, c.rank(x))?] };
    let masked = c.compare_with(CompareOp::Eq, x, f64::NEG_INFINITY)?;
    let blind = c.reduce(ReduceOp::All, masked, &axes)?;
    let zero = c.float_const(c.dtype(x), 0.0);
    one(c.select(blind, zero, plain)?)
}

/// `(x, axis?)` or `(x, axes)`.
fn count_nonzero(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let axes = if c.arg(call, 1) == &Arg::None { (0..c.rank(x)).collect() } else { c.axes(call, 1, c.rank(x))? };
    let some = c.cast(x, DType::Bool)?;
    let some = c.cast(some, DType::I64)?;
    finish(c, call, ReduceOp::Sum, some, &axes)
}

/// `(x, axis?, keepdim)`.
fn aminmax(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let axes = c.axes(call, 1, c.rank(x))?;
    let (least, most) = (c.reduce(ReduceOp::Min, x, &axes)?, c.reduce(ReduceOp::Max, x, &axes)?);
    Ok(vec![c.reshape(least, &ty.shape)?, c.reshape(most, &ty.shape)?])
}

/// The mean of what is not NaN.
fn nanmean(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let axes = c.axes(call, 1, c.rank(x))?;
    let r = c.in_compute(x, ty.dtype, |c, x| {
        let nan = c.unary(UnaryOp::IsNan, x)?;
        let (zero, unit) = (c.float_const(c.dtype(x), 0.0), c.float_const(c.dtype(x), 1.0));
        let (value, count) = (c.select(nan, zero, x)?, c.select(nan, zero, unit)?);
        let count = c.broadcast(count, &c.shape(x))?;
        let (sum, count) = (c.reduce(ReduceOp::Sum, value, &axes)?, c.reduce(ReduceOp::Sum, count, &axes)?);
        c.binary(BinaryOp::Div, sum, count)
    })?;
    one(c.reshape(r, &ty.shape)?)
}

fn scan(c: &mut Ctx, call: &Call, op: ScanOp) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let x = c.cast(x, c.out(call, 0)?.dtype)?;
    if c.rank(x) == 0 {
        return one(x);
    }
    let axis = c.axis(call, 1, c.rank(x))?;
    one(c.node(Op::Scan { op, axis }, &[x])?)
}
