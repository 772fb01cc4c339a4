//! Schedules of columns: tiles along rows and along the kept axes that memory is contiguous along.
use crate::cost::features::{Access, NestFeatures};
use crate::nest::Nest;
use crate::select::propose::chunks::{look_back, slices};
use crate::select::propose::tiles::{
    CHUNK_BYTES, MAX_FUSED_EXTENT, Proposals, WARPS, WARPS_OF_LONG_ROWS, bind, fills_threads, fuse, powers,
};
use crate::select::propose::whole_rows::{clusters, whole_rows};
use kiln_machine::isa::SECTOR;
use kiln_plan::{Axis, Schedule, Step};
use std::ops::Range;

/// Bytes of a cache line.
const LINE: usize = 128;
/// Most bytes of a strip.
const MAX_STRIP: usize = 1024;
/// Chunks of scanned columns whose sums are published: their totals are as many as columns.
const CHUNKS_PER_GROUP: usize = 32;

/// Whether rows are strided in memory and the kept axis number `k` is not.
pub fn has_strips(nest: &Nest, facts: &NestFeatures, k: usize) -> bool {
    let last = facts.coords.iter().rposition(|c| c.1);
    let at = (0..facts.coords.len()).filter(|i| !facts.coords[*i].1).nth(k).unwrap_or(0);
    let strided = |a: &Access| last.is_some_and(|l| a.strides[l].is_some_and(|s| s.abs() > 1));
    nest.kept().nth(k).is_some_and(|c| c.extent > 1)
        && facts.accesses.iter().any(|a| a.strides[at] == Some(1) && strided(a))
}

/// Rows of which a tile has several, side by side along fused axes.
struct Columns {
    /// Elements of a row.
    row: usize,
    /// The step that fuses the axes, if they are several.
    fused: Option<Step>,
    /// The axis of strips, and its extent.
    along: Axis,
    extent: usize,
    /// Instances of one column each.
    columns: usize,
}

impl Columns {
    /// The steps of tiles of `block` elements of each of `strip` rows.
    fn steps(&self, block: usize, strip: usize, bound: impl Iterator<Item = Step>) -> Vec<Step> {
        let split = [Step::Split(Axis::Row, block), Step::Split(self.along, strip)];
        self.fused.clone().into_iter().chain(split).chain(bound).collect()
    }
}

/// Tiles of rows of `row` elements along kept axes that are fused, where the last of them has strips.
pub fn columns(proposals: &mut Proposals, row: usize, axes: Range<usize>) {
    let bytes = proposals.facts.widest();
    let kept = proposals.kept();
    if !has_strips(proposals.nest, proposals.facts, axes.end - 1) {
        return;
    }
    let (along, fused) = (Axis::Kept(axes.start as u8), fuse(axes.clone()));
    let extent: usize = kept[axes].iter().product();
    if fused.is_some() && extent > MAX_FUSED_EXTENT {
        return;
    }
    let columns = Columns { row, fused, along, extent, columns: kept.iter().product() };
    let widest = extent.next_power_of_two();
    for strip in powers((SECTOR / bytes).max(1).min(widest), (MAX_STRIP / bytes).min(widest)) {
        strips(proposals, &columns, strip);
        clusters_of_strips(proposals, &columns, strip);
    }
}

/// Strips of so many columns, by one block each or by several.
fn strips(proposals: &mut Proposals, columns: &Columns, strip: usize) {
    let (bytes, row, wide) = (proposals.facts.widest(), columns.row, columns.row.next_power_of_two());
    let instances = columns.columns / columns.extent * columns.extent.div_ceil(strip);
    for warps in WARPS {
        for per_thread in CHUNK_BYTES.map(|b| (b / bytes).max(1)) {
            let block = (32 * warps * per_thread / strip).min(wide);
            if block == 0 || !fills_threads(block * strip, warps, bytes) {
                continue;
            }
            let base = columns.steps(block, strip, bind(warps, 1));
            if block >= row {
                whole_rows(proposals, Schedule { steps: base });
                continue;
            }
            proposals.push(Schedule { steps: base.clone() });
            for parts in slices(instances, row, block, proposals.nest.machine) {
                proposals.push(Schedule { steps: base.clone() }.then(Step::SplitReduce(Axis::Row, parts)));
            }
            // Pieces of lines that instances read at different times are read more than once.
            if strip * bytes >= LINE || strip >= columns.extent {
                look_back(proposals, &base, &[1, CHUNKS_PER_GROUP]);
            }
        }
    }
}

/// Strips of so many columns in clusters. Their blocks exchange 32-bit words.
fn clusters_of_strips(proposals: &mut Proposals, columns: &Columns, strip: usize) {
    let (bytes, wide) = (proposals.facts.widest(), columns.row.next_power_of_two());
    let sizes = proposals.nest.machine.limits.clusters.iter().map(|c| c.blocks);
    for cluster in sizes.filter(|c| *c > 1 && bytes <= 4) {
        for warps in WARPS_OF_LONG_ROWS {
            if fills_threads(wide * strip, warps * cluster, bytes) && proposals.facts.scans == 0 {
                let steps = columns.steps(wide, strip, bind(warps, cluster));
                clusters(proposals, Schedule { steps });
            }
        }
    }
}
