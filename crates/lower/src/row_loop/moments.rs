//! Mean and variance of rows that do not fit a tile, in one pass on a GPU: each thread accumulates the sum of its
//! elements and the sum of their squared deviations from its own mean. These are combined across elements, lanes and
//! parts, in this order, by the formula of Chan, Golub and LeVeque (1979), so that no more cancels than in two passes.
use super::split_row::Partial;
use super::{RowLoop, over_groups};
use crate::LowerError;
use crate::dag::{NodeId, NodeOp, Scene};
use crate::math;
use crate::tile::Frame;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Elem, Kernel, Value};
use kiln_graph::{BinaryOp, ReduceOp};
use kiln_plan::exec::Work;

/// A sum, and the sum of squared deviations from its mean.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    pub sum: NodeId,
    mean: NodeId,
    pub squares: NodeId,
    /// The elements that are summed.
    body: NodeId,
}

/// In each lane: a number of elements, their sum and their sum of squared deviations.
#[derive(Clone, Copy)]
struct Of {
    count: Value,
    sum: Value,
    squares: Value,
}

impl Moments {
    /// Those that the first two levels of reductions of rows of this length are, if they are nothing else.
    pub fn of(scene: &Scene, levels: &[Vec<NodeId>], row: usize) -> Option<Moments> {
        let ([sum], [squares]) = (&levels.first()?[..], &levels.get(1)?[..]) else { return None };
        let dag = &scene.dag;
        let NodeOp::Reduce { op: ReduceOp::Sum, body } = dag.node(*sum).op else { return None };
        let NodeOp::Reduce { op: ReduceOp::Sum, body: square } = dag.node(*squares).op else { return None };
        let NodeOp::Binary(BinaryOp::Mul, x, y) = dag.node(square).op else { return None };
        let NodeOp::Binary(BinaryOp::Sub, of, mean) = dag.node(x).op else { return None };
        let NodeOp::Binary(BinaryOp::Div, total, length) = dag.node(mean).op else { return None };
        let NodeOp::Const(length) = dag.node(length).op else { return None };
        let float = math::held(dag.node(body).dtype) == Elem::F32;
        let same = x == y && of == body && total == *sum && length.as_f64() == row as f64;
        (float && same).then_some(Moments { sum: *sum, mean, squares: *squares, body })
    }
}

impl RowLoop<'_> {
    /// The moments that the first two levels compute, if these compute nothing else.
    pub(super) fn find_moments(&self) -> Option<Moments> {
        let p = &self.plan;
        let fits = p.machine.arch.is_gpu() && !p.whole() && p.rank == 1 && p.row.block >= 2;
        Moments::of(self.scene, &self.levels, p.row.extent).filter(|_| fits)
    }

    /// The step that leaves the moments of each part in scratch.
    pub(super) fn partial_moments(&self, m: &Moments, own: &[Partial]) -> Result<Work<Kernel>, LowerError> {
        let name = format!("{}_part", self.name);
        let mut f = self.open_partial(&name, &[m.sum], &[], own);
        let lane = f.iota(self.plan.row);
        let found = self.moments(&mut f, m, lane);
        for ((_, places), v) in own.iter().zip(found) {
            for &(slot, dtype) in places {
                self.store_partial(&mut f, slot, dtype, v);
            }
        }
        f.finish()
    }

    /// One pass over this instance's part of the row: its sum and sum of squared deviations.
    pub(super) fn moments(&self, f: &mut Frame, m: &Moments, lane: Option<Value>) -> [Value; 2] {
        self.hoist(f, &[m.body]);
        let few = self.few_lanes(&[m.body]).unwrap_or_else(|| self.tile_shape());
        let [lo, hi] = self.bounds(f);
        let chunk = f.b.i32(self.plan.row.block as i64);
        // Whole chunks have the same number of elements in every lane; the tail of the row has not.
        let there = f.b.binary(B::Sub, hi, lo);
        let left = f.b.binary(B::Rem, there, chunk);
        let whole = f.b.binary(B::Sub, hi, left);
        let zero = math::float(&mut f.b, Elem::F32, 0.0);
        let none = f.b.broadcast_to(zero, &few);
        let lanes: i64 = few.iter().product::<usize>() as i64;
        let now = self.over(f, lane, [lo, whole], false, &[none, none], |f, lanes_now, now| {
            let before = lanes_now.base.map_or(lo, |base| f.b.cast(base, Elem::I32));
            let before = f.b.binary(B::Sub, before, lo);
            let count = count_of(&mut f.b, before, lanes);
            let x = self.element(f, m);
            let more = of_groups(&mut f.b, x, None, &few);
            let all = joined(&mut f.b, Of { count, sum: now[0], squares: now[1] }, more);
            vec![all.sum, all.squares]
        });
        let before = f.b.binary(B::Sub, whole, lo);
        let count = count_of(&mut f.b, before, lanes);
        let mut all = Of { count, sum: now[0], squares: now[1] };
        if !self.plan.row.extent.is_multiple_of(self.plan.row.block) {
            let count = f.b.broadcast_to(count, &few);
            let start = [count, all.sum, all.squares];
            let end = self.over(f, lane, [whole, hi], true, &start, |f, lanes, now| {
                let x = self.element(f, m);
                let more = of_groups(&mut f.b, x, lanes.mask, &few);
                let all = joined(&mut f.b, Of { count: now[0], sum: now[1], squares: now[2] }, more);
                vec![all.count, all.sum, all.squares]
            });
            all = Of { count: end[0], sum: end[1], squares: end[2] };
        }
        let there = f.b.cast(there, Elem::F32);
        let sum = f.em.reduce_axis(&mut f.b, ReduceOp::Sum, all.sum, self.tile_row());
        let mean = f.b.binary(B::Div, sum, there);
        [sum, self.about(f, all, mean)]
    }

    fn element(&self, f: &mut Frame, m: &Moments) -> Value {
        let x = f.em.value(&mut f.b, m.body);
        f.b.broadcast_to(x, &self.tile_shape())
    }

    /// Sum of squared deviations from the mean of all lanes.
    fn about(&self, f: &mut Frame, of: Of, mean: Value) -> Value {
        let b = &mut f.b;
        let own = mean_of(b, of);
        let apart = b.binary(B::Sub, own, mean);
        let apart = where_some(b, of.count, apart);
        let square = b.binary(B::Mul, apart, apart);
        let square = b.binary(B::Mul, square, of.count);
        let squares = b.binary(B::Add, of.squares, square);
        f.em.reduce_axis(&mut f.b, ReduceOp::Sum, squares, self.tile_row())
    }

    /// Sets the sum, the mean and the squares from the moments of all parts.
    pub(super) fn combine_moments(&self, f: &mut Frame, m: &Moments, done: &[Partial]) {
        let slots = |n: NodeId| done.iter().find(|d| d.0 == n).map(|d| &d.1[..]).unwrap_or_default();
        let mut read = vec![];
        for n in [m.sum, m.squares] {
            read.extend(self.read_lanes(f, ReduceOp::Sum, slots(n), None));
        }
        let [sum, squares] = read[..] else {
            f.b.broken("moments of a row are not one sum and one sum of squares");
            return;
        };
        let p = &self.plan;
        let part = f.b.iota(p.parts.next_power_of_two());
        let length = f.b.i32(p.part_len() as i64);
        let before = f.b.binary(B::Mul, part, length);
        let (all, none) = (f.b.i32(p.row.extent as i64), f.b.i32(0));
        let left = f.b.binary(B::Sub, all, before);
        let left = f.b.binary(B::Max, left, none);
        let count = f.b.binary(B::Min, left, length);
        let count = f.b.cast(count, Elem::F32);
        let total = f.em.reduce_axis(&mut f.b, ReduceOp::Sum, sum, self.tile_row());
        f.em.set(m.sum, total);
        let mean = f.em.value(&mut f.b, m.mean);
        let squares = self.about(f, Of { count, sum, squares }, mean);
        f.em.set(m.squares, squares);
    }
}

