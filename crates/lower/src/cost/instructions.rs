//! Instructions of an instance, as `ptxas` assembles them ([`kiln_machine::InstructionCounts`]).
use crate::cost::features::NestFeatures;
use crate::cost::price::TileFootprint;
use kiln_machine::ptxas;

impl TileFootprint {
    /// Of all warps of an instance.
    pub(super) fn instructions(&self, facts: &NestFeatures) -> f64 {
        let (w, counts) = (self, &ptxas().instructions);
        let steps = w.passes * w.trips;
        let mut access = counts.access + if w.crosses { counts.crossing_access } else { 0.0 };
        access += if facts.guards > 0 { counts.guarded_access } else { 0.0 };
        let mut of_warp = counts.program
            + w.arithmetic
            + counts.index * w.indices
            + counts.moved_element * w.moved
            + counts.packed_element * w.packed
            + counts.masked_element * w.masked;
        of_warp += if w.halves { counts.half_word * w.words } else { 0.0 };
        let scans = facts.scans as f64;
        let reductions = facts.reductions as f64 + scans * w.trips;
        let lanes = f64::from(w.lanes);
        let crosses = w.across_warps + w.across_blocks > 0;
        let shuffles =
            if crosses && w.results > 1.0 { w.results * (1.0 - 0.5f64.powf(lanes)) } else { lanes * w.results };
        of_warp += reductions * counts.shuffle * shuffles;
        if w.across_warps > 0 {
            let left = (w.results / 2f64.powf(lanes)).max(1.0);
            of_warp +=
                reductions * left * (counts.warp_exchange + counts.exchanged_warp * 2f64.powi(w.across_warps as i32));
        }
        of_warp += if w.across_blocks > 0 { reductions * counts.block_exchange } else { 0.0 };
        if w.peeled {
            let stored = w.stores * (counts.row_end_elements / w.chunk).min(1.0);
            let mut of_rows = counts.peeled_reduction * facts.reductions as f64 + counts.peeled_store * stored;
            of_rows += if w.tile > w.chunk { counts.peeled_row + counts.peeled_row_store * stored } else { 0.0 };
            // Of a loop's chunks the first and the last have masks.
            of_warp += counts.peel + w.elements_per_thread * steps.min(2.0 * w.passes) * of_rows;
        }
        of_warp += scans * steps * (counts.scan + counts.scanned_element * w.elements_per_thread);
        of_warp * w.warps + access * w.accesses
    }
}
