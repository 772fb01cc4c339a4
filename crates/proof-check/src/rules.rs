//! The rules as text: what each matches, its premises, its numerics class, and the equal form.
//!
//! ```text
//! rule silu torch torch
//! from (mul ?x (sigmoid ?x))
//! to (silu ?x)
//! ```
//!
//! A rule of a form says for which ops it is, its premises, and what it adds (`form`):
//!
//! ```text
//! form gemm-by-warpgroups
//! of matmul conv
//! when warpgroups
//! when half|tf32
//! adds gemm wgmma
//! ```
//!
//! After the name: the numerics class of the rule, and that on half types. `when` lines are premises; `to computed`
//! says that code of the rewriter builds the equal form, which the checker then evaluates.
use crate::pattern::{Pattern, axes};
use crate::terms::Terms;
use kiln_graph::Op;
use std::collections::{BTreeMap, HashMap};

/// The rules of this version of Kiln.
pub const RULES: &str = include_str!("../rules.txt");

/// A premise on what a pattern bound: its name and its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Premise(Vec<String>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub numerics: usize,
    pub half: usize,
    pub left: Vec<Pattern>,
    pub when: Vec<Premise>,
    /// `None`: computed by the rewriter.
    pub right: Option<Pattern>,
}

/// A rule that changes a form.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FormRule {
    /// matmul, conv, attention.
    pub of: Vec<String>,
    /// All must hold; of a line's words one.
    pub when: Vec<Vec<String>>,
    pub adds: Vec<String>,
}

impl FormRule {
    /// Reads a line; `None` if it is none of a form's rule.
    fn read(&mut self, word: &str, rest: &str) -> Option<()> {
        let words = |by: char| rest.split(by).map(String::from).collect::<Vec<_>>();
        match word {
            "of" => self.of = words(' '),
            "when" => self.when.push(words('|')),
            "adds" => self.adds = words(' '),
            _ => return None,
        }
        Some(())
    }
}

/// Rules by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Of values.
    pub(crate) values: BTreeMap<String, Rule>,
    /// Of forms.
    pub(crate) forms: BTreeMap<String, FormRule>,
}

/// The place of a numerics class, from the strictest.
pub(crate) fn class(name: &str) -> Option<usize> {
    ["exact", "torch", "fast"].iter().position(|n| *n == name)
}

impl Rules {
    /// Reads the text.
    ///
    /// # Errors
    /// The line that is no part of a rule.
    pub fn parse(text: &str) -> Result<Rules, String> {
        let mut all: BTreeMap<String, Rule> = BTreeMap::new();
        let mut forms: BTreeMap<String, FormRule> = BTreeMap::new();
        let mut name = String::new();
        let mut is_form = false;
        for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
            let bad = || format!("`{line}` is no line of a rule");
            let (word, rest) = line.split_once(' ').ok_or_else(bad)?;
            if word == "form" {
                (name, is_form) = (rest.to_string(), true);
                if forms.insert(name.clone(), FormRule::default()).is_some() {
                    return Err(format!("rule {name} stands twice"));
                }
                continue;
            }
            if word == "rule" {
                is_form = false;
                let [n, numerics, half] = rest.split(' ').collect::<Vec<_>>()[..] else { return Err(bad()) };
                let (numerics, half) = (class(numerics).ok_or_else(bad)?, class(half).ok_or_else(bad)?);
                name = n.to_string();
                let rule = Rule { numerics, half, left: vec![], when: vec![], right: None };
                if all.insert(name.clone(), rule).is_some() {
                    return Err(format!("rule {name} stands twice"));
                }
                continue;
            }
            if is_form {
                forms.get_mut(&name).and_then(|form| form.read(word, rest)).ok_or_else(bad)?;
                continue;
            }
            let rule = all.get_mut(&name).ok_or_else(bad)?;
            match word {
                "from" => rule.left.push(Pattern::parse(rest).ok_or_else(bad)?),
                "when" => rule.when.push(Premise(rest.split(' ').map(String::from).collect())),
                "to" if rest == "computed" => {}
                "to" => rule.right = Some(Pattern::parse(rest).ok_or_else(bad)?),
                _ => return Err(bad()),
            }
        }
        Ok(Rules { values: all, forms })
    }
}

impl Premise {
    /// Whether it holds; an error if it is none.
    pub fn holds(&self, t: &Terms, vars: &BTreeMap<String, usize>, ops: &HashMap<String, Op>) -> Result<bool, String> {
        let words: Vec<&str> = self.0.iter().map(String::as_str).collect();
        // A value that this pattern of the rule does not have fulfils no premise.
        let var = |name: &str| vars.get(name).copied();
        let rank = |name: &str| var(name).map(|x| t.ty(x).rank());
        Ok(match words[..] {
            ["scalar", v] => var(v).is_some_and(|x| t.number(x).is_some() && t.ty(x).shape.is_empty()),
            ["frozen", v] => var(v).is_some_and(|x| t.frozen(x)),
            ["rank", v, n] => rank(v).is_some() && rank(v) == n.parse().ok(),
            ["varies", v] => var(v).is_some_and(|x| t.number(x).is_none()),
            ["not", v, dtype] => var(v).is_some_and(|x| t.ty(x).dtype.name() != dtype),
            ["last-axis", o, v] => match (ops.get(o).and_then(axes), rank(v)) {
                (Some(axes), Some(rank)) => rank > 0 && axes == [rank - 1],
                _ => false,
            },
            ["trailing-axes", o, v] => match (ops.get(o).and_then(axes), rank(v)) {
                (Some(axes), Some(rank)) => {
                    !axes.is_empty() && axes.len() <= rank && axes.iter().copied().eq(rank - axes.len()..rank)
                }
                _ => false,
            },
            _ => return Err(format!("`{}` is no premise", words.join(" "))),
        })
    }
}
