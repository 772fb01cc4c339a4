//! `look-back`: each chunk of a scanned row is an instance, which waits for the totals of the chunks before it.
use crate::scalar::dag::{NodeId, NodeOp, Scene};
use crate::schedule::row_plan::RowPlan;

/// Most chunks of a row, whose totals each instance reads.
const MAX_CHUNKS: usize = 16384;
/// Fewest chunks that an instance waits for at once, and most of a group.
const MIN_CHUNKS_AT_ONCE: usize = 64;
/// Whether the row can be scanned so, or why not.
pub fn fits(plan: &RowPlan, scene: &Scene, group: usize) -> Result<(), String> {
    let live = scene.live();
    let op = |n: &u32| &scene.dag.node(*n).op;
    let is_scan = |n: &u32| matches!(op(n), NodeOp::Scan { .. });
    let scans: Vec<NodeId> = live.iter().copied().filter(is_scan).collect();
    let chunks = plan.row.extent.div_ceil(plan.row.block);
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
    if !(2..=MAX_CHUNKS).contains(&chunks) {
        return Err(format!("a row has {chunks} chunks; 2 to {MAX_CHUNKS} can be waited for"));
    }
    if group > 1 && !(group.is_power_of_two() && group <= MIN_CHUNKS_AT_ONCE && group < chunks) {
        return Err(format!(
            "groups are of 2 to {MIN_CHUNKS_AT_ONCE} chunks, a power of two, and fewer than the {chunks} of a row"
        ));
    }
    Ok(())
}

/// How many chunks an instance of so many warps, whose tile has so many rows, waits for at once.
pub fn at_once(warps: usize, rows: usize) -> usize {
    (32 * warps / rows).max(MIN_CHUNKS_AT_ONCE)
}
