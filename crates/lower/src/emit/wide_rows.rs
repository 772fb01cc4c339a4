//! Reductions and norms over wide rows ([`crate::schedule::widen`]): partial results of the columns of wide rows, and a
//! launch that combines those of the same column.
use crate::emit::row_program::RowLoop;
use crate::error::LowerError;
use crate::nest::Nest;
use crate::schedule::apply::row_plan;
use crate::schedule::row_plan::{RowPlan, Wide};
use crate::schedule::split_reduce::joining_warps;
use crate::schedule::tile::{refusal, tile};
use crate::schedule::widen::{COLUMNS, Fit, across, fits, joins, together, widened};
use crate::steps::{Emitted, limit_registers};
use kiln_plan::{Axis, Schedule, Step};

/// The steps of a nest whose rows are widened along an axis; `rest` is the schedule of the wide rows.
pub fn run(
    nest: &Nest,
    (axis, count): (Axis, usize),
    rest: &Schedule,
    first_scratch: u32,
) -> Result<Emitted, LowerError> {
    let refuse = |why: &str| refusal(nest, &Step::Widen(axis, count), why);
    let Axis::Kept(k) = axis else { return Err(refuse("it is for an axis that is kept")) };
    let Fit { rows, columns } = fits(nest, usize::from(k)).map_err(refuse)?;
    let Some((wide, along)) = widened(nest, (axis, count))? else { return Err(refuse("there is no such axis")) };
    let supported = |s: &Step| {
        matches!(s, Step::Split(..) | Step::Warps(_) | Step::Registers(_) | Step::SplitReduce(..) | Step::Reverse(_))
    };
    if let Some(step) = rest.steps.iter().find(|s| !supported(s)) {
        return Err(refusal(nest, step, "wide rows are only split, and bound to warps"));
    }
    let mut tiled = tile(&wide, rest)?;
    let registers = tiled.registers;
    let mut plan = row_plan(&wide, rest, &mut tiled)?;
    if !across(&plan) {
        return Err(refuse("rows are contiguous in memory"));
    }
    let extent = columns * count;
    if plan.row.block == 1 {
        return Err(refuse("a chunk has one wide row"));
    }
    plan.wide = (!rows.is_multiple_of(count)).then_some(Wide { along, extent, all: rows * columns });
    let norm = tiled.scene.stores.iter().any(|s| s.at.uses(plan.row.id));
    let mut before = RowLoop::new(nest.name, &tiled.scene, plan, first_scratch);
    if before.levels.len() != 1 {
        return Err(refuse("a block has a whole wide row"));
    }
    let (step, found) = before.first_level()?;
    let parts = before.plan.parts * count;
    if !joins(before.plan.parts, count) {
        return Err(refuse(&format!("{parts} partial results of a column are too many")));
    }
    let warps = joining_warps(together(before.plan.parts, count) * parts).max(COLUMNS / 32);
    let joins = [Step::Split(Axis::Row, 1), Step::Split(axis, COLUMNS), Step::Warps(warps)].into_iter().collect();
    let mut join_tile = tile(nest, &joins)?;
    let join_plan = row_plan(nest, &joins, &mut join_tile)?;
    let mut steps = vec![step];
    let mut scratch = before.scratch();
    let after = RowPlan { parts, ..join_plan };
    let mut after = RowLoop::new(nest.name, &join_tile.scene, after, first_scratch + scratch.len() as u32);
    if norm {
        let (join, results) = after.results(&found, count)?;
        scratch.extend(after.scratch());
        steps.extend([join, before.written(&results, columns)?]);
    } else {
        steps.push(after.joined(found, count)?);
    }
    steps.iter_mut().for_each(|step| limit_registers(step, registers));
    Ok(Emitted { scratch, steps, ..Emitted::default() })
}
