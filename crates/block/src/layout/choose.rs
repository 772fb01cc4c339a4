//! The layout of a tile, chosen from the accesses to memory of its elements.
//!
//! The layout pass calls [`choose`] for values that share a layout ([`crate::passes::layout`]); prices of schedules
//! call it for a tile of which there is no program yet. Both describe the tile and its accesses in numbers.
use super::{Flat, LANE_BITS, axis_bits};
use kiln_machine::isa::VECTOR;

/// Bytes of a block up to which it does not matter how it is accessed.
pub const SMALL: usize = 1024;
/// Most elements of a row through shared memory that one thread has, and of those that it has of such a row at once.
const SHORT_ROW: usize = 32;
const MAX_ELEMENTS: usize = 16;
/// Elements of a thread's vector in a tile without accesses.
const DEFAULT_VECTOR: usize = 4;

/// A tile, and what is computed of it.
#[derive(Clone, Copy, Debug)]
pub struct Tile<'a> {
    /// Elements along each axis, powers of two.
    pub shape: &'a [usize],
    /// log2 of the warps that hold it.
    pub warp_bits: usize,
    /// log2 of the lanes of a warp along the contiguous axis, at most.
    pub lane_bits: usize,
    /// Neighbours along the contiguous axis that the schedule gives a thread, if it says so.
    pub bound_vector: Option<usize>,
    /// Axes that are reduced or scanned.
    pub reduced: &'a [usize],
    /// The axis that is scanned.
    pub scanned: Option<usize>,
    /// When threads combine what they have reduced.
    pub combined: Combined,
}

/// When threads combine what they have reduced of a tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Combined {
    /// For each tile.
    PerTile,
    /// Once, after a loop that carries the sums.
    AfterLoop,
}

/// An access to memory of a tile's elements, and the distribution that it prefers: the contiguous axis and the elements
/// that one thread takes along it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TileAccess {
    pub axis: usize,
    pub vector: usize,
    /// Length of the contiguous runs along the axis; 1 for a gather, which takes any layout.
    pub run: usize,
    /// Bytes of an element.
    pub bytes: usize,
    /// Elements that it reads or writes.
    pub elements: usize,
    /// Rows that go through shared memory, element by element.
    pub staged_rows: bool,
    /// Neighbours along another axis, which lie between those along this one.
    pub interleaved: Option<Interleaved>,
}

/// Pointers that are contiguous across two axes: `count` neighbours along `across`, then those of the next element
/// along `along`, which is `count` elements further, except at breaks of `along` that are far apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interleaved {
    pub along: usize,
    pub across: usize,
    pub count: usize,
    /// A power of two that divides the address of every group, in bytes.
    pub align: usize,
}

/// The layout of a tile, and the vectors of a thread in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The contiguous axis; `None` in a tile without axes.
    pub fastest: Option<usize>,
    /// log2 of the contiguous elements that a thread takes at once.
    pub vector_bits: usize,
    pub layout: Flat,
}

/// The layout of a tile with these accesses, in the order of the program: that of the heaviest contiguous access, in
/// vectors as long as the others along its axis take.
pub fn choose(tile: &Tile, accesses: &[TileAccess]) -> Choice {
    if tile.shape.is_empty() {
        return Choice { fastest: None, vector_bits: 0, layout: Flat::scalar(tile.warp_bits) };
    }
    let Some(heaviest) = heaviest(accesses) else {
        let order: Vec<usize> = (0..tile.shape.len()).rev().collect();
        if let Some(axis) = tile.scanned.filter(|axis| order.first() != Some(axis)) {
            let layout = Flat::scanned(tile.shape, &order, (1, tile.lane_bits), tile.warp_bits, axis);
            return tile.choice(&order, 1, layout);
        }
        return tile.blocked(&order, tile.vector(DEFAULT_VECTOR), &[]);
    };
    let along = || {
        let same_axis = |a: &&TileAccess| a.axis == heaviest.axis && a.run > 1;
        // Blocks of fewer elements have layouts of their own.
        accesses.iter().filter(same_axis).filter(|a| a.elements >= heaviest.elements)
    };
    let longest = along().map(|a| tile.vector(a.vector)).max().unwrap_or(tile.vector(heaviest.vector));
    // Lanes of more elements than are a vector of the widest type do not fill sectors: these would be converted.
    let staged = accesses.iter().any(|a| a.staged_rows);
    let widest = along().filter(|a| !staged && !a.is_small()).map(|a| a.bytes).max();
    let vector = widest.map_or(longest, |bytes| longest.min((VECTOR / bytes).max(1)));
    let bound = tile.bound_vector.filter(|n| heaviest.run >= *n).map_or(1, |n| tile.vector(n));
    heaviest.layout(tile, vector.max(bound))
}

