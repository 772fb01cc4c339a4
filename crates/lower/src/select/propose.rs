//! Proposes schedules for a nest: some tens, by rules that read the machine.
//!
//! Takes: a nest. Gives: schedules that fit it, with their prices ([`crate::cost::price`]).
use crate::cost::features::{Access, NestFeatures};
use crate::cost::price::{Price, TileFootprint};
use crate::emit::launch;
use crate::error::LowerError;
use crate::nest::Nest;
use crate::scalar::dag::{NodeId, NodeOp, Scene};
use crate::schedule::apply::row_plan;
use crate::schedule::row_plan::RowPlan;
use crate::schedule::{tile, unroll, widen};
use crate::select::extents::{elements, warps};
use crate::select::host;
use crate::select::invariant::{is_invariant, of_any_batch};
use crate::select::order::{self, Fit, Priced};
use kiln_block::passes::layout::SMALL;
use kiln_block::passes::persistent_rows;
use kiln_machine::Machine;
use kiln_plan::{Axis, Hardware, Schedule, Step};
use std::rc::Rc;

/// Warps of a block.
const WARPS: [usize; 5] = [1, 2, 4, 8, 16];
/// Bytes of a tile that a thread holds of the widest element.
const THREAD_BYTES: std::ops::RangeInclusive<usize> = 8..=256;
/// Lanes along short rows, and elements of a row that a lane then has.
const ROW_LANES: [usize; 3] = [4, 8, 16];
const ELEMENTS_PER_LANE: std::ops::RangeInclusive<usize> = 8..=32;
/// Elements of a tile that one block holds at most.
const MAX_TILE: usize = 16384;

/// 32-bit words of a tile that a thread holds at least, since fewer leave memory idle, and the share of its registers
/// that they take at most.
const POINT_WORDS: (f64, f64) = (2.0, 0.125);
const ROW_WORDS: (f64, f64) = (8.0, 0.5);
const CHUNK_WORDS: (f64, f64) = (8.0, 0.25);
const PERSISTENT_WORDS: (f64, f64) = (16.0, 0.25);
/// The same share where warps of a block leave a thread fewer registers than an instruction can name.
const REGISTER_FILE_SHARE: f64 = 0.5;
/// Of schedules that unroll: share of a tile's lanes along a row that have elements of it, most results of a thread,
/// and most warps.
const MIN_FILLED_LANES: f64 = 0.75;
const MAX_RESULTS: usize = 32;
const MAX_UNROLLED_WARPS: f64 = 4.0;
/// Longest fused axis, whose positions are 32-bit integers.
const MAX_FUSED_EXTENT: usize = 1 << 30;
/// Elements from which on an axis is a side of a tile by itself.
const MIN_SIDE: usize = 64;
/// Bytes of a cache line, and of a sector of it.
const LINE: usize = 128;
const SECTOR: usize = 32;
/// Chunks of scanned columns whose sums are published: their totals are as many as columns.
const CHUNKS_PER_GROUP: usize = 32;
/// Share of the warps of a multiprocessor that are resident where registers are limited.
const RESIDENT_WARPS: f64 = 0.5;
/// Most instances that share columns, for each multiprocessor.
const MAX_SLICES_PER_MULTIPROCESSOR: usize = 1;

