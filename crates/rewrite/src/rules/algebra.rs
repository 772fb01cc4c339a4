//! Arithmetic with constants: powers, factors, and moving factors through views.
use super::{
    Premise::*,
    Right::{By, Is},
    Rule,
};
use crate::build::Builder;
use crate::language::round_to;
use crate::pattern::Bindings;
use egg::Id;
use kiln_graph::{BinaryOp, CompareOp, DType, Op, UnaryOp};
use kiln_plan::Numerics::*;

/// `x · (1 / c)`, for a number `c`: powers of two if `exact`, else other numbers. The result of a reduction keeps its
/// division: it is one value per row, where a division costs nothing and an inexact reciprocal would round once more.
fn by_reciprocal(b: &mut Builder, m: &Bindings, exact: bool) -> Option<Id> {
    let (x, c) = (m.var("x")?, m.var("c")?);
    let (v, dtype) = (b.fact(c).number()?, b.ty(c).dtype);
    let power = v.is_normal() && v.to_bits() << 12 == 0 && v.abs() >= 2f64.powi(-100) && v.abs() <= 2f64.powi(100);
    let inverse = round_to(1. / v, dtype);
    if !dtype.is_float()
        || !keeps_digits(inverse, dtype)
        || (exact && !(power && inverse * v == 1.))
        || (!exact && power)
    {
        return None;
    }
    let reduced = b.form(x, |op, _| matches!(op, Op::Reduce { .. }).then_some(())).is_some();
    if !exact && reduced {
        return None;
    }
    let c = b.constant(dtype, inverse);
    b.binary(BinaryOp::Mul, x, c)
}
/// `x` itself for `x + 0` of integers; floats keep the sum, which turns -0 to 0.
fn without_zero(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, c) = (m.var("x")?, m.var("c")?);
    let widens = b.shape(c).len() > b.shape(x).len() || b.shape(c).iter().any(|n| *n != 1);
    (b.ty(x).dtype.is_int() && !widens && b.fact(c).number()? == 0.).then_some(x)
}
/// A choice between two numbers of which a test holds for one alone: its condition, or the condition's negation. The
/// rule does not apply where the choice is wider than its condition, as their types then differ.
fn decided(b: &mut Builder, m: &Bindings, test: impl Fn(f64) -> bool) -> Option<Id> {
    let (c, yes, no) = (m.var("c")?, m.var("t")?, m.var("f")?);
    let holds = [yes, no].map(|x| b.fact(x).number().map(&test));
    let [Some(yes), Some(no)] = holds else { return None };
    match (yes, no) {
        (true, false) => Some(c),
        (false, true) => b.unary(UnaryOp::Not, c),
        _ => None,
    }
}
/// `select(c, true, false)` as `c`.
fn condition(b: &mut Builder, m: &Bindings) -> Option<Id> {
    if b.ty(m.var("t")?).dtype != DType::Bool {
        return None;
    }
    decided(b, m, |x| x != 0.)
}
/// `select(c, 1, 0) == 0` as `not c`, and other comparisons of a choice between numbers with a number.
fn compared(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let with = b.fact(m.var("z")?).number()?;
    match m.op("o")? {
        Op::Compare(CompareOp::Eq) => decided(b, m, |x| x == with),
        Op::Compare(CompareOp::Ne) => decided(b, m, |x| x != with),
        Op::Compare(CompareOp::Gt) => decided(b, m, |x| x > with),
        Op::Compare(CompareOp::Lt) => decided(b, m, |x| x < with),
        _ => None,
    }
}
/// Whether a number of this type has full precision: neither subnormal nor infinite.
fn keeps_digits(v: f64, dtype: DType) -> bool {
    v.is_normal() && (dtype != DType::F16 || v.abs() >= 2f64.powi(-14))
}
/// `x · (c · d)`, unless the product of the factors may be subnormal or infinite.
fn merged(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, c, d) = (m.var("x")?, m.var("c")?, m.var("d")?);
    if b.shape(x).is_empty() && b.fact(x).uniform.is_some() {
        return None;
    }
    let dtype = b.ty(x).dtype;
    let known = b.fact(c).number().zip(b.fact(d).number());
    let fits = known.map_or(dtype != DType::F16, |(c, d)| keeps_digits(round_to(c * d, dtype), dtype));
    if dtype.is_float() && !fits {
        return None;
    }
    let factor = b.binary(BinaryOp::Mul, c, d)?;
    b.binary(BinaryOp::Mul, x, factor)
}
pub const RULES: &[Rule] = &[
    Rule {
        name: "square",
        numerics: Exact,
        half: Exact,
        left: &["(pow ?x 2)"],
        when: &[],
        right: Is("(mul ?x ?x)"),
        example: "(%x: f32[4]) {\n %y = pow %x, 2.0\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %y = pow %x, 2.5\n return %y\n}",
    },
    Rule {
        name: "add-zero",
        numerics: Exact,
        half: Exact,
        left: &["(add ?x ?c)", "(add ?c ?x)"],
        when: &[Scalar("c")],
        right: By(without_zero),
        example: "(%x: i64[4]) {\n %y = add %x, 0\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %y = add %x, 0.0\n return %y\n}",
    },
    Rule {
        name: "condition-of-choice",
        numerics: Exact,
        half: Exact,
        left: &["(select ?c ?t ?f)"],
        when: &[],
        right: By(condition),
        example: "(%c: bool[4]) {\n %t = const true : bool[]\n %f = const false : bool[]
            %y = select %c, %t, %f\n return %y\n}",
        near_miss: "(%c: bool[4], %d: bool[4]) {\n %t = const true : bool[]\n %y = select %c, %t, %d\n return %y\n}",
    },
    Rule {
        name: "comparison-of-choice",
        numerics: Exact,
        half: Exact,
        left: &[
            "(eq:o (select ?c ?t ?f) ?z)",
            "(ne:o (select ?c ?t ?f) ?z)",
            "(gt:o (select ?c ?t ?f) ?z)",
            "(lt:o (select ?c ?t ?f) ?z)",
        ],
        when: &[],
        right: By(compared),
        example: "(%c: bool[4]) {\n %t = const 1.0 : f32[]\n %f = const 0.0 : f32[]
            %s = select %c, %t, %f\n %y = eq %s, %f\n return %y\n}",
        near_miss:
            "(%c: bool[4,1]) {\n %t1 = const 1.0 : f32[]\n %t = broadcast %t1 shape=[4,3]\n %f = const 0.0 : f32[]
            %s = select %c, %t, %f\n %y = eq %s, %f\n return %y\n}",
    },
    Rule {
        name: "divide-by-power-of-two",
        numerics: Exact,
        half: Exact,
        left: &["(div ?x ?c)"],
        when: &[Scalar("c")],
        right: By(|b, m| by_reciprocal(b, m, true)),
        example: "(%x: f32[4]) {\n %y = div %x, 8.0\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %y = div %x, 3.0\n return %y\n}",
    },
    Rule {
        name: "divide-by-constant",
        numerics: Torch,
        half: Torch,
        left: &["(div ?x ?c)"],
        when: &[Scalar("c")],
        right: By(|b, m| by_reciprocal(b, m, false)),
        example: "(%x: f32[4]) {\n %y = div %x, 3.0\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %y = div %x, 8.0\n return %y\n}",
    },
    Rule {
        name: "merge-factors",
        numerics: Torch,
        half: Torch,
        left: &["(mul (mul ?x ?c) ?d)"],
        when: &[Scalar("c"), Scalar("d")],
        right: By(merged),
        example: "(%x: f32[4]) {\n %a = mul %x, 3.0\n %y = mul %a, 5.0\n return %y\n}",
        near_miss: "(%x: f32[4], %z: f32[]) {\n %a = mul %x, 3.0\n %y = mul %a, %z\n return %y\n}",
    },
    Rule {
        name: "cube",
        numerics: Torch,
        half: Torch,
        left: &["(pow ?x 3)"],
        when: &[],
        right: Is("(mul ?x (mul ?x ?x))"),
        example: "(%x: f32[4]) {\n %y = pow %x, 3.0\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %y = pow %x, 3.5\n return %y\n}",
    },
    Rule {
        name: "factor-through-view",
        numerics: Exact,
        half: Exact,
        left: &[
            "(reshape:v (mul ?x ?c))",
            "(permute:v (mul ?x ?c))",
            "(slice:v (mul ?x ?c))",
            "(broadcast:v (mul ?x ?c))",
        ],
        when: &[Scalar("c")],
        right: Is("(mul (:v ?x) ?c)"),
        example: "(%x: f32[4,2]) {\n %a = mul %x, 3.0\n %y = permute %a perm=[1,0]\n return %y\n}",
        near_miss: "(%x: f32[4,2], %c: f32[2]) {\n %a = mul %x, %c\n %y = permute %a perm=[1,0]\n return %y\n}",
    },
    Rule {
        name: "reciprocal-root",
        numerics: Torch,
        half: Torch,
        left: &["(div 1 (sqrt ?x))", "(reciprocal (sqrt ?x))", "(pow ?x -0.5)"],
        when: &[],
        right: Is("(rsqrt ?x)"),
        example: "(%x: f32[4]) {\n %a = sqrt %x\n %y = div 1.0, %a\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %a = sqrt %x\n %y = div 2.0, %a\n return %y\n}",
    },
    Rule {
        name: "divide-by-root",
        numerics: Torch,
        half: Torch,
        left: &["(div ?x (sqrt ?y))"],
        when: &[Varies("x")],
        right: Is("(mul ?x (rsqrt ?y))"),
        example: "(%x: f32[4], %v: f32[4]) {\n %a = sqrt %v\n %y = div %x, %a\n return %y\n}",
        near_miss: "(%x: f32[4], %v: f32[4]) {\n %a = exp %v\n %y = div %x, %a\n return %y\n}",
    },
    Rule {
        name: "relu",
        numerics: Exact,
        half: Exact,
        left: &["(max ?x 0)"],
        when: &[],
        right: Is("(relu ?x)"),
        example: "(%x: f32[4]) {\n %y = max %x, 0.0\n return %y\n}",
        near_miss: "(%x: f32[4]) {\n %y = max %x, 1.0\n return %y\n}",
    },
];