/// The access whose layout the tile has: the first of the largest contiguous ones, but rows that go through shared
/// memory before what the program accesses ahead of them.
pub fn heaviest(accesses: &[TileAccess]) -> Option<&TileAccess> {
    let mut found: Option<&TileAccess> = None;
    for a in accesses {
        if a.staged_rows || found.is_none_or(|f| a.weight() > f.weight()) {
            found = Some(a);
        }
    }
    found
}

impl Tile<'_> {
    /// `wish`, reduced so that every thread gets an element.
    pub fn vector(&self, wish: usize) -> usize {
        let elements: usize = self.shape.iter().product();
        wish.min(elements >> (LANE_BITS + self.warp_bits)).max(1)
    }
    /// The blocked layout with the axes in this order, fastest first.
    fn blocked(&self, order: &[usize], vector: usize, reduced: &[usize]) -> Choice {
        let layout = Flat::blocked_by(self.shape, order, (vector, self.lane_bits), self.warp_bits, reduced);
        self.choice(order, vector, layout)
    }
    fn choice(&self, order: &[usize], vector: usize, layout: Flat) -> Choice {
        let longest = order.first().map_or(0, |axis| axis_bits(self.shape, *axis).len());
        Choice { fastest: order.first().copied(), vector_bits: longest.min(vector.max(1).ilog2() as usize), layout }
    }
}

