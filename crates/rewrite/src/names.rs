//! Names of a program's values, for reports and constraints.
//!
//! A value that equals values of the graph has their names (`%17`). One that a rule made is named by the expression
//! that computes it: `linear(%17,concat(%46,%50))`. The first name is unique in the program, and equal programs give
//! equal names.
use crate::dag::Program;
use std::collections::BTreeMap;

/// Most operands that a name spells out.
const SPELLED: usize = 8;
/// Most levels of unnamed operands that a name spells out.
const DEPTH: usize = 3;

pub struct Names(Vec<String>);

impl Names {
    pub fn new(p: &Program) -> Names {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let name = |v: usize| {
            let name = spelled(p, v, DEPTH);
            let n = seen.entry(name.clone()).or_default();
            *n += 1;
            if *n == 1 { name } else { format!("{name}#{n}") }
        };
        Names((0..p.nodes.len()).map(name).collect())
    }
    /// The unique name.
    pub fn of(&self, v: usize) -> &str {
        &self.0[v]
    }
    /// All names, the unique one first.
    pub fn all(&self, p: &Program, v: usize) -> Vec<String> {
        let others = p.nodes[v].value.of.iter().skip(1).map(|v| v.to_string());
        std::iter::once(self.0[v].clone()).chain(others).collect()
    }
}

fn spelled(p: &Program, v: usize, depth: usize) -> String {
    let node = &p.nodes[v];
    if let Some(of) = node.value.of.first() {
        return of.to_string();
    }
    let op = node.value.op.name();
    if depth == 0 {
        return format!("{op}(..)");
    }
    let spell = |&a: &usize| spelled(p, a, depth - 1);
    let args: Vec<String> = match &node.args[..] {
        [first @ .., last] if first.len() >= SPELLED => {
            first[..SPELLED - 1].iter().map(spell).chain(["..".to_string(), spell(last)]).collect()
        }
        args => args.iter().map(spell).collect(),
    };
    format!("{op}({})", args.join(","))
}
