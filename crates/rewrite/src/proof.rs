//! From the graph as it was written to a kernel's body: the rules that made its forms, in an order in which each
//! matches what is there before it. Every step states that two forms of one class are equal; that all of them are is
//! tested (`rules/sound.rs`).
use crate::forms;
use crate::language::{ENode, op, template};
use crate::pattern::Pattern;
use crate::rules::{Application, Right, Saturated};
use egg::Id;
use kiln_graph::ValueId;
use kiln_graph::ops::Class;
use kiln_plan::Numerics;
use std::collections::{BTreeMap, BTreeSet};

/// One application of a rule. Values are written as in the graph's text, `%12`; what has no number there is written
/// out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub rule: &'static str,
    /// The strictest numerics class in which the rule applies to values of this type.
    pub numerics: Numerics,
    /// What it matched.
    pub from: String,
    /// The equal form.
    pub to: String,
}

/// The steps of each kernel, by its name.
pub type Proofs = BTreeMap<String, Vec<Step>>;

/// Ops that are written out inside each other.
const DEEP: usize = 4;

pub struct Prover<'a> {
    s: &'a Saturated,
    /// The first value of the graph in each class.
    of: BTreeMap<Id, ValueId>,
    /// By a form's class and head: the first application that gave it.
    by: BTreeMap<(Id, u32), usize>,
}

impl<'a> Prover<'a> {
    /// `values`: the class of each value of the graph.
    pub fn new(s: &'a Saturated, values: &[Id]) -> Prover<'a> {
        let g = &s.builder.g;
        let (mut of, mut by) = (BTreeMap::new(), BTreeMap::new());
        for (i, id) in values.iter().enumerate() {
            of.entry(g.find(*id)).or_insert(ValueId(i as u32));
        }
        for (i, a) in s.applied.iter().enumerate() {
            for (class, head) in a.keys.iter().map(|h| (a.class, *h)).chain(a.inner.iter().copied()) {
                by.entry((g.find(class), head)).or_insert(i);
            }
        }
        Prover { s, of, by }
    }

    /// The steps to these forms: classes and heads.
    pub fn steps(&self, forms: impl Iterator<Item = (Id, u32)>) -> Vec<Step> {
        self.applications(forms).into_iter().map(|i| self.step(&self.s.applied[i])).collect()
    }
    /// The applications that these forms need, in order.
    pub fn applications(&self, forms: impl Iterator<Item = (Id, u32)>) -> BTreeSet<usize> {
        let g = &self.s.builder.g;
        let made = |(class, head): (Id, u32)| self.by.get(&(g.find(class), head)).copied();
        let (mut needed, mut todo) = (BTreeSet::new(), forms.filter_map(made).collect::<Vec<usize>>());
        while let Some(i) = todo.pop() {
            if needed.insert(i) {
                // A rule matches what was there before it.
                todo.extend(self.s.applied[i].bound.through.iter().filter_map(|f| made(*f)).filter(|j| *j < i));
            }
        }
        needed
    }
    fn step(&self, a: &Application) -> Step {
        let g = &self.s.builder.g;
        let side = |text: &str| Pattern::parse(text).map_or_else(|| text.to_string(), |p| self.pattern(&p, a));
        let from = side(a.left);
        let to = match a.rule.right {
            Right::Is(text) => side(text),
            Right::By(_) => {
                let class = g.find(a.class);
                let made = |t: &&ENode| a.keys.contains(&t.key);
                g[class].nodes.iter().find(made).map_or_else(|| self.name(class, DEEP), |t| self.term(t, DEEP))
            }
        };
        let dtype = g[a.class].data.ty.dtype;
        let half = dtype.is_float() && dtype.bytes() == 2;
        let numerics = if half { a.rule.numerics.max(a.rule.half) } else { a.rule.numerics };
        Step { rule: a.rule.name, numerics, from, to }
    }
    /// A pattern with its names bound.
    fn pattern(&self, p: &Pattern, a: &Application) -> String {
        match p {
            Pattern::Var(name) => a.bound.var(name).map_or_else(|| name.clone(), |x| self.name(x, DEEP)),
            Pattern::Number(n) => n.to_string(),
            Pattern::Node { name, bind, args } => {
                let bound = bind.as_ref().and_then(|b| a.bound.op(b)).map(|op| op.name());
                call(bound.unwrap_or(name), args.iter().map(|p| self.pattern(p, a)))
            }
        }
    }
    fn name(&self, x: Id, deep: usize) -> String {
        let g = &self.s.builder.g;
        let x = g.find(x);
        if let Some(n) = g[x].data.number().filter(|_| g[x].data.ty.shape.is_empty()) {
            return n.to_string();
        }
        if let Some(v) = self.of.get(&x) {
            return format!("%{}", v.0);
        }
        match (deep.checked_sub(1), g[x].nodes.iter().find(|t| template(g, t).is_none())) {
            (Some(deep), Some(t)) => self.term(t, deep),
            _ => "…".to_string(),
        }
    }
    fn term(&self, t: &ENode, deep: usize) -> String {
        call(op(&self.s.builder.g, t).name(), t.args.iter().map(|a| self.name(*a, deep)))
    }
}

/// The steps from a kernel's body to its form.
pub fn of_form(k: &kiln_plan::Kernel) -> Vec<Step> {
    let Some(form) = k.form else { return vec![] };
    let multiplies = |v: &ValueId| matches!(Class::of(k.body.op(*v)), Class::Matmul | Class::Conv | Class::Attention);
    let anchor = k.body.values().find(multiplies);
    let mut from = anchor.map_or_else(String::new, |v| {
        call(k.body.op(v).name(), k.body.args(v).iter().map(|a| format!("%{} of the body", a.0)))
    });
    let mut steps = vec![];
    for (rule, form) in forms::derivation(&form) {
        let to = form.to_string();
        steps.push(Step { rule, numerics: Numerics::Exact, from: std::mem::replace(&mut from, to.clone()), to });
    }
    steps
}

fn call(name: &str, args: impl Iterator<Item = String>) -> String {
    format!("{name}({})", args.collect::<Vec<String>>().join(", "))
}
