//! Which schedules fit a nest, what they cost, and whether their threads hold as much as they should.
use crate::cost::features::NestFeatures;
use crate::cost::price::{Price, TileFootprint};
use crate::error::LowerError;
use crate::nest::Nest;
use crate::scalar::dag::Scene;
use crate::schedule::apply::row_plan;
use crate::schedule::row_plan::RowPlan;
use crate::schedule::{tile, unroll, widen};
use crate::select::invariant::of_any_batch;
use crate::select::order::{Fit, Priced};
use kiln_plan::{Axis, Hardware, Schedule, Step};
use std::collections::BTreeSet;
use std::rc::Rc;

/// 32-bit words of a tile that a thread holds at least, since fewer leave memory idle, and the share of its registers
/// that they take at most.
struct WordBounds {
    least: f64,
    share: f64,
}

const POINT_WORDS: WordBounds = WordBounds { least: 2.0, share: 0.125 };
const ROW_WORDS: WordBounds = WordBounds { least: 8.0, share: 0.5 };
const CHUNK_WORDS: WordBounds = WordBounds { least: 8.0, share: 0.25 };
const PERSISTENT_WORDS: WordBounds = WordBounds { least: 16.0, share: 0.25 };
/// The same share where warps of a block leave a thread fewer registers than an instruction can name.
const REGISTER_FILE_SHARE: f64 = 0.5;
/// Most instances that share columns, for each multiprocessor.
const MAX_SLICES_PER_MULTIPROCESSOR: usize = 1;

/// A schedule of rows that fits a nest, and what it splits and binds.
pub struct FittedRows<'m> {
    pub schedule: Schedule,
    pub plan: RowPlan<'m>,
    pub scene: Rc<Scene>,
}

/// What a schedule splits and binds, if it fits.
pub fn fitted<'m>(nest: &Nest<'m>, schedule: &Schedule) -> Option<FittedRows<'m>> {
    let mut tiled = tile::tile(nest, schedule).ok()?;
    let plan = row_plan(nest, schedule, &mut tiled).ok()?;
    Some(FittedRows { schedule: schedule.clone(), plan, scene: tiled.scene })
}

/// The same with peeled rows, if rows are unaligned.
pub fn peeled<'m>(nest: &Nest<'m>, base: &Schedule) -> Option<FittedRows<'m>> {
    [2, 4, 8, 16].into_iter().find_map(|vector| fitted(nest, &base.clone().then(Step::Peel(Axis::Row, vector))))
}

/// Each schedule once, with its price, and whether its threads hold as much as they should.
pub fn priced(nest: &Nest, facts: &NestFeatures, mut schedules: Vec<Schedule>) -> Vec<Priced> {
    let mut seen = BTreeSet::new();
    schedules.retain(|s| seen.insert(s.clone()));
    schedules.into_iter().map(|schedule| priced_schedule(nest, facts, schedule)).collect()
}

fn priced_schedule(nest: &Nest, facts: &NestFeatures, schedule: Schedule) -> Priced {
    let machine = nest.machine;
    let of_batch = (machine.contract.batch_invariant && facts.coords.iter().any(|c| c.1))
        .then(|| of_any_batch(facts, &schedule, machine));
    let (ranked, fit) = price(of_batch.as_ref().unwrap_or(facts), &schedule, machine);
    let rank = ranked.us;
    let price = if of_batch.is_some() { price(facts, &schedule, machine).0 } else { ranked };
    let columns = schedule.steps.iter().any(|s| matches!(s, Step::Split(Axis::Kept(_), n) if *n > 1));
    let most = MAX_SLICES_PER_MULTIPROCESSOR * machine.units.multiprocessors;
    let slices = schedule.steps.iter().any(|s| matches!(s, Step::SplitReduce(_, n) if *n > most));
    let fit = if columns && slices { Fit::Spills } else { fit };
    Priced { schedule, price, rank, fit }
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
    let tile_words = match rows {
        true => work.words,
        false if facts.window => work.elements_per_thread * facts.accesses.iter().filter(|a| a.store).count() as f64,
        false => work.words_once,
    };
    let row_words = if work.rereads_row || facts.scans > 0 { work.elements_per_thread } else { 0.0 };
    let WordBounds { mut least, share } = match (rows, work.whole) {
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
    let fit = match (least..=most).contains(&(tile_words + row_words)) {
        true if rows || !spills => Fit::Good,
        false if !spills => Fit::Poor,
        _ => Fit::Spills,
    };
    (work.price(facts, machine), fit)
}
