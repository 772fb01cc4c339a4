//! Steps of a case. Each adds one value, or one idiom that users write.
use super::{Made, Maker, unfit};
use crate::{Options, edge, movement, unary, view};
use kiln_graph::{BinaryOp, CompareOp, DType, Op, ReduceOp, ScanOp, ScatterMode, Type, UnaryOp, ValueId};

pub(super) type Step = fn(&mut Maker) -> Made;

const FLOATS: [DType; 4] = [DType::F32, DType::Bf16, DType::F16, DType::F64];

pub(super) fn pointwise(m: &mut Maker) -> Made {
    let x = m.near()?;
    match m.r.next_below(8) {
        // Division with a safe divisor; the next arm: a power with a safe base.
        0 => {
            let y = m.partner(x)?;
            let y = m.g.unary(UnaryOp::Abs, y)?;
            let y = m.g.binary_scalar(BinaryOp::Add, y, 1.0)?;
            m.g.binary(BinaryOp::Div, x, y)
        }
        1 => {
            let exponent = m.r.choose(&[2.0, 3.0, 0.5, -1.0, 1.5]);
            let y = m.g.unary(UnaryOp::Abs, x)?;
            let y = m.g.binary_scalar(BinaryOp::Add, y, 0.5)?;
            m.g.binary_scalar(BinaryOp::Pow, y, exponent)
        }
        2 => {
            let low = m.g.binary_scalar(BinaryOp::Max, x, -1.0)?;
            m.g.binary_scalar(BinaryOp::Min, low, 1.5)
        }
        _ => unary(&mut m.g, &mut m.r, x, &Options::default()),
    }
}

pub(super) fn combined(m: &mut Maker) -> Made {
    use BinaryOp::*;
    let x = m.near()?;
    let y = m.partner(x)?;
    let op = m.r.choose(&[Add, Add, Add, Mul, Mul, Sub, Max, Min]);
    if m.once_in(2) { m.g.binary(op, x, y) } else { m.g.binary(op, y, x) }
}

pub(super) fn selected(m: &mut Maker) -> Made {
    use CompareOp::*;
    let x = m.near()?;
    let y = m.partner(x)?;
    let op = m.r.choose(&[Lt, Le, Gt, Ge, Eq, Ne]);
    let cond = match m.r.next_below(4) {
        0 => m.g.unary(UnaryOp::IsNan, x)?,
        1 => m.g.unary(UnaryOp::IsInf, x)?,
        _ => m.g.compare(op, x, y)?,
    };
    let other = m.partner(x)?;
    if m.once_in(2) { m.g.select(cond, x, other) } else { m.g.select(cond, other, x) }
}

pub(super) fn rounded(m: &mut Maker) -> Made {
    use UnaryOp::*;
    let x = m.near()?;
    if m.once_in(3) {
        let op = m.r.choose(&[BinaryOp::Remainder, BinaryOp::Fmod, BinaryOp::FloorDiv]);
        return m.g.binary_scalar(op, x, 0.75);
    }
    let op = m.r.choose(&[Floor, Ceil, Round, Trunc, Sign]);
    m.g.unary(op, x)
}

pub(super) fn cast(m: &mut Maker) -> Made {
    let x = m.near()?;
    let to = m.r.choose(&FLOATS);
    m.g.cast(x, to)
}

/// A view: a transpose, a split axis, a chunk, or a random view.
pub(super) fn viewed(m: &mut Maker) -> Made {
    let x = m.near()?;
    let shape = m.g.shape(x).to_vec();
    let rank = shape.len();
    match m.r.next_below(6) {
        0 if rank >= 2 => m.g.transpose(x),
        1 if rank > 0 => {
            // Split an axis in two.
            let axis = m.r.next_below(rank);
            let by = m.r.choose(&[2, 3, 4, 8]);
            let mut to = shape.clone();
            to[axis] = shape[axis] / by;
            to.insert(axis + 1, by);
            m.g.reshape(x, to)
        }
        2 if rank > 0 => {
            // One result of a chunk.
            let (axis, parts) = (m.r.next_below(rank), m.r.choose(&[2, 3]));
            let len = shape[axis] / parts;
            let start = m.r.next_below(parts) * len;
            m.g.slice(x, axis, start, len, 1)
        }
        _ => view(&mut m.g, &mut m.r, x),
    }
}

