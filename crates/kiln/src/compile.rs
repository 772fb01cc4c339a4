//! The whole pipeline, in order: graph → plan → block programs → code → session. Takes a model and options, gives a
//! [`Compiled`].
//!
//! Block programs that are equal except for their names are compiled once, so repeated layers cost one compilation.
//! Plans and code are kept on disk for other processes ([`crate::cache`]). To keep a compiled model, write an artifact,
//! which records what it was made from and so cannot become stale.
pub(crate) mod codes;
mod devices;
mod passed;
mod planning;

pub(crate) use codes::CodeCache;
pub use devices::{cuda_capability, device_name, gpu_machine, gpu_name, open_device, with_facts};
pub use planning::plan;
pub(crate) use planning::{Schedules, not_planned, plan_under, unscheduled};
use planning::{alike, no_schedule, take};

use crate::{
    Error, Model, cache::Cache, constraints::Constraints, cubin::Cubins, error::Cause, measurements::Measurements,
    torch, workers,
};
use codes::{Generated, Programs, has_failed, lower, used};
use kiln_block::BlockProgram as Program;
use kiln_codegen::{host, nvptx};
pub use kiln_graph::{FallbackOp, fallback::collective::is_collective};
use kiln_graph::{Graph, Op, Tensor, ValueId};
use kiln_interp::graph::InterpError;
use kiln_lower::LowerError;
pub use kiln_machine::Arch as Target;
use kiln_machine::Machine;
use kiln_plan::{
    Contract, Plan,
    exec::{BodyGraph, Steps, Work},
};
pub use kiln_runtime::{Callbacks, DeviceTensor, Refused};
use kiln_runtime::{Code, Cubin, Device, Executable, InputSpec, Ptx, Session};
use kiln_torch_host::Memory;
use serde::Serialize;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Where a compiled model runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DeviceKind {
    /// The host's cores.
    #[default]
    Cpu,
    /// The n-th CUDA device.
    Cuda(usize),
}
impl std::str::FromStr for DeviceKind {
    type Err = Error;
    /// `cpu`, `cuda` (the first GPU) or `cuda:1`; PyTorch also writes `cpu:0`.
    fn from_str(name: &str) -> Result<DeviceKind, Error> {
        let index = name.strip_prefix("cuda:").map_or((name == "cuda").then_some(0), |n| n.parse().ok());
        let known = if matches!(name, "cpu" | "cpu:0") { Some(DeviceKind::Cpu) } else { index.map(DeviceKind::Cuda) };
        known.ok_or_else(|| Error::usage(format!("there is no device `{name}`"), "give cpu, cuda or cuda:0"))
    }
}

/// What a model is compiled for, and under which contract and constraints.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// What code is generated for.
    pub target: Target,
    /// `false`: one kernel per op, as a framework runs them.
    pub fuse: bool,
    /// How results may differ from the graph as written.
    pub contract: Contract,
    /// What must or must not be fused.
    pub constraints: Constraints,
    /// Measurements from which kernels take their schedules.
    pub tuned: Option<Measurements>,
    /// The machine description that the cost model uses; `None`: the target's default.
    pub machine: Option<Machine>,
    /// Whether machine code in an artifact is trusted. It then runs as it is, where it was made from the PTX that is
    /// generated here and for the device's architecture. Nothing can tell whether it computes what that PTX says: trust
    /// those who wrote the file.
    pub machine_code: bool,
    /// Whether plans and code are taken from the cache on disk, and kept there ([`Cache::standard`]).
    pub cache: bool,
}
impl CompileOptions {
    /// The cache that they say.
    pub(crate) fn cache(&self) -> Option<&'static Cache> {
        if self.cache { Cache::standard() } else { None }
    }
    /// The machine that plans and code are made for.
    pub fn machine(&self) -> &Machine {
        self.machine.as_ref().unwrap_or_else(|| self.target.machine())
    }
    /// These options for a device: its target, and the description of its machine. They stay as they are if they are
    /// for that target, as those of an artifact may be.
    ///
    /// # Errors
    /// If the device cannot be opened, or is older than what Kiln compiles for.
    pub fn on(self, device: DeviceKind) -> Result<CompileOptions, Error> {
        let (target, machine) = match device {
            DeviceKind::Cpu => (Target::Cpu, None),
            DeviceKind::Cuda(index) => gpu_machine(index)?,
        };
        Ok(if self.target == target { self } else { CompileOptions { target, machine, ..self } })
    }
    /// Fails if the machine description is for another target.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let (machine, target) = (self.machine(), self.target);
        if machine.arch == target {
            return Ok(());
        }
        Err(Error::usage(
            format!("the machine description {} is for {}, but the target is {target}", machine.name, machine.arch),
            format!("give --target {}, or another machine description", machine.arch),
        ))
    }
}
impl Default for CompileOptions {
    fn default() -> CompileOptions {
        CompileOptions {
            target: Target::Cpu,
            fuse: true,
            contract: Contract::default(),
            constraints: Constraints::default(),
            tuned: None,
            machine: None,
            machine_code: false,
            cache: true,
        }
    }
}

