//! Mean and variance of a row in one pass: each lane accumulates the sum of its elements and the sum of their squared
//! deviations from its own mean. These are combined across elements, lanes and parts, in this order, by the formula of
//! Chan, Golub and LeVeque (1979), so that no more cancels than in two passes.
use crate::emit::emitter::{Lanes, TileRow};
use crate::emit::frame::Frame;
use crate::emit::math;
use crate::emit::row_program::RowLoop;
use crate::emit::row_program::accumulator::{Acc, over_groups, to_groups};
use crate::nest::passes::Moments;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Elem, Value};
use kiln_graph::ReduceOp;

/// In each lane: a number of elements, their sum and their sum of squared deviations.
#[derive(Clone, Copy)]
struct Of {
    count: Value,
    sum: Value,
    squares: Value,
}

impl Moments {
    pub(super) fn joined(&self, b: &mut Builder, [x, y]: [Acc; 2], counts: [Value; 2]) -> Acc {
        let x = Of { count: counts[0], sum: x.value, squares: x.second(b) };
        let y = Of { count: counts[1], sum: y.value, squares: y.second(b) };
        let all = joined(b, x, y);
        Acc { value: all.sum, other: Some(all.squares) }
    }
    /// Reduces lanes of these numbers of elements to one.
    pub(super) fn folded(&self, f: &mut Frame, acc: Acc, row: TileRow, count: Option<Value>) -> Acc {
        let squares = acc.second(&mut f.b);
        let count = count.unwrap_or_else(|| f.b.broken("moments without a number of elements"));
        // Numbers are the same for all columns.
        let count = f.b.broadcast_to(count, &f.b.shape(acc.value));
        let all = f.em.reduce_axis(&mut f.b, ReduceOp::Sum, count, row);
        let sum = f.em.reduce_axis(&mut f.b, ReduceOp::Sum, acc.value, row);
        let mean = f.b.binary(B::Div, sum, all);
        let b = &mut f.b;
        let mean_of_lane = mean_of(b, Of { count, sum: acc.value, squares });
        let difference = b.binary(B::Sub, mean_of_lane, mean);
        let difference = where_some(b, count, difference);
        let square = b.binary(B::Mul, difference, difference);
        let square = b.binary(B::Mul, square, count);
        let squares = b.binary(B::Add, squares, square);
        Acc { value: sum, other: Some(f.em.reduce_axis(&mut f.b, ReduceOp::Sum, squares, row)) }
    }
}

impl RowLoop<'_> {
    /// The moments of a row with those of a chunk of it, whose lanes these are.
    pub(super) fn add_moments(
        &self,
        f: &mut Frame,
        m: &Moments,
        acc: Acc,
        (x, lanes): (Value, Lanes),
        to: &[usize],
    ) -> Acc {
        let [lo, hi] = self.bounds(f);
        let base = lanes.base.map_or(lo, |base| f.b.cast(base, Elem::I32));
        let of_row = to.get(self.plan.row.axis).copied().unwrap_or(1).max(1);
        // Lanes have the same number of elements of whole chunks.
        let before = f.b.binary(B::Sub, base, lo);
        let n = f.b.i32(of_row as i64);
        let before = f.b.binary(B::Div, before, n);
        let before = f.b.cast(before, Elem::F32);
        let count = match lanes.mask {
            Some(_) => {
                let left = f.b.binary(B::Sub, hi, base);
                self.count_in_lanes(f, left, to)
            }
            None => math::float(&mut f.b, Elem::F32, (self.plan.row.block / of_row) as f64),
        };
        let x = f.b.broadcast_to(x, &self.tile_shape());
        let chunk = of_groups(&mut f.b, x, lanes.mask, count, to);
        m.joined(&mut f.b, [acc, chunk], [before, count])
    }
}

/// Moments of a chunk: elements that are a multiple of `to`'s size apart belong to one lane, which has `count` of them.
fn of_groups(b: &mut Builder, x: Value, mask: Option<Value>, count: Value, to: &[usize]) -> Acc {
    let shape = b.shape(x);
    let zero = math::float(b, Elem::F32, 0.0);
    let inside = |b: &mut Builder, v: Value| mask.map_or(v, |m| b.select(m, v, zero));
    let there = inside(b, x);
    let sum = over_groups(b, ReduceOp::Sum, there, to);
    let mean = mean_of(b, Of { count, sum, squares: zero });
    let mean = b.broadcast_to(mean, to);
    let mean = to_groups(b, mean, &shape);
    let difference = b.binary(B::Sub, x, mean);
    let square = b.binary(B::Mul, difference, difference);
    let square = inside(b, square);
    Acc { value: sum, other: Some(over_groups(b, ReduceOp::Sum, square, to)) }
}

/// Combines two: for means that are `d` apart, squares grow by `d² · n·k / (n + k)`.
fn joined(b: &mut Builder, x: Of, y: Of) -> Of {
    let count = b.binary(B::Add, x.count, y.count);
    let (of_x, of_y) = (mean_of(b, x), mean_of(b, y));
    let difference = b.binary(B::Sub, of_x, of_y);
    let difference = where_some(b, x.count, difference);
    let difference = where_some(b, y.count, difference);
    let share = part_of(b, y.count, count);
    let weight = b.binary(B::Mul, x.count, share);
    let square = b.binary(B::Mul, difference, difference);
    let square = b.binary(B::Mul, square, weight);
    let squares = b.binary(B::Add, x.squares, y.squares);
    Of { count, sum: b.binary(B::Add, x.sum, y.sum), squares: b.binary(B::Add, squares, square) }
}

/// `x / all`, where `all` counts as 1 if it is 0.
fn part_of(b: &mut Builder, x: Value, all: Value) -> Value {
    let one = math::float(b, Elem::F32, 1.0);
    let some = b.binary(B::Max, all, one);
    b.binary(B::Div, x, some)
}
fn mean_of(b: &mut Builder, x: Of) -> Value {
    let one = math::float(b, Elem::F32, 1.0);
    let reciprocal = part_of(b, one, x.count);
    b.binary(B::Mul, x.sum, reciprocal)
}
/// `v`, or 0 where there are no elements.
fn where_some(b: &mut Builder, count: Value, v: Value) -> Value {
    let zero = math::float(b, Elem::F32, 0.0);
    let some = b.cmp(CmpOp::Gt, count, zero);
    b.select(some, v, zero)
}
