//! Schedules under a batch-invariant contract: which keep the order of sums, and what they cost in a batch of any size.
use crate::cost::features::NestFeatures;
use crate::nest::Nest;
use crate::select::extents::strip;
use kiln_plan::{Axis, Hardware, Schedule, Step};

/// Whether the order in which rows are combined depends on the length of rows, and on the extent of the axis of strips
/// alone: an instance has one row of others, all of it.
pub(super) fn is_invariant(nest: &Nest, schedule: &Schedule) -> bool {
    let strip = strip(schedule);
    let alone = |s: &Step| match s {
        Step::Fuse(_) | Step::SplitReduce(..) | Step::Persist(_) | Step::LookBack(..) | Step::Widen(..) => false,
        // They change no order, but whether there are rows to prefetch, or more than the L2 cache has, depends on their
        // number, and with it what is cheapest.
        Step::Prefetch(_) | Step::Reverse(_) => false,
        Step::Split(axis @ Axis::Kept(_), n) => *n == 1 || strip == Some(*axis),
        _ => true,
    };
    nest.machine.contract.batch_invariant && schedule.steps.iter().all(alone)
}

/// The nest with so many rows as keep any machine busy, for a batch-invariant contract: what is chosen must not depend
/// on their number.
pub(super) fn of_any_batch(facts: &NestFeatures, schedule: &Schedule, machine: &Hardware) -> NestFeatures {
    let strip = strip(schedule);
    let mut kept = facts.coords.iter().enumerate().filter(|c| !c.1.1).map(|c| c.0).enumerate();
    let others: Vec<usize> =
        kept.by_ref().filter(|(n, _)| strip != Some(Axis::Kept(*n as u8))).map(|(_, i)| i).collect();
    let mut of = facts.clone();
    let rows: usize = others.iter().map(|i| facts.coords[*i].0).product();
    let many = machine.counted(rows);
    of.bytes = (facts.bytes as f64 / rows.max(1) as f64 * many as f64) as u64;
    match others.first() {
        Some(first) => {
            others.iter().for_each(|i| of.coords[*i].0 = 1);
            of.coords[*first].0 = many;
        }
        None => {
            of.coords.push((many, false));
            for a in &mut of.accesses {
                a.strides.push(Some(1 << 20));
                a.within.push(usize::MAX);
            }
        }
    }
    of.compare();
    of
}
