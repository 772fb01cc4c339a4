//! Schedules of points: tiles along the last axes, along two groups of axes, and of transposes.
use crate::schedule::tile;
use crate::select::extents::elements;
use crate::select::propose::tiles::{MAX_FUSED_EXTENT, MIN_SIDE, Proposals, WARPS, bind, fills_threads, fuse, powers};
use kiln_block::passes::layout::SMALL;
use kiln_plan::{Axis, Schedule, Step};

/// Bytes of a tile that a thread has.
const POINT_BYTES: [usize; 5] = [8, 16, 32, 64, 128];
/// Columns of a tile of several rows, at least and at most.
const MIN_WIDTH: usize = 8;
const MAX_WIDTH: usize = 4096;
/// Sides of a tile of a transpose.
const SIDES: [usize; 4] = [16, 32, 64, 128];
/// Bytes of a row of a window that a thread holds in one vector.
const WINDOW_ROW: usize = 16;

/// Schedules of a nest without rows.
pub fn points(proposals: &mut Proposals) {
    let extents = proposals.kept();
    if extents.is_empty() {
        proposals.push(bind(1, 1).collect());
        return;
    }
    for from in 0..extents.len() {
        runs(proposals, &extents, from);
    }
    for from in 0..extents.len() - 1 {
        matrices(proposals, &extents, from);
        transposes(proposals, &extents, from);
    }
    if proposals.facts.window {
        vectors_of_windows(proposals);
    }
}

fn axis(n: usize) -> Axis {
    Axis::Kept(n as u8)
}

/// A number of warps, and of elements that each of their threads has.
struct TileSize {
    warps: usize,
    per_thread: usize,
}

impl TileSize {
    fn elements(&self) -> usize {
        32 * self.warps * self.per_thread
    }
}

fn sizes(bytes: usize) -> impl Iterator<Item = TileSize> {
    let of_warps = move |warps| POINT_BYTES.map(|b| TileSize { warps, per_thread: (b / bytes).max(1) });
    WARPS.into_iter().flat_map(of_warps)
}

/// Tiles along the axes from one on, as one axis.
fn runs(proposals: &mut Proposals, extents: &[usize], from: usize) {
    let extent: usize = extents[from..].iter().product();
    for size in sizes(proposals.facts.widest()) {
        let block = size.elements().min(extent.next_power_of_two());
        if from + 1 < extents.len() && extent > MAX_FUSED_EXTENT || block < 32 * size.warps && size.warps > 1 {
            continue;
        }
        let split = Step::Split(axis(from), block);
        proposals.push(fuse(from..extents.len()).into_iter().chain([split]).chain(bind(size.warps, 1)).collect());
    }
}

/// Tiles along the last axis, and along those before it from one on, as one axis.
fn matrices(proposals: &mut Proposals, extents: &[usize], from: usize) {
    let inner = extents.len() - 1;
    let tall: usize = extents[from..inner].iter().product();
    for width in powers(MIN_WIDTH, extents[inner].next_power_of_two().min(MAX_WIDTH)) {
        for size in sizes(proposals.facts.widest()) {
            let high = size.elements() / width;
            if high > 1 && high <= tall.next_power_of_two() && tall <= MAX_FUSED_EXTENT {
                let split = [Step::Split(axis(from), high), Step::Split(axis(inner), width)];
                proposals.push(fuse(from..inner).into_iter().chain(split).chain(bind(size.warps, 1)).collect());
            }
        }
    }
}

/// Tiles of an axis and of the last ones, as many as are longer than a side: transposes.
fn transposes(proposals: &mut Proposals, extents: &[usize], across: usize) {
    let (inner, bytes) = (extents.len() - 1, proposals.facts.widest());
    if !proposals.facts.accesses.iter().any(|a| a.strides[across] == Some(1)) {
        return;
    }
    let sides = |extent: usize| SIDES.map(|n| extent.next_power_of_two().min(n));
    let length = |from: usize| extents[from..].iter().product::<usize>();
    for from in (across + 1..=inner).filter(|n| *n > across + usize::from(*n == inner)) {
        if from < inner && (length(from + 1) >= MIN_SIDE || length(from) > MAX_FUSED_EXTENT) {
            continue;
        }
        for high in sides(extents[across]) {
            for width in sides(length(from)) {
                for warps in WARPS.into_iter().filter(|w| fills_threads(high * width, *w, bytes)) {
                    let split = [Step::Split(axis(across), high), Step::Split(axis(from), width)];
                    proposals.push(fuse(from..extents.len()).into_iter().chain(split).chain(bind(warps, 1)).collect());
                }
            }
        }
    }
}

/// Neighbours of a window read the same elements: a thread may hold all of a short row. Rows of several accesses move
/// between threads first, but for those of small tiles.
fn vectors_of_windows(proposals: &mut Proposals) {
    let (nest, bytes) = (proposals.nest, proposals.facts.widest());
    let with_vector = |s: &Schedule| {
        let row = s.steps.iter().rev().find_map(|s| if let Step::Split(_, n) = s { Some(*n) } else { None })?;
        let fits = row * bytes <= WINDOW_ROW || elements(s) * bytes <= SMALL;
        Some(s.clone().then(Step::Vector(row))).filter(|s| fits && tile::tiles(nest, s))
    };
    let found: Vec<Schedule> = proposals.schedules.iter().filter_map(with_vector).collect();
    proposals.schedules.extend(found);
}
