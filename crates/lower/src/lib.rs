//! Lowers kernels of a plan to block programs, one module per kernel family.
//!
//! Takes: a kernel of a plan. Gives: its steps, which are block programs and library calls.
//! Never decides which kernels exist (the plan does), nor layouts of registers and threads (code generation does).
//!
//! A body first becomes a *scalar program* ([`resolve`]): how one element of each output is computed, with every view
//! folded into index expressions ([`expr`]). Its iteration space is split and merged until index expressions are affine
//! ([`space`]), a schedule cuts it into tiles ([`tile`], [`pointwise`], …), and [`emit`] writes the block instructions.
mod attention;
mod candidates;
mod composite;
mod conv;
mod dag;
mod emit;
mod error;
mod expr;
pub mod facts;
mod flash;
mod frame;
mod gemm;
mod host;
mod host_schedule;
mod invert;
mod key_end;
mod launch;
mod library;
mod look_back;
mod lowering;
mod mask_value;
mod math;
mod matmul;
mod multi_row;
mod multiply;
mod nest;
mod pairwise;
mod passes;
mod peel;
mod placed;
mod pointwise;
mod prefetch;
pub mod price;
mod propose;
mod reduction;
mod replicate;
mod resolve;
mod reverse;
mod row;
mod row_loop;
mod row_plan;
mod run;
mod scan;
mod scatter;
mod scatter_steps;
mod scores;
mod space;
mod split_reduce;
mod stage_operands;
mod steps;
mod tail;
mod tiled;
mod types;
mod unroll;
mod warpgroup;
mod wide_rows;
mod widen;
mod window;

pub use candidates::{Chosen, PROGRAMS, Scheduled, chosen, fits, neighbours, priced, relaunched, scheduled, schedules};
pub use error::LowerError;
use error::unsupported_as_none;

use kiln_block::Arithmetic;
use kiln_graph::{Graph, Op, ValueId};
use kiln_machine::{Arch, Machine};
use kiln_plan::{
    Contract, Hardware, Kernel, KernelKind, Rounding, Schedule, Step,
    exec::{LibraryCall, Steps, Work},
};
use lowering::Lowering;
use multiply::Multiply;
use resolve::Body;

/// Calls `f` with the nests of a kernel that does not multiply, or as if it did not.
fn nests(kernel: &Kernel, of: &Lowering, machine: &Hardware, f: &mut nest::Visit) -> Result<(), LowerError> {
    match kernel.kind {
        KernelKind::Scan => scan::each(of, machine, f),
        KernelKind::Scatter => scatter::each(of, machine, f),
        KernelKind::Conv => conv::each(of, machine, f),
        KernelKind::Fallback | KernelKind::Attention => Ok(()),
        _ => reduction::each(of, machine, f),
    }
}

fn lowering<'a>(
    kernel: &'a Kernel,
    decomposed: &'a composite::Decomposed,
    machine: &'a Hardware<'a>,
) -> Result<Lowering<'a>, LowerError> {
    let refuse = |why| LowerError::Unsupported { kernel: kernel.name.clone(), why };
    let multiply = match &kernel.schedule {
        Some(schedule) => Multiply::of(schedule).map_err(refuse)?,
        None => None,
    };
    let body = Body {
        name: &kernel.name,
        graph: &kernel.body,
        decomposed,
        matmul: None,
        dual: None,
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
        propose: propose::schedules_of,
    })
}

/// Lowers one kernel for the default machine of a target.
pub fn lower(kernel: &Kernel, arch: Arch) -> Result<Steps<kiln_block::Kernel>, LowerError> {
    lower_at(kernel, arch.machine())
}

/// Lowers one kernel. On the host: loops over blocks that fit the L1 cache, and library matmuls. On a GPU: block
/// programs whose sizes follow from the machine. Steps that call a GPU's library come with alternative steps without it
/// (`otherwise`).
pub fn lower_at(kernel: &Kernel, machine: &Machine) -> Result<Steps<kiln_block::Kernel>, LowerError> {
    lowered(kernel, machine).map(|found| found.steps)
}

/// The same, with the schedule that the steps follow if they multiply.
fn lowered(kernel: &Kernel, machine: &Machine) -> Result<Lowered, LowerError> {
    let by = |schedule| Kernel { schedule, ..kernel.clone() };
    let mut found = match &kernel.schedule {
        Some(_) => own(kernel, &under(machine, kernel))?,
        None => candidates::cheapest(kernel, machine, |_| true)?.0,
    };
    if machine.arch.is_gpu() && found.made == Some(Multiply::Library) {
        let without = candidates::cheapest(&by(None), machine, |m| *m != Multiply::Library);
        found.steps.otherwise = unsupported_as_none(without)?.map(|own| Box::new(own.0.steps));
    }
    Ok(found)
}

/// The machine, under the contract of a kernel.
fn under<'a>(machine: &'a Machine, kernel: &Kernel) -> Hardware<'a> {
    Hardware { machine, contract: Contract { batch_invariant: kernel.batch_invariant, ..Contract::default() } }
}

