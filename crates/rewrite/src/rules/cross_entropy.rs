//! Cross entropy joined with the matmul that makes its logits, so that logits are never in memory: `log_softmax(x)[i]`
//! is `x[i] - log Σ exp(x)`. The sum is made of sums over parts of the columns, which the epilogue of the matmul
//! reduces in its tiles, and the logit of a row's class is a dot product of its own.
use super::log_sum_exp::operand;
use super::{Right::By, Rule};
use crate::build::Builder;
use crate::pattern::Bindings;
use egg::Id;
use kiln_graph::{BinaryOp, CompareOp, DType, Op, ReduceOp, UnaryOp};
use kiln_plan::Numerics::*;
use std::collections::BTreeSet;

/// Most ops between logits and their matmul.
const DEEP: usize = 12;

/// Which columns of the logits are wanted.
#[derive(Clone, Copy)]
enum Columns {
    Part {
        first: usize,
        len: usize,
    },
    /// Of each row the one that an index says; it has the rows' axes and one of size 1. In the type that logits are
    /// computed in, so that none is rounded on its way through memory.
    At(Id),
}

/// Logits made by pointwise ops and views of rows from one matmul, computed for some of their columns.
struct Logits {
    columns: Columns,
    /// Columns in all.
    all: usize,
    /// Views of rows between here and the logits, the innermost last.
    views: Vec<Op>,
    matmuls: BTreeSet<Id>,
}

impl Logits {
    fn of(b: &mut Builder, x: Id, columns: Columns) -> Option<Id> {
        let all = *b.shape(x).last()?;
        let mut l = Logits { columns, all, views: vec![], matmuls: BTreeSet::new() };
        let y = l.value(b, x, DEEP)?;
        (l.matmuls.len() == 1).then_some(y)
    }

