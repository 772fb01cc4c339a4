//! Plans of row programs (reductions and scans): how rows map to tiles, loops and the grid.
//!
//! Takes: a nest with a row, its tile, and the steps of a schedule. Gives: the plan, or a refusal that names the step and why it does not fit.
use crate::LowerError;
use crate::expr::CoordId;
use crate::nest::Nest;
use crate::peel::{self, Unaligned};
use crate::tiled::{Cut, Shape, Tiled, refusal, shapes};
use crate::{look_back, multi_row, reverse, tail};
use kiln_block::Elem;
use kiln_plan::{Axis, Hardware, Schedule, Step};

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

/// The plan of a row program, before its scratch buffers are known.
pub fn row_plan<'m>(nest: &Nest<'m>, schedule: &Schedule, tiled: &mut Tiled) -> Result<RowPlan<'m>, LowerError> {
    let Some(row) = tiled.row else {
        let why = format!("the schedule `{schedule}` does not split the row");
        return Err(LowerError::Unsupported { kernel: nest.name.to_string(), why });
    };
    let mut plan = RowPlan {
        kept: tiled.kept.clone(),
        row,
        rank: tiled.rank,
        parts: 1,
        warps: tiled.warps,
        blocks: tiled.blocks,
        machine: nest.machine,
        unaligned: None,
        multi_row: false,
        persistent: None,
        tail: None,
        prefetch: None,
        copies: false,
        look_back: None,
        wide: None,
        reversed: false,
    };
    for step in &schedule.steps {
        let check = |found: Result<(), String>| found.map_err(|why| refusal(nest, step, why));
        match step {
            Step::SplitReduce(axis, _)
            | Step::Peel(axis, _)
            | Step::Tail(axis, _)
            | Step::LookBack(axis, _)
            | Step::Reverse(axis)
                if *axis != Axis::Row =>
            {
                return Err(refusal(nest, step, "it is for the row, r"));
            }
            Step::SplitReduce(_, n) => plan.parts = *n,
            Step::Peel(_, vector) => {
                plan = peel::peel(plan, &tiled.scene, &mut tiled.space, *vector)
                    .map_err(|why| refusal(nest, step, why))?;
            }
            Step::StageRows => {
                check(multi_row::packs(&plan, &tiled.scene))?;
                plan.multi_row = true;
            }
            Step::LookBack(_, group) => {
                check(look_back::fits(&plan, &tiled.scene, *group))?;
                plan.look_back = Some(*group);
            }
            Step::Persist(_) if plan.blocks == 1 => {
                return Err(refusal(nest, step, "only clusters stay resident; `bind cluster` before it"));
            }
            Step::Persist(n) => plan.persistent = Some(*n),
            Step::Tail(_, lanes) => {
                check(tail::fits(&plan, &tiled.scene, *lanes))?;
                plan.tail = Some(*lanes);
            }
            Step::Prefetch(n) => plan.prefetch = Some(*n),
            Step::Reverse(_) => {
                check(reverse::fits(&plan, &tiled.scene))?;
                plan.reversed = true;
            }
            Step::StageOperands => {
                if plan.unaligned.is_none() {
                    return Err(refusal(nest, step, "only operands of peeled rows are copied"));
                }
                plan.copies = true;
            }
            _ if shapes(step) => {}
            _ => return Err(refusal(nest, step, "the kernel does not multiply")),
        }
    }
    Ok(plan)
}
