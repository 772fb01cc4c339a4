//! Recognises attention written in primitives (scores, scale, mask, softmax, values), and grouped-query attention.
use super::{Right::By, Rule};
use crate::build::{Builder, widens};
use crate::language::round_to;
use crate::pattern::Bindings;
use egg::Id;
use kiln_graph::ops::Class;
use kiln_graph::{BinaryOp, CompareOp, DType, FullyMasked, Op, ReduceOp, Scalar, ScoreStep, UnaryOp};
use kiln_plan::Numerics::*;
use std::collections::BTreeSet;

/// The operand of the softmax.
struct Scores {
    /// The matmul.
    dot: Id,
    q: Id,
    /// Keys, transposed.
    k: Id,
    scale: f64,
    /// The score function, and what its steps take.
    steps: Vec<ScoreStep>,
    operands: Vec<Id>,
    mask: Option<Id>,
}

/// Values that are looked at between a softmax and its matmul.
const MOST: usize = 64;

/// Matches what stands between a matmul and a softmax: constant factors, a chain of pointwise steps, sums with masks,
/// and choices between scores and a very low number. Casts between floats are followed: scores are f32 in the kernel,
/// without the rounding of half types in between. `left`: values that may still be looked at.
fn scores(b: &mut Builder, x: Id, left: &mut usize) -> Option<Scores> {
    *left = left.checked_sub(1)?;
    if let Some(s) = scaled(b, x, 1., 0) {
        return Some(s);
    }
    if let Some(y) = b.form(x, |o, a| float_cast(b, o, a)) {
        return scores(b, y, left);
    }
    let views: Vec<Id> = forms(b, x, |o, a| match o {
        Op::Reshape(_) if trailing(b.shape(a[0])) == trailing(b.shape(x)) => vec![a[0]],
        _ => vec![],
    });
    for y in views {
        if let Some(s) = scores(b, y, left) {
            return s.reshaped(b, y, x);
        }
    }
    let choices: Vec<(Id, Id, Id)> =
        forms(b, x, |o, a| if *o == Op::Select { vec![(a[0], a[1], a[2])] } else { vec![] });
    // The scores may be the first or the second choice.
    let both = choices.into_iter().flat_map(|(c, s, t)| [(c, s, t, false), (c, t, s, true)]);
    for (condition, s, low, inverted) in both.collect::<Vec<_>>() {
        let Some(v) = b.fact(low).number() else { continue };
        // Adding it to a score gives this number again.
        if v >= b.ty(low).dtype.mask_limit() {
            continue;
        }
        let Some(s) = scores(b, s, left) else { continue };
        let keep = if inverted { b.unary(UnaryOp::Not, condition)? } else { condition };
        return s.kept(b, keep, v);
    }
    let pairs: Vec<(BinaryOp, Id, Id)> = forms(b, x, |o, a| match *o {
        Op::Binary(op @ (BinaryOp::Add | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min)) => {
            vec![(op, a[0], a[1]), (op, a[1], a[0])]
        }
        Op::Binary(op @ (BinaryOp::Sub | BinaryOp::Div)) => vec![(op, a[0], a[1])],
        _ => vec![],
    });
    for (op, s, other) in pairs {
        if b.fact(s).number().is_some() {
            continue;
        }
        if let Some(s) = scores(b, s, left) {
            return if op == BinaryOp::Add { s.plus(b, other) } else { s.with(b, op, other) };
        }
    }
    let functions: Vec<(UnaryOp, Id)> = forms(b, x, |o, a| match *o {
        Op::Unary(u) if b.ty(a[0]) == b.ty(x) => vec![(u, a[0])],
        _ => vec![],
    });
    for (u, y) in functions {
        if let Some(s) = scores(b, y, left) {
            return s.then(ScoreStep::Unary(u));
        }
    }
    None
}
impl Scores {
    /// The scores with a mask added.
    fn plus(self, b: &mut Builder, mask: Id) -> Option<Scores> {
        let mask = of_scores(b, mask, b.ty(self.q).dtype)?;
        let mask = match self.mask {
            None => mask,
            Some(keep) if b.ty(keep).dtype == DType::Bool => chosen(b, keep, mask, f64::NEG_INFINITY)?,
            Some(first) if b.ty(first).dtype == b.ty(mask).dtype => b.binary(BinaryOp::Add, first, mask)?,
            Some(first) => {
                let wide = b.ty(mask).dtype.compute();
                let [first, mask] = [first, mask].map(|x| b.add(Op::Cast(wide), &[x]));
                b.binary(BinaryOp::Add, first?, mask?)?
            }
        };
        Some(Scores { mask: Some(mask), ..self })
    }
    /// The scores where a condition holds, and a very low number elsewhere.
    fn kept(self, b: &mut Builder, keep: Id, low: f64) -> Option<Scores> {
        let dtype = b.ty(self.q).dtype;
        let zero = b.constant(dtype, 0.);
        let mask = match self.mask {
            None if low == f64::NEG_INFINITY => keep,
            None => chosen(b, keep, zero, low)?,
            Some(first) if b.ty(first).dtype != DType::Bool => chosen(b, keep, first, low)?,
            Some(first) if low == f64::NEG_INFINITY => b.binary(BinaryOp::And, first, keep)?,
            Some(first) => {
                let first = chosen(b, first, zero, f64::NEG_INFINITY)?;
                chosen(b, keep, first, low)?
            }
        };
        Some(Scores { mask: Some(mask), ..self })
    }
    /// The scores in another shape of their batches and heads, as `Swin` splits windows from images.
    fn reshaped(mut self, b: &mut Builder, from: Id, to: Id) -> Option<Scores> {
        let (from, to) = (b.shape(from).to_vec(), b.shape(to).to_vec());
        for x in self.operands.iter_mut().chain(&mut self.mask) {
            let shape = b.shape(*x).to_vec();
            let lead = shape.len().saturating_sub(2);
            *x = if shape[..lead].iter().all(|&n| n == 1) {
                b.reshape(*x, &shape[lead..])?
            } else {
                let whole = b.add(Op::Broadcast(from.clone()), &[*x])?;
                b.reshape(whole, &to)?
            };
        }
        Some(self)
    }
    /// The scores and a number or a tensor.
    fn with(self, b: &mut Builder, op: BinaryOp, other: Id) -> Option<Scores> {
        if let Some(number) = b.fact(other).number().filter(|n| !n.is_nan()) {
            return self.then(ScoreStep::Number(op, Scalar::Float(number)));
        }
        let other = of_scores(b, other, b.ty(self.q).dtype)?;
        let mut s = self.then(ScoreStep::Operand(op))?;
        s.operands.push(other);
        Some(s)
    }
    /// The scores with one more step. None may follow a mask.
    fn then(mut self, step: ScoreStep) -> Option<Scores> {
        self.steps.push(step);
        self.mask.is_none().then_some(self)
    }
}
/// The axes of queries and keys.
fn trailing(shape: &[usize]) -> Option<&[usize]> {
    shape.len().checked_sub(2).map(|lead| &shape[lead..])
}
/// `value` where `keep` holds, and elsewhere a number, the nearest one of its type.
fn chosen(b: &mut Builder, keep: Id, value: Id, low: f64) -> Option<Id> {
    let dtype = b.ty(value).dtype;
    let rounded = round_to(low, dtype);
    // The lowest number of a wider type is the lowest of this one, not minus infinity.
    let low = if rounded.is_infinite() && low.is_finite() { -dtype.format()?.largest() } else { rounded };
    let low = b.constant(dtype, low);
    b.add(Op::Select, &[keep, value, low])
}
/// A mask in another type, if all of its elements are numbers of that type.
fn of_type(b: &mut Builder, mask: Id, dtype: DType) -> Option<Id> {
    if b.ty(mask).dtype == dtype {
        return Some(mask);
    }
    let inner = b.form(mask, |o, a| float_cast(b, o, a));
    inner.filter(|&y| b.ty(y).dtype == dtype)
}
/// What is added to scores or multiplies them: in the operands' type if all of its elements are numbers of that type,
/// or in the type that it is computed in.
fn of_scores(b: &mut Builder, x: Id, dtype: DType) -> Option<Id> {
    of_type(b, x, dtype).or_else(|| (b.ty(x).dtype == dtype.compute()).then_some(x))
}
/// Whether values are computed from the scores too, which then have to be in memory.
fn depends(b: &Builder, of: &[Id], scores: Id) -> bool {
    let (mut seen, mut todo) = (BTreeSet::new(), of.to_vec());
    while let Some(x) = todo.pop() {
        if x == scores {
            return true;
        }
        if seen.len() < MOST && seen.insert(x) {
            let followed = |o: &Op| {
                use Class::{Movement, Pointwise, Reduce, Row, View};
                matches!(Class::of(o), Pointwise | View | Reduce | Row | Movement)
            };
            let args = |o: &Op, a: &[Id]| followed(o).then(|| a.to_vec());
            todo.extend(b.form(x, args).unwrap_or_default());
        }
    }
    false
}
/// The operand of a cast between floats.
pub(super) fn float_cast(b: &Builder, o: &Op, a: &[Id]) -> Option<Id> {
    (matches!(o, Op::Cast(to) if to.is_float()) && b.ty(a[0]).dtype.is_float()).then(|| a[0])
}
/// Matches `q·kᵀ` with a few constant factors.
fn scaled(b: &Builder, x: Id, scale: f64, depth: usize) -> Option<Scores> {
    /// Factors and casts that are followed.
    const DEEP: usize = 6;
    let found = b.form(x, |o, a| (*o == Op::Dot).then(|| bare(b, x, [a[0], a[1]], scale)));
    if depth >= DEEP {
        return found;
    }
    // A form may have the factors of operands outside of the matmul; it is preferred, as no factor is left inside.
    let bare = factors(b, x).into_iter().find_map(|(y, c)| scaled(b, y, scale * c, depth + 1));
    let cast = || b.form(x, |o, a| float_cast(b, o, a)).and_then(|y| scaled(b, y, scale, depth + 1));
    bare.or(found).or_else(cast)
}
/// The matmul of `q` and `k`, with their constant factors moved to the scale.
fn bare(b: &Builder, dot: Id, [mut q, mut k]: [Id; 2], mut scale: f64) -> Scores {
    for x in [&mut q, &mut k] {
        if let Some((y, c)) = outer_factor(b, *x) {
            (*x, scale) = (y, scale * c);
        }
    }
    Scores { dot, q, k, scale, steps: vec![], operands: vec![], mask: None }
}
/// `x` as a value of its type and shape times a number: a half type may be multiplied in f32.
fn outer_factor(b: &Builder, x: Id) -> Option<(Id, f64)> {
    let same = |y: Id| (b.ty(y) == b.ty(x)).then_some(y);
    if let Some(found) = factors(b, x).into_iter().find(|&(y, _)| same(y).is_some()) {
        return Some(found);
    }
    let wide = b.form(x, |o, a| float_cast(b, o, a))?;
    factors(b, wide).into_iter().find_map(|(y, c)| Some((same(b.form(y, |o, a| float_cast(b, o, a))?)?, c)))
}
/// `x` as a value times a number.
fn factors(b: &Builder, x: Id) -> Vec<(Id, f64)> {
    forms(b, x, |o, a| {
        let number = |i: usize| b.fact(a[i]).number();
        match o {
            Op::Binary(BinaryOp::Mul) => {
                [(0, 1), (1, 0)].iter().filter_map(|&(y, c)| Some((a[y], number(c)?))).collect()
            }
            Op::Binary(BinaryOp::Div) => number(1).filter(|&c| c != 0.).map(|c| (a[0], 1. / c)).into_iter().collect(),
            _ => vec![],
        }
    })
}
fn forms<T>(b: &Builder, x: Id, read: impl Fn(&Op, &[Id]) -> Vec<T>) -> Vec<T> {
    b.g[x].nodes.iter().flat_map(|t| read(crate::language::op(&b.g, t), &t.args)).collect()
}

