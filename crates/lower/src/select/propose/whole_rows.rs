//! Schedules of tiles that hold whole rows, and what else these may do: stage rows, peel them, split a tail off,
//! prefetch the next ones, or be persistent.
use crate::cost::features::{Access, NestFeatures};
use crate::schedule::row_plan::RowPlan;
use crate::schedule::{prefetch, stage_operands, stage_rows};
use crate::select::extents::elements;
use crate::select::order::limits_registers;
use crate::select::propose::fit::{FittedRows, fitted, peeled};
use crate::select::propose::tiles::{Proposals, powers, resident_registers};
use kiln_block::passes::persistent_rows;
use kiln_plan::{Axis, Schedule, Step};

/// Most lanes of a tail.
const MAX_TAIL: usize = 64;

/// A schedule of clusters, and the same with so few registers that several of its blocks are resident.
pub fn clusters(proposals: &mut Proposals, base: Schedule) {
    let registers = Step::Registers(resident_registers(proposals.nest.machine));
    whole_rows(proposals, base.clone().then(registers));
    whole_rows(proposals, base);
}

/// A schedule that holds whole rows, and what else it may do.
pub fn whole_rows(proposals: &mut Proposals, base: Schedule) {
    let nest = proposals.nest;
    let Some(FittedRows { plan, scene, .. }) = fitted(nest, &base) else { return };
    if stage_rows::packs(&plan, &scene).is_ok() {
        proposals.push(base.clone().then(Step::StageRows));
    }
    let mut variants = vec![base.clone()];
    if let Some(FittedRows { schedule, plan, scene }) = peeled(nest, &base) {
        let copied = stage_operands::shares(&plan, &scene).then(|| schedule.clone().then(Step::StageOperands));
        variants.extend([schedule].into_iter().chain(copied));
    }
    let with_tail = |s: &Schedule| {
        powers(2, MAX_TAIL).map(|n| s.clone().then(Step::Tail(Axis::Row, n))).find(|s| fitted(nest, s).is_some())
    };
    variants.extend(variants.iter().filter_map(with_tail).collect::<Vec<_>>());
    for schedule in variants {
        if let Some(fitted) = fitted(nest, &schedule) {
            persistent(proposals, &fitted);
            let distance = prefetch::distance(&fitted.scene, &fitted.plan);
            proposals.schedules.extend(distance.map(|n| schedule.clone().then(Step::Prefetch(n))));
        }
        proposals.push(schedule);
    }
}

/// The same with as many persistent clusters as the machine has at a time, where that is faster and fits.
fn persistent(proposals: &mut Proposals, rows: &FittedRows) {
    let (nest, facts, plan) = (proposals.nest, proposals.facts, &rows.plan);
    let resident = nest.machine.limits.clusters_of(plan.blocks);
    // Rows start at the same place between two vectors after so many.
    let clusters = resident - resident % plan.unaligned.as_ref().map_or(1, |u| u.vector);
    let fits = !limits_registers(&rows.schedule)
        && plan.warps == persistent_rows::WARPS * plan.blocks
        && plan.blocks > 1
        && gains_persistent(facts, plan)
        && shared_bytes(facts, plan, elements(&rows.schedule)) <= nest.machine.limits.shared_per_block;
    if fits && clusters > 0 && plan.shape(1).instances() > 2 * clusters {
        let schedule = rows.schedule.clone().then(Step::Persist(clusters));
        if fitted(nest, &schedule).is_some() {
            proposals.push(schedule);
        }
    }
}

/// Whether an access moves along the row, or along what is kept.
fn moves_along(facts: &NestFeatures, a: &Access, row: bool) -> bool {
    facts.coords.iter().zip(&a.strides).any(|(c, s)| c.1 == row && *s != Some(0))
}

/// Whether a persistent kernel can be faster: what rows share is read once. Rows that share nothing keep as many bytes
/// in flight without one, on all multiprocessors, unless they are of half types without masks. Blocks that exchange one
/// number per row wait at a barrier of the cluster, with what they have stored; with two they wait for the numbers
/// alone.
fn gains_persistent(facts: &NestFeatures, plan: &RowPlan) -> bool {
    if facts.reductions < 2 {
        return false;
    }
    // Warps of several rows would copy what these share more than once.
    let several = plan.kept.iter().any(|c| c.block > 1);
    let is_shared = |a: &Access| !a.store && moves_along(facts, a, true) && !moves_along(facts, a, false);
    let shared = facts.accesses.iter().any(is_shared);
    let halves = facts.accesses.iter().all(|a| a.bytes <= 2);
    shared && !several || halves && !shared && plan.row.extent == plan.row.block
}

/// Bytes of shared memory of a persistent block with tiles of so many elements: what it reads of its rows, and of
/// operands that rows share, but for those at other places in each row.
fn shared_bytes(facts: &NestFeatures, plan: &RowPlan, elements: usize) -> usize {
    let vectors = |a: &&Access| moves_along(facts, a, false) || plan.unaligned.is_none() || plan.copies;
    let loads = facts.accesses.iter().filter(|a| !a.store && moves_along(facts, a, true));
    let bytes: usize = loads.filter(vectors).map(|a| a.bytes).sum();
    elements / plan.blocks * bytes
}

#[cfg(test)]
mod tests;