    /// The wanted columns of `x`, which has all axes of the logits.
    fn value(&mut self, b: &mut Builder, x: Id, deep: usize) -> Option<Id> {
        let (deep, all) = (deep.checked_sub(1)?, self.all);
        let last = b.shape(x).len().checked_sub(1)?;
        let form = b.form(x, |o, a| {
            let follows = match o {
                Op::Linear | Op::Unary(_) | Op::Binary(_) | Op::Cast(_) => true,
                Op::Dot => b.shape(a[1]).len() == 2,
                Op::Reshape(_) => b.shape(a[0]).last() == Some(&all) && b.shape(a[0]).len() > 1,
                Op::Slice { axis, .. } => *axis < last,
                _ => false,
            };
            follows.then(|| (o.clone(), a.to_vec()))
        });
        match form? {
            (Op::Linear, args) => {
                self.matmuls.insert(b.g.find(x));
                let w = args[1];
                let y = self.matmul(b, args[0], w, Op::Linear)?;
                let Some(&bias) = args.get(2) else { return Some(y) };
                let bias = self.operand(b, bias, x, deep)?;
                b.binary(BinaryOp::Add, y, bias)
            }
            (Op::Dot, args) => {
                self.matmuls.insert(b.g.find(x));
                self.matmul(b, args[0], args[1], Op::Dot)
            }
            (view @ (Op::Reshape(_) | Op::Slice { .. }), args) => {
                self.views.push(view);
                let y = self.value(b, args[0], deep);
                self.views.pop();
                y
            }
            (Op::Cast(to), args) if to.is_float() && matches!(self.columns, Columns::At(_)) => {
                self.value(b, args[0], deep)
            }
            (op, args) => {
                let args = args.into_iter().map(|a| self.operand(b, a, x, deep)).collect::<Option<Vec<Id>>>()?;
                b.add(op, &args)
            }
        }
    }
    /// An operand of a pointwise op that gives `x`.
    fn operand(&mut self, b: &mut Builder, a: Id, x: Id, deep: usize) -> Option<Id> {
        let part = self.part_of(b, a, x, deep)?;
        match self.columns {
            Columns::Part { .. } => Some(part),
            Columns::At(_) => b.add(Op::Cast(b.ty(part).dtype.compute()), &[part]),
        }
    }
    fn part_of(&mut self, b: &mut Builder, a: Id, x: Id, deep: usize) -> Option<Id> {
        let (shape, whole) = (b.shape(a).to_vec(), b.shape(x).to_vec());
        let count: usize = shape.iter().product();
        let rows = whole.split_last()?.1;
        match shape.split_last() {
            _ if shape == whole => self.value(b, a, deep),
            _ if count == 1 => b.reshape(a, &[]),
            Some((&n, _)) if n == self.all && count == n => self.vector(b, a),
            Some((1, lead)) if lead == rows => self.rows(b, a),
            _ => None,
        }
    }
    /// The wanted columns of a vector that all rows share.
    fn vector(&self, b: &mut Builder, a: Id) -> Option<Id> {
        let a = b.reshape(a, &[self.all])?;
        match self.columns {
            Columns::Part { first, len } => b.add(Op::Slice { axis: 0, start: first, len, step: 1 }, &[a]),
            Columns::At(index) => b.add(Op::Take { axis: 0 }, &[a, index]),
        }
    }
    /// Rows as the views leave them, whatever their length.
    fn rows(&self, b: &mut Builder, mut a: Id) -> Option<Id> {
        let len = *b.shape(a).last()?;
        for view in self.views.iter().rev() {
            a = match view {
                Op::Reshape(to) => b.reshape(a, &[to.split_last()?.1, &[len]].concat())?,
                slice => b.add(slice.clone(), &[a])?,
            };
        }
        Some(a)
    }
    /// The wanted columns of a matmul with a weight, `[N, K]` of `linear` or `[K, N]` of `dot`.
    fn matmul(&self, b: &mut Builder, x: Id, w: Id, op: Op) -> Option<Id> {
        let x = self.rows(b, x)?;
        let axis = usize::from(op == Op::Dot);
        match self.columns {
            Columns::Part { first, len } => {
                let part = b.add(Op::Slice { axis, start: first, len, step: 1 }, &[w])?;
                b.add(op, &[x, part])
            }
            Columns::At(index) => {
                let w = if op == Op::Dot { b.transpose(w)? } else { w };
                let picked = b.add(Op::Take { axis: 0 }, &[w, index])?;
                let (dtype, shape) = (b.ty(x).dtype, b.shape(x).to_vec());
                let picked = b.reshape(picked, &shape)?;
                let [x, picked] = [x, picked].map(|y| b.add(Op::Cast(dtype.compute()), &[y]));
                let products = b.binary(BinaryOp::Mul, x?, picked?)?;
                b.add(Op::Reduce { op: ReduceOp::Sum, axes: vec![shape.len() - 1] }, &[products])
            }
        }
    }
}

/// `log Σ exp(x)` along the last axis, which keeps size 1; minus infinity where all elements are.
fn sum_of_row(b: &mut Builder, x: Id) -> Option<Id> {
    let axes = vec![b.shape(x).len().checked_sub(1)?];
    let dtype = b.ty(x).dtype;
    let [zero, lowest] = [0.0, f64::NEG_INFINITY].map(|n| b.constant(dtype, n));
    let most = b.add(Op::Reduce { op: ReduceOp::Max, axes: axes.clone() }, &[x])?;
    let empty = b.add(Op::Compare(CompareOp::Eq), &[most, lowest])?;
    let most = b.add(Op::Select, &[empty, zero, most])?;
    let below = b.binary(BinaryOp::Sub, x, most)?;
    let powers = b.unary(UnaryOp::Exp, below)?;
    let sum = b.add(Op::Reduce { op: ReduceOp::Sum, axes }, &[powers])?;
    let log = b.unary(UnaryOp::Log, sum)?;
    b.binary(BinaryOp::Add, most, log)
}

