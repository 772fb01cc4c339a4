//! Steps that compute along rows: norms, reductions, scans, losses.
use super::{Made, Maker, unfit};
use kiln_graph::{BinaryOp, CompareOp, DType, GraphError, Op, ReduceOp, Scalar, ScanOp, Type, UnaryOp, ValueId};

const EPS: Scalar = Scalar::Float(1e-5);

/// The last axis most of the time.
fn axis(m: &mut Maker, x: ValueId) -> Result<usize, GraphError> {
    match m.g.shape(x).len() {
        0 => Err(unfit()),
        rank if m.once_in(4) => Ok(m.r.next_below(rank)),
        rank => Ok(rank - 1),
    }
}

/// Softmax and norms, as one op or as primitives.
pub(super) fn normed(m: &mut Maker) -> Made {
    let x = m.near()?;
    let (shape, dtype) = (m.g.shape(x).to_vec(), m.g.dtype(x));
    let along = axis(m, x)?;
    match m.r.next_below(9) {
        0 => m.g.add(Op::Softmax { axis: along }, &[x]),
        1 => m.g.add(Op::LogSoftmax { axis: along }, &[x]),
        2 | 3 => {
            let axes = 1 + m.r.next_below(shape.len().min(2));
            let affine = m.r.next_below(3) != 0;
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

/// Two or three nested row functions, each followed by a view that keeps part of its result, under a reduction or scan
/// of the same rows.
pub(super) fn nested(m: &mut Maker) -> Made {
    let mut x = m.near()?;
    let along = axis(m, x)?;
    if m.g.shape(x)[along] == 0 {
        return Err(unfit());
    }
    for _ in 0..2 + m.r.next_below(2) {
        let y = row_function(m, x, along)?;
        x = windowed(m, y, x, along)?;
    }
    match m.r.next_below(5) {
        0 => m.g.scan(ScanOp::Sum, x, along),
        1 => m.g.add(Op::Softmax { axis: along }, &[x]),
        2 => m.g.reduce(ReduceOp::Max, x, [along]),
        3 => {
            let mean = m.g.reduce(ReduceOp::Mean, x, [along])?;
            m.g.binary(BinaryOp::Sub, x, mean)
        }
        _ => m.g.reduce(ReduceOp::Sum, x, [along]),
    }
}

/// A value whose elements each depend on a whole row of `x`.
fn row_function(m: &mut Maker, x: ValueId, along: usize) -> Made {
    let rank = m.g.shape(x).len();
    match m.r.next_below(6) {
        0 => m.g.add(Op::Softmax { axis: along }, &[x]),
        1 if along + 1 == rank => m.g.add(Op::LayerNorm { axes: 1, affine: false, eps: EPS }, &[x]),
        2 => {
            let square = m.g.binary(BinaryOp::Mul, x, x)?;
            let sum = m.g.reduce(ReduceOp::Sum, square, [along])?;
            let sum = m.g.binary_scalar(BinaryOp::Add, sum, 1e-3)?;
            let norm = m.g.unary(UnaryOp::Sqrt, sum)?;
            m.g.binary(BinaryOp::Div, x, norm)
        }
        3 => {
            let max = m.g.reduce(ReduceOp::Max, x, [along])?;
            m.g.binary(BinaryOp::Sub, x, max)
        }
        4 => {
            let n = m.g.shape(x)[along];
            let part = m.g.binary_scalar(BinaryOp::Mul, x, 1.0 / (n as f64).sqrt())?;
            m.g.scan(ScanOp::Sum, part, along)
        }
        _ => {
            let mean = m.g.reduce(ReduceOp::Mean, x, [along])?;
            m.g.binary(BinaryOp::Sub, x, mean)
        }
    }
}

/// A value of `y`'s shape that contains some of `y`'s elements, possibly next to some of `x`'s.
fn windowed(m: &mut Maker, y: ValueId, x: ValueId, along: usize) -> Made {
    let shape = m.g.shape(y).to_vec();
    let n = shape[along];
    let (start, cut) = (m.r.next_below(n), m.r.next_below(n + 1));
    match m.r.next_below(6) {
        0 => {
            let len = 1 + m.r.next_below(n - start);
            let before = m.r.next_below(n - len + 1);
            let part = m.g.slice(y, along, start, len, 1)?;
            let [mut lo, mut hi] = [0; 2].map(|_| vec![0; shape.len()]);
            (lo[along], hi[along]) = (before as i64, (n - len - before) as i64);
            let value = m.r.choose(&[0.0, 0.0, 1.0]);
            m.g.pad(part, value, lo, hi)
        }
        // Swapped halves (possibly with one negated), or a roll.
        1 => {
            let head = m.g.slice(y, along, 0, cut, 1)?;
            let tail = m.g.slice(y, along, cut, n - cut, 1)?;
            let tail = if m.once_in(2) { m.g.unary(UnaryOp::Neg, tail)? } else { tail };
            m.g.concat(&[tail, head], along)
        }
        // Assignment to a slice of `x`.
        2 => {
            let end = start + 1 + m.r.next_below(n - start);
            let dtype = m.g.dtype(y);
            let x = m.g.cast(x, dtype)?;
            let before = m.g.slice(x, along, 0, start, 1)?;
            let part = m.g.slice(y, along, start, end - start, 1)?;
            let after = m.g.slice(x, along, end, n - end, 1)?;
            m.g.concat(&[before, part, after], along)
        }
        3 => m.g.add(Op::Flip(vec![along]), &[y]),
        4 => {
            let place = m.g.iota(DType::I64, shape, along);
            let first = m.g.constant_like(place, cut as f64)?;
            let inside = m.g.compare(CompareOp::Lt, place, first)?;
            m.g.select(inside, y, x)
        }
        _ => Ok(y),
    }
}

/// Values near one, whose products stay moderate.
fn about_one(m: &mut Maker, x: ValueId) -> Made {
    let t = m.g.unary(UnaryOp::Tanh, x)?;
    let t = m.g.binary_scalar(BinaryOp::Mul, t, 0.01)?;
    m.g.binary_scalar(BinaryOp::Add, t, 1.0)
}

/// A reduction over one, some or all axes; sometimes subtracted from its operand, or with the reduced axes dropped.
pub(super) fn reduced(m: &mut Maker) -> Made {
    use ReduceOp::*;
    let x = m.near()?;
    let rank = m.g.shape(x).len();
    let axes: Vec<usize> = match m.r.next_below(3) {
        0 => vec![axis(m, x)?],
        1 => (0..rank).collect(),
        _ => (0..rank).filter(|_| m.r.next_below(2) == 0).collect(),
    };
    let op = m.r.choose(&[Sum, Sum, Mean, Mean, Max, Min, Prod]);
    let of = if op == Prod { about_one(m, x)? } else { x };
    let y = m.g.reduce(op, of, axes.clone())?;
    match m.r.next_below(4) {
        0 => m.g.binary(BinaryOp::Sub, x, y),
        1 => {
            let to: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).map(|a| m.g.shape(x)[a]).collect();
            m.g.reshape(y, to)
        }
        _ => Ok(y),
    }
}

/// The position of the largest or smallest element.
pub(super) fn placed(m: &mut Maker) -> Made {
    let x = if m.once_in(3) { m.any()? } else { m.near()? };
    if m.g.dtype(x) == DType::Bool {
        return Err(unfit());
    }
    let along = axis(m, x)?;
    let op = m.r.choose(&[ReduceOp::ArgMax, ReduceOp::ArgMin]);
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

/// Cross entropy with a gather, mean squared error, or KL divergence.
pub(super) fn loss(m: &mut Maker) -> Made {
    let x = m.near()?;
    let shape = m.g.shape(x).to_vec();
    if shape.is_empty() || shape.contains(&0) {
        return Err(unfit());
    }
    let last = shape.len() - 1;
    let all: Vec<usize> = (0..shape.len()).collect();
    match m.r.next_below(3) {
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
