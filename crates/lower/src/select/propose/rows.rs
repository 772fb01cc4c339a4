//! Schedules of rows that memory is contiguous along: in one tile, in a cluster, or in chunks.
use crate::select::propose::chunks::{look_back, slices};
use crate::select::propose::columns::{columns, has_strips};
use crate::select::propose::fit::peeled;
use crate::select::propose::tiles::{
    CHUNK_BYTES, MIN_SIDE, Proposals, WARPS, WARPS_OF_LONG_ROWS, bind, fills_threads, fuse, powers,
};
use crate::select::propose::whole_rows::{clusters, whole_rows};
use kiln_plan::{Axis, Schedule, Step};

/// Lanes along short rows, and elements of a row that a lane then has.
const ROW_LANES: [usize; 3] = [4, 8, 16];
const ELEMENTS_PER_LANE: std::ops::RangeInclusive<usize> = 8..=32;
/// Elements of a tile that one block holds at most.
const MAX_TILE: usize = 16384;
/// Most rows of a tile, and of one that a cluster has.
const MAX_ROWS: usize = 1024;
const MAX_ROWS_OF_CLUSTER: usize = 2;

/// Schedules of rows of `row` elements.
pub fn rows(proposals: &mut Proposals, row: usize) {
    let (nest, facts) = (proposals.nest, proposals.facts);
    let kept = proposals.kept();
    let last = facts.coords.iter().rposition(|c| c.1);
    let along_row = facts.accesses.iter().any(|a| last.is_some_and(|l| a.strides[l].is_none_or(|s| s == 1)));
    let strips = (0..kept.len()).any(|k| has_strips(nest, facts, k));
    if along_row || !strips {
        let count = kept.iter().product::<usize>().next_power_of_two();
        for high in powers(1, MAX_ROWS).filter(|h| *h == 1 || !kept.is_empty() && *h <= count) {
            tiles(proposals, row, high);
            if high <= MAX_ROWS_OF_CLUSTER {
                clusters_of_rows(proposals, row, high);
            }
        }
        chunks(proposals, row);
    }
    for (k, extent) in kept.iter().enumerate() {
        columns(proposals, row, k..k + 1);
        // Short strips of several others are one.
        if k > 0 && *extent < MIN_SIDE {
            columns(proposals, row, 0..k + 1);
        }
    }
    if proposals.schedules.is_empty() {
        proposals.push(one_row(row));
    }
}

/// A row by an instance, whatever the length and the type of rows.
pub fn one_row(row: usize) -> Schedule {
    let wide = row.next_power_of_two();
    [Step::Split(Axis::Row, wide.min(1024)), Step::Warps((wide / 32).clamp(1, 8))].into_iter().collect()
}

/// The steps of a tile of `high` whole rows.
fn tile(proposals: &Proposals, row: usize, high: usize) -> Vec<Step> {
    let several = (high > 1).then(|| fuse(0..proposals.kept().len()).into_iter());
    let split = (high > 1).then_some(Step::Split(Axis::Kept(0), high));
    let row = Step::Split(Axis::Row, row.next_power_of_two());
    several.into_iter().flatten().chain(split).chain([row]).collect()
}

/// Tiles of `high` whole rows, each by a block.
fn tiles(proposals: &mut Proposals, row: usize, high: usize) {
    let (bytes, wide) = (proposals.facts.widest(), row.next_power_of_two());
    if high * wide > MAX_TILE {
        return;
    }
    for warps in WARPS.into_iter().filter(|w| fills_threads(high * wide, *w, bytes)) {
        let mut steps = tile(proposals, row, high);
        steps.extend(bind(warps, 1));
        // Short rows: fewer lanes of each exchange less, and fewer of them are past its end.
        for lanes in ROW_LANES {
            if high * lanes == 32 * warps && ELEMENTS_PER_LANE.contains(&(wide / lanes)) {
                whole_rows(proposals, Schedule { steps: steps.clone() }.then(Step::Lanes(lanes)));
            }
        }
        whole_rows(proposals, Schedule { steps });
    }
}

/// Tiles of `high` whole rows, each by a cluster. Its blocks exchange 32-bit words.
fn clusters_of_rows(proposals: &mut Proposals, row: usize, high: usize) {
    let (machine, bytes) = (proposals.nest.machine, proposals.facts.widest());
    if bytes > 4 || proposals.facts.scans > 0 {
        return;
    }
    for cluster in machine.limits.clusters.iter().map(|c| c.blocks).filter(|c| *c > 1) {
        for warps in WARPS_OF_LONG_ROWS {
            if fills_threads(high * row.next_power_of_two(), warps * cluster, bytes) {
                let mut steps = tile(proposals, row, high);
                steps.extend(bind(warps, cluster));
                clusters(proposals, Schedule { steps });
            }
        }
    }
}

/// Rows in chunks, by one instance or by several.
fn chunks(proposals: &mut Proposals, row: usize) {
    let (nest, bytes) = (proposals.nest, proposals.facts.widest());
    let count: usize = proposals.kept().iter().product();
    for warps in WARPS_OF_LONG_ROWS {
        for per_thread in CHUNK_BYTES.map(|b| (b / bytes).max(1)) {
            let chunk = 32 * warps * per_thread;
            if chunk >= row {
                continue;
            }
            let base: Vec<Step> = [Step::Split(Axis::Row, chunk)].into_iter().chain(bind(warps, 1)).collect();
            let plain = Schedule { steps: base.clone() };
            for schedule in peeled(nest, &plain).map(|p| p.schedule).into_iter().chain([plain]) {
                for parts in slices(count, row, chunk, nest.machine) {
                    proposals.push(schedule.clone().then(Step::SplitReduce(Axis::Row, parts)));
                }
                proposals.push(schedule);
            }
            look_back(proposals, &base, &[1]);
        }
    }
}
