//! Builds the report of a compiled model.
use super::*;
use crate::compile::{Compiled, ProgramId};
use crate::launches::definition;
use kiln_graph::ops::Class;
use kiln_graph::{DType, Graph, Op, Type, ValueId};
use kiln_lower::price::Price;
use kiln_plan::{
    BufferId, BufferKind, Form, FormNeeds, Kernel, Numerics, Plan, Precision, Stage,
    exec::{Slot, Steps, Work},
    form::computed_operands,
};
use kiln_rewrite::{cost::terms, region::Reject, rules};
use std::collections::{BTreeMap, BTreeSet};

fn is_leaf(op: &Op) -> bool {
    matches!(op, Op::Input(_) | Op::Param(_) | Op::Const(_))
}

/// Values that are neither inputs, parameters nor constants.
pub fn ops(g: &Graph) -> impl Iterator<Item = ValueId> + '_ {
    g.values().filter(|v| !is_leaf(g.op(*v)))
}

/// Tables over the whole plan that the reports of kernels look up.
struct Facts<'a> {
    plan: &'a Plan,
    graph: &'a Graph,
    /// Names of the kernels that write and read a buffer.
    writers: BTreeMap<BufferId, &'a str>,
    readers: BTreeMap<BufferId, Vec<&'a str>>,
    /// Names of the values that kernels write to buffers.
    stored: BTreeMap<BufferId, &'a str>,
    results: BTreeSet<BufferId>,
    /// For each computed value, by its unique name, the kernels that compute it.
    homes: BTreeMap<&'a str, Vec<&'a str>>,
    /// Values of the graph that some kernel computes.
    present: BTreeSet<ValueId>,
    /// For each buffer, the values of the graph that a rule computes from it, with the rule's name.
    made_of: BTreeMap<BufferId, Vec<(&'a str, ValueId)>>,
}

