//! Recognises attention with a sink: one more score of each query, whose key has the value zero. Programs write it as a
//! softmax of scores beside which the sink stands, and drop its probability; or as one more term of the softmax's sum
//! (a sink of zero is "softmax plus one").
use super::attention::{Wanted, attend, float_cast, is_of_rows};
use super::{Right::By, Rule};
use crate::build::Builder;
use crate::pattern::Bindings;
use egg::Id;
use kiln_graph::{BinaryOp, FullyMasked, Op, ReduceOp, UnaryOp};
use kiln_plan::Numerics::*;

/// Casts that are followed.
const DEEP: usize = 6;

/// Where the sink stands in its row.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    First,
    Last,
}

/// Scores and sink of a row that has both.
fn parts(b: &Builder, x: Id, place: Place, deep: usize) -> Option<[Id; 2]> {
    let last = b.shape(x).len().checked_sub(1)?;
    let joined = b.form(x, |o, a| match (o, a) {
        (Op::Concat { axis }, &[p, q]) if *axis == last => Some(if place == Place::First { [q, p] } else { [p, q] }),
        (Op::Pad { lo, hi }, &[p, value]) => {
            let beside = |before: &[i64], after: &[i64]| {
                after.iter().all(|n| *n == 0) && before[..last].iter().all(|n| *n == 0) && before[last] == 1
            };
            (if place == Place::First { beside(lo, hi) } else { beside(hi, lo) }).then_some([p, value])
        }
        _ => None,
    });
    if let Some([scores, sink]) = joined {
        return b.shape(sink).last().is_none_or(|n| *n == 1).then_some([scores, sink]);
    }
    let deep = deep.checked_sub(1)?;
    let inner = b.form(x, |o, a| float_cast(b, o, a))?;
    parts(b, inner, place, deep)
}
/// Whether `m` has the maximum of each row of `x`, apart from casts.
pub(super) fn is_maximum(b: &Builder, m: Id, x: Id) -> bool {
    let bare = |mut x: Id| {
        for _ in 0..DEEP {
            let Some(inner) = b.form(x, |o, a| float_cast(b, o, a)) else { break };
            x = inner;
        }
        x
    };
    let last = b.shape(x).len().saturating_sub(1);
    let of = |o: &Op, a: &[Id]| {
        matches!(o, Op::Reduce { op: ReduceOp::Max, axes } if *axes == [last]).then(|| bare(a[0]) == bare(x))
    };
    b.shape(m).len() == last + 1 && b.form(bare(m), of) == Some(true)
}

/// Attention of scores and values with a sink.
fn with(b: &mut Builder, [x, v]: [Id; 2], sink: Id, fully_masked: Option<FullyMasked>) -> Option<Id> {
    attend(b, x, &Wanted { values: Some(v), sink: Some(sink), fully_masked, lse: false })
}

/// A softmax of scores and a sink, without the sink's probability.
fn beside(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, v) = (m.var("s")?, m.var("v")?);
    let (Op::Slice { axis, start, len, step: 1 }, rank) = (m.op("l")?, b.shape(x).len()) else { return None };
    if !is_of_rows(m.op("f")?, rank) || axis + 1 != rank || len + 1 != b.shape(x)[*axis] {
        return None;
    }
    let place = if *start == 0 { Place::Last } else { Place::First };
    let [scores, sink] = parts(b, x, place, DEEP)?;
    with(b, [scores, v], sink, Some(FullyMasked::Nan))
}

