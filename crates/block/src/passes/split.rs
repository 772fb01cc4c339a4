//! Index-set splitting: iterations in which masks hold for every element get a loop of their own, without the masks.
//!
//! Takes a program of the upper level. A loop of the kernel's own list whose body selects constants by comparisons of
//! affine forms of the index becomes several, one after the other, that carry the same values on: the first iteration,
//! where there surely is one; those before and after the ones in which every such comparison selects the other operand
//! for all elements; and these. Iterations keep their order, so no bit changes.
use super::runs;
use crate::analysis::{self, Affine, Analysis};
use crate::builder::rewrite::{Names, renamed};
use crate::{BinaryOp as B, BlockProgram, Builder, CmpOp, Elem, Inst, InstData, Op, Region, UnaryOp, Value};
use std::collections::{HashMap, HashSet};

/// The same program with its loops split; loops that no comparison bounds stay as they are.
pub fn run(kernel: &BlockProgram) -> BlockProgram {
    let facts = analysis::analyse(kernel);
    let mut s = Splitter { k: kernel, b: Builder::of(kernel.clone()) };
    for &i in &kernel.body.insts {
        match kernel.inst(i).op {
            Op::For => s.for_loop(&facts, i),
            _ => s.b.keep(i),
        }
    }
    s.b.finish()
}

/// The iterations in which a comparison has the same result for all elements: from an index on, or below one.
enum Range {
    From(Affine),
    Below(Affine),
}

/// Conditions of a body that are constant in the middle loop, with their values, and the bounds of that loop.
#[derive(Default)]
struct Plain {
    known: HashMap<Value, bool>,
    /// From the greatest of these on, each being the least of several forms.
    from: Vec<Forms>,
    /// Below the least of these, each being the greatest of several forms.
    below: Vec<Forms>,
}

/// One form or more.
#[derive(Clone, PartialEq)]
struct Forms {
    first: Affine,
    others: Vec<Affine>,
    /// The comparison of scalars that these are the bound of, and its value beyond the bound.
    beyond: Option<(Value, bool)>,
}

impl Forms {
    fn of(first: Affine) -> Forms {
        Forms { first, others: vec![], beyond: None }
    }
    fn and(&self, more: &Forms) -> Forms {
        let mut all = Forms { beyond: None, ..self.clone() };
        all.others.push(more.first.clone());
        all.others.extend(more.others.iter().cloned());
        all
    }
}

/// What is known where a loop has not reached its only lower bound, or has passed its only upper one.
fn beyond(bounds: &[Forms]) -> HashMap<Value, bool> {
    match bounds {
        [only] => only.beyond.into_iter().collect(),
        _ => HashMap::new(),
    }
}

impl Plain {
    /// Both bounds, where the conditions of both are constant.
    fn and(mut self, other: Plain) -> Plain {
        self.known.extend(other.known);
        for (all, more) in [(&mut self.from, other.from), (&mut self.below, other.below)] {
            let new: Vec<Forms> = more.into_iter().filter(|f| !all.contains(f)).collect();
            all.extend(new);
        }
        self
    }
    /// Either bound, where the disjunction `v` of the two is constant; that of the first one, if the two cannot be
    /// joined.
    fn or(mut self, other: Plain, v: Value, wanted: bool) -> Plain {
        let known = HashMap::from([(v, wanted)]);
        match (&self.from[..], &self.below[..], &other.from[..], &other.below[..]) {
            ([a], [], [b], []) => Plain { known, from: vec![a.and(b)], below: vec![] },
            ([], [a], [], [b]) => Plain { known, from: vec![], below: vec![a.and(b)] },
            _ => {
                self.known.insert(v, wanted);
                self
            }
        }
    }
}

struct Splitter<'k> {
    k: &'k BlockProgram,
    b: Builder,
}

