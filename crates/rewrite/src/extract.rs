//! Extraction: chooses one form per value, together with the kernels that compute it.
//!
//! The starting point is a bottom-up choice by an additive estimate of time, which counts a shared value once per use.
//! From there, hill climbing tries families of alternative forms (all values of a kind at once, so that repeated layers
//! change together). Every choice is priced by planning its kernels.
use crate::checker::Checker;
use crate::compare::{Planned, improves};
use crate::cost::OpTypes;
use crate::dag::{Dag, Node, Program, Value};
use crate::language::{ClassData, ENode, op, template};
use crate::planner::{self, Regions};
use crate::rules::Saturated;
use egg::Id;
use kiln_graph::ops::Class;
use kiln_graph::{Op, Type, ValueId};
use kiln_plan::Hardware;
use kiln_plan::attention::Sizes;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

pub type Choice = BTreeMap<Id, ENode>;
/// Sets of classes that change form together, by a description of what they have in common.
type Families = BTreeMap<String, Vec<(Id, ENode)>>;

/// Most plans tried; every family is tried before any is tried again.
const MAX_TRIES: usize = 96;
/// Total number of values in the programs tried after which the search stops.
const MAX_VALUES: usize = 1 << 18;

/// A saturated e-graph with lookup tables for extraction.
pub struct Extractor<'a> {
    s: &'a Saturated,
    roots: Vec<Id>,
    /// Classes and heads of the forms in the imported graph.
    written: BTreeSet<(Id, u32)>,
    /// Values of the graph by class.
    of: BTreeMap<Id, Vec<ValueId>>,
    values: HashMap<(Id, u32), Rc<Value>>,
    /// Every program planned, with its price.
    pub tried: Vec<(f64, Program)>,
}

/// The best program found, with its kernels.
pub struct Best {
    pub program: Program,
    pub dag: Dag,
    pub kernels: Regions,
    /// Price of the first choice, before any family was tried.
    pub first_seconds: f64,
    pub tried: usize,
}

