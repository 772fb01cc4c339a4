//! Proposes schedules for a nest: some tens, by rules that read the machine.
//!
//! Takes: a nest. Gives: schedules that fit it, with their prices ([`crate::price`]).
use crate::LowerError;
use crate::dag::Scene;
use crate::facts::Facts;
use crate::nest::Nest;
use crate::price::{Price, Work};
use crate::rows::RowPlan;
use crate::{schedule, wide_rows};
use kiln_block::passes::persistent_rows;
use kiln_machine::Machine;
use kiln_plan::{Axis, Hardware, Schedule, Step};

/// Warps of a block.
const WARPS: [usize; 5] = [1, 2, 4, 8, 16];
/// Bytes of a tile that a thread holds of the widest element.
const EACH: std::ops::RangeInclusive<usize> = 8..=256;
/// Elements of a tile that one block holds at most.
const TILE: usize = 16384;

/// 32-bit words of a tile that a thread holds: fewer leave memory idle, more do not fit its registers.
const POINTS: (f64, f64) = (2.0, 32.0);
const ROWS: (f64, f64) = (8.0, 128.0);
const CHUNKS: (f64, f64) = (8.0, 64.0);
const PERSISTENT: (f64, f64) = (16.0, 80.0);
/// Most words where a block has 16 warps.
const MANY_WARPS: f64 = 64.0;
/// Bytes of a cache line.
const LINE: usize = 128;
/// Most instances that share columns, for each multiprocessor.
const SLICES: usize = 1;

/// Schedules of a nest with their prices, the cheapest first, without repetition.
pub fn propose(nest: &Nest, facts: &Facts) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let mut all = vec![];
    match nest.row() {
        Some(n) => rows(nest, facts, n, &mut all),
        None => points(nest, facts, &mut all),
    }
    let mut priced = priced(nest, facts, all);
    for k in 0..nest.kept().count() {
        for count in wide_rows::counts(nest, k) {
            let axis = Axis::Kept(k as u8);
            if let (Some(wide), Some(n)) = (wide_rows::widened(nest, (axis, count))?, nest.row()) {
                let (facts, mut all) = (Facts::of(&wide), vec![]);
                columns(&wide, &facts, (n / count, k), &mut all);
                all.retain(|s| s.steps.iter().any(|s| matches!(s, Step::SplitReduce(..))));
                let widen = |s: Schedule| std::iter::once(Step::Widen(axis, count)).chain(s.steps).collect();
                priced.extend(
                    self::priced(&wide, &facts, all).into_iter().map(|(s, price, holds)| (widen(s), price, holds)),
                );
            }
        }
    }
    // Nests of few bytes leave most of a machine idle whatever a thread holds.
    let some = priced.iter().any(|p| p.2);
    priced.retain(|p| p.2 || !some);
    priced.sort_by(|a, b| a.1.us.total_cmp(&b.1.us).then_with(|| a.0.cmp(&b.0)));
    Ok(priced.into_iter().map(|(s, price, _)| (s, price)).collect())
}

/// Each schedule once, with its price, and whether its threads hold as much as they should.
fn priced(nest: &Nest, facts: &Facts, mut all: Vec<Schedule>) -> Vec<(Schedule, Price, bool)> {
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|s| seen.insert(s.clone()));
    (all.into_iter())
        .map(|s| {
            let (price, holds) = price(facts, &s, nest.machine);
            let columns = s.steps.iter().any(|s| matches!(s, Step::Split(Axis::Kept(_), n) if *n > 1));
            let most = SLICES * nest.machine.units.multiprocessors;
            let many = s.steps.iter().any(|s| matches!(s, Step::SplitReduce(_, n) if *n > most));
            (s, price, holds && !(columns && many))
        })
        .collect()
}

/// The price of a schedule of a nest.
pub fn price_of(nest: &Nest, facts: &Facts, schedule: &Schedule) -> Result<Price, LowerError> {
    if let Some(Step::Widen(axis, count)) = schedule.steps.first()
        && let Some(wide) = wide_rows::widened(nest, (*axis, *count))?
    {
        let rest = schedule.steps[1..].iter().cloned().collect();
        return Ok(price(&Facts::of(&wide), &rest, nest.machine).0);
    }
    Ok(price(facts, schedule, nest.machine).0)
}