impl Report {
    /// The report of a compiled model.
    pub fn new(c: &Compiled) -> Report {
        let facts = Facts::new(&c.plan, &c.graph);
        let (mut run, mut load, mut fallback_why) = (vec![], vec![], vec![]);
        // Layers repeat: kernels with equal bodies have the same schedules and forms.
        let mut alike: BTreeMap<String, (Vec<ScheduleReport>, Vec<FormReport>)> = BTreeMap::new();
        for (kernel, steps) in c.plan.kernels.iter().zip(&c.steps) {
            let list = if kernel.stage == Stage::Run { &mut run } else { &mut load };
            let mut report = facts.kernel(kernel, steps.steps.len());
            report.loop_ends = facts.loop_ends(c, kernel, steps);
            report.schedule = kernel.schedule.as_ref().map(|s| s.to_string());
            let same = format!("{:?} {:?} {}", kernel.schedule, kernel.precision, kernel.body.bare());
            (report.schedules, report.forms) =
                alike.entry(same).or_insert_with(|| (schedules(c, kernel), forms(c, kernel))).clone();
            report.invariance_us = invariance_us(c, kernel);
            list.push(report);
            for work in &steps.steps {
                let (names, why) = match work {
                    Work::Fallback(call) => (vec![call.op.name.clone()], call.op.why.clone()),
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
        let unpriced = run.iter().filter(|k| k.predicted_us.is_none()).count();
        Report {
            schema: SCHEMA,
            model: c.graph.name.clone(),
            target: c.options.target.name().into(),
            machine: c.plan.machine.clone(),
            numerics: c.plan.contract.to_string(),
            nodes: ops(&c.graph).count(),
            kernels: run,
            load_kernels: load,
            fallback: fallback_why.iter().map(|f| f.op.clone()).collect(),
            fallback_why,
            // A bound above what is predicted would be none.
            lower_bound_us: c.plan.lower_bound_us.min(c.plan.predicted_us()),
            predicted_us: c.plan.predicted_us(),
            roofline_us: c.plan.roofline_us(),
            unpriced,
            search: c.plan.search.clone(),
        }
    }
}

/// Values of the graph among the names of an origin.
fn graph_values(names: &[String]) -> impl Iterator<Item = ValueId> + '_ {
    names.iter().filter_map(|n| n.strip_prefix('%')?.parse().ok().map(ValueId))
}

impl<'a> Facts<'a> {
    fn new(plan: &'a Plan, graph: &'a Graph) -> Facts<'a> {
        let (writers, readers, homes) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (present, made_of) = (BTreeSet::new(), BTreeMap::new());
        let (stored, results) = (crate::constraints::stored_names(plan), plan.outputs.iter().copied().collect());
        let mut f = Facts { plan, graph, writers, readers, stored, results, homes, present, made_of };
        for k in &plan.kernels {
            f.writers.extend(k.outputs.iter().map(|b| (*b, k.name.as_str())));
            for b in k.inputs.iter().collect::<BTreeSet<_>>() {
                f.readers.entry(*b).or_default().push(&k.name);
            }
            for o in &k.reason.origins {
                if let Some(name) = o.names.first() {
                    f.homes.entry(name).or_default().push(&k.name);
                }
                f.present.extend(graph_values(&o.names));
                let (Some(v), [rule, ..]) = (graph_values(&o.names).next(), &o.rules[..]) else { continue };
                for a in k.body.args(o.value) {
                    if let Op::Input(i) = k.body.op(a) {
                        f.made_of.entry(k.inputs[*i as usize]).or_default().push((rule.as_str(), v));
                    }
                }
            }
        }
        f
    }

    fn kernel(&self, k: &Kernel, launches: usize) -> KernelReport {
        let set = |f: &dyn Fn(ValueId) -> String| {
            let all: BTreeSet<String> = ops(&k.body).map(f).filter(|s| !s.is_empty()).collect();
            all.into_iter().collect::<Vec<_>>()
        };
        let anchor = k.body.values().find(|v| Class::of(k.body.op(*v)).is_anchor());
        let launch = k.body.values().find(|v| matches!(k.body.op(*v), Op::Launch(_)));
        let operand = anchor.and_then(|v| k.body.args(v).first().copied());
        let dtype = operand.map_or(DType::F32, |v| k.body.dtype(v));
        let terms = kiln_machine::machine(&self.plan.machine).map(|m| {
            let rate = match k.precision {
                Precision::Exact => None,
                Precision::Tf32x3 => m.rates.tf32x3,
                Precision::Tf32 => m.rates.tf32,
            };
            let rate = match anchor.or(launch).map(|v| (v, k.body.op(v))) {
                Some((v, Op::Launch(launch))) => {
                    let types: Vec<&Type> = k.body.args(v).iter().map(|a| k.body.ty(*a)).collect();
                    m.matrix_rate(kiln_lower::launch_access(launch, &types).dot_type)
                }
                Some((v, Op::Attention { causal, .. })) if m.arch.is_gpu() => attention_rate(k, v, *causal, m),
                _ => rate.unwrap_or(m.matrix_rate(dtype.name())),
            };
            terms(&k.cost, rate, m)
        });
        let rewrites = self.rewrites(k);
        KernelReport {
            name: k.name.clone(),
            kind: k.kind.name().into(),
            nodes: ops(&k.body).map(|v| op_name(k.body.op(v))).collect(),
            bytes_read: k.cost.bytes_read,
            bytes_written: k.cost.bytes_written,
            flops: k.cost.flops(),
            predicted_us: k.cost.us,
            roofline_us: k.cost.roofline_us,
            reason: reason(k),
            terms: terms.unwrap_or_default(),
            ops: ops(&k.body).map(|v| self.op(k, v)).collect(),
            program: launch.map(|v| op_name(k.body.op(v))),
            inputs: k.inputs.iter().map(|b| self.buffer(*b)).collect(),
            outputs: k.outputs.iter().map(|b| self.buffer(*b)).collect(),
            numerics: class(k).name().into(),
            rules: k.reason.rules.clone(),
            rewrites,
            alternative: k.reason.alternative.clone(),
            stops: k.reason.stops.iter().map(stop).collect(),
            modules: set(&|v| k.body.source(v).module.clone()),
            lines: set(&|v| k.body.source(v).line.clone()),
            launches,
            loop_ends: vec![],
            form: k.form.map(|f| f.to_string()),
            form_needs: k
                .form
                .map_or(vec![], |_| FormNeeds::of(&k.body).names())
                .into_iter()
                .map(String::from)
                .collect(),
            forms: vec![],
            schedule: None,
            schedules: vec![],
            invariance_us: None,
            tuning: k.reason.tuning.clone(),
        }
    }

    /// Names of the buffers from which programs read where a loop ends.
    fn loop_ends(&self, c: &Compiled, k: &Kernel, steps: &Steps<ProgramId>) -> Vec<String> {
        let mut names = BTreeSet::new();
        // On the host a step computes where the keys of attention end.
        let end = |w: &Work<_>| if let Work::Attention(a) = w { a.ends.as_ref().map(|m| m.slot) } else { None };
        let ends_at: Vec<Slot> = steps.steps.iter().filter_map(end).collect();
        for work in &steps.steps {
            let Work::Block { code, args } = work else { continue };
            let program = &c.programs[*code];
            let computes = |(p, slot): (&kiln_block::Param, &Slot)| !p.readonly && ends_at.contains(slot);
            let sizes = program.params.iter().zip(args).any(computes);
            let ends = kiln_block::analysis::loop_ends(program);
            for (p, slot) in program.params.iter().zip(args) {
                if let (true, Slot::Input(i)) = (sizes || ends.contains(&p.value), slot) {
                    names.extend(k.inputs.get(*i as usize).map(|b| self.buffer(*b).name));
                }
            }
        }
        names.into_iter().collect()
    }

    fn op(&self, k: &Kernel, v: ValueId) -> OpReport {
        let g = &k.body;
        let names = k.reason.origins.iter().find(|o| o.value == v).map(|o| o.names.clone()).unwrap_or_default();
        let view = Class::of(g.op(v)).is_free();
        let homes = names.first().filter(|_| !view).and_then(|n| self.homes.get(n.as_str()));
        let others = homes.into_iter().flatten().filter(|h| **h != k.name);
        let recomputed = homes.map_or(0, |h| h.len().saturating_sub(1));
        let source = g.source(v);
        let attributes = match g.op(v) {
            Op::Fallback(_) => String::new(),
            Op::Launch(launch) => {
                definition(&launch.program).map_or(String::new(), |place| format!("defined at {place}"))
            }
            op => kiln_graph::text::attributes(op),
        };
        OpReport {
            value: v.to_string(),
            op: op_name(g.op(v)),
            attributes,
            ty: g.ty(v).to_string(),
            names,
            module: source.module.clone(),
            line: source.line.clone(),
            view,
            recomputed_in: others.take(LISTED).map(|h| h.to_string()).collect(),
            recomputed,
        }
    }

    fn buffer(&self, b: BufferId) -> BufferReport {
        let buffer = self.plan.buffer(b);
        let name = match buffer.kind {
            BufferKind::Input(i) => format!("input {i}"),
            BufferKind::Param(p) => match self.graph.params.get(p.0 as usize) {
                Some(p) if !p.name.is_empty() => p.name.clone(),
                _ => p.to_string(),
            },
            BufferKind::Frozen | BufferKind::Temp => self.stored.get(&b).copied().unwrap_or_default().to_string(),
        };
        let readers = self.readers.get(&b).map_or(&[][..], Vec::as_slice);
        BufferReport {
            buffer: b.to_string(),
            name,
            ty: buffer.ty.to_string(),
            bytes: buffer.ty.bytes() as u64,
            written_by: self.writers.get(&b).unwrap_or(&"").to_string(),
            read_by: readers.iter().take(LISTED).map(|r| r.to_string()).collect(),
            readers: readers.len(),
            is_result: self.results.contains(&b),
        }
    }

    /// The values made by rules that this kernel computes, and the ops they replace.
    fn rewrites(&self, k: &Kernel) -> Vec<Rewrite> {
        let half = k.body.values().any(|v| k.body.dtype(v).is_float() && k.body.dtype(v).bytes() == 2);
        let mut out = vec![];
        let mut put = |rules: &[String], made: String, replaced: Vec<String>| {
            let numerics = rules.iter().map(|r| rules::numerics(r, half)).max().unwrap_or_default();
            out.push(Rewrite { rule: rules.join(", "), numerics: numerics.name().into(), made, replaced });
        };
        for o in &k.reason.origins {
            let op = op_name(k.body.op(o.value));
            if let (Some(v), false) = (graph_values(&o.names).next(), o.rules.is_empty()) {
                put(&o.rules, format!("{op} {v}"), self.replaced(v));
            }
        }
        for (b, v) in k.outputs.iter().zip(&k.body.outputs) {
            let nameless = |o: &&kiln_plan::Origin| o.value == *v && graph_values(&o.names).next().is_none();
            let (Some(o), Some(made)) = (k.reason.origins.iter().find(nameless), self.made_of.get(b)) else { continue };
            let rules: BTreeSet<&str> = made.iter().map(|m| m.0).collect();
            for rule in rules {
                let parts: BTreeSet<ValueId> = made.iter().filter(|m| m.0 == rule).map(|m| m.1).collect();
                let replaced = parts.iter().flat_map(|v| self.replaced(*v)).collect();
                put(&[rule.to_string()], format!("one {}", op_name(k.body.op(o.value))), replaced);
            }
        }
        out
    }
    /// The graph's op at `v`, and its operands, transitively, that no kernel computes any more.
    fn replaced(&self, v: ValueId) -> Vec<String> {
        let (mut seen, mut todo) = (BTreeSet::from([v]), self.graph.args(v));
        while let Some(a) = todo.pop() {
            if !self.present.contains(&a) && !is_leaf(self.graph.op(a)) && seen.insert(a) {
                todo.extend(self.graph.args(a));
            }
        }
        seen.into_iter().map(|v| format!("{} {v}", op_name(self.graph.op(v)))).collect()
    }
}

/// Flops per second of an attention on a GPU, computed as in the planner.
fn attention_rate(k: &Kernel, v: ValueId, causal: bool, m: &kiln_machine::Machine) -> f64 {
    let args = k.body.args(v);
    let shape = |i: usize| args.get(i).map_or(&[][..], |&a| k.body.shape(a));
    let sizes =
        kiln_plan::attention::Sizes::of(k.body.dtype(k.body.args(v)[0]), [shape(0), shape(1), shape(2)], causal);
    let sizes = kiln_plan::attention::Sizes { precision: k.precision, ..sizes };
    let m = &kiln_plan::Hardware { machine: m, contract: contract(k) };
    k.cost.matrix_flops as f64 / sizes.predicted(m)
}

/// A kernel's schedule and others on a GPU, the cheapest in the model first; of a matmul the best of each tile, and the
/// library's.
fn schedules(c: &Compiled, k: &Kernel) -> Vec<ScheduleReport> {
    /// Most schedules listed, not counting the library's.
    const SHOWN: usize = 4;
    let (machine, Some(own)) = (c.options.machine(), &k.schedule) else { return vec![] };
    // A defect shows where the kernel is lowered.
    let mut all = kiln_lower::schedules(k, machine).unwrap_or_default();
    if !all.iter().any(|s| s.0 == *own) {
        let price = kiln_lower::priced(k, machine, own).ok().flatten();
        all.insert(0, (own.clone(), price.unwrap_or(Price { us: f64::INFINITY, ..Price::default() })));
    }
    let main = own.main();
    all.retain(|s| s.0 == *own || s.0 != main);
    all.sort_by_key(|s| s.0 != *own);
    let (mut tiles, mut shown) = (vec![], vec![]);
    for (schedule, price) in &all {
        let new = schedule.tile().is_none_or(|t| !tiles.contains(t));
        let listed = shown.len() < SHOWN || schedule.is_call();
        if price.us > 0.0 && new && listed && (*schedule == *own || kiln_lower::fits(k, machine, schedule).is_ok()) {
            tiles.extend(schedule.tile().cloned());
            shown.push(ScheduleReport::new(schedule, Some(price)));
        }
    }
    shown
}

/// A kernel's form and others on a GPU, the cheapest in the model first.
fn forms(c: &Compiled, k: &Kernel) -> Vec<FormReport> {
    if k.form.is_none() {
        return vec![];
    }
    let multiplies = |v: ValueId| matches!(Class::of(k.body.op(v)), Class::Matmul | Class::Conv | Class::Attention);
    let before = computed_operands(&k.body);
    let after = |v: ValueId| !multiplies(v) && !Class::of(k.body.op(v)).is_free() && !is_leaf(k.body.op(v));
    let has_epilogue = k.body.values().any(|v| after(v) && !before.iter().any(|side| side.contains(&v)));
    // A defect shows where the kernel is lowered.
    let all = kiln_lower::forms(k, c.options.machine()).unwrap_or_default();
    let can = |form: &Form, s: &kiln_plan::Stop| s.needs != FormNeeds::default() && form.can_fuse(s.needs);
    let report = |p: kiln_lower::PricedForm| {
        let epilogue = match p.epilogue {
            kiln_lower::Epilogue::Fused => "fuses the epilogue",
            kiln_lower::Epilogue::SumOfSlices => "fuses the epilogue with the sum of slices",
            kiln_lower::Epilogue::Library => "the library computes the epilogue",
            kiln_lower::Epilogue::Launch => "a launch of its own computes the epilogue",
        };
        FormReport {
            form: p.form.to_string(),
            schedule: p.schedule.to_string(),
            us: (p.us * 100.0).round() / 100.0,
            epilogue: has_epilogue.then(|| epilogue.to_string()),
            could_fuse: k.reason.stops.iter().filter(|s| can(&p.form, s)).map(|s| s.kernel.clone()).collect(),
        }
    };
    all.into_iter().map(report).collect()
}

/// Predicted cost of batch invariance for a kernel in microseconds: its time minus that with a schedule that may depend
/// on the batch.
fn invariance_us(c: &Compiled, k: &Kernel) -> Option<f64> {
    if !k.batch_invariant {
        return None;
    }
    let free = Kernel { batch_invariant: false, ..k.clone() };
    let us = |k: &Kernel| {
        let attention = k.body.values().find_map(|v| match k.body.op(v) {
            Op::Attention { causal, .. } if c.options.machine().arch.is_gpu() => Some((v, *causal)),
            _ => None,
        });
        match attention {
            Some((v, causal)) => {
                Some(k.cost.matrix_flops as f64 / attention_rate(k, v, causal, c.options.machine()) * 1e6)
            }
            None => {
                let all = kiln_lower::schedules(k, c.options.machine()).unwrap_or_default();
                all.first().filter(|s| s.0.multiplies()).map(|s| s.1.us)
            }
        }
    };
    let lost = us(k)? - us(&free)?;
    // The difference is not finite if the model has no time for the kernel.
    lost.is_finite().then(|| (lost.max(0.0) * 100.0).round() / 100.0)
}

/// The part of the plan's contract that a kernel carries.
fn contract(k: &Kernel) -> kiln_plan::Contract {
    kiln_plan::Contract { batch_invariant: k.batch_invariant, ..kiln_plan::Contract::default() }
}

/// The numerics class of a kernel: the loosest of its arithmetic and of the rules that made it.
fn class(k: &Kernel) -> Numerics {
    let conv = k.body.values().any(|v| matches!(k.body.op(v), Op::Conv { .. }));
    let matmuls = match k.precision {
        Precision::Exact => Numerics::Exact,
        // As accurate as f32, with another order of summation.
        Precision::Tf32x3 => Numerics::Torch,
        Precision::Tf32 if conv => Numerics::Torch,
        Precision::Tf32 => Numerics::Fast,
    };
    let half = k.body.values().any(|v| k.body.dtype(v).is_float() && k.body.dtype(v).bytes() == 2);
    k.reason.rules.iter().map(|r| rules::numerics(r, half)).fold(matmuls, Numerics::max)
}

fn stop(s: &kiln_plan::Stop) -> StopReport {
    let means = Reject::by_name(&s.why).map_or("", Reject::means);
    let needs = s.needs.names().into_iter().map(String::from).collect();
    StopReport { kernel: s.kernel.clone(), why: s.why.clone(), means: means.into(), needs }
}

/// The reason in one line, one clause per fact.
fn reason(k: &Kernel) -> String {
    let mut parts = vec![];
    let n = ops(&k.body).filter(|v| !Class::of(k.body.op(*v)).is_free()).count();
    if n > 1 {
        let inner = ops(&k.body).filter(|v| !k.body.outputs.contains(v) && !Class::of(k.body.op(*v)).is_free());
        let saved: u64 = inner.map(|v| 2 * k.body.ty(v).bytes() as u64).sum();
        parts.push(format!("fusing {n} ops saves {:.2} MB of memory traffic", saved as f64 / 1e6));
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
        parts.push(format!("not fused with {}: {}{more}", s.kernel, s.why));
    }
    if parts.is_empty() { "a single op".into() } else { parts.join("; ") }
}
