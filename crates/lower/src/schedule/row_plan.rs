//! Plans of row programs (reductions and scans): how rows map to tiles, loops and the grid.
use crate::scalar::expr::{CoordId, Expr};
use crate::schedule::tile::{Cut, Shape};
use kiln_block::Elem;
use kiln_plan::Hardware;

/// The schedule of a row program.
#[derive(Clone, Debug)]
pub struct RowPlan<'m> {
    pub kept: Vec<Cut>,
    pub row: Cut,
    pub rank: usize,
    /// Instances that share a row.
    pub parts: usize,
    pub warps: usize,
    pub blocks: usize,
    pub machine: &'m Hardware<'m>,
    pub unaligned: Option<Unaligned>,
    /// The rows of a tile are one contiguous run in memory, and are loaded and stored as one.
    pub multi_row: bool,
    /// Clusters of a persistent kernel that loop over the rows.
    pub persistent: Option<usize>,
    /// Lanes of the tail, a tile of its own.
    pub tail: Option<usize>,
    /// Instances between one and that whose rows it prefetches.
    pub prefetch: Option<usize>,
    /// Operands that unaligned rows share are copied once for each alignment.
    pub copies: bool,
    /// Each chunk of a scanned row is an instance ([`crate::emit::row_program::look_back`]); sums of so many chunks are
    /// published too.
    pub look_back: Option<usize>,
    /// The pass that stores along rows goes from their ends to their starts ([`crate::schedule::reverse`]).
    pub reversed: bool,
    /// Where the last wide row ends, if it is not full.
    pub wide: Option<Wide>,
}

/// How the coordinate of an unaligned row follows from lanes.
#[derive(Clone, Debug)]
pub struct Unaligned {
    /// The coordinate of lanes.
    pub lane: CoordId,
    /// The row's coordinate: the lane less `start`.
    pub position: Expr,
    /// Lanes before the row.
    pub start: Expr,
    /// Elements of a vector: more than `start`.
    pub vector: usize,
}

impl Unaligned {
    /// Lanes that a row can occupy, in whole vectors.
    pub fn width(&self, row: usize) -> usize {
        (row + self.vector - 1).next_multiple_of(self.vector)
    }
}

/// Wide rows ([`crate::emit::wide_rows`]) of which the last is not full.
#[derive(Clone, Copy, Debug)]
pub struct Wide {
    /// The coordinate along them, and its extent.
    pub along: CoordId,
    pub extent: usize,
    /// Elements of all of them.
    pub all: usize,
}
impl RowPlan<'_> {
    /// Whether one tile holds the whole row.
    pub fn whole(&self) -> bool {
        self.row.block >= self.row.extent && self.parts == 1
    }
    /// Lanes that a row can occupy: its elements, and of peeled rows those before them.
    pub fn width(&self) -> usize {
        self.unaligned.as_ref().map_or(self.row.extent, |u| u.width(self.row.extent))
    }
    /// Lanes of a part, a multiple of the chunk.
    pub fn part_len(&self) -> usize {
        self.width().div_ceil(self.parts).next_multiple_of(self.row.block)
    }
    /// Accumulator type of a scan of `elem`. A running sum has as many terms as its row: the host accumulates f32 in
    /// f64, as PyTorch does.
    pub fn scanned(&self, elem: Elem) -> Elem {
        if !self.machine.arch.is_gpu() && elem == Elem::F32 { Elem::F64 } else { elem }
    }
    pub fn shape(&self, parts: usize) -> Shape {
        let (cuts, reversed) = (self.kept.clone(), false);
        Shape { cuts, rank: self.rank, parts, warps: self.warps, blocks: self.blocks, reversed }
    }
}