/// The price of a schedule, and whether its threads hold as much as they should.
fn price(facts: &Facts, schedule: &Schedule, machine: &Hardware) -> (Price, bool) {
    let work = Work::of(facts, schedule);
    let held = work.words + if work.again || facts.scans > 0 { work.each } else { 0.0 };
    let rows = facts.coords.iter().any(|c| c.1);
    let (mut least, mut most) = match (rows, work.whole) {
        (false, _) => POINTS,
        (true, true) => ROWS,
        (true, false) => CHUNKS,
    };
    if facts.bytes <= (machine.units.l2 / 2) as u64 {
        least = 1.0;
    }
    if work.warps / work.blocks >= 16.0 {
        most = most.min(MANY_WARPS);
    }
    if work.persist > 0.0 {
        (least, most) = PERSISTENT;
    }
    (work.price(facts, machine), (least..=most).contains(&held))
}

/// Bytes of the widest element.
fn widest(facts: &Facts) -> usize {
    facts.accesses.iter().map(|a| a.bytes).max().unwrap_or(4).max(1)
}
fn powers(from: usize, to: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from.next_power_of_two()), |n| n.checked_mul(2)).take_while(move |n| *n <= to)
}
fn each(elements: usize, warps: usize, bytes: usize) -> bool {
    elements.is_multiple_of(32 * warps) && EACH.contains(&(elements / (32 * warps) * bytes))
}
fn bind(warps: usize, cluster: usize) -> impl Iterator<Item = Step> {
    [Step::Warps(warps)].into_iter().chain((cluster > 1).then_some(Step::Cluster(cluster)))
}

/// How many instances share a row so that a machine has some multiples of its multiprocessors.
fn slices(instances: usize, n: usize, chunk: usize, machine: &Machine) -> Vec<usize> {
    let most = n / (2 * chunk).max(1);
    let mut all = vec![];
    for k in [1, 2, 4, 8] {
        let parts = (k * machine.units.multiprocessors).div_ceil(instances.max(1)).min(most);
        if parts > 1 && !all.contains(&parts) {
            all.push(parts);
        }
    }
    all
}

fn rows(nest: &Nest, facts: &Facts, n: usize, all: &mut Vec<Schedule>) {
    let machine = nest.machine;
    let bytes = widest(facts);
    let kept: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let rows: usize = kept.iter().product();
    let wide = n.next_power_of_two();
    let last = facts.coords.iter().rposition(|c| c.1);
    let along_row = facts.accesses.iter().any(|a| last.is_some_and(|l| a.strides[l].is_none_or(|s| s == 1)));
    let fuse = || -> Vec<Step> {
        let axes: Vec<Axis> = (0..kept.len()).map(|n| Axis::Kept(n as u8)).collect();
        if axes.len() > 1 { vec![Step::Fuse(axes)] } else { vec![] }
    };
    if along_row {
        for high in powers(1, 256).filter(|h| *h == 1 || !kept.is_empty() && *h <= rows.next_power_of_two()) {
            for warps in WARPS.into_iter().filter(|w| high * wide <= TILE && each(high * wide, *w, bytes)) {
                let mut steps = if high > 1 { fuse() } else { vec![] };
                steps.extend((high > 1).then_some(Step::Split(Axis::Kept(0), high)));
                steps.push(Step::Split(Axis::Row, wide));
                steps.extend(bind(warps, 1));
                variants(nest, Schedule { steps }, all);
            }
            let sizes = machine.limits.clusters.iter().map(|c| c.blocks).filter(|c| *c > 1);
            for (cluster, warps) in sizes.flat_map(|c| [4, 8, 16].map(|w| (c, w))) {
                if high > 2 || !each(high * wide, warps * cluster, bytes) || facts.scans > 0 {
                    continue;
                }
                let mut steps = if high > 1 { fuse() } else { vec![] };
                steps.extend((high > 1).then_some(Step::Split(Axis::Kept(0), high)));
                steps.push(Step::Split(Axis::Row, wide));
                steps.extend(bind(warps, cluster));
                variants(nest, Schedule { steps }, all);
            }
        }
        for warps in [4, 8, 16] {
            for per in [16, 32, 64, 128].map(|b| (b / bytes).max(1)) {
                let chunk = 32 * warps * per;
                if chunk < n {
                    let base: Vec<Step> = [Step::Split(Axis::Row, chunk)].into_iter().chain(bind(warps, 1)).collect();
                    all.push(Schedule { steps: base.clone() });
                    for parts in slices(rows, n, chunk, machine) {
                        all.push(Schedule { steps: base.clone() }.then(Step::SplitReduce(Axis::Row, parts)));
                    }
                    looks_back(nest, facts, &base, all);
                }
            }
        }
    }
    for k in 0..kept.len() {
        columns(nest, facts, (n, k), all);
    }
}

