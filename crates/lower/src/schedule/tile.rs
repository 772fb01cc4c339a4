//! Tiles of a nest: how `fuse`, `split` and `bind` steps cut its axes.
//!
//! Takes: a nest and a schedule. Gives: the axes with their blocks, or a refusal that names the step and why it does
//! not fit.
use crate::error::LowerError;
use crate::nest::Nest;
use crate::scalar::dag::Scene;
use crate::scalar::expr::CoordId;
use crate::scalar::space::Space;
use kiln_plan::{Axis, Schedule, Step};
use std::rc::Rc;

/// Most axes of a tile.
const MAX_RANK: usize = 2;
/// Most elements of a tile.
const MAX_TILE: usize = 1 << 20;
/// Most warps of a block.
const MAX_WARPS: usize = 32;
/// Most neighbours of a thread.
const MAX_VECTOR: usize = 16;
/// Fewest registers of a thread that ptxas takes.
const MIN_REGISTERS: usize = 16;

/// A coordinate cut into blocks of `block` (a power of two; 1: a uniform scalar), along `axis` of the tile.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub id: CoordId,
    pub extent: usize,
    pub block: usize,
    pub axis: usize,
}

impl Cut {
    /// One value per instance.
    pub fn uniform(id: CoordId, extent: usize) -> Cut {
        Cut { id, extent, block: 1, axis: 0 }
    }
    pub fn count(&self) -> usize {
        self.extent.div_ceil(self.block)
    }
}

/// Shape of a step: its cuts (outermost first), the tile's rank, parts of a row (or of attention's keys) that instances
/// share, warps on a GPU.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    pub cuts: Vec<Cut>,
    pub rank: usize,
    pub parts: usize,
    /// Warps of an instance, and the blocks that share it.
    pub warps: usize,
    pub blocks: usize,
    /// The last instance has the first place.
    pub reversed: bool,
}

impl Shape {
    /// Grid extents: parts, then the blocks of each cut.
    pub fn counts(&self) -> Vec<usize> {
        std::iter::once(self.parts.max(1)).chain(self.cuts.iter().map(Cut::count)).collect()
    }
    pub fn instances(&self) -> usize {
        self.counts().iter().product()
    }
}

/// A nest whose axes are fused and split.
pub struct Tiled {
    pub space: Space,
    /// The program in that space.
    pub scene: Rc<Scene>,
    /// Kept axes in the order of the grid: those that are not split, then those that are.
    pub kept: Vec<Cut>,
    pub row: Option<Cut>,
    pub rank: usize,
    /// Warps of an instance, and the blocks that share it.
    pub warps: usize,
    pub blocks: usize,
    /// Neighbours along the last axis that a thread holds, and its most registers.
    pub vector: Option<usize>,
    pub registers: Option<usize>,
    /// Lanes of a warp along the row.
    pub lanes: Option<usize>,
}

impl Tiled {
    /// The shape of a program without a row.
    pub fn points(self) -> (Rc<Scene>, Shape) {
        (
            self.scene,
            Shape {
                cuts: self.kept,
                rank: self.rank,
                parts: 1,
                warps: self.warps,
                blocks: self.blocks,
                reversed: false,
            },
        )
    }
}

/// Why a step does not fit.
pub fn refusal(nest: &Nest, step: &Step, why: impl std::fmt::Display) -> LowerError {
    LowerError::Unsupported { kernel: nest.name.to_string(), why: format!("`{step}` does not fit: {why}") }
}

/// Applies `fuse`, `split` and `bind` steps.
pub fn tile(nest: &Nest, schedule: &Schedule) -> Result<Tiled, LowerError> {
    let mut tiled = shaped(nest, schedule)?;
    tiled.scene = nest.scene_in(&tiled.space)?;
    Ok(tiled)
}

/// Whether `fuse`, `split` and `bind` steps fit a nest.
pub fn tiles(nest: &Nest, schedule: &Schedule) -> bool {
    shaped(nest, schedule).is_ok()
}

