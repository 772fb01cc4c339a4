//! What was fused, why, at what predicted cost. One struct feeds the text and the JSON.
use crate::compile::{Compiled, Timings};
use kiln_graph::{Graph, Op, ValueId};
use kiln_plan::{Kernel, Search, Stage, exec::Work};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write as _};

/// `explain --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub schema: u32,
    pub model: String,
    pub target: String,
    pub machine: String,
    pub numerics: String,
    /// Ops of the imported graph, without leaves.
    pub nodes: usize,
    pub kernels: Vec<KernelReport>,
    /// Kernels that run once, when weights are loaded.
    pub load_kernels: Vec<KernelReport>,
    /// Ops that libtorch or the interpreter runs.
    pub fallback: Vec<String>,
    /// The same with reasons.
    pub fallback_why: Vec<Fallback>,
    pub lower_bound_us: f64,
    pub predicted_us: f64,
    pub search: Search,
    pub timings: Timings,
}

#[derive(Clone, Debug, Serialize)]
pub struct Fallback {
    pub op: String,
    pub kernel: String,
    pub why: String,
    pub line: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    pub name: String,
    pub kind: String,
    /// Ops in order, without leaves.
    pub nodes: Vec<String>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub flops: u64,
    pub predicted_us: f64,
    pub reason: String,
    pub rules: Vec<String>,
    pub alternative: Option<kiln_plan::Alternative>,
    pub stops: Vec<kiln_plan::Stop>,
    /// Module paths and source lines that the ops come from.
    pub modules: Vec<String>,
    pub lines: Vec<String>,
    /// Block programs and library calls that carry it out.
    pub launches: usize,
}

/// A short name of an op, as the text form spells it.
pub fn op_name(op: &Op) -> String {
    match op {
        Op::Fallback(f) => f.name.clone(),
        _ => op.name().into(),
    }
}

fn is_leaf(op: &Op) -> bool {
    matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_))
}

fn ops(g: &Graph) -> impl Iterator<Item = ValueId> + '_ {
    g.values().filter(|v| !is_leaf(g.op(*v)))
}

impl Report {
    pub fn new(c: &Compiled) -> Report {
        let (mut run, mut load, mut fallback_why) = (vec![], vec![], vec![]);
        for (kernel, steps) in c.plan.kernels.iter().zip(&c.steps) {
            let list = if kernel.stage == Stage::Run { &mut run } else { &mut load };
            list.push(kernel_report(kernel, steps.steps.len()));
            for work in &steps.steps {
                let (names, why) = match work {
                    Work::Fallback(op) => (vec![op.name.clone()], op.why.clone()),
                    Work::Interpret { body, why } => {
                        (ops(&body.0).map(|v| op_name(body.0.op(v))).collect(), why.clone())
                    }
                    _ => continue,
                };
                let line = ops(&kernel.body).map(|v| kernel.body.source(v).line.clone()).find(|l| !l.is_empty());
                let (kernel, line) = (kernel.name.clone(), line.unwrap_or_default());
                let one = |op| Fallback { op, kernel: kernel.clone(), why: why.clone(), line: line.clone() };
                fallback_why.extend(names.into_iter().map(one));
            }
        }
        Report {
            schema: 1,
            model: c.graph.name.clone(),
            target: c.options.target.name().into(),
            machine: c.plan.machine.clone(),
            numerics: format!("{:?}", c.plan.numerics).to_lowercase(),
            nodes: ops(&c.graph).count(),
            kernels: run,
            load_kernels: load,
            fallback: fallback_why.iter().map(|f| f.op.clone()).collect(),
            fallback_why,
            lower_bound_us: c.plan.lower_bound_us,
            predicted_us: c.plan.predicted_us(),
            search: c.plan.search.clone(),
            timings: c.timings,
        }
    }

