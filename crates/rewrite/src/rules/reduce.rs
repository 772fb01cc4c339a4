//! Reductions of the result of a row function (softmax, norms, reductions), split into two steps.
use super::{Right::By, Rule};
use crate::build::Builder;
use crate::language::op;
use crate::pattern::Bindings;
use egg::Id;
use kiln_graph::ops::Class;
use kiln_graph::{Op, ReduceOp};
use kiln_plan::Numerics::*;

/// Most values that are searched for a row function.
const DEPTH: usize = 64;

/// Reduces each row, then the results over the rows: the kernel of the row function stores one number per row.
fn by_rows(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (Op::Reduce { op, axes }, x) = (m.op("s")?.clone(), m.var("x")?) else { return None };
    let row = row_axes(b, x)?;
    let rest: Vec<usize> = axes.iter().copied().filter(|a| !row.contains(a)).collect();
    let rows: usize = rest.iter().map(|&a| b.shape(x)[a]).product();
    if !row.iter().all(|a| axes.contains(a)) || rows < 2 {
        return None;
    }
    // Sums of rows are kept in the accumulation type.
    let dtype = b.ty(x).dtype;
    let sums = matches!(op, ReduceOp::Sum | ReduceOp::Mean);
    let wide = if sums { b.add(Op::Cast(dtype.compute()), &[x])? } else { x };
    let inner = b.add(Op::Reduce { op, axes: row }, &[wide])?;
    let outer = b.add(Op::Reduce { op, axes: rest }, &[inner])?;
    if sums { b.add(Op::Cast(dtype), &[outer]) } else { Some(outer) }
}

/// The axes of a row function from whose result `x` is computed by pointwise ops.
fn row_axes(b: &Builder, x: Id) -> Option<Vec<usize>> {
    let rank = b.shape(x).len();
    let mut seen = vec![b.g.find(x)];
    let mut at = 0;
    while let Some(&id) = seen.get(at).filter(|_| at < DEPTH) {
        at += 1;
        for t in &b.g[id].nodes {
            let o = op(&b.g, t);
            let found = match o {
                Op::Reduce { .. } if id == seen[0] => None,
                // Its rows are channels too.
                Op::GroupNorm { .. } => None,
                o if matches!(Class::of(o), Class::Row | Class::Reduce) => Some(o.row_axes(rank)),
                _ => None,
            };
            if found.is_some() {
                return found;
            }
            let pointwise = matches!(Class::of(o), Class::Pointwise) && b.shape(id).len() == rank;
            for &a in t.args.iter().filter(|_| pointwise) {
                let a = b.g.find(a);
                if b.shape(a).len() == rank && !seen.contains(&a) {
                    seen.push(a);
                }
            }
        }
    }
    None
}

pub const RULES: &[Rule] = &[Rule {
    name: "reduce-by-rows",
    numerics: Torch,
    half: Torch,
    left: &["(reduce.sum:s ?x)", "(reduce.mean:s ?x)", "(reduce.max:s ?x)", "(reduce.min:s ?x)"],
    when: &[],
    right: By(by_rows),
    example: "(%x: f32[4,8], %z: f32[4,8]) {
        %p = softmax %x axis=1\n %d = mul %p, %z\n %y = reduce.sum %d axes=[0,1]\n return %y\n}",
    near_miss: "(%x: f32[4,8], %z: f32[4,8]) {
        %p = softmax %x axis=1\n %d = mul %p, %z\n %y = reduce.sum %d axes=[1]\n return %y\n}",
}];