/// Schedules of a nest with their prices, the cheapest first, without repetition. Under a batch-invariant contract
/// those whose rows do not depend on the number of others.
pub fn propose(nest: &Nest, facts: &NestFeatures) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let mut all = vec![];
    match nest.row() {
        Some(n) => rows(nest, facts, n, &mut all),
        None => points(nest, facts, &mut all),
    }
    reversed(nest, facts, &mut all);
    let invariant = nest.machine.contract.batch_invariant && nest.row().is_some();
    all.retain(|s| !invariant || is_invariant(nest, s));
    if let Some(n) = nest.row().filter(|_| invariant && all.is_empty()) {
        // Rows shorter than a warp: several of them would share an instance.
        all.push(one_row(n));
    }
    let mut priced = priced(nest, facts, all);
    for k in 0..nest.kept().count() {
        for count in widen::counts(nest, k).into_iter().filter(|_| !invariant) {
            let axis = Axis::Kept(k as u8);
            if let (Some((wide, _)), Some(n)) = (widen::widened(nest, (axis, count))?, nest.row()) {
                let (facts, mut all) = (NestFeatures::of(&wide), vec![]);
                columns(&wide, &facts, (n.div_ceil(count), k..k + 1), &mut all);
                let joins = |s: &Step| matches!(s, Step::SplitReduce(_, n) if widen::joins(*n, count));
                all.retain(|s| s.steps.iter().any(joins) && !s.steps.contains(&Step::Split(Axis::Row, 1)));
                reversed(&wide, &facts, &mut all);
                let widen = |s: Schedule| std::iter::once(Step::Widen(axis, count)).chain(s.steps).collect();
                priced.extend(crate::select::propose::priced(&wide, &facts, all.into_iter().map(widen).collect()));
            }
        }
    }
    unrolled(nest, facts, &mut priced)?;
    order::sort(nest, facts, &mut priced);
    Ok(priced.into_iter().map(|p| (p.schedule, p.price)).collect())
}

/// Schedules of a nest with their prices, the cheapest first. On the host there is one, without a price.
pub fn schedules(nest: &Nest) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let reduces = |n: &NodeId| matches!(nest.scene.dag.node(*n).op, NodeOp::Reduce { .. });
    if nest.row().is_none() && nest.scene.live().iter().any(reduces) {
        return Err(LowerError::Unsupported { kernel: nest.name.to_string(), why: "a reduction without a row".into() });
    }
    match nest.machine.arch.is_gpu() {
        true => propose(nest, &NestFeatures::of(nest)),
        false => Ok(vec![(host::of(nest)?, Price::default())]),
    }
}

/// The same without prices ([`crate::nest::lowering::ProposeSchedules`]).
pub fn schedules_of(nest: &Nest) -> Result<Vec<Schedule>, LowerError> {
    Ok(schedules(nest)?.into_iter().map(|(schedule, _)| schedule).collect())
}

/// The schedule that a nest gets, with its price.
pub fn cheapest(nest: &Nest) -> Result<(Schedule, Price), LowerError> {
    let none = || LowerError::Unsupported { kernel: nest.name.to_string(), why: "no schedule fits it".into() };
    schedules(nest)?.into_iter().next().ok_or_else(none)
}

