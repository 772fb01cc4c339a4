//! A log of what the e-graph was told, as steps over terms: what a checker that shares no code with this crate can
//! follow (`kiln-proof-check`).
//!
//! Takes: the events of an import and a saturation, in order. Gives: terms with their operands, and which of them were
//! stated to be equal, and why. An e-node may be named by any class it was ever in: the steps say what joined them.
use crate::language::{ENode, Values};
use egg::Id;
use kiln_graph::{Op, Scalar, Type};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What the e-graph was told.
#[derive(Clone, Debug)]
pub enum Event {
    /// A value was asked for, as the first op on the first classes; its normal form is the second one.
    Node { asked: (Op, Vec<Id>), normal: Option<(Op, Vec<Id>)>, ty: Type, class: Id },
    /// A value of the graph is this class.
    Value { value: u32, class: Id },
    /// A rule was applied: the place of its left pattern, its values, the e-nodes that its ops matched, and the form
    /// it gave.
    Rule { rule: &'static str, left: usize, vars: Vec<(String, Id)>, matched: Vec<ENode>, leaves: Vec<Id>, form: Id },
    /// An op on these classes equals a form, whatever the leaves are.
    Equal { why: &'static str, op: Op, ty: Type, args: Vec<Id>, form: Id, leaves: Vec<Id> },
}

/// A step; terms are numbered in their order.
#[derive(Clone, Debug)]
pub enum Entry {
    Term {
        op: Op,
        ty: Type,
        args: Vec<usize>,
    },
    Value {
        value: usize,
        term: usize,
    },
    Same {
        from: usize,
        to: usize,
    },
    Rule {
        rule: &'static str,
        left: usize,
        vars: BTreeMap<String, usize>,
        matched: Vec<usize>,
        leaves: Vec<usize>,
        to: usize,
    },
    Equal {
        why: &'static str,
        from: usize,
        to: usize,
        leaves: Vec<usize>,
    },
}

struct Writer<'a> {
    g: &'a Values,
    entries: Vec<Entry>,
    known: HashMap<(Op, Type, Vec<usize>), usize>,
    /// The term that was built last in each class.
    latest: HashMap<Id, usize>,
}

/// The events as steps. `g`: the e-graph in the end.
pub fn entries(events: &[Event], g: &Values) -> Vec<Entry> {
    let mut w = Writer { g, entries: vec![], known: HashMap::new(), latest: HashMap::new() };
    for e in events {
        match e {
            Event::Node { asked, normal, ty, class } => {
                let to = match normal {
                    Some((op, args)) => {
                        let to = w.term(op, ty, args);
                        w.latest.insert(*class, to);
                        to
                    }
                    None => w.class(*class),
                };
                if normal.as_ref() != Some(asked) {
                    let from = w.term(&asked.0, ty, &asked.1);
                    w.entries.push(Entry::Same { from, to });
                }
            }
            Event::Value { value, class } => {
                let term = w.class(*class);
                w.entries.push(Entry::Value { value: *value as usize, term });
            }
            Event::Rule { rule, left, vars, matched, leaves, form } => {
                let vars = vars.iter().map(|(name, id)| (name.clone(), w.class(*id))).collect();
                let matched = matched.iter().map(|t| w.node(t)).collect();
                let to = w.class(*form);
                let leaves = leaves.iter().map(|id| w.class(*id)).collect();
                w.entries.push(Entry::Rule { rule, left: *left, vars, matched, leaves, to });
            }
            Event::Equal { why, op, ty, args, form, leaves } => {
                let from = w.term(op, ty, args);
                let to = w.class(*form);
                let leaves = leaves.iter().map(|id| w.class(*id)).collect();
                w.entries.push(Entry::Equal { why, from, to, leaves });
            }
        }
    }
    w.entries
}

impl Writer<'_> {
    fn class(&mut self, id: Id) -> usize {
        if let Some(&t) = self.latest.get(&id) {
            return t;
        }
        // Classes without an event are constants that the analysis added.
        let data = &self.g[id].data;
        let number = Op::Const(Scalar::Float(data.number().unwrap_or(f64::NAN)));
        let ty = data.ty.clone();
        let t = self.term(&number, &ty, &[]);
        self.latest.insert(id, t);
        t
    }
    fn node(&mut self, t: &ENode) -> usize {
        let g = self.g;
        let head = &g.analysis.keys[t.key as usize];
        self.term(&head.op, &head.ty, &t.args)
    }
    fn term(&mut self, op: &Op, ty: &Type, args: &[Id]) -> usize {
        let args: Vec<usize> = args.iter().map(|a| self.class(*a)).collect();
        let next = self.known.len();
        let entries = &mut self.entries;
        *self.known.entry((op.clone(), ty.clone(), args)).or_insert_with_key(|(op, ty, args)| {
            entries.push(Entry::Term { op: op.clone(), ty: ty.clone(), args: args.clone() });
            next
        })
    }
}

/// What a form is made of that was there before: classes that these events of building it have as operands, and do not
/// give.
pub fn leaves(built: &[Event], form: Id) -> Vec<Id> {
    let (mut given, mut found) = (BTreeSet::new(), BTreeSet::new());
    for e in built {
        if let Event::Node { normal: Some((_, args)), class, .. } = e {
            found.extend(args.iter().filter(|a| !given.contains(*a)).copied());
            given.insert(*class);
        }
    }
    if !given.contains(&form) {
        found.insert(form);
    }
    found.into_iter().collect()
}
