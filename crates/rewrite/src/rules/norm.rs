//! Recognises row functions written in primitives: softmax, log-softmax, layer norm, RMS norm; and casts around them.
use super::{Premise::*, Right::By, Rule};
use crate::build::{Builder, widens};
use crate::pattern::{Bindings, axes};
use egg::Id;
use kiln_graph::{BinaryOp, Op, ReduceOp, Scalar, UnaryOp};
use kiln_plan::Numerics::*;

fn row(b: &mut Builder, m: &Bindings, make: fn(usize) -> Op) -> Option<Id> {
    let [axis] = axes(m.op("a")?)?[..] else { return None };
    b.add(make(axis), &[m.var("x")?])
}
/// A number as it was written, before rounding to its type.
fn number(b: &Builder, x: Id) -> Option<Scalar> {
    b.form(x, |o, _| if let Op::Const(s @ Scalar::Float(_)) = o { Some(*s) } else { None })
}
/// A gather from a log-softmax: computes only the gathered elements, and each row's maximum and sum.
fn chosen_logs(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (Op::Gather { axis }, Op::LogSoftmax { axis: along }) = (m.op("g")?, m.op("s")?) else { return None };
    let (axis, x, i) = (*axis, m.var("x")?, m.var("i")?);
    let whole = b.shape(x).iter().zip(b.shape(i)).enumerate().all(|(a, (n, k))| a == axis || n == k);
    // Where as many elements are gathered as a row has, nothing is saved.
    if axis != *along || !whole || b.shape(i)[axis] >= b.shape(x)[axis] {
        return None;
    }
    let axes = vec![axis];
    let most = b.add(Op::Reduce { op: ReduceOp::Max, axes: axes.clone() }, &[x])?;
    let below = b.binary(BinaryOp::Sub, x, most)?;
    let powers = b.unary(UnaryOp::Exp, below)?;
    let sum = b.add(Op::Reduce { op: ReduceOp::Sum, axes }, &[powers])?;
    let log = b.unary(UnaryOp::Log, sum)?;
    let one = b.add(Op::Gather { axis }, &[x, i])?;
    let below = b.binary(BinaryOp::Sub, one, most)?;
    b.binary(BinaryOp::Sub, below, log)
}
/// Normalisation of `x` over the axes of `a`, without gain and bias.
fn layer_norm(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let eps = number(b, m.var("e")?)?;
    let axes = axes(m.op("a")?)?.len();
    b.add(Op::LayerNorm { axes, affine: false, eps }, &[m.var("x")?])
}
/// A bare norm with its gain and bias.
fn affine(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (bare, x) = (m.op("n")?.clone(), m.var("x")?);
    let (g, c) = (flat(b, m.var("g")?, x, &bare)?, flat(b, m.var("c")?, x, &bare)?);
    let Op::LayerNorm { axes, affine: false, eps } = bare else { return None };
    b.add(Op::LayerNorm { axes, affine: true, eps }, &[x, g, c])
}
/// A gain or bias in the shape that the norm op requires: that of the normalised axes, without leading axes of size 1.
fn flat(b: &mut Builder, gain: Id, x: Id, norm: &Op) -> Option<Id> {
    let n = if let Op::LayerNorm { axes, .. } = norm { *axes } else { 1 };
    let want = b.shape(x)[b.shape(x).len().checked_sub(n)?..].to_vec();
    let lead = b.shape(gain).len().checked_sub(n)?;
    let fits = b.shape(gain)[lead..] == want[..] && b.shape(gain)[..lead].iter().all(|&d| d == 1);
    if fits { b.reshape(gain, &want) } else { None }
}
/// `x · rsqrt(mean(x²) + e) · g` over the last axis.
fn rms_norm(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, eps) = (m.var("x")?, number(b, m.var("e")?)?);
    let op = Op::RmsNorm { eps };
    let g = flat(b, m.var("g")?, x, &op)?;
    b.add(op, &[x, g])
}
/// A row function in f32 between casts equals the op on the half type, which computes in f32 itself.
fn in_half(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let Op::Cast(to) = *m.op("to")? else { return None };
    let x = m.var("x")?;
    let (narrow, op) = (b.ty(x).dtype, m.op("f")?.clone());
    let wide = narrow == to && to.compute() != to && matches!(m.op("from")?, Op::Cast(d) if *d == to.compute());
    if !wide || !widens(narrow, to.compute()) {
        return None;
    }
    let mut args = vec![x];
    for name in ["g", "c"] {
        let Some(gain) = m.var(name) else { continue };
        if b.ty(gain).dtype != to {
            return None;
        }
        args.push(gain);
    }
    b.add(op, &args)
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "chosen-log-softmax",
        numerics: Exact,
        half: Torch,
        left: &["(gather:g (log_softmax:s ?x) ?i)"],
        when: &[],
        right: By(chosen_logs),
        example: "(%x: f32[4,8], %i: i64[4,1]) {\n %p = log_softmax %x axis=1\n %y = gather %p, %i axis=1\n return %y\n}",
        near_miss: "(%x: f32[4,8], %i: i64[1,8]) {\n %p = log_softmax %x axis=1\n %y = gather %p, %i axis=0\n return %y\n}",
    },
    Rule {
        name: "softmax",
        numerics: Exact,
        half: Torch,
        left: &[
            "(div (exp (sub ?x (reduce.max:a ?x))) (reduce.sum:a (exp (sub ?x (reduce.max:a ?x)))))",
            "(mul (exp (sub ?x (reduce.max:a ?x))) (reciprocal (reduce.sum:a (exp (sub ?x (reduce.max:a ?x))))))",
        ],
        when: &[],
        right: By(|b, m| row(b, m, |axis| Op::Softmax { axis })),
        example: "(%x: f32[4,8]) {
            %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[1]\n %y = div %e, %t
            return %y\n}",
        near_miss: "(%x: f32[8,8]) {
            %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[0]\n %y = div %e, %t
            return %y\n}",
    },
    Rule {
        // The maximum of the difference is zero, which the softmax subtracts once more.
        name: "softmax-less-maximum",
        numerics: Exact,
        half: Torch,
        left: &["(softmax:a (sub ?x (reduce.max:a ?x)))", "(softmax:a (cast:to (sub ?x (reduce.max:a ?x))))"],
        when: &[],
        right: By(|b, m| match m.op("to") {
            Some(to @ Op::Cast(wide)) if widens(b.ty(m.var("x")?).dtype, *wide) => {
                let x = b.add(to.clone(), &[m.var("x")?])?;
                b.add(m.op("a")?.clone(), &[x])
            }
            Some(_) => None,
            None => b.add(m.op("a")?.clone(), &[m.var("x")?]),
        }),
        example: "(%x: f32[4,8]) {\n %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %y = softmax %s axis=1\n return %y\n}",
        near_miss: "(%x: f32[4,8]) {\n %m = reduce.max %x axes=[0]\n %s = sub %x, %m\n %y = softmax %s axis=1\n return %y\n}",
    },
    Rule {
        name: "log-softmax",
        numerics: Exact,
        half: Torch,
        left: &["(sub (sub ?x (reduce.max:a ?x)) (log (reduce.sum:a (exp (sub ?x (reduce.max:a ?x))))))"],
        when: &[],
        right: By(|b, m| row(b, m, |axis| Op::LogSoftmax { axis })),
        example: "(%x: f32[4,8]) {
            %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[1]\n %l = log %t
            %y = sub %s, %l\n return %y\n}",
        near_miss: "(%x: f32[4,8]) {
            %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[1]\n %l = log2 %t
            %y = sub %s, %l\n return %y\n}",
    },
    Rule {
        name: "log-softmax-of-sum",
        numerics: Torch,
        half: Torch,
        left: &["(sub ?x (add (reduce.max:a ?x) (log (reduce.sum:a (exp (sub ?x (reduce.max:a ?x)))))))"],
        when: &[],
        right: By(|b, m| row(b, m, |axis| Op::LogSoftmax { axis })),
        example: "(%x: f32[4,8]) {
            %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[1]\n %l = log %t
            %n = add %m, %l\n %y = sub %x, %n\n return %y\n}",
        near_miss: "(%x: f32[4,8], %z: f32[4,8]) {
            %m = reduce.max %x axes=[1]\n %s = sub %x, %m\n %e = exp %s\n %t = reduce.sum %e axes=[1]\n %l = log %t
            %n = add %m, %l\n %y = sub %z, %n\n return %y\n}",
    },
    Rule {
        name: "layer-norm",
        numerics: Exact,
        half: Torch,
        left: &[
            "(div (sub ?x (reduce.mean:a ?x)) (sqrt (add ?e (reduce.mean:a (mul (sub ?x (reduce.mean:a ?x)) (sub ?x (reduce.mean:a ?x)))))))",
            "(mul (sub ?x (reduce.mean:a ?x)) (rsqrt (add ?e (reduce.mean:a (mul (sub ?x (reduce.mean:a ?x)) (sub ?x (reduce.mean:a ?x)))))))",
        ],
        when: &[Scalar("e"), TrailingAxes("a", "x")],
        right: By(layer_norm),
        example: "(%x: f32[4,8]) {
            %m = reduce.mean %x axes=[1]\n %c = sub %x, %m\n %q = mul %c, %c\n %v = reduce.mean %q axes=[1]
            %w = add %v, 1e-5\n %r = rsqrt %w\n %y = mul %r, %c\n return %y\n}",
        near_miss: "(%x: f32[4,8]) {
            %m = reduce.mean %x axes=[1]\n %c = sub %x, %m\n %q = mul %x, %x\n %v = reduce.mean %q axes=[1]
            %w = add %v, 1e-5\n %r = rsqrt %w\n %y = mul %r, %c\n return %y\n}",
    },
    Rule {
        name: "affine-layer-norm",
        numerics: Exact,
        half: Torch,
        left: &["(add (mul (layer_norm:n ?x) ?g) ?c)"],
        when: &[],
        right: By(affine),
        example: "(%x: f32[4,8], %g: f32[8], %c: f32[8]) {
            %n = layer_norm %x axes=1 affine=false eps=1e-5\n %s = mul %g, %n\n %y = add %s, %c\n return %y\n}",
        near_miss: "(%x: f32[8,8], %g: f32[8,8], %c: f32[8]) {
            %n = layer_norm %x axes=1 affine=false eps=1e-5\n %s = mul %g, %n\n %y = add %s, %c\n return %y\n}",
    },
    Rule {
        name: "rms-norm",
        numerics: Exact,
        half: Torch,
        left: &[
            "(mul ?g (mul ?x (rsqrt (add ?e (reduce.mean:a (mul ?x ?x))))))",
            "(mul ?g (div ?x (sqrt (add ?e (reduce.mean:a (mul ?x ?x))))))",
        ],
        when: &[Scalar("e"), LastAxis("a", "x")],
        right: By(rms_norm),
        example: "(%x: f32[4,8], %g: f32[8]) {
            %q = pow %x, 2.0\n %v = reduce.mean %q axes=[1]\n %w = add %v, 1e-5\n %r = rsqrt %w\n %s = mul %x, %r
            %y = mul %g, %s\n return %y\n}",
        near_miss: "(%x: f32[4,8], %g: f32[8]) {
            %q = pow %x, 2.0\n %v = reduce.sum %q axes=[1]\n %w = add %v, 1e-5\n %r = rsqrt %w\n %s = mul %x, %r
            %y = mul %g, %s\n return %y\n}",
    },
    Rule {
        name: "row-function-in-half",
        numerics: Exact,
        half: Exact,
        left: &[
            "(cast:to (softmax:f (cast:from ?x)))",
            "(cast:to (log_softmax:f (cast:from ?x)))",
            "(cast:to (layer_norm:f (cast:from ?x)))",
            "(cast:to (layer_norm:f (cast:from ?x) (cast:from ?g) (cast:from ?c)))",
            "(cast:to (rms_norm:f (cast:from ?x) (cast:from ?g)))",
        ],
        when: &[],
        right: By(in_half),
        example: "(%x: bf16[4,8]) {\n %w = cast %x to=f32\n %s = softmax %w axis=1\n %y = cast %s to=bf16\n return %y\n}",
        near_miss: "(%x: bf16[4,8]) {\n %w = cast %x to=f32\n %s = softmax %w axis=1\n %y = cast %s to=f16\n return %y\n}",
    },
];