/// Whether `c` says of each row of `x` that all of it is minus infinity.
pub(super) fn all_masked(b: &Builder, c: Id, x: Id) -> bool {
    let not = |y: Id| b.form(y, |o, a| (*o == Op::Unary(UnaryOp::Not)).then(|| a[0]));
    let reduced = |y: Id, by: ReduceOp| {
        let last = vec![b.shape(x).len() - 1];
        b.form(y, |o, a| matches!(o, Op::Reduce { op, axes, .. } if *op == by && *axes == last).then(|| a[0]))
    };
    let lowest = |y: Id| {
        let sides = b.form(y, |o, a| (*o == Op::Compare(CompareOp::Eq)).then(|| (a[0], a[1])));
        let low = |n: Id| b.fact(n).number() == Some(f64::NEG_INFINITY);
        sides.is_some_and(|(p, q)| (p == x && low(q)) || (q == x && low(p)))
    };
    let every = reduced(c, ReduceOp::All).is_some_and(lowest);
    every || not(c).and_then(|c| reduced(c, ReduceOp::Any)).and_then(not).is_some_and(lowest)
}

/// The condition of a mask that is 0 where it holds and minus infinity where not, as PyTorch makes one of booleans.
fn kept(b: &Builder, mask: Id) -> Option<Id> {
    b.form(mask, |o, a| {
        let numbers =
            *o == Op::Select && b.fact(a[1]).number() == Some(0.) && b.fact(a[2]).number() == Some(f64::NEG_INFINITY);
        (numbers && b.shape(a[0]) == b.shape(mask)).then(|| a[0])
    })
}

