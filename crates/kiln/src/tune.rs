//! Autotuning: finds the fastest schedules of a model's kernels by measuring, keeps them in a store, and applies a
//! store to plans.
//!
//! Takes: a model, a GPU, a store. Gives: the store with an entry for every kernel that has a choice of schedules; and
//! plans whose kernels have the schedules of such entries, so that a plan is determined by graph, target and store
//! alone. Never: required. Without a store every kernel gets the schedule that the cost models prefer.
//!
//! An entry says which schedule was the fastest for exactly one kernel body, machine and version of the programs that
//! schedules stand for (`kiln_lower::PROGRAMS`, which is raised when they change). A plan made with a store has the
//! schedules, so it can be printed, pinned and compiled without the store. An entry that lowering refuses is ignored,
//! and `explain` says why. The schedule that lowering chooses by default is always one of the candidates, and it is
//! kept unless another is measurably faster.
mod measure;
mod report;

pub use kiln_tune::{Budget, Store};
pub use report::{KernelTuning, Tried, Tuned};

pub use crate::measurements::Measurements;
use crate::{CompileOptions, Error, Model, Target, compile, constraints::takes_schedule, io};
use kiln_graph::Random;
use kiln_plan::{Kernel, Plan, Schedule, Tuning};
use kiln_tune::{Entry, Found, Key, Machine};
use measure::GpuBench;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Instant,
};

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

/// Versions of Kiln and of its programs.
pub(crate) fn compiler() -> String {
    format!("{}/{}", env!("CARGO_PKG_VERSION"), kiln_lower::PROGRAMS)
}

/// The store's key of a kernel; its problem is the kernel's precision and its body without names, on one line.
fn key(k: &Kernel, machine: &Machine) -> Key {
    let text = kiln_graph::text::print(&k.body.bare());
    let precision = k.precision.name().map(|p| format!("{p} ")).unwrap_or_default();
    let problem = format!("{precision}{}", text.lines().map(str::trim).collect::<Vec<_>>().join(" "));
    Key { problem, machine: machine.clone(), compiler: compiler() }
}

/// Whether the schedule of a kernel may come from a store: no constraint gives it.
fn is_open(k: &Kernel) -> bool {
    takes_schedule(k) && k.schedule.is_none()
}

/// Fails with lowering's reason if the schedule does not fit the kernel.
fn takes(k: &Kernel, schedule: &Schedule, options: &CompileOptions) -> Result<(), String> {
    kiln_lower::fits(k, options.machine(), schedule).map_err(|e| e.why())
}

