//! Scans of rows that instances share and read once: each chunk of a row is an instance. It scans its chunk, publishes
//! the total, waits for the totals of the chunks before it, and adds these to what it stores (decoupled look-back;
//! Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016). All totals are read, not
//! the first prefix that is known, so that sums have one order; with groups, those of earlier groups, and of the chunks
//! of its own.
//!
//! Instances of earlier chunks have lower numbers. A GPU starts blocks in the order of their numbers, so that what is
//! waited for runs.
use crate::emit::emitter::joint;
use crate::emit::frame::{Frame, loads, looped, open_with};
use crate::emit::math;
use crate::emit::row_program::{ClearedBuffer, RowLoop};
use crate::error::LowerError;
use crate::nest::passes::as_reduction;
use crate::scalar::types;
use crate::schedule::look_back::at_once;
use kiln_block::{BinaryOp as B, BlockProgram, CmpOp, Elem, Value};
use kiln_graph::{DType, ReduceOp};
use kiln_plan::exec::{Slot, Work};

impl RowLoop<'_> {
    /// The scan, which needs the words of totals cleared.
    pub(super) fn scan_looking_back(&mut self, group: usize) -> Result<Work<BlockProgram>, LowerError> {
        self.plan.parts = self.plan.row.extent.div_ceil(self.plan.row.block);
        let mut totals = vec![];
        for (_, op, body) in self.scans() {
            let held = types::held(self.scene.dag.node(body).dtype);
            // A word has 4 bytes of a value; narrower integers wrap around in it alike.
            let elem = if held.bytes() < 4 { Elem::I32 } else { held };
            // The sums of groups are behind the totals of chunks.
            let groups = if group > 1 { self.plan.parts / group } else { 0 };
            let count = (self.plan.parts + groups) * self.rows() * words(elem);
            let slot = self.new_scratch(DType::I64, count);
            totals.push(Total { op: as_reduction(op), slot, elem });
            self.cleared.push(ClearedBuffer { slot, words: count });
        }
        self.scan_chunks(&totals, group)
    }
    fn scan_chunks(&self, totals: &[Total], group: usize) -> Result<Work<BlockProgram>, LowerError> {
        let mut used = loads(&self.scene.dag, &self.scene.roots(), |_| false);
        used.extend(totals.iter().map(|t| (t.slot, DType::I64, false)));
        used.extend(self.scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
        let mut f = open_with(self.name, self.scene, &self.plan.shape(self.plan.parts), &used, self.plan.machine);
        let Some(part) = f.part else {
            return Err(LowerError::Invariant { kernel: self.name.to_string(), what: "a row has one chunk".into() });
        };
        let lanes = f.lanes(self.plan.row, Some(part));
        f.em.coords.insert(self.plan.row.id, lanes);
        let row = self.tile_row();
        let starts = self.scan_starts(&mut f);
        let (mut inner, mut sums) = (vec![], vec![]);
        for (((_, op, body), total), start) in self.scans().into_iter().zip(totals).zip(&starts) {
            let v = f.em.value(&mut f.b, body);
            let v = f.b.cast(v, types::held(self.scene.dag.node(body).dtype));
            let v = f.b.broadcast_to(v, &joint(&f.b.shape(*start), &f.b.shape(v)));
            let v = f.em.fill_outside(&mut f.b, total.op, v, lanes);
            f.em.row = Some(row);
            inner.push(f.em.scan_lanes(&mut f.b, op, v));
            let sum = f.em.reduce_axis(&mut f.b, total.op, v, row);
            f.em.row = None;
            let sum = f.b.cast(sum, total.elem);
            let (at, mask) = (self.total_at(&mut f, total, part), self.rows_there(&f));
            f.b.publish(at, sum, mask);
            sums.push(sum);
        }
        for ((((n, _, body), total), inner), sum) in self.scans().into_iter().zip(totals).zip(inner).zip(sums) {
            let before = match group {
                1 => self.totals_of(&mut f, total, (None, part), at_once(self.plan.warps, self.tile_rows())),
                _ => self.totals_by_groups(&mut f, total, [part, sum], group),
            };
            let before = f.b.cast(before, types::held(self.scene.dag.node(body).dtype));
            let value = math::combine(&mut f.b, total.op, before, inner);
            f.em.set(n, value);
        }
        self.scene.stores.iter().for_each(|s| f.store(s));
        f.finish()
    }
    /// Where a chunk's totals of a tile's rows are.
    fn total_at(&self, f: &mut Frame, total: &Total, chunk: Value) -> Value {
        let p = f.em.address(&mut f.b, total.slot, &self.row_number().scale(words(total.elem) as i64));
        let rows = f.em.int(&mut f.b, (self.rows() * words(total.elem)) as i64);
        let offset = f.b.binary(B::Mul, chunk, rows);
        let shape = joint(&f.b.shape(p), &f.b.shape(offset));
        let (p, offset) = (f.b.broadcast_to(p, &shape), f.b.broadcast_to(offset, &shape));
        f.b.ptr_add(p, offset)
    }
    /// Which rows of a tile there are; `None` if there are all.
    fn rows_there(&self, f: &Frame) -> Option<Value> {
        self.plan.kept.iter().find_map(|c| f.em.coords.get(&c.id)?.mask)
    }
    /// Rows of a tile.
    fn tile_rows(&self) -> usize {
        self.plan.kept.iter().map(|c| c.block).product()
    }
    /// What comes before a chunk: the totals of those before it in its group, and of the groups before. The last chunk
    /// of a group publishes the group's.
    fn totals_by_groups(&self, f: &mut Frame, total: &Total, [part, sum]: [Value; 2], group: usize) -> Value {
        let size = f.em.int(&mut f.b, group as i64);
        let (above, within) = (f.b.binary(B::Div, part, size), f.b.binary(B::Rem, part, size));
        let start = f.b.binary(B::Mul, above, size);
        let in_group = self.totals_of(f, total, (Some(start), within), group);
        let chunks = f.em.int(&mut f.b, self.plan.parts as i64);
        let number = f.b.binary(B::Add, chunks, above);
        let (at, last) = (self.total_at(f, total, number), f.em.int(&mut f.b, group as i64 - 1));
        let mut mask = f.b.cmp(CmpOp::Eq, within, last);
        if let Some(there) = self.rows_there(f) {
            mask = f.b.binary(B::And, mask, there);
        }
        let whole = math::combine(&mut f.b, total.op, in_group, sum);
        f.b.publish(at, whole, Some(mask));
        let groups = self.totals_of(f, total, (Some(chunks), above), at_once(self.plan.warps, self.tile_rows()));
        math::combine(&mut f.b, total.op, groups, in_group)
    }
    /// So many totals from the first on combined: each thread waits for some, in order, and adds them up.
    fn totals_of(&self, f: &mut Frame, total: &Total, (start, count): (Option<Value>, Value), at_once: usize) -> Value {
        let row = self.parts_row();
        let mut lane = f.b.iota(at_once);
        for axis in (0..row.rank).filter(|a| *a != row.axis) {
            lane = f.b.expand_dims(lane, axis);
        }
        let lane = f.b.cast(lane, f.em.index);
        let number = start.map_or(lane, |start| f.b.binary(B::Add, start, lane));
        let there = self.rows_there(f);
        let at = self.total_at(f, total, number);
        let nothing = math::identity(&mut f.b, total.op, total.elem);
        let start = f.b.broadcast_to(nothing, &f.b.shape(at));
        let until = f.b.cast(count, Elem::I32);
        let bounds = [f.b.i32(0), until, f.b.i32(at_once as i64)];
        let sums = looped(f, bounds, &[start], |f, from, now| {
            let from = f.b.cast(from, f.em.index);
            let lane = f.b.binary(B::Add, from, lane);
            let mut before = f.b.cmp(CmpOp::Lt, lane, count);
            if let Some(there) = there {
                before = f.b.binary(B::And, before, there);
            }
            let stride = f.em.int(&mut f.b, (self.rows() * words(total.elem)) as i64);
            let offset = f.b.binary(B::Mul, from, stride);
            let at = f.b.ptr_add(at, offset);
            let found = f.b.wait(at, total.elem, Some(before));
            let found = f.b.select(before, found, nothing);
            vec![math::combine(&mut f.b, total.op, now[0], found)]
        });
        f.em.reduce_axis(&mut f.b, total.op, sums[0], row)
    }
}

/// The published totals of a scan.
struct Total {
    op: ReduceOp,
    slot: Slot,
    elem: Elem,
}

/// Words that a published total takes.
fn words(elem: Elem) -> usize {
    elem.bytes() / 4
}
