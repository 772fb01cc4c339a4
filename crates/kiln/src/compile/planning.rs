//! Plans of models: what is fused, by which schedules, at what predicted time.
//!
//! Takes: a model and options. Gives: its plan, which is taken from the cache on disk where another process has made
//! it.
use super::{CompileOptions, not_lowered};
use crate::{
    Error, Model,
    cache::{Key, Kind},
    launches, workers,
};
use kiln_graph::Type;
use kiln_graph::launch::LaunchOp;
use kiln_lower::{Chosen, LowerError};
use kiln_machine::Machine;
use kiln_plan::{Form, LaunchAccess, Plan, Schedule};
use kiln_rewrite::{Candidate, Launches, Priced, Prices, RewriteError, TargetInfo};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The plan of a model, without code.
pub fn plan(model: &Model, options: &CompileOptions) -> Result<Plan, Error> {
    launches::check(&model.graph)?;
    let kept = options.cache().and_then(|cache| Some((cache, plan_key(model, options)?)));
    let known = kept.as_ref().and_then(|(cache, key)| String::from_utf8(cache.get(key)?).ok());
    if let Some(plan) = known.and_then(|text| kiln_plan::text::parse(&text).ok())
        && kiln_plan::verify::verify(&plan).is_ok()
    {
        return Ok(plan);
    }
    let plan = new_plan(model, options)?;
    if let Some((cache, key)) = kept {
        let text = kiln_plan::text::print(&plan);
        // What its text does not say, another process would not find.
        if kiln_plan::text::parse(&text).is_ok_and(|read| kiln_plan::text::print(&read) == text) {
            cache.put(&key, text.as_bytes());
        }
    }
    Ok(plan)
}
/// All that a plan is made from; `None` if measurements are part of that, which change while models are tuned.
fn plan_key(model: &Model, options: &CompileOptions) -> Option<Key> {
    if options.tuned.is_some() {
        return None;
    }
    let contract = serde_json::to_vec(&options.contract).ok()?;
    let how = format!("{} {} {:?}", options.target, options.fuse, options.constraints);
    let key = Key::new(Kind::Plan).with(how.as_bytes()).with(&contract);
    Some(key.with(&serde_json::to_vec(options.machine()).ok()?).with(&serde_json::to_vec(&model.graph).ok()?))
}
fn new_plan(model: &Model, options: &CompileOptions) -> Result<Plan, Error> {
    let schedules = Schedules::new(options.machine());
    let mut plan = unscheduled(model, options, &schedules)?;
    // A requested schedule that does not fit its kernel fails here, so that no command continues without it.
    for k in plan.kernels.iter().filter(|k| k.schedule.is_some()) {
        match kiln_lower::lower_at(k, options.machine()) {
            Ok(_) => {}
            Err(LowerError::Unsupported { why, .. }) => return Err(no_schedule(&plan.name, k, &why)),
            Err(defect @ LowerError::Invariant { .. }) => return Err(not_lowered(defect)),
        }
    }
    schedules.assign(&mut plan)?;
    Ok(plan)
}

/// The plan of a model, in which kernels have schedules where constraints or measurements give them.
pub(crate) fn unscheduled(model: &Model, options: &CompileOptions, schedules: &Schedules) -> Result<Plan, Error> {
    options.check()?;
    if !options.fuse && !options.constraints.is_empty() {
        return Err(Error::usage("an unfused plan takes no constraints", "leave out --unfused or --constraints"));
    }
    let constraints = options.constraints.resolve(&model.graph)?;
    let mut plan = plan_under(model, options, &constraints, schedules).map_err(|e| not_planned(model, e))?;
    options.constraints.schedule(&mut plan, &model.graph, options.target)?;
    if let Some(measurements) = &options.tuned {
        measurements.apply(&mut plan, options)?;
    }
    Ok(plan)
}
/// The cheapest schedules of kernels on a machine. Layers repeat, and the planner asks for prices of kernels that the
/// plan has in the end: each kernel is scheduled once.
pub(crate) struct Schedules<'a> {
    machine: &'a Machine,
    known: RefCell<HashMap<String, Scheduled>>,
}
/// What was found for a kernel; an error that is a defect of lowering is kept for [`Schedules::assign`].
type Scheduled = Result<Chosen, LowerError>;

impl<'a> Schedules<'a> {
    pub(crate) fn new(machine: &'a Machine) -> Schedules<'a> {
        Schedules { machine, known: RefCell::default() }
    }
    /// What the planner may ask.
    pub(crate) fn target(&self) -> TargetInfo<'_> {
        TargetInfo { prices: Some(self), launches: Some(self) }
    }
    /// Schedules those of these kernels that are not known yet, on all cores. `forms`: what each may be computed by.
    fn find(&self, kernels: &[(&kiln_plan::Kernel, Option<&[Form]>)]) -> Vec<String> {
        let keys: Vec<String> = kernels.iter().map(|(k, _)| key(k)).collect();
        let mut asked: Vec<usize> = vec![];
        let mut new: HashSet<&str> = HashSet::new();
        for (i, key) in keys.iter().enumerate() {
            if !self.known.borrow().contains_key(key) && new.insert(key) {
                asked.push(i);
            }
        }
        let found = workers::map(&asked, |&i| kiln_lower::chosen_among(kernels[i].0, self.machine, kernels[i].1));
        let mut known = self.known.borrow_mut();
        for (i, found) in asked.into_iter().zip(found) {
            // The plan states the form that was found; it is asked for by that form then.
            if let Ok(Chosen { form: Some(form), .. }) = &found {
                known.insert(key(&kiln_plan::Kernel { form: Some(*form), ..kernels[i].0.clone() }), found.clone());
            }
            known.insert(keys[i].clone(), found);
        }
        keys
    }
    /// Records the schedule of every kernel that multiplies or has one nest, and what every kernel is predicted to
    /// take.
    pub(crate) fn assign(&self, plan: &mut Plan) -> Result<(), Error> {
        let kernels: Vec<_> = plan.kernels.iter().map(|k| (k, None)).collect();
        let keys = self.find(&kernels);
        let known = self.known.borrow();
        for (kernel, key) in plan.kernels.iter_mut().zip(&keys) {
            match known.get(key) {
                Some(Ok(chosen)) => take(kernel, chosen.clone()),
                // Lowering refuses it with the same reason.
                Some(Err(LowerError::Unsupported { .. })) | None => {}
                Some(Err(defect)) => return Err(not_lowered(defect.clone())),
            }
        }
        Ok(())
    }
}