/// The tile, without the program in its space.
fn shaped(nest: &Nest, schedule: &Schedule) -> Result<Tiled, LowerError> {
    let (space, names) = nest.named();
    let mut tiling =
        Tiling { nest, space, names, splits: vec![], warps: 1, cluster: 1, vector: None, registers: None, lanes: None };
    for step in &schedule.steps {
        tiling.apply(step).map_err(|why| match why {
            Refusal::Step(why) => refusal(nest, step, why),
            Refusal::NoAxis(axis) => refusal(nest, step, no_axis(nest, axis)),
        })?;
    }
    Ok(tiling.tiled())
}

/// An axis and the block into which it is cut.
#[derive(Clone, Copy)]
struct Split {
    axis: Axis,
    block: usize,
}

/// What the steps of a schedule have made of a nest's axes.
struct Tiling<'a> {
    nest: &'a Nest<'a>,
    space: Space,
    /// The coordinate of each axis.
    names: Vec<(Axis, CoordId)>,
    splits: Vec<Split>,
    warps: usize,
    cluster: usize,
    vector: Option<usize>,
    registers: Option<usize>,
    lanes: Option<usize>,
}

/// Why a step does not fit.
enum Refusal {
    Step(String),
    NoAxis(Axis),
}

impl From<String> for Refusal {
    fn from(why: String) -> Refusal {
        Refusal::Step(why)
    }
}
impl From<&str> for Refusal {
    fn from(why: &str) -> Refusal {
        Refusal::Step(why.into())
    }
}

