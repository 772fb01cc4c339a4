//! Autotuning: finds the fastest templates of a model's matmuls by measuring, keeps them in a store, and applies a store to plans.
//!
//! Takes: a model, a GPU, a store. Gives: the store with an entry for every matmul that has a choice of templates; and plans whose
//! kernels name the templates of such entries, so that a plan is determined by graph, target and store alone.
//! Never: required. Without a store every matmul gets the template that the cost model prefers.
//!
//! Tuning only names templates. An entry says which template was the fastest for exactly one kernel body, machine and version of the
//! templates (`kiln_lower::TEMPLATES`, which is raised when their programs change). A plan made with a store names the templates, so it can
//! be printed, pinned and compiled without the store. An entry that lowering refuses is ignored, and `explain` says why. The template that
//! lowering chooses by default is always one of the candidates, and it is kept unless another is measurably faster.
mod measure;
mod measurements;
mod report;

pub use kiln_tune::{Budget, Store};
pub use report::{KernelTuning, Tried, Tuned};

use crate::{CompileOptions, Error, Model, Target, compile, io};
use kiln_plan::{Kernel, KernelKind, Plan, Tuning};
use kiln_tune::{Entry, Found, Key, Machine};
use measure::GpuBench;
pub use measurements::Measurements;
use std::{path::Path, time::Instant};

/// Reads a store.
pub fn read(path: &Path) -> Result<Store, Error> {
    let text = std::fs::read_to_string(path).map_err(|e| Error::reading(path, e))?;
    Store::parse(&text).map_err(|e| {
        Error::caused(
            format!("{} is not a usable store of measurements: {e}", path.display()),
            "remove it and run `kiln tune MODEL --store FILE` to make a new one",
            e,
        )
    })
}
/// Writes a store, whole or not at all.
pub fn write(path: &Path, store: &Store) -> Result<(), Error> {
    io::write_whole(path, store.text().as_bytes())
}

/// Versions of Kiln and of its templates.
fn compiler() -> String {
    format!("{}/{}", env!("CARGO_PKG_VERSION"), kiln_lower::TEMPLATES)
}

/// The store's key of a kernel; its problem is the kernel's precision and its body without names, on one line.
fn key(k: &Kernel, machine: &Machine) -> Key {
    let text = kiln_graph::text::print(&k.body.bare());
    let precision = k.precision.name().map(|p| format!("{p} ")).unwrap_or_default();
    let problem = format!("{precision}{}", text.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    Key { problem, machine: machine.clone(), compiler: compiler() }
}

/// Whether the kernel's template may come from a store: it is a matmul without a template from a constraint.
fn is_open(k: &Kernel) -> bool {
    k.kind == KernelKind::Gemm && k.reason.template.is_none()
}

/// Fails with lowering's reason if the template does not apply to the kernel.
fn takes(k: &Kernel, template: kiln_plan::Template, options: &CompileOptions) -> Result<(), String> {
    let mut k = k.clone();
    k.reason.template = Some(template);
    kiln_lower::lower_at(&k, options.machine()).map(|_| ()).map_err(|e| e.why())
}

impl Measurements {
    /// Sets the template of every matmul that the store has a usable entry for, and records what was measured, or why an entry is not used.
    pub fn apply(&self, plan: &mut Plan, options: &CompileOptions) -> Result<(), Error> {
        let Some(machine) = self.machine(options.target) else { return Ok(()) };
        for k in plan.kernels.iter_mut().filter(|k| is_open(k)) {
            k.reason.tuning = match self.store.find(&key(k, &machine)) {
                Found::Nothing => None,
                Found::Useless(_, why) => Some(Tuning::Unused { why }),
                Found::Entry(e, template) => Some(match takes(k, template, options) {
                    Ok(()) => {
                        k.reason.template = Some(template);
                        Tuning::Measured { device: machine.device.clone(), us: e.us, default_us: e.default_us }
                    }
                    Err(why) => {
                        Tuning::Unused { why: format!("the template `{template}` does not apply to the kernel: {why}") }
                    }
                }),
            };
        }
        Ok(())
    }
    fn machine(&self, target: Target) -> Option<Machine> {
        if let Some(device) = &self.device {
            return Some(Machine { device: device.clone(), target: target.name().into() });
        }
        self.store.machine(target.name(), &target.machine().device).cloned()
    }
}

/// What to tune, and with how much effort.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// Options of the plan; its target is the GPU's.
    pub compile: CompileOptions,
    /// Index of the GPU.
    pub gpu: usize,
    /// Tune only this kernel.
    pub kernel: Option<String>,
    /// Measure matmuls again that the store already has.
    pub again: bool,
    /// Limits of the search.
    pub budget: Budget,
}

