//! Accumulators of reductions: how lanes are combined, and which of two positions an arg-reduction keeps.
use crate::emit::emitter::TileRow;
use crate::emit::frame::Frame;
use crate::emit::math;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Elem, UnaryOp as U, Value};
use kiln_graph::ReduceOp;

/// An accumulator: the value so far, and for arg-reductions its position.
#[derive(Clone, Copy)]
pub struct Acc {
    pub value: Value,
    pub other: Option<Value>,
}

impl Acc {
    /// The second value of a pair's accumulator.
    pub fn second(self, b: &mut Builder) -> Value {
        self.other.unwrap_or_else(|| b.broken("a pair of reductions has one value"))
    }
}

/// Greater than any position.
pub const NOWHERE: i64 = i32::MAX as i64;

/// Reduces the lanes of a chunk to the shape `to`: lanes that are a multiple of its size apart become one.
pub fn over_groups(b: &mut Builder, op: ReduceOp, v: Value, to: &[usize]) -> Value {
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let groups = count(&b.shape(v)) / count(to);
    if groups == 1 {
        return v;
    }
    let elem = math::elem(b, v);
    let v = b.reshape(v, &[&[groups], to].concat());
    b.reduce(math::reduce_op(op, elem), v, 0)
}

/// The inverse: each lane's value in all lanes of a chunk of this shape that became it.
pub fn to_groups(b: &mut Builder, v: Value, shape: &[usize]) -> Value {
    let old = b.shape(v);
    let groups = shape.iter().product::<usize>() / old.iter().product::<usize>();
    if groups == 1 {
        return v;
    }
    let v = b.expand_dims(v, 0);
    let v = b.broadcast_to(v, &[&[groups], &old[..]].concat());
    b.reshape(v, shape)
}

/// Reduces the lanes of `row`'s axis, keeping the axis in tiles of rank 2. Of equal values the first position wins.
pub fn fold(f: &mut Frame, op: ReduceOp, acc: Acc, row: Option<TileRow>) -> Acc {
    let Some(row) = row else { return acc };
    let Some(at) = acc.other else {
        return Acc { value: f.em.reduce_axis(&mut f.b, op, acc.value, row), other: None };
    };
    let side = if op == ReduceOp::ArgMin { ReduceOp::Min } else { ReduceOp::Max };
    let best = f.em.reduce_axis(&mut f.b, side, acc.value, row);
    let mut is = f.b.cmp(CmpOp::Eq, acc.value, best);
    if f.b.elem(best).is_some_and(Elem::is_float) {
        let (x, y) = (f.b.unary(U::IsNan, acc.value), f.b.unary(U::IsNan, best));
        let both = f.b.binary(B::And, x, y);
        is = f.b.binary(B::Or, is, both);
    }
    let nowhere = f.b.i32(NOWHERE);
    let at = f.b.select(is, at, nowhere);
    let at = f.em.reduce_axis(&mut f.b, ReduceOp::Min, at, row);
    Acc { value: best, other: Some(at) }
}

/// The better of an arg-reduction's accumulator and a new value at a later position. NaN is better than all but an
/// earlier NaN. What is no better than the accumulator of no elements leaves it `NOWHERE`: where no element is, all are
/// equal and the first is the best (`found`).
pub fn take(b: &mut Builder, op: ReduceOp, acc: Acc, v: Value, position: Value, mask: Option<Value>) -> Acc {
    let Some(at) = acc.other else { return acc };
    let elem = math::elem(b, v);
    let (x, y) = if elem == Elem::Bool { (b.cast(v, Elem::I32), b.cast(acc.value, Elem::I32)) } else { (v, acc.value) };
    let is_min = op == ReduceOp::ArgMin;
    let mut wins = if elem.is_float() {
        let no_better = b.cmp(if is_min { CmpOp::Ge } else { CmpOp::Le }, x, y);
        let (better, nan) = (b.unary(U::Not, no_better), b.unary(U::IsNan, y));
        let number = b.unary(U::Not, nan);
        b.binary(B::And, better, number)
    } else {
        b.cmp(if is_min { CmpOp::Lt } else { CmpOp::Gt }, x, y)
    };
    if let Some(m) = mask {
        wins = b.binary(B::And, wins, m);
    }
    Acc { value: b.select(wins, v, acc.value), other: Some(b.select(wins, position, at)) }
}

/// The position of an arg-reduction's accumulator, `or` where it has none.
pub fn found(b: &mut Builder, at: Value, position: Value, or: i64) -> Value {
    let (nowhere, or) = (b.i32(NOWHERE), b.i32(or));
    let none = b.cmp(CmpOp::Eq, at, nowhere);
    b.select(none, or, position)
}
