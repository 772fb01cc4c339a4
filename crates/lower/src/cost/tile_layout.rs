//! The layout of a tile over registers, lanes and warps: that which the layout pass of the block IR chooses, by the
//! same function ([`kiln_block::layout::choose()`]).
use crate::cost::features::NestFeatures;
use crate::cost::price::{Bit, TileFootprint, TiledAccess, log2};
use crate::cost::tiled_nest::TiledNest;
use kiln_block::layout::{Choice, Combined, Flat, LANE_BITS, Tile, TileAccess, axis_bits, choose};
use kiln_plan::{Axis, Schedule};

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
    /// The same on element numbers of a tile of this shape, and its accesses.
    flat: Flat,
    shape: Vec<usize>,
    accesses: Vec<TileAccess>,
}

impl TileLayout {
    /// The layout of the tile of a schedule that fits the nest.
    pub fn of(facts: &NestFeatures, schedule: &Schedule) -> TileLayout {
        let mut w = TileFootprint::default();
        let nest = TiledNest::new(facts, schedule, &mut w);
        TileLayout::new(&nest, &nest.accesses())
    }
    /// The layout of the tile of these accesses.
    pub(super) fn new(nest: &TiledNest, accesses: &[TiledAccess]) -> TileLayout {
        let shape: Vec<usize> = nest.splits.iter().map(|s| s.1.next_power_of_two()).collect();
        let row = nest.splits.iter().position(|s| s.0 == Axis::Row);
        let reduced = row.filter(|_| nest.facts.levels > 0 || nest.facts.scans > 0);
        let tile = Tile {
            shape: &shape,
            warp_bits: log2(nest.warps) as usize,
            lane_bits: nest.lane_bits,
            bound_vector: nest.bound_vector,
            reduced: reduced.as_slice(),
            scanned: row.filter(|_| nest.facts.scans > 0),
            combined: if nest.trips > 1 { Combined::AfterLoop } else { Combined::PerTile },
        };
        let accesses: Vec<TileAccess> = accesses.iter().map(|s| tile_access(nest, &tile, s)).collect();
        let Choice { fastest, vector_bits, layout } = choose(&tile, &accesses);
        let bit = |bit: u8| -> Bit {
            let axis = (0..shape.len()).rev().find(|a| axis_bits(&shape, *a).contains(&bit)).unwrap_or(0);
            (axis, u32::from(bit - axis_bits(&shape, axis).start))
        };
        let registers = layout.registers.iter().map(|b| bit(*b)).collect();
        let lanes = layout.lanes.iter().flatten().map(|b| bit(*b)).collect();
        let warps = layout.warps.iter().map(|b| b.map(bit)).collect();
        TileLayout { fastest, vector_bits, row, registers, lanes, warps, flat: layout, shape, accesses }
    }
    /// Whether the store with this number writes parts of sectors from this layout, so that it is converted first.
    pub fn scatters(&self, access: usize) -> bool {
        self.accesses[access].scatters(&self.flat, &self.shape)
    }
    /// Elements of a vector.
    pub fn vector(&self) -> usize {
        1 << self.vector_bits
    }
    /// Threads that hold the same element.
    pub fn copies(&self) -> f64 {
        let idle = (LANE_BITS - self.lanes.len()) as u32 + self.warps.iter().filter(|b| b.is_none()).count() as u32;
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

/// An access of the nest as the choice of a layout sees it.
fn tile_access(nest: &TiledNest, tile: &Tile, s: &TiledAccess) -> TileAccess {
    let last = nest.splits.len().saturating_sub(1);
    let bytes = s.access.bytes;
    match s.along {
        Some(axis) if nest.staged_rows && nest.splits[axis].0 == Axis::Row => {
            TileAccess::of_staged_rows(tile, axis, bytes)
        }
        along => TileAccess {
            axis: along.unwrap_or(last),
            vector: tile.vector(s.vector),
            run: if along.is_some() { s.run } else { 1 },
            bytes,
            elements: s.elements as usize,
            staged_rows: false,
            // Neighbours across two axes are not known of a nest.
            interleaved: None,
        },
    }
}
