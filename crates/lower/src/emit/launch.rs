//! Launches of nests: executes the steps of a [`Schedule`] on a [`Nest`] and emits its programs.
//!
//! Takes: a nest and its schedule: the one that the plan states, or the first that selection proposes. Gives: the steps
//! of a kernel, or a refusal that names the schedule's step and why it does not fit. Never: lists or compares
//! schedules.
use crate::emit::frame::open;
use crate::emit::row_program::{ClearedBuffer, RowLoop, RowProgram};
use crate::emit::{staged_operands, wide_rows};
use crate::error::LowerError;
use crate::nest::lowering::{Lowering, ProposeSchedules, Stated};
use crate::nest::{Nest, Visit, pointwise, reduction};
use crate::scalar::dag::{Dag, NodeOp, Scene, Store};
use crate::scalar::expr::Expr;
use crate::schedule::apply::row_plan;
use crate::schedule::tile::{Shape, refusal, shapes, tile};
use crate::schedule::unroll;
use crate::steps::{Emitted, Launched, limit_registers};
use kiln_block::BlockProgram;
use kiln_graph::{DType, Scalar};
use kiln_plan::exec::Work;
use kiln_plan::{Hardware, Schedule, Step};

/// The launches of a body without a matmul: a row program, or points. `scratch` is the number of the first free scratch
/// buffer.
pub fn body(kernel: &Lowering, scratch: u32) -> Result<Emitted, LowerError> {
    nests(kernel, scratch, |f| reduction::visit_nests(kernel, kernel.machine, f))
}

/// The launches of the nests that `visit` visits.
pub fn nests<'b>(
    kernel: &'b Lowering,
    scratch: u32,
    visit: impl FnOnce(&mut Visit) -> Result<(), LowerError> + 'b,
) -> Result<Emitted, LowerError> {
    let mut out = Emitted::default();
    visit(&mut |found| {
        let next = scratch + out.scratch.len() as u32;
        out = std::mem::take(&mut out).then(nest(kernel, found, next)?);
        Ok(())
    })?;
    Ok(out)
}

/// The launch of a nest by the schedule that the plan states, or else by the first that is proposed.
pub fn nest(kernel: &Lowering, nest: &Nest, scratch: u32) -> Result<Emitted, LowerError> {
    let schedules = match kernel.stated(nest) {
        Some(Stated::Main(schedule)) => return run(nest, &schedule, scratch, kernel.propose),
        Some(Stated::Launch(schedule)) => vec![schedule],
        None => (kernel.propose)(nest)?,
    };
    let mut out = run(nest, first(nest, &schedules)?, scratch, kernel.propose)?;
    out.launches.push(Launched { name: kernel.launch(nest.name), schedules });
    Ok(out)
}

/// A launch over the points of `shape` before a matmul, whose schedule may be part of the kernel's.
pub fn points<F>(kernel: &Lowering, what: &str, shape: &[usize], scene: &F) -> Result<Emitted, LowerError>
where
    F: Fn(&[Expr]) -> Result<Scene, LowerError>,
{
    let name = format!("{}_{what}", kernel.name);
    pointwise::of_points(&name, shape, scene, kernel.machine, |found| nest(kernel, &found, 0))
}

/// A launch over the points of `shape` that no schedule names.
pub fn unnamed_points<F>(
    name: &str,
    shape: &[usize],
    scene: &F,
    machine: &Hardware,
    propose: ProposeSchedules,
) -> Result<Work<BlockProgram>, LowerError>
where
    F: Fn(&[Expr]) -> Result<Scene, LowerError>,
{
    let emit = |nest: Nest| run(&nest, first(&nest, &propose(&nest)?)?, 0, propose);
    let step = pointwise::of_points(name, shape, scene, machine, emit)?.steps.pop();
    step.ok_or_else(|| LowerError::Invariant { kernel: name.to_string(), what: "points without a step".into() })
}

/// The launch that clears a buffer.
fn clear(nest: &Nest, buffer: ClearedBuffer, propose: ProposeSchedules) -> Result<Work<BlockProgram>, LowerError> {
    let scene = |axes: &[Expr]| {
        let mut dag = Dag::default();
        let value = dag.add(NodeOp::Const(Scalar::Int(0)), DType::I64);
        Ok(Scene { dag, stores: vec![Store::new(buffer.slot, DType::I64, axes[0].clone(), value)] })
    };
    unnamed_points(&format!("{}_clear", nest.name), &[buffer.words], &scene, nest.machine, propose)
}

fn first<'s>(nest: &Nest, schedules: &'s [Schedule]) -> Result<&'s Schedule, LowerError> {
    let none = || LowerError::Unsupported { kernel: nest.name.to_string(), why: "no schedule fits it".into() };
    schedules.first().ok_or_else(none)
}

/// The steps of a nest by a schedule. `scratch` is the number of the first free scratch buffer; `propose` gives the
/// schedules of launches that only clear a buffer.
pub fn run(nest: &Nest, schedule: &Schedule, scratch: u32, propose: ProposeSchedules) -> Result<Emitted, LowerError> {
    if let Some(Step::Widen(axis, rows)) = schedule.steps.first() {
        let rest = schedule.steps[1..].iter().cloned().collect();
        return wide_rows::run(nest, (*axis, *rows), &rest, scratch);
    }
    if let Some(Step::Unroll(axis, count)) = schedule.steps.first() {
        let rest = schedule.steps[1..].iter().cloned().collect();
        return run(&unroll::unrolled(nest, (*axis, *count))?, &rest, scratch, propose);
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
        let mut step = emit_points(nest, &scene, &shape)?;
        limit_registers(&mut step, registers);
        if let Work::Block { code, .. } = &mut step {
            code.vector = vector;
        }
        return Ok(Emitted::step(step));
    }
    let plan = row_plan(nest, schedule, &mut tiled)?;
    let (registers, lanes) = (tiled.registers, tiled.lanes);
    let mut scene = (*tiled.scene).clone();
    let mut out = staged_operands::copied(nest.name, &plan, &mut scene, scratch);
    let alone = nest.machine.contract.batch_invariant && plan.kept.iter().all(|c| c.extent == 1);
    let row = plan.row.extent;
    let free = scratch + out.scratch.len() as u32;
    let RowProgram { mut emitted, cleared } = RowLoop::new(nest.name, &scene, plan, free).emit()?;
    let clears = cleared.into_iter().map(|buffer| clear(nest, buffer, propose)).collect::<Result<Vec<_>, _>>()?;
    emitted.steps.splice(0..0, clears);
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

fn emit_points(nest: &Nest, scene: &Scene, shape: &Shape) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
    let mut frame = open(nest.name, scene, shape, nest.machine);
    scene.stores.iter().for_each(|s| frame.store(s));
    frame.finish()
}

/// For batch invariance: lowers the alignment of the buffers of a single row to what every row of its length has. The
/// lane layout follows from the alignment, and must be that of several rows.
fn forget_alignment(step: &mut Work<kiln_block::BlockProgram>, row: usize) {
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