impl Splitter<'_> {
    fn for_loop(&mut self, facts: &Analysis, i: Inst) {
        let data = self.k.inst(i);
        let found = plain(self.k, facts, data);
        let step = facts.affine(data.args[2]).and_then(Affine::as_constant).filter(|s| *s > 0);
        let (Some(plain), Some(size)) = (found, step) else { return self.b.keep(i) };
        let [lo, hi, step] = [data.args[0], data.args[1], data.args[2]];
        // The first iterations: up to the greatest of the lower bounds, and one where there surely is one.
        let has_first = runs(self.k, facts, data);
        let second = if has_first { self.b.binary(B::Add, lo, step) } else { lo };
        let mut middle = second;
        for from in &plain.from {
            let from = self.extreme(from, B::Min);
            let trips = self.trips(lo, from, size);
            let ahead = self.b.binary(B::Mul, trips, step);
            let from = self.b.binary(B::Add, lo, ahead);
            middle = self.b.binary(B::Max, middle, from);
        }
        let mut end = hi;
        for below in &plain.below {
            let below = self.extreme(below, B::Max);
            end = self.b.binary(B::Min, end, below);
        }
        let trips = self.trips(middle, end, size);
        let ahead = self.b.binary(B::Mul, trips, step);
        let last = self.b.binary(B::Add, middle, ahead);
        let [none, early, late] = [HashMap::new(), beyond(&plain.from), beyond(&plain.below)];
        let mut carried = data.args[3..].to_vec();
        let mut parts = vec![];
        if has_first {
            parts.push(([lo, second], &none));
        }
        if !plain.from.is_empty() {
            let before = self.b.binary(B::Min, middle, hi);
            parts.push(([second, before], &early));
        }
        parts.push(([middle, end], &plain.known));
        if !plain.below.is_empty() {
            parts.push(([last, hi], &late));
        }
        let count = parts.len();
        for (n, ([lo, hi], known)) in parts.into_iter().enumerate() {
            let args = [&[lo, hi, step], &carried[..]].concat();
            // The last loop's results are the old loop's.
            let results = match n + 1 == count {
                true => data.results.clone(),
                false => self.b.like(&data.results),
            };
            let region = self.copied(&data.regions[0], &mut Names::new(), &mut known.clone());
            self.b.define(&results, Op::For, &args, vec![region]);
            carried = results;
        }
    }
    /// A copy of a region, in which the results of some comparisons are known.
    fn copied(&mut self, r: &Region, names: &mut Names, known: &mut HashMap<Value, bool>) -> Region {
        let params = self.fresh(&r.params, names);
        self.b.open_list();
        let k = self.k;
        for data in r.insts.iter().map(|i| k.inst(*i)) {
            let truth = |n: usize| data.args.get(n).and_then(|v| known.get(v)).copied();
            let implied = match data.op {
                Op::Binary(B::And) => [(0, 1), (1, 0)].into_iter().find(|(a, _)| truth(*a) == Some(true)).map(|x| x.1),
                Op::Binary(B::Or) => [(0, 1), (1, 0)].into_iter().find(|(a, _)| truth(*a) == Some(false)).map(|x| x.1),
                Op::Select => truth(0).map(|yes| if yes { 1 } else { 2 }),
                _ => None,
            };
            if let ([result], Some(n)) = (&data.results[..], implied) {
                names.insert(*result, renamed(names, data.args[n]));
                if let Some(t) = truth(n) {
                    known.insert(*result, t);
                }
                continue;
            }
            if let ([result], Some(t)) = (&data.results[..], follows(&data.op, [truth(0), truth(1)])) {
                known.insert(*result, t);
            }
            let args: Vec<Value> = data.args.iter().map(|v| renamed(names, *v)).collect();
            let regions = data.regions.iter().map(|r| self.copied(r, names, known)).collect();
            let results = self.fresh(&data.results, names);
            self.b.define(&results, data.op.clone(), &args, regions);
        }
        Region { insts: self.b.close_list(), params }
    }
    /// New values in place of these.
    fn fresh(&mut self, values: &[Value], names: &mut Names) -> Vec<Value> {
        let new = self.b.like(values);
        names.extend(values.iter().copied().zip(new.iter().copied()));
        new
    }

    // ---- Scalar arithmetic before the loops ----
    /// The value of a form of scalars.
    fn form(&mut self, f: &Affine) -> Value {
        let mut sum = self.b.i32(f.constant);
        for &(v, c) in &f.scalars {
            let v = self.b.cast(v, Elem::I32);
            let c = self.b.i32(c);
            let term = self.b.binary(B::Mul, v, c);
            sum = self.b.binary(B::Add, sum, term);
        }
        sum
    }
    fn extreme(&mut self, forms: &Forms, by: B) -> Value {
        let mut v = self.form(&forms.first);
        for f in &forms.others {
            let f = self.form(f);
            v = self.b.binary(by, v, f);
        }
        v
    }
    /// Iterations of a loop from `lo` to `hi`.
    fn trips(&mut self, lo: Value, hi: Value, step: i64) -> Value {
        let (zero, up, step) = (self.b.i32(0), self.b.i32(step - 1), self.b.i32(step));
        let length = self.b.binary(B::Sub, hi, lo);
        let length = self.b.binary(B::Max, length, zero);
        let length = self.b.binary(B::Add, length, up);
        self.b.binary(B::Div, length, step)
    }
}

/// The result of an op on a condition whose elements are all the same.
fn follows(op: &Op, all: [Option<bool>; 2]) -> Option<bool> {
    match op {
        Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_) | Op::Part { .. } => all[0],
        Op::Unary(UnaryOp::Not) => all[0].map(|t| !t),
        Op::Binary(B::And) if all.contains(&Some(false)) => Some(false),
        Op::Binary(B::Or) if all.contains(&Some(true)) => Some(true),
        _ => None,
    }
}

