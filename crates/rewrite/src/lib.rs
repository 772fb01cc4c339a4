//! The planner: rewrites a graph by equality saturation and partitions it into kernels.
//!
//! Takes: a verified [`Graph`], a [`Machine`], [`Options`]. Gives: a [`Plan`], byte for byte the same for the same
//! input. Stages: import into an e-graph of tensor values (`build`), which the rules saturate (`rules`) and to which
//! templates are added (`forms`); one form per value, chosen together with the kernels that compute it (`extract`,
//! `planner`), each of which is a legal region (`region`) with a roofline (`cost`); programs that multiply something
//! else are compared by the prices of schedules (`compare`, `prices`); kernel bodies and reasons (`emit`). Never:
//! kernels, loads or stores in the e-graph; decisions by wall-clock time; how a kernel is lowered.
//!
//! Fusion is an equality too, but only values saturate in the e-graph, not kernels: a kernel is a legal region of the
//! chosen program. Composite ops (softmax, layer norm, attention, …) stay whole; if a rule recognises one, it is added
//! next to the primitives it was written in.
//!
//! Planning work is proportional to the size of the graph, wide or deep (`benches/growth.py`; counted, not timed, in
//! `tests/growth.rs`):
//! - A concatenation of more than 32 parts is built in steps (`concat`), since each part is one more choice for every
//!   element.
//! - A kernel has at most 160 values and 256 buffers (`region`).
//! - Of many readers of one value, a kernel is paired with the 16 created just before it and the 16 just after, and its
//!   own readers are considered 32 at a time (`planner`).
//! - The topological order of the kernels, which detects merges that would create a cycle, is updated incrementally
//!   (`planner/kernel_order.rs`).
pub mod body;
pub mod build;
pub mod certificate;
pub mod checker;
pub mod compare;
pub mod concat;
mod constants;
pub mod constraints;
pub mod cost;
pub mod dag;
pub mod emit;
pub mod extract;
pub mod forms;
pub mod impossible;
pub mod language;
pub mod names;
pub mod pattern;
pub mod planner;
pub mod prices;
pub mod proof;
pub mod region;
pub mod regions;
pub mod rules;
pub mod space;
pub mod why;

use build::Builder;
use checker::Checker;
use compare::{Planned, improves};
pub use constraints::{Constraints, FormOf, Group, Pinned};
use dag::{Dag, Program};
use emit::Fusion;
use extract::{Best, Extractor};
use impossible::Impossible;
use kiln_graph::{Graph, Op, decompose::decompose_all};
use kiln_machine::Machine;
use kiln_plan::{Contract, Hardware, Plan, Search};
pub use prices::{Candidate, Launches, Priced, Prices, TargetInfo};
use proof::Prover;
pub use proof::{Proofs, Step};
use std::collections::BTreeMap;

/// What the caller allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How results may differ from the graph as written.
    pub contract: Contract,
    /// `false`: one kernel per op (views excepted), as a framework runs the graph.
    pub fuse: bool,
}
impl Default for Options {
    fn default() -> Options {
        Options { contract: Contract::default(), fuse: true }
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RewriteError {
    #[error(
        "planning the graph failed: kernels depend on each other in a cycle; please report this graph, and run it unfused meanwhile"
    )]
    Cycle,
    #[error("{constraint} cannot be met: {why}")]
    Impossible { constraint: String, why: String },
}
impl From<Impossible> for RewriteError {
    fn from(i: Impossible) -> RewriteError {
        RewriteError::Impossible { constraint: i.constraint, why: i.why }
    }
}

/// The kernels that compute `g` on `machine`.
pub fn plan(g: &Graph, machine: &Machine, options: &Options) -> Result<Plan, RewriteError> {
    plan_under(g, machine, options, &Constraints::default())
}

/// The kernels that compute `g` on `machine` under `constraints`: the cheapest that meet them all, among the programs
/// that the search without constraints tries. An unfused plan ignores constraints.
pub fn plan_under(
    g: &Graph,
    machine: &Machine,
    options: &Options,
    constraints: &Constraints,
) -> Result<Plan, RewriteError> {
    plan_counted(g, machine, options, constraints).map(|p| p.0)
}

