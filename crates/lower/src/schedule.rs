//! Executes schedules: applies the steps of a [`Schedule`] to a [`Nest`] and emits its programs.
//!
//! Takes: a nest and a schedule. Gives: the steps of a kernel, or a refusal that names the schedule's step and why it does not fit.
//! Never: chooses anything ([`crate::propose`] lists schedules, [`crate::price`] compares them).
use crate::LowerError;
use crate::dag::{NodeId, NodeOp, Scene};
use crate::expr::CoordId;
use crate::facts::Facts;
use crate::nest::{Nest, Visit};
use crate::price::Price;
use crate::resolve::Body;
use crate::row_loop::{RowLoop, look_back, reverse};
use crate::rows::{Emitted, Launched, RowPlan};
use crate::space::Space;
use crate::tile::{Cut, Shape, open};
use crate::{host_schedule, propose, replicate, unaligned, unroll, wide_rows};
use kiln_plan::exec::Work;
use kiln_plan::{Axis, Schedule, Step};
use std::rc::Rc;

/// Most axes of a tile.
const RANK: usize = 2;
/// Most elements of a tile.
const TILE: usize = 1 << 20;
/// Most warps of a block.
const WARPS: usize = 32;
/// Most neighbours of a thread.
const VECTOR: usize = 16;
/// Fewest registers of a thread that ptxas takes.
const LEAST_REGISTERS: usize = 16;

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
    fn points(self) -> (Rc<Scene>, Shape) {
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
                if !block.is_power_of_two() || split.len() == RANK || tile * block > TILE {
                    let why = format!("a tile has at most {RANK} axes of powers of two, and at most {TILE} elements");
                    return Err(refuse(why));
                }
                split.push((*axis, *block));
            }
            Step::Warps(n) if n.is_power_of_two() && *n <= WARPS => warps = *n,
            Step::Warps(_) => return Err(refuse(format!("a block has 1 to {WARPS} warps, a power of two"))),
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
            Step::Vector(n) if n.is_power_of_two() && *n <= VECTOR && nest.machine.arch.is_gpu() => {
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
            Step::Vector(_) => return Err(refuse(format!("a thread of a GPU holds 1 to {VECTOR}, a power of two"))),
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
                if *n < LEAST_REGISTERS || *n > most {
                    return Err(refuse(format!("a thread has {LEAST_REGISTERS} to {most} registers")));
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
                plan = unaligned::peel(plan, &tiled.scene, &mut tiled.space, *vector)
                    .map_err(|why| refusal(nest, step, why))?;
            }
            Step::StageRows => {
                check(crate::multi_row::packs(&plan, &tiled.scene))?;
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
                check(crate::tail::fits(&plan, &tiled.scene, *lanes))?;
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

/// The steps of a body whose nests `each` visits.
pub fn all<'b>(
    of: &'b Body,
    scratch: u32,
    each: impl FnOnce(&mut Visit) -> Result<(), LowerError> + 'b,
) -> Result<Emitted, LowerError> {
    let mut out = Emitted::default();
    each(&mut |nest| {
        let next = scratch + out.scratch.len() as u32;
        out = std::mem::take(&mut out).then(lowered(of, nest, next)?);
        Ok(())
    })?;
    Ok(out)
}

/// The steps of a nest by the schedule that the plan asks for, or else by the one with the least price.
pub fn lowered(of: &Body, nest: &Nest, scratch: u32) -> Result<Emitted, LowerError> {
    let asked = asked(of, nest);
    if let Some((schedule, false)) = asked {
        return run(nest, &schedule, scratch);
    }
    let schedules = match asked {
        Some((schedule, _)) => vec![(schedule, Price::default())],
        None => all_of(nest)?,
    };
    let (schedule, _) = schedules.first().ok_or_else(|| without(nest))?;
    let mut out = run(nest, schedule, scratch)?;
    out.launches.push(Launched { name: of.launch(nest.name), schedules });
    Ok(out)
}

/// The schedule that the plan asks for, and whether by the name of the launch.
pub fn asked(of: &Body, nest: &Nest) -> Option<(Schedule, bool)> {
    let name = of.launch(nest.name);
    let launch = of.kernel.1.and_then(|all| all.launches().find(|l| l.0 == name)).map(|l| (l.1.clone(), true));
    launch.or_else(|| of.schedule.filter(|_| !nest.beside).map(|own| (own.main(), false)))
}

fn without(nest: &Nest) -> LowerError {
    LowerError::Unsupported { kernel: nest.name.to_string(), why: "no schedule fits it".into() }
}

/// The schedule that a nest gets, with its price.
pub fn first(nest: &Nest) -> Result<(Schedule, Price), LowerError> {
    all_of(nest)?.into_iter().next().ok_or_else(|| without(nest))
}

/// Schedules of a nest with their prices, the cheapest first. On the host there is one, without a price.
pub fn all_of(nest: &Nest) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let reduces = |n: &NodeId| matches!(nest.scene.dag.node(*n).op, NodeOp::Reduce { .. });
    if nest.row().is_none() && nest.scene.live().iter().any(reduces) {
        return Err(LowerError::Unsupported { kernel: nest.name.to_string(), why: "a reduction without a row".into() });
    }
    match nest.machine.arch.is_gpu() {
        true => propose::propose(nest, &Facts::of(nest)),
        false => Ok(vec![(host_schedule::of(nest)?, Price::default())]),
    }
}

