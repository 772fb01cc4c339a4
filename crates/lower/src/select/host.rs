//! The schedule of a nest on the host, which has no cost model: tiles that fit the L1 cache, and as many instances as
//! keep the cores busy.
//!
//! Takes: a nest. Gives: its schedule.
use crate::error::LowerError;
use crate::nest::Nest;
use crate::scalar::dag::{NodeId, NodeOp, Scene};
use crate::scalar::expr::{CoordId, Expr};
use crate::scalar::space::Coord;
use kiln_plan::exec::Slot;
use kiln_plan::{Axis, Schedule, Step};
use std::ops::Range;

/// Elements of a tile, and of one whose row is held.
const TILE: usize = 4096;
const HELD: usize = 65536;
/// Instances that keep the host busy, and from which on none share rows.
const BUSY: usize = 16;
const UNSHARED_INSTANCES: usize = 4;
/// Elements from which on instances share rows.
const LARGE: usize = 65536;
/// Least and most columns of a strip; of one that streams whole rows of memory, which suits the hardware prefetcher.
const STRIP: [usize; 2] = [32, 512];
const STREAMED: usize = 2048;
/// Elements from which on instances that stream rows share them: a second step combines partial sums.
const STREAMS: usize = 1 << 20;
/// Elements of a column that are summed before they are added to the accumulator.
const SUMMED: usize = 64;
/// Least chunks of a scanned row that instances share.
const CHUNKS: usize = 8;

/// The schedule of a nest.
pub fn of(nest: &Nest) -> Result<Schedule, LowerError> {
    let Some(n) = nest.row() else { return Ok(points(nest)) };
    let kept: Vec<Coord> = nest.kept().copied().collect();
    let rows: Vec<Coord> = nest.space.coords.iter().filter(|c| c.row).copied().collect();
    let Some(last) = rows.last() else {
        let why = "a reduction without a row".into();
        return Err(LowerError::Unsupported { kernel: nest.name.to_string(), why });
    };
    let along = contiguous(&nest.scene, &nest.space.coords, &kept, last.id);
    Ok(match along.and_then(|id| kept.iter().position(|c| c.id == id)) {
        Some(k) if kept[k].extent > 1 => columns(nest, &kept, k, n),
        _ => along_row(nest, &kept, n),
    })
}

fn points(nest: &Nest) -> Schedule {
    let (coords, scene, total) = (&nest.space.coords, &nest.scene, nest.space.count());
    let mut block = TILE;
    while block > TILE / 8 && total / block < BUSY {
        block /= 2;
    }
    let block = block.min(total.next_power_of_two());
    let axis = |n: usize| Axis::Kept(n as u8);
    let split = |tile: &[(usize, usize)]| -> Schedule { tile.iter().map(|(n, b)| Step::Split(axis(*n), *b)).collect() };
    let Some((last, outer)) = coords.split_last() else { return Schedule::default() };
    let at = outer.len();
    if outer.is_empty() {
        return split(&[(0, block.min(last.extent.next_power_of_two()))]);
    }
    if let Some(across) = transposed(scene, outer, last.id)
        && let Some(n) = coords.iter().position(|c| c.id == across)
        && coords[n].extent >= 8
        && last.extent >= 8
    {
        let square = (128 / widest(scene).max(1)).clamp(16, 64);
        let side = |n: usize| n.next_power_of_two().min(square);
        return split(&[(n, side(coords[n].extent)), (at, side(last.extent))]);
    }
    let Some(inner) = inner_block(last.extent, block) else {
        return fuse(0..coords.len()).into_iter().chain(split(&[(0, block)]).steps).collect();
    };
    let rows: usize = outer.iter().map(|c| c.extent).product();
    let high = (block / inner).min(rows.next_power_of_two());
    if high <= 1 {
        return split(&[(at, inner)]);
    }
    // Only the outer coordinates that fill a tile's height are computed per row, by division; the others are scalars.
    let (mut first, mut extent) = (at, 1);
    while extent < high && first > 0 {
        first -= 1;
        extent *= outer[first].extent;
    }
    let tile = split(&[(first, high.min(extent.next_power_of_two())), (at, inner)]);
    fuse(first..at).into_iter().chain(tile.steps).collect()
}

/// Rows that are contiguous in memory: the row is the tile's last axis.
fn along_row(nest: &Nest, kept: &[Coord], n: usize) -> Schedule {
    let machine = nest.machine;
    let rows: usize = kept.iter().map(|c| c.extent).product();
    let (many, wide) = (machine.counted(rows), n.next_power_of_two());
    let shared = shared(nest, rows, n, TILE, parts(many, n, TILE, 1));
    if wide > HELD || shared > 1 {
        let steps = [Step::Split(Axis::Row, TILE.min(wide))].into_iter();
        return steps.chain((shared > 1).then_some(Step::SplitReduce(Axis::Row, shared))).collect();
    }
    let mut high = (TILE / wide).max(1).min(many.next_power_of_two());
    while high > 1 && many / high < BUSY {
        high /= 2;
    }
    let mut steps = vec![];
    if high > 1 {
        steps.extend(fuse(0..kept.len()));
        steps.push(Step::Split(Axis::Kept(0), high));
    }
    steps.push(Step::Split(Axis::Row, wide));
    Schedule { steps }
}

