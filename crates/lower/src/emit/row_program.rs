//! Emits row programs: in one tile, or in loops over chunks of the row with one pass per level of reductions. Rows that
//! several instances share leave partial results in scratch. What one pass accumulates: [`reduced`].
//!
//! Takes: a scene and the [`RowPlan`] that its schedule states. Gives: its steps.
pub mod accumulator;
pub mod exponentials;
pub mod look_back;
pub mod moments;
pub mod pieces;
pub mod prefetch;
pub mod reduced;
pub mod scans;
pub mod split_row;

use crate::emit::emitter::{Lanes, TileRow};
use crate::emit::frame::{Frame, loads, looped, open};
use crate::emit::row_program::accumulator::{Acc, NOWHERE};
use crate::error::LowerError;
use crate::nest::passes::{Reduced, in_passes, is_arg};
use crate::scalar::dag::{NodeId, NodeOp, Scene, Store};
use crate::scalar::expr::{CoordId, Expr};
use crate::schedule::row_plan::RowPlan;
use crate::schedule::tile::Cut;
use crate::steps::Emitted;
use kiln_block::passes::persistent_rows;
use kiln_block::{BinaryOp as B, Builder, Elem, Value};
use kiln_graph::Type;
use kiln_machine::isa::VECTOR;
use kiln_plan::exec::{Slot, Work};

pub struct RowLoop<'a> {
    name: &'a str,
    pub scene: &'a Scene,
    pub plan: RowPlan<'a>,
    /// Coordinates that a node depends on, without the row of its own reductions.
    deps: Vec<Vec<CoordId>>,
    /// Levels of reductions, which depend on those of earlier levels alone.
    pub levels: Vec<Vec<Reduced>>,
    scratch: Vec<Type>,
    first_scratch: u32,
    /// Rows of the matrix in a wide row, whose partial results are side by side in scratch
    /// ([`crate::emit::wide_rows`]); else 1.
    per_wide_row: usize,
    /// Buffers that a launch before has to clear.
    cleared: Vec<ClearedBuffer>,
}

/// A scratch buffer of 64-bit words that have to be zero before the program starts.
#[derive(Clone, Copy, Debug)]
pub struct ClearedBuffer {
    pub slot: Slot,
    pub words: usize,
}

/// The launches of a row program.
pub struct RowProgram {
    pub emitted: Emitted,
    pub cleared: Vec<ClearedBuffer>,
}

/// How a pass goes over a row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    Plain,
    /// The last chunk, if it is ragged, is peeled: elements are counted.
    Counted,
    /// From the last chunk to the first.
    Reversed,
}
/// Chunks of a loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Chunks {
    Whole,
    /// The last may reach beyond the end.
    Ragged,
    /// Whole ones, from the last to the first.
    Reversed,
}

/// Most loads of a thread that are issued before everything else.
const MAX_FIRST_LOADS: usize = 4;

