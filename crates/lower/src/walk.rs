//! Emission of row programs: in one tile, or level by level in loops, with partial results in scratch where a row is shared.
use crate::dag::{NodeId, NodeOp, Scene, Store};
use crate::emit::{Lanes, TileRow, joint};
use crate::expr::{CoordId, Expr, linear};
use crate::math;
use crate::rest;
use crate::rows::{Emitted, RowPlan};
use crate::tile::{Frame, Used, loads, open, open_with};
use crate::{LowerError, Target};
use kiln_block::passes::ahead;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Const, Elem, Type as BlockType, UnaryOp as U, Value};
use kiln_graph::{DType, ReduceOp, Type};
use kiln_plan::exec::{Slot, Work};

mod scans;

pub struct Walk<'a> {
    name: &'a str,
    pub scene: &'a Scene,
    pub plan: RowPlan,
    /// Coordinates a node depends on, the row of its own reductions left out.
    deps: Vec<Vec<CoordId>>,
    /// Reductions that depend on no other of the list before theirs.
    pub levels: Vec<Vec<NodeId>>,
    scratch: Vec<Type>,
    first_scratch: u32,
}

/// A reduction under way: the value so far, and for arg-reductions its position.
#[derive(Clone, Copy)]
struct Acc {
    value: Value,
    at: Option<Value>,
}

/// A reduction whose partial results are in scratch: values, and positions of an arg-reduction.
type Partial = (NodeId, Vec<(Slot, DType)>);

/// Loads of a thread that are all asked for first, at most.
const FIRST: usize = 4;

/// Greater than any position.
const NOWHERE: i64 = i32::MAX as i64;

fn is_arg(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin)
}

