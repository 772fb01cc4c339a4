//! Tuning: the fastest templates of a model's matmuls are found by measuring, kept in a store, and taken from it by plans.
//!
//! Takes: a model, a GPU, a store. Gives: the store with an entry for every matmul there is a choice for; and plans whose
//! kernels name the templates of such entries, so that they follow from graph, target and store alone.
//! Never: needed. Without a store every matmul gets the template that a model of the machine prefers.
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
            "make it anew: remove it and run `kiln tune MODEL --store FILE`",
            e,
        )
    })
}
/// Writes a store, whole or not at all.
pub fn write(path: &Path, store: &Store) -> Result<(), Error> {
    io::write_whole(path, store.text().as_bytes())
}

/// Version of Kiln and of its templates.
fn compiler() -> String {
    format!("{}/{}", env!("CARGO_PKG_VERSION"), kiln_lower::TEMPLATES)
}

/// The kernel's precision and its body without names, on one line.
fn key(k: &Kernel, machine: &Machine) -> Key {
    let text = kiln_graph::text::print(&k.body.bare());
    let precision = k.precision.name().map(|p| format!("{p} ")).unwrap_or_default();
    let problem = format!("{precision}{}", text.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    Key { problem, machine: machine.clone(), compiler: compiler() }
}

/// Whether the kernel's template may come from a store: a matmul that no constraint speaks of.
fn is_open(k: &Kernel) -> bool {
    k.kind == KernelKind::Gemm && k.reason.template.is_none()
}

/// Whether lowering takes the kernel with this template.
fn takes(k: &Kernel, template: kiln_plan::Template, options: &CompileOptions) -> Result<(), String> {
    let mut k = k.clone();
    k.reason.template = Some(template);
    kiln_lower::lower_at(&k, options.machine()).map(|_| ()).map_err(|e| e.why())
}

impl Measurements {
    /// Names the template of every matmul that the store has a usable entry for, and says what was measured.
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
                        Tuning::Unused { why: format!("the template `{template}` does not take the kernel: {why}") }
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

/// What to tune, and how long.
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// What is planned; its target is the GPU's.
    pub compile: CompileOptions,
    /// The n-th GPU.
    pub gpu: usize,
    /// This kernel alone.
    pub kernel: Option<String>,
    /// Measures what the store already has, too.
    pub again: bool,
    /// How much is tried.
    pub budget: Budget,
}

/// Where tuning stands: the kernel, its number and their count, samples taken and expected, the best so far.
pub struct Step<'a> {
    /// Its name.
    pub kernel: &'a str,
    /// Counted from 0.
    pub at: usize,
    /// How many there are.
    pub of: usize,
    /// Of this kernel's search.
    pub search: kiln_tune::Progress,
}

/// Tunes the matmuls of a model's run. `save` gets the store after every matmul, so that an interrupted run keeps what it has.
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

/// The matmuls of a run by their problem, each with the kernels that have it, in the plan's order.
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

/// The search for one matmul; `None` if there is nothing to choose.
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
            "what was measured before is in the store; `--kernel NAME` tunes one kernel alone",
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

/// To a nanosecond: what lies beyond is noise.
fn rounded(us: f64) -> f64 {
    (us * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests;