/// Seconds spent in each stage.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Timings {
    /// Reading or importing the model.
    pub import_s: f64,
    /// Planning: saturation, extraction, choice of kernels.
    pub rewrite_s: f64,
    /// Lowering kernels to block programs.
    pub lower_s: f64,
    /// Generating code from block programs. For a GPU that is open already, also its driver's assembly of PTX, which
    /// goes on at the same time.
    pub codegen_s: f64,
    /// Planning, lowering and code generation together.
    pub compile_s: f64,
    /// Of the stage `codegen_s`, the seconds of all threads together that generated code.
    pub generating_s: f64,
    /// The same of the driver's assembly.
    pub assembling_s: f64,
    /// Loading: memory, weights that are folded or packed, and assembly that was not done before.
    pub load_s: f64,
}

/// Index of a distinct block program.
pub type ProgramId = usize;

/// A compiled model, as data; a session runs it.
pub struct Compiled {
    /// The imported graph.
    pub graph: Graph,
    /// Weights, in the order of the graph's parameters.
    pub params: Vec<Tensor>,
    /// The options it was compiled with.
    pub options: CompileOptions,
    /// Its kernels and buffers.
    pub plan: Plan,
    /// For each kernel of the plan, its launches and library calls.
    pub steps: Vec<Steps<ProgramId>>,
    /// Distinct block programs; kernels that differ only in their names share one.
    pub programs: Vec<Program>,
    /// Code of the block programs.
    pub code: CompiledCode,
    /// Machine code that GPUs of the target load in place of PTX.
    pub cubins: Cubins,
    /// Seconds spent in each stage.
    pub timings: Timings,
}

/// Code of block programs.
pub enum CompiledCode {
    /// For each program, its module and its index in that module.
    Host(Vec<(Arc<host::HostModule>, usize)>),
    /// One for each program.
    Ptx(Vec<nvptx::Ptx>),
}

/// Compiles a model.
pub fn compile(model: &Model, options: &CompileOptions) -> Result<Compiled, Error> {
    compile_with(model, options, &CodeCache::default())
}
/// The same. Block programs whose code is in `codes` are not compiled again; new code is added.
pub(crate) fn compile_with(model: &Model, options: &CompileOptions, codes: &CodeCache) -> Result<Compiled, Error> {
    let start = Instant::now();
    let plan = plan(model, options)?;
    let planned = start.elapsed();
    let mut compiled = from_plan_with(model, plan, options, codes)?;
    compiled.timings.import_s = model.import_s;
    compiled.timings.rewrite_s = planned.as_secs_f64();
    compiled.timings.compile_s = start.elapsed().as_secs_f64();
    Ok(compiled)
}

/// The error for a compiler bug found while lowering. The kernel is not interpreted instead, since the plan may be
/// wrong too.
pub(crate) fn not_lowered(defect: LowerError) -> Error {
    Error::caused(defect.to_string(), "run with --unfused until it is fixed", defect)
}
/// The same for bugs found after lowering.
fn defect<E: Into<Cause> + std::fmt::Display>(e: E) -> Error {
    Error::caused(
        format!("{e}; this is a defect of Kiln: please report it with the model"),
        "run with --unfused until it is fixed",
        e,
    )
}

/// Lowers a plan and generates its code.
///
/// # Errors
/// If the options contradict each other, or a kernel meets a defect of lowering or code generation.
pub fn from_plan(model: &Model, plan: Plan, options: &CompileOptions) -> Result<Compiled, Error> {
    from_plan_with(model, plan, options, &CodeCache::default())
}

