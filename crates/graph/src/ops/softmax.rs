//! Inference and decomposition of softmax and log-softmax along one axis.
use super::Built;
use crate::{
    BinaryOp, CompareOp, Graph, Op, ReduceOp, Type, UnaryOp, ValueId,
    infer::{axis_len, float},
};

pub(super) fn infer(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let (Op::Softmax { axis } | Op::LogSoftmax { axis }) = op else { return Err("is not a softmax".into()) };
    float(args[0])?;
    axis_len(args[0], *axis)?;
    Ok(args[0].clone())
}

pub(super) fn decompose(g: &mut Graph, op: &Op, args: &[ValueId], _: &Type) -> Built {
    match op {
        Op::Softmax { axis } => softmax(g, args[0], *axis, false),
        Op::LogSoftmax { axis } => log_softmax(g, args[0], *axis),
        _ => Ok(args[0]),
    }
}

/// `safe`: a fully masked row (all minus infinity) gives zeros instead of NaN, as in attention.
pub(super) fn softmax(g: &mut Graph, x: ValueId, axis: usize, safe: bool) -> Built {
    of_rows(g, x, None, axis, safe)
}

/// The softmax of rows with one more element each, whose probability is left out. `sink`: that element, of size 1 along
/// the axis.
pub(super) fn softmax_beside(g: &mut Graph, x: ValueId, sink: ValueId, axis: usize, safe: bool) -> Built {
    of_rows(g, x, Some(sink), axis, safe)
}

fn of_rows(g: &mut Graph, x: ValueId, sink: Option<ValueId>, axis: usize, safe: bool) -> Built {
    if g.shape(x)[axis] == 0 {
        return Ok(x);
    }
    let mut max = g.reduce(ReduceOp::Max, x, [axis])?;
    if let Some(sink) = sink {
        max = g.binary(BinaryOp::Max, max, sink)?;
    }
    let y = g.binary(BinaryOp::Sub, x, max)?;
    let y = g.unary(UnaryOp::Exp, y)?;
    let mut sum = g.reduce(ReduceOp::Sum, y, [axis])?;
    if let Some(sink) = sink {
        let more = g.binary(BinaryOp::Sub, sink, max)?;
        let more = g.unary(UnaryOp::Exp, more)?;
        sum = g.binary(BinaryOp::Add, sum, more)?;
    }
    let y = g.binary(BinaryOp::Div, y, sum)?;
    if !safe {
        return Ok(y);
    }
    let masked = g.constant_like(x, f64::NEG_INFINITY)?;
    let all_masked = g.compare(CompareOp::Eq, max, masked)?;
    let zero = g.constant_like(x, 0.0)?;
    g.select(all_masked, zero, y)
}

/// The logarithm of the sum of the exponentials of rows, of size 1 along the axis, and of one more element each. Minus
/// infinity where all of a row is.
pub(super) fn log_sum_exp(g: &mut Graph, x: ValueId, more: Option<ValueId>, axis: usize) -> Built {
    let mut max = g.reduce(ReduceOp::Max, x, [axis])?;
    if let Some(more) = more {
        max = g.binary(BinaryOp::Max, max, more)?;
    }
    // An infinity must not be subtracted from itself.
    let size = g.unary(UnaryOp::Abs, max)?;
    let (infinity, zero) = (g.constant_like(max, f64::INFINITY)?, g.constant_like(max, 0.0)?);
    let infinite = g.compare(CompareOp::Eq, size, infinity)?;
    let max = g.select(infinite, zero, max)?;
    let y = g.binary(BinaryOp::Sub, x, max)?;
    let y = g.unary(UnaryOp::Exp, y)?;
    let mut sum = g.reduce(ReduceOp::Sum, y, [axis])?;
    if let Some(more) = more {
        let more = g.binary(BinaryOp::Sub, more, max)?;
        let more = g.unary(UnaryOp::Exp, more)?;
        sum = g.binary(BinaryOp::Add, sum, more)?;
    }
    let log = g.unary(UnaryOp::Log, sum)?;
    g.binary(BinaryOp::Add, log, max)
}

fn log_softmax(g: &mut Graph, x: ValueId, axis: usize) -> Built {
    if g.shape(x)[axis] == 0 {
        return Ok(x);
    }
    let max = g.reduce(ReduceOp::Max, x, [axis])?;
    let y = g.binary(BinaryOp::Sub, x, max)?;
    let e = g.unary(UnaryOp::Exp, y)?;
    let sum = g.reduce(ReduceOp::Sum, e, [axis])?;
    let log = g.unary(UnaryOp::Log, sum)?;
    g.binary(BinaryOp::Sub, y, log)
}