/// How many neighbours along the kept axis number `k` may be computed together, where they read the same elements: the
/// fewest, the most, and half of what may be. Those along the last axis are those of a vector.
fn unrolled_counts(nest: &Nest, facts: &NestFeatures, k: usize) -> Vec<usize> {
    let extents: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let shares = |a: &Access, b: &Access| match a.strides[k] {
        Some(s) if s != 0 && a.strides == b.strides && a.slot == b.slot => {
            let apart = (a.offset - b.offset) / s;
            apart != 0 && apart.unsigned_abs() < unroll::MAX_NEIGHBOURS as u64 && (a.offset - b.offset) % s == 0
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

/// Schedules of neighbours along an axis that are computed together.
fn unrolled(nest: &Nest, facts: &NestFeatures, all: &mut Vec<Priced>) -> Result<(), LowerError> {
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
    for k in 0..kept.len() {
        for count in unrolled_counts(nest, facts, k) {
            let axis = Axis::Kept(k as u8);
            let of = unroll::unrolled(nest, (axis, count))?;
            let (facts, mut some) = (NestFeatures::of(&of), vec![]);
            points(&of, &facts, &mut some);
            let holds = |s: &Schedule| elements(s) * count <= MAX_RESULTS * 32 * warps(s) as usize;
            some.retain(|s| warps(s) <= MAX_UNROLLED_WARPS && holds(s) && s.steps.iter().all(fills));
            let whole = |s: Schedule| {
                std::iter::once(Step::Unroll(axis, count)).chain(s.steps).chain(registers.clone()).collect()
            };
            all.extend(priced(&of, &facts, some.into_iter().map(whole).collect()));
        }
    }
    Ok(())
}

/// Each schedule once, with its price, and whether its threads hold as much as they should.
fn priced(nest: &Nest, facts: &NestFeatures, mut all: Vec<Schedule>) -> Vec<Priced> {
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|s| seen.insert(s.clone()));
    (all.into_iter())
        .map(|schedule| {
            let s = &schedule;
            let many = (nest.machine.contract.batch_invariant && facts.coords.iter().any(|c| c.1))
                .then(|| of_any_batch(facts, s, nest.machine));
            let (mut price, fit) = price(many.as_ref().unwrap_or(facts), s, nest.machine);
            let rank = price.us;
            if many.is_some() {
                price = crate::select::propose::price(facts, s, nest.machine).0;
            }
            let columns = s.steps.iter().any(|s| matches!(s, Step::Split(Axis::Kept(_), n) if *n > 1));
            let most = MAX_SLICES_PER_MULTIPROCESSOR * nest.machine.units.multiprocessors;
            let slices = s.steps.iter().any(|s| matches!(s, Step::SplitReduce(_, n) if *n > most));
            let fit = if columns && slices { Fit::Spills } else { fit };
            Priced { schedule, price, rank, fit }
        })
        .collect()
}

/// The price of a schedule of a nest.
pub fn price_of(nest: &Nest, facts: &NestFeatures, schedule: &Schedule) -> Result<Price, LowerError> {
    if let Some(Step::Widen(axis, count)) = schedule.steps.first()
        && let Some((wide, _)) = widen::widened(nest, (*axis, *count))?
    {
        return Ok(price(&NestFeatures::of(&wide), schedule, nest.machine).0);
    }
    if let Some(Step::Unroll(axis, count)) = schedule.steps.first() {
        return Ok(price(&NestFeatures::of(&unroll::unrolled(nest, (*axis, *count))?), schedule, nest.machine).0);
    }
    Ok(price(facts, schedule, nest.machine).0)
}

/// The price of a schedule, and whether its threads hold as much as they should.
fn price(facts: &NestFeatures, schedule: &Schedule, machine: &Hardware) -> (Price, Fit) {
    let work = TileFootprint::of(facts, schedule);
    let rows = facts.coords.iter().any(|c| c.1);
    // Points are computed as their operands arrive: of a window's elements few are held at a time, but all results.
    let words = match rows {
        true => work.words,
        false if facts.window => work.elements_per_thread * facts.accesses.iter().filter(|a| a.store).count() as f64,
        false => work.words_once,
    };
    let held = words + if work.rereads_row || facts.scans > 0 { work.elements_per_thread } else { 0.0 };
    let (mut least, share) = match (rows, work.whole) {
        _ if work.persist > 0.0 => PERSISTENT_WORDS,
        (false, _) => POINT_WORDS,
        // A chunk that looks back is held as a whole row is.
        (true, whole) if whole || work.look_back.is_some() => ROW_WORDS,
        (true, _) => CHUNK_WORDS,
    };
    if work.persist == 0.0 && facts.bytes <= (machine.units.l2 / 2) as u64 {
        least = 1.0;
    }
    let limits = &machine.limits;
    let of_file = limits.registers_per_multiprocessor as f64 * work.blocks / (32.0 * work.warps);
    let most = (limits.registers_per_thread as f64 + 1.0) * share;
    let most = if work.persist > 0.0 { most } else { most.min(of_file * REGISTER_FILE_SHARE) };
    let spills = work.spilled(facts, machine) > 0.0;
    let fit = match (least..=most).contains(&held) {
        true if rows || !spills => Fit::Good,
        false if !spills => Fit::Poor,
        _ => Fit::Spills,
    };
    (work.price(facts, machine), fit)
}

fn powers(from: usize, to: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from.next_power_of_two()), |n| n.checked_mul(2)).take_while(move |n| *n <= to)
}
fn each(elements: usize, warps: usize, bytes: usize) -> bool {
    elements.is_multiple_of(32 * warps) && THREAD_BYTES.contains(&(elements / (32 * warps) * bytes))
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

fn rows(nest: &Nest, facts: &NestFeatures, n: usize, all: &mut Vec<Schedule>) {
    let machine = nest.machine;
    let bytes = facts.widest();
    let kept: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let rows: usize = kept.iter().product();
    let wide = n.next_power_of_two();
    let last = facts.coords.iter().rposition(|c| c.1);
    let along_row = facts.accesses.iter().any(|a| last.is_some_and(|l| a.strides[l].is_none_or(|s| s == 1)));
    let fuse = || -> Vec<Step> {
        let axes: Vec<Axis> = (0..kept.len()).map(|n| Axis::Kept(n as u8)).collect();
        if axes.len() > 1 { vec![Step::Fuse(axes)] } else { vec![] }
    };
    // Blocks of a cluster exchange 32-bit words.
    let clusters =
        || machine.limits.clusters.iter().map(|c| c.blocks).filter(|c| *c > 1 && bytes <= 4 && facts.scans == 0);
    let strips = (0..kept.len()).any(|k| has_strips(nest, facts, k));
    if along_row || !strips {
        for high in powers(1, 1024).filter(|h| *h == 1 || !kept.is_empty() && *h <= rows.next_power_of_two()) {
            for warps in WARPS.into_iter().filter(|w| high * wide <= MAX_TILE && each(high * wide, *w, bytes)) {
                let mut steps = if high > 1 { fuse() } else { vec![] };
                steps.extend((high > 1).then_some(Step::Split(Axis::Kept(0), high)));
                steps.push(Step::Split(Axis::Row, wide));
                steps.extend(bind(warps, 1));
                // Short rows: fewer lanes of each exchange less, and fewer of them are past its end.
                let lanes =
                    ROW_LANES.into_iter().filter(|n| high * n == 32 * warps && ELEMENTS_PER_LANE.contains(&(wide / n)));
                let by_lane = lanes.map(|n| Schedule { steps: steps.clone() }.then(Step::Lanes(n)));
                by_lane.for_each(|s| variants(nest, facts, s, all));
                variants(nest, facts, Schedule { steps }, all);
            }
            for (cluster, warps) in clusters().flat_map(|c| [4, 8, 16].map(|w| (c, w))) {
                if high > 2 || !each(high * wide, warps * cluster, bytes) {
                    continue;
                }
                let mut steps = if high > 1 { fuse() } else { vec![] };
                steps.extend((high > 1).then_some(Step::Split(Axis::Kept(0), high)));
                steps.push(Step::Split(Axis::Row, wide));
                steps.extend(bind(warps, cluster));
                clustered(nest, facts, Schedule { steps }, all);
            }
        }
        for warps in [4, 8, 16] {
            for per in [16, 32, 64, 128, 256].map(|b| (b / bytes).max(1)) {
                let chunk = 32 * warps * per;
                if chunk < n {
                    let base: Vec<Step> = [Step::Split(Axis::Row, chunk)].into_iter().chain(bind(warps, 1)).collect();
                    let plain = Schedule { steps: base.clone() };
                    for s in peeled(nest, &plain).map(|(s, ..)| s).into_iter().chain([plain]) {
                        let slices = slices(rows, n, chunk, machine).into_iter();
                        all.extend(slices.map(|parts| s.clone().then(Step::SplitReduce(Axis::Row, parts))));
                        all.push(s);
                    }
                    looks_back(nest, facts, &base, &[1], all);
                }
            }
        }
    }
    for (k, extent) in kept.iter().enumerate() {
        columns(nest, facts, (n, k..k + 1), all);
        // Short strips of several others are one.
        if k > 0 && *extent < MIN_SIDE {
            columns(nest, facts, (n, 0..k + 1), all);
        }
    }
    if all.is_empty() {
        all.push(one_row(n));
    }
}

/// A row by an instance, whatever the length and the type of rows.
fn one_row(n: usize) -> Schedule {
    let wide = n.next_power_of_two();
    [Step::Split(Axis::Row, wide.min(1024)), Step::Warps((wide / 32).clamp(1, 8))].into_iter().collect()
}

/// Whether rows are strided in memory and the kept axis number `k` is not.
fn has_strips(nest: &Nest, facts: &NestFeatures, k: usize) -> bool {
    let last = facts.coords.iter().rposition(|c| c.1);
    let at = (0..facts.coords.len()).filter(|i| !facts.coords[*i].1).nth(k).unwrap_or(0);
    let strided = |a: &Access| last.is_some_and(|l| a.strides[l].is_some_and(|s| s.abs() > 1));
    nest.kept().nth(k).is_some_and(|c| c.extent > 1)
        && facts.accesses.iter().any(|a| a.strides[at] == Some(1) && strided(a))
}

/// Tiles along kept axes that are fused, where the last of them has strips.
fn columns(nest: &Nest, facts: &NestFeatures, (n, axes): (usize, std::ops::Range<usize>), all: &mut Vec<Schedule>) {
    let machine = nest.machine;
    let bytes = facts.widest();
    let kept: Vec<usize> = nest.kept().map(|c| c.extent).collect();
    let (rows, wide) = (kept.iter().product::<usize>(), n.next_power_of_two());
    if !has_strips(nest, facts, axes.end - 1) {
        return;
    }
    let along = Axis::Kept(axes.start as u8);
    let fused = Some(axes.clone())
        .filter(|all| all.len() > 1)
        .map(|all| Step::Fuse(all.map(|k| Axis::Kept(k as u8)).collect()));
    let extent: usize = kept[axes].iter().product();
    if fused.is_some() && extent > MAX_FUSED_EXTENT {
        return;
    }
    let widest = extent.next_power_of_two();
    for strip in powers((SECTOR / bytes).max(1).min(widest), (1024 / bytes).min(widest)) {
        let instances = rows / extent * extent.div_ceil(strip);
        for warps in WARPS {
            for per in [16, 32, 64, 128, 256].map(|b| (b / bytes).max(1)) {
                let block = (32 * warps * per / strip).min(wide);
                if block == 0 || !each(block * strip, warps, bytes) {
                    continue;
                }
                let split = [Step::Split(Axis::Row, block), Step::Split(along, strip)];
                let base: Vec<Step> = fused.clone().into_iter().chain(split).chain(bind(warps, 1)).collect();
                if block >= n {
                    variants(nest, facts, Schedule { steps: base }, all);
                    continue;
                }
                all.push(Schedule { steps: base.clone() });
                for parts in slices(instances, n, block, machine) {
                    all.push(Schedule { steps: base.clone() }.then(Step::SplitReduce(Axis::Row, parts)));
                }
                // Pieces of lines that instances read at different times are read more than once.
                if strip * bytes >= LINE || strip >= extent {
                    looks_back(nest, facts, &base, &[1, CHUNKS_PER_GROUP], all);
                }
            }
        }
        let sizes = machine.limits.clusters.iter().map(|c| c.blocks);
        for (cluster, warps) in sizes.filter(|c| *c > 1 && bytes <= 4).flat_map(|c| [4, 8, 16].map(|w| (c, w))) {
            if each(wide * strip, warps * cluster, bytes) && facts.scans == 0 {
                let split = [Step::Split(Axis::Row, wide), Step::Split(along, strip)];
                let steps = fused.clone().into_iter().chain(split).chain(bind(warps, cluster));
                clustered(nest, facts, steps.collect(), all);
            }
        }
    }
}

/// What a schedule splits and binds, if it fits.
fn fitting<'m>(nest: &Nest<'m>, schedule: &Schedule) -> Option<(RowPlan<'m>, Rc<Scene>)> {
    let mut tiled = tile::tile(nest, schedule).ok()?;
    let plan = row_plan(nest, schedule, &mut tiled).ok()?;
    Some((plan, tiled.scene))
}

