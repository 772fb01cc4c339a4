//! Joins matmuls that share their left operand with several weights: one matmul with the concatenated weights, and
//! slices of its result.
//!
//! One pass after saturation, not a rule: a rule for pairs would join the results of earlier joins again. Exact: every
//! element is computed as before. Weights must be frozen, so that they are concatenated once, at load time.
use super::Saturated;
use crate::certificate::Event;
use crate::language::op;
use egg::Id;
use kiln_graph::Op;
use std::collections::BTreeMap;

pub const NAME: &str = "join-siblings";

/// One matmul: weight, bias, and the class of its result.
#[derive(Clone, Copy)]
struct Matmul {
    weight: Id,
    bias: Option<Id>,
    class: Id,
}

pub fn join(s: &mut Saturated) {
    for (x, matmuls) in matmuls(s) {
        // If the same matmul exists with and without bias, the one with bias is joined.
        let biased = |w: Id| matmuls.iter().any(|p| p.weight == w && p.bias.is_some());
        let outer: Vec<Matmul> = matmuls.iter().copied().filter(|p| p.bias.is_some() || !biased(p.weight)).collect();
        let (with, without): (Vec<Matmul>, Vec<Matmul>) = outer.into_iter().partition(|p| p.bias.is_some());
        for group in [with, without].into_iter().filter(|g| g.len() > 1) {
            join_group(s, x, &group);
        }
    }
    s.builder.g.rebuild();
}

/// Matmuls with frozen weights by their left operand, in the order in which they were written.
fn matmuls(s: &Saturated) -> BTreeMap<Id, Vec<Matmul>> {
    let b = &s.builder;
    let mut out: BTreeMap<Id, Vec<Matmul>> = BTreeMap::new();
    let mut classes: Vec<Id> = b.g.classes().map(|c| c.id).collect();
    classes.sort();
    for class in classes {
        for t in b.g[class].nodes.iter().filter(|t| *op(&b.g, t) == Op::Linear) {
            let frozen = t.args[1..].iter().all(|a| b.fact(*a).frozen);
            if frozen && !b.fact(t.args[0]).frozen {
                let (weight, bias) = (b.g.find(t.args[1]), t.args.get(2).map(|c| b.g.find(*c)));
                let group = out.entry(b.g.find(t.args[0])).or_default();
                if !group.iter().any(|p| p.weight == weight && p.bias == bias) {
                    group.push(Matmul { weight, bias, class });
                }
            }
        }
    }
    out
}

fn join_group(s: &mut Saturated, x: Id, group: &[Matmul]) -> Option<()> {
    let b = &mut s.builder;
    b.origin = b.source.get(&group[0].class).cloned().unwrap_or_default();
    let weights: Vec<Id> = group.iter().map(|p| p.weight).collect();
    let mut args = vec![x, b.add(Op::Concat { axis: 0 }, &weights)?];
    let biases: Vec<Id> = group.iter().filter_map(|p| p.bias).collect();
    if !biases.is_empty() {
        args.push(b.add(Op::Concat { axis: 0 }, &biases)?);
    }
    let all = b.add(Op::Linear, &args)?;
    let axis = b.shape(all).len().checked_sub(1)?;
    let mut start = 0;
    for p in group {
        let len = s.builder.shape(p.weight)[0];
        let part = s.builder.add(Op::Slice { axis, start, len, step: 1 }, &[all])?;
        if s.equate(p.class, part, NAME, &[]) {
            let args: Vec<Id> = [x, p.weight].into_iter().chain(p.bias).collect();
            let leaves = [&[x][..], &weights, &biases].concat();
            let ty = s.builder.ty(p.class).clone();
            s.builder.log(|| Event::Equal { why: NAME, op: Op::Linear, ty, args, form: part, leaves });
        }
        start += len;
    }
    Some(())
}
