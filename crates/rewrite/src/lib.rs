//! Fusion as equality: from a graph to the kernels that compute it.
//!
//! Takes: a verified [`Graph`], a [`Machine`], [`Options`]. Gives: a [`Plan`], the same for the same input, byte for byte.
//! Stages: the graph as an e-graph of values, saturated by rules as data; one form per value, chosen together with
//! the kernels that compute it (`planner`), each of which is legal (`region`) and priced by a roofline (`cost`); bodies (`emit`).
//! Never: kernels, loads or stores in the e-graph; clocks; how a kernel is lowered.
pub mod body;
pub mod checker;
pub mod class;
pub mod cost;
pub mod dag;
pub mod emit;
pub mod planner;
pub mod region;
pub mod space;

use checker::Checker;
use dag::{Dag, Program};
use kiln_graph::Graph;
use kiln_plan::{Machine, Numerics, Plan};

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
    let program = Program::of_graph(g);
    let dag = Dag::run(&program);
    let choose: emit::Choose = if options.fuse { planner::fused } else { planner::unfused };
    let kernels = choose(&dag, &mut check);
    let mut plan = emit::emit(g, &program, (&dag, &kernels), choose, &mut check, options.numerics)?;
    plan.search = emit::search(&check, kernels.seconds(), "not started");
    Ok(plan)
}