impl<'a> Walk<'a> {
    pub fn new(name: &'a str, scene: &'a Scene, plan: RowPlan, first_scratch: u32) -> Walk<'a> {
        let deps = scene.dag.depends(&[plan.row.id]);
        let mut depth = vec![0usize; scene.dag.nodes.len()];
        let mut levels: Vec<Vec<NodeId>> = vec![];
        for n in scene.live() {
            let node = scene.dag.node(n);
            let below = node.operands().into_iter().map(|o| depth[o as usize]).max().unwrap_or(0);
            depth[n as usize] = below;
            if matches!(node.op, NodeOp::Reduce { .. }) {
                depth[n as usize] = below + 1;
                levels.resize_with(levels.len().max(below + 1), Vec::new);
                levels[below].push(n);
            }
        }
        Walk { name, scene, plan, deps, levels, scratch: vec![], first_scratch }
    }

    pub fn emit(mut self) -> Result<Emitted, LowerError> {
        if self.plan.row.extent >= NOWHERE as usize {
            let why = "a row of 2^31 elements or more".to_string();
            return Err(LowerError::Unsupported { kernel: self.name.to_string(), why });
        }
        let has_scan = !self.scans().is_empty();
        if has_scan {
            let above = |n: &NodeId| self.scene.dag.reach(&[*n]).iter().any(|m| self.is_scan(*m));
            if self.levels.iter().flatten().any(above) {
                let why = "a reduction of a scan".to_string();
                return Err(LowerError::Unsupported { kernel: self.name.to_string(), why });
            }
            if !self.scans_in_parts() {
                self.plan.parts = 1;
            }
        }
        let steps = match self.plan.parts {
            _ if self.plan.whole() => vec![self.in_tile()],
            1 => vec![self.in_loops()],
            _ if has_scan => self.scan_parts(),
            _ => self.in_parts(),
        };
        Ok(Emitted { scratch: std::mem::take(&mut self.scratch), steps })
    }

    fn in_tile(&self) -> Work<kiln_block::Kernel> {
        let p = &self.plan;
        let mut f = open(self.name, self.scene, &p.shape(1));
        if p.stay.is_none() {
            f.ask_ahead(self.scene, p);
        }
        let any_order = || self.scene.live().into_iter().all(|n| self.scene.dag.node(n).sums_in_any_order());
        if let Some(rest) = rest::rest(p).filter(|_| any_order()) {
            self.in_pieces(&mut f, rest);
            return f.finish();
        }
        let lanes = match &p.shift {
            Some(shift) => f.shifted(p.row, shift, 0),
            None => f.lanes(p.row, None),
        };
        f.em.coords.insert(p.row.id, lanes);
        f.em.run = if p.packed { f.run(p) } else { None };
        f.em.scan_in = p.scanned(Elem::F32);
        f.em.row = Some(self.tile_row());
        for n in self.asked_first() {
            f.em.value(&mut f.b, n);
        }
        for s in &self.scene.stores {
            f.store(s);
        }
        let work = f.finish();
        match (work, p.stay) {
            (Work::Block { code, args }, Some(stay)) => {
                Work::Block { code: ahead::run(&code, stay).unwrap_or(code), args }
            }
            (work, _) => work,
        }
    }

    /// Loads that are under way before the first reduction, also of what is needed behind it, as a gain: where threads have
    /// registers for them. The assembler makes short rows of halves that were read as a run worse by it.
    fn asked_first(&self) -> Vec<NodeId> {
        let p = &self.plan;
        let load = |n: &NodeId| matches!(self.scene.dag.node(*n).op, NodeOp::Load { .. });
        let loads: Vec<NodeId> = self.scene.live().into_iter().filter(load).collect();
        let run = p.packed && loads.iter().any(|n| self.scene.dag.node(*n).dtype.bytes() < 4);
        let gpu = p.target != Target::Host && p.stay.is_none() && p.warps <= 16;
        if gpu && !run && loads.len() <= FIRST { loads } else { vec![] }
    }

    fn in_loops(&self) -> Work<kiln_block::Kernel> {
        let mut f = open(self.name, self.scene, &self.plan.shape(1));
        let lane = f.iota(self.plan.row);
        for level in &self.levels {
            let done = self.accumulate(&mut f, level, lane);
            for (&n, acc) in level.iter().zip(done) {
                let v = self.result(&mut f, n, acc, lane);
                f.em.set(n, v);
            }
        }
        self.write(&mut f, lane);
        f.finish()
    }

    /// Values before a loop that all of it needs: what the nodes read and does not depend on the row.
    fn hoist(&self, f: &mut Frame, roots: &[NodeId]) {
        let row = self.plan.row.id;
        let inside = |n: NodeId| self.deps[n as usize].contains(&row);
        let known = |n: NodeId| f.em.get(n).is_some() || !inside(n);
        let reach = self.scene.dag.reach_until(roots, known);
        for n in reach.into_iter().filter(|n| !inside(*n)) {
            f.em.value(&mut f.b, n);
        }
    }

    /// The loop over this instance's part of the row.
    fn over_chunks(
        &self,
        f: &mut Frame,
        lane: Option<Value>,
        carried: &[Value],
        mut body: impl FnMut(&mut Frame, Lanes, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let row = self.plan.row;
        let step = f.b.i32(row.block as i64);
        let (lo, hi) = match f.part {
            Some(part) => {
                let part = f.b.cast(part, Elem::I32);
                let len = f.b.i32(self.plan.part_len() as i64);
                let lo = f.b.binary(B::Mul, part, len);
                let hi = f.b.binary(B::Add, lo, len);
                let n = f.b.i32(row.extent as i64);
                (lo, f.b.binary(B::Min, hi, n))
            }
            None => (f.b.i32(0), f.b.i32(row.extent as i64)),
        };
        // Even chunks need no mask: parts are whole chunks, and the last ends with the row.
        let ragged = !row.extent.is_multiple_of(row.block);
        // The builder is moved through the closure, so that the frame can be used inside.
        let mut b = std::mem::replace(&mut f.b, Builder::new("", [0; 3], 1));
        let out = b.for_loop([lo, hi, step], carried, |inner, index, now| {
            std::mem::swap(inner, &mut f.b);
            f.em.enter();
            let base = f.b.cast(index, f.em.index);
            let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, row.extent));
            let lanes = Lanes { base: Some(base), lane, mask };
            f.em.coords.insert(row.id, lanes);
            let next = body(f, lanes, now);
            f.em.leave();
            std::mem::swap(inner, &mut f.b);
            next
        });
        f.b = b;
        out
    }

    /// One pass over the row for a level of reductions.
    fn accumulate(&self, f: &mut Frame, level: &[NodeId], lane: Option<Value>) -> Vec<Acc> {
        let bodies: Vec<(ReduceOp, NodeId)> = level.iter().filter_map(|&n| self.reduced(n)).collect();
        let roots: Vec<NodeId> = bodies.iter().map(|b| b.1).collect();
        self.hoist(f, &roots);
        let shape = self.sum_shape();
        let mut start = vec![];
        for (op, body) in &bodies {
            let elem = math::held(self.carried(*op, *body));
            let id = math::identity(&mut f.b, *op, elem);
            start.push(f.b.broadcast_to(id, &shape));
            if is_arg(*op) {
                let nowhere = f.b.i32(NOWHERE);
                start.push(f.b.broadcast_to(nowhere, &shape));
            }
        }
        let end = self.over_chunks(f, lane, &start, |f, lanes, now| {
            let mut next = vec![];
            let mut now = now.iter().copied();
            for (op, body) in &bodies {
                let v = f.em.value(&mut f.b, *body);
                let Some(acc) = now.next() else { break };
                if is_arg(*op) {
                    let Some(at) = now.next() else { break };
                    let v = f.b.broadcast_to(v, &shape);
                    let position = self.position(f, &shape);
                    let best = take(&mut f.b, *op, Acc { value: acc, at: Some(at) }, v, position, lanes.mask);
                    next.extend([Some(best.value), best.at].into_iter().flatten());
                } else {
                    let mut v = f.em.fill_outside(&mut f.b, *op, v, lanes);
                    if self.sums_chunks() {
                        v = f.em.reduce_axis(&mut f.b, *op, v, self.tile_row());
                    }
                    let v = f.b.cast(v, math::held(self.carried(*op, *body)));
                    let v = f.b.broadcast_to(v, &shape);
                    next.push(math::combine(&mut f.b, *op, acc, v));
                }
            }
            next
        });
        let mut end = end.into_iter();
        (bodies.iter())
            .map(|(op, _)| Acc {
                value: end.next().unwrap_or(Value(0)),
                at: if is_arg(*op) { end.next() } else { None },
            })
            .collect()
    }
    /// What is combined along the row for a reduction, or for the totals of a scan.
    fn reduced(&self, n: NodeId) -> Option<(ReduceOp, NodeId)> {
        match self.scene.dag.node(n).op {
            NodeOp::Reduce { op, body } => Some((op, body)),
            NodeOp::Scan { op, body } => Some((scans::as_reduction(op), body)),
            _ => None,
        }
    }
    /// What a reduction is carried in, from chunk to chunk and part to part. The host has f64 for sums of f32, which are then
    /// as exact as those of a chunk, whatever the number of chunks.
    fn carried(&self, op: ReduceOp, body: NodeId) -> DType {
        let dtype = self.scene.dag.node(body).dtype.compute();
        if op == ReduceOp::Sum && dtype == DType::F32 && self.sums_chunks() { DType::F64 } else { dtype }
    }

    /// On the host chunks are summed before they are added to what the row has so far: lanes of a whole chunk would not stay
    /// in registers, nor in the cache where rows lie across memory.
    fn sums_chunks(&self) -> bool {
        let p = &self.plan;
        let chunks = (p.rank == 1 || p.row.axis == 0) && p.row.block > 1 && !p.whole();
        let all = || self.levels.iter().flatten().all(|&n| self.scene.dag.node(n).sums_in_any_order());
        p.target == Target::Host && chunks && all()
    }
    pub fn tile_row(&self) -> TileRow {
        TileRow { coord: self.plan.row.id, axis: self.plan.row.axis, rank: self.plan.rank }
    }
    /// Shape of the accumulators: every lane of the tile, or one for all lanes of the row.
    fn sum_shape(&self) -> Vec<usize> {
        let mut shape = self.tile_shape();
        if self.sums_chunks() && self.plan.rank == 1 {
            return vec![];
        }
        if self.sums_chunks()
            && let Some(n) = shape.get_mut(self.plan.row.axis)
        {
            *n = 1;
        }
        shape
    }
    /// Every lane of the tile.
    fn tile_shape(&self) -> Vec<usize> {
        let mut shape = vec![1; self.plan.rank];
        let mut lanes = false;
        for c in self.plan.kept.iter().chain([&self.plan.row]).filter(|c| c.block > 1) {
            shape[c.axis] = c.block;
            lanes = true;
        }
        if lanes { shape } else { vec![] }
    }
    fn position(&self, f: &mut Frame, shape: &[usize]) -> Value {
        let at = f.em.expr(&mut f.b, &Expr::coord(self.plan.row.id, self.plan.row.extent));
        let at = f.b.cast(at, Elem::I32);
        f.b.broadcast_to(at, shape)
    }

    /// The lanes of an accumulator into one, keeping the axis.
    fn fold_lanes(&self, f: &mut Frame, op: ReduceOp, acc: Acc, lane: Option<Value>) -> Acc {
        let row = lane.filter(|_| !self.sums_chunks()).map(|_| self.tile_row());
        fold(f, op, acc, row)
    }
    /// The value of a reduction from its accumulator.
    fn result(&self, f: &mut Frame, n: NodeId, acc: Acc, lane: Option<Value>) -> Value {
        let Some((op, body)) = self.reduced(n) else { return acc.value };
        let acc = self.fold_lanes(f, op, acc, lane);
        self.settled(f, body, acc)
    }
    /// What is in an accumulator, in the type that nodes are held in.
    fn settled(&self, f: &mut Frame, body: NodeId, acc: Acc) -> Value {
        match acc.at {
            Some(at) => f.b.cast(at, Elem::I64),
            None => f.b.cast(acc.value, math::held(self.scene.dag.node(body).dtype)),
        }
    }

    /// Stores: those along the row in one more pass, the others once.
    fn write(&self, f: &mut Frame, lane: Option<Value>) {
        let row = self.plan.row.id;
        let (along, once): (Vec<&Store>, Vec<&Store>) = self.scene.stores.iter().partition(|s| s.at.uses(row));
        for s in once {
            f.store(s);
        }
        if along.is_empty() {
            return;
        }
        let roots: Vec<NodeId> = along.iter().map(|s| s.value).collect();
        self.hoist(f, &roots);
        let start = self.scan_starts(f);
        self.write_along(f, lane, &along, &start);
    }
    /// The pass that stores along the row, with scans that start from these values.
    fn write_along(&self, f: &mut Frame, lane: Option<Value>, along: &[&Store], start: &[Value]) {
        self.over_chunks(f, lane, start, |f, lanes, now| {
            let next = self.scan_chunk(f, lanes, now);
            along.iter().for_each(|s| f.store(s));
            next
        });
    }

    /// One step per level, leaving partial results, and one that writes.
    fn in_parts(&mut self) -> Vec<Work<kiln_block::Kernel>> {
        self.settle_parts();
        let mut slots: Vec<Partial> = vec![];
        let mut steps = vec![];
        for i in 0..self.levels.len() {
            let level = self.levels[i].clone();
            let own = self.partials(&level);
            steps.push(self.partial_step(&format!("{}_part{i}", self.name), &level, &slots, &own));
            slots.extend(own);
        }
        steps.push(self.final_step(&slots));
        steps
    }
    /// As many parts as there are with whole chunks in each.
    fn settle_parts(&mut self) {
        self.plan.parts = self.plan.row.extent.div_ceil(self.plan.part_len());
    }
    /// Room for a partial result of each part and row.
    fn partials(&mut self, level: &[NodeId]) -> Vec<Partial> {
        let count = self.plan.parts * self.rows();
        let mut own = vec![];
        for &n in level {
            let Some((op, body)) = self.reduced(n) else { continue };
            let mut dtypes = vec![self.carried(op, body)];
            if is_arg(op) {
                dtypes.push(DType::I32);
            }
            own.push((n, dtypes.into_iter().map(|d| (self.new_scratch(d, count), d)).collect()));
        }
        own
    }
    fn new_scratch(&mut self, dtype: DType, count: usize) -> Slot {
        self.scratch.push(Type::new(dtype, [count]));
        Slot::Scratch(self.first_scratch + self.scratch.len() as u32 - 1)
    }
    /// Position of the row in partial results.
    fn row_number(&self) -> Expr {
        let ix: Vec<Expr> = self.plan.kept.iter().map(|c| Expr::coord(c.id, c.extent)).collect();
        let shape: Vec<usize> = self.plan.kept.iter().map(|c| c.extent).collect();
        linear(&ix, &shape)
    }
    fn rows(&self) -> usize {
        self.plan.kept.iter().map(|c| c.extent).product()
    }

    fn partial_step(
        &self,
        name: &str,
        level: &[NodeId],
        before: &[Partial],
        own: &[Partial],
    ) -> Work<kiln_block::Kernel> {
        let done = |n: NodeId| before.iter().any(|b| b.0 == n);
        let mut used = loads(&self.scene.dag, level, done);
        used.extend(places(before, true));
        used.extend(places(own, false));
        let mut f = open_with(name, self.scene, &self.plan.shape(self.plan.parts), &used);
        self.combine_parts(&mut f, before);
        let lane = f.iota(self.plan.row);
        let done = self.accumulate(&mut f, level, lane);
        for ((n, places), acc) in own.iter().zip(done) {
            let Some((op, _)) = self.reduced(*n) else { continue };
            let acc = self.fold_lanes(&mut f, op, acc, lane);
            for (&(slot, dtype), v) in places.iter().zip([Some(acc.value), acc.at].into_iter().flatten()) {
                self.store_partial(&mut f, slot, dtype, v);
            }
        }
        f.finish()
    }
    fn store_partial(&self, f: &mut Frame, slot: Slot, dtype: DType, v: Value) {
        let s = Store { slot, dtype, at: self.row_number(), guards: vec![], value: 0 };
        let Some(&p) = f.em.params.get(&slot) else { return };
        if let Some(part) = f.part {
            let rows = f.em.int(&mut f.b, self.rows() as i64);
            let offset = f.b.binary(B::Mul, part, rows);
            let moved = f.b.ptr_add(p, offset);
            f.em.params.insert(slot, moved);
        }
        f.store_value(&s, v);
        f.em.params.insert(slot, p);
    }

    /// Reductions whose parts are in scratch.
    fn combine_parts(&self, f: &mut Frame, done: &[Partial]) {
        for (n, places) in done {
            let Some((op, body)) = self.reduced(*n) else { continue };
            let acc = self.combined(f, op, places, None);
            let v = self.settled(f, body, acc);
            f.em.set(*n, v);
        }
    }
    /// The partial results of all parts, or of those before part `until`: read and combined in the order of the parts.
    fn combined(&self, f: &mut Frame, op: ReduceOp, places: &[(Slot, DType)], until: Option<Value>) -> Acc {
        if self.plan.kept.iter().all(|c| c.block == 1) {
            self.combine_lanes(f, op, places, until)
        } else {
            self.combine_loop(f, op, places, until)
        }
    }
    /// One row: all its parts in one block.
    fn combine_lanes(&self, f: &mut Frame, op: ReduceOp, places: &[(Slot, DType)], until: Option<Value>) -> Acc {
        let wide = self.plan.parts.next_power_of_two();
        let mut lane = f.b.iota(wide);
        lane = f.b.cast(lane, f.em.index);
        let rows = f.em.int(&mut f.b, self.rows() as i64);
        let offset = f.b.binary(B::Mul, lane, rows);
        let mask = match until {
            Some(part) => Some(f.b.cmp(CmpOp::Lt, lane, part)),
            None => (wide != self.plan.parts).then(|| f.below(None, lane, self.plan.parts)),
        };
        let mut read = vec![];
        for (i, &(slot, dtype)) in places.iter().enumerate() {
            let p = f.em.address(&mut f.b, slot, &self.row_number());
            let p = f.b.ptr_add(p, offset);
            let elem = math::stored(dtype);
            let other = mask.map(|_| if i == 0 { math::identity(&mut f.b, op, elem) } else { f.b.i32(NOWHERE) });
            read.push(f.b.load(p, mask, other));
        }
        let acc = Acc { value: read.first().copied().unwrap_or(Value(0)), at: read.get(1).copied() };
        let row = TileRow { coord: self.plan.row.id, axis: 0, rank: 1 };
        // Tiles of rank 2 take scalars as they are.
        fold(f, op, acc, Some(row))
    }
    fn combine_loop(&self, f: &mut Frame, op: ReduceOp, places: &[(Slot, DType)], until: Option<Value>) -> Acc {
        let lanes: Vec<Value> = self.plan.kept.iter().filter_map(|c| f.em.coords.get(&c.id)?.lane).collect();
        let shape = lanes.iter().fold(vec![], |s, l| joint(&s, &f.b.shape(*l)));
        // Hundreds of parts, one after the other: sums of f32 are rounded once.
        let elem = match (op, math::held(places.first().map_or(DType::F32, |p| p.1))) {
            (ReduceOp::Sum, Elem::F32) => Elem::F64,
            (_, elem) => elem,
        };
        let id = math::identity(&mut f.b, op, elem);
        let mut start = vec![f.b.broadcast_to(id, &shape)];
        if is_arg(op) {
            let nowhere = f.b.i32(NOWHERE);
            start.push(f.b.broadcast_to(nowhere, &shape));
        }
        let mut pointers = vec![];
        for &(slot, _) in places {
            let p = f.em.address(&mut f.b, slot, &self.row_number());
            pointers.push(f.b.broadcast_to(p, &shape));
        }
        let mut mask: Option<Value> = None;
        for m in self.plan.kept.iter().filter_map(|c| f.em.coords.get(&c.id)?.mask).collect::<Vec<_>>() {
            mask = Some(mask.map_or(m, |old| f.b.binary(B::And, old, m)));
        }
        let (rows, index) = (self.rows(), f.em.index);
        let until = match until {
            Some(part) => f.b.cast(part, Elem::I32),
            None => f.b.i32(self.plan.parts as i64),
        };
        let bounds = [f.b.i32(0), until, f.b.i32(1)];
        let end = f.b.for_loop(bounds, &start, |b, i, now| {
            let i = b.cast(i, index);
            let n = b.constant(BlockType::scalar(index), Const::Int(rows as i64));
            let offset = b.binary(B::Mul, i, n);
            let mut read = vec![];
            for &p in &pointers {
                let p = b.ptr_add(p, offset);
                read.push(b.load(p, mask, None));
            }
            if let [v, at] = read[..] {
                let best = take(b, op, Acc { value: now[0], at: Some(now[1]) }, v, at, None);
                return [Some(best.value), best.at].into_iter().flatten().collect();
            }
            let v = b.cast(read[0], elem);
            vec![math::combine(b, op, now[0], v)]
        });
        Acc { value: end[0], at: end.get(1).copied() }
    }

    fn final_step(&self, done: &[Partial]) -> Work<kiln_block::Kernel> {
        let along = self.scene.stores.iter().any(|s| s.at.uses(self.plan.row.id));
        let parts = if along { self.plan.parts } else { 1 };
        let mut used = loads(&self.scene.dag, &self.scene.roots(), |n| done.iter().any(|d| d.0 == n));
        used.extend(places(done, true));
        used.extend(self.scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
        let mut f = open_with(self.name, self.scene, &self.plan.shape(parts), &used);
        self.combine_parts(&mut f, done);
        let lane = f.iota(self.plan.row);
        self.write(&mut f, lane);
        f.finish()
    }
}

