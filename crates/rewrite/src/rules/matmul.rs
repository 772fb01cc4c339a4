//! Matmuls and convolutions: one form for matmuls with weights, constant factors moved out, batch norms folded into
//! convolutions.
use super::{
    Premise::*,
    Right::{By, Is},
    Rule,
};
use crate::build::Builder;
use crate::pattern::Bindings;
use egg::Id;
use kiln_graph::{BinaryOp::*, DType, Op, UnaryOp};
use kiln_plan::Numerics::*;

/// The scale (gain over standard deviation) and the shift of a batch norm bound as `n`: both `[C]`.
fn batch_norm(b: &mut Builder, m: &Bindings) -> Option<(Id, Id)> {
    let Op::BatchNorm { eps } = *m.op("n")? else { return None };
    let (g, c, mean, variance) = (m.var("g")?, m.var("c")?, m.var("m")?, m.var("s")?);
    let e = b.constant(b.ty(variance).dtype, eps.as_f64());
    let v = b.binary(Add, variance, e)?;
    let r = b.unary(UnaryOp::Rsqrt, v)?;
    let scale = b.binary(Mul, g, r)?;
    let moved = b.binary(Mul, mean, scale)?;
    Some((scale, b.binary(Sub, c, moved)?))
}
/// `[C]` as `[C, 1, …]` with `after` axes of size 1.
fn column(b: &mut Builder, x: Id, after: usize) -> Option<Id> {
    let mut s = b.shape(x).to_vec();
    s.extend(std::iter::repeat_n(1, after));
    b.reshape(x, &s)
}
/// A matmul of operands whose batch axes were joined, with its result's axes apart: the matmul with the axes apart.
fn apart(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, y, Op::Reshape(to)) = (m.var("x")?, m.var("y")?, m.op("r")?) else { return None };
    let joined = |b: &Builder, x: Id| b.form(x, |o, _| matches!(o, Op::Reshape(_)).then_some(())).is_some();
    if !joined(b, x) || !joined(b, y) {
        return None;
    }
    let &[batch, rows, inner] = b.shape(x) else { return None };
    let &[other, _, columns] = b.shape(y) else { return None };
    let heads = to.strip_suffix(&[rows, columns])?;
    if batch != other || heads.len() < 2 || heads.iter().product::<usize>() != batch {
        return None;
    }
    let x = b.reshape(x, &[heads, &[rows, inner]].concat())?;
    let y = b.reshape(y, &[heads, &[inner, columns]].concat())?;
    b.add(Op::Dot, &[x, y])
}
fn scale_and_shift(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let x = m.var("x")?;
    let (scale, shift) = batch_norm(b, m)?;
    let after = b.shape(x).len().checked_sub(2)?;
    let (scale, shift) = (column(b, scale, after)?, column(b, shift, after)?);
    let y = b.binary(Mul, x, scale)?;
    b.binary(Add, y, shift)
}
fn into_convolution(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let conv = m.op("k")?.clone();
    let Op::Conv { transposed: false, .. } = conv else { return None };
    let (x, w) = (m.var("x")?, m.var("w")?);
    let (scale, shift) = batch_norm(b, m)?;
    let shift = match m.var("b") {
        Some(bias) => {
            let bias = b.binary(Mul, bias, scale)?;
            b.binary(Add, bias, shift)?
        }
        None => shift,
    };
    let after = b.shape(w).len().checked_sub(1)?;
    let scale = column(b, scale, after)?;
    let w = b.binary(Mul, w, scale)?;
    b.add(conv, &[x, w, shift])
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "matmul-with-weight",
        numerics: Exact,
        half: Exact,
        left: &["(dot ?x ?w)"],
        when: &[Frozen("w"), Rank("w", 2)],
        right: By(|b, m| {
            let w = b.transpose(m.var("w")?)?;
            b.add(Op::Linear, &[m.var("x")?, w])
        }),
        example: "(%x: f32[4,8]) {\n @w: f32[8,2] = fill(1.0)\n %y = dot %x, @w\n return %y\n}",
        near_miss: "(%x: f32[4,8], %w: f32[8,2]) {\n %y = dot %x, %w\n return %y\n}",
    },
    Rule {
        name: "bias",
        numerics: Exact,
        half: Torch,
        left: &["(add (linear ?x ?w) ?c)"],
        when: &[Frozen("c"), Rank("c", 1)],
        right: Is("(linear ?x ?w ?c)"),
        example: "(%x: f32[4,8]) {\n @w: f32[2,8] = fill(1.0)\n @c: f32[2] = fill(1.0)
            %a = linear %x, @w\n %y = add @c, %a\n return %y\n}",
        near_miss: "(%x: f32[4,8]) {\n @w: f32[2,8] = fill(1.0)\n @c: f32[4,2] = fill(1.0)
            %a = linear %x, @w\n %y = add @c, %a\n return %y\n}",
    },
    Rule {
        name: "factor-through-matmul",
        numerics: Torch,
        half: Torch,
        left: &["(dot (mul ?x ?c) ?y)", "(dot ?x (mul ?y ?c))"],
        // In f16 a matmul without the factor may overflow the narrow range.
        when: &[Scalar("c"), Not("x", DType::F16)],
        right: Is("(mul (dot ?x ?y) ?c)"),
        example: "(%x: f32[4,8], %z: f32[8,2]) {\n %a = mul %x, 0.25\n %y = dot %a, %z\n return %y\n}",
        near_miss: "(%x: f32[4,8], %z: f32[8,2], %c: f32[8]) {\n %a = mul %x, %c\n %y = dot %a, %z\n return %y\n}",
    },
    Rule {
        name: "matmul-with-batch-apart",
        numerics: Exact,
        half: Exact,
        left: &["(reshape:r (dot ?x ?y))"],
        when: &[],
        right: By(apart),
        example: "(%x: f32[2,3,4,8], %z: f32[2,3,8,2]) {
            %a = reshape %x shape=[6,4,8]\n %b = reshape %z shape=[6,8,2]\n %d = dot %a, %b
            %y = reshape %d shape=[2,3,4,2]\n return %y\n}",
        near_miss: "(%x: f32[2,3,4,8], %z: f32[2,3,8,2]) {
            %a = reshape %x shape=[6,4,8]\n %b = reshape %z shape=[6,8,2]\n %d = dot %a, %b
            %y = reshape %d shape=[2,3,2,4]\n return %y\n}",
    },
    Rule {
        name: "batch-norm-as-scale",
        numerics: Torch,
        half: Torch,
        left: &["(batch_norm:n ?x ?g ?c ?m ?s)"],
        when: &[Frozen("g"), Frozen("c"), Frozen("m"), Frozen("s")],
        right: By(scale_and_shift),
        example: "(%x: f32[2,3,4]) {\n @g: f32[3] = fill(1.0)\n @s: f32[3] = fill(2.0)
            %y = batch_norm %x, @g, @g, @g, @s eps=1e-5\n return %y\n}",
        near_miss: "(%x: f32[2,3,4], %m: f32[3]) {\n @g: f32[3] = fill(1.0)\n @s: f32[3] = fill(2.0)
            %y = batch_norm %x, @g, @g, %m, @s eps=1e-5\n return %y\n}",
    },
    Rule {
        name: "batch-norm-into-convolution",
        numerics: Torch,
        half: Torch,
        left: &["(batch_norm:n (conv:k ?x ?w) ?g ?c ?m ?s)", "(batch_norm:n (conv:k ?x ?w ?b) ?g ?c ?m ?s)"],
        when: &[Frozen("w"), Frozen("g"), Frozen("c"), Frozen("m"), Frozen("s")],
        right: By(into_convolution),
        example: "(%x: f32[2,3,8,8]) {
            @w: f32[4,3,3,3] = fill(1.0)\n @g: f32[4] = fill(1.0)\n @s: f32[4] = fill(2.0)
            %k = conv %x, @w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]
            %y = batch_norm %k, @g, @g, @g, @s eps=1e-5\n return %y\n}",
        near_miss: "(%x: f32[2,3,8,8], %w: f32[4,3,3,3]) {
            @g: f32[4] = fill(1.0)\n @s: f32[4] = fill(2.0)
            %k = conv %x, %w stride=[1,1] padding=[1,1] dilation=[1,1] groups=1 transposed=false output_padding=[0,0]
            %y = batch_norm %k, @g, @g, @g, @s eps=1e-5\n return %y\n}",
    },
];
