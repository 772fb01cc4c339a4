//! Schedules in which neighbours of a window along an axis are computed together.
use crate::cost::features::{Access, NestFeatures};
use crate::error::LowerError;
use crate::nest::Nest;
use crate::schedule::unroll;
use crate::select::extents::{elements, warps};
use crate::select::order::Priced;
use crate::select::propose::fit::priced;
use crate::select::propose::points::points;
use crate::select::propose::tiles::Proposals;
use kiln_plan::{Axis, Schedule, Step};

/// Of schedules that unroll: share of a tile's lanes along a row that have elements of it, most results of a thread,
/// and most warps.
const MIN_FILLED_LANES: f64 = 0.75;
const MAX_RESULTS: usize = 32;
const MAX_WARPS: f64 = 4.0;

/// Schedules of neighbours along an axis that are computed together, with their prices.
pub fn unrolled(nest: &Nest, facts: &NestFeatures) -> Result<Vec<Priced>, LowerError> {
    let kept: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    // Lanes of a tile beyond its row load what others need, and do not share it.
    let fills = |s: &Step| match s {
        Step::Split(Axis::Kept(k), n) if kept.len() > 1 && usize::from(*k) + 1 == kept.len() => {
            kept[usize::from(*k)] as f64 >= MIN_FILLED_LANES * *n as f64
        }
        _ => true,
    };
    // Unless it is told how many registers a thread may have, ptxas takes few, and a thread waits for one load of a
    // window after the other.
    let registers =
        Some(Step::Registers(nest.machine.limits.registers_per_thread)).filter(|_| nest.machine.arch.is_gpu());
    let mut all = vec![];
    for k in 0..kept.len() {
        for count in counts(nest, facts, k) {
            let axis = Axis::Kept(k as u8);
            let nest = unroll::unrolled(nest, (axis, count))?;
            let facts = NestFeatures::of(&nest);
            let mut proposals = Proposals::new(&nest, &facts);
            points(&mut proposals);
            let mut schedules = proposals.schedules;
            let holds = |s: &Schedule| elements(s) * count <= MAX_RESULTS * 32 * warps(s) as usize;
            schedules.retain(|s| warps(s) <= MAX_WARPS && holds(s) && s.steps.iter().all(fills));
            let with_unroll = |s: Schedule| {
                std::iter::once(Step::Unroll(axis, count)).chain(s.steps).chain(registers.clone()).collect()
            };
            all.extend(priced(&nest, &facts, schedules.into_iter().map(with_unroll).collect()));
        }
    }
    Ok(all)
}

/// How many neighbours along the kept axis number `k` may be computed together, where they read the same elements: the
/// fewest, the most, and half of what may be. Those along the last axis are those of a vector.
fn counts(nest: &Nest, facts: &NestFeatures, k: usize) -> Vec<usize> {
    let extents: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let shares = |a: &Access, b: &Access| match a.strides[k] {
        Some(s) if s != 0 && a.strides == b.strides && a.slot == b.slot => {
            let distance = (a.offset - b.offset) / s;
            distance != 0 && distance.unsigned_abs() < unroll::MAX_NEIGHBOURS as u64 && (a.offset - b.offset) % s == 0
        }
        _ => false,
    };
    // Pieces that are put together are read in few points each.
    let loads = || facts.accesses.iter().filter(|a| !a.store && !a.gathered && a.share > 0.5);
    let last = k + 1 == extents.len();
    if !facts.window || nest.row().is_some() || last || !loads().any(|a| loads().any(|b| shares(a, b))) {
        return vec![];
    }
    let mut all: Vec<usize> = (2..=unroll::MAX_NEIGHBOURS).filter(|n| extents[k].is_multiple_of(*n)).collect();
    let ends = [all.first().copied(), all.last().copied(), Some(unroll::MAX_NEIGHBOURS / 2)];
    all.retain(|n| ends.contains(&Some(*n)));
    all
}