/// Progress of tuning.
pub struct Step<'a> {
    /// Name of the kernel that is being tuned.
    pub kernel: &'a str,
    /// Index of its problem.
    pub at: usize,
    /// Number of problems.
    pub of: usize,
    /// Progress of this kernel's search.
    pub search: kiln_tune::Progress,
}

/// Tunes the matmuls of a model's run. `save` is called with the store after every matmul, so that an interrupted run keeps its results.
pub fn tune(
    model: &Model,
    options: &TuneOptions,
    store: &mut Store,
    save: &mut dyn FnMut(&Store) -> Result<(), Error>,
    progress: &mut dyn FnMut(&Step),
) -> Result<Tuned, Error> {
    let target = options.compile.target;
    let machine = Machine { device: compile::gpu_name(options.gpu)?, target: target.name().into() };
    let plan = compile::plan(model, &CompileOptions { tuned: None, ..options.compile.clone() })?;
    let problems = problems(&plan, options, &machine)?;
    let mut tuned = Tuned { model: plan.name.clone(), device: machine.device.clone(), kernels: vec![] };
    for (at, (key, kernels)) in problems.iter().enumerate() {
        let (first, start) = (kernels[0], Instant::now());
        let known = match store.find(key) {
            Found::Entry(e, t) if !options.again && takes(first, t, &options.compile).is_ok() => Some(e.clone()),
            _ => None,
        };
        let (was_known, mut tried) = (known.is_some(), vec![]);
        let entry = match known {
            Some(entry) => Some(entry),
            None => {
                let mut told = |search| progress(&Step { kernel: &first.name, at, of: problems.len(), search });
                let outcome = measured(first, options, &mut told)?;
                tried = outcome.as_ref().map(|o| o.measured.iter().map(Tried::from).collect()).unwrap_or_default();
                outcome.map(|o| entry(key, &o))
            }
        };
        if let Some(entry) = entry.clone().filter(|_| !was_known) {
            store.put(entry);
            save(store)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        tuned.kernels.push(KernelTuning::new(kernels, entry, was_known, tried, seconds));
    }
    Ok(tuned)
}

/// The distinct problems among the matmuls of a run, each with its kernels, in the plan's order.
fn problems<'a>(
    plan: &'a Plan,
    options: &TuneOptions,
    machine: &Machine,
) -> Result<Vec<(Key, Vec<&'a Kernel>)>, Error> {
    if let Some(name) = &options.kernel
        && !plan.kernels.iter().any(|k| k.name == *name)
    {
        let names = plan.kernels.iter().map(|k| k.name.as_str());
        let help =
            crate::select::suggest(name, names).unwrap_or_else(|| "`kiln explain MODEL --all` lists them".into());
        return Err(Error::usage(format!("{} has no kernel `{name}`", plan.name), help));
    }
    let mut all: Vec<(Key, Vec<&Kernel>)> = vec![];
    let wanted = |k: &&Kernel| is_open(k) && options.kernel.as_ref().is_none_or(|name| k.name == *name);
    for k in plan.kernels.iter().filter(wanted) {
        let key = key(k, machine);
        match all.iter_mut().find(|(other, _)| *other == key) {
            Some((_, kernels)) => kernels.push(k),
            None => all.push((key, vec![k])),
        }
    }
    Ok(all)
}

/// Searches for the best template of one matmul; `None` if there is only one.
fn measured(
    kernel: &Kernel,
    options: &TuneOptions,
    progress: &mut dyn FnMut(kiln_tune::Progress),
) -> Result<Option<kiln_tune::Outcome>, Error> {
    let candidates = kiln_lower::candidates(kernel, options.compile.machine());
    if candidates.len() < 2 {
        return Ok(None);
    }
    let mut bench = GpuBench::new(kernel, options)?;
    let there = |t: &kiln_plan::Template| t.family != kiln_plan::Family::Library || bench.has_library();
    let candidates: Vec<kiln_tune::Candidate> = (candidates.iter().filter(|c| there(&c.template)))
        .map(|c| kiln_tune::Candidate { template: c.template, us: c.us })
        .collect();
    let failed = |why: String| {
        Error::failed(
            format!("cannot tune kernel {}: {why}", kernel.name),
            "earlier measurements are in the store; `--kernel NAME` tunes a single kernel",
        )
    };
    kiln_tune::search(&mut bench, &candidates, kiln_lower::neighbours, &options.budget, progress)
        .map(Some)
        .map_err(failed)
}

fn entry(key: &Key, o: &kiln_tune::Outcome) -> Entry {
    Entry {
        key: key.clone(),
        template: o.best.to_string(),
        us: rounded(o.us),
        default: o.default.to_string(),
        default_us: rounded(o.default_us),
        measured: o.measured.len(),
    }
}

/// Rounds to a nanosecond; further digits are noise.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests;