/// Tiles along the kept axis number `k`, where rows are strided in memory and that axis is not.
fn columns(nest: &Nest, facts: &Facts, (n, k): (usize, usize), all: &mut Vec<Schedule>) {
    let machine = nest.machine;
    let bytes = widest(facts);
    let kept: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let (rows, wide) = (kept.iter().product::<usize>(), n.next_power_of_two());
    let last = facts.coords.iter().rposition(|c| c.1);
    let at = (0..facts.coords.len()).filter(|i| !facts.coords[*i].1).nth(k).unwrap_or(0);
    let strided = |a: &crate::facts::Access| last.is_some_and(|l| a.strides[l].is_some_and(|s| s.abs() > 1));
    if kept[k] < 2 || !facts.accesses.iter().any(|a| a.strides[at] == Some(1) && strided(a)) {
        return;
    }
    for strip in powers((16 / bytes).max(1), (1024 / bytes).min(kept[k].next_power_of_two())) {
        let instances = rows / kept[k] * kept[k].div_ceil(strip);
        for warps in WARPS {
            for per in [16, 32, 64, 128, 256].map(|b| (b / bytes).max(1)) {
                let block = (32 * warps * per / strip).min(wide);
                if block == 0 || !each(block * strip, warps, bytes) {
                    continue;
                }
                let split = [Step::Split(Axis::Row, block), Step::Split(Axis::Kept(k as u8), strip)];
                let base: Vec<Step> = split.into_iter().chain(bind(warps, 1)).collect();
                if block >= n {
                    variants(nest, Schedule { steps: base }, all);
                    continue;
                }
                all.push(Schedule { steps: base.clone() });
                for parts in slices(instances, n, block, machine) {
                    all.push(Schedule { steps: base.clone() }.then(Step::SplitReduce(Axis::Row, parts)));
                }
                // Pieces of lines that instances read at different times are read more than once.
                if strip * bytes >= LINE || strip >= kept[k] {
                    looks_back(nest, facts, &base, all);
                }
            }
        }
        let sizes = machine.limits.clusters.iter().map(|c| c.blocks).filter(|c| *c > 1);
        for (cluster, warps) in sizes.flat_map(|c| [4, 8, 16].map(|w| (c, w))) {
            if each(wide * strip, warps * cluster, bytes) && facts.scans == 0 {
                let split = [Step::Split(Axis::Row, wide), Step::Split(Axis::Kept(k as u8), strip)];
                variants(nest, split.into_iter().chain(bind(warps, cluster)).collect(), all);
            }
        }
    }
}

/// What a schedule splits and binds, if it fits.
fn fitting<'m>(nest: &Nest<'m>, schedule: &Schedule) -> Option<(RowPlan<'m>, Scene)> {
    let mut tiled = schedule::tile(nest, schedule).ok()?;
    let plan = schedule::row_plan(nest, schedule, &mut tiled).ok()?;
    Some((plan, tiled.scene))
}

/// The same chunks, each an instance that waits for those before it.
fn looks_back(nest: &Nest, facts: &Facts, base: &[Step], all: &mut Vec<Schedule>) {
    let schedule = base.iter().cloned().collect::<Schedule>().then(Step::LookBack(Axis::Row));
    all.extend(Some(schedule).filter(|s| facts.scans > 0 && fitting(nest, s).is_some()));
}

