//! The layout of a tile over registers, lanes and warps, as the layout pass of the block IR chooses it for the tile's
//! heaviest access ([`kiln_block::passes::layout`]).
use crate::cost::price::{Bit, TiledAccess, log2};
use crate::cost::tiled_nest::TiledNest;
use kiln_block::layout::take_lanes;
use kiln_block::passes::layout::{SMALL, VECTOR};
use kiln_plan::Axis;

/// Which coordinates of a tile a thread, a warp and a block hold.
pub struct TileLayout {
    /// The axis of the tile along which a thread has vectors, and log2 of their elements.
    pub fastest: Option<usize>,
    pub vector_bits: usize,
    /// The axis of the row in the tile.
    pub row: Option<usize>,
    pub registers: Vec<Bit>,
    pub lanes: Vec<Bit>,
    /// Bits of warps, those of a block first; `None` where warps hold the same.
    pub warps: Vec<Option<Bit>>,
}

impl TileLayout {
    /// The layout of the tile of these accesses. `whole`: a tile has whole rows.
    pub fn new(nest: &TiledNest, accesses: &[TiledAccess], whole: bool) -> TileLayout {
        let splits = &nest.splits;
        // The largest contiguous access gives the layout.
        let weight = |s: &TiledAccess| if s.along.is_some() { s.elements * s.access.bytes as f64 } else { 0.0 };
        let largest =
            accesses.iter().rev().max_by(|a, b| weight(a).total_cmp(&weight(b))).filter(|s| s.along.is_some());
        let fastest = largest.and_then(|s| s.along).or(splits.len().checked_sub(1));
        let row = splits.iter().position(|s| s.0 == Axis::Row);
        // Blocks of fewer elements have layouts of their own.
        let full = largest.map_or(0.0, |s| s.elements);
        let vector = vector(nest, accesses, fastest, row, (full, whole));
        let vector_bits = log2(vector).min(fastest.map_or(0, |f| log2(splits[f].1))) as usize;
        let scans = nest.facts.scans > 0;
        let reduced = row.filter(|_| nest.facts.levels > 0 || scans);
        let order = fastest.into_iter().chain((0..splits.len()).rev().filter(|n| Some(*n) != fastest));
        let mut bits: Vec<Bit> = order.flat_map(|n| (0..log2(splits[n].1)).map(move |b| (n, b))).collect();
        let mut registers: Vec<Bit> = bits.drain(..vector_bits).collect();
        if scans && fastest != row {
            let spare = bits.len().saturating_sub(5 + log2(nest.warps) as usize);
            let scanned: Vec<Bit> = bits.iter().copied().filter(|b| Some(b.0) == row).take(spare).collect();
            bits.retain(|b| !scanned.contains(b));
            registers.extend(scanned);
        }
        let along = bits.iter().filter(|b| Some(b.0) == fastest).count();
        let lanes = take_lanes(&mut bits, along, nest.lane_bits);
        let mut warps: Vec<Option<Bit>> = vec![];
        for _ in 0..log2(nest.warps) {
            let other = bits.iter().position(|b| Some(b.0) != reduced);
            let last = if scans { bits.len().saturating_sub(1) } else { 0 };
            warps.push((!bits.is_empty()).then(|| bits.remove(other.unwrap_or(last))));
        }
        registers.extend(bits);
        TileLayout { fastest, vector_bits, row, registers, lanes, warps }
    }
    /// Elements of a vector.
    pub fn vector(&self) -> usize {
        1 << self.vector_bits
    }
    /// Threads that hold the same element.
    pub fn copies(&self) -> f64 {
        let idle = (5 - self.lanes.len()) as u32 + self.warps.iter().filter(|b| b.is_none()).count() as u32;
        f64::from(1u32 << idle)
    }
    /// Bits of an axis of the tile that are in registers.
    pub fn register_bits(&self, axis: usize) -> usize {
        self.registers.iter().filter(|b| b.0 == axis).count()
    }
    /// Whether a bit is of the row.
    pub fn is_on_row(&self, bit: &Bit) -> bool {
        self.row == Some(bit.0)
    }
}

/// Elements of a thread's vector along the fastest axis. `full`: elements of the largest access.
fn vector(
    nest: &TiledNest,
    accesses: &[TiledAccess],
    fastest: Option<usize>,
    row: Option<usize>,
    (full, whole): (f64, bool),
) -> usize {
    let (facts, splits) = (nest.facts, &nest.splits);
    let alike = accesses.iter().filter(|s| s.along == fastest && s.elements >= full);
    let most = alike.clone().map(|s| nest.width(s.vector)).max().unwrap_or(1);
    // A vector of the widest type at most: its lanes would not fill sectors.
    let small = |s: &&TiledAccess| s.elements * s.access.bytes as f64 <= SMALL as f64;
    let widest = alike.filter(|s| !small(s)).map(|s| s.access.bytes).max();
    let by_type = widest.map_or(most, |bytes| most.min((VECTOR / bytes).max(1)));
    let mut vector = by_type.max(nest.width(nest.bound_vector));
    let reduced = row.filter(|_| facts.levels > 0 || facts.scans > 0);
    if let (Some(f), Some(r)) = (fastest, reduced)
        && f != r
        && whole
        && facts.levels > 0
    {
        let each = splits[f].1 >> (5 + log2(nest.warps));
        let bytes = accesses.iter().filter(|s| s.along == fastest).map(|s| s.access.bytes).max().unwrap_or(4);
        if each * bytes >= 4 {
            vector = vector.min(each.max(1));
        }
    }
    if nest.staged_rows
        && let Some(r) = row
    {
        vector = if splits[r].1 <= 32 { nest.width(splits[r].1.min(16)) } else { 1 };
    }
    if facts.scans > 0
        && fastest == row
        && let Some(f) = fastest
    {
        let bytes = accesses.iter().map(|s| s.access.bytes).max().unwrap_or(4);
        vector = vector.max(nest.width((16 / bytes).min(splits[f].1)));
    }
    vector
}