/// A quotient of powers and their sum with one more term.
fn one_more(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, v) = (m.var("x")?, m.var("v")?);
    let last = b.shape(x).len().checked_sub(1)?;
    if !matches!(m.op("a")?, Op::Reduce { axes, .. } if *axes == [last]) {
        return None;
    }
    let zero = b.constant(b.ty(x).dtype, 0.0);
    let Some(most) = m.var("m") else {
        // Powers of the scores themselves.
        return with(b, [x, v], zero, Some(FullyMasked::Zero));
    };
    let sink = m.var("t").unwrap_or(zero);
    // A sink that is not one for each row.
    if b.shape(sink).last().is_some_and(|n| *n != 1) {
        return None;
    }
    let of_both = |o: &Op, a: &[Id]| match *o {
        Op::Binary(BinaryOp::Max) => {
            let is = |y: Id| y == sink || b.fact(y).number().is_some_and(|n| b.fact(sink).number() == Some(n));
            (is_maximum(b, a[0], x) && is(a[1]) || is_maximum(b, a[1], x) && is(a[0])).then_some(())
        }
        Op::Unary(UnaryOp::Relu) => (is_maximum(b, a[0], x) && sink == zero).then_some(()),
        _ => None,
    };
    if b.form(most, of_both).is_some() {
        return with(b, [x, v], sink, Some(FullyMasked::Nan));
    }
    // The maximum of a fully masked row is minus infinity, and the difference NaN, which a sink is not.
    if is_maximum(b, most, x) { with(b, [x, v], sink, None) } else { None }
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "attention-sink",
        numerics: Torch,
        half: Torch,
        left: &[
            "(dot (slice:l (softmax:f ?s)) ?v)",
            "(dot (cast (slice:l (softmax:f ?s))) ?v)",
            "(dot (slice:l (cast (softmax:f ?s))) ?v)",
        ],
        when: &[],
        right: By(beside),
        example: "(%q: f32[2,4,8,16], %k: f32[2,4,8,16], %v: f32[2,4,8,16], %s: f32[4,1,1]) {
            %t = permute %k perm=[0,1,3,2]\n %d = dot %q, %t\n %e = broadcast %s shape=[2,4,8,1]
            %c = concat %d, %e axis=3\n %x = reduce.max %c axes=[3]\n %z = sub %c, %x\n %p = softmax %z axis=3
            %l = slice %p axis=3 len=8\n %y = dot %l, %v\n return %y\n}",
        near_miss: "(%q: f32[2,4,8,16], %k: f32[2,4,8,16], %v: f32[2,4,8,16], %s: f32[4,1,1]) {
            %t = permute %k perm=[0,1,3,2]\n %d = dot %q, %t\n %e = broadcast %s shape=[2,4,8,1]
            %c = concat %d, %e axis=3\n %p = softmax %c axis=3\n %l = slice %p axis=3 start=1 len=8\n %y = dot %l, %v
            return %y\n}",
    },
    Rule {
        name: "attention-softmax-one",
        numerics: Torch,
        half: Torch,
        left: &[
            "(dot (div (exp (sub ?x ?m)) (add (exp (neg ?m)) (reduce.sum:a (exp (sub ?x ?m))))) ?v)",
            "(dot (cast (div (exp (sub ?x ?m)) (add (exp (neg ?m)) (reduce.sum:a (exp (sub ?x ?m)))))) ?v)",
            "(dot (div (exp (sub ?x ?m)) (add (exp (sub ?t ?m)) (reduce.sum:a (exp (sub ?x ?m))))) ?v)",
            "(dot (cast (div (exp (sub ?x ?m)) (add (exp (sub ?t ?m)) (reduce.sum:a (exp (sub ?x ?m)))))) ?v)",
            "(dot (div (exp ?x) (add 1 (reduce.sum:a (exp ?x)))) ?v)",
            "(dot (cast (div (exp ?x) (add 1 (reduce.sum:a (exp ?x))))) ?v)",
        ],
        when: &[],
        right: By(one_more),
        example: "(%q: f32[2,4,8,16], %k: f32[2,4,8,16], %v: f32[2,4,8,16]) {
            %t = permute %k perm=[0,1,3,2]\n %d = dot %q, %t\n %m = reduce.max %d axes=[3]\n %z = sub %d, %m\n %e = exp %z
            %n = neg %m\n %o = exp %n\n %r = reduce.sum %e axes=[3]\n %u = add %o, %r\n %p = div %e, %u
            %y = dot %p, %v\n return %y\n}",
        near_miss: "(%q: f32[2,4,8,16], %k: f32[2,4,8,16], %v: f32[2,4,8,16]) {
            %t = permute %k perm=[0,1,3,2]\n %d = dot %q, %t\n %m = reduce.max %d axes=[3]\n %z = sub %d, %m\n %e = exp %z
            %r = reduce.sum %e axes=[3]\n %u = add %r, 1.0\n %p = div %e, %u\n %y = dot %p, %v\n return %y\n}",
    },
];