impl TileAccess {
    /// Rows along an axis of a tile that go through shared memory element by element: a short row belongs to one
    /// thread, so that lanes exchange nothing; in a longer one neighbouring lanes take neighbouring elements.
    pub fn of_staged_rows(tile: &Tile, axis: usize, bytes: usize) -> TileAccess {
        let run = tile.shape.get(axis).copied().unwrap_or(1);
        let vector = if run <= SHORT_ROW { tile.vector(run.min(MAX_ELEMENTS)) } else { 1 };
        let elements = tile.shape.iter().product();
        TileAccess { axis, vector, run, bytes, elements, staged_rows: true, interleaved: None }
    }
    /// Bytes of a contiguous access. A gather has no preference.
    pub fn weight(&self) -> usize {
        if self.run > 1 { self.elements * self.bytes } else { 0 }
    }
    /// Fastest axis first.
    fn order(&self, rank: usize) -> Vec<usize> {
        std::iter::once(self.axis).chain((0..rank).rev().filter(|a| *a != self.axis)).collect()
    }
    /// The layout of a tile for this access, with so many elements in a vector.
    fn layout(&self, tile: &Tile, vector: usize) -> Choice {
        let order = self.order(tile.shape.len());
        match (tile.scanned, self.interleaved) {
            (Some(axis), _) => self.scanned(tile, &order, vector, axis),
            (None, Some(group)) => {
                let (group, lanes) = ((group.across, group.count), (vector, tile.lane_bits));
                let layout = Flat::interleaved(tile.shape, group, &order, lanes, tile.warp_bits, tile.reduced);
                tile.choice(&order, vector, layout)
            }
            (None, None) => self.blocked(tile, &order, vector),
        }
    }
    /// Along the contiguous axis a thread takes whole vectors even if these are unaligned: such a load takes two
    /// accesses and a shift, and stores are converted ([`TileAccess::scatters`]).
    fn scanned(&self, tile: &Tile, order: &[usize], vector: usize, axis: usize) -> Choice {
        let whole = (VECTOR / self.bytes).min(self.run);
        let vector = if axis == self.axis { vector.max(tile.vector(whole)) } else { vector };
        let layout = Flat::scanned(tile.shape, order, (vector, tile.lane_bits), tile.warp_bits, axis);
        tile.choice(order, vector, layout)
    }
    /// Where other axes are reduced and each row has a 32-bit word for every thread, a column stays in one thread. Sums
    /// that a loop carries are combined across threads only once, so loops need not do this.
    fn blocked(&self, tile: &Tile, order: &[usize], vector: usize) -> Choice {
        let across = !tile.reduced.is_empty() && !tile.reduced.contains(&self.axis);
        let of_thread = tile.shape[self.axis] >> (LANE_BITS + tile.warp_bits);
        let has_word = of_thread * self.bytes >= 4;
        let columns = across && has_word && tile.combined == Combined::PerTile;
        tile.blocked(order, if columns { vector.min(of_thread) } else { vector }, tile.reduced)
    }
    /// The layout of a tile that has this access alone.
    pub fn preferred(&self, tile: &Tile) -> Flat {
        self.layout(tile, self.vector).layout
    }
    /// Whether a store in this layout writes fewer than 8 bytes at a time although the thread holds more neighbouring
    /// elements, so that each access writes a part of many sectors.
    pub fn scatters(&self, flat: &Flat, shape: &[usize]) -> bool {
        if self.run <= self.vector || self.vector * self.bytes >= 8 || self.is_small() {
            return false;
        }
        1 << self.neighbours(flat, shape) > self.vector
    }
    /// Whether it does not matter how its elements are accessed.
    pub fn is_small(&self) -> bool {
        self.elements * self.bytes <= SMALL
    }
    /// Whether an access in this layout uses most of the bytes it moves: lanes fill 32-byte sectors in one instruction,
    /// a load fills them in two of one thread, which finds the other half in the L1 cache, or the block is so small
    /// that it does not matter.
    pub fn suits(&self, flat: &Flat, shape: &[usize], load: bool) -> bool {
        if self.run == 1 || self.is_small() {
            return true;
        }
        let (axis, neighbours) = (axis_bits(shape, self.axis), self.neighbours(flat, shape));
        if load && self.vector * self.bytes == VECTOR && (1 << neighbours) * self.bytes == 2 * VECTOR {
            return true;
        }
        let vector = neighbours.min((VECTOR / self.bytes).max(1).ilog2() as usize) as u8;
        let lanes = (axis.start + vector..axis.end).take_while(|b| flat.lanes.contains(&Some(*b))).count() as u8;
        let run = 1usize << (vector + lanes);
        run * self.bytes >= 32 || run >= self.run
    }
    /// log2 of the neighbours along the contiguous axis that a thread holds in this layout.
    fn neighbours(&self, flat: &Flat, shape: &[usize]) -> usize {
        let axis = axis_bits(shape, self.axis);
        flat.registers.iter().zip(axis).take_while(|(r, b)| **r == *b).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile<'a>(shape: &'a [usize], reduced: &'a [usize]) -> Tile<'a> {
        Tile {
            shape,
            warp_bits: 2,
            lane_bits: LANE_BITS,
            bound_vector: None,
            reduced,
            scanned: None,
            combined: Combined::PerTile,
        }
    }
    fn access(tile: &Tile, axis: usize, bytes: usize) -> TileAccess {
        let (run, elements) = (tile.shape[axis], tile.shape.iter().product());
        let vector = tile.vector(VECTOR / bytes);
        TileAccess { axis, vector, run, bytes, elements, staged_rows: false, interleaved: None }
    }

    #[test]
    fn vectors_are_those_of_the_widest_type() {
        let tile = tile(&[8, 1024], &[]);
        let (halves, words) = (access(&tile, 1, 2), access(&tile, 1, 4));
        let vector = |accesses: &[TileAccess]| 1 << choose(&tile, accesses).vector_bits;
        assert_eq!([vector(&[halves]), vector(&[words]), vector(&[halves, words])], [8, 4, 4]);
        let row = TileAccess { elements: 1024, ..words };
        assert_eq!(vector(&[halves, row]), 8, "a smaller block has a layout of its own");
        assert_eq!(choose(&Tile { bound_vector: Some(16), ..tile }, &[words]).vector_bits, 4);
    }

    #[test]
    fn the_heaviest_contiguous_access_gives_the_order() {
        let tile = tile(&[64, 64], &[]);
        let gather = TileAccess { run: 1, vector: 1, ..access(&tile, 1, 8) };
        let (rows, columns) = (access(&tile, 1, 2), access(&tile, 0, 4));
        assert_eq!(choose(&tile, &[gather, rows]).fastest, Some(1));
        assert_eq!(choose(&tile, &[rows, columns, gather]).fastest, Some(0));
        let staged = TileAccess::of_staged_rows(&tile, 1, 2);
        assert_eq!(choose(&tile, &[columns, staged]).fastest, Some(1), "rows through shared memory go first");
        assert_eq!(choose(&tile, &[]).fastest, Some(1));
    }

    #[test]
    fn a_column_stays_in_a_thread_unless_a_loop_carries_sums() {
        let tile = tile(&[32, 256], &[0]);
        let words = access(&tile, 1, 4);
        assert_eq!(choose(&tile, &[words]).vector_bits, 1);
        let columns = choose(&tile, &[words]).layout;
        assert!(columns.warps.iter().chain(&columns.lanes).flatten().all(|bit| *bit < 8), "{columns:?}");
        assert_eq!(choose(&Tile { combined: Combined::AfterLoop, ..tile }, &[words]).vector_bits, 2);
    }

    #[test]
    fn what_is_scanned_is_in_order_of_warps() {
        let tile = Tile { scanned: Some(0), ..tile(&[4096], &[0]) };
        let unaligned = TileAccess { vector: 1, ..access(&tile, 0, 4) };
        let choice = choose(&tile, &[unaligned]);
        assert_eq!(choice.vector_bits, 2, "whole vectors");
        assert_eq!(choice.layout.warps, [Some(11), Some(10)]);
    }
}