/// Elements of each lane, of `all` in `lanes` lanes.
fn count_of(b: &mut Builder, all: Value, lanes: i64) -> Value {
    let lanes = b.i32(lanes);
    let each = b.binary(B::Div, all, lanes);
    b.cast(each, Elem::F32)
}

/// Moments of a chunk: elements that are a multiple of `few`'s size apart belong to one lane.
fn of_groups(b: &mut Builder, x: Value, mask: Option<Value>, few: &[usize]) -> Of {
    let shape = b.shape(x);
    let count = |shape: &[usize]| shape.iter().product::<usize>();
    let groups = [&[count(&shape) / count(few)], few].concat();
    let zero = math::float(b, Elem::F32, 0.0);
    let inside = |b: &mut Builder, v: Value| mask.map_or(v, |m| b.select(m, v, zero));
    let there = inside(b, x);
    let sum = over_groups(b, ReduceOp::Sum, there, few);
    let count = match mask {
        Some(mask) => {
            let each = b.cast(mask, Elem::F32);
            over_groups(b, ReduceOp::Sum, each, few)
        }
        None => math::float(b, Elem::F32, groups[0] as f64),
    };
    let mean = mean_of(b, Of { count, sum, squares: zero });
    let mean = b.expand_dims(mean, 0);
    let mean = b.broadcast_to(mean, &groups);
    let mean = b.reshape(mean, &shape);
    let apart = b.binary(B::Sub, x, mean);
    let square = b.binary(B::Mul, apart, apart);
    let square = inside(b, square);
    Of { count, sum, squares: over_groups(b, ReduceOp::Sum, square, few) }
}

/// Combines two: for means that are `d` apart, squares grow by `d² · n·k / (n + k)`.
fn joined(b: &mut Builder, x: Of, y: Of) -> Of {
    let count = b.binary(B::Add, x.count, y.count);
    let (of_x, of_y) = (mean_of(b, x), mean_of(b, y));
    let apart = b.binary(B::Sub, of_x, of_y);
    let apart = where_some(b, x.count, apart);
    let apart = where_some(b, y.count, apart);
    let share = part_of(b, y.count, count);
    let weight = b.binary(B::Mul, x.count, share);
    let square = b.binary(B::Mul, apart, apart);
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
    let each = part_of(b, one, x.count);
    b.binary(B::Mul, x.sum, each)
}
/// `v`, or 0 where there are no elements.
fn where_some(b: &mut Builder, count: Value, v: Value) -> Value {
    let zero = math::float(b, Elem::F32, 0.0);
    let some = b.cmp(CmpOp::Gt, count, zero);
    b.select(some, v, zero)
}
