//! Prefetch of long rows to the L2 cache. An instance that is spread over several blocks waits for its row at a
//! barrier, with no registers left for the next one; meanwhile it prefetches the row of an instance that will start
//! soon.
use crate::scalar::dag::{NodeOp, Scene};
use crate::scalar::expr::Expr;
use crate::schedule::row_plan::RowPlan;
use kiln_plan::exec::Slot;

/// Least instances between the two: fewer are so large that what they read and write fills the cache.
const MIN_DISTANCE: usize = 8;
/// Warps from which on an instance is spread over several blocks.
const MIN_WARPS: usize = 32;

/// Instances between two of which one prefetches the rows of the other, where that is profitable.
pub fn distance(scene: &Scene, plan: &RowPlan) -> Option<usize> {
    if !plan.machine.arch.is_gpu() || plan.warps < MIN_WARPS {
        return None;
    }
    let bytes: usize = rows(scene, plan).iter().map(|r| r.2).sum();
    let distance = plan.machine.rows.prefetch_distance / bytes.max(1);
    (bytes > 0 && distance >= MIN_DISTANCE && plan.shape(1).instances() > 2 * distance).then_some(distance)
}

/// Start and bytes of an instance's rows in each buffer.
pub fn rows(scene: &Scene, plan: &RowPlan) -> Vec<(Slot, Expr, usize)> {
    let (row, len) = (plan.row.id, plan.row.extent);
    let one = |n| {
        let node = scene.dag.node(n);
        let NodeOp::Load { slot, at, guards } = &node.op else { return None };
        let (mut others, mut reads) = (false, false);
        at.coords(&mut |c| others |= c != row);
        at.nodes(&mut |_| reads = true);
        let along = at.stride(row) == Some(1) && others && !reads && guards.is_empty();
        let start = at.substitute(&|c| (c == row).then(|| Expr::constant(0)));
        // Rows of a tile that are contiguous in memory, and all of which are valid.
        let together = plan.kept.iter().filter(|c| c.block > 1 && c.extent.is_multiple_of(c.block));
        let high = together.filter(|c| at.stride(c.id) == Some(len as i64)).map(|c| c.block).max().unwrap_or(1);
        along.then(|| (*slot, start, high * len * node.dtype.bytes()))
    };
    scene.live().into_iter().filter_map(one).collect()
}