/// The same, with the form of every kernel that multiplies: the cheapest of those that rules give it.
pub fn plan_priced(
    g: &Graph,
    machine: &Machine,
    options: &Options,
    constraints: &Constraints,
    target: TargetInfo,
) -> Result<Plan, RewriteError> {
    let hardware = Hardware { machine, contract: options.contract };
    Ok(search(g, options, constraints, &mut Checker::new(&hardware).with_target(target), false)?.0)
}

/// The work of planning: counts, not times.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Regions checked.
    pub regions: usize,
    /// Members and operands of these regions.
    pub values: usize,
    /// Kernels visited in searches of their dependencies.
    pub steps: usize,
}

/// [`plan_under`] with counts of its work.
pub fn plan_counted(
    g: &Graph,
    machine: &Machine,
    options: &Options,
    constraints: &Constraints,
) -> Result<(Plan, Work), RewriteError> {
    let hardware = Hardware { machine, contract: options.contract };
    let mut check = Checker::new(&hardware);
    let plan = search(g, options, constraints, &mut check, false)?.0;
    Ok((plan, check.work))
}

/// How rules lead from the graph as it was written to the body of each kernel of [`plan_under`]. An unfused plan has no
/// steps.
pub fn proofs(
    g: &Graph,
    machine: &Machine,
    options: &Options,
    constraints: &Constraints,
    target: TargetInfo,
) -> Result<Proofs, RewriteError> {
    let hardware = Hardware { machine, contract: options.contract };
    Ok(search(g, options, constraints, &mut Checker::new(&hardware).with_target(target), true)?.1.steps)
}

/// A plan, and all that shows that it computes the graph.
pub struct Certified {
    pub plan: Plan,
    /// What was stated, in order.
    pub entries: Vec<certificate::Entry>,
    /// By kernel: which applications of rules, counted among all of them, lead to its body.
    pub applications: BTreeMap<String, Vec<usize>>,
}

/// The plan of [`plan_under`] with the steps to it. An unfused plan has none.
pub fn certified(
    g: &Graph,
    machine: &Machine,
    options: &Options,
    constraints: &Constraints,
    target: TargetInfo,
) -> Result<Certified, RewriteError> {
    let hardware = Hardware { machine, contract: options.contract };
    let (plan, proofs) = search(g, options, constraints, &mut Checker::new(&hardware).with_target(target), true)?;
    let Found { entries, applications, .. } = proofs;
    Ok(Certified { plan, entries, applications })
}

/// What leads to the kernels of a plan.
#[derive(Default)]
struct Found {
    steps: Proofs,
    entries: Vec<certificate::Entry>,
    applications: BTreeMap<String, Vec<usize>>,
}