    /// The summary and the table, for a terminal.
    pub fn text(&self) -> String {
        let mut t = String::new();
        let fallback = match self.fallback.len() {
            0 => "nothing falls back".to_string(),
            n => format!("{n} ops fall back"),
        };
        let _ = writeln!(
            t,
            "{}: {} ops became {} kernels on {}; predicted {:.1} us, lower bound {:.1} us; {fallback}",
            self.model,
            self.nodes,
            self.kernels.len(),
            self.target,
            self.predicted_us,
            self.lower_bound_us
        );
        let _ = writeln!(
            t,
            "e-graph: {} nodes to {} in {} iterations ({}); {} candidates\n",
            self.search.enodes_before,
            self.search.enodes_after,
            self.search.iterations,
            self.search.stopped,
            self.search.candidates
        );
        let width = self.kernels.iter().map(|k| k.name.len()).max().unwrap_or(0).clamp(6, 32);
        let _ = writeln!(t, "{:width$}  {:>4}  {:>9}  {:>9}  {:>9}  why", "kernel", "ops", "MB", "Mflop", "us");
        for k in &self.kernels {
            let _ = writeln!(
                t,
                "{:width$}  {:>4}  {:>9.3}  {:>9.3}  {:>9.2}  {}",
                k.name,
                k.nodes.len(),
                (k.bytes_read + k.bytes_written) as f64 / 1e6,
                k.flops as f64 / 1e6,
                k.predicted_us,
                k.reason
            );
        }
        let mut why: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        self.fallback_why.iter().for_each(|f| *why.entry((&f.op, &f.why)).or_default() += 1);
        if !why.is_empty() {
            let _ = writeln!(t, "\nfalls back:");
            for ((op, why), n) in why {
                let _ = writeln!(t, "  {n} x {op}: {why}");
            }
        }
        t
    }
}

fn kernel_report(k: &Kernel, launches: usize) -> KernelReport {
    let set = |f: &dyn Fn(ValueId) -> String| {
        let all: std::collections::BTreeSet<String> = ops(&k.body).map(f).filter(|s| !s.is_empty()).collect();
        all.into_iter().collect::<Vec<_>>()
    };
    KernelReport {
        name: k.name.clone(),
        kind: k.kind.name().into(),
        nodes: ops(&k.body).map(|v| op_name(k.body.op(v))).collect(),
        bytes_read: k.cost.bytes_read,
        bytes_written: k.cost.bytes_written,
        flops: k.cost.flops(),
        predicted_us: k.cost.us,
        reason: reason(k),
        rules: k.reason.rules.clone(),
        alternative: k.reason.alternative.clone(),
        stops: k.reason.stops.clone(),
        modules: set(&|v| k.body.source(v).module.clone()),
        lines: set(&|v| k.body.source(v).line.clone()),
        launches,
    }
}

/// One clause a fact.
fn reason(k: &Kernel) -> String {
    let mut parts = vec![];
    let n = ops(&k.body).count();
    if n > 1 {
        let saved: u64 = {
            let stored: Vec<ValueId> = k.body.outputs.clone();
            let inner = ops(&k.body).filter(|v| !stored.contains(v));
            inner.map(|v| 2 * k.body.ty(v).bytes() as u64).sum()
        };
        parts.push(format!("{n} ops in one pass keep {:.2} MB out of memory", saved as f64 / 1e6));
    }
    if !k.reason.rules.is_empty() {
        parts.push(format!("rules: {}", k.reason.rules.join(", ")));
    }
    if let Some(a) = &k.reason.alternative {
        parts.push(format!("next best: {} at {:.2} us", a.what, a.us));
    }
    if let Some(s) = k.reason.stops.first() {
        let more =
            if k.reason.stops.len() > 1 { format!(" (and {} more)", k.reason.stops.len() - 1) } else { String::new() };
        parts.push(format!("not with {}: {}{more}", s.kernel, s.why));
    }
    if parts.is_empty() { "an op alone".into() } else { parts.join("; ") }
}
