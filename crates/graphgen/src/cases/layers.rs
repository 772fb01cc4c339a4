//! Steps that add layers: matmuls, convolutions, pooling, norms over channels, attention.
use super::{Made, Maker, unfit};
use crate::dot;
use kiln_graph::{
    BinaryOp, CompareOp, DType, FullyMasked, GraphError, Op, PoolKind, Scalar, ScoreStep, Type, UnaryOp, ValueId,
};

const EPS: Scalar = Scalar::Float(1e-5);

fn within(m: &Maker, work: usize) -> Result<(), GraphError> {
    if work <= m.scale.work() { Ok(()) } else { Err(unfit()) }
}
fn each(m: &mut Maker, axes: usize, of: &[usize]) -> Vec<usize> {
    (0..axes).map(|_| m.r.choose(of)).collect()
}

/// A matmul of two existing values, transposed as needed; possibly of a value with its own transpose.
pub(super) fn matmul(m: &mut Maker) -> Made {
    let x = m.near()?;
    let y = m.r.choose(&m.floats.clone());
    let dtype = m.g.dtype(x);
    let y = m.g.cast(y, dtype)?;
    let (a, b) = (m.g.shape(x).to_vec(), m.g.shape(y).to_vec());
    let ([.., ma, ka], [.., kb, nb]) = (&a[..], &b[..]) else { return Err(unfit()) };
    let (x, y, n) = match () {
        _ if ka == kb && m.r.next_below(3) != 0 => (x, y, nb),
        _ if ka == nb => (x, m.g.transpose(y)?, kb),
        _ if ka == kb => (x, y, nb),
        _ if ma == kb => (m.g.transpose(x)?, y, nb),
        _ if ma == nb => (m.g.transpose(x)?, m.g.transpose(y)?, kb),
        _ => return Err(unfit()),
    };
    let rows = m.g.shape(x).iter().product::<usize>().max(m.g.ty(y).count() / n.max(&1));
    within(m, rows * n * b[..b.len() - 2].iter().product::<usize>().max(1))?;
    dot(&mut m.g, x, y)
}

/// A linear layer, with an optional bias and activation.
pub(super) fn linear(m: &mut Maker) -> Made {
    let x = m.near()?;
    let (shape, dtype) = (m.g.shape(x).to_vec(), m.g.dtype(x));
    let Some(&k) = shape.last() else { return Err(unfit()) };
    let n = m.r.choose(m.scale.sides());
    within(m, m.g.ty(x).count().max(k) * n)?;
    // Scaled, so that sums over k stay moderate.
    let x = m.g.binary_scalar(BinaryOp::Mul, x, 1.0 / (k.max(1) as f64).sqrt())?;
    let w = m.input(dtype, &[n, k]);
    let mut args = vec![x, w];
    if m.once_in(2) {
        args.push(m.input(dtype, &[n]));
    }
    let y = m.g.add(Op::Linear, &args)?;
    match m.r.next_below(4) {
        0 => m.g.unary(UnaryOp::GeluErf, y),
        1 => m.g.unary(UnaryOp::Relu, y),
        _ => Ok(y),
    }
}

pub(super) fn convolved(m: &mut Maker) -> Made {
    let x = m.near()?;
    let (shape, dtype) = (m.g.shape(x).to_vec(), m.g.dtype(x));
    let [_, c, space @ ..] = &shape[..] else { return Err(unfit()) };
    if space.is_empty() || space.len() > 2 {
        return Err(unfit());
    }
    let d = space.len();
    let groups = if m.once_in(3) && c % 2 == 0 { m.r.choose(&[2, *c]) } else { 1 };
    let out = groups * m.r.choose(&[1, 2, 4]);
    let (window, stride, padding) = (each(m, d, &[1, 2, 3, 3]), each(m, d, &[1, 1, 2]), each(m, d, &[0, 1]));
    let dilation = each(m, d, &[1, 1, 2]);
    within(m, m.g.ty(x).count() * out * window.iter().product::<usize>())?;
    let transposed = m.once_in(5);
    let weight = if transposed { [*c, out / groups.max(1)] } else { [out, c / groups.max(1)] };
    let w = m.input(dtype, &[&weight[..], &window].concat());
    let w = m.g.binary_scalar(BinaryOp::Mul, w, 0.3)?;
    let mut args = vec![x, w];
    if m.once_in(2) {
        args.push(m.input(dtype, &[out]));
    }
    let output_padding = if transposed { vec![0; d] } else { vec![] };
    m.g.add(Op::Conv { stride, padding, dilation, groups, transposed, output_padding }, &args)
}

pub(super) fn pooled(m: &mut Maker) -> Made {
    let x = m.near()?;
    let d = (1 + m.r.next_below(2)).min(m.g.shape(x).len());
    let kind = m.r.choose(&[PoolKind::Max, PoolKind::Avg { count_pad: true }, PoolKind::Avg { count_pad: false }]);
    let (window, stride, padding) = (each(m, d, &[1, 2, 3]), each(m, d, &[1, 2]), each(m, d, &[0, 0, 1]));
    let dilation = if kind == PoolKind::Max { each(m, d, &[1, 1, 2]) } else { vec![1; d] };
    let ceil = m.once_in(3);
    m.g.add(Op::Pool { kind, window, stride, padding, dilation, ceil }, &[x])
}

