//! Losses: a pointwise expression, then no reduction, its mean or its sum.
use super::one;
use crate::{
    convert::context::{Ctx, Res},
    raw::{Arg, Call},
};
use kiln_graph::{BinaryOp, CompareOp, Op, ReduceOp, Scalar, UnaryOp, ValueId};

/// `at::Reduction`'s numbers.
const MEAN: i64 = 1;
const SUM: i64 = 2;

fn reduced(c: &mut Ctx, x: ValueId, kind: i64) -> Res<Vec<ValueId>> {
    let op = match kind {
        MEAN => ReduceOp::Mean,
        SUM => ReduceOp::Sum,
        _ => return one(x),
    };
    let axes: Vec<usize> = (0..c.rank(x)).collect();
    let r = c.reduce(op, x, &axes)?;
    one(c.reshape(r, &[])?)
}

fn difference(c: &mut Ctx, call: &Call) -> Res<ValueId> {
    let (x, y) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    c.binary(BinaryOp::Sub, x, y)
}

pub fn mse(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let d = difference(c, call)?;
    let dd = c.binary(BinaryOp::Mul, d, d)?;
    reduced(c, dd, c.int(call, 2)?)
}

pub fn l1(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let d = difference(c, call)?;
    let size = c.unary(UnaryOp::Abs, d)?;
    reduced(c, size, c.int(call, 2)?)
}

/// `d² / (2 beta)` for `|d| < beta`, else `|d| - beta / 2`.
pub fn smooth_l1(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let beta = c.float(call, 3)?;
    if beta == 0.0 {
        return l1(c, call);
    }
    let d = difference(c, call)?;
    let size = c.unary(UnaryOp::Abs, d)?;
    let near = c.with(BinaryOp::Mul, size, 0.5)?;
    let near = c.binary(BinaryOp::Mul, near, size)?;
    let near = c.with(BinaryOp::Div, near, beta)?;
    let far = c.with(BinaryOp::Sub, size, 0.5 * beta)?;
    let small = c.compare_with(CompareOp::Lt, size, beta)?;
    let r = c.select(small, near, far)?;
    reduced(c, r, c.int(call, 2)?)
}

/// `d² / 2` for `|d| < delta`, else `delta (|d| - delta / 2)`.
pub fn huber(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let delta = c.float(call, 3)?;
    let d = difference(c, call)?;
    let size = c.unary(UnaryOp::Abs, d)?;
    let near = c.with(BinaryOp::Mul, size, 0.5)?;
    let near = c.binary(BinaryOp::Mul, near, size)?;
    let far = c.with(BinaryOp::Sub, size, 0.5 * delta)?;
    let far = c.with(BinaryOp::Mul, far, delta)?;
    let small = c.compare_with(CompareOp::Lt, size, delta)?;
    let r = c.select(small, near, far)?;
    reduced(c, r, c.int(call, 2)?)
}

/// `(x, t, weight?, reduction)`: `-(t log x + (1 - t) log(1 - x))`, with logarithms of at least -100.
pub fn bce(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    const LEAST: f64 = -100.0;
    let (x, t, weight) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.opt_tensor(call, 2)?);
    let dtype = c.dtype(x);
    let work = dtype.compute();
    let (x, t) = (c.cast(x, work)?, c.cast(t, work)?);
    let log = c.unary(UnaryOp::Log, x)?;
    let log = c.with(BinaryOp::Max, log, LEAST)?;
    let minus = c.unary(UnaryOp::Neg, x)?;
    let other = c.unary(UnaryOp::Log1p, minus)?;
    let other = c.with(BinaryOp::Max, other, LEAST)?;
    // (t - 1) log(1 - x) - t log x.
    let rest = c.with(BinaryOp::Sub, t, 1.0)?;
    let (rest, own) = (c.binary(BinaryOp::Mul, rest, other)?, c.binary(BinaryOp::Mul, t, log)?);
    let mut r = c.binary(BinaryOp::Sub, rest, own)?;
    if let Some(weight) = weight {
        let weight = c.cast(weight, work)?;
        r = c.binary(BinaryOp::Mul, r, weight)?;
    }
    let r = c.cast(r, dtype)?;
    reduced(c, r, c.int(call, 3)?)
}

