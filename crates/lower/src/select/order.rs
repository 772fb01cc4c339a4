//! The order of proposed schedules: the first one is taken.
use crate::cost::features::NestFeatures;
use crate::cost::price::Price;
use crate::nest::Nest;
use crate::select::extents::{elements, strip, warps};
use kiln_machine::isa::VECTOR;
use kiln_plan::price_error::SAME_PRICE;
use kiln_plan::{Axis, Schedule, Step};

/// How much of a tile a thread holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// As much as it should.
    Good,
    /// Less, or more, but its registers hold it.
    Poor,
    /// More than that, or there are more partial results than are worth their traffic.
    Spills,
}

/// A schedule with its price.
pub struct Priced {
    pub schedule: Schedule,
    pub price: Price,
    /// Microseconds by which schedules are ordered: those of the price, but under a batch-invariant contract those of a
    /// large batch.
    pub rank: f64,
    pub fit: Fit,
}

/// Of schedules of about the same price ([`SAME_PRICE`]; of columns nearer) the one is taken whose threads
/// have the fewest elements, but not fewer than a vector, unless they load them in a loop: the more threads there are,
/// the better they hide each other's waits. Of equals it is the one with the fewest blocks of a cluster, then with the
/// fewest warps, but not fewer than these: small blocks follow each other more smoothly. Where columns are only reduced
/// the number of elements does not matter.
const SAME_PRICE_OF_COLUMNS: f64 = 0.97;
const MIN_WARPS: usize = 4;

/// Keeps the schedules whose threads hold what they should, or come closest, and sorts them: by price, and those that
/// are about as cheap as the cheapest by what they have most of.
pub(super) fn sort(nest: &Nest, facts: &NestFeatures, priced: &mut Vec<Priced>) {
    let best = priced.iter().map(|p| p.fit).min();
    priced.retain(|p| Some(p.fit) == best);
    // Of equals those come first that do not limit registers.
    let order = |p: &Priced| (limits_registers(&p.schedule), p.schedule.clone());
    priced.sort_by(|a, b| a.rank.total_cmp(&b.rank).then_with(|| order(a).cmp(&order(b))));
    let Some(first) = priced.first() else { return };
    // Warps that share columns exchange what they have of them, and do little else.
    let sums = nest.row().is_some() && facts.scans == 0 && !facts.stored_along();
    let columns = sums && strip(&first.schedule).is_some();
    let loops = nest.row().is_some_and(|n| loops(&first.schedule, n));
    let within = first.rank / if columns { SAME_PRICE_OF_COLUMNS } else { SAME_PRICE };
    let vector = (32 * (VECTOR / facts.widest()).max(1)) << 10;
    let close = priced.iter().take_while(|p| p.rank <= within).count();
    priced[..close].sort_by_key(|p| {
        let (elements, warps, blocks) = (elements(&p.schedule), warps(&p.schedule) as usize, blocks(&p.schedule));
        // In fractions of an element, since a warp may have less than one.
        let each = if loops { 0 } else { ((elements << 10) / warps).max(vector) };
        match (columns, blocks) {
            (true, _) => (0, 0, warps.max(MIN_WARPS)),
            (false, 1) => (each, 1, warps.max(MIN_WARPS)),
            (false, _) => (each, blocks, 0),
        }
    });
}

pub(super) fn limits_registers(schedule: &Schedule) -> bool {
    schedule.steps.iter().any(|s| matches!(s, Step::Registers(_)))
}

/// Blocks of a cluster.
fn blocks(schedule: &Schedule) -> usize {
    schedule.steps.iter().find_map(|s| if let Step::Cluster(n) = s { Some(*n) } else { None }).unwrap_or(1)
}

/// Whether an instance loads a row of so many elements in a loop.
fn loops(schedule: &Schedule, n: usize) -> bool {
    schedule.steps.iter().any(|s| matches!(s, Step::Split(Axis::Row, chunk) if *chunk < n))
}