fn attention(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (x, v) = (m.var("s")?, m.var("v")?);
    if !is_of_rows(m.op("f")?, b.shape(x).len()) {
        return None;
    }
    let safe = m.var("c");
    if safe.is_some_and(|c| !all_masked(b, c, x)) || m.var("z").is_some_and(|z| b.fact(z).number() != Some(0.)) {
        return None;
    }
    let fully_masked = if safe.is_some() { FullyMasked::Zero } else { FullyMasked::Nan };
    attend(b, x, &Wanted { values: Some(v), sink: None, fully_masked: Some(fully_masked), lse: false })
}
/// Whether an op is the softmax of rows of scores of this rank.
pub(super) fn is_of_rows(op: &Op, rank: usize) -> bool {
    matches!(op, Op::Softmax { axis } if axis + 1 == rank)
}
/// What is made of the operand of a softmax.
pub(super) struct Wanted {
    /// The values; `None` stands for the keys.
    pub values: Option<Id>,
    /// What a row of the softmax has beside that operand.
    pub sink: Option<Id>,
    /// What a row of minus infinities gives; `None` if there must be none.
    pub fully_masked: Option<FullyMasked>,
    /// The log-sum-exp instead of the values' mean.
    pub lse: bool,
}

/// Attention from the operand of its softmax.
pub(super) fn attend(b: &mut Builder, x: Id, wanted: &Wanted) -> Option<Id> {
    let rank = b.shape(x).len();
    if rank < 3 {
        return None;
    }
    let mut left = MOST;
    let mut s = scores(b, x, &mut left)?;
    if wanted.fully_masked == Some(FullyMasked::Zero) {
        s.mask = s.mask.map(|mask| kept(b, mask).unwrap_or(mask));
    }
    let k = b.transpose(s.k)?;
    let v = wanted.values.unwrap_or(k);
    if [k, v].iter().any(|&x| b.ty(x).dtype != b.ty(s.q).dtype) {
        return None;
    }
    let heads = |x: Id| b.shape(x).get(..rank - 2).map(<[usize]>::to_vec);
    if b.shape(s.q).len() != rank || heads(s.q) != heads(k) || heads(s.q) != heads(v) {
        return None;
    }
    let sink = match wanted.sink {
        Some(x) => Some(narrowed(b, x, b.ty(s.q).dtype)?),
        None => None,
    };
    let more: Vec<Id> = s.operands.into_iter().chain(sink).chain(s.mask).collect();
    if depends(b, &more, s.dot) {
        return None;
    }
    let args = [vec![s.q, k, v], more].concat();
    // A softmax of scores that are all minus infinity is NaN, which a mask or a step can make of finite scores.
    let may_be_masked = s.mask.is_some() || !s.steps.is_empty();
    let fully_masked = if may_be_masked { wanted.fully_masked? } else { FullyMasked::Zero };
    let (scale, sink) = (Scalar::Float(s.scale), sink.is_some());
    b.add(Op::Attention { scale, causal: false, fully_masked, score: s.steps, sink, lse: wanted.lse }, &args)
}
/// A sink without its expansions, in the operands' type if that has all of its values.
fn narrowed(b: &Builder, mut x: Id, dtype: DType) -> Option<Id> {
    for _ in 0..MOST {
        let inner = b.form(x, |o, a| match o {
            Op::Broadcast(_) => Some(a[0]),
            Op::Cast(_) if b.ty(a[0]).dtype == dtype && widens(dtype, b.ty(x).dtype) => Some(a[0]),
            _ => None,
        });
        let Some(inner) = inner else { break };
        x = inner;
    }
    let own = b.ty(x).dtype;
    (own == dtype || own == dtype.compute()).then_some(x)
}

