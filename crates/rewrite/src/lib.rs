//! Fusion as equality: from a graph to the kernels that compute it.
//!
//! Takes: a verified [`Graph`], a [`Machine`], [`Options`]. Gives: a [`Plan`], the same for the same input, byte for byte.
//! Stages: the graph as an e-graph of values, saturated by rules as data; one form per value, chosen together with
//! the kernels that compute it (`planner`), each of which is legal (`region`) and priced by a roofline (`cost`); bodies (`emit`).
//! Never: kernels, loads or stores in the e-graph; clocks; how a kernel is lowered.
pub mod body;
pub mod build;
pub mod checker;
pub mod concat;
pub mod constraints;
pub mod cost;
pub mod dag;
pub mod emit;
pub mod extract;
pub mod language;
pub mod names;
pub mod pattern;
pub mod planner;
pub mod region;
pub mod rules;
pub mod space;
pub mod why;

use build::Builder;
use checker::Checker;
use constraints::Impossible;
pub use constraints::{Constraints, Group, Pinned};
use dag::{Dag, Program};
use emit::Fusion;
use extract::{Best, Extractor};
use kiln_graph::Graph;
use kiln_machine::Machine;
use kiln_plan::{Contract, Hardware, Plan, Search};

/// What the caller allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How results may differ from the graph as written.
    pub contract: Contract,
    /// `false`: one kernel per op, views aside, as a framework runs it.
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
        "planning the graph failed: kernels wait for each other; please report this graph, and run it unfused meanwhile"
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

/// The kernels that compute `g` on `machine` within `constraints`: the cheapest that meet them all, over the forms that the
/// search without them tries. An unfused plan knows no constraints.
pub fn plan_under(
    g: &Graph,
    machine: &Machine,
    options: &Options,
    constraints: &Constraints,
) -> Result<Plan, RewriteError> {
    plan_counted(g, machine, options, constraints).map(|p| p.0)
}

/// What planning took, counted and not timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Regions asked about.
    pub regions: usize,
    /// Their members and operands.
    pub values: usize,
    /// Kernels met in questions about their order.
    pub steps: usize,
}

/// As [`plan_under`], with what it took.
pub fn plan_counted(
    g: &Graph,
    machine: &Machine,
    options: &Options,
    constraints: &Constraints,
) -> Result<(Plan, Work), RewriteError> {
    let hardware = Hardware { machine, contract: options.contract };
    let mut check = Checker::new(&hardware);
    let plan = search(g, options, constraints, &mut check)?;
    Ok((plan, check.work))
}

fn search(g: &Graph, options: &Options, constraints: &Constraints, check: &mut Checker) -> Result<Plan, RewriteError> {
    if !options.fuse {
        let program = Program::of_graph(g);
        let dag = Dag::run(&program);
        let kernels = Fusion::Unfused.kernels(&dag, check);
        let how = (Fusion::Unfused, None);
        let mut plan = emit::emit(g, &program, (&dag, &kernels), how, check)?;
        plan.search = Search { stopped: "not fused".to_string(), ..Search::default() };
        return Ok(plan);
    }
    let (builder, ids) = Builder::import(g);
    let roots: Vec<egg::Id> = g.outputs.iter().map(|o| ids[o.0 as usize]).collect();
    let (before, written) = (builder.g.total_number_of_nodes(), extract::written(&builder));
    let saturated = rules::saturate(builder, options.contract.rules());
    let mut extractor = Extractor::new(&saturated, &roots, &ids, &written);
    let mut best = extractor.best(check).ok_or(RewriteError::Cycle)?;
    let mut limits = None;
    if !constraints.is_empty() {
        let found = within(g, best, extractor.tried, constraints, check)?;
        (best, limits) = (found.0, Some(found.1));
    }
    let candidates = check.distinct();
    let how = (Fusion::Fused, limits.as_ref());
    let mut plan = emit::emit(g, &best.program, (&best.dag, &best.kernels), how, check)?;
    plan.search = Search {
        iterations: saturated.iterations,
        enodes_before: before,
        enodes_after: saturated.builder.g.total_number_of_nodes(),
        stopped: saturated.stopped.to_string(),
        candidates,
        tried: best.tried,
        greedy_us: cost::microseconds(best.first_seconds),
    };
    Ok(plan)
}

/// The cheapest plan within `constraints`, over the programs tried. `best` comes first, then the others by their price without
/// constraints, which is the least they can cost within them.
fn within(
    g: &Graph,
    best: Best,
    mut tried: Vec<(f64, Program)>,
    constraints: &Constraints,
    check: &mut Checker,
) -> Result<(Best, planner::Limits), RewriteError> {
    tried.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first_seconds, count) = (best.first_seconds, best.tried);
    tried.insert(0, (best.kernels.seconds(), best.program));
    let (mut found, mut refused): (Option<(Best, planner::Limits)>, Option<Impossible>) = (None, None);
    for (least, program) in tried {
        let have = found.as_ref().map(|f| f.0.kernels.seconds() * (1. - 1e-6));
        if have.is_some_and(|have| have <= least) {
            break;
        }
        let mut dag = Dag::run(&program);
        let planned = constraints::resolve(g, &program, &mut dag, constraints)
            .and_then(|limits| Ok((planner::fused_under(&dag, check, &limits)?, limits)));
        match planned {
            Ok((kernels, limits)) if have.is_none_or(|have| kernels.seconds() < have) => {
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
