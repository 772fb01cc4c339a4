//! Room for tiles and sums: how many stages a loop has, and whether two blocks share a multiprocessor.
use super::reuse::{self, Reuse};
use super::{CopyTime, Left, Matmul, Operand, Planner};
use crate::passes::warpgroup::{self, Refusal};
use crate::{Elem, Inst, Op, Value};
use kiln_machine::isa::{SECTOR, WARP};
use kiln_machine::{Pipelines, ptxas};
use std::collections::HashSet;

/// Neighbours of a row that the lanes of a tensor core's sums hold together, in pairs.
const SUMS_OF_ROW: usize = 8;
/// Bytes of shared memory that reductions may need beside tiles.
const SCRATCH: usize = 4 << 10;

impl Planner<'_> {
    /// How loops reuse the tiles that they store.
    pub fn reuse(&mut self) {
        let loops = self.plan.pipelines.keys();
        let all: Vec<(Value, Reuse)> = loops.flat_map(|i| reuse::loop_reuse(self.k, &self.plan, *i)).collect();
        for (source, reuse) in all {
            self.plan.tiles.entry(source).and_modify(|t| t.reuse = reuse);
        }
    }
    /// Whether dots of a loop that are in flight read what it stores.
    fn stores_operands(&self, parent: Inst) -> bool {
        let stored = |v: &Value| self.plan.tiles.get(v).is_some_and(|t| t.reuse != Reuse::Waits);
        let inside = |i: &Inst| self.parents.get(i) == Some(&parent);
        self.plan.matmuls.iter().any(|(i, m)| inside(i) && m.sources().iter().any(stored))
    }
    /// As many stages as memory has room for.
    pub fn stages(&mut self) -> Result<(), Refusal> {
        let stored = self.plan.bytes(|t| t.copied.is_none()) + self.converted(false).max(SCRATCH);
        let copied = self.plan.bytes(|t| t.copied.is_some());
        let room = |memory: usize| memory.saturating_sub(stored) / copied.max(1);
        let (one, two) = (room(warpgroup::memory(self.m)), room(warpgroup::memory_of_two(self.m)));
        if copied > 0 && one < 2 || warpgroup::memory(self.m) < stored.max(self.converted(true)) {
            return Err(Refusal("the operands of the dots do not fit shared memory; make blocks smaller".into()));
        }
        let nested = self.plan.pipelines.keys().any(|i| self.parents.contains_key(i));
        let loops = ptxas().loops;
        // Launches of loops over tiles often have one block for each multiprocessor.
        let arithmetic = if nested { loops.beside_sums_of_tiles } else { loops.beside_sums };
        let Pipelines { stages_of_two, stages_of_one, .. } = self.m.pipelines;
        let registers = self.registers_of_two();
        let fits_twice = two >= stages_of_two - 1 && registers >= self.accumulators + arithmetic;
        self.plan.registers =
            Some(registers).filter(|n| fits_twice && self.accumulators > 0 && *n <= self.m.limits.registers_per_thread);
        // As many as two blocks have are no reason for a block to be alone.
        let stages = if fits_twice || two >= stages_of_two { two.min(stages_of_two) } else { one.min(stages_of_one) };
        // With fewer stages copies further ahead gain more than dots in flight, unless these hide how operands are
        // computed.
        let loops: Vec<Inst> = self.plan.pipelines.keys().copied().collect();
        let stored: HashSet<Inst> = loops.into_iter().filter(|i| self.stores_operands(*i)).collect();
        for (i, p) in &mut self.plan.pipelines {
            if stages < stages_of_two && !stored.contains(i) {
                p.in_flight.clear();
            }
            p.copies = match stored.contains(i) && !p.in_flight.is_empty() {
                true => CopyTime::BehindBarrier,
                false => CopyTime::Begin,
            };
            let busy = !p.in_flight.is_empty() && p.copies == CopyTime::Begin;
            p.stages = stages;
            p.distance = stages - if busy { 2 } else { 1 };
        }
        Ok(())
    }
    /// Bytes of the largest block whose layout is converted through shared memory: of left operands in registers, and
    /// of blocks that are stored while tiles are in use, or `after` that, unless pairs of sums fill sectors. Rows are
    /// padded by a sixteenth.
    fn converted(&self, after: bool) -> usize {
        let mut most = 0;
        self.k.walk(&mut |i, d| {
            let block = match (&d.op, self.plan.matmuls.get(&i)) {
                (Op::Store(_), _) if self.fills_sectors(d.args[0]) => return,
                (Op::Store(_), _) if after || self.parents.contains_key(&i) => d.args[1],
                (_, Some(Matmul { left: Left::Registers, .. })) if self.is_loaded(d.args[0]) => d.args[0],
                _ => return,
            };
            let ty = self.k.ty(block);
            most = most.max(ty.count() * ty.elem().map_or(1, Elem::bytes) * 17 / 16);
        });
        most.next_multiple_of(1 << 10)
    }
    /// Whether sums are stored well as tensor cores leave them.
    fn fills_sectors(&self, pointer: Value) -> bool {
        let bytes = self.k.ty(pointer).elem().map_or(1, Elem::bytes);
        let (run, align) = self.facts.alignment(pointer, 1);
        run >= SUMS_OF_ROW && SUMS_OF_ROW * bytes >= SECTOR && align >= 2 * bytes
    }
    /// Whether a block is computed from loads of its size that are not copied to tiles, so that it lies as they do.
    fn is_loaded(&self, block: Value) -> bool {
        let sources = self.sources_of(block);
        sources.iter().any(|o| self.is_load(o.source) && !self.plan.tiles.contains_key(&o.source))
    }
    /// Registers of a thread, where two blocks share a multiprocessor.
    pub fn registers_of_two(&self) -> usize {
        self.m.limits.registers_per_multiprocessor / (2 * self.plan.warps * WARP)
    }
    /// Whether a block is computed from loads of its size, and from no dot.
    pub fn follows_from_loads(&self, block: Value) -> bool {
        let sources = self.sources_of(block);
        sources.iter().any(|o| self.is_load(o.source)) && !sources.iter().any(|o| self.is_dot(o.source))
    }
    /// Loads and dots of a block's size that it is computed from.
    pub fn sources_of(&self, block: Value) -> Vec<Operand> {
        let start = Operand { source: block, transposed: false };
        let (mut open, mut seen, mut found) = (vec![start], HashSet::from([block]), vec![]);
        let size = self.k.ty(block).count();
        while let Some(at) = open.pop() {
            let Some(data) = self.definitions.get(&at.source).map(|i| self.k.inst(*i)) else { continue };
            let transposed = at.transposed != matches!(&data.op, Op::Permute(axes) if axes[..] == [1, 0]);
            match data.op {
                Op::Load(..) | Op::Dot { .. } => found.push(at),
                _ => {
                    let next = data.args.iter().filter(|v| self.k.ty(**v).count() == size && seen.insert(**v));
                    open.extend(next.map(|v| Operand { source: *v, transposed }));
                }
            }
        }
        found
    }
}