/// What a kernel is lowered to.
struct Lowered {
    steps: Steps<kiln_block::Kernel>,
    /// The schedule that they follow if they multiply, and those of the launches beside.
    made: Option<Multiply>,
    launches: Vec<steps::Launched>,
}
impl Lowered {
    fn new(steps: Vec<Work<kiln_block::Kernel>>) -> Lowered {
        Lowered { steps: steps.into(), made: None, launches: vec![] }
    }
    /// The whole schedule of a kernel that multiplies.
    fn schedule(&self) -> Option<Schedule> {
        Some(self.with_launches(self.made?.schedule()))
    }
    /// A schedule with those of launches that it does not name.
    fn with_launches(&self, mut schedule: Schedule) -> Schedule {
        for l in &self.launches {
            if let Some(own) = l.schedules.first().filter(|_| !schedule.launches().any(|named| named.0 == l.name)) {
                schedule.steps.push(Step::Launch(l.name.clone(), own.clone()));
            }
        }
        schedule
    }
}

/// Lowers one kernel by its schedule. Without one a kernel does not multiply by tiles: its nests have their cheapest schedules.
fn own(kernel: &Kernel, machine: &Hardware) -> Result<Lowered, LowerError> {
    let (name, body) = (kernel.name.as_str(), &kernel.body);
    let unsupported = |why: &str| LowerError::Unsupported { kernel: name.to_string(), why: why.to_string() };
    if kernel.kind == KernelKind::Fallback {
        let call = library_call(body).ok_or_else(|| unsupported("libtorch runs it"))?;
        return Ok(Lowered::new(vec![Work::Fallback(call)]));
    }
    if body.outputs.iter().all(|&v| body.ty(v).count() == 0) {
        return Ok(Lowered::new(vec![]));
    }
    let decomposed = composite::Decomposed::of(name, body)?;
    let of = lowering(kernel, &decomposed, machine)?;
    let multiplies = matches!(kernel.kind, KernelKind::Gemm | KernelKind::Attention | KernelKind::Conv);
    if of.multiply.is_some() && !multiplies && kernel.kind != KernelKind::Reduction {
        return Err(unsupported("it has the schedule of a kernel that multiplies, and does not"));
    }
    if of.schedule.is_some() && kernel.kind == KernelKind::Attention {
        return Err(unsupported("the schedule has no step that multiplies"));
    }
    let steps::Emitted { scratch, mut steps, made, launches } = match kernel.kind {
        KernelKind::Reduction => match of.multiply {
            Some(Multiply::Matmul(asked)) => pairwise::lower(&of, machine, &asked)?,
            Some(_) => return Err(unsupported("it has the schedule of a kernel that multiplies, and does not")),
            None => launch::body(&of, 0)?,
        },
        KernelKind::Pool | KernelKind::Pointwise => launch::body(&of, 0)?,
        KernelKind::Scan => launch::nests(&of, 0, |f| scan::each(&of, machine, f))?,
        KernelKind::Gemm => gemm::lower(&of, machine)?,
        KernelKind::Attention => attention::lower(&of, machine)?,
        KernelKind::Conv => conv::lower(&of, machine)?,
        KernelKind::Scatter => scatter_steps::lower(&of, machine)?,
        KernelKind::Fallback => return Err(unsupported("a fallback kernel without a fallback op")),
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
    for step in &mut steps {
        if let Work::Block { code, .. } = step {
            if kernel.rounding == Rounding::PerOp {
                code.arithmetic = Arithmetic::Ieee;
            }
            code.dependent = is_dependent(code, machine);
        }
    }
    check(name, &steps)?;
    let copied = if kernel.kind == KernelKind::Scatter { scatter_steps::copied(body, &steps) } else { None };
    Ok(Lowered { steps: Steps { scratch, steps, otherwise: None, copied }, made, launches })
}

/// Whether a program is launched before the one ahead of it has ended: if it has few blocks.
fn is_dependent(code: &kiln_block::Kernel, machine: &Machine) -> bool {
    let blocks = code.grid.iter().product::<usize>() * code.blocks;
    machine.arch.has_dependent_launch() && blocks <= machine.templates.dependent_blocks * machine.units.multiprocessors
}

/// The libtorch call of a fallback kernel, if its operands are the kernel's inputs and its outputs are distinct results. The interpreter runs other bodies, and calls libtorch for the fallback in them.
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
fn check(kernel: &str, steps: &[Work<kiln_block::Kernel>]) -> Result<(), LowerError> {
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
                 args=\"[{{\\\"tensor\\\":0}},{{\\\"tensor\\\":1}}]\" results=[f32[16]] why=\"test\" : f32[16]\n  return %2\n}}"
            );
            library_call(&text.parse().expect("a graph")).map(|c| (c.operands, c.results))
        };
        assert_eq!(call("%0, %1"), Some((vec![0, 1], vec![0])));
        assert_eq!(call("%1, %0"), Some((vec![1, 0], vec![0])));
    }
}
