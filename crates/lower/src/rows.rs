//! Row programs (reductions and scans): how rows and kept coordinates map to tiles, loops and the grid, as the steps of a schedule say.
use crate::expr::CoordId;
use crate::multiply::{Forms, Multiply};
use crate::price::Price;
use crate::tile::{Cut, Shape};
use crate::unaligned::Unaligned;
use kiln_block::{Elem, Kernel};
use kiln_graph::Type;
use kiln_plan::exec::Work;
use kiln_plan::{Hardware, Schedule};

/// Steps with the scratch they use.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    pub scratch: Vec<Type>,
    pub steps: Vec<Work<Kernel>>,
    /// The schedule of the matmul or attention among them.
    pub made: Option<Multiply>,
    /// The nests among them that have schedules of their own.
    pub launches: Vec<Launched>,
}

/// A nest that is one of several launches of a kernel.
#[derive(Clone, Debug)]
pub struct Launched {
    /// What the plan calls it.
    pub name: String,
    /// Its schedule, then others that fit it, the cheapest first; the one that the plan asks for is alone, without a price.
    pub schedules: Vec<(Schedule, Price)>,
}

impl Emitted {
    /// These steps, then those of `rest`, whose scratch buffers are numbered after these.
    pub fn then(mut self, rest: Emitted) -> Emitted {
        self.scratch.extend(rest.scratch);
        self.steps.extend(rest.steps);
        self.made = self.made.or(rest.made);
        self.launches.extend(rest.launches);
        self
    }
    /// One step.
    pub fn step(step: Work<Kernel>) -> Emitted {
        Emitted { steps: vec![step], ..Emitted::default() }
    }
    /// The same, of a matmul in other forms.
    pub fn in_forms(mut self, change: impl FnOnce(&mut Forms)) -> Emitted {
        if let Some(Multiply::Matmul(p)) = &mut self.made {
            change(&mut p.forms);
        }
        self
    }
}

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
    /// Each chunk of a scanned row is an instance ([`crate::row_loop::look_back`]); sums of so many chunks are published too.
    pub look_back: Option<usize>,
    /// The pass that stores along rows goes from their ends to their starts ([`crate::row_loop::reverse`]).
    pub reversed: bool,
    /// Where the last wide row ends, if it is not full.
    pub wide: Option<Wide>,
}

/// Wide rows ([`crate::wide_rows`]) of which the last is not full.
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
