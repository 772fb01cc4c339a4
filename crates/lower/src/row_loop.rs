//! Emits row programs: in one tile, or in loops over chunks of the row with one pass per level of reductions. Rows that
//! several instances share leave partial results in scratch.
//!
//! Takes: a scene and the [`RowPlan`] that [`crate::rows`] chose. Gives: its steps.
use crate::LowerError;
use crate::dag::{NodeId, NodeOp, Scene, Store};
use crate::emit::{Lanes, TileRow};
use crate::expr::{CoordId, Expr};
use crate::math;
use crate::rows::{Emitted, RowPlan};
use crate::tile::{Frame, loads, looped, open};
use crate::unaligned::VECTOR;
use acc::{Acc, NOWHERE, fold, is_arg, over_groups, take};
use kiln_block::passes::persistent_rows;
use kiln_block::{BinaryOp as B, Builder, Elem, Value};
use kiln_graph::{DType, ReduceOp, Type};
use kiln_plan::exec::Work;
use moments::Moments;

mod acc;
pub mod look_back;
pub mod moments;
mod scans;
pub mod split_row;

pub struct RowLoop<'a> {
    name: &'a str,
    pub scene: &'a Scene,
    pub plan: RowPlan<'a>,
    /// Coordinates that a node depends on, without the row of its own reductions.
    deps: Vec<Vec<CoordId>>,
    /// Levels of reductions, which depend on those of earlier levels alone.
    pub levels: Vec<Vec<NodeId>>,
    scratch: Vec<Type>,
    first_scratch: u32,
    /// Rows of the matrix in a wide row, whose partial results are side by side in scratch ([`crate::wide_rows`]); else
    /// 1.
    per_wide_row: usize,
    /// A sum and the squared deviations from its mean, computed in one pass in place of the first two levels.
    moments: Option<Moments>,
}

/// Most loads of a thread that are issued before everything else.
const FIRST: usize = 4;

impl<'a> RowLoop<'a> {
    pub fn new(name: &'a str, scene: &'a Scene, plan: RowPlan<'a>, first_scratch: u32) -> RowLoop<'a> {
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
        RowLoop { name, scene, plan, deps, levels, scratch: vec![], first_scratch, per_wide_row: 1, moments: None }
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
            if self.plan.look_back {
                let steps = self.scan_looking_back()?;
                return Ok(Emitted { scratch: std::mem::take(&mut self.scratch), steps, made: None });
            }
            if !self.scans_in_parts() {
                self.plan.parts = 1;
            }
        }
        self.moments = self.find_moments();
        if self.moments.is_some() {
            self.levels.drain(..2);
        }
        let steps = match self.plan.parts {
            _ if self.plan.whole() => vec![self.in_tile()?],
            1 => vec![self.in_loops()?],
            _ if has_scan => self.scan_parts()?,
            _ => self.in_parts()?,
        };
        Ok(Emitted { scratch: std::mem::take(&mut self.scratch), steps, made: None })
    }

    fn in_tile(&self) -> Result<Work<kiln_block::Kernel>, LowerError> {
        let p = &self.plan;
        let mut f = open(self.name, self.scene, &p.shape(1));
        if let Some(distance) = p.prefetch {
            f.prefetch(self.scene, p, distance);
        }
        if let Some(lanes) = p.tail {
            self.in_pieces(&mut f, lanes);
            return f.finish();
        }
        let lanes = match &p.unaligned {
            Some(shift) => f.peeled(p.row, shift, 0),
            None => f.lanes(p.row, None),
        };
        f.em.coords.insert(p.row.id, lanes);
        f.em.run = if p.multi_row { f.run(p) } else { None };
        f.em.scan_in = p.scanned(Elem::F32);
        f.em.row = Some(self.tile_row());
        for n in self.first_loads() {
            f.em.value(&mut f.b, n);
        }
        for s in &self.scene.stores {
            f.store(s);
        }
        let work = f.finish()?;
        let (Work::Block { code, args }, Some(clusters)) = (&work, p.persistent) else { return Ok(work) };
        let refused = |why: kiln_block::passes::warpgroup::Refusal| LowerError::Unsupported {
            kernel: self.name.to_string(),
            why: format!("`persist {clusters}` does not fit: {why}"),
        };
        Ok(Work::Block { code: persistent_rows::run(code, clusters).map_err(refused)?, args: args.clone() })
    }

