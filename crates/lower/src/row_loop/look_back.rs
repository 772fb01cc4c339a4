//! Scans of rows that instances share and read once: each chunk of a row is an instance. It scans its chunk, publishes the total, waits for
//! the totals of the chunks before it, and adds these to what it stores (decoupled look-back; Merrill and Garland, "Single-pass Parallel
//! Prefix Scan with Decoupled Look-back", 2016). All totals are read, not the first prefix that is known, so that sums have one order.
//!
//! Instances of earlier chunks have lower numbers. A GPU starts blocks in the order of their numbers, so that what is waited for runs.
use super::RowLoop;
use super::scans::as_reduction;
use super::split_row::{JOINED, Partial, places};
use crate::LowerError;
use crate::dag::{NodeId, NodeOp, Scene, Store};
use crate::emit::joint;
use crate::math;
use crate::pointwise;
use crate::rows::RowPlan;
use crate::tile::{loads, open_with};
use kiln_block::{BinaryOp as B, CmpOp, Kernel};
use kiln_graph::{DType, Scalar};
use kiln_plan::exec::{Slot, Work};

/// Most chunks of a row, whose totals each instance reads.
const CHUNKS: usize = 4096;

/// Whether the row can be scanned so, or why not.
pub fn fits(plan: &RowPlan, scene: &Scene) -> Result<(), String> {
    let live = scene.live();
    let op = |n: &u32| &scene.dag.node(*n).op;
    let is_scan = |n: &u32| matches!(op(n), NodeOp::Scan { .. });
    let scans: Vec<NodeId> = live.iter().copied().filter(is_scan).collect();
    let chunks = plan.row.extent.div_ceil(plan.row.block);
    let rows: usize = plan.kept.iter().map(|c| c.block).product();
    let nested = |n: &u32| match op(n) {
        NodeOp::Scan { body, .. } => scene.dag.reach(&[*body]).iter().any(is_scan),
        _ => false,
    };
    if !plan.machine.arch.is_gpu() || plan.blocks > 1 || plan.parts > 1 || plan.unaligned.is_some() {
        return Err("only blocks of a GPU that have a chunk each wait for others".into());
    }
    if scans.is_empty() || scans.iter().any(nested) || live.iter().any(|n| matches!(op(n), NodeOp::Reduce { .. })) {
        return Err("rows are not scanned, or also reduced".into());
    }
    if !(2..=CHUNKS).contains(&chunks) || rows * chunks.next_power_of_two() > JOINED {
        return Err(format!(
            "a row has {chunks} chunks; 2 to {CHUNKS}, and {JOINED} totals of a tile, can be waited for"
        ));
    }
    Ok(())
}

impl RowLoop<'_> {
    /// A step that clears the flags, and the scan.
    pub(super) fn scan_looking_back(&mut self) -> Result<Vec<Work<Kernel>>, LowerError> {
        self.plan.parts = self.plan.row.extent.div_ceil(self.plan.row.block);
        let totals = self.partials(&self.totals());
        let shape = self.plan.shape(self.plan.parts);
        let instances = shape.instances();
        let flags = self.new_scratch(DType::I32, instances);
        let cleared = |axes: &[crate::expr::Expr]| {
            let mut dag = crate::dag::Dag::default();
            let value = dag.add(NodeOp::Const(Scalar::Int(0)), DType::I32);
            Ok(Scene { dag, stores: vec![Store::new(flags, DType::I32, axes[0].clone(), value)] })
        };
        let clear = pointwise::points(&format!("{}_clear", self.name), &[instances], &cleared, self.plan.machine)?;
        Ok(vec![clear, self.scan_chunks(&totals, flags)?])
    }
    fn scan_chunks(&self, totals: &[Partial], flags: Slot) -> Result<Work<Kernel>, LowerError> {
        let shape = self.plan.shape(self.plan.parts);
        let mut used = loads(&self.scene.dag, &self.scene.roots(), |_| false);
        used.extend(places(totals, false));
        used.push((flags, DType::I32, false));
        used.extend(self.scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
        let mut f = open_with(self.name, self.scene, &shape, &used);
        let lanes = f.lanes(self.plan.row, f.part);
        f.em.coords.insert(self.plan.row.id, lanes);
        let row = self.tile_row();
        let starts = self.scan_starts(&mut f);
        let mut inner = vec![];
        for (((_, op, body), partial), start) in self.scans().into_iter().zip(totals).zip(&starts) {
            let v = f.em.value(&mut f.b, body);
            let v = f.b.cast(v, math::held(self.scene.dag.node(body).dtype));
            let v = f.b.broadcast_to(v, &joint(&f.b.shape(*start), &f.b.shape(v)));
            let v = f.em.fill_outside(&mut f.b, as_reduction(op), v, lanes);
            f.em.row = Some(row);
            inner.push(f.em.scan_lanes(&mut f.b, op, v));
            let total = f.em.reduce_axis(&mut f.b, as_reduction(op), v, row);
            f.em.row = None;
            for &(slot, dtype) in &partial.places {
                self.store_partial(&mut f, slot, dtype, total);
            }
        }
        // Flags are in the order of instances, those of a row's chunks as far apart as there are tiles of rows.
        let Some(flag) = f.em.params.get(&flags).copied() else {
            return Err(LowerError::Invariant { kernel: self.name.to_string(), what: "flags have no buffer".into() });
        };
        let number = f.number();
        let own = f.b.ptr_add(flag, number);
        f.b.publish(own);
        if let Some(part) = f.part {
            let tiles = (shape.instances() / self.plan.parts) as i64;
            let lane = f.b.iota(self.plan.parts.next_power_of_two());
            let lane = f.b.cast(lane, f.em.index);
            let tiles = f.em.int(&mut f.b, tiles);
            let tile = f.b.binary(B::Rem, number, tiles);
            let first = f.b.ptr_add(flag, tile);
            let offset = f.b.binary(B::Mul, lane, tiles);
            let first = f.b.broadcast_to(first, &f.b.shape(offset));
            let each = f.b.ptr_add(first, offset);
            let before = f.b.cmp(CmpOp::Lt, lane, part);
            f.b.wait(each, Some(before));
        }
        for (((n, op, body), partial), inner) in self.scans().into_iter().zip(totals).zip(inner) {
            let part = f.part;
            let before = self.combine_lanes(&mut f, partial, part);
            let held = math::held(self.scene.dag.node(body).dtype);
            let before = f.b.cast(before.value, held);
            let value = math::combine(&mut f.b, as_reduction(op), before, inner);
            f.em.set(n, value);
        }
        self.scene.stores.iter().for_each(|s| f.store(s));
        f.finish()
    }
}
