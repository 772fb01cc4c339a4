//! Rows in chunks: how many instances share one, which wait for those before them, and from which end the last pass
//! goes.
use crate::cost::price::TileFootprint;
use crate::select::propose::fit::fitted;
use crate::select::propose::tiles::{Proposals, resident_registers};
use kiln_machine::Machine;
use kiln_plan::{Axis, Schedule, Step};

/// Instances for each multiprocessor that are tried.
const INSTANCES_PER_MULTIPROCESSOR: [usize; 4] = [1, 2, 4, 8];

/// How many instances share a row of `row` elements so that a machine has some multiples of its multiprocessors, where
/// there are `instances` of whole rows.
pub fn slices(instances: usize, row: usize, chunk: usize, machine: &Machine) -> Vec<usize> {
    let most = row / (2 * chunk).max(1);
    let mut all = vec![];
    for k in INSTANCES_PER_MULTIPROCESSOR {
        let parts = (k * machine.units.multiprocessors).div_ceil(instances.max(1)).min(most);
        if parts > 1 && !all.contains(&parts) {
            all.push(parts);
        }
    }
    all
}

/// The same chunks, each an instance that waits for those before it; with sums of so many, and with so few registers
/// that several blocks are resident.
pub fn look_back(proposals: &mut Proposals, base: &[Step], groups: &[usize]) {
    let nest = proposals.nest;
    if proposals.facts.scans == 0 {
        return;
    }
    for limit in [None, Some(Step::Registers(resident_registers(nest.machine)))] {
        for group in groups.iter().copied() {
            let steps = base.iter().cloned().chain(limit.clone()).chain([Step::LookBack(Axis::Row, group)]);
            proposals.schedules.extend(Some(steps.collect()).filter(|s| fitted(nest, s).is_some()));
        }
    }
}

/// The same schedules with the last pass reversed, where there are several and the L2 cache has a part of what they
/// read.
pub fn reverse(proposals: &mut Proposals) {
    let (nest, facts) = (proposals.nest, proposals.facts);
    let large = facts.bytes > nest.machine.units.l2 as u64;
    if !large || !facts.stored_along() || facts.levels == 0 || facts.scans > 0 {
        return;
    }
    // A chunk of one element has no end to start from.
    let several =
        |s: &&Schedule| !s.steps.contains(&Step::Split(Axis::Row, 1)) && TileFootprint::of(facts, s).passes > 1.0;
    let with_reverse = |s: &Schedule| s.clone().then(Step::Reverse(Axis::Row));
    let found: Vec<Schedule> = proposals.schedules.iter().filter(several).map(with_reverse).collect();
    proposals.schedules.extend(found);
}