/// Rows that are strided in memory: the tile's last axis is the kept coordinate number `k`, its first the row.
fn columns(nest: &Nest, kept: &[Coord], k: usize, n: usize) -> Schedule {
    let extent = kept[k].extent;
    let others = nest.machine.counted(kept.iter().enumerate().filter(|c| c.0 != k).map(|c| c.1.extent).product());
    let any_order = nest.scene.live().into_iter().all(|n| nest.scene.dag.node(n).sums_in_any_order());
    let again = reads_again(&nest.scene, &nest.space.row_ids());
    let streams = any_order && !again && extent >= 1024 && n * extent >= STREAMS;
    let [least, most] = if streams { [STREAMED; 2] } else { STRIP };
    let mut wide = extent.next_power_of_two().min(most);
    while wide > least && others * extent.div_ceil(wide) < BUSY {
        wide /= 2;
    }
    let high = n.next_power_of_two();
    let held = high * wide <= TILE;
    let high = match held {
        true => high,
        false if wide < 64 => (TILE / wide).min(high),
        false if any_order => SUMMED.min(high),
        false => 1,
    };
    let instances = others * extent.div_ceil(wide);
    let parts = if held { 1 } else { parts(instances, n, high.max(16), if streams { wide } else { 1 }) };
    let shared = shared(nest, instances, n, high, parts);
    let steps = [Step::Split(Axis::Row, high), Step::Split(Axis::Kept(k as u8), wide)].into_iter();
    steps.chain((shared > 1).then_some(Step::SplitReduce(Axis::Row, shared))).collect()
}

/// How many instances share a row so that the host is busy; each has `wide` rows side by side.
fn parts(instances: usize, n: usize, chunk: usize, wide: usize) -> usize {
    if instances >= UNSHARED_INSTANCES || n * instances * wide < LARGE || n < 4 * chunk {
        return 1;
    }
    (BUSY / instances.max(1)).clamp(1, n / (2 * chunk))
}

/// The same number of a nest that may scan: rows that are scanned are shared only where they have enough chunks.
fn shared(nest: &Nest, instances: usize, n: usize, chunk: usize, parts: usize) -> usize {
    let scans = nest.scene.live().iter().any(|n| matches!(nest.scene.dag.node(*n).op, NodeOp::Scan { .. }));
    let alone = scans && (nest.machine.counted(instances) >= UNSHARED_INSTANCES || n < CHUNKS * chunk);
    if alone { 1 } else { parts }
}

/// The step that fuses these axes, if there are several.
fn fuse(axes: Range<usize>) -> Option<Step> {
    (axes.len() > 1).then(|| Step::Fuse(axes.map(|n| Axis::Kept(n as u8)).collect()))
}

/// Bytes of the widest element read or written.
fn widest(scene: &Scene) -> usize {
    let loads = accesses(scene).into_iter().filter(|a| a.0.is_some()).map(|a| a.2);
    loads.chain(scene.stores.iter().map(|s| s.dtype.bytes())).max().unwrap_or(4)
}

/// The buffer that is loaded from, or `None` for a store, the index and the bytes of an element.
fn accesses(scene: &Scene) -> Vec<(Option<Slot>, &Expr, usize)> {
    let load = |n: NodeId| match &scene.dag.node(n).op {
        NodeOp::Load { slot, at, .. } => Some((Some(*slot), at, scene.dag.node(n).dtype.bytes())),
        _ => None,
    };
    let stores = scene.stores.iter().map(|s| (None, &s.at, s.dtype.bytes()));
    scene.live().into_iter().filter_map(load).chain(stores).collect()
}

/// Block along the innermost axis that wastes few lanes; `None` if the axis is too short for one.
fn inner_block(extent: usize, block: usize) -> Option<usize> {
    let waste = |c: usize| (extent.div_ceil(c) * c) as f64 / extent as f64;
    let mut best = extent.next_power_of_two().min(block);
    let mut c = best;
    while c >= 16 {
        if waste(c) < waste(best) - 0.1 {
            best = c;
        }
        c /= 2;
    }
    (best >= 8 && waste(best) <= 1.4).then_some(best)
}

/// An outer coordinate along which some access is contiguous that is strided along the innermost.
fn transposed(scene: &Scene, outer: &[Coord], last: CoordId) -> Option<CoordId> {
    let mut votes: Vec<(usize, CoordId)> = outer.iter().map(|c| (0, c.id)).collect();
    for (_, at, _) in accesses(scene) {
        if at.stride(last).is_some_and(|s| s.abs() > 1) {
            votes.iter_mut().filter(|v| at.stride(v.1) == Some(1)).for_each(|v| v.0 += 1);
        }
    }
    votes.into_iter().filter(|v| v.0 > 0).max().map(|v| v.1)
}

/// The kept coordinate along which accesses of the row's elements are contiguous, if that is so for more elements than
/// along the row.
fn contiguous(scene: &Scene, coords: &[Coord], kept: &[Coord], row: CoordId) -> Option<CoordId> {
    let mut along_row = 0.0;
    let mut votes: Vec<(f64, CoordId)> = kept.iter().map(|c| (0.0, c.id)).collect();
    for (_, at, _) in accesses(scene) {
        // Elements the access touches.
        let weight: f64 = coords.iter().filter(|c| at.uses(c.id)).map(|c| c.extent as f64).product();
        match at.stride(row) {
            Some(0) => {}
            Some(1) | None => along_row += weight,
            Some(_) => votes.iter_mut().filter(|v| at.stride(v.1) == Some(1)).for_each(|v| v.0 += weight),
        }
    }
    let best = votes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > along_row).then_some(best.1)
}

/// Whether the row's elements are needed more than once: for a second reduction, or to be written.
fn reads_again(scene: &Scene, row: &[CoordId]) -> bool {
    let reduces = |n: NodeId| matches!(scene.dag.node(n).op, NodeOp::Reduce { .. });
    let nested = |n: NodeId| scene.dag.reach(&scene.dag.node(n).operands()).into_iter().any(reduces);
    scene.live().into_iter().any(|n| reduces(n) && nested(n))
        || scene.stores.iter().any(|s| row.iter().any(|r| s.at.uses(*r)))
}