/// The same with peeled rows, if rows are unaligned.
fn peeled<'m>(nest: &Nest<'m>, base: &Schedule) -> Option<(Schedule, RowPlan<'m>, Rc<Scene>)> {
    [2, 4, 8, 16].into_iter().find_map(|vector| {
        let peeled = base.clone().then(Step::Peel(Axis::Row, vector));
        fitting(nest, &peeled).map(|(plan, scene)| (peeled, plan, scene))
    })
}

/// The same chunks, each an instance that waits for those before it; with sums of so many, and with so few registers
/// that several blocks are resident.
fn looks_back(nest: &Nest, facts: &NestFeatures, base: &[Step], groups: &[usize], all: &mut Vec<Schedule>) {
    if facts.scans == 0 {
        return;
    }
    for limit in [None, Some(Step::Registers(of_resident(nest.machine)))] {
        for group in groups.iter().copied() {
            let steps = base.iter().cloned().chain(limit.clone()).chain([Step::LookBack(Axis::Row, group)]);
            all.extend(Some(steps.collect()).filter(|s| fitting(nest, s).is_some()));
        }
    }
}

/// Whether a persistent kernel can be faster: what rows share is read once. Rows that share nothing keep as many bytes
/// in flight without one, on all multiprocessors, unless they are of half types without masks. Blocks that exchange one
/// number per row wait at a barrier of the cluster, with what they have stored; with two they wait for the numbers
/// alone.
fn gains(facts: &NestFeatures, plan: &RowPlan) -> bool {
    if facts.reductions < 2 {
        return false;
    }
    // Warps of several rows would copy what these share more than once.
    let several = plan.kept.iter().any(|c| c.block > 1);
    let along = |a: &Access, row: bool| facts.coords.iter().zip(&a.strides).any(|(c, s)| c.1 == row && *s != Some(0));
    let shared = facts.accesses.iter().any(|a| !a.store && along(a, true) && !along(a, false));
    let halves = facts.accesses.iter().all(|a| a.bytes <= 2);
    shared && !several || halves && !shared && plan.row.extent == plan.row.block
}