impl Tiling<'_> {
    fn apply(&mut self, step: &Step) -> Result<(), Refusal> {
        let limits = &self.nest.machine.limits;
        match step {
            Step::Fuse(axes) => self.fuse(axes)?,
            Step::Split(axis, block) => self.split(*axis, *block)?,
            Step::Warps(n) if n.is_power_of_two() && *n <= MAX_WARPS => self.warps = *n,
            Step::Warps(_) => return Err(format!("a block has 1 to {MAX_WARPS} warps, a power of two").into()),
            Step::Cluster(n) if limits.clusters_of(*n) > 0 => self.cluster = *n,
            Step::Cluster(_) => {
                let sizes: Vec<String> = limits.clusters.iter().map(|c| c.blocks.to_string()).collect();
                let sizes =
                    if sizes.is_empty() { "no clusters".into() } else { format!("clusters of {}", sizes.join(", ")) };
                return Err(format!("the machine has {sizes}").into());
            }
            Step::Vector(n) => self.bind_vector(*n)?,
            Step::Lanes(n) => self.bind_lanes(*n)?,
            Step::Registers(n) => self.limit_registers(*n)?,
            _ => {}
        }
        Ok(())
    }
    fn id(&self, axis: Axis) -> Option<CoordId> {
        self.names.iter().find(|n| n.0 == axis).map(|n| n.1)
    }
    fn find(&self, axis: Axis) -> Result<CoordId, Refusal> {
        self.id(axis).ok_or(Refusal::NoAxis(axis))
    }
    fn elements(&self) -> usize {
        self.splits.iter().map(|s| s.block).product()
    }
    fn fuse(&mut self, axes: &[Axis]) -> Result<(), Refusal> {
        let ids = axes.iter().map(|a| self.find(*a)).collect::<Result<Vec<_>, _>>()?;
        if axes.contains(&Axis::Row) || axes.iter().any(|a| self.splits.iter().any(|s| s.axis == *a)) {
            return Err("only axes that are neither reduced nor split can be fused".into());
        }
        if ids.iter().enumerate().any(|(i, id)| ids[..i].contains(id)) {
            return Err("an axis is named twice".into());
        }
        let id = self.space.merge(&ids).ok_or("the axes have no points")?;
        self.names.retain(|n| !axes[1..].contains(&n.0));
        self.names.iter_mut().filter(|n| n.0 == axes[0]).for_each(|n| n.1 = id);
        Ok(())
    }
    fn split(&mut self, axis: Axis, block: usize) -> Result<(), Refusal> {
        // A single row is one position of an axis that its nest does not have.
        if axis != Axis::Kept(0) || self.nest.kept().next().is_some() {
            self.find(axis)?;
        }
        if self.splits.iter().any(|s| s.axis == axis) {
            return Err("the axis is split already".into());
        }
        if !block.is_power_of_two() || self.splits.len() == MAX_RANK || self.elements() * block > MAX_TILE {
            return Err(format!(
                "a tile has at most {MAX_RANK} axes of powers of two, and at most {MAX_TILE} elements"
            )
            .into());
        }
        self.splits.push(Split { axis, block });
        Ok(())
    }
    /// Neighbours of a thread along the last axis.
    fn bind_vector(&mut self, n: usize) -> Result<(), Refusal> {
        if self.nest.row().is_some() {
            return Err("a nest with a row has the vectors of its accesses".into());
        }
        if !n.is_power_of_two() || n > MAX_VECTOR || !self.nest.machine.arch.is_gpu() {
            return Err(format!("a thread of a GPU holds 1 to {MAX_VECTOR}, a power of two").into());
        }
        let last = self.splits.last().map_or(1, |s| s.block);
        if last < n {
            return Err(format!("the last axis of the tile has {last} positions").into());
        }
        let of_thread = self.elements() / (32 * self.warps * self.cluster);
        if of_thread < n {
            return Err(format!("a thread has {of_thread} elements of the tile").into());
        }
        self.vector = Some(n);
        Ok(())
    }
    /// Lanes of a warp along a row.
    fn bind_lanes(&mut self, n: usize) -> Result<(), Refusal> {
        if !n.is_power_of_two() || n >= 32 || !self.nest.machine.arch.is_gpu() {
            return Err("of a GPU's 32 lanes 1 to 16 are along a row, a power of two".into());
        }
        let rows = match self.splits[..] {
            [Split { axis: Axis::Kept(_), block }, Split { axis: Axis::Row, .. }] => block,
            _ => return Err("the tile is not one of several rows".into()),
        };
        if rows < 32 / n {
            return Err(format!("the other lanes of a warp are of {} rows; the tile has {rows}", 32 / n).into());
        }
        self.lanes = Some(n);
        Ok(())
    }
    /// Most registers of a thread.
    fn limit_registers(&mut self, n: usize) -> Result<(), Refusal> {
        let limit = self.nest.machine.limits.registers_per_thread;
        if limit == 0 {
            return Err("only threads of a GPU have registers to limit".into());
        }
        if n < MIN_REGISTERS || n > limit {
            return Err(format!("a thread has {MIN_REGISTERS} to {limit} registers").into());
        }
        self.registers = Some(n);
        Ok(())
    }
    fn tiled(self) -> Tiled {
        let extent = |id: CoordId| self.space.find(id).map_or(1, |c| c.extent);
        let is_split = |axis: Axis| self.splits.iter().any(|s| s.axis == axis);
        // Axes of one position are no coordinates.
        let uniform = self.names.iter().filter(|n| n.0 != Axis::Row && !is_split(n.0));
        let mut kept: Vec<Cut> = uniform.map(|n| Cut::uniform(n.1, extent(n.1))).collect();
        let mut row = None;
        for (at, split) in self.splits.iter().enumerate() {
            let id = self.id(split.axis);
            let cut = |id| Cut { id, extent: extent(id), block: split.block, axis: at };
            match (split.axis, id) {
                (Axis::Row, id) => row = Some(cut(id.unwrap_or(0))),
                (Axis::Kept(_), Some(id)) => kept.push(cut(id)),
                (Axis::Kept(_) | Axis::K | Axis::Keys, _) => {}
            }
        }
        Tiled {
            scene: Rc::default(),
            kept,
            row,
            rank: self.splits.len(),
            warps: self.warps * self.cluster,
            blocks: self.cluster,
            vector: self.vector,
            registers: self.registers,
            lanes: self.lanes,
            space: self.space,
        }
    }
}

/// That a nest has no axis of this name, and which it has.
pub fn no_axis(nest: &Nest, axis: Axis) -> String {
    let all: Vec<String> = nest.axes().iter().map(|(axis, n)| format!("{axis} ({n})")).collect();
    let all = if all.is_empty() { "the nest has none".into() } else { format!("axes are {}", all.join(", ")) };
    format!("there is no axis {axis}; {all}")
}

/// Whether a step shapes the tile, or the block that computes it.
pub fn shapes(step: &Step) -> bool {
    use Step::{Cluster, Fuse, Lanes, Registers, Split, Vector, Warps};
    matches!(step, Fuse(_) | Split(..) | Warps(_) | Cluster(_) | Vector(_) | Lanes(_) | Registers(_))
}