impl Launches for Schedules<'_> {
    fn access(&self, launch: &LaunchOp, operands: &[&Type]) -> LaunchAccess {
        kiln_lower::launch_access(launch, operands)
    }
}

impl Prices for Schedules<'_> {
    fn price(&self, candidates: &[Candidate]) -> Vec<Option<Priced>> {
        // What does not multiply has its price with its schedule, which the plan asks for if it keeps the kernel. What
        // multiplies is lowered for that, to see which schedule fits, so its price is asked for alone.
        let (multiply, others): (Vec<usize>, Vec<usize>) =
            (0..candidates.len()).partition(|&n| candidates[n].allowed().is_some());
        // A kernel that the model refuses has no price; a defect is met again where the plan's kernels are lowered.
        let price = |&n: &usize| {
            let Candidate { kernel, .. } = &candidates[n];
            let (us, family) = kiln_lower::price_among(kernel, self.machine, candidates[n].allowed()).ok().flatten()?;
            Some(Priced { us, family })
        };
        let priced = workers::map(&multiply, price);
        let keys = self.find(&others.iter().map(|&n| (&candidates[n].kernel, None)).collect::<Vec<_>>());
        let known = self.known.borrow();
        let us = |key: &String| Some(Priced { us: known.get(key)?.as_ref().ok()?.us?, family: None });
        let mut all: BTreeMap<usize, Option<Priced>> = others.into_iter().zip(keys.iter().map(us)).collect();
        all.extend(multiply.into_iter().zip(priced));
        all.into_values().collect()
    }
    fn choose(&self, candidates: &[Candidate]) -> Vec<Option<Form>> {
        let kernels: Vec<_> = candidates.iter().map(|c| (&c.kernel, c.allowed())).collect();
        let keys = self.find(&kernels);
        let known = self.known.borrow();
        keys.iter().map(|key| known.get(key)?.as_ref().ok()?.form).collect()
    }
}

/// All that the schedule of a kernel depends on.
fn key(k: &kiln_plan::Kernel) -> String {
    let (body, asked) = (kiln_graph::text::print(&k.body.bare()), k.schedule.as_ref().map(Schedule::to_string));
    let (kind, invariant) = (k.kind.name(), k.batch_invariant);
    format!("{kind} {invariant} {:?} {:?} {:?} {asked:?} {body}", k.rounding, k.precision, k.form)
}
/// The kernels that differ in names, buffers and reasons alone, the earliest first: what is decided for one of them
/// holds for all.
pub(super) fn alike(kernels: &[kiln_plan::Kernel]) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = vec![];
    let mut known: HashMap<String, usize> = HashMap::new();
    for (i, k) in kernels.iter().enumerate() {
        let at = *known.entry(key(k)).or_insert(found.len());
        if at == found.len() {
            found.push(vec![]);
        }
        found[at].push(i);
    }
    found
}
pub(super) fn take(kernel: &mut kiln_plan::Kernel, chosen: kiln_lower::Chosen) {
    kernel.form = chosen.form;
    kernel.schedule = chosen.schedule;
    kernel.cost.us = chosen.us.map(|us| (us * 1e4).round() / 1e4).or(kernel.cost.roofline_us);
}
/// The error for a requested schedule that does not fit its kernel.
pub(super) fn no_schedule(model: &str, k: &kiln_plan::Kernel, why: &str) -> Error {
    let schedule = k.schedule.as_ref().map(|s| s.to_string()).unwrap_or_default();
    Error::failed(
        format!("cannot plan {model}: the schedule `{schedule}` does not fit kernel {}: {why}", k.name),
        "leave the constraint out, or name one that fits; `kiln explain MODEL --kernel NAME` shows some",
    )
}
/// The same under constraints that are resolved to values of the graph.
pub(crate) fn plan_under(
    model: &Model,
    options: &CompileOptions,
    constraints: &kiln_rewrite::Constraints,
    schedules: &Schedules,
) -> Result<Plan, RewriteError> {
    let search = kiln_rewrite::Options { contract: options.contract, fuse: options.fuse };
    // The model has no prices of the host's programs.
    let prices = options.machine().arch.is_gpu().then_some(schedules as &dyn Prices);
    let target = TargetInfo { prices, ..schedules.target() };
    kiln_rewrite::plan_priced(&model.graph, options.machine(), &search, constraints, target)
}
pub(crate) fn not_planned(model: &Model, e: RewriteError) -> Error {
    let help = match e {
        RewriteError::Cycle => "report this with the graph",
        RewriteError::Impossible { .. } => {
            "loosen the constraint or leave it out; `kiln explain MODEL --why-not A B` asks about one pair"
        }
    };
    Error::caused(format!("cannot plan {}: {e}", model.graph.name), help, e)
}
