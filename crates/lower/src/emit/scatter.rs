//! The launches of a scatter ([`crate::nest::scatter`]): nests of indexed writes, or lines that are processed in order.
use crate::emit::emitter::Lanes;
use crate::emit::frame::{looped, open};
use crate::emit::launch;
use crate::error::LowerError;
use crate::nest::lowering::Lowering;
use crate::nest::scatter::Scatter;
use crate::scalar::dag::{Scene, Store};
use crate::scalar::expr::Expr;
use crate::scalar::space::Space;
use crate::scalar::types::held;
use crate::schedule::tile::{Cut, Shape};
use crate::steps::Emitted;
use kiln_block::BlockProgram;
use kiln_graph::{Graph, Op, ScatterMode};
use kiln_plan::Hardware;
use kiln_plan::exec::{Slot, Work};

/// In order, fewer lines than this that are longer than that are refused on a GPU: the host is faster.
const MIN_LINES: usize = 32;
const MAX_LINE: usize = 1 << 16;
/// Blocks are halved down to this many lanes, while there are fewer instances than enough.
const MIN_LANES: usize = 32;
const MIN_INSTANCES: usize = 64;

pub fn lower(kernel: &Lowering, machine: &Hardware) -> Result<Emitted, LowerError> {
    let s = Scatter::of(kernel)?;
    if s.walked.contains(&0) {
        return Ok(Emitted::step(copy(kernel, &s)?));
    }
    match s.at_once(machine) {
        Some(target) => {
            let scratch = s.scratch(target)?;
            let out = launch::nests(kernel, scratch.len() as u32, |f| s.nests(target, machine, f))?;
            Ok(Emitted { scratch: scratch.into_iter().chain(out.scratch).collect(), ..out })
        }
        None => {
            let steps = vec![copy(kernel, &s)?, in_order(&s, machine)?];
            Ok(Emitted { steps, ..Emitted::default() })
        }
    }
}

/// The input that the first step of a scatter copies to the result, if no other step reads it.
pub fn copied(body: &Graph, steps: &[Work<BlockProgram>]) -> Option<u32> {
    let scatter = body.outputs.iter().find(|v| matches!(body.op(**v), Op::Scatter { .. }))?;
    let operand = body.args(*scatter)[0];
    let slot = body.inputs.iter().position(|i| *i == operand)? as u32;
    let uses = |w: &Work<BlockProgram>, slot: Slot| matches!(w, Work::Block { args, .. } if args.contains(&slot));
    let (copy, rest) = steps.split_first()?;
    let copies = uses(copy, Slot::Input(slot)) && uses(copy, Slot::Output(0));
    (copies && !rest.iter().any(|w| uses(w, Slot::Input(slot)))).then_some(slot)
}

fn copy(kernel: &Lowering, s: &Scatter) -> Result<Work<BlockProgram>, LowerError> {
    let scene = |axes: &[Expr]| s.copied(axes, Slot::Output(0), s.dtype);
    launch::unnamed_points(&format!("{}_copy", kernel.name), &s.shape, &scene, kernel.machine, kernel.propose)
}

/// Lines over instances and lanes, each in the order of its indices.
fn in_order(scatter: &Scatter, machine: &Hardware) -> Result<Work<BlockProgram>, LowerError> {
    let mut space = Space::new(&scatter.walked, &vec![false; scatter.walked.len()]);
    let mut r = scatter.of.resolver();
    let (place, guards) = scatter.place(&mut r, &space.axes)?;
    let value = r.at(scatter.source, &space.axes, &[])?;
    let at = scatter.element(&space.axes, &place, &scatter.axes());
    let scene =
        Scene { dag: r.dag, stores: vec![Store::new(Slot::Output(0), scatter.dtype, at, value).within(guards)] };
    let axis = space.axes[scatter.axis].as_coord();
    let steps = scatter.walked[scatter.axis];
    space.coords.retain(|c| Some(c.id) != axis);
    let lines: usize = space.count();
    // Lanes are along the innermost axis of the indices, unless that is the scatter's.
    let inner = space.coords.last().filter(|c| space.axes.last().and_then(Expr::as_coord) == Some(c.id)).copied();
    let largest = match machine.arch.is_gpu() {
        // Several lanes are profitable only where they are contiguous.
        false if inner.is_some() => 1024,
        false => 1,
        true if lines < MIN_LINES && steps > MAX_LINE => {
            return Err(scatter.of.unsupported("a scatter along few long lines"));
        }
        true => 128,
    };
    let across = inner.or(space.coords.last().copied());
    let extent = across.map_or(1, |c| c.extent);
    let mut block = extent.next_power_of_two().min(largest);
    while block > MIN_LANES && extent.div_ceil(block) * (lines / extent) < MIN_INSTANCES {
        block /= 2;
    }
    let cut = |c: &crate::scalar::space::Coord| match Some(c.id) == across.map(|a| a.id) {
        true => Cut { id: c.id, extent: c.extent, block, axis: 0 },
        false => Cut::uniform(c.id, c.extent),
    };
    let cuts: Vec<Cut> = space.coords.iter().map(cut).collect();
    let shape = Shape { cuts, rank: 1, parts: 1, warps: block.div_ceil(32).max(1), blocks: 1, reversed: false };
    let mut f = open(&format!("{}_write", scatter.of.name), &scene, &shape, machine);
    let bounds = [0, steps as i64, 1].map(|n| f.b.i32(n));
    looped(&mut f, bounds, &[], |f, k, _| {
        if let Some(axis) = axis {
            let k = f.b.cast(k, f.em.index);
            f.em.coords.insert(axis, Lanes::uniform(k));
        }
        scene.stores.iter().for_each(|s| match scatter.mode {
            ScatterMode::Add => f.accumulate(s, held(scatter.dtype)),
            ScatterMode::Replace => f.store(s),
        });
        vec![]
    });
    f.finish()
}