/// The same of logits that a matmul makes, by parts of its columns; in the type that `x` is computed in.
fn sum_in_parts(b: &mut Builder, x: Id) -> Option<Id> {
    let (dtype, all) = (b.ty(x).dtype, *b.shape(x).last()?);
    // The equality holds for parts of any length; the epilogue of a matmul reduces those that are a tile wide.
    let tile = b.tile;
    if tile == 0 || all < 2 * tile || !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
        return None;
    }
    let even = all - all % tile;
    let mut part = |first: usize, len: usize| {
        let part = Logits::of(b, x, Columns::Part { first, len })?;
        let part = b.add(Op::Cast(dtype.compute()), &[part])?;
        let lead = b.shape(part).split_last()?.1.to_vec();
        let parts = len.div_ceil(tile);
        let tiles = b.reshape(part, &[&lead[..], &[parts, len / parts]].concat())?;
        let sums = sum_of_row(b, tiles)?;
        let sums = b.reshape(sums, &[&lead[..], &[parts]].concat())?;
        if parts > 1 { sum_of_row(b, sums) } else { Some(sums) }
    };
    let sum = part(0, even)?;
    if even == all {
        return Some(sum);
    }
    let rest = part(even, all - even)?;
    b.add(Op::Logaddexp, &[sum, rest])
}

fn cross_entropy(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, index, Op::Gather { axis }) = (m.var("x")?, m.var("i")?, m.op("g")?.clone()) else { return None };
    let Op::LogSoftmax { axis: of_softmax } = *m.op("f")? else { return None };
    let (dtype, lead) = (b.ty(x).dtype, b.shape(x).split_last()?.1.to_vec());
    if axis != lead.len() || of_softmax != axis || b.shape(index) != [&lead[..], &[1]].concat() {
        return None;
    }
    let sum = sum_in_parts(b, x)?;
    let picked = Logits::of(b, x, Columns::At(index))?;
    // A sum, as the difference is the form without the matmul: forms of one op are one choice.
    let less = b.unary(UnaryOp::Neg, sum)?;
    let y = b.binary(BinaryOp::Add, picked, less)?;
    b.add(Op::Cast(dtype), &[y])
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "cross-entropy-of-a-matmul",
        numerics: Torch,
        half: Torch,
        left: &["(gather:g (log_softmax:f ?x) ?i)"],
        when: &[],
        right: By(cross_entropy),
        example: "(%x: f32[4,8], %w: f32[600,8], %i: i64[4,1]) {
            %d = linear %x, %w\n %p = log_softmax %d axis=1\n %y = gather %p, %i axis=1\n return %y\n}",
        near_miss: "(%x: f32[4,8], %w: f32[600,8], %i: i64[4,2]) {
            %d = linear %x, %w\n %p = log_softmax %d axis=1\n %y = gather %p, %i axis=1\n return %y\n}",
    },
    Rule {
        name: "log-sum-exp-of-a-matmul",
        numerics: Torch,
        half: Torch,
        left: &["(add ?m (log (reduce.sum:a (exp (sub ?x ?m)))))"],
        when: &[],
        right: By(|b, m| {
            let x = operand(b, m)?;
            let sum = sum_in_parts(b, x)?;
            b.add(Op::Cast(b.ty(x).dtype), &[sum])
        }),
        example: "(%x: f32[4,8], %w: f32[600,8]) {
            %d = linear %x, %w\n %m = reduce.max %d axes=[1]\n %b = sub %d, %m\n %e = exp %b\n %t = reduce.sum %e axes=[1]
            %l = log %t\n %y = add %m, %l\n return %y\n}",
        near_miss: "(%x: f32[4,8], %w: f32[500,8]) {
            %d = linear %x, %w\n %m = reduce.max %d axes=[1]\n %b = sub %d, %m\n %e = exp %b\n %t = reduce.sum %e axes=[1]
            %l = log %t\n %y = add %m, %l\n return %y\n}",
    },
];
