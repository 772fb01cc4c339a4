//! `reverse r`: the pass that stores along rows goes from their ends to their starts, and so begins with what the
//! passes before it read last, which is still in the L2 cache. Instances that are a launch of their own are in reverse
//! order too.
use crate::scalar::dag::{NodeOp, Scene};
use crate::schedule::row_plan::RowPlan;

/// Whether the plan of a scene has such a pass; why not.
pub fn fits(plan: &RowPlan, scene: &Scene) -> Result<(), String> {
    let is = |found: fn(&NodeOp) -> bool| scene.live().into_iter().any(|n| found(&scene.dag.node(n).op));
    let why = if is(|op| matches!(op, NodeOp::Scan { .. })) {
        "scans need the elements before"
    } else if !is(|op| matches!(op, NodeOp::Reduce { .. })) || !scene.stores.iter().any(|s| s.at.uses(plan.row.id)) {
        "nothing is stored along rows after a reduction of them"
    } else if plan.whole() {
        "a tile has the whole row"
    } else if plan.row.block == 1 {
        "a chunk has one element of a row"
    } else {
        return Ok(());
    };
    Err(why.into())
}
