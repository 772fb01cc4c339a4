//! Lowers a kernel by its schedule: which family of programs computes it.
//!
//! Takes: a kernel and its schedule. Gives: its steps, verified, or why there are none by that schedule.
//! Never: chooses a schedule; those of launches that it states none for are proposed by [`ProposeSchedules`].
use crate::emit::{self, launch};
use crate::error::LowerError;
use crate::matmul::{conv, gemm, pairwise};
use crate::nest::lowering::{Lowering, ProposeSchedules};
use crate::nest::{self, reduction, scan, scatter};
use crate::scalar::composite;
use crate::scalar::resolve::Body;
use crate::{attention, handwritten, steps};
use kiln_block::Arithmetic;
use kiln_graph::{Graph, Op, ValueId};
use kiln_machine::Machine;
use kiln_plan::exec::{LibraryCall, Steps, Work};
use kiln_plan::matmul_schedule::MatmulSchedule;
use kiln_plan::{Contract, Hardware, Kernel, KernelKind, Rounding, Schedule, Step};

/// Calls `f` with the nests of a kernel that does not multiply, or as if it did not.
pub fn visit_nests(
    kernel: &Kernel,
    lowering: &Lowering,
    machine: &Hardware,
    f: &mut nest::Visit,
) -> Result<(), LowerError> {
    match kernel.kind {
        KernelKind::Scan => scan::visit_nests(lowering, machine, f),
        KernelKind::Scatter => scatter::visit_nests(lowering, machine, f),
        KernelKind::Conv => conv::visit_nests(lowering, machine, f),
        KernelKind::Fallback | KernelKind::Launch | KernelKind::Attention => Ok(()),
        _ => reduction::visit_nests(lowering, machine, f),
    }
}

pub fn lowering<'a>(
    kernel: &'a Kernel,
    decomposed: &'a composite::Decomposed,
    machine: &'a Hardware<'a>,
    propose: ProposeSchedules,
) -> Result<Lowering<'a>, LowerError> {
    let refuse = |why| LowerError::Unsupported { kernel: kernel.name.clone(), why };
    let multiply = match &kernel.schedule {
        Some(schedule) => MatmulSchedule::of(schedule).map_err(refuse)?,
        None => None,
    };
    let body = Body {
        name: &kernel.name,
        graph: &kernel.body,
        decomposed,
        matmul: None,
        second_output: None,
        rounding: kernel.rounding,
    };
    Ok(Lowering {
        body,
        machine,
        precision: kernel.precision,
        multiply,
        schedule: kernel.schedule.as_ref().filter(|s| multiply.is_none() && !s.only_launches()),
        kernel: (&kernel.name, kernel.schedule.as_ref()),
        bytes: kernel.cost.bytes(),
        propose,
    })
}

/// The machine, under the contract of a kernel.
pub fn with_contract<'a>(machine: &'a Machine, kernel: &Kernel) -> Hardware<'a> {
    Hardware { machine, contract: Contract { batch_invariant: kernel.batch_invariant, ..Contract::default() } }
}

/// What a kernel is lowered to.
pub struct Lowered {
    pub steps: Steps<kiln_block::BlockProgram>,
    /// The schedule that they follow if they multiply, and those of the launches beside.
    pub matmul_schedule: Option<MatmulSchedule>,
    pub launches: Vec<steps::Launched>,
}
impl Lowered {
    fn new(steps: Vec<Work<kiln_block::BlockProgram>>) -> Lowered {
        Lowered { steps: steps.into(), matmul_schedule: None, launches: vec![] }
    }
    /// The whole schedule of a kernel that multiplies.
    pub fn schedule(&self) -> Option<Schedule> {
        Some(self.with_launches(self.matmul_schedule?.schedule()))
    }
    /// A schedule with those of launches that it does not name.
    pub fn with_launches(&self, mut schedule: Schedule) -> Schedule {
        for l in &self.launches {
            if let Some(own) = l.schedules.first().filter(|_| !schedule.launches().any(|named| named.0 == l.name)) {
                schedule.steps.push(Step::Launch(l.name.clone(), own.clone()));
            }
        }
        schedule
    }
}