/// The keys or values of which `x` repeats each head for a group of consecutive query heads.
fn repeated(b: &Builder, x: Id) -> Option<Id> {
    let full = b.shape(x).to_vec();
    let heads = full.len().checked_sub(3)?;
    let wide = b.form(x, |o, a| matches!(o, Op::Reshape(_)).then(|| a[0]))?;
    let narrow = b.form(wide, |o, a| matches!(o, Op::Broadcast(_)).then(|| a[0]))?;
    let (w, n) = (b.shape(wide), b.shape(narrow));
    let group = *w.get(heads + 1)?;
    let mut with_group = full.clone();
    with_group[heads] = full[heads] / group.max(1);
    let few = with_group.clone();
    with_group.insert(heads + 1, group);
    if w != with_group || n.len() != w.len() || n[heads + 1] != 1 {
        return None;
    }
    let one = b.form(narrow, |o, a| matches!(o, Op::Reshape(_)).then(|| a[0]))?;
    (b.shape(one) == few).then_some(one)
}
fn shared_heads(b: &mut Builder, m: &Bindings) -> Option<Id> {
    let (q, k, v) = (m.var("q")?, m.var("k")?, m.var("v")?);
    let (k, v) = (repeated(b, k)?, repeated(b, v)?);
    let mut args = vec![q, k, v];
    args.extend(["a", "b", "c", "d"].iter().filter_map(|x| m.var(x)));
    b.add(m.op("f")?.clone(), &args)
}