/// Norms over channels.
pub(super) fn channels(m: &mut Maker) -> Made {
    let x = m.near()?;
    let (shape, dtype) = (m.g.shape(x).to_vec(), m.g.dtype(x));
    let Some(&c) = shape.get(1) else { return Err(unfit()) };
    if m.once_in(3) {
        let [gain, bias, mean, var] = [0; 4].map(|_| m.input(dtype, &[c]));
        let var = m.g.binary(BinaryOp::Mul, var, var)?;
        let var = m.g.binary_scalar(BinaryOp::Add, var, 0.5)?;
        return m.g.add(Op::BatchNorm { eps: EPS }, &[x, gain, bias, mean, var]);
    }
    let dividing: Vec<usize> = (1..=c).filter(|g| c % g == 0).collect();
    if dividing.is_empty() {
        return Err(unfit());
    }
    let groups = m.r.choose(&dividing);
    let affine = m.r.next_below(3) != 0;
    let mut args = vec![x];
    if affine {
        args.extend([m.input(dtype, &[c]), m.input(dtype, &[c])]);
    }
    m.g.add(Op::GroupNorm { groups, affine, eps: EPS }, &args)
}

/// Attention over existing values, without a mask, causal, with an explicit mask, or with the keys that end at a
/// position.
pub(super) fn attention(m: &mut Maker) -> Made {
    let heads: Vec<ValueId> = m.floats.iter().copied().filter(|v| m.g.shape(*v).len() == 4).collect();
    if heads.is_empty() {
        return Err(unfit());
    }
    let [q, k, v] = [0; 3].map(|_| m.r.choose(&heads));
    let dtype = m.g.dtype(q);
    let (k, v) = (m.g.cast(k, dtype)?, m.g.cast(v, dtype)?);
    let (a, b) = (m.g.shape(q).to_vec(), m.g.shape(k).to_vec());
    within(m, m.g.ty(q).count() * b[2] * 2)?;
    let mut args = vec![q, k, v];
    match m.r.next_below(4) {
        0 => args.push(m.g.input(Type::new(DType::Bool, [1, 1, a[2], b[2]]))),
        1 => {
            let wide = if m.once_in(3) { dtype.compute() } else { dtype };
            args.push(m.input(wide, &[a[0], 1, 1, b[2]]));
        }
        2 => {
            // Each query attends to the keys up to its position.
            let key = m.g.iota(DType::I64, [1, b[2]], 1);
            let position = m.g.input(Type::new(DType::I64, [a[2], 1]));
            args.push(m.g.compare(CompareOp::Le, key, position)?);
        }
        _ => {}
    }
    let causal = args.len() == 3 && a[2] == b[2] && m.once_in(2);
    let scale = Scalar::Float(1.0 / (a[3].max(1) as f64).sqrt());
    let fully_masked = if args.len() > 3 && m.once_in(2) { FullyMasked::Nan } else { FullyMasked::Zero };
    let mut score = vec![];
    if m.once_in(4) {
        // A soft cap, of scores that a tensor scales.
        let wide = if m.once_in(3) { dtype.compute() } else { dtype };
        let factor = m.input(wide, &[a[1], 1, 1]);
        args.insert(3, factor);
        let cap = [BinaryOp::Div, BinaryOp::Mul].map(|b| ScoreStep::Number(b, Scalar::Float(4.0)));
        score = vec![ScoreStep::Operand(BinaryOp::Mul), cap[0], ScoreStep::Unary(UnaryOp::Tanh), cap[1]];
    }
    let sink = m.once_in(3);
    if sink {
        let shape = m.r.choose(&[[1, a[1], 1, 1], [a[0], 1, a[2], 1]]);
        let dtype = if m.once_in(3) { dtype.compute() } else { dtype };
        let of_head = m.input(dtype, &shape);
        args.insert(if score.is_empty() { 3 } else { 4 }, of_head);
    }
    let [values, sums] =
        [false, true].map(|lse| Op::Attention { scale, causal, fully_masked, score: score.clone(), sink, lse });
    match m.r.next_below(8) {
        0 => m.g.add(sums, &args),
        1 => {
            let both = m.g.add(sums, &args)?;
            m.keep(both);
            m.g.add(values, &args)
        }
        _ => m.g.add(values, &args),
    }
}

/// Softmax of causally masked scores, from primitives.
pub(super) fn masked(m: &mut Maker) -> Made {
    let x = m.near()?;
    let shape = m.g.shape(x).to_vec();
    let [.., rows, columns] = shape[..] else { return Err(unfit()) };
    let i = m.g.iota(DType::I64, [rows, columns], 0);
    let j = m.g.iota(DType::I64, [rows, columns], 1);
    let seen = m.g.compare(CompareOp::Ge, i, j)?;
    let never = m.g.constant_like(x, f64::NEG_INFINITY)?;
    let scores = m.g.select(seen, x, never)?;
    m.g.add(Op::Softmax { axis: shape.len() - 1 }, &[scores])
}