/// Lowers one kernel by its schedule. Without one a kernel does not multiply by tiles: its nests have their cheapest
/// schedules.
pub fn lower_scheduled(kernel: &Kernel, machine: &Hardware, propose: ProposeSchedules) -> Result<Lowered, LowerError> {
    let (name, body) = (kernel.name.as_str(), &kernel.body);
    let unsupported = |why: &str| LowerError::Unsupported { kernel: name.to_string(), why: why.to_string() };
    if kernel.kind == KernelKind::Fallback {
        let call = library_call(body).ok_or_else(|| unsupported("libtorch runs it"))?;
        return Ok(Lowered::new(vec![Work::Fallback(call)]));
    }
    if kernel.kind == KernelKind::Launch {
        let mut steps = handwritten::lower(kernel, machine)?;
        contract(&mut steps.steps, kernel, machine);
        return Ok(Lowered { steps, matmul_schedule: None, launches: vec![] });
    }
    if body.outputs.iter().all(|&v| body.ty(v).count() == 0) {
        return Ok(Lowered::new(vec![]));
    }
    let decomposed = composite::Decomposed::of(name, body)?;
    let of = lowering(kernel, &decomposed, machine, propose)?;
    let multiplies = matches!(kernel.kind, KernelKind::Gemm | KernelKind::Attention | KernelKind::Conv);
    if of.multiply.is_some() && !multiplies && kernel.kind != KernelKind::Reduction {
        return Err(unsupported("it has the schedule of a kernel that multiplies, and does not"));
    }
    if of.schedule.is_some() && kernel.kind == KernelKind::Attention {
        return Err(unsupported("the schedule has no step that multiplies"));
    }
    let steps::Emitted { scratch, mut steps, matmul_schedule: made, launches } = match kernel.kind {
        KernelKind::Reduction => match of.multiply {
            Some(MatmulSchedule::Matmul(asked)) => pairwise::lower(&of, machine, &asked)?,
            Some(_) => return Err(unsupported("it has the schedule of a kernel that multiplies, and does not")),
            None => launch::body(&of, 0)?,
        },
        KernelKind::Pool | KernelKind::Pointwise => launch::body(&of, 0)?,
        KernelKind::Scan => launch::nests(&of, 0, |f| scan::visit_nests(&of, machine, f))?,
        KernelKind::Gemm => gemm::lower(&of, machine)?,
        KernelKind::Attention => attention::lower(&of, machine)?,
        KernelKind::Conv => conv::lower(&of, machine)?,
        KernelKind::Scatter => emit::scatter::lower(&of, machine)?,
        KernelKind::Fallback | KernelKind::Launch => {
            return Err(unsupported("a kernel of one opaque op is lowered before"));
        }
    };
    if let (Some(asked), Some(made)) = (of.multiply, made)
        && let Some(why) = asked.differs(&made)
    {
        return Err(unsupported(&why));
    }
    let unknown = |asked: &&str| !launches.iter().any(|l| l.name == *asked);
    if let Some(name) = kernel.schedule.iter().flat_map(Schedule::launches).map(|l| l.0).find(unknown) {
        let all: Vec<&str> = launches.iter().map(|l| l.name.as_str()).collect();
        let all = if all.is_empty() { "none".to_string() } else { all.join(", ") };
        return Err(unsupported(&format!("`launch {name}` names no launch of the kernel; there are: {all}")));
    }
    contract(&mut steps, kernel, machine);
    check(name, &steps)?;
    let copied = if kernel.kind == KernelKind::Scatter { emit::scatter::copied(body, &steps) } else { None };
    Ok(Lowered { steps: Steps { scratch, steps, otherwise: None, copied }, matmul_schedule: made, launches })
}

/// Has programs round as the kernel's contract says, and small ones start early.
fn contract(steps: &mut [Work<kiln_block::BlockProgram>], kernel: &Kernel, machine: &Machine) {
    for step in steps {
        if let Work::Block { code, .. } = step {
            if kernel.rounding == Rounding::PerOp {
                code.arithmetic = Arithmetic::Ieee;
            }
            code.dependent = is_dependent(code, machine);
        }
    }
}

/// Whether a program is launched before the one ahead of it has ended: if it has few blocks.
fn is_dependent(code: &kiln_block::BlockProgram, machine: &Machine) -> bool {
    let most = machine.templates.dependent_blocks * machine.units.multiprocessors;
    machine.arch.has_dependent_launch() && code.instances().is_some_and(|n| n * code.blocks <= most)
}

/// The libtorch call of a fallback kernel, if its operands are the kernel's inputs and its outputs are distinct
/// results. The interpreter runs other bodies, and calls libtorch for the fallback in them.
fn library_call(body: &Graph) -> Option<LibraryCall> {
    let (call, op) = body.values().find_map(|v| match body.op(v) {
        Op::Fallback(f) => Some((v, (**f).clone())),
        _ => None,
    })?;
    let result = |v: &ValueId| match *body.op(*v) {
        _ if *v == call => Some(0),
        Op::Result(i) => Some(i as usize),
        _ => None,
    };
    let results: Vec<usize> = body.outputs.iter().map(result).collect::<Option<_>>()?;
    let once = results.iter().enumerate().all(|(i, r)| !results[..i].contains(r));
    let input = |v: &ValueId| body.inputs.iter().position(|i| i == v);
    let operands: Vec<usize> = body.args(call).iter().map(input).collect::<Option<_>>()?;
    once.then(|| LibraryCall { op, place: body.source(call).place(), operands, results })
}

/// Verifies every emitted program, in release builds too: it takes about a thirtieth of the compile time.
fn check(kernel: &str, steps: &[Work<kiln_block::BlockProgram>]) -> Result<(), LowerError> {
    for step in steps {
        // Only tensors that fit no machine have such a grid, so this is no broken invariant; allocating them reports
        // their size.
        if let Work::Block { code, .. } = step
            && let Err(why) = kiln_block::verify::grid(code.grid)
        {
            return Err(LowerError::Unsupported { kernel: kernel.to_string(), why });
        }
    }
    for step in steps {
        if let Work::Block { code, .. } = step
            && let Err(e) = kiln_block::verify::verify(code).and_then(|()| kiln_block::verify::offsets(code))
        {
            let what = format!("the emitted program is wrong: {e}");
            return Err(LowerError::Invariant { kernel: kernel.to_string(), what });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Planning numbers a kernel's inputs by where they are computed, which need not be the order of the operands.
    #[test]
    fn operands_of_a_library_call_are_inputs_in_any_order() {
        let call = |operands: &str| {
            let text = format!(
                "graph g(%0: f32[4], %1: f32[4]) {{\n  %2 = fallback {operands} name=\"aten::kron\" overload=\"\" \
                 args=\"[{{\\\"tensor\\\":0}},{{\\\"tensor\\\":1}}]\" results=[f32[16]] why=\"test\" : f32[16]\n  \
                 return %2\n}}"
            );
            library_call(&text.parse().expect("a graph")).map(|c| (c.operands, c.results))
        };
        assert_eq!(call("%0, %1"), Some((vec![0, 1], vec![0])));
        assert_eq!(call("%1, %0"), Some((vec![1, 0], vec![0])));
    }
}
