//! What is computed along rows.
use super::{Made, Maker, unfit};
use crate::{BinaryOp, DType, GraphError, Op, ReduceOp, Scalar, ScanOp, Type, UnaryOp, ValueId};

const EPS: Scalar = Scalar::Float(1e-5);

/// The last axis most of the time.
fn axis(m: &mut Maker, x: ValueId) -> Result<usize, GraphError> {
    match m.g.shape(x).len() {
        0 => Err(unfit()),
        rank if m.once_in(4) => Ok(m.r.below(rank)),
        rank => Ok(rank - 1),
    }
}

/// Softmax and norms, as one op or in primitives.
pub(super) fn normed(m: &mut Maker) -> Made {
    let x = m.near()?;
    let (shape, dtype) = (m.g.shape(x).to_vec(), m.g.dtype(x));
    let along = axis(m, x)?;
    match m.r.below(9) {
        0 => m.g.add(Op::Softmax { axis: along }, &[x]),
        1 => m.g.add(Op::LogSoftmax { axis: along }, &[x]),
        2 | 3 => {
            let axes = 1 + m.r.below(shape.len().min(2));
            let affine = m.r.below(3) != 0;
            let mut args = vec![x];
            if affine {
                let own = &shape[shape.len() - axes..];
                args.extend([m.input(dtype, own), m.input(dtype, own)]);
            }
            m.g.add(Op::LayerNorm { axes, affine, eps: EPS }, &args)
        }
        4 => {
            let gain = m.input(dtype, &shape[shape.len() - 1..]);
            m.g.add(Op::RmsNorm { eps: EPS }, &[x, gain])
        }
        5 | 6 => {
            // Softmax, or the logarithm of the sum alone.
            let max = m.g.reduce(ReduceOp::Max, x, [along])?;
            let d = m.g.binary(BinaryOp::Sub, x, max)?;
            let e = m.g.unary(UnaryOp::Exp, d)?;
            let sum = m.g.reduce(ReduceOp::Sum, e, [along])?;
            if m.once_in(2) {
                return m.g.binary(BinaryOp::Div, e, sum);
            }
            let log = m.g.unary(UnaryOp::Log, sum)?;
            m.g.binary(BinaryOp::Add, log, max)
        }
        7 => {
            let mean = m.g.reduce(ReduceOp::Mean, x, [along])?;
            let d = m.g.binary(BinaryOp::Sub, x, mean)?;
            let square = m.g.binary(BinaryOp::Mul, d, d)?;
            let var = m.g.reduce(ReduceOp::Mean, square, [along])?;
            let var = m.g.binary_scalar(BinaryOp::Add, var, 1e-3)?;
            let scale = m.g.unary(UnaryOp::Rsqrt, var)?;
            m.g.binary(BinaryOp::Mul, d, scale)
        }
        _ => {
            let square = m.g.binary(BinaryOp::Mul, x, x)?;
            let sum = m.g.reduce(ReduceOp::Sum, square, [along])?;
            let sum = m.g.binary_scalar(BinaryOp::Add, sum, 1e-3)?;
            let norm = m.g.unary(UnaryOp::Sqrt, sum)?;
            m.g.binary(BinaryOp::Div, x, norm)
        }
    }
}

/// Values about one, whose products stay moderate.
fn about_one(m: &mut Maker, x: ValueId) -> Made {
    let t = m.g.unary(UnaryOp::Tanh, x)?;
    let t = m.g.binary_scalar(BinaryOp::Mul, t, 0.01)?;
    m.g.binary_scalar(BinaryOp::Add, t, 1.0)
}

/// A reduction of one axis, of some or of all; at times taken back to the operand, or without the axes it reduced.
pub(super) fn reduced(m: &mut Maker) -> Made {
    use ReduceOp::*;
    let x = m.near()?;
    let rank = m.g.shape(x).len();
    let axes: Vec<usize> = match m.r.below(3) {
        0 => vec![axis(m, x)?],
        1 => (0..rank).collect(),
        _ => (0..rank).filter(|_| m.r.below(2) == 0).collect(),
    };
    let op = m.r.pick(&[Sum, Sum, Mean, Mean, Max, Min, Prod]);
    let of = if op == Prod { about_one(m, x)? } else { x };
    let y = m.g.reduce(op, of, axes.clone())?;
    match m.r.below(4) {
        0 => m.g.binary(BinaryOp::Sub, x, y),
        1 => {
            let to: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).map(|a| m.g.shape(x)[a]).collect();
            m.g.reshape(y, to)
        }
        _ => Ok(y),
    }
}

/// Where the largest or smallest element is.
pub(super) fn placed(m: &mut Maker) -> Made {
    let x = if m.once_in(3) { m.any()? } else { m.near()? };
    if m.g.dtype(x) == DType::Bool {
        return Err(unfit());
    }
    let along = axis(m, x)?;
    let op = m.r.pick(&[ReduceOp::ArgMax, ReduceOp::ArgMin]);
    m.g.reduce(op, x, [along])
}

pub(super) fn scanned(m: &mut Maker) -> Made {
    let x = m.near()?;
    let along = axis(m, x)?;
    if m.once_in(4) {
        let t = about_one(m, x)?;
        return m.g.scan(ScanOp::Prod, t, along);
    }
    m.g.scan(ScanOp::Sum, x, along)
}

/// Cross entropy with its gather, mean squared error, or a divergence.
pub(super) fn loss(m: &mut Maker) -> Made {
    let x = m.near()?;
    let shape = m.g.shape(x).to_vec();
    if shape.is_empty() || shape.contains(&0) {
        return Err(unfit());
    }
    let last = shape.len() - 1;
    let all: Vec<usize> = (0..shape.len()).collect();
    match m.r.below(3) {
        0 => {
            let p = m.g.add(Op::LogSoftmax { axis: last }, &[x])?;
            let mut to = shape;
            to[last] = 1;
            let target = m.g.input(Type::new(DType::I64, to));
            let picked = m.g.add(Op::Gather { axis: last }, &[p, target])?;
            let mean = m.g.reduce(ReduceOp::Mean, picked, all)?;
            m.g.unary(UnaryOp::Neg, mean)
        }
        1 => {
            let y = m.partner(x)?;
            let d = m.g.binary(BinaryOp::Sub, x, y)?;
            let square = m.g.binary(BinaryOp::Mul, d, d)?;
            m.g.reduce(ReduceOp::Mean, square, all)
        }
        _ => {
            let y = m.partner(x)?;
            let y = m.g.broadcast_to(y, shape)?;
            let [p, q] = [x, y].map(|v| m.g.add(Op::LogSoftmax { axis: last }, &[v]));
            let (p, q) = (p?, q?);
            let e = m.g.unary(UnaryOp::Exp, p)?;
            let d = m.g.binary(BinaryOp::Sub, p, q)?;
            let t = m.g.binary(BinaryOp::Mul, e, d)?;
            m.g.reduce(ReduceOp::Sum, t, [last])
        }
    }
}