/// A schedule that holds whole rows, and what else it may do.
fn variants(nest: &Nest, base: Schedule, all: &mut Vec<Schedule>) {
    all.push(base.clone());
    let fits = |s: &Schedule| fitting(nest, s);
    let Some((plan, scene)) = fits(&base) else { return };
    if crate::multi_row::packs(&plan, &scene).is_ok() {
        all.push(base.clone().then(Step::StageRows));
    }
    let mut more = vec![base.clone()];
    for vector in [2, 4, 8] {
        let peeled = base.clone().then(Step::Peel(Axis::Row, vector));
        let Some((plan, scene)) = fits(&peeled) else { continue };
        all.push(peeled.clone());
        more.push(peeled.clone());
        if crate::replicate::shares(&plan, &scene) {
            all.push(peeled.clone().then(Step::StageOperands));
        }
        for lanes in powers(2, 64) {
            let tail = peeled.clone().then(Step::Tail(Axis::Row, lanes));
            if fits(&tail).is_some() {
                all.push(tail);
                break;
            }
        }
    }
    let most = nest.machine.limits.clusters_of(plan.blocks);
    let instances = plan.shape(1).instances();
    for s in more {
        let whole = 16 * plan.row.extent >= 9 * plan.row.block && plan.unaligned.is_none();
        let vectors = nest.axes().iter().all(|(axis, n)| *axis != Axis::Row || n.is_multiple_of(8));
        if most > 0
            && instances > 2 * most
            && plan.warps == persistent_rows::WARPS * plan.blocks
            && plan.blocks > 1
            && whole
            && vectors
        {
            all.push(s.clone().then(Step::Persist(most)));
        }
        if let Some((plan, scene)) = fits(&s)
            && let Some(n) = crate::prefetch::distance(&scene, &plan)
        {
            all.push(s.then(Step::Prefetch(n)));
        }
    }
}

fn points(nest: &Nest, facts: &Facts, all: &mut Vec<Schedule>) {
    let bytes = widest(facts);
    let extents: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let axis = |n: usize| Axis::Kept(n as u8);
    let fused = |from: usize, to: usize| -> Vec<Step> {
        if to - from > 1 { vec![Step::Fuse((from..to).map(axis).collect())] } else { vec![] }
    };
    let Some(&last) = extents.last() else {
        all.push(bind(1, 1).collect());
        return;
    };
    let inner = extents.len() - 1;
    let sizes = || WARPS.into_iter().flat_map(|w| [8, 16, 32, 64, 128].map(|b| (w, (b / bytes).max(1))));
    for first in 0..extents.len() {
        let extent: usize = extents[first..].iter().product();
        for (warps, per) in sizes() {
            let block = (32 * warps * per).min(extent.next_power_of_two());
            if extent > 1 << 30 || block < 32 * warps && warps > 1 {
                continue;
            }
            let mut steps = fused(first, extents.len());
            steps.push(Step::Split(axis(first), block));
            steps.extend(bind(warps, 1));
            all.push(Schedule { steps });
        }
    }
    for first in 0..inner {
        let tall: usize = extents[first..inner].iter().product();
        for width in powers(8, last.next_power_of_two().min(4096)) {
            for (warps, per) in sizes() {
                let high = 32 * warps * per / width;
                if high > 1 && high <= tall.next_power_of_two() && tall <= 1 << 30 {
                    let mut steps = fused(first, inner);
                    steps.extend([Step::Split(axis(first), high), Step::Split(axis(inner), width)]);
                    steps.extend(bind(warps, 1));
                    all.push(Schedule { steps });
                }
            }
        }
        // Tiles of an axis that is not beside the last: transposes.
        let across = facts.accesses.iter().any(|a| a.strides[first] == Some(1));
        if across && first + 1 < inner {
            for (a, b) in [16, 32, 64, 128].into_iter().flat_map(|a| [16, 32, 64, 128].map(|b| (a, b))) {
                for warps in WARPS.into_iter().filter(|w| each(a * b, *w, bytes)) {
                    let split = [Step::Split(axis(first), a), Step::Split(axis(inner), b)];
                    all.push(split.into_iter().chain(bind(warps, 1)).collect());
                }
            }
        }
    }
}