/// Bytes of shared memory of a persistent block with tiles of so many elements: what it reads of its rows, and of
/// operands that rows share, but for those at other places in each row.
fn held(facts: &NestFeatures, plan: &RowPlan, elements: usize) -> usize {
    let along = |a: &Access, row: bool| facts.coords.iter().zip(&a.strides).any(|(c, s)| c.1 == row && *s != Some(0));
    let vectors = |a: &&Access| along(a, false) || plan.unaligned.is_none() || plan.copies;
    let bytes: usize =
        facts.accesses.iter().filter(|a| !a.store && along(a, true)).filter(vectors).map(|a| a.bytes).sum();
    elements / plan.blocks * bytes
}

/// The same schedules with the last pass reversed, where there are several and the L2 cache has a part of what they
/// read.
fn reversed(nest: &Nest, facts: &NestFeatures, all: &mut Vec<Schedule>) {
    let large = facts.bytes > nest.machine.units.l2 as u64;
    if !large || !facts.stored_along() || facts.levels == 0 || facts.scans > 0 {
        return;
    }
    // A chunk of one element has no end to start from.
    let several =
        |s: &&Schedule| !s.steps.contains(&Step::Split(Axis::Row, 1)) && TileFootprint::of(facts, s).passes > 1.0;
    let found: Vec<Schedule> = all.iter().filter(several).map(|s| s.clone().then(Step::Reverse(Axis::Row))).collect();
    all.extend(found);
}