/// As [`compile_with`], from a plan.
pub(crate) fn from_plan_with(
    model: &Model,
    mut plan: Plan,
    options: &CompileOptions,
    codes: &CodeCache,
) -> Result<Compiled, Error> {
    options.check()?;
    let start = Instant::now();
    let mut programs = Programs::default();
    let alike = alike(&plan.kernels);
    let shared = workers::map(&alike, |all| lower(&plan.kernels[all[0]], options.machine()));
    let mut steps: Vec<Option<Steps<ProgramId>>> = plan.kernels.iter().map(|_| None).collect();
    for (all, lowered) in alike.into_iter().zip(shared) {
        let lowered = lowered?.map(|p| Ok::<_, Error>(programs.add(p)))?;
        // What has no code names its own operators where it fails.
        let is_code = lowered.steps.iter().all(|w| matches!(w, Work::Block { .. } | Work::Gemm(_)));
        for &other in &all[1..] {
            steps[other] = Some(match is_code {
                true => lowered.clone(),
                false => lower(&plan.kernels[other], options.machine())?.map(|p| Ok::<_, Error>(programs.add(p)))?,
            });
        }
        steps[all[0]] = Some(lowered);
    }
    // Each kernel is like itself.
    let mut steps: Vec<Steps<ProgramId>> = steps.into_iter().flatten().collect();
    programs.canonicalise()?;
    let lowered = start.elapsed();
    let Generated { code, failed, spent } = codes.generate(&programs, &used(&steps), options)?;
    let failure = |steps: &Steps<ProgramId>| {
        steps.steps.iter().find_map(|w| match w {
            Work::Block { code, .. } => failed.get(code).cloned(),
            _ => None,
        })
    };
    // A schedule that code generation does not support is replaced by the cheapest one that it does.
    let without_code: Vec<usize> = (0..steps.len()).filter(|i| failure(&steps[*i]).is_some()).collect();
    for &i in &without_code {
        let k = &plan.kernels[i];
        if let (true, Some(why)) = (k.schedule.as_ref().is_some_and(|s| options.constraints.ask(s)), failure(&steps[i]))
        {
            return Err(no_schedule(&plan.name, k, &why));
        }
    }
    let others = without_code.into_iter().map(|i| Ok((i, another(&plan.kernels[i], options, codes)?)));
    let others: Vec<(usize, Option<kiln_lower::Chosen>)> = others.collect::<Result<_, Error>>()?;
    if others.iter().any(|o| o.1.is_some()) {
        for (i, other) in others {
            if let Some(other) = other {
                take(&mut plan.kernels[i], other);
            }
        }
        return from_plan_with(model, plan, options, codes);
    }
    // Kernels that code generation does not support are interpreted; `explain` lists them.
    for (kernel, steps) in plan.kernels.iter().zip(&mut steps) {
        steps.otherwise = steps.otherwise.take().filter(|o| !o.steps.iter().any(|w| has_failed(w, &failed)));
        let why = failure(steps);
        if let Some(why) = why {
            *steps = interpreted(kernel, why);
        }
    }
    let seconds = |d: Duration| d.as_secs_f64();
    let timings = Timings { lower_s: seconds(lowered), codegen_s: seconds(start.elapsed() - lowered), ..spent };
    Ok(Compiled {
        graph: model.graph.clone(),
        params: model.params.clone(),
        options: options.clone(),
        plan,
        steps,
        programs: programs.list,
        code,
        cubins: Cubins::default(),
        timings,
    })
}

/// The cheapest other schedule of a kernel that code generation supports, if there is one.
fn another(
    kernel: &kiln_plan::Kernel,
    options: &CompileOptions,
    codes: &CodeCache,
) -> Result<Option<kiln_lower::Chosen>, Error> {
    /// Most schedules that are tried.
    const MOST: usize = 64;
    let Some(refused) = &kernel.schedule else { return Ok(None) };
    let machine = options.machine();
    let all = kiln_lower::schedules(kernel, machine).map_err(not_lowered)?;
    for (schedule, price) in all.into_iter().take(MOST) {
        if schedule == *refused || schedule == refused.main() || kiln_lower::fits(kernel, machine, &schedule).is_err() {
            continue;
        }
        let scheduled = kiln_plan::Kernel { schedule: Some(schedule), ..kernel.clone() };
        let mut programs = Programs::default();
        let steps = lower(&scheduled, machine)?.map(|p| Ok::<_, Error>(programs.add(p)))?;
        programs.canonicalise()?;
        if codes.generate(&programs, &used(std::slice::from_ref(&steps)), options)?.failed.is_empty() {
            // A schedule without a price, as on the host, has 0.
            let us = (price.us > 0.0).then_some(price.us);
            let form = scheduled.schedule.as_ref().and_then(|s| scheduled.form_of(s));
            return Ok(Some(kiln_lower::Chosen { form, schedule: scheduled.schedule, us }));
        }
    }
    Ok(None)
}