impl<'a> RowLoop<'a> {
    pub fn new(name: &'a str, scene: &'a Scene, plan: RowPlan<'a>, first_scratch: u32) -> RowLoop<'a> {
        let deps = scene.dag.depends(&[plan.row.id]);
        let whole = |level: Vec<NodeId>| level.into_iter().filter_map(|n| Reduced::one(&scene.dag, n)).collect();
        let levels = scene.levels();
        let pairs = plan.machine.arch.is_gpu() && !plan.whole() && plan.row.block > 1;
        let levels = if pairs {
            in_passes(scene, &levels, &[plan.row.id], plan.row.extent)
        } else {
            levels.into_iter().map(whole).collect()
        };
        RowLoop { name, scene, plan, deps, levels, scratch: vec![], first_scratch, per_wide_row: 1, cleared: vec![] }
    }

    pub fn emit(mut self) -> Result<RowProgram, LowerError> {
        if self.plan.row.extent >= NOWHERE as usize {
            let why = "a row of 2^31 elements or more".to_string();
            return Err(LowerError::Unsupported { kernel: self.name.to_string(), why });
        }
        let has_scan = !self.scans().is_empty();
        if has_scan {
            let bodies: Vec<NodeId> = self.levels.iter().flatten().map(Reduced::body).collect();
            if self.scene.dag.reach(&bodies).iter().any(|n| self.is_scan(*n)) {
                let why = "a reduction of a scan".to_string();
                return Err(LowerError::Unsupported { kernel: self.name.to_string(), why });
            }
            if let Some(group) = self.plan.look_back {
                let steps = vec![self.scan_looking_back(group)?];
                return Ok(self.finish(steps));
            }
            if !self.scans_in_parts() {
                self.plan.parts = 1;
            }
        }
        let steps = match self.plan.parts {
            _ if self.plan.whole() => vec![self.in_tile()?],
            1 => vec![self.in_loops()?],
            _ if has_scan => self.scan_parts()?,
            _ => self.in_parts()?,
        };
        Ok(self.finish(steps))
    }
    fn finish(self, steps: Vec<Work<kiln_block::BlockProgram>>) -> RowProgram {
        let RowLoop { scratch, cleared, .. } = self;
        RowProgram { emitted: Emitted { scratch, steps, ..Emitted::default() }, cleared }
    }

    fn in_tile(&self) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
        let p = &self.plan;
        let mut f = open(self.name, self.scene, &p.shape(1), p.machine);
        if let Some(distance) = p.prefetch {
            f.prefetch(self.scene, p, distance);
        }
        if let Some(lanes) = p.tail {
            self.in_pieces(&mut f, lanes);
            return f.finish();
        }
        let lanes = match &p.unaligned {
            Some(shift) => {
                let lanes = f.lanes_from(Cut { extent: p.width(), ..p.row }, 0);
                f.peeled(p.row, shift, lanes)
            }
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
        if gpu && !run && loads.len() <= MAX_FIRST_LOADS { loads } else { vec![] }
    }

    fn in_loops(&self) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
        let mut f = open(self.name, self.scene, &self.plan.shape(1), self.plan.machine);
        let lane = f.iota(self.plan.row);
        for level in &self.levels {
            let done = self.accumulate(&mut f, level, lane);
            for (r, acc) in level.iter().zip(done) {
                let acc = self.fold_lanes(&mut f, r, acc, lane);
                self.settle(&mut f, r, acc);
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

    /// The loop over this instance's part of the row. On a GPU the last chunk, if it is ragged, is peeled where
    /// elements are counted, where rows are not aligned (loads of single elements are all in flight at once only if
    /// they have no masks), and where it has a wide row that is not full. Of peeled rows the first and the last chunk
    /// are ragged.
    fn over_chunks(
        &self,
        f: &mut Frame,
        lane: Option<Value>,
        how: Pass,
        carried: &[Value],
        mut body: impl FnMut(&mut Frame, Lanes, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let [lo, hi] = self.bounds(f);
        let reversed = how == Pass::Reversed;
        // Even chunks need no mask: parts are whole chunks, and the last ends with the row.
        let wide = self.plan.wide.is_some();
        let peeled = self.plan.unaligned.is_some();
        let ragged = wide || peeled || !self.plan.row.extent.is_multiple_of(self.plan.row.block);
        let peels = how != Pass::Plain || wide || peeled || self.plan.machine.arch.is_gpu() && self.loads_elements();
        if !ragged || !peels {
            let whole = if reversed { Chunks::Reversed } else { Chunks::Whole };
            return self.over(f, lane, [lo, hi], if ragged { Chunks::Ragged } else { whole }, carried, body);
        }
        let chunk = f.b.i32(self.plan.row.block as i64);
        let full = f.b.i32(self.plan.row.extent as i64 - i64::from(wide));
        let full = f.b.binary(B::Min, hi, full);
        // Parts are whole chunks, so only one that begins at 0 has the first chunk of a row.
        let whole_from = if peeled { f.b.binary(B::Max, lo, chunk) } else { lo };
        let there = f.b.binary(B::Sub, full, whole_from);
        let whole = f.b.binary(B::Div, there, chunk);
        let whole = f.b.binary(B::Mul, whole, chunk);
        let whole = f.b.binary(B::Add, whole_from, whole);
        if reversed {
            let mut now = self.over(f, lane, [whole, hi], Chunks::Ragged, carried, &mut body);
            now = self.over(f, lane, [whole_from, whole], Chunks::Reversed, &now, &mut body);
            return if peeled { self.over(f, lane, [lo, whole_from], Chunks::Ragged, &now, body) } else { now };
        }
        let mut now = carried.to_vec();
        if peeled {
            now = self.over(f, lane, [lo, whole_from], Chunks::Ragged, &now, &mut body);
        }
        now = self.over(f, lane, [whole_from, whole], Chunks::Whole, &now, &mut body);
        self.over(f, lane, [whole, hi], Chunks::Ragged, &now, body)
    }
    /// Whether a load of the row's elements is aligned to less than half a vector.
    fn loads_elements(&self) -> bool {
        let row = self.plan.row.id;
        self.scene.live().into_iter().any(|n| {
            let node = self.scene.dag.node(n);
            let NodeOp::Load { at, .. } = &node.op else { return false };
            let splits_vectors =
                |c: i64| c != 1 && !(c * node.dtype.bytes() as i64).unsigned_abs().is_multiple_of(VECTOR as u64 / 2);
            at.uses(row) && at.terms.iter().any(|t| splits_vectors(t.1))
        })
    }
    /// Where this instance's part of the row begins and ends.
    fn bounds(&self, f: &mut Frame) -> [Value; 2] {
        let n = f.b.i32(self.plan.width() as i64);
        let Some(part) = f.part else { return [f.b.i32(0), n] };
        let part = f.b.cast(part, Elem::I32);
        let len = f.b.i32(self.plan.part_len() as i64);
        let lo = f.b.binary(B::Mul, part, len);
        let hi = f.b.binary(B::Add, lo, len);
        [lo, f.b.binary(B::Min, hi, n)]
    }
    /// The loop over chunks between two places of the row.
    fn over(
        &self,
        f: &mut Frame,
        lane: Option<Value>,
        [lo, hi]: [Value; 2],
        chunks: Chunks,
        carried: &[Value],
        body: impl FnOnce(&mut Frame, Lanes, &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let row = self.plan.row;
        let step = f.b.i32(row.block as i64);
        looped(f, [lo, hi, step], carried, |f, index, now| {
            let index = if chunks == Chunks::Reversed { self.mirrored(f, [lo, hi], index) } else { index };
            let base = f.b.cast(index, f.em.index);
            let mut lanes = Lanes { base: Some(base), lane, mask: None, block: 0 };
            lanes = match &self.plan.unaligned {
                Some(shift) if chunks == Chunks::Ragged => f.peeled(row, shift, lanes),
                Some(shift) => f.within_peeled(row, shift, lanes),
                None => {
                    let mask = lane.filter(|_| chunks == Chunks::Ragged).map(|l| self.there(f, base, l));
                    Lanes { mask, ..lanes }
                }
            };
            f.em.coords.insert(row.id, lanes);
            body(f, lanes, now)
        })
    }

    /// Which elements of a chunk there are.
    fn there(&self, f: &mut Frame, base: Value, lane: Value) -> Value {
        let Some(wide) = self.plan.wide else { return f.below(Some(base), lane, self.plan.row.extent) };
        let row = f.b.binary(B::Add, base, lane);
        let of_row = f.em.int(&mut f.b, wide.extent as i64);
        let start = f.b.binary(B::Mul, row, of_row);
        let along = f.em.expr(&mut f.b, &Expr::coord(wide.along, wide.extent));
        f.below(Some(start), along, wide.all)
    }
    /// Whether chunks are reduced before they are added to the accumulator, which the host does: accumulators for all
    /// lanes of a chunk would not stay in registers, nor in the cache for strided rows.
    fn sums_chunks(&self) -> bool {
        let p = &self.plan;
        let chunks = (p.rank == 1 || p.row.axis == 0) && p.row.block > 1 && !p.whole();
        let all = || self.levels.iter().flatten().all(|r| !is_arg(r.op()));
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
    /// Where the chunk of these lanes begins.
    fn chunk(&self, f: &mut Frame, lanes: Lanes) -> Value {
        let start = match &self.plan.unaligned {
            Some(shift) => f.em.coords.get(&shift.lane).and_then(|l| l.base),
            None => lanes.base,
        };
        let start = start.unwrap_or_else(|| f.b.broken("a chunk of a row has no beginning"));
        f.b.cast(start, Elem::I32)
    }
    /// The positions that the lanes of an arg-reduction found, from the chunks that these are in.
    fn position(&self, f: &mut Frame, chunk: Value, lane: Option<Value>) -> Value {
        let row = self.plan.row;
        let base = f.em.int(&mut f.b, 0);
        let mut lanes = Lanes { base: Some(base), lane, mask: None, block: 0 };
        if let Some(shift) = &self.plan.unaligned {
            lanes = f.within_peeled(row, shift, lanes);
        }
        f.em.coords.insert(row.id, lanes);
        let at = f.em.expr(&mut f.b, &Expr::coord(row.id, row.extent));
        let at = f.b.cast(at, Elem::I32);
        let at = f.b.broadcast_to(at, &f.b.shape(chunk));
        let position = f.b.binary(B::Add, chunk, at);
        accumulator::found(&mut f.b, chunk, position, accumulator::NOWHERE)
    }

    /// Reduces the lanes of an accumulator to one, keeping the axis.
    fn fold_lanes(&self, f: &mut Frame, r: &Reduced, acc: Acc, lane: Option<Value>) -> Acc {
        if lane.is_none() || self.sums_chunks() {
            return acc;
        }
        let [lo, hi] = self.bounds(f);
        let there = f.b.binary(B::Sub, hi, lo);
        let counts = matches!(r, Reduced::Moments(_));
        let count = counts.then(|| self.count_in_lanes(f, there, &f.b.shape(acc.value)));
        self.folded(f, r, acc, self.tile_row(), count)
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
        let how = if self.plan.reversed { Pass::Reversed } else { Pass::Plain };
        self.over_chunks(f, lane, how, start, |f, lanes, now| {
            let next = self.scan_chunk(f, lanes, now);
            along.iter().for_each(|s| f.store(s));
            next
        });
    }
    /// Where the chunk starts that is visited instead of the one at `index`, of whole chunks from `lo` to `hi`.
    fn mirrored(&self, f: &mut Frame, [lo, hi]: [Value; 2], index: Value) -> Value {
        let chunk = f.b.i32(self.plan.row.block as i64);
        let one = f.b.i32(1);
        let all = f.b.binary(B::Sub, hi, lo);
        let all = f.b.binary(B::Div, all, chunk);
        let last = f.b.binary(B::Sub, all, one);
        let before = f.b.binary(B::Sub, index, lo);
        let before = f.b.binary(B::Div, before, chunk);
        let at = f.b.binary(B::Sub, last, before);
        let at = f.b.binary(B::Mul, at, chunk);
        f.b.binary(B::Add, lo, at)
    }
}

/// The next of the values that a loop carries, of which every reduction has its own.
fn next_of(b: &mut Builder, values: &mut impl Iterator<Item = Value>) -> Value {
    values.next().unwrap_or_else(|| b.broken("a loop carries fewer values than it reduces"))
}
