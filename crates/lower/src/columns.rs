//! Schedules of column reductions, whose rows are strided in memory: a kept coordinate lies along the tile's last axis,
//! in strips, and the row along its first.
//!
//! - a short column (up to 256 bytes) belongs to one thread, whose neighbours have the next columns; so do columns of
//!   any length that are only summed, where there are enough of them to keep memory busy;
//! - others that fit are held by a block or a cluster, or summed at once;
//! - sums of long ones are processed in chunks, by as many instances as keep the machine busy;
//! - where no vector divides a large matrix's rows, or they are narrow, several rows are summed as one wide row
//!   ([`crate::wide_rows`]).
use crate::persistent::{self, Tiles};
use crate::rows::{self, Limits, bind, parts, wanted};
use crate::scan::rules::{self as scan, COLUMN_CHUNKS};
use crate::space::Coord;
use crate::unaligned::VECTOR;
use kiln_block::passes::persistent_rows;
use kiln_plan::{Axis, Hardware, Schedule, Step};

/// Most bytes of the columns that belong to one thread.
const ALONE: usize = 256;
/// Least bytes of a row that a thread reads at a time.
const WORD: usize = 4;
/// Most bytes of the columns of a thread that reads single such words.
const ALONE_IN_WORDS: usize = 320;

/// Bytes of a strip of columns that a program instance of a GPU takes.
pub const STRIP: usize = 256;
/// Instances for each multiprocessor that keep a GPU busy where strips are shared.
const SHARING: usize = 8;
/// Instances that keep a GPU busy where strips are shared.
pub fn sharing(machine: &Hardware) -> usize {
    SHARING * machine.units.multiprocessors
}
/// Bytes of a large sum, and of a tile that is summed without a loop.
const LARGE: usize = 32 << 20;
const SUMMED_AT_ONCE: usize = 64 << 10;

/// Loads in flight per thread; twice as many with fewer than twice the threads that keep memory busy with this many
/// ([`kiln_machine::Rows::loading`]).
const LOADS: usize = 8;

/// Elements of a column that are summed before they are added to the accumulator.
const SUMMED: usize = 64;

/// Elements from which on a second step, which combines partial sums, is profitable.
const STREAMED: usize = 1 << 20;

/// Schedule of rows that are strided in memory: the tile's last axis is the kept coordinate number `k`, its first the row.
pub fn across(kept: &[Coord], k: usize, n: usize, machine: &Hardware, limits: &Limits) -> Schedule {
    let gpu = machine.arch.is_gpu();
    let extent = kept[k].extent;
    // The number that choices depend on: the columns of one image, or of as many as keep the machine busy.
    let others = machine.counted(kept.iter().enumerate().filter(|c| c.0 != k).map(|c| c.1.extent).product());
    let limits = &Limits { columns: true, ..*limits };
    let high = n.next_power_of_two();
    let cut = |block: usize, wide: usize, bound: Vec<Step>| {
        let steps = [Step::Split(Axis::Row, block), Step::Split(Axis::Kept(k as u8), wide)];
        steps.into_iter().chain(bound).collect::<Schedule>()
    };
    let own =
        || limits.alone(n, extent, others, wanted(machine)).or_else(|| limits.summed_alone(n, extent, others, machine));
    if gpu && let Some((block, wide, warps)) = own() {
        return cut(block, wide, bind(warps, machine));
    }
    // Pieces of whole lines where such a tile can be held and their words are as wide as a bank, else of half a line.
    let line = if limits.again && limits.bytes >= 4 && high * 128 / limits.bytes <= limits.tile { 128 } else { 64 };
    // On the host a sum streams whole rows of memory, which suits the hardware prefetcher; instances share the columns.
    let mut tile = if gpu { 256 * limits.thread } else { 4096 };
    // Nothing of a sum is kept, so a thread has registers for eight loads.
    let sums = gpu && limits.any_order && !limits.again;
    let streams = !gpu && limits.any_order && !limits.again && extent >= 1024 && n * extent >= STREAMED;
    let (least, most) = match gpu {
        true if sums && high * 128 > tile => ((line / limits.bytes).max(8), (STRIP / limits.bytes).clamp(32, 128)),
        true => ((line / limits.bytes).max(8), 128),
        false if streams => (2048, 2048),
        false => (32, 512),
    };
    let mut wide = extent.next_power_of_two().min(most);
    let whole = gpu && limits.again && high * least.min(wide) <= limits.tile;
    if whole {
        tile = tile.max(high * least);
    }
    let few = |wide: usize| others * extent.div_ceil(wide) < wanted(machine);
    while wide > least && (whole && high * wide > tile || (limits.again || !gpu) && few(wide)) {
        wide /= 2;
    }
    // A row that fits is held; else a loop processes it, on the host in chunks that are summed, or one element at a
    // time.
    let instances = others * extent.div_ceil(wide);
    let short = sums && high * wide * limits.bytes <= SUMMED_AT_ONCE && instances >= sharing(machine) / 4;
    let held = short || high * wide <= tile;
    let high = if held {
        high
    } else if gpu && limits.scans && instances >= scan::busy(machine) {
        (tile * COLUMN_CHUNKS / wide).min(high)
    } else if gpu || wide < 64 {
        (tile / wide).min(high)
    } else if limits.any_order {
        SUMMED.min(high)
    } else {
        1
    };
    let split = match held {
        true => 1,
        false if sums => strips(instances, n, high, [extent, STRIP / limits.bytes], limits.bytes, sharing(machine)),
        false => parts(instances, n, high.max(16), if gpu || streams { wide } else { 1 }, machine),
    };
    let split = if limits.scans && !scan::in_parts(instances, n, high, machine) { 1 } else { split };
    let full = held && high == n && extent.is_multiple_of(wide);
    let tiles = Tiles { count: instances, elements: high * wide, there: high * wide, period: 1 };
    let persistent = if full { persistent::of(machine, tiles, limits.reads) } else { None };
    let warps = match persistent {
        Some(persistent) => persistent.warps,
        None if sums && (!held || high * wide > tile) => (high * wide / (64 * limits.thread)).clamp(1, 8),
        None => limits.warps(high * wide, high * wide, true),
    };
    let bound = match persistent {
        Some(_) => rows::blocks(warps, warps / persistent_rows::WARPS, machine),
        None => bind(warps, machine),
    };
    let mut schedule = cut(high, wide, bound);
    schedule.steps.extend((split > 1).then_some(Step::SplitReduce(Axis::Row, split)));
    schedule.steps.extend(persistent.map(|s| Step::Persist(s.clusters)));
    schedule
}