fn interpreted<K>(kernel: &kiln_plan::Kernel, why: String) -> Steps<K> {
    let body = Box::new(BodyGraph(kernel.body.clone()));
    vec![Work::Interpret { body, why }].into()
}

impl Compiled {
    /// The form that the runtime loads.
    pub fn executable(&self) -> Executable {
        let code = |id: ProgramId| match &self.code {
            CompiledCode::Host(list) => {
                let (module, n) = &list[id];
                // A kernel without code is interpreted, so this placeholder is never called.
                let f = module.function(*n).unwrap_or(nothing);
                let instances = self.programs[id].instances().unwrap_or_default() as u64;
                Code::Host { f, instances, keep: module.clone() }
            }
            CompiledCode::Ptx(list) => Code::Ptx(loadable(&list[id], self.cubins.of(&list[id].text))),
        };
        let steps = self.steps.iter().cloned().map(|steps| {
            let Ok(steps) = steps.map(|id| Ok::<_, std::convert::Infallible>(code(id)));
            steps
        });
        let input = |v: &kiln_graph::ValueId| InputSpec { name: String::new(), ty: self.graph.ty(*v).clone() };
        Executable::new(&self.plan, self.graph.inputs.iter().map(input).collect(), steps.collect())
    }
    /// Has `ptxas` assemble its PTX, for an artifact that a GPU loads without compiling it.
    ///
    /// # Errors
    /// As [`Cubins::assemble`].
    pub fn assemble(&mut self) -> Result<(), Error> {
        let texts: &[nvptx::Ptx] = if let CompiledCode::Ptx(list) = &self.code { list } else { &[] };
        self.cubins = Cubins::assemble(texts.iter().map(|p| p.text.as_str()), self.options.target)?;
        Ok(())
    }
    /// A session on the target's default device: the CPU with all cores, or the first GPU.
    pub fn session(&self) -> Result<Session, Error> {
        match self.options.target {
            Target::Cpu => self.session_on(DeviceKind::Cpu, None),
            _ => self.session_on(DeviceKind::Cuda(0), None),
        }
    }
    /// A session on `device`; `threads` for the host (default: all cores).
    pub fn session_on(&self, device: DeviceKind, threads: Option<usize>) -> Result<Session, Error> {
        self.session_in(&open_device(device, threads)?)
    }
    /// A session on a device that is open already.
    pub fn session_in(&self, device: &Device) -> Result<Session, Error> {
        Session::new(device, self.executable(), self.params.clone(), Arc::new(Reference)).map_err(Error::from)
    }
}

/// A program in the runtime's form.
pub(crate) fn loadable(p: &nvptx::Ptx, cubin: Option<Cubin>) -> Ptx {
    Ptx {
        entry: p.name.clone(),
        text: p.text.as_str().into(),
        cubin,
        // Launches of a program whose grid they give do without.
        grid: p.grid.constant().unwrap_or_default(),
        threads: p.threads,
        shared: p.shared,
        cluster: p.cluster,
        passed: passed::passed(&p.args),
    }
}

unsafe extern "C" fn nothing(_: *const *mut u8, _: u64, _: u64) {}

/// The interpreter's error; an index out of range is reported in the same words as by compiled kernels.
fn refused(body: &Graph, e: InterpError) -> Refused {
    let indexed = |v: ValueId| matches!(body.op(v), Op::Gather { .. } | Op::Take { .. } | Op::Scatter { .. });
    match e {
        InterpError::Op { value, op, place, what } if indexed(value) && what.starts_with("index ") => {
            Refused::Index(format!("{op}{place}: {what}"))
        }
        e => Refused::Op(e.to_string()),
    }
}

/// Interprets a kernel's body; `callbacks` run the fallbacks in it.
pub fn interpret(callbacks: &dyn Callbacks, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
    let mut fallback = |op: &FallbackOp, args: &[Tensor]| callbacks.fallback(op, args).map_err(Refused::into_words);
    kiln_interp::graph::run(body, args, &[], &mut fallback).map_err(|e| refused(body, e))
}

