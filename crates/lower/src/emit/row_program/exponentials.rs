//! The maximum of a row and the sum of its exponentials, in one pass (Milakov and Gimelshein, "Online normalizer
//! calculation for softmax", 2018). Each lane has its own maximum; its sum is of the exponentials of what its elements
//! are less than that.
use crate::emit::emitter::TileRow;
use crate::emit::frame::Frame;
use crate::emit::math;
use crate::emit::row_program::accumulator::{Acc, over_groups, to_groups};
use crate::nest::passes::Exponentials;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Elem, UnaryOp as U, Value};
use kiln_graph::ReduceOp;

impl Exponentials {
    /// The accumulator with a chunk, whose lanes outside of the row are minus infinity. Elements that are a multiple of
    /// `to`'s size apart belong to one lane.
    pub(super) fn add(&self, b: &mut Builder, acc: Acc, x: Value, to: &[usize]) -> Acc {
        let of_chunk = over_groups(b, ReduceOp::Max, x, to);
        let max = b.binary(B::Max, acc.value, of_chunk);
        let shift = finite(b, max);
        let before = scaled(b, acc, shift);
        let shape = b.shape(x);
        let of_element = to_groups(b, shift, &shape);
        let terms = term(b, x, of_element);
        let terms = over_groups(b, ReduceOp::Sum, terms, to);
        Acc { value: max, other: Some(b.binary(B::Add, before, terms)) }
    }
    pub(super) fn joined(&self, b: &mut Builder, x: Acc, y: Acc) -> Acc {
        let max = b.binary(B::Max, x.value, y.value);
        let shift = finite(b, max);
        let (x, y) = (scaled(b, x, shift), scaled(b, y, shift));
        Acc { value: max, other: Some(b.binary(B::Add, x, y)) }
    }
    pub(super) fn folded(&self, f: &mut Frame, acc: Acc, row: TileRow) -> Acc {
        let max = f.em.reduce_axis(&mut f.b, ReduceOp::Max, acc.value, row);
        let shift = finite(&mut f.b, max);
        let terms = scaled(&mut f.b, acc, shift);
        Acc { value: max, other: Some(f.em.reduce_axis(&mut f.b, ReduceOp::Sum, terms, row)) }
    }
    /// Sets both nodes.
    pub(super) fn settle(&self, f: &mut Frame, max: Value, sum: Value) {
        f.em.set(self.max, max);
        let asked = f.em.value(&mut f.b, self.shift);
        let shift = finite(&mut f.b, max);
        let difference = f.b.binary(B::Sub, shift, asked);
        let factor = f.b.unary(U::Exp, difference);
        let sum = f.b.binary(B::Mul, sum, factor);
        f.em.set(self.sum, sum);
    }
}

/// `exp(x - y)` to be added up where it is at most 1: its error is that of the product, and grows with the
/// difference, but the value falls faster.
fn term(b: &mut Builder, x: Value, y: Value) -> Value {
    let difference = b.binary(B::Sub, x, y);
    let log2 = math::float(b, Elem::F32, std::f64::consts::LOG2_E);
    let power = b.binary(B::Mul, difference, log2);
    b.unary(U::Exp2Approx, power)
}
/// An accumulator's sum for another shift. Nothing is in a lane whose maximum is minus infinity: its factor is 0.
fn scaled(b: &mut Builder, acc: Acc, shift: Value) -> Value {
    let factor = term(b, acc.value, shift);
    let sum = acc.second(b);
    b.binary(B::Mul, sum, factor)
}
/// A maximum that may be subtracted: 0 where it is infinite.
fn finite(b: &mut Builder, max: Value) -> Value {
    let size = b.unary(U::Abs, max);
    let infinity = math::float(b, Elem::F32, f64::INFINITY);
    let zero = math::float(b, Elem::F32, 0.0);
    let infinite = b.cmp(CmpOp::Eq, size, infinity);
    b.select(infinite, zero, max)
}
