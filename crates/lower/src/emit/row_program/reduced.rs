//! Accumulators of a pass over a row: how they start, take chunks, and are combined across lanes and parts.
use crate::emit::emitter::{Lanes, TileRow};
use crate::emit::frame::Frame;
use crate::emit::math;
use crate::emit::row_program::accumulator::{self, Acc, NOWHERE, fold, over_groups};
use crate::emit::row_program::{Pass, RowLoop, next_of};
use crate::nest::passes::{Reduced, is_arg};
use crate::scalar::dag::NodeId;
use crate::scalar::types;
use kiln_block::{BinaryOp as B, Elem, Value};
use kiln_graph::{DType, ReduceOp};

impl RowLoop<'_> {
    /// Types of an accumulator's values, across chunks and parts. The host accumulates f32 sums in f64, so that they
    /// are as exact as those of one chunk, whatever the number of chunks.
    pub(super) fn carried(&self, r: &Reduced) -> Vec<DType> {
        let Reduced::One { op, body, .. } = *r else { return vec![DType::F32; 2] };
        let dtype = self.scene.dag.node(body).dtype.compute();
        let wide = op == ReduceOp::Sum && dtype == DType::F32 && self.sums_chunks();
        let value = if wide { DType::F64 } else { dtype };
        if is_arg(op) { vec![value, DType::I32] } else { vec![value] }
    }
    /// The accumulator of no elements.
    pub(super) fn start(&self, f: &mut Frame, r: &Reduced, shape: &[usize]) -> Vec<Value> {
        let mut start = vec![];
        for (i, dtype) in self.carried(r).into_iter().enumerate() {
            let v = self.nothing(f, r, i, types::held(dtype));
            start.push(f.b.broadcast_to(v, shape));
        }
        start
    }
    /// Value number `i` of the accumulator of no elements.
    pub(super) fn nothing(&self, f: &mut Frame, r: &Reduced, i: usize, elem: Elem) -> Value {
        match r {
            Reduced::One { .. } if i > 0 => f.b.i32(NOWHERE),
            _ if i > 0 => math::float(&mut f.b, elem, 0.0),
            _ => math::identity(&mut f.b, r.op(), elem),
        }
    }
    /// An accumulator of the values that these begin with.
    pub(super) fn read(&self, f: &mut Frame, r: &Reduced, values: &mut impl Iterator<Item = Value>) -> Acc {
        let value = next_of(&mut f.b, values);
        Acc { value, other: r.has_two_values().then(|| next_of(&mut f.b, values)) }
    }

    /// One pass over the row for a level of reductions. `lane`: the lanes of a chunk.
    pub(super) fn accumulate(&self, f: &mut Frame, level: &[Reduced], lane: Option<Value>) -> Vec<Acc> {
        let roots: Vec<NodeId> = level.iter().map(Reduced::body).collect();
        self.hoist(f, &roots);
        let shape = self.sum_shape();
        let few = self.few_lanes(&roots);
        let to = |r: &Reduced| few.as_ref().filter(|_| !is_arg(r.op())).unwrap_or(&shape);
        let start: Vec<Value> = level.iter().flat_map(|r| self.start(f, r, to(r))).collect();
        let counts = level.iter().any(|r| matches!(r, Reduced::Moments(_)));
        let how = if counts { Pass::Counted } else { Pass::Plain };
        let end = self.over_chunks(f, lane, how, &start, |f, lanes, now| {
            let mut now = now.iter().copied();
            let mut next = vec![];
            for r in level {
                let acc = self.read(f, r, &mut now);
                let acc = self.add_chunk(f, r, acc, lanes, to(r));
                next.extend([Some(acc.value), acc.other].into_iter().flatten());
            }
            next
        });
        let mut end = end.into_iter();
        let mut done: Vec<Acc> = level.iter().map(|r| self.read(f, r, &mut end)).collect();
        for (acc, _) in done.iter_mut().zip(level).filter(|(_, r)| is_arg(r.op())) {
            acc.other = acc.other.map(|chunk| self.position(f, chunk, lane));
        }
        done
    }
    /// The accumulator with a chunk of the row.
    fn add_chunk(&self, f: &mut Frame, r: &Reduced, acc: Acc, lanes: Lanes, to: &[usize]) -> Acc {
        let v = f.em.value(&mut f.b, r.body());
        match r {
            Reduced::One { op, .. } if is_arg(*op) => {
                let shape = self.sum_shape();
                let v = f.b.broadcast_to(v, &shape);
                let chunk = self.chunk(f, lanes);
                let chunk = f.b.broadcast_to(chunk, &shape);
                accumulator::take(&mut f.b, *op, acc, v, chunk, lanes.mask)
            }
            Reduced::One { op, .. } => {
                let mut v = f.em.fill_outside(&mut f.b, *op, v, lanes);
                if self.sums_chunks() {
                    v = f.em.reduce_axis(&mut f.b, *op, v, self.tile_row());
                }
                let elem = math::elem(&mut f.b, acc.value);
                let v = f.b.cast(v, elem);
                let v = f.b.broadcast_to(v, &self.sum_shape());
                let v = over_groups(&mut f.b, *op, v, to);
                Acc { value: math::combine(&mut f.b, *op, acc.value, v), other: None }
            }
            Reduced::Exponentials(e) => {
                let v = f.em.fill_outside(&mut f.b, ReduceOp::Max, v, lanes);
                let v = f.b.broadcast_to(v, &self.tile_shape());
                e.add(&mut f.b, acc, v, to)
            }
            Reduced::Moments(m) => self.add_moments(f, m, acc, (v, lanes), to),
        }
    }
    /// Combines two accumulators, of these numbers of elements.
    pub(super) fn both(&self, f: &mut Frame, r: &Reduced, [x, y]: [Acc; 2], counts: [Value; 2]) -> Acc {
        match r {
            Reduced::One { op, .. } => match y.other {
                Some(position) => accumulator::take(&mut f.b, *op, x, y.value, position, None),
                None => {
                    let elem = math::elem(&mut f.b, x.value);
                    let y = f.b.cast(y.value, elem);
                    Acc { value: math::combine(&mut f.b, *op, x.value, y), other: None }
                }
            },
            Reduced::Exponentials(e) => e.joined(&mut f.b, x, y),
            Reduced::Moments(m) => m.joined(&mut f.b, [x, y], counts),
        }
    }
    /// Reduces the lanes of an accumulator to one, keeping the axis of tiles of rank 2. `count`: elements of each lane.
    pub(super) fn folded(&self, f: &mut Frame, r: &Reduced, acc: Acc, row: TileRow, count: Option<Value>) -> Acc {
        match r {
            Reduced::One { op, .. } => fold(f, *op, acc, Some(row)),
            Reduced::Exponentials(e) => e.folded(f, acc, row),
            Reduced::Moments(m) => m.folded(f, acc, row, count),
        }
    }
    /// Sets the nodes that an accumulator gives, in their compute types.
    pub(super) fn settle(&self, f: &mut Frame, r: &Reduced, acc: Acc) {
        match r {
            Reduced::One { node, body, .. } => {
                let v = match acc.other {
                    Some(at) => {
                        let at = accumulator::found(&mut f.b, at, at, 0);
                        f.b.cast(at, Elem::I64)
                    }
                    None => f.b.cast(acc.value, types::held(self.scene.dag.node(*body).dtype)),
                };
                f.em.set(*node, v);
            }
            Reduced::Exponentials(e) => {
                let sum = acc.second(&mut f.b);
                e.settle(f, acc.value, sum);
            }
            Reduced::Moments(m) => {
                let squares = acc.second(&mut f.b);
                f.em.set(m.sum, acc.value);
                f.em.set(m.squares, squares);
            }
        }
    }
    /// Elements of the row that each lane of an accumulator of this shape has of the `there` that this instance has
    /// from the start of one of its chunks on.
    pub(super) fn count_in_lanes(&self, f: &mut Frame, there: Value, shape: &[usize]) -> Value {
        let row = self.tile_row();
        let lanes = shape.get(row.axis).copied().unwrap_or(1);
        let mut lane = f.b.iota(lanes.max(1));
        for axis in (0..row.rank).filter(|a| *a != row.axis) {
            lane = f.b.expand_dims(lane, axis);
        }
        let lane = f.b.cast(lane, Elem::I32);
        let last = f.b.i32(lanes as i64 - 1);
        let before = f.b.binary(B::Sub, last, lane);
        let all = f.b.binary(B::Add, there, before);
        let n = f.b.i32(lanes as i64);
        let count = f.b.binary(B::Div, all, n);
        f.b.cast(count, Elem::F32)
    }
}