    /// Loads that are issued before the first reduction, also of what is needed only after it (a gain), where threads
    /// have registers for them. Not of short rows of half types that are loaded as a run: the assembler makes slower
    /// code of these.
    fn first_loads(&self) -> Vec<NodeId> {
        let p = &self.plan;
        let load = |n: &NodeId| matches!(self.scene.dag.node(*n).op, NodeOp::Load { .. });
        let loads: Vec<NodeId> = self.scene.live().into_iter().filter(load).collect();
        let run = p.multi_row && loads.iter().any(|n| self.scene.dag.node(*n).dtype.bytes() < 4);
        let gpu = p.machine.arch.is_gpu() && p.persistent.is_none() && p.warps <= 16;
        if gpu && !run && loads.len() <= FIRST { loads } else { vec![] }
    }

    fn in_loops(&self) -> Result<Work<kiln_block::Kernel>, LowerError> {
        let mut f = open(self.name, self.scene, &self.plan.shape(1));
        let lane = f.iota(self.plan.row);
        if let Some(m) = &self.moments {
            let [sum, squares] = self.moments(&mut f, m, lane);
            f.em.set(m.sum, sum);
            f.em.set(m.squares, squares);
        }
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

    /// Emits before a loop what `roots` need and does not depend on the row.
    fn hoist(&self, f: &mut Frame, roots: &[NodeId]) {
        let row = self.plan.row.id;
        let inside = |n: NodeId| self.deps[n as usize].contains(&row);
        let known = |n: NodeId| f.em.get(n).is_some() || !inside(n);
        let reach = self.scene.dag.reach_until(roots, known);
        for n in reach.into_iter().filter(|n| !inside(*n)) {
            f.em.value(&mut f.b, n);
        }
    }

    /// The loop over this instance's part of the row. On a GPU the last chunk, if it is ragged, is peeled where rows are not aligned: loads
    /// of single elements are all in flight at once only if they have no masks.
    fn over_chunks(
        &self,
        f: &mut Frame,
        lane: Option<Value>,
        carried: &[Value],
        mut body: impl FnMut(&mut Frame, Lanes, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let [lo, hi] = self.bounds(f);
        // Even chunks need no mask: parts are whole chunks, and the last ends with the row.
        let ragged = !self.plan.row.extent.is_multiple_of(self.plan.row.block);
        if !ragged || !self.plan.machine.arch.is_gpu() || !self.loads_elements() {
            return self.over(f, lane, [lo, hi], ragged, carried, body);
        }
        let chunk = f.b.i32(self.plan.row.block as i64);
        let there = f.b.binary(B::Sub, hi, lo);
        let left = f.b.binary(B::Rem, there, chunk);
        let whole = f.b.binary(B::Sub, hi, left);
        let now = self.over(f, lane, [lo, whole], false, carried, &mut body);
        self.over(f, lane, [whole, hi], true, &now, body)
    }
    /// Whether a load of the row's elements is aligned to less than half a vector.
    fn loads_elements(&self) -> bool {
        let row = self.plan.row.id;
        self.scene.live().into_iter().any(|n| {
            let node = self.scene.dag.node(n);
            let NodeOp::Load { at, .. } = &node.op else { return false };
            let apart =
                |c: i64| c != 1 && !(c * node.dtype.bytes() as i64).unsigned_abs().is_multiple_of(VECTOR as u64 / 2);
            at.uses(row) && at.terms.iter().any(|t| apart(t.1))
        })
    }
    /// Where this instance's part of the row begins and ends.
    fn bounds(&self, f: &mut Frame) -> [Value; 2] {
        let n = f.b.i32(self.plan.row.extent as i64);
        let Some(part) = f.part else { return [f.b.i32(0), n] };
        let part = f.b.cast(part, Elem::I32);
        let len = f.b.i32(self.plan.part_len() as i64);
        let lo = f.b.binary(B::Mul, part, len);
        let hi = f.b.binary(B::Add, lo, len);
        [lo, f.b.binary(B::Min, hi, n)]
    }
    /// The loop over chunks between two places of the row; `ragged` if the last may reach beyond it.
    fn over(
        &self,
        f: &mut Frame,
        lane: Option<Value>,
        [lo, hi]: [Value; 2],
        ragged: bool,
        carried: &[Value],
        body: impl FnOnce(&mut Frame, Lanes, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let row = self.plan.row;
        let step = f.b.i32(row.block as i64);
        looped(f, [lo, hi, step], carried, |f, index, now| {
            let base = f.b.cast(index, f.em.index);
            let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, row.extent));
            let lanes = Lanes { base: Some(base), lane, mask, block: 0 };
            f.em.coords.insert(row.id, lanes);
            body(f, lanes, now)
        })
    }

    /// One pass over the row for a level of reductions.
    fn accumulate(&self, f: &mut Frame, level: &[NodeId], lane: Option<Value>) -> Vec<Acc> {
        let bodies: Vec<(ReduceOp, NodeId)> = level.iter().filter_map(|&n| self.reduced(n)).collect();
        let roots: Vec<NodeId> = bodies.iter().map(|b| b.1).collect();
        self.hoist(f, &roots);
        let shape = self.sum_shape();
        let few = self.few_lanes(&roots);
        let mut start = vec![];
        for (op, body) in &bodies {
            let elem = math::held(self.carried(*op, *body));
            let id = math::identity(&mut f.b, *op, elem);
            let shape = few.as_ref().filter(|_| !is_arg(*op)).unwrap_or(&shape);
            start.push(f.b.broadcast_to(id, shape));
            if is_arg(*op) {
                let nowhere = f.b.i32(NOWHERE);
                start.push(f.b.broadcast_to(nowhere, shape));
            }
        }
        let end = self.over_chunks(f, lane, &start, |f, lanes, now| {
            let mut next = vec![];
            let mut now = now.iter().copied();
            for (op, body) in &bodies {
                let v = f.em.value(&mut f.b, *body);
                let acc = next_of(&mut f.b, &mut now);
                if is_arg(*op) {
                    let at = next_of(&mut f.b, &mut now);
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
                    let mut v = f.b.broadcast_to(v, &shape);
                    if let Some(few) = &few {
                        v = over_groups(&mut f.b, *op, v, few);
                    }
                    next.push(math::combine(&mut f.b, *op, acc, v));
                }
            }
            next
        });
        let mut end = end.into_iter();
        (bodies.iter())
            .map(|(op, _)| {
                let value = next_of(&mut f.b, &mut end);
                Acc { value, at: is_arg(*op).then(|| next_of(&mut f.b, &mut end)) }
            })
            .collect()
    }
    /// Op and body of a reduction, or of the reduction that gives a scan's totals.
    fn reduced(&self, n: NodeId) -> Option<(ReduceOp, NodeId)> {
        match self.scene.dag.node(n).op {
            NodeOp::Reduce { op, body } => Some((op, body)),
            NodeOp::Scan { op, body } => Some((scans::as_reduction(op), body)),
            _ => None,
        }
    }
    /// Accumulator type of a reduction, across chunks and parts. The host accumulates f32 sums in f64, so that they are
    /// as exact as those of one chunk, whatever the number of chunks.
    fn carried(&self, op: ReduceOp, body: NodeId) -> DType {
        let dtype = self.scene.dag.node(body).dtype.compute();
        if op == ReduceOp::Sum && dtype == DType::F32 && self.sums_chunks() { DType::F64 } else { dtype }
    }

    /// Whether chunks are reduced before they are added to the accumulator, which the host does: accumulators for all
    /// lanes of a chunk would not stay in registers, nor in the cache for strided rows.
    fn sums_chunks(&self) -> bool {
        let p = &self.plan;
        let chunks = (p.rank == 1 || p.row.axis == 0) && p.row.block > 1 && !p.whole();
        let all = || self.levels.iter().flatten().all(|&n| self.scene.dag.node(n).sums_in_any_order());
        !p.machine.arch.is_gpu() && chunks && all()
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
    /// Shape of the accumulators where each thread of a GPU adds up its vectors of a chunk before it adds them to the
    /// accumulators, which leaves registers for loads: rows and columns for strided rows, else elements.
    fn few_lanes(&self, roots: &[NodeId]) -> Option<Vec<usize>> {
        let p = &self.plan;
        let across = p.rank == 2 && p.row.axis == 0;
        let scans = !self.scans().is_empty();
        if !p.machine.arch.is_gpu() || scans || !(across || p.rank == 1) || p.whole() {
            return None;
        }
        let read = loads(&self.scene.dag, roots, |_| false);
        let bytes = read.iter().map(|l| l.1.bytes()).min().unwrap_or(VECTOR).clamp(1, VECTOR);
        let lanes = 32 * p.warps * (VECTOR / bytes);
        if !across {
            return (lanes < p.row.block).then(|| vec![lanes]);
        }
        let wide: usize = p.kept.iter().map(|c| c.block).product();
        let rows = (lanes / wide.max(1)).max(1);
        (rows < p.row.block).then(|| vec![rows, wide])
    }
    /// Shape with every lane of the tile.
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

    /// Reduces the lanes of an accumulator to one, keeping the axis.
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
    /// The value of an accumulator, in the compute type of its node.
    fn settled(&self, f: &mut Frame, body: NodeId, acc: Acc) -> Value {
        match acc.at {
            Some(at) => f.b.cast(at, Elem::I64),
            None => f.b.cast(acc.value, math::held(self.scene.dag.node(body).dtype)),
        }
    }

    /// Emits the stores: those along the row in one more pass, the others once.
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
}

/// The next of the values that a loop carries, of which every reduction has its own.
fn next_of(b: &mut Builder, values: &mut impl Iterator<Item = Value>) -> Value {
    values.next().unwrap_or_else(|| b.broken("a loop carries fewer values than it reduces"))
}