fn places(partial: &[Partial], readonly: bool) -> impl Iterator<Item = Used> + '_ {
    partial.iter().flat_map(move |p| p.1.iter().map(move |&(slot, dtype)| (slot, dtype, readonly)))
}

/// Folds the lanes of `row`'s axis, keeping the axis in tiles of rank 2. Of equal values the first position wins.
fn fold(f: &mut Frame, op: ReduceOp, acc: Acc, row: Option<TileRow>) -> Acc {
    let Some(row) = row else { return acc };
    let Some(at) = acc.at else {
        return Acc { value: f.em.reduce_axis(&mut f.b, op, acc.value, row), at: None };
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
    Acc { value: best, at: Some(at) }
}

/// The better of what an arg-reduction has and a new value at a later position. NaN is better than all but an earlier NaN.
fn take(b: &mut Builder, op: ReduceOp, acc: Acc, v: Value, position: Value, mask: Option<Value>) -> Acc {
    let Some(at) = acc.at else { return acc };
    let better = if op == ReduceOp::ArgMin { CmpOp::Lt } else { CmpOp::Gt };
    let elem = b.elem(v).unwrap_or(Elem::F32);
    let nowhere = b.i32(NOWHERE);
    let first = b.cmp(CmpOp::Eq, at, nowhere);
    let (x, y) = if elem == Elem::Bool { (b.cast(v, Elem::I32), b.cast(acc.value, Elem::I32)) } else { (v, acc.value) };
    let mut wins = b.cmp(better, x, y);
    if elem.is_float() {
        let (new, old) = (b.unary(U::IsNan, v), b.unary(U::IsNan, acc.value));
        let not_old = b.unary(U::Not, old);
        let nan = b.binary(B::And, new, not_old);
        wins = b.binary(B::Or, wins, nan);
    }
    wins = b.binary(B::Or, wins, first);
    if let Some(m) = mask {
        wins = b.binary(B::And, wins, m);
    }
    Acc { value: b.select(wins, v, acc.value), at: Some(b.select(wins, position, at)) }
}
