//! `reverse r`: the pass that stores along rows goes from their ends to their starts, and so begins with what the passes before it read
//! last, which is still in the L2 cache. Instances that are a launch of their own are in reverse order too.
use super::RowLoop;
use crate::dag::{NodeOp, Scene};
use crate::rows::RowPlan;
use crate::tile::Frame;
use kiln_block::{BinaryOp as B, Value};

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

impl RowLoop<'_> {
    /// Where the chunk starts that is visited instead of the one at `index`, of whole chunks from `lo` to `hi`.
    pub(super) fn mirrored(&self, f: &mut Frame, [lo, hi]: [Value; 2], index: Value) -> Value {
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
