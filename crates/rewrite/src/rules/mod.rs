//! Rewrite rules as data, and saturation of the e-graph with them.
//!
//! A rule states that two forms are equal: the forms to match (patterns, in every order of commutative operands),
//! premises on e-class facts, and the equal form: a pattern where it can be one, else a function that builds it. Each
//! has a numerics class, an example that it fires on, and a near miss that it must not fire on; the tests run both.
//! Limits are counts of nodes and iterations, never times.
mod activation;
mod algebra;
mod attention;
mod cross_entropy;
mod distance;
mod log_sum_exp;
mod matmul;
mod norm;
mod reduce;
mod siblings;
mod sink;
#[cfg(test)]
mod sound;

use crate::build::Builder;
use crate::certificate::{Event, leaves};
use crate::language::op;
use crate::pattern::{Bindings, Pattern, axes, matches};
use egg::Id;
use kiln_graph::DType;
use kiln_plan::Numerics;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A test on facts of what a pattern bound.
#[derive(Clone, Copy, Debug)]
pub enum Premise {
    /// A tensor of rank 0 whose value is known.
    Scalar(&'static str),
    /// Computed from parameters and constants only.
    Frozen(&'static str),
    /// Of this rank.
    Rank(&'static str, usize),
    /// The bound op works along the last axis of the value.
    LastAxis(&'static str, &'static str),
    /// … along its last axes, one or more.
    TrailingAxes(&'static str, &'static str),
    /// Not all elements are one known number.
    Varies(&'static str),
    /// Not of this type.
    Not(&'static str, DType),
}

/// The form that equals what a rule matches.
#[derive(Clone, Copy)]
pub enum Right {
    /// A pattern over what was bound. The rule does not apply where its ops are not defined on these operands.
    Is(&'static str),
    /// What this builds; `None` if the rule does not apply after all.
    By(fn(&mut Builder, &Bindings) -> Option<Id>),
}
use Right::{By, Is};

/// A rewrite rule.
pub struct Rule {
    pub name: &'static str,
    /// The strictest numerics class in which the rule applies.
    pub numerics: Numerics,
    /// The same for f16 and bf16, where the equal form rounds less often.
    pub half: Numerics,
    /// Patterns of the forms to match.
    pub left: &'static [&'static str],
    pub when: &'static [Premise],
    pub right: Right,
    /// A graph on which the rule fires, from the parenthesis of its inputs on.
    pub example: &'static str,
    /// A similar graph on which it must not fire.
    pub near_miss: &'static str,
}

/// Every rule, family by family.
pub fn all() -> Vec<&'static Rule> {
    let families = [
        algebra::RULES,
        activation::RULES,
        norm::RULES,
        reduce::RULES,
        matmul::RULES,
        distance::RULES,
        attention::RULES,
        sink::RULES,
        log_sum_exp::RULES,
        cross_entropy::RULES,
    ];
    families.into_iter().flatten().collect()
}

/// The rules as text, for checkers that share no code with them (`crates/proof-check/rules.txt`).
pub fn text() -> String {
    let mut t = String::from(
        "# The rules of the rewriter, written by a test from its table: KILN_BLESS=1 cargo test -p kiln-rewrite --test main rules_as_text\n",
    );
    for r in all() {
        t += &format!("\nrule {} {} {}\n", r.name, r.numerics.name(), r.half.name());
        r.left.iter().for_each(|l| t += &format!("from {l}\n"));
        r.when.iter().for_each(|p| t += &format!("when {p}\n"));
        t += &match r.right {
            Is(right) => format!("to {right}\n"),
            By(_) => "to computed\n".to_string(),
        };
    }
    t + &crate::forms::text()
}

impl fmt::Display for Premise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Premise::Scalar(v) => write!(f, "scalar {v}"),
            Premise::Frozen(v) => write!(f, "frozen {v}"),
            Premise::Rank(v, n) => write!(f, "rank {v} {n}"),
            Premise::LastAxis(op, v) => write!(f, "last-axis {op} {v}"),
            Premise::TrailingAxes(op, v) => write!(f, "trailing-axes {op} {v}"),
            Premise::Varies(v) => write!(f, "varies {v}"),
            Premise::Not(v, dtype) => write!(f, "not {v} {}", dtype.name()),
        }
    }
}

/// The numerics class of a rule by its name; for half types if `half`. Joining siblings is no [`Rule`] and exact.
pub fn numerics(name: &str, half: bool) -> Numerics {
    let rule = all().into_iter().find(|r| r.name == name);
    rule.map_or(Numerics::Exact, |r| if half { r.numerics.max(r.half) } else { r.numerics })
}

fn holds(b: &Builder, m: &Bindings, p: Premise) -> bool {
    let rank = |v: &str| m.var(v).map(|x| b.shape(x).len());
    match p {
        Premise::Scalar(v) => m.var(v).is_some_and(|x| b.fact(x).uniform.is_some() && b.shape(x).is_empty()),
        Premise::Frozen(v) => m.var(v).is_some_and(|x| b.fact(x).frozen),
        Premise::Rank(v, n) => rank(v) == Some(n),
        Premise::Varies(v) => m.var(v).is_some_and(|x| b.fact(x).uniform.is_none()),
        Premise::Not(v, dtype) => m.var(v).is_some_and(|x| b.ty(x).dtype != dtype),
        Premise::LastAxis(o, v) => {
            m.op(o).and_then(axes).zip(rank(v)).is_some_and(|(axes, r)| r > 0 && axes == [r - 1])
        }
        Premise::TrailingAxes(o, v) => {
            let both = m.op(o).and_then(axes).zip(rank(v));
            both.is_some_and(|(axes, r)| !axes.is_empty() && axes.iter().rev().zip((0..r).rev()).all(|(a, b)| *a == b))
        }
    }
}

const NODE_LIMIT: usize = 100_000;
const ITERATION_LIMIT: usize = 16;

/// The e-graph after saturation.
pub struct Saturated {
    pub builder: Builder,
    pub iterations: usize,
    /// `saturated`, `node limit`, `iteration limit`.
    pub stopped: &'static str,
    /// Rules that made a form, by class and head, including the rules of the forms it was made from.
    pub made: Made,
    /// What rules found, in order.
    pub applied: Vec<Application>,
}
pub type Made = BTreeMap<(Id, u32), BTreeSet<&'static str>>;

/// A rule that was applied.
pub struct Application {
    pub rule: &'static Rule,
    /// The pattern that matched.
    pub left: &'static str,
    pub bound: Bindings,
    pub class: Id,
    /// Heads of the form that it gave.
    pub keys: Vec<u32>,
    /// Classes and heads of the terms that the form is made of and that were new.
    pub inner: Vec<(Id, u32)>,
}

struct Compiled {
    rule: &'static Rule,
    left: Vec<(&'static str, Pattern)>,
    /// The right side, if it is a pattern.
    right: Option<Pattern>,
}
impl Compiled {
    fn of(rule: &'static Rule) -> Compiled {
        let right = if let Is(text) = rule.right { Pattern::parse(text) } else { None };
        Compiled { rule, left: rule.left.iter().filter_map(|l| Some((*l, Pattern::parse(l)?))).collect(), right }
    }
    fn right(&self, b: &mut Builder, m: &Bindings) -> Option<Id> {
        match self.rule.right {
            Is(_) => self.right.as_ref()?.build(b, m),
            By(make) => make(b, m),
        }
    }
}

/// Applies every rule of at most this numerics class until nothing new is found.
pub fn saturate(builder: Builder, upto: Numerics) -> Saturated {
    let rules: Vec<Compiled> = all().into_iter().filter(|r| r.numerics <= upto).map(Compiled::of).collect();
    let mut s = Saturated { builder, iterations: 0, stopped: "iteration limit", made: Made::new(), applied: vec![] };
    while s.iterations < ITERATION_LIMIT {
        s.iterations += 1;
        if !s.round(&rules, upto) {
            s.stopped = "saturated";
            break;
        }
        if s.builder.g.total_number_of_nodes() > NODE_LIMIT {
            s.stopped = "node limit";
            break;
        }
    }
    siblings::join(&mut s);
    s.rename();
    s
}

impl Saturated {
    /// Merges two classes, and notes the rule that made `form` and the rules of the forms it was made from.
    fn equate(&mut self, class: Id, form: Id, rule: &'static str, from: &[(Id, u32)]) -> bool {
        let heads: Vec<u32> = self.builder.g[form].nodes.iter().map(|t| t.key).collect();
        let new = self.builder.equate(class, form);
        if new {
            let mut rules = BTreeSet::from([rule]);
            for f in from {
                rules.extend(self.made.get(f).into_iter().flatten());
            }
            for h in heads {
                self.made.entry((class, h)).or_insert_with(|| rules.clone());
            }
        }
        new
    }
    /// Updates the keys of `made` to the current canonical class ids.
    fn rename(&mut self) {
        let mut out = Made::new();
        for ((id, h), names) in std::mem::take(&mut self.made) {
            out.entry((self.builder.g.find(id), h)).or_default().extend(names);
        }
        self.made = out;
    }
    /// One iteration: finds all matches, then applies them. True if anything is new.
    fn round(&mut self, rules: &[Compiled], upto: Numerics) -> bool {
        let b = &mut self.builder;
        let mut found: Vec<(&Compiled, &'static str, Id, Bindings)> = vec![];
        let mut classes: BTreeMap<&'static str, Vec<Id>> = BTreeMap::new();
        for c in b.g.classes() {
            let names: BTreeSet<&'static str> = c.nodes.iter().map(|t| op(&b.g, t).name()).collect();
            for n in names {
                classes.entry(n).or_default().push(c.id);
            }
        }
        classes.values_mut().for_each(|ids| ids.sort());
        for r in rules {
            for (left, p) in &r.left {
                for &id in classes.get(p.root()).map_or(&[][..], Vec::as_slice) {
                    if b.ty(id).dtype.bytes() == 2 && b.ty(id).dtype.is_float() && r.rule.half > upto {
                        continue;
                    }
                    found.extend(matches(&b.g, p, id).into_iter().map(|m| (r, *left, id, m)));
                }
            }
        }
        let mut new = false;
        for (r, left, id, m) in found {
            let b = &mut self.builder;
            if !r.rule.when.iter().all(|&p| holds(b, &m, p)) {
                continue;
            }
            b.origin = b.source.get(&id).cloned().unwrap_or_default();
            b.fresh.clear();
            let before = b.log.as_ref().map_or(0, Vec::len);
            if let Some(form) = r.right(b, &m) {
                let leaves = b.log.as_ref().map(|log| leaves(&log[before..], form)).unwrap_or_default();
                let inner = std::mem::take(&mut b.fresh);
                let heads: Vec<u32> = b.g[form].nodes.iter().map(|t| t.key).collect();
                if self.equate(id, form, r.rule.name, &m.through) {
                    new = true;
                    let left_place = r.rule.left.iter().position(|l| *l == left).unwrap_or_default();
                    self.builder.log(|| Event::Rule {
                        rule: r.rule.name,
                        left: left_place,
                        vars: m.vars.clone(),
                        matched: m.nodes.clone(),
                        leaves,
                        form,
                    });
                    self.applied.push(Application { rule: r.rule, left, bound: m, class: id, keys: heads, inner });
                }
            }
        }
        self.builder.g.rebuild();
        self.rename();
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_graph::Graph;

    fn fired(text: &str, upto: Numerics) -> BTreeSet<&'static str> {
        let g: Graph = format!("graph g{text}").parse().unwrap_or_else(|e| panic!("{e}\n{text}"));
        let s = saturate(Builder { tile: 256, ..Builder::import(&g).0 }, upto);
        assert_eq!(s.stopped, "saturated", "{text}");
        s.made.into_values().flatten().collect()
    }

    #[test]
    fn every_rule_fires_on_its_example_and_not_on_its_near_miss() {
        for r in all() {
            let (yes, no) = (fired(r.example, r.numerics), fired(r.near_miss, Numerics::Fast));
            assert!(yes.contains(r.name), "{} leaves its example alone; fired: {yes:?}", r.name);
            assert!(!no.contains(r.name), "{} fires on its near miss", r.name);
        }
    }
    #[test]
    fn exact_numerics_leave_out_what_rounds_otherwise() {
        for r in all().into_iter().filter(|r| r.numerics > Numerics::Exact) {
            assert!(!fired(r.example, Numerics::Exact).contains(r.name), "{}", r.name);
        }
    }
    #[test]
    fn every_pattern_parses_and_names_are_unique() {
        let mut names = BTreeSet::new();
        for r in all() {
            assert!(names.insert(r.name), "{} stands twice", r.name);
            let names = |text: &str| {
                let mut names = BTreeSet::new();
                Pattern::parse(text).unwrap_or_else(|| panic!("{}: {text}", r.name)).names(&mut names);
                names
            };
            for l in r.left {
                let bound = names(l);
                if let Is(right) = r.right {
                    let free: Vec<String> = names(right).difference(&bound).cloned().collect();
                    assert!(free.is_empty(), "{}: `{right}` has {free:?}, `{l}` does not", r.name);
                }
            }
        }
    }
}
