//! Recognises the logarithm of the sum of exponentials of attention's scores, beside the attention of the same scores
//! or without it; and a softmax that is written with it.
use super::attention::{Wanted, all_masked, attend, float_cast, is_of_rows};
use super::sink::is_maximum;
use super::{Right::By, Rule};
use crate::build::Builder;
use crate::pattern::Bindings;
use egg::Id;
use kiln_graph::{BinaryOp, FullyMasked, Op, ReduceOp, UnaryOp};
use kiln_plan::Numerics::*;
use std::collections::BTreeSet;

/// The operand of a log-sum-exp over its last axis, which subtracts the maximum: or zero, where that is infinite.
pub(super) fn operand(b: &Builder, m: &Bindings) -> Option<Id> {
    let (x, most) = (m.var("x")?, m.var("m")?);
    let last = b.shape(x).len().checked_sub(1)?;
    if !matches!(m.op("a")?, Op::Reduce { axes, op: ReduceOp::Sum } if *axes == [last]) {
        return None;
    }
    let finite = |o: &Op, a: &[Id]| {
        let zero = |y: Id| b.fact(y).number() == Some(0.0);
        let either = [(1, 2), (2, 1)].iter().find(|(i, j)| *o == Op::Select && zero(a[*i]) && is_maximum(b, a[*j], x));
        either.map(|_| ())
    };
    (is_maximum(b, most, x) || b.form(most, finite).is_some()).then_some(x)
}

/// The classes that read a class.
fn readers(b: &Builder, x: Id) -> BTreeSet<Id> {
    b.g[x].parents().map(|p| b.g.find(p)).collect()
}

/// A class and its casts between floats, one up and one down.
fn cast(b: &Builder, x: Id) -> BTreeSet<Id> {
    let mut all = BTreeSet::from([b.g.find(x)]);
    all.extend(b.form(x, |o, a| float_cast(b, o, a)));
    for y in all.clone() {
        let of = |o: &Op, a: &[Id]| float_cast(b, o, a).filter(|z| *z == y);
        all.extend(readers(b, y).into_iter().filter(|p| b.form(*p, of).is_some()));
    }
    all
}

/// The values that the softmax of these scores weighs, and what that gives where all scores are minus infinity.
fn values(b: &Builder, x: Id) -> Option<(Id, FullyMasked)> {
    let rank = b.shape(x).len();
    let reading = |y: Id, is: &dyn Fn(&Op) -> bool| -> Vec<Id> {
        let of = |o: &Op, a: &[Id]| (is(o) && a[0] == y).then_some(());
        readers(b, y).into_iter().filter(|p| b.form(*p, of).is_some()).collect()
    };
    // A softmax, or a power of the difference.
    let weights = cast(b, x).into_iter().flat_map(|y| {
        let below = reading(y, &|o| *o == Op::Binary(BinaryOp::Sub));
        let powers = below.into_iter().flat_map(|z| reading(z, &|o| *o == Op::Unary(UnaryOp::Exp)));
        reading(y, &|o| is_of_rows(o, rank)).into_iter().chain(powers.collect::<Vec<_>>())
    });
    // With zeros in place of NaN, or as they are.
    let weights = weights.flat_map(|p| {
        let safe = |o: &Op, a: &[Id]| (*o == Op::Select && a[2] == p && all_masked(b, a[0], x)).then_some(());
        let safe = readers(b, p).into_iter().filter(|r| b.form(*r, safe).is_some());
        let safe = safe.map(|r| (r, FullyMasked::Zero)).collect::<Vec<_>>();
        safe.into_iter().chain([(p, FullyMasked::Nan)])
    });
    let mut weights = weights.flat_map(|(p, masked)| cast(b, p).into_iter().map(move |p| (p, masked)));
    weights.find_map(|(p, masked)| {
        let of = |o: &Op, a: &[Id]| (*o == Op::Dot && a[0] == p).then(|| (a[1], masked));
        readers(b, p).into_iter().find_map(|r| b.form(r, of))
    })
}

fn log_sum_exp(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let x = operand(b, m)?;
    let ty = b.ty(x).dtype;
    let (values, fully_masked) = values(b, x).map_or((None, FullyMasked::Nan), |(v, masked)| (Some(v), masked));
    let sums = attend(b, x, &Wanted { values, sink: None, fully_masked: Some(fully_masked), lse: true })?;
    if b.ty(sums).dtype == ty { Some(sums) } else { b.add(Op::Cast(ty), &[sums]) }
}

fn softmax(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let x = operand(b, m)?;
    let axis = b.shape(x).len() - 1;
    b.add(Op::Softmax { axis }, &[x])
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "attention-log-sum-exp",
        numerics: Torch,
        half: Torch,
        left: &["(add ?m (log (reduce.sum:a (exp (sub ?x ?m)))))"],
        when: &[],
        right: By(log_sum_exp),
        example: "(%q: f32[2,4,8,16], %k: f32[2,4,16,8]) {
            %d = dot %q, %k\n %s = div %d, 4.0\n %m = reduce.max %s axes=[3]\n %b = sub %s, %m\n %e = exp %b
            %t = reduce.sum %e axes=[3]\n %l = log %t\n %y = add %m, %l\n return %y\n}",
        near_miss: "(%q: f32[2,4,8,16], %k: f32[2,4,16,8]) {
            %d = dot %q, %k\n %s = div %d, 4.0\n %m = reduce.max %s axes=[2]\n %b = sub %s, %m\n %e = exp %b
            %t = reduce.sum %e axes=[2]\n %l = log %t\n %y = add %m, %l\n return %y\n}",
    },
    Rule {
        name: "softmax-of-log-sum-exp",
        numerics: Torch,
        half: Torch,
        left: &["(exp (sub ?x (add ?m (log (reduce.sum:a (exp (sub ?x ?m)))))))"],
        when: &[],
        right: By(softmax),
        example: "(%x: f32[4,8]) {
            %m = reduce.max %x axes=[1]\n %b = sub %x, %m\n %e = exp %b\n %t = reduce.sum %e axes=[1]\n %l = log %t
            %s = add %m, %l\n %c = sub %x, %s\n %y = exp %c\n return %y\n}",
        near_miss: "(%x: f32[4,8], %z: f32[4,8]) {
            %m = reduce.max %x axes=[1]\n %b = sub %x, %m\n %e = exp %b\n %t = reduce.sum %e axes=[1]\n %l = log %t
            %s = add %m, %l\n %c = sub %z, %s\n %y = exp %c\n return %y\n}",
    },
];