/// The plan; and the steps to its kernels, if they are wanted.
fn search(
    g: &Graph,
    options: &Options,
    constraints: &Constraints,
    check: &mut Checker,
    prove: bool,
) -> Result<(Plan, Found), RewriteError> {
    if !options.fuse {
        // The host has no kernel of attention with a score function, or of its log-sum-exp.
        let in_steps = Op::is_attention_of_steps;
        let split = g.values().any(|v| in_steps(g.op(v))) && !check.machine.arch.is_gpu();
        let steps = if split { decompose_all(g, in_steps).ok() } else { None };
        let g = steps.as_ref().unwrap_or(g);
        let program = Program::of_graph(g);
        let dag = Dag::run(&program);
        let kernels = Fusion::Unfused.kernels(&dag, check);
        let how = (Fusion::Unfused, None);
        let (mut plan, members) = emit::emit(g, &program, (&dag, &kernels), how, check)?;
        plan.search = Search { stopped: "not fused".to_string(), ..Search::default() };
        let steps = members.into_iter().map(|(name, _)| (name, vec![])).collect();
        return Ok((plan, Found { steps, ..Found::default() }));
    }
    let (mut builder, ids) = if prove { Builder::logged(g) } else { Builder::import(g) };
    builder.tile = check.machine.templates.tile;
    let roots: Vec<egg::Id> = g.outputs.iter().map(|o| ids[o.0 as usize]).collect();
    let (before, written) = (builder.g.total_number_of_nodes(), extract::written(&builder));
    let mut saturated = rules::saturate(builder, options.contract.rules());
    forms::add(&mut saturated, check.machine);
    let mut extractor = Extractor::new(&saturated, &roots, &ids, &written);
    let mut best = extractor.best(check).ok_or(RewriteError::Cycle)?;
    let mut limits = None;
    if !constraints.is_empty() {
        let tried = std::mem::take(&mut extractor.tried);
        let found = within(g, best, tried, constraints, check)?;
        (best, limits) = (found.0, Some(found.1));
    }
    let candidates = check.distinct();
    let how = (Fusion::Fused, limits.as_ref());
    let (mut plan, members) = emit::emit(g, &best.program, (&best.dag, &best.kernels), how, check)?;
    plan.search = Search {
        iterations: saturated.iterations,
        enodes_before: before,
        enodes_after: saturated.builder.g.total_number_of_nodes(),
        stopped: saturated.stopped.to_string(),
        candidates,
        tried: best.tried,
        greedy_us: cost::microseconds(best.first_seconds),
    };
    let mut found = Found::default();
    if prove {
        let prover = Prover::new(&saturated, &ids);
        let form = |v: usize| extractor.form(&best.program.nodes[v]);
        for (name, members) in members {
            let forms: Vec<_> = members.into_iter().filter_map(form).collect();
            found.applications.insert(name.clone(), prover.applications(forms.iter().copied()).into_iter().collect());
            let mut steps = prover.steps(forms.into_iter());
            steps.extend(plan.kernels.iter().find(|k| k.name == name).into_iter().flat_map(proof::of_form));
            found.steps.insert(name, steps);
        }
        found.entries =
            certificate::entries(saturated.builder.log.as_deref().unwrap_or_default(), &saturated.builder.g);
    }
    Ok((plan, found))
}

/// The cheapest plan under `constraints`, over the programs tried: that of `best` unless another improves on it. The
/// roofline of a program without constraints is a lower bound of that under constraints.
fn within(
    g: &Graph,
    best: Best,
    mut tried: Vec<(f64, Program)>,
    constraints: &Constraints,
    check: &mut Checker,
) -> Result<(Best, planner::Limits), RewriteError> {
    tried.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first_seconds, count, unconstrained) = (best.first_seconds, best.tried, best.kernels.seconds());
    tried.insert(0, (unconstrained, best.program));
    let (mut found, mut refused): (Option<(Best, planner::Limits)>, Option<Impossible>) = (None, None);
    for (least, program) in tried {
        let mut dag = Dag::run(&program);
        let have = found.as_ref().map(|f| Planned::new(&f.0.dag, &f.0.kernels));
        // The best of all programs, whose constraints cost nothing.
        if have.is_some_and(|have| have.kernels.seconds() <= unconstrained) {
            break;
        }
        if have.is_some_and(|have| have.refuses(&dag, least, check)) {
            continue;
        }
        let planned = constraints::resolve(g, &program, &mut dag, constraints)
            .and_then(|limits| Ok((planner::fused_under(&dag, check, &limits)?, limits)));
        match planned {
            Ok((kernels, limits)) if have.is_none_or(|have| improves(&have, &Planned::new(&dag, &kernels), check)) => {
                found = Some((Best { program, dag, kernels, first_seconds, tried: count }, limits));
            }
            Ok(_) => {}
            Err(e) => {
                refused.get_or_insert(e);
            }
        }
    }
    match (found, refused) {
        (Some(found), _) => Ok(found),
        (None, Some(e)) => Err(e.into()),
        (None, None) => Err(RewriteError::Cycle),
    }
}