impl Limits {
    /// Rows and columns of a tile in which every thread has whole columns, and its warps: where columns are short, so
    /// that threads exchange nothing and no thread has masked elements.
    fn alone(&self, n: usize, columns: usize, others: usize, wanted: usize) -> Option<(usize, usize, usize)> {
        let word = WORD.div_ceil(self.narrow);
        let each = match (ALONE / (n * self.bytes)).min(VECTOR / self.bytes) {
            each if each >= word => 1 << each.ilog2(),
            _ => word,
        };
        let room = if each == word { ALONE_IN_WORDS } else { ALONE };
        if !self.again || !self.any_order || each * n * self.bytes > room || columns < 32 * each {
            return None;
        }
        let few = |warps: usize| others * columns.div_ceil(32 * each * warps) < 4 * wanted;
        let warps = [4, 2, 1].into_iter().find(|w| !few(*w) && columns >= 32 * each * w)?;
        Some((n.next_power_of_two(), 32 * each * warps, warps))
    }

    /// The same for a sum, where there are so many columns that their loads keep memory busy.
    fn summed_alone(
        &self,
        n: usize,
        columns: usize,
        others: usize,
        machine: &Hardware,
    ) -> Option<(usize, usize, usize)> {
        let vector = VECTOR / self.bytes.clamp(1, VECTOR);
        let each = vector.min(1 << columns.trailing_zeros());
        let threads = others * columns.div_ceil(each);
        if self.again || !self.any_order || each < vector || threads < machine.rows.loading {
            return None;
        }
        let loads = if threads < 2 * machine.rows.loading { 2 * LOADS } else { LOADS };
        let chunk = n.next_power_of_two().min(loads);
        let strip = 32 * each * (loads / chunk).min(LOADS / 2);
        let blocks = |warps: usize| others * columns.div_ceil(strip * warps);
        let empty = |warps: usize| 10 * (columns.next_multiple_of(strip * warps) - columns) > columns;
        let warps = [4, 2, 1].into_iter().find(|w| !empty(*w) && blocks(*w) >= sharing(machine) / 2)?;
        Some((chunk, strip * warps, warps))
    }
}

/// How many instances of a GPU share strips of columns that are summed; strips that are partly empty have fewer bytes in flight.
fn strips(
    instances: usize,
    n: usize,
    chunk: usize,
    [columns, strip]: [usize; 2],
    bytes: usize,
    sharing: usize,
) -> usize {
    let busy = if columns < strip { sharing } else { sharing / 2 };
    // The second step takes little time compared with a large sum.
    let few = if n * instances * strip.min(columns) * bytes >= LARGE { sharing / 2 } else { sharing / 4 };
    if instances >= few || n < 4 * chunk { 1 } else { busy.div_ceil(instances).clamp(1, n / (2 * chunk)) }
}