/// `t (log t - x)`, or `exp(t) (t - x)` for logarithmic targets.
pub fn kl_div(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, t) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let r = if c.bool(call, 3)? {
        let (e, d) = (c.unary(UnaryOp::Exp, t)?, c.binary(BinaryOp::Sub, t, x)?);
        c.binary(BinaryOp::Mul, e, d)?
    } else {
        let log = c.unary(UnaryOp::Log, t)?;
        let entropy = c.binary(BinaryOp::Mul, t, log)?;
        let zero = c.constant(c.dtype(t), Scalar::Int(0));
        let none = c.compare(CompareOp::Eq, t, zero)?;
        let entropy = c.select(none, zero, entropy)?;
        let cross = c.binary(BinaryOp::Mul, t, x)?;
        c.binary(BinaryOp::Sub, entropy, cross)?
    };
    reduced(c, r, c.int(call, 2)?)
}

/// `(1 - y) x - log_sigmoid(x)`.
pub fn bce_with_logits(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    if *c.arg(call, 2) != Arg::None || *c.arg(call, 3) != Arg::None {
        return Err("binary cross entropy with weights".into());
    }
    let (x, y) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let unit = c.float_const(c.dtype(y), 1.0);
    let rest = c.binary(BinaryOp::Sub, unit, y)?;
    let left = c.binary(BinaryOp::Mul, rest, x)?;
    let log = c.unary(UnaryOp::LogSigmoid, x)?;
    let r = c.binary(BinaryOp::Sub, left, log)?;
    reduced(c, r, c.int(call, 4)?)
}

/// The negative log-likelihood of each row's class, reduced by `kind`; rows whose class is `ignore` do not count.
fn picked(c: &mut Ctx, log: ValueId, classes: ValueId, kind: i64, ignore: i64) -> Res<Vec<ValueId>> {
    let [n, _] = c.shape(log)[..] else { return Err("a loss over other than rows of classes".into()) };
    let skip = c.constant(c.dtype(classes), Scalar::Int(ignore));
    let skipped = c.compare(CompareOp::Eq, classes, skip)?;
    let zero_class = c.constant(c.dtype(classes), Scalar::Int(0));
    let index = c.select(skipped, zero_class, classes)?;
    let index = c.reshape(index, &[n, 1])?;
    let at = c.node(Op::Gather { axis: 1 }, &[log, index])?;
    let at = c.reshape(at, &[n])?;
    let loss = c.unary(UnaryOp::Neg, at)?;
    let zero = c.float_const(c.dtype(log), 0.0);
    let loss = c.select(skipped, zero, loss)?;
    if kind != MEAN {
        return reduced(c, loss, kind);
    }
    let counted = c.unary(UnaryOp::Not, skipped)?;
    let counted = c.cast(counted, c.dtype(log))?;
    let (sum, count) = (c.reduce(ReduceOp::Sum, loss, &[0])?, c.reduce(ReduceOp::Sum, counted, &[0])?);
    let mean = c.binary(BinaryOp::Div, sum, count)?;
    one(c.reshape(mean, &[])?)
}

pub fn nll(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    if *c.arg(call, 2) != Arg::None {
        return Err("a loss with class weights".into());
    }
    let (log, classes) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    picked(c, log, classes, c.int(call, 3)?, c.int(call, 4)?)
}

pub fn cross_entropy(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, classes) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    if *c.arg(call, 2) != Arg::None || c.float(call, 5)? != 0.0 || c.dtype(classes).is_float() {
        return Err("cross entropy with weights, smoothing or class probabilities".into());
    }
    if c.rank(x) != 2 {
        return Err("a loss over other than rows of classes".into());
    }
    let log = c.node(Op::LogSoftmax { axis: 1 }, &[x])?;
    picked(c, log, classes, c.int(call, 3)?, c.int(call, 4)?)
}