/// Registers of a thread with which a share of a multiprocessor's warps is resident.
fn of_resident(machine: &Machine) -> usize {
    let warps = (machine.limits.warps_per_multiprocessor as f64 * RESIDENT_WARPS) as usize;
    machine.limits.registers_per_multiprocessor / (32 * warps.max(1))
}

/// A schedule of clusters, and the same with so few registers that several of its blocks are resident.
fn clustered(nest: &Nest, facts: &NestFeatures, base: Schedule, all: &mut Vec<Schedule>) {
    variants(nest, facts, base.clone().then(Step::Registers(of_resident(nest.machine))), all);
    variants(nest, facts, base, all);
}

/// A schedule that holds whole rows, and what else it may do.
fn variants(nest: &Nest, facts: &NestFeatures, base: Schedule, all: &mut Vec<Schedule>) {
    let fits = |s: &Schedule| fitting(nest, s);
    let Some((plan, scene)) = fits(&base) else { return };
    if crate::schedule::stage_rows::packs(&plan, &scene).is_ok() {
        all.push(base.clone().then(Step::StageRows));
    }
    let mut some = vec![base.clone()];
    if let Some((peeled, plan, scene)) = peeled(nest, &base) {
        let copied = Some(peeled.clone().then(Step::StageOperands))
            .filter(|_| crate::schedule::stage_operands::shares(&plan, &scene));
        some.extend([peeled].into_iter().chain(copied));
    }
    let tail =
        |s: &Schedule| powers(2, 64).map(|n| s.clone().then(Step::Tail(Axis::Row, n))).find(|s| fits(s).is_some());
    some.extend(some.iter().filter_map(tail).collect::<Vec<_>>());
    for s in some {
        if let Some((plan, scene)) = fits(&s) {
            let most = nest.machine.limits.clusters_of(plan.blocks);
            // Rows start at the same place between two vectors after so many.
            let most = most - most % plan.unaligned.as_ref().map_or(1, |u| u.vector);
            let persists = !order::limits_registers(&s)
                && plan.warps == persistent_rows::WARPS * plan.blocks
                && plan.blocks > 1
                && gains(facts, &plan)
                && held(facts, &plan, elements(&s)) <= nest.machine.limits.shared_per_block;
            if persists && most > 0 && plan.shape(1).instances() > 2 * most {
                let persistent = s.clone().then(Step::Persist(most));
                all.extend(Some(persistent).filter(|s| launch::run(nest, s, 0, schedules_of).is_ok()));
            }
            all.extend(crate::schedule::prefetch::distance(&scene, &plan).map(|n| s.clone().then(Step::Prefetch(n))));
        }
        all.push(s);
    }
}