pub const RULES: &[Rule] = &[
    Rule {
        name: "attention",
        numerics: Torch,
        half: Torch,
        left: &[
            "(dot (softmax:f ?s) ?v)",
            "(dot (cast (softmax:f ?s)) ?v)",
            "(dot (select ?c ?z (softmax:f ?s)) ?v)",
            "(dot (cast (select ?c ?z (softmax:f ?s))) ?v)",
        ],
        when: &[],
        right: By(attention),
        example: "(%q: f32[2,4,8,16], %k: f32[2,4,8,16], %v: f32[2,4,8,16], %m: f32[2,1,1,8]) {
            %t = permute %k perm=[0,1,3,2]\n %d = dot %q, %t\n %s = div %d, 4.0\n %a = add %m, %s
            %p = softmax %a axis=3\n %y = dot %p, %v\n return %y\n}",
        near_miss: "(%q: f32[2,4,8,16], %k: f32[2,4,8,16], %v: f32[2,4,8,16], %m: f32[2,1,1,8]) {
            %t = permute %k perm=[0,1,3,2]\n %d = dot %q, %t\n %n = abs %d\n %s = mul %d, %n
            %p = softmax %s axis=3\n %y = dot %p, %v\n return %y\n}",
    },
    Rule {
        name: "attention-shared-heads",
        numerics: Exact,
        half: Exact,
        left: &[
            "(attention:f ?q ?k ?v)",
            "(attention:f ?q ?k ?v ?a)",
            "(attention:f ?q ?k ?v ?a ?b)",
            "(attention:f ?q ?k ?v ?a ?b ?c)",
            "(attention:f ?q ?k ?v ?a ?b ?c ?d)",
        ],
        when: &[],
        right: By(shared_heads),
        example: "(%q: f32[2,4,8,16], %k: f32[2,2,8,16], %v: f32[2,2,8,16]) {
            %k1 = reshape %k shape=[2,2,1,8,16]\n %k2 = broadcast %k1 shape=[2,2,2,8,16]\n %k3 = reshape %k2 shape=[2,4,8,16]
            %v1 = reshape %v shape=[2,2,1,8,16]\n %v2 = broadcast %v1 shape=[2,2,2,8,16]\n %v3 = reshape %v2 shape=[2,4,8,16]
            %y = attention %q, %k3, %v3 scale=0.25 causal=false\n return %y\n}",
        near_miss: "(%q: f32[2,4,8,16], %k: f32[2,2,8,16], %v: f32[2,4,8,16]) {
            %k1 = reshape %k shape=[2,2,1,8,16]\n %k2 = broadcast %k1 shape=[2,2,2,8,16]\n %k3 = reshape %k2 shape=[2,4,8,16]
            %y = attention %q, %k3, %v scale=0.25 causal=false\n return %y\n}",
    },
];