pub(super) fn moved(m: &mut Maker) -> Made {
    let x = m.near()?;
    if m.once_in(2) { edge(&mut m.g, &mut m.r, x) } else { movement(&mut m.g, &mut m.r, x) }
}

/// A concatenation of values and slices of values, or a roll.
pub(super) fn joined(m: &mut Maker) -> Made {
    let x = m.near()?;
    let shape = m.g.shape(x).to_vec();
    if shape.is_empty() {
        return Err(unfit());
    }
    let axis = m.r.next_below(shape.len());
    if m.once_in(3) {
        let by = m.r.next_below(shape[axis].max(1));
        let tail = m.g.slice(x, axis, shape[axis] - by, by, 1)?;
        let head = m.g.slice(x, axis, 0, shape[axis] - by, 1)?;
        return m.g.concat(&[tail, head], axis);
    }
    let mut parts = vec![x];
    for _ in 0..1 + m.r.next_below(3) {
        let y = m.partner(x)?;
        let y = m.g.broadcast_to(y, shape.clone())?;
        let len = m.r.next_below(shape[axis] + 1);
        let part = if m.once_in(2) { m.g.slice(y, axis, 0, len, 1)? } else { y };
        parts.push(part);
    }
    m.g.concat(&parts, axis)
}

/// An embedding lookup, a gather, or a scatter.
pub(super) fn taken(m: &mut Maker) -> Made {
    let x = m.near()?;
    let shape = m.g.shape(x).to_vec();
    if shape.is_empty() || shape.contains(&0) {
        return Err(unfit());
    }
    let axis = m.r.next_below(shape.len());
    let dtype = m.r.choose(&[DType::I64, DType::I64, DType::I32]);
    let count = m.r.choose(&[1, 2, 5, 16, 33]);
    if m.r.next_below(2) == 0 {
        let to = m.r.choose(&[vec![count], vec![2, count], vec![]]);
        let index = m.g.input(Type::new(dtype, to));
        return m.g.add(Op::Take { axis }, &[x, index]);
    }
    let mut to = shape;
    to[axis] = count;
    let index = m.g.input(Type::new(dtype, to.clone()));
    if m.once_in(3) {
        let source = m.partner(x)?;
        let source = m.g.broadcast_to(source, to)?;
        let mode = m.r.choose(&[ScatterMode::Replace, ScatterMode::Add]);
        return m.g.add(Op::Scatter { axis, mode }, &[x, index, source]);
    }
    m.g.add(Op::Gather { axis }, &[x, index])
}

/// Rotary position embedding, on halves or on interleaved pairs.
pub(super) fn rope(m: &mut Maker) -> Made {
    let x = m.near()?;
    let shape = m.g.shape(x).to_vec();
    let (rank, half) = match shape.last() {
        Some(n) if n % 2 == 0 && *n > 0 => (shape.len(), n / 2),
        _ => return Err(unfit()),
    };
    let dtype = m.g.dtype(x);
    let angles = if m.once_in(2) { vec![2 * half] } else { shape[rank.saturating_sub(2)..].to_vec() };
    let [cos, sin] = [0; 2].map(|_| m.input(dtype, &angles));
    let rotated = if m.once_in(2) {
        let lo = m.g.slice(x, rank - 1, 0, half, 1)?;
        let hi = m.g.slice(x, rank - 1, half, half, 1)?;
        let minus = m.g.unary(UnaryOp::Neg, hi)?;
        m.g.concat(&[minus, lo], rank - 1)?
    } else {
        let pairs = m.g.reshape(x, [&shape[..rank - 1], &[half, 2]].concat())?;
        let even = m.g.slice(pairs, rank, 0, 1, 1)?;
        let odd = m.g.slice(pairs, rank, 1, 1, 1)?;
        let minus = m.g.unary(UnaryOp::Neg, odd)?;
        let joined = m.g.concat(&[minus, even], rank)?;
        m.g.reshape(joined, shape)?
    };
    let p = m.g.binary(BinaryOp::Mul, x, cos)?;
    let q = m.g.binary(BinaryOp::Mul, rotated, sin)?;
    m.g.binary(BinaryOp::Add, p, q)
}