impl Measurements {
    /// Sets the schedule of every kernel that the store has a usable entry for, and records what was measured, or why
    /// an entry is not used.
    pub fn apply(&self, plan: &mut Plan, options: &CompileOptions) -> Result<(), Error> {
        let Some(machine) = self.machine(options.target) else { return Ok(()) };
        for k in plan.kernels.iter_mut().filter(|k| is_open(k)) {
            k.reason.tuning = match self.store.find(&key(k, &machine)) {
                Found::Nothing => None,
                Found::Useless(_, why) => Some(Tuning::Unused { why }),
                Found::Entry(e, schedule) => Some(match takes(k, &schedule, options) {
                    Ok(()) => {
                        k.schedule = Some(schedule);
                        Tuning::Measured { device: machine.device.clone(), us: e.us, default_us: e.default_us }
                    }
                    Err(why) => Tuning::Unused { why: format!("`{schedule}` does not fit the kernel: {why}") },
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
    /// Measure kernels again that the store already has.
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

/// Tunes the kernels of a model's run. `save` is called with the store after every one, so that an interrupted run
/// keeps its results.
pub fn tune(
    model: &Model,
    options: &TuneOptions,
    store: &mut Store,
    save: &mut dyn FnMut(&Store) -> Result<(), Error>,
    progress: &mut dyn FnMut(&Step),
) -> Result<Tuned, Error> {
    let target = options.compile.target;
    let machine = Machine { device: compile::gpu_name(options.gpu)?, target: target.name().into() };
    let schedules = compile::Schedules::new(options.compile.machine());
    let open = CompileOptions { tuned: None, ..options.compile.clone() };
    let mut plan = compile::unscheduled(model, &open, &schedules)?;
    let open: BTreeSet<String> = plan.kernels.iter().filter(|k| is_open(k)).map(|k| k.name.clone()).collect();
    schedules.assign(&mut plan)?;
    let problems = problems(&plan, options, &open, &machine)?;
    let mut tuned = Tuned { model: plan.name.clone(), device: machine.device.clone(), kernels: vec![] };
    for (at, (key, kernels)) in problems.iter().enumerate() {
        let (first, start) = (kernels[0], Instant::now());
        let known = match store.find(key) {
            Found::Entry(e, c) if !options.again && takes(first, &c, &options.compile).is_ok() => Some(e.clone()),
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

/// The distinct problems among the kernels of a run, each with its kernels, in the plan's order.
fn problems<'a>(
    plan: &'a Plan,
    options: &TuneOptions,
    open: &BTreeSet<String>,
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
    let wanted = |k: &&Kernel| open.contains(&k.name) && options.kernel.as_ref().is_none_or(|name| k.name == *name);
    for k in plan.kernels.iter().filter(wanted) {
        let key = key(k, machine);
        match all.iter_mut().find(|(other, _)| *other == key) {
            Some((_, kernels)) => kernels.push(k),
            None => all.push((key, vec![k])),
        }
    }
    Ok(all)
}

/// What may be measured for a kernel: first what lowering does by default.
fn candidates(
    kernel: &Kernel,
    machine: &kiln_machine::Machine,
    library: bool,
) -> Result<Vec<kiln_tune::Candidate>, Error> {
    let all = kiln_lower::schedules(kernel, machine).map_err(compile::not_lowered)?;
    let there = all.into_iter().filter(|s| library || !s.0.is_call());
    Ok(there.map(|(schedule, price)| kiln_tune::Candidate { schedule, us: price.us }).collect())
}

/// Searches for the best schedule of one kernel; `None` if there is only one.
fn measured(
    kernel: &Kernel,
    options: &TuneOptions,
    progress: &mut dyn FnMut(kiln_tune::Progress),
) -> Result<Option<kiln_tune::Outcome>, Error> {
    let mut bench = GpuBench::new(kernel, options)?;
    let candidates = candidates(kernel, options.compile.machine(), bench.has_library())?;
    if candidates.len() < 2 {
        return Ok(None);
    }
    let failed = |why: String| {
        Error::failed(
            format!("cannot tune kernel {}: {why}", kernel.name),
            "earlier measurements are in the store; `--kernel NAME` tunes a single kernel",
        )
    };
    let machine = options.compile.machine();
    let neighbours = |best: &Schedule| {
        let launches = kiln_lower::relaunched(kernel, machine, best).map_err(|e| e.to_string())?;
        Ok(kiln_lower::neighbours(best, machine).into_iter().chain(launches).collect())
    };
    kiln_tune::search(&mut bench, &candidates, neighbours, &options.budget, progress).map(Some).map_err(failed)
}

/// How [`sample`] chooses schedules: the first ones by price, then others at random; `dry`: nothing is measured.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The cheapest in the model.
    pub first: usize,
    /// Others.
    pub random: usize,
    /// Seed of the others.
    pub seed: u64,
    /// Predictions only.
    pub dry: bool,
}

/// Measures schedules of each kernel; gives them beside the nest in numbers, or the body of what multiplies, as JSON:
/// what the cost models are fitted to.
///
/// # Errors
/// If the model cannot be planned, or the schedule of the plan does not run.
pub fn sample(
    model: &Model,
    options: &TuneOptions,
    how: Sampling,
    further: &dyn Fn(&str) -> Vec<Schedule>,
) -> Result<Vec<serde_json::Value>, Error> {
    let plan = compile::plan(model, &CompileOptions { tuned: None, ..options.compile.clone() })?;
    let machine = options.compile.machine();
    let mut found = vec![];
    for k in plan.kernels.iter().filter(|k| k.schedule.is_some()) {
        let nest = kiln_lower::scheduled(k, machine).map_err(compile::not_lowered)?;
        let mut schedules = match &nest {
            Some(nest) => nest.schedules.clone(),
            None => kiln_lower::schedules(k, machine).map_err(compile::not_lowered)?,
        };
        let default = schedules.first().map(|s| s.0.to_string()).unwrap_or_default();
        let total = schedules.len();
        schedules[1..].sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
        let mut random = Random::new(how.seed);
        for at in (how.first + 2..schedules.len()).rev() {
            schedules.swap(at, how.first + 1 + random.next_below(at - how.first));
        }
        // Of what multiplies, not all fit.
        let fits = |s: &Schedule| nest.is_some() || kiln_lower::fits(k, machine, s).is_ok();
        // Of what multiplies, the cheapest of each tile first.
        if nest.is_none() {
            let mut tiles = vec![];
            schedules[1..].sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
            let (mut first, others): (Vec<_>, Vec<_>) = schedules.into_iter().partition(|s| {
                let new = !tiles.contains(&s.0.tile().cloned()) && fits(&s.0);
                tiles.extend(new.then(|| s.0.tile().cloned()));
                new
            });
            first.extend(others.into_iter().filter(|s| fits(&s.0)).take(how.first + how.random));
            schedules = first;
        }
        schedules.truncate(1 + how.first + how.random);
        for schedule in further(&k.name) {
            if let Ok(Some(price)) = kiln_lower::priced(k, machine, &schedule)
                && !schedules.iter().any(|s| s.0 == schedule)
            {
                schedules.push((schedule, price));
            }
        }
        let measured: Vec<(String, f64)> = if how.dry {
            schedules.iter().map(|(s, _)| (s.to_string(), 0.0)).collect()
        } else {
            let candidates: Vec<_> =
                (schedules.iter()).map(|(s, _)| kiln_tune::Candidate { schedule: s.clone(), us: 1.0 }).collect();
            let mut bench = GpuBench::new(k, options)?;
            let outcome = kiln_tune::search(&mut bench, &candidates, |_| Ok(vec![]), &options.budget, &mut |_| {});
            let outcome =
                outcome.map_err(|why| Error::failed(format!("cannot measure kernel {}: {why}", k.name), ""))?;
            outcome.measured.iter().map(|t| (t.schedule.to_string(), t.us)).collect()
        };
        let us = |us: f64| if us.is_finite() { Some(us) } else { None };
        let predicted: BTreeMap<String, Option<f64>> =
            schedules.iter().map(|(s, p)| (s.to_string(), us(p.us))).collect();
        let mut out = serde_json::json!({
            "name": k.name, "kind": k.kind.name(), "precision": k.precision.name(), "candidates": total,
            "default": default, "measured": measured, "predicted": predicted, "planned": k.cost.us,
        });
        match &nest {
            Some(nest) => {
                out["nest"] = serde_json::to_value(&nest.facts).map_err(|e| Error::failed(e.to_string(), ""))?
            }
            None => out["body"] = kiln_graph::text::print(&k.body.bare()).into(),
        }
        found.push(out);
    }
    Ok(found)
}

fn entry(key: &Key, o: &kiln_tune::Outcome) -> Entry {
    Entry {
        key: key.clone(),
        schedule: o.best.to_string(),
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
