//! Planning of graphs written as text; every plan is verified and its text parsed back.
#![allow(dead_code)] // each test binary uses its own part
use kiln_graph::Graph;
use kiln_plan::{KernelKind, Machine, Numerics, Plan, Stage};
use kiln_rewrite::{Options, plan};

pub fn h200() -> Machine {
    kiln_plan::machines::machine("h200").expect("h200 is built in")
}
pub fn graph(text: &str) -> Graph {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}
pub fn plan_with(g: &Graph, options: Options) -> Plan {
    let p = plan(g, &h200(), &options).unwrap_or_else(|e| panic!("{e}\n{g}"));
    let text = p.to_string();
    if let Err(e) = kiln_plan::verify::verify(&p) {
        panic!("{e}\n{g}\n{text}");
    }
    let again: Plan = text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(again.to_string(), text);
    p
}
pub fn fused(text: &str) -> Plan {
    plan_with(&graph(text), Options::default())
}
pub fn exact(text: &str) -> Plan {
    plan_with(&graph(text), Options { numerics: Numerics::Exact, fuse: true })
}
pub fn unfused(text: &str) -> Plan {
    plan_with(&graph(text), Options { fuse: false, ..Options::default() })
}
pub fn planned(text: &str) {
    fused(text);
    exact(text);
    unfused(text);
}
/// Kinds of the kernels of a run.
pub fn kinds(p: &Plan) -> Vec<KernelKind> {
    p.kernels.iter().filter(|k| k.stage == Stage::Run).map(|k| k.kind).collect()
}
