//! `tail r N`: half-type rows a little longer than a power of two. A tile of that many lanes has most of the row, and a
//! tile of few lanes its tail, which all warps read. In a tile of twice the lanes every thread would compute with a
//! vector that only the first few threads need.
use crate::scalar::dag::Scene;
use crate::schedule::row_plan::RowPlan;

/// Whether a tail of so many lanes fits the rows of a plan, or why not.
pub fn fits(plan: &RowPlan, scene: &Scene, lanes: usize) -> Result<(), String> {
    let there = plan.width();
    let covers = there > plan.row.block / 2 && there <= plan.row.block / 2 + lanes && lanes.is_power_of_two();
    let one = plan.rank == 1 && plan.whole() && !plan.multi_row && plan.persistent.is_none();
    let any_order = || scene.live().into_iter().all(|n| scene.dag.node(n).sums_in_any_order());
    if !covers || !one || !any_order() {
        return Err(format!(
            "a tile holds one row of {there} lanes, combined in any order, of which half a tile and the tail are all"
        ));
    }
    Ok(())
}
