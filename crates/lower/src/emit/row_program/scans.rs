//! Scans of row programs, carried from chunk to chunk. On a GPU few long rows are split and read twice: one step
//! computes the total of each part, the next scans each part from the totals before it, added in order, so results are
//! the same from run to run.
use crate::emit::emitter::{Lanes, joint};
use crate::emit::frame::{Frame, loads, open_with};
use crate::emit::math;
use crate::emit::row_program::RowLoop;
use crate::emit::row_program::split_row::{Partial, places};
use crate::error::LowerError;
use crate::nest::passes::{Reduced, as_reduction};
use crate::scalar::dag::{NodeId, NodeOp, Store};
use crate::scalar::types;
use kiln_block::{BlockProgram, Value};
use kiln_graph::ScanOp;
use kiln_plan::exec::Work;

impl RowLoop<'_> {
    pub(super) fn is_scan(&self, n: NodeId) -> bool {
        matches!(self.scene.dag.node(n).op, NodeOp::Scan { .. })
    }
    pub(super) fn scans(&self) -> Vec<(NodeId, ScanOp, NodeId)> {
        let live = self.scene.live().into_iter();
        live.filter_map(|n| match self.scene.dag.node(n).op {
            NodeOp::Scan { op, body } => Some((n, op, body)),
            _ => None,
        })
        .collect()
    }
    /// The totals of the scans.
    pub(super) fn totals(&self) -> Vec<Reduced> {
        self.scans().into_iter().filter_map(|s| Reduced::one(&self.scene.dag, s.0)).collect()
    }
    /// Start values of scans: one per row.
    pub(super) fn scan_starts(&self, f: &mut Frame) -> Vec<Value> {
        let mut shape = self.tile_shape();
        if let (Some(n), true) = (shape.get_mut(self.plan.row.axis), self.plan.row.block > 1) {
            *n = 1;
        }
        if self.plan.rank == 1 && self.plan.row.block > 1 {
            shape = vec![];
        }
        let mut starts = vec![];
        for (_, op, body) in self.scans() {
            let elem = self.plan.scanned(types::held(self.scene.dag.node(body).dtype));
            let id = math::identity(&mut f.b, as_reduction(op), elem);
            starts.push(f.b.broadcast_to(id, &shape));
        }
        starts
    }
    /// Emits the scans of a chunk, continued from the carried values; returns the next ones.
    pub(super) fn scan_chunk(&self, f: &mut Frame, lanes: Lanes, carried: &[Value]) -> Vec<Value> {
        let row = self.tile_row();
        let mut next = vec![];
        for ((n, op, body), &carry) in self.scans().into_iter().zip(carried) {
            let v = f.em.value(&mut f.b, body);
            let held = types::held(self.scene.dag.node(body).dtype);
            let v = f.b.cast(v, self.plan.scanned(held));
            let reduction = as_reduction(op);
            let shape = f.b.shape(carry);
            let v = f.b.broadcast_to(v, &joint(&shape, &f.b.shape(v)));
            let v = f.em.fill_outside(&mut f.b, reduction, v, lanes);
            if lanes.lane.is_none() {
                let sum = math::combine(&mut f.b, reduction, carry, v);
                let value = f.b.cast(sum, held);
                f.em.set(n, value);
                next.push(sum);
                continue;
            }
            f.em.row = Some(row);
            let inner = f.em.scan_lanes(&mut f.b, op, v);
            let total = f.em.reduce_axis(&mut f.b, reduction, v, row);
            f.em.row = None;
            let sum = math::combine(&mut f.b, reduction, carry, inner);
            let value = f.b.cast(sum, held);
            f.em.set(n, value);
            next.push(math::combine(&mut f.b, reduction, carry, total));
        }
        next
    }

    /// Whether instances may share a row: its scans need nothing of the parts before but their totals.
    pub(super) fn scans_in_parts(&self) -> bool {
        let nested = |body: NodeId| self.scene.dag.reach(&[body]).into_iter().any(|n| self.is_scan(n));
        self.plan.machine.arch.is_gpu() && self.levels.is_empty() && !self.scans().iter().any(|s| nested(s.2))
    }
    /// A step for the totals of all parts, and one that scans each part from what comes before it.
    pub(super) fn scan_parts(&mut self) -> Result<Vec<Work<BlockProgram>>, LowerError> {
        self.settle_parts();
        let scans = self.totals();
        let totals = self.partials(&scans);
        let totals_step = self.partial_step(&format!("{}_part0", self.name), &scans, &[], &totals)?;
        Ok(vec![totals_step, self.scan_from(&totals)?])
    }
    fn scan_from(&self, totals: &[Partial]) -> Result<Work<BlockProgram>, LowerError> {
        let mut used = loads(&self.scene.dag, &self.scene.roots(), |_| false);
        used.extend(places(totals, true));
        used.extend(self.scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
        let mut f = open_with(self.name, self.scene, &self.plan.shape(self.plan.parts), &used, self.plan.machine);
        let mut start = vec![];
        for ((_, _, body), total) in self.scans().into_iter().zip(totals) {
            let part = f.part;
            let before = self.combined(&mut f, total, part);
            start.push(f.b.cast(before.value, self.plan.scanned(types::held(self.scene.dag.node(body).dtype))));
        }
        let lane = f.iota(self.plan.row);
        let along: Vec<&Store> = self.scene.stores.iter().collect();
        let roots: Vec<NodeId> = along.iter().map(|s| s.value).collect();
        self.hoist(&mut f, &roots);
        self.write_along(&mut f, lane, &along, &start);
        f.finish()
    }
}
