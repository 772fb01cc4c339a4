//! Softmax, norms, linear and attention in primitives.
use super::{Built, normalised, rsqrt_eps};
use crate::{BinaryOp, CompareOp, DType, Graph, GraphError, Op, ReduceOp, Scalar, Type, UnaryOp, ValueId};

/// `args` are in compute precision already; `ty` is the op's result type.
pub(super) fn decompose(g: &mut Graph, op: &Op, args: &[ValueId], ty: &Type) -> Built {
    let x = args[0];
    let rank = g.shape(x).len();
    match op {
        Op::Softmax { axis } => softmax(g, x, *axis, false),
        Op::LogSoftmax { axis } => log_softmax(g, x, *axis),
        Op::LayerNorm { axes, eps, .. } => {
            let y = normalised(g, x, (rank - axes..rank).collect(), *eps)?;
            affine(g, y, &args[1..])
        }
        Op::RmsNorm { eps } => {
            let square = g.binary(BinaryOp::Mul, x, x)?;
            let mean = g.reduce(ReduceOp::Mean, square, [rank - 1])?;
            let scale = rsqrt_eps(g, mean, *eps)?;
            let y = g.binary(BinaryOp::Mul, x, scale)?;
            g.binary(BinaryOp::Mul, y, args[1])
        }
        Op::GroupNorm { groups, eps, .. } => {
            let (shape, count) = (g.shape(x).to_vec(), g.ty(x).count());
            let rows = shape[0] * groups;
            let inner = count.checked_div(rows).unwrap_or(0);
            let grouped = g.reshape(x, [shape[0], *groups, inner])?;
            let y = normalised(g, grouped, vec![2], *eps)?;
            let y = g.reshape(y, shape)?;
            let rest = per_channel(g, &args[1..], rank)?;
            affine(g, y, &rest)
        }
        Op::BatchNorm { eps } => {
            let rest = per_channel(g, &args[1..], rank)?;
            let scale = rsqrt_eps(g, rest[3], *eps)?;
            let y = g.binary(BinaryOp::Sub, x, rest[2])?;
            let y = g.binary(BinaryOp::Mul, y, scale)?;
            affine(g, y, &rest[..2])
        }
        Op::Linear => linear(g, args, ty),
        Op::Attention { scale, causal } => attention(g, args, *scale, *causal, ty),
        _ => Ok(x),
    }
}

fn softmax(g: &mut Graph, x: ValueId, axis: usize, safe: bool) -> Built {
    if g.shape(x)[axis] == 0 {
        return Ok(x);
    }
    let max = g.reduce(ReduceOp::Max, x, [axis])?;
    let y = g.binary(BinaryOp::Sub, x, max)?;
    let y = g.unary(UnaryOp::Exp, y)?;
    let sum = g.reduce(ReduceOp::Sum, y, [axis])?;
    let y = g.binary(BinaryOp::Div, y, sum)?;
    if !safe {
        return Ok(y);
    }
    // A row in which nothing takes part gives zeros.
    let nothing = g.constant_like(x, f64::NEG_INFINITY)?;
    let empty = g.compare(CompareOp::Eq, max, nothing)?;
    let zero = g.constant_like(x, 0.0)?;
    g.select(empty, zero, y)
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

/// `x · gain + bias`, or `x` when there are none.
fn affine(g: &mut Graph, x: ValueId, rest: &[ValueId]) -> Built {
    let [gain, bias] = rest else { return Ok(x) };
    let y = g.binary(BinaryOp::Mul, x, *gain)?;
    g.binary(BinaryOp::Add, y, *bias)
}

/// `[C]` as `[C, 1, …]`, to meet axis 1 of `rank` axes.
fn per_channel(g: &mut Graph, values: &[ValueId], rank: usize) -> Result<Vec<ValueId>, GraphError> {
    let reshaped = |v: &ValueId| {
        let mut shape = g.shape(*v).to_vec();
        shape.resize(rank - 1, 1);
        g.reshape(*v, shape)
    };
    values.iter().map(reshaped).collect()
}

fn linear(g: &mut Graph, args: &[ValueId], ty: &Type) -> Built {
    let shape = g.shape(args[0]).to_vec();
    let x = if shape.len() == 1 { g.reshape(args[0], [1, shape[0]])? } else { args[0] };
    let w = g.transpose(args[1])?;
    let y = g.dot(x, w)?;
    let y = g.reshape(y, ty.shape.clone())?;
    match args.get(2) {
        Some(bias) => g.binary(BinaryOp::Add, y, *bias),
        None => Ok(y),
    }
}

fn attention(g: &mut Graph, args: &[ValueId], scale: Scalar, causal: bool, ty: &Type) -> Built {
    let (mut q, mut k, mut v) = (args[0], args[1], args[2]);
    let q_shape = g.shape(q).to_vec();
    let r = q_shape.len();
    let (lead, heads, s) = (&q_shape[..r - 3], q_shape[r - 3], q_shape[r - 2]);
    let (key_heads, t) = (g.shape(k)[r - 3], g.shape(k)[r - 2]);
    let mut scores_shape = [&q_shape[..r - 1], &[t]].concat();
    let grouped = heads != key_heads;
    if grouped {
        // Query heads that share a key head stand beside each other on an axis of their own.
        let group = heads / key_heads.max(1);
        q = g.reshape(q, [lead, &[key_heads, group], &q_shape[r - 2..]].concat())?;
        scores_shape = [lead, &[key_heads, group, s, t]].concat();
        let own_axis = |g: &mut Graph, x: ValueId| {
            let mut shape = g.shape(x).to_vec();
            shape.insert(r - 2, 1);
            g.reshape(x, shape)
        };
        k = own_axis(g, k)?;
        v = own_axis(g, v)?;
    }
    let k = g.transpose(k)?;
    let mut scores = g.dot(q, k)?;
    scores = g.binary_scalar(BinaryOp::Mul, scores, scale.as_f64())?;
    if causal {
        let row = g.iota(DType::I64, [s, 1], 0);
        let column = g.iota(DType::I64, [1, t], 1);
        let seen = g.compare(CompareOp::Le, column, row)?;
        let hidden = g.constant_like(scores, f64::NEG_INFINITY)?;
        scores = g.select(seen, scores, hidden)?;
    }
    if let Some(&mask) = args.get(3) {
        let mask = if grouped && g.shape(mask).len() >= 3 {
            let whole = g.broadcast_to(mask, [&q_shape[..r - 1], &[t]].concat())?;
            g.reshape(whole, scores_shape)?
        } else {
            mask
        };
        scores = if g.dtype(mask) == DType::Bool {
            let hidden = g.constant_like(scores, f64::NEG_INFINITY)?;
            g.select(mask, scores, hidden)?
        } else {
            g.binary(BinaryOp::Add, scores, mask)?
        };
    }
    let axis = g.shape(scores).len() - 1;
    let p = softmax(g, scores, axis, args.len() > 3)?;
    let y = g.dot(p, v)?;
    g.reshape(y, ty.shape.clone())
}