/// The conditions that decide whether elements of the body are replaced by a constant, and where they do not.
fn plain(k: &BlockProgram, facts: &Analysis, data: &InstData) -> Option<Plain> {
    let region = data.regions.first()?;
    let index = *region.params.first()?;
    let mut inside: HashSet<Value> = region.params[1..].iter().copied().collect();
    let mut defined: HashMap<Value, &InstData> = HashMap::new();
    k.walk_region(region, &mut |_, d| inside.extend(&d.results));
    for d in region.insts.iter().map(|i| k.inst(*i)) {
        d.results.iter().for_each(|v| _ = defined.insert(*v, d));
    }
    let constant = |v: Value| super::constant(k, v).is_some();
    let s = Search { k, facts, index, inside, defined };
    let mut plain = Plain::default();
    for &i in &region.insts {
        let d = k.inst(i);
        let (Op::Select, [condition, yes, no]) = (&d.op, &d.args[..]) else { continue };
        let wanted = match (constant(*yes), constant(*no)) {
            (false, true) => true,
            (true, false) => false,
            _ => continue,
        };
        if !plain.known.contains_key(condition) {
            plain = plain.and(s.condition(*condition, wanted).unwrap_or_default());
        }
    }
    (!plain.known.is_empty()).then_some(plain)
}

struct Search<'k> {
    k: &'k BlockProgram,
    facts: &'k Analysis,
    /// The loop's index, what the body defines beside it, and where.
    index: Value,
    inside: HashSet<Value>,
    defined: HashMap<Value, &'k InstData>,
}

impl Search<'_> {
    /// Where a condition has the wanted value for all elements, or where at least some of its parts do.
    fn condition(&self, v: Value, wanted: bool) -> Option<Plain> {
        let d = self.defined.get(&v)?;
        let of = |n: usize, wanted: bool| self.condition(*d.args.get(n)?, wanted);
        match d.op {
            // One side is enough of a conjunction: the other one stays.
            Op::Binary(op @ (B::And | B::Or)) if (op == B::And) == wanted => {
                let mut both = of(0, wanted).unwrap_or_default().and(of(1, wanted).unwrap_or_default());
                if d.args.iter().all(|a| both.known.contains_key(a)) {
                    both.known.insert(v, wanted);
                }
                Some(both)
            }
            // One side that has the value decides.
            Op::Binary(B::And | B::Or) => {
                let whole = |n: usize| of(n, wanted).filter(|p| p.known.contains_key(&d.args[n]));
                match (whole(0), whole(1)) {
                    (Some(a), Some(b)) => Some(a.or(b, v, wanted)),
                    (a, b) => {
                        let mut one = a.or(b)?;
                        one.known.insert(v, wanted);
                        Some(one)
                    }
                }
            }
            Op::Unary(UnaryOp::Not) => self.followed(v, wanted, of(0, !wanted)?, !wanted),
            Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_) => {
                self.followed(v, wanted, of(0, wanted)?, wanted)
            }
            Op::Cmp(_) => {
                let known = HashMap::from([(v, wanted)]);
                let beyond = self.k.ty(v).is_scalar().then_some((v, !wanted));
                let forms = |f: Affine| vec![Forms { beyond, ..Forms::of(f) }];
                Some(match range(self.k, self.facts, (v, self.index), wanted, &self.inside)? {
                    Range::From(f) => Plain { known, from: forms(f), below: vec![] },
                    Range::Below(f) => Plain { known, from: vec![], below: forms(f) },
                })
            }
            _ => None,
        }
    }
    /// The bounds of an operand, which are those of the result if the whole operand is known.
    fn followed(&self, v: Value, wanted: bool, mut of: Plain, operand: bool) -> Option<Plain> {
        let d = self.defined.get(&v)?;
        if of.known.get(&d.args[0]) == Some(&operand) {
            of.known.insert(v, wanted);
        }
        Some(of)
    }
}

/// Where a comparison has the wanted result for all elements.
fn range(
    k: &BlockProgram,
    facts: &Analysis,
    (v, index): (Value, Value),
    wanted: bool,
    inside: &HashSet<Value>,
) -> Option<Range> {
    let [(form, op)] = &facts.bounds(v)?[..] else { return None };
    // As `form + less < 0` or `-form + less < 0`.
    let (sign, less) = match (op, wanted) {
        (CmpOp::Lt, true) | (CmpOp::Ge, false) => (1, 0),
        (CmpOp::Le, true) | (CmpOp::Gt, false) => (1, -1),
        (CmpOp::Gt, true) | (CmpOp::Le, false) => (-1, 0),
        (CmpOp::Ge, true) | (CmpOp::Lt, false) => (-1, -1),
        _ => return None,
    };
    let form = form.scaled(sign)?;
    let most = form
        .coeffs
        .iter()
        .zip(k.ty(v).shape())
        .try_fold(0i64, |sum, (c, n)| sum.checked_add(c.checked_mul(*n as i64 - 1)?.max(0)))?;
    let factor = form.scalars.iter().find(|s| s.0 == index)?.1;
    let mut rest = Affine { coeffs: vec![], constant: form.constant.checked_add(less)?.checked_add(most)?, ..form };
    rest.scalars.retain(|s| s.0 != index);
    let small = |n: i64| (-(1 << 30)..1 << 30).contains(&n);
    if rest.root.is_some() || rest.scalars.iter().any(|s| inside.contains(&s.0) || !small(s.1)) || !small(rest.constant)
    {
        return None;
    }
    match factor {
        // index + rest < 0
        1 => Some(Range::Below(rest.scaled(-1)?)),
        // index > rest
        -1 => Some(Range::From(Affine { constant: rest.constant + 1, ..rest })),
        _ => None,
    }
}