/// The steps of a nest by a schedule. `scratch` is the number of the first free scratch buffer.
pub fn run(nest: &Nest, schedule: &Schedule, scratch: u32) -> Result<Emitted, LowerError> {
    if let Some(Step::Widen(axis, rows)) = schedule.steps.first() {
        let rest = schedule.steps[1..].iter().cloned().collect();
        return wide_rows::run(nest, (*axis, *rows), &rest, scratch);
    }
    if let Some(Step::Unroll(axis, count)) = schedule.steps.first() {
        let rest = schedule.steps[1..].iter().cloned().collect();
        return run(&unroll::unrolled(nest, (*axis, *count))?, &rest, scratch);
    }
    if let Some(step) = schedule.steps.iter().find(|s| matches!(s, Step::Launch(..))) {
        return Err(refusal(nest, step, "a launch has no others"));
    }
    if let Some(step) = schedule.steps.iter().find(|s| matches!(s, Step::Unroll(..) | Step::Widen(..))) {
        return Err(refusal(nest, step, "it comes first"));
    }
    let mut tiled = tile(nest, schedule)?;
    if nest.row().is_none() {
        if let Some(step) = schedule.steps.iter().find(|s| !shapes(s)) {
            return Err(refusal(nest, step, "the nest has no row"));
        }
        let (vector, registers) = (tiled.vector, tiled.registers);
        let (scene, shape) = tiled.points();
        let mut step = points(nest, &scene, &shape)?;
        limit_registers(&mut step, registers);
        if let Work::Block { code, .. } = &mut step {
            code.vector = vector;
        }
        return Ok(Emitted::step(step));
    }
    let plan = row_plan(nest, schedule, &mut tiled)?;
    let (registers, lanes) = (tiled.registers, tiled.lanes);
    let mut scene = (*tiled.scene).clone();
    let mut out = replicate::copied(nest.name, &plan, &mut scene, scratch);
    let alone = nest.machine.contract.batch_invariant && plan.kept.iter().all(|c| c.extent == 1);
    let row = plan.row.extent;
    let mut emitted = RowLoop::new(nest.name, &scene, plan, scratch + out.scratch.len() as u32).emit()?;
    if alone {
        emitted.steps.iter_mut().for_each(|step| forget_alignment(step, row));
    }
    for step in &mut emitted.steps {
        limit_registers(step, registers);
        if let Work::Block { code, .. } = step {
            code.lanes = lanes;
        }
    }
    out.scratch.extend(emitted.scratch);
    out.steps.extend(emitted.steps);
    Ok(out)
}

/// Whether a step shapes the tile, or the block that computes it.
fn shapes(step: &Step) -> bool {
    use Step::{Cluster, Fuse, Lanes, Registers, Split, Vector, Warps};
    matches!(step, Fuse(_) | Split(..) | Warps(_) | Cluster(_) | Vector(_) | Lanes(_) | Registers(_))
}

pub fn limit_registers(step: &mut Work<kiln_block::Kernel>, most: Option<usize>) {
    if let Work::Block { code, .. } = step {
        code.registers = most;
    }
}

fn points(nest: &Nest, scene: &Scene, shape: &Shape) -> Result<Work<kiln_block::Kernel>, LowerError> {
    let mut frame = open(nest.name, scene, shape, nest.machine);
    scene.stores.iter().for_each(|s| frame.store(s));
    frame.finish()
}

/// For batch invariance: lowers the alignment of the buffers of a single row to what every row of its length has. The
/// lane layout follows from the alignment, and must be that of several rows.
fn forget_alignment(step: &mut Work<kiln_block::Kernel>, row: usize) {
    let Work::Block { code, .. } = step else { return };
    for i in 0..code.params.len() {
        let elem = match code.ty(code.params[i].value) {
            kiln_block::Type::Block { elem, .. } | kiln_block::Type::Ptr { elem, .. } => *elem,
            _ => continue,
        };
        let bytes = row.max(1) * elem.bytes();
        let param = &mut code.params[i];
        param.align = param.align.min(1 << bytes.trailing_zeros());
    }
}