/// Runs what has no code: libtorch runs fallback ops, the graph interpreter runs kernels without code. Collectives are
/// refused: a process that runs an archive belongs to no process group.
pub struct Reference;
impl Callbacks for Reference {
    fn fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        if is_collective(&op.name) {
            let what =
                format!("{} exchanges tensors with other processes, and this process is in no group of them", op.name);
            return Err(Refused::Missing(format!(
                "{what}; run the model from Python under torchrun, with torch.compile"
            )));
        }
        let missing = |e: Error| Refused::Missing(format!("{} needs libtorch: {e}; {}", op.name, e.help()));
        torch::torch().map_err(missing)?.run_fallback(op, args).map_err(|e| Refused::Op(e.to_string()))
    }
    fn interpret(&self, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        interpret(self, body, args)
    }
    fn fallback_in_place(
        &self,
        op: &FallbackOp,
        args: &[DeviceTensor],
        results: &[DeviceTensor],
        cuda: Option<usize>,
    ) -> Option<()> {
        if is_collective(&op.name) {
            return None;
        }
        let torch = torch::torch().ok().filter(|t| cuda.is_none() || t.has_cuda())?;
        let device = match cuda {
            Some(index) => kiln_torch_host::Device::Cuda(u32::try_from(index).ok()?),
            None => kiln_torch_host::Device::Cpu,
        };
        let memory = |t: &DeviceTensor| Memory { ptr: t.address as *mut _, ty: t.ty.clone() };
        let (args, outs): (Vec<Memory>, Vec<Memory>) =
            (args.iter().map(memory).collect(), results.iter().map(memory).collect());
        // SAFETY: these are the runtime's buffers, dense and of these types; results have buffers of their own, and
        // operands are complete. If this call fails, the runtime tries again on copies, and that attempt reports the
        // reason.
        unsafe { torch.run_fallback_on(op, &args, &outs, device) }.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The error for a bug of the compiler names the kernel, asks for a report and offers a workaround.
    #[test]
    fn defects_are_told() {
        let e = not_lowered(LowerError::Invariant { kernel: "softmax_3".into(), what: "a row is missing".into() });
        assert_eq!(e.exit_status(), 1);
        let text = e.to_string();
        assert!(
            ["softmax_3", "a row is missing", "a defect of Kiln", "please report"].iter().all(|t| text.contains(t)),
            "{text}"
        );
        assert!(e.help().contains("--unfused"));
    }

    /// Whether a kernel with an alternative runs by its own code or the library's is known when it is loaded.
    #[test]
    fn alternatives_are_not_assembled_ahead() {
        let block = |code: ProgramId| Work::Block { code, args: vec![] };
        let steps = |codes: &[ProgramId]| Steps::from(codes.iter().map(|c| block(*c)).collect::<Vec<_>>());
        let either = Steps { otherwise: Some(Box::new(steps(&[3]))), ..steps(&[2]) };
        assert_eq!(used(&[steps(&[0, 1]), either, steps(&[1])]), HashSet::from([0, 1]));
    }

    /// Repeated kernels share a program, which has the name of the first one, whichever thread lowers them.
    #[test]
    fn programs_are_those_of_the_first_kernels() {
        let lines: String = (0..20).map(|i| format!("%a{} = exp %a{i}\n%n{i} = neg %a{i}\n", i + 1)).collect();
        let outputs: Vec<String> = (0..20).map(|i| format!("%n{i}")).collect();
        let text = format!("graph g(%a0: f32[300]) {{\n{lines}return %a20, {}\n}}", outputs.join(", "));
        let model = Model::of(text.parse().expect("a graph"));
        let options = CompileOptions { target: Target::Sm90a, fuse: false, ..CompileOptions::default() };
        let compiled = compile(&model, &options).expect("it compiles");
        let names: Vec<&str> = compiled.programs.iter().map(|p| p.name.as_str()).collect();
        let kernels: Vec<&str> = compiled.plan.kernels.iter().map(|k| k.name.as_str()).collect();
        assert_eq!((names, kernels.len()), (kernels[..2].to_vec(), 40));
    }

    #[test]
    fn collectives_need_python() {
        let op = FallbackOp { name: "_c10d_functional::all_reduce".into(), ..FallbackOp::default() };
        assert_eq!(Reference.fallback_in_place(&op, &[], &[], None), None);
        let e = Reference.fallback(&op, &[]).expect_err("there is no group").into_words();
        assert!(e.contains("this process is in no group") && e.contains("under torchrun"), "{e}");
    }

    #[test]
    fn an_index_out_of_range_is_the_inputs_also_where_a_kernel_is_interpreted() {
        let text = "graph g(%t: f32[4,2], %i: i64[1]) {\n %r = take %t, %i axis=0\n return %r\n}";
        let body: Graph = text.parse().expect("valid");
        let [table, index] = [0, 1].map(|i| body.ty(body.inputs[i]).clone());
        let inputs = [Tensor::zeros(table), Tensor::from_f64(index, [7.0])];
        let e = Reference.interpret(&body, &inputs).expect_err("no such row");
        assert_eq!(e, Refused::Index("take: index 7 is out of range for an axis of 4".into()));
    }
}
