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
    let (mut space, mut names) = nest.named();
    let mut split: Vec<(Axis, usize)> = vec![];
    let (mut warps, mut cluster, mut vector, mut registers, mut lanes) = (1, 1, None, None, None);
    for step in &schedule.steps {
        let refuse = |why: String| refusal(nest, step, why);
        let find = |names: &[(Axis, CoordId)], axis: Axis| {
            let id = names.iter().find(|n| n.0 == axis).map(|n| n.1);
            id.ok_or_else(|| refuse(no_axis(nest, axis)))
        };
        match step {
            Step::Fuse(axes) => {
                let ids = axes.iter().map(|a| find(&names, *a)).collect::<Result<Vec<_>, _>>()?;
                if axes.contains(&Axis::Row) || axes.iter().any(|a| split.iter().any(|s| s.0 == *a)) {
                    return Err(refuse("only axes that are neither reduced nor split can be fused".into()));
                }
                if ids.iter().enumerate().any(|(i, id)| ids[..i].contains(id)) {
                    return Err(refuse("an axis is named twice".into()));
                }
                let Some(id) = space.merge(&ids) else { return Err(refuse("the axes have no points".into())) };
                names.retain(|n| !axes[1..].contains(&n.0));
                names.iter_mut().filter(|n| n.0 == axes[0]).for_each(|n| n.1 = id);
            }
            Step::Split(axis, block) => {
                // A single row is one position of an axis that its nest does not have.
                if *axis != Axis::Kept(0) || nest.kept().next().is_some() {
                    find(&names, *axis)?;
                }
                let tile: usize = split.iter().map(|s| s.1).product();
                if split.iter().any(|s| s.0 == *axis) {
                    return Err(refuse("the axis is split already".into()));
                }
                if !block.is_power_of_two() || split.len() == MAX_RANK || tile * block > MAX_TILE {
                    let why =
                        format!("a tile has at most {MAX_RANK} axes of powers of two, and at most {MAX_TILE} elements");
                    return Err(refuse(why));
                }
                split.push((*axis, *block));
            }
            Step::Warps(n) if n.is_power_of_two() && *n <= MAX_WARPS => warps = *n,
            Step::Warps(_) => return Err(refuse(format!("a block has 1 to {MAX_WARPS} warps, a power of two"))),
            Step::Cluster(n) if nest.machine.limits.clusters_of(*n) > 0 => cluster = *n,
            Step::Cluster(_) => {
                let sizes: Vec<String> = nest.machine.limits.clusters.iter().map(|c| c.blocks.to_string()).collect();
                let sizes =
                    if sizes.is_empty() { "no clusters".into() } else { format!("clusters of {}", sizes.join(", ")) };
                return Err(refuse(format!("the machine has {sizes}")));
            }
            Step::Vector(_) if nest.row().is_some() => {
                return Err(refuse("a nest with a row has the vectors of its accesses".into()));
            }
            Step::Vector(n) if n.is_power_of_two() && *n <= MAX_VECTOR && nest.machine.arch.is_gpu() => {
                let last = split.last().map_or(1, |s| s.1);
                if last < *n {
                    return Err(refuse(format!("the last axis of the tile has {last} positions")));
                }
                let own = split.iter().map(|s| s.1).product::<usize>() / (32 * warps * cluster);
                if own < *n {
                    return Err(refuse(format!("a thread has {own} elements of the tile")));
                }
                vector = Some(*n);
            }
            Step::Vector(_) => {
                return Err(refuse(format!("a thread of a GPU holds 1 to {MAX_VECTOR}, a power of two")));
            }
            Step::Lanes(n) if n.is_power_of_two() && *n < 32 && nest.machine.arch.is_gpu() => {
                let rows = match split[..] {
                    [(Axis::Kept(_), rows), (Axis::Row, _)] => rows,
                    _ => return Err(refuse("the tile is not one of several rows".into())),
                };
                if rows < 32 / n {
                    return Err(refuse(format!(
                        "the other lanes of a warp are of {} rows; the tile has {rows}",
                        32 / n
                    )));
                }
                lanes = Some(*n);
            }
            Step::Lanes(_) => return Err(refuse("of a GPU's 32 lanes 1 to 16 are along a row, a power of two".into())),
            Step::Registers(n) => {
                let most = nest.machine.limits.registers_per_thread;
                if most == 0 {
                    return Err(refuse("only threads of a GPU have registers to limit".into()));
                }
                if *n < MIN_REGISTERS || *n > most {
                    return Err(refuse(format!("a thread has {MIN_REGISTERS} to {most} registers")));
                }
                registers = Some(*n);
            }
            _ => {}
        }
    }
    let extent = |id: CoordId| space.find(id).map_or(1, |c| c.extent);
    let there = |axis: Axis| names.iter().any(|n| n.0 == axis);
    let cut = |axis: Axis, block, at| {
        let id = names.iter().find(|n| n.0 == axis).map_or(0, |n| n.1);
        Cut { id, extent: extent(id), block, axis: at }
    };
    // Axes of one position are no coordinates.
    let uniform = names.iter().filter(|n| n.0 != Axis::Row && !split.iter().any(|s| s.0 == n.0));
    let mut kept: Vec<Cut> = uniform.map(|n| Cut::uniform(n.1, extent(n.1))).collect();
    let mut row = None;
    for (at, (axis, block)) in split.iter().enumerate() {
        match axis {
            Axis::Row => row = Some(cut(*axis, *block, at)),
            Axis::Kept(_) if there(*axis) => kept.push(cut(*axis, *block, at)),
            Axis::Kept(_) | Axis::K | Axis::Keys => {}
        }
    }
    let scene = Rc::default();
    Ok(Tiled {
        space,
        scene,
        kept,
        row,
        rank: split.len(),
        warps: warps * cluster,
        blocks: cluster,
        vector,
        registers,
        lanes,
    })
}

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
