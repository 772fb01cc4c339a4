//! Plans of models: what is fused, by which schedules, at what predicted time.
//!
//! Takes: a model and options. Gives: its plan, which is taken from the cache on disk where another process has made
//! it.
use super::{CompileOptions, not_lowered};
use crate::{
    Error, Model,
    cache::{Key, Kind},
    workers,
};
use kiln_lower::LowerError;
use kiln_machine::Machine;
use kiln_plan::{Plan, Schedule};
use kiln_rewrite::RewriteError;
use std::collections::HashMap;

/// The plan of a model, without code.
pub fn plan(model: &Model, options: &CompileOptions) -> Result<Plan, Error> {
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
    let mut plan = unscheduled(model, options)?;
    // A requested schedule that does not fit its kernel fails here, so that no command continues without it.
    for k in plan.kernels.iter().filter(|k| k.schedule.is_some()) {
        match kiln_lower::lower_at(k, options.machine()) {
            Ok(_) => {}
            Err(LowerError::Unsupported { why, .. }) => return Err(no_schedule(&plan.name, k, &why)),
            Err(defect @ LowerError::Invariant { .. }) => return Err(not_lowered(defect)),
        }
    }
    schedule(&mut plan, options.machine())?;
    Ok(plan)
}

/// The plan of a model, in which kernels have schedules where constraints or measurements give them.
pub(crate) fn unscheduled(model: &Model, options: &CompileOptions) -> Result<Plan, Error> {
    options.check()?;
    if !options.fuse && !options.constraints.is_empty() {
        return Err(Error::usage("an unfused plan takes no constraints", "leave out --unfused or --constraints"));
    }
    let constraints = options.constraints.resolve(&model.graph)?;
    let mut plan = plan_under(model, options, &constraints).map_err(|e| not_planned(model, e))?;
    options.constraints.schedule(&mut plan, &model.graph, options.target)?;
    if let Some(measurements) = &options.tuned {
        measurements.apply(&mut plan, options)?;
    }
    Ok(plan)
}
/// Records the schedule of every kernel that multiplies or has one nest, and what every kernel is predicted to take.
pub(crate) fn schedule(plan: &mut Plan, machine: &Machine) -> Result<(), Error> {
    // Layers repeat: kernels with equal bodies have equal schedules.
    let alike = alike(&plan.kernels);
    let found = workers::map(&alike, |all| kiln_lower::chosen(&plan.kernels[all[0]], machine));
    for (all, found) in alike.into_iter().zip(found) {
        match found {
            Ok(chosen) => all.into_iter().for_each(|i| take(&mut plan.kernels[i], chosen.clone())),
            // Lowering refuses it with the same reason.
            Err(LowerError::Unsupported { .. }) => {}
            Err(defect @ LowerError::Invariant { .. }) => return Err(not_lowered(defect)),
        }
    }
    Ok(())
}
/// The kernels that differ in names, buffers and reasons alone, the earliest first: what is decided for one of them
/// holds for all.
pub(super) fn alike(kernels: &[kiln_plan::Kernel]) -> Vec<Vec<usize>> {
    let mut found: Vec<Vec<usize>> = vec![];
    let mut known: HashMap<String, usize> = HashMap::new();
    for (i, k) in kernels.iter().enumerate() {
        let (body, asked) = (kiln_graph::text::print(&k.body.bare()), k.schedule.as_ref().map(Schedule::to_string));
        let (kind, invariant) = (k.kind.name(), k.batch_invariant);
        let key = format!("{kind} {invariant} {:?} {:?} {asked:?} {body}", k.rounding, k.precision);
        let at = *known.entry(key).or_insert(found.len());
        if at == found.len() {
            found.push(vec![]);
        }
        found[at].push(i);
    }
    found
}
pub(super) fn take(kernel: &mut kiln_plan::Kernel, chosen: kiln_lower::Chosen) {
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
) -> Result<Plan, RewriteError> {
    let search = kiln_rewrite::Options { contract: options.contract, fuse: options.fuse };
    kiln_rewrite::plan_under(&model.graph, options.machine(), &search, constraints)
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
