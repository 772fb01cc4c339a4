//! Fusion as equality: from a graph to the kernels that compute it.
//!
//! Takes: a verified [`Graph`], a [`Machine`], [`Options`]. Gives: a [`Plan`], the same for the same input, byte for byte.
//! Stages: the graph as an e-graph of values, saturated by rules as data; one form per value, chosen together with
//! the kernels that compute it (`planner`), each of which is legal (`region`) and priced by a roofline (`cost`); bodies (`emit`).
//! Never: kernels, loads or stores in the e-graph; clocks; how a kernel is lowered.
pub mod body;
pub mod build;
pub mod checker;
pub mod class;
pub mod cost;
pub mod dag;
pub mod emit;
pub mod extract;
pub mod language;
pub mod pattern;
pub mod planner;
pub mod region;
pub mod rules;
pub mod space;

use build::Builder;
use checker::Checker;
use dag::{Dag, Program};
use emit::Fusion;
use kiln_graph::Graph;
use kiln_plan::{Machine, Numerics, Plan, Search};

/// What the caller allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// How far results may differ from the graph as written.
    pub numerics: Numerics,
    /// `false`: one kernel per op, views aside, as a framework runs it.
    pub fuse: bool,
}
impl Default for Options {
    fn default() -> Options {
        Options { numerics: Numerics::default(), fuse: true }
    }
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RewriteError {
    #[error(
        "planning the graph failed: kernels wait for each other; please report this graph, and run it unfused meanwhile"
    )]
    Cycle,
}

/// The kernels that compute `g` on `machine`.
pub fn plan(g: &Graph, machine: &Machine, options: &Options) -> Result<Plan, RewriteError> {
    let mut check = Checker::new(machine);
    if !options.fuse {
        let program = Program::of_graph(g);
        let dag = Dag::run(&program);
        let kernels = Fusion::Unfused.kernels(&dag, &mut check);
        let mut plan = emit::emit(g, &program, (&dag, &kernels), Fusion::Unfused, &mut check, options.numerics)?;
        plan.search = Search { stopped: "not fused".to_string(), ..Search::default() };
        return Ok(plan);
    }
    let (builder, ids) = Builder::import(g);
    let roots: Vec<egg::Id> = g.outputs.iter().map(|o| ids[o.0 as usize]).collect();
    let (before, written) = (builder.g.total_number_of_nodes(), extract::written(&builder));
    let saturated = rules::saturate(builder, options.numerics);
    let best = extract::Extractor::new(&saturated, &roots, &written).best(&mut check).ok_or(RewriteError::Cycle)?;
    let mut plan =
        emit::emit(g, &best.program, (&best.dag, &best.kernels), Fusion::Fused, &mut check, options.numerics)?;
    plan.search = Search {
        iterations: saturated.iterations,
        enodes_before: before,
        enodes_after: saturated.builder.g.total_number_of_nodes(),
        stopped: saturated.stopped.to_string(),
        candidates: check.distinct(),
        greedy_us: cost::microseconds(best.first_seconds),
    };
    Ok(plan)
}
