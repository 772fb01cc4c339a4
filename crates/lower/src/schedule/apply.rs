//! Applies the steps of a schedule to a row program.
//!
//! Takes: a nest with a row, its tile, and the steps. Gives: the plan, or a refusal that names the step and why it does
//! not fit.
use crate::error::LowerError;
use crate::nest::Nest;
use crate::schedule::row_plan::RowPlan;
use crate::schedule::tile::{Tiled, refusal, shapes};
use crate::schedule::{look_back, peel, persist, reverse, stage_rows, tail};
use kiln_plan::{Axis, Schedule, Step};

/// The plan of a row program, before its scratch buffers are known.
pub fn row_plan<'m>(nest: &Nest<'m>, schedule: &Schedule, tiled: &mut Tiled) -> Result<RowPlan<'m>, LowerError> {
    let Some(row) = tiled.row else {
        let why = format!("the schedule `{schedule}` does not split the row");
        return Err(LowerError::Unsupported { kernel: nest.name.to_string(), why });
    };
    let mut plan = RowPlan {
        kept: tiled.kept.clone(),
        row,
        rank: tiled.rank,
        parts: 1,
        warps: tiled.warps,
        blocks: tiled.blocks,
        machine: nest.machine,
        unaligned: None,
        multi_row: false,
        persistent: None,
        tail: None,
        prefetch: None,
        copies: false,
        look_back: None,
        wide: None,
        reversed: false,
    };
    for step in &schedule.steps {
        let check = |found: Result<(), String>| found.map_err(|why| refusal(nest, step, why));
        match step {
            Step::SplitReduce(axis, _)
            | Step::Peel(axis, _)
            | Step::Tail(axis, _)
            | Step::LookBack(axis, _)
            | Step::Reverse(axis)
                if *axis != Axis::Row =>
            {
                return Err(refusal(nest, step, "it is for the row, r"));
            }
            Step::SplitReduce(_, n) => plan.parts = *n,
            Step::Peel(_, vector) => {
                plan = peel::peel(plan, &tiled.scene, &mut tiled.space, *vector)
                    .map_err(|why| refusal(nest, step, why))?;
            }
            Step::StageRows => {
                check(stage_rows::packs(&plan, &tiled.scene))?;
                plan.multi_row = true;
            }
            Step::LookBack(_, group) => {
                check(look_back::fits(&plan, &tiled.scene, *group))?;
                plan.look_back = Some(*group);
            }
            Step::Persist(n) => plan.persistent = Some(*n),
            Step::Tail(_, lanes) => {
                check(tail::fits(&plan, &tiled.scene, *lanes))?;
                plan.tail = Some(*lanes);
            }
            Step::Prefetch(n) => plan.prefetch = Some(*n),
            Step::Reverse(_) => {
                check(reverse::fits(&plan, &tiled.scene))?;
                plan.reversed = true;
            }
            Step::StageOperands => {
                if plan.unaligned.is_none() || !plan.whole() {
                    let why = "only operands of peeled rows that a tile holds are copied; `peel r` before it";
                    return Err(refusal(nest, step, why));
                }
                plan.copies = true;
            }
            _ if shapes(step) => {}
            _ => return Err(refusal(nest, step, "the kernel does not multiply")),
        }
    }
    // Whether rows are peeled, staged or have copies of operands is known after all steps.
    if let Some(clusters) = plan.persistent {
        let fits = persist::fits(&plan, &tiled.scene, clusters);
        fits.map_err(|why| refusal(nest, &Step::Persist(clusters), why))?;
    }
    Ok(plan)
}