fn points(nest: &Nest, facts: &NestFeatures, all: &mut Vec<Schedule>) {
    let bytes = facts.widest();
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
            if first < inner && extent > MAX_FUSED_EXTENT || block < 32 * warps && warps > 1 {
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
                if high > 1 && high <= tall.next_power_of_two() && tall <= MAX_FUSED_EXTENT {
                    let mut steps = fused(first, inner);
                    steps.extend([Step::Split(axis(first), high), Step::Split(axis(inner), width)]);
                    steps.extend(bind(warps, 1));
                    all.push(Schedule { steps });
                }
            }
        }
        // Tiles of an axis and of the last ones, as many as are longer than a side: transposes.
        let across = facts.accesses.iter().any(|a| a.strides[first] == Some(1));
        let sides = |extent: usize| [16, 32, 64, 128].map(|n| extent.next_power_of_two().min(n));
        let length = |from: usize| extents[from..].iter().product::<usize>();
        for from in (first + 1..=inner).filter(|n| across && *n > first + usize::from(*n == inner)) {
            if from < inner && (length(from + 1) >= MIN_SIDE || length(from) > MAX_FUSED_EXTENT) {
                continue;
            }
            for (a, b) in sides(extents[first]).into_iter().flat_map(|a| sides(length(from)).map(|b| (a, b))) {
                for warps in WARPS.into_iter().filter(|w| each(a * b, *w, bytes)) {
                    let mut steps = fused(from, extents.len());
                    steps.extend([Step::Split(axis(first), a), Step::Split(axis(from), b)]);
                    all.push(steps.into_iter().chain(bind(warps, 1)).collect());
                }
            }
        }
    }
    if facts.window {
        // Neighbours of a window read the same elements: a thread may hold all of a short row. Rows of several accesses
        // move between threads first, but for those of small tiles.
        let bound = |s: &Schedule| {
            let row = s.steps.iter().rev().find_map(|s| if let Step::Split(_, n) = s { Some(*n) } else { None })?;
            let stays = row * bytes <= 16 || elements(s) * bytes <= SMALL;
            Some(s.clone().then(Step::Vector(row))).filter(|s| stays && tile::tiles(nest, s))
        };
        let bound: Vec<Schedule> = all.iter().filter_map(bound).collect();
        all.extend(bound);
    }
}