/// Integer arithmetic, and casts of floats to integers within range.
pub(super) fn counted(m: &mut Maker) -> Made {
    use BinaryOp::*;
    if m.once_in(4) {
        let x = m.near()?;
        let low = m.g.binary_scalar(Max, x, -50.0)?;
        let near = m.g.binary_scalar(Min, low, 50.0)?;
        let number = m.g.compare(CompareOp::Eq, x, x)?;
        let zero = m.g.constant_like(x, 0.0)?;
        let near = m.g.select(number, near, zero)?;
        let to = m.r.choose(&[DType::I32, DType::I64]);
        return m.g.cast(near, to);
    }
    let x = m.integer()?;
    match m.r.next_below(9) {
        0 => {
            let to = m.r.choose(&[DType::I32, DType::I64, DType::I16, DType::I8, DType::U8]);
            m.g.cast(x, to)
        }
        1 => {
            let to = m.r.choose(&[DType::F32, DType::F64, DType::Bf16]);
            m.g.cast(x, to)
        }
        2 => {
            let op = m.r.choose(&[Div, FloorDiv, Remainder, Fmod]);
            let by = m.r.choose(&[2.0, 3.0, 7.0]);
            m.g.binary_scalar(op, x, by)
        }
        3 => {
            let axes: Vec<usize> = (0..m.g.shape(x).len()).filter(|_| m.r.next_below(2) == 0).collect();
            let op = m.r.choose(&[ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min]);
            m.g.reduce(op, x, axes)
        }
        4 if !m.g.shape(x).is_empty() => {
            let axis = m.r.next_below(m.g.shape(x).len());
            m.g.scan(ScanOp::Sum, x, axis)
        }
        5 => {
            let op = m.r.choose(&[UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Sign, UnaryOp::Not, UnaryOp::Relu]);
            m.g.unary(op, x)
        }
        6 => {
            let shape = m.g.shape(x).to_vec();
            let axis = if shape.is_empty() { return Err(unfit()) } else { m.r.next_below(shape.len()) };
            let dtype = m.g.dtype(x);
            let place = m.g.iota(dtype, shape, axis);
            m.g.binary(Add, x, place)
        }
        _ => {
            let y = m.integer()?;
            let dtype = m.g.dtype(x);
            let y = m.g.cast(y, dtype)?;
            let op = m.r.choose(&[Add, Sub, Mul, Max, Min, And, Or, Xor]);
            m.g.binary(op, x, y)
        }
    }
}

/// Comparisons and logical ops.
pub(super) fn compared(m: &mut Maker) -> Made {
    use CompareOp::*;
    let bools: Vec<ValueId> = m.others.iter().copied().filter(|v| m.g.dtype(*v) == DType::Bool).collect();
    match m.r.next_below(5) {
        0 if !bools.is_empty() => {
            let x = m.r.choose(&bools);
            let axes: Vec<usize> = (0..m.g.shape(x).len()).filter(|_| m.r.next_below(2) == 0).collect();
            let op = m.r.choose(&[ReduceOp::Any, ReduceOp::All]);
            m.g.reduce(op, x, axes)
        }
        1 if !bools.is_empty() => {
            let (x, y) = (m.r.choose(&bools), m.r.choose(&bools));
            let op = m.r.choose(&[BinaryOp::And, BinaryOp::Or, BinaryOp::Xor]);
            m.g.binary(op, x, y)
        }
        2 if !bools.is_empty() => {
            let x = m.r.choose(&bools);
            if m.once_in(2) { m.g.unary(UnaryOp::Not, x) } else { m.g.cast(x, DType::F32) }
        }
        _ => {
            let x = m.any()?;
            if m.g.dtype(x) == DType::Bool {
                return m.g.cast(x, DType::I64);
            }
            let y = m.partner(x)?;
            let op = m.r.choose(&[Eq, Ne, Lt, Le, Gt, Ge]);
            m.g.compare(op, x, y)
        }
    }
}