impl<'a> Extractor<'a> {
    /// `values`: the class of each value of the graph; `written`: classes with the heads of the terms that the graph
    /// was imported as.
    pub fn new(s: &'a Saturated, roots: &[Id], values: &[Id], written: &[(Id, u32)]) -> Extractor<'a> {
        let g = &s.builder.g;
        let written = written.iter().map(|(id, h)| (g.find(*id), *h)).collect();
        let roots = roots.iter().map(|r| g.find(*r)).collect();
        let mut of: BTreeMap<Id, Vec<ValueId>> = BTreeMap::new();
        for (i, id) in values.iter().enumerate() {
            of.entry(g.find(*id)).or_default().push(ValueId(i as u32));
        }
        Extractor { s, roots, written, of, values: HashMap::new(), tried: vec![] }
    }

    /// Estimated seconds of a form, before kernels are known.
    fn seconds(&self, data: &ClassData, t: &ENode, m: &Hardware) -> f64 {
        let g = &self.s.builder.g;
        let args = t.args.iter().map(|a| &g[*a].data.ty).collect();
        // Work done once at load time costs next to nothing, but less of it is better.
        let scale = if data.frozen { 1e-6 } else { 1. };
        1e-9 + scale * OpTypes { op: op(g, t), ty: &data.ty, args }.seconds(m)
    }

    /// Bottom-up by tree cost, as egg's extractor does.
    fn choose(&self, m: &Hardware) -> Choice {
        let g = &self.s.builder.g;
        let mut best: HashMap<Id, (f64, &ENode)> = HashMap::new();
        let ids = g.classes().map(|c| c.id);
        // Passes over the classes by number; after the first, only over those whose operands became cheaper.
        let (mut now, mut next): (BTreeSet<Id>, BTreeSet<Id>) = (ids.collect(), BTreeSet::new());
        while let Some(id) = now.pop_first().or_else(|| {
            std::mem::swap(&mut now, &mut next);
            now.pop_first()
        }) {
            let (class, mut changed) = (&g[id], false);
            for t in class.nodes.iter().filter(|t| template(g, t).is_none()) {
                let args = t.args.iter().map(|a| best.get(&g.find(*a)).map(|b| b.0)).sum::<Option<f64>>();
                let Some(cost) = args.map(|a| a + self.seconds(&class.data, t, m)) else { continue };
                if best.get(&id).is_none_or(|b| cost < b.0 * (1. - 1e-12)) {
                    best.insert(id, (cost, t));
                    changed = true;
                }
            }
            for user in class.parents().filter(|_| changed).map(|u| g.find(u)) {
                if user > id {
                    now.insert(user)
                } else {
                    next.insert(user)
                };
            }
        }
        best.into_iter().map(|(id, b)| (id, b.1.clone())).collect()
    }

    fn value(&mut self, id: Id, t: &ENode) -> Rc<Value> {
        let s = self.s;
        let b = &s.builder;
        let (written, of) = (&self.written, &self.of);
        let make = || {
            let new = !written.contains(&(id, t.key));
            Rc::new(Value {
                op: op(&b.g, t).clone(),
                ty: b.ty(id).clone(),
                source: b.source.get(&id).cloned().unwrap_or_default(),
                frozen: b.fact(id).frozen,
                rules: s
                    .made
                    .get(&(id, t.key))
                    .filter(|_| new)
                    .map(|r| r.iter().copied().collect())
                    .unwrap_or_default(),
                of: of.get(&id).cloned().unwrap_or_default(),
                forms: crate::forms::of(s, id, t),
            })
        };
        self.values.entry((id, t.key)).or_insert_with(make).clone()
    }

    /// Class and head of a program's node.
    pub fn form(&self, node: &Node) -> Option<(Id, u32)> {
        self.values.iter().find(|(_, v)| Rc::ptr_eq(v, &node.value)).map(|(form, _)| *form)
    }
    /// The program of a choice, and the class of each of its nodes; `None` if the choice is cyclic.
    fn program(&mut self, choice: &Choice) -> Option<(Program, Vec<Id>)> {
        let s = self.s;
        let g = &s.builder.g;
        let mut at: HashMap<Id, Option<usize>> = HashMap::new();
        let (mut p, mut ids) = (Program::default(), vec![]);
        let mut stack: Vec<(Id, bool)> = self.roots.iter().rev().map(|r| (*r, false)).collect();
        while let Some((id, ready)) = stack.pop() {
            let t = choice.get(&id)?;
            if ready {
                let args =
                    t.args.iter().map(|a| at.get(&g.find(*a)).copied().flatten()).collect::<Option<Vec<usize>>>()?;
                p.nodes.push(Node { value: self.value(id, t), args });
                ids.push(id);
                at.insert(id, Some(p.nodes.len() - 1));
            } else if let Some(known) = at.get(&id) {
                (*known)?;
            } else {
                at.insert(id, None);
                stack.push((id, true));
                for a in t.args.iter().rev() {
                    stack.push((g.find(*a), false));
                }
            }
        }
        p.roots = self.roots.iter().map(|r| at.get(r).copied().flatten()).collect::<Option<_>>()?;
        Some((p, ids))
    }

    /// Sets of classes that could change form together: all that have op A now and could have op B; those among them of
    /// one shape; and, where parts of several shapes would be read from one value (slices of a joined matmul), all
    /// parts of that value.
    fn families(&self, choice: &Choice, program: &Program, ids: &[Id], m: &Hardware) -> Families {
        let g = &self.s.builder.g;
        let mut out = Families::new();
        let mut wholes: BTreeMap<(String, Id), Families> = BTreeMap::new();
        for (&id, node) in ids.iter().zip(&program.nodes) {
            if node.value.frozen || g[id].nodes.len() < 2 {
                continue;
            }
            let Some(now) = choice.get(&id) else { continue };
            let args = || now.args.iter().map(|a| &g[*a].data.ty).collect::<Vec<_>>();
            if is_recognised(op(g, now)) && !may_be_matmuls(op(g, now), &args(), m) {
                continue;
            }
            let mut others: BTreeMap<&str, &ENode> = BTreeMap::new();
            for t in g[id].nodes.iter().filter(|t| t.key != now.key && template(g, t).is_none()) {
                others.entry(op(g, t).name()).or_insert(t);
            }
            let from = op(g, now).name();
            for (to, t) in others {
                out.entry(format!("{from} -> {to}")).or_default().push((id, t.clone()));
                out.entry(format!("{from} -> {to} {}", node.value.ty)).or_default().push((id, t.clone()));
                if let [whole] = t.args[..] {
                    let parts = wholes.entry((format!("{from} -> {to}"), g.find(whole))).or_default();
                    parts.entry(node.value.ty.to_string()).or_default().push((id, t.clone()));
                }
            }
        }
        for ((how, _), parts) in wholes.into_iter().filter(|(_, parts)| parts.len() > 1) {
            let types: Vec<&str> = parts.keys().map(String::as_str).collect();
            out.entry(format!("{how} of {}", types.join(" and "))).or_default().extend(parts.into_values().flatten());
        }
        out
    }

    /// Hill climbing over families, with every step priced by its kernels. `None` only if the graph itself is cyclic.
    pub fn best(&mut self, check: &mut Checker) -> Option<Best> {
        let mut choice = self.choose(check.machine);
        let (program, mut ids) = self.program(&choice)?;
        let dag = Dag::run(&program);
        let kernels = planner::fused(&dag, check);
        self.tried.push((kernels.seconds(), program.clone()));
        let mut values = program.nodes.len();
        let mut best = Best { program, dag, first_seconds: kernels.seconds(), kernels, tried: 1 };
        loop {
            let mut improved = false;
            let mut seen: BTreeSet<Vec<(Id, ENode)>> = BTreeSet::new();
            for (_, family) in self.families(&choice, &best.program, &ids, check.machine) {
                if best.tried >= MAX_TRIES || values >= MAX_VALUES {
                    return Some(best);
                }
                if !seen.insert(family.clone()) {
                    continue;
                }
                let mut other = choice.clone();
                other.extend(family);
                let Some((program, other_ids)) = self.program(&other) else { continue };
                let dag = Dag::run(&program);
                let kernels = planner::fused(&dag, check);
                best.tried += 1;
                values += program.nodes.len();
                self.tried.push((kernels.seconds(), program.clone()));
                let (now, new) = (Planned::new(&best.dag, &best.kernels), Planned::new(&dag, &kernels));
                if improves(&now, &new, check) {
                    improved = true;
                    best = Best { program, dag, kernels, ..best };
                    (choice, ids) = (other, other_ids);
                }
            }
            if !improved {
                return Some(best);
            }
        }
    }
}

/// Is this a composite op? It is never worse than its primitives: one op to price, to read and to lower.
fn is_recognised(o: &Op) -> bool {
    matches!(Class::of(o), Class::Row | Class::Attention) || matches!(o, Op::Unary(u) if u.is_composite())
}
/// Could two matmuls with a softmax in between be faster than this attention? On a GPU if there is no fused program for
/// it or rows of scores are multiples of 16 bytes (otherwise the matmuls are slower than predicted); on the host if its
/// library has no such attention.
fn may_be_matmuls(o: &Op, args: &[&Type], m: &Hardware) -> bool {
    let (Op::Attention { causal, .. }, [q, k, v, ..]) = (o, args) else { return false };
    if !m.arch.is_gpu() {
        return o.is_attention_of_steps();
    }
    let sizes = Sizes::of(q.dtype, [&q.shape, &k.shape, &v.shape], *causal);
    !sizes.has_program() || (sizes.keys * q.dtype.bytes()).is_multiple_of(16)
}

/// Classes with the heads of their e-nodes, as imported.
pub fn written(s: &crate::build::Builder) -> Vec<(Id, u32)> {
    let mut out: Vec<(Id, u32)> = s.g.classes().flat_map(|c| c.nodes.iter().map(|t| (c.id, t.key))).collect();
    out.sort();
    out
}

/// Names of a program's ops, for tests and messages.
pub fn names(p: &Program) -> Vec<&'static str> {
    p.nodes.iter().map(|n| Op::name(&n.value.op)).collect()
}
