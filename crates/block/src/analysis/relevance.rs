//! Which facts about parameters code makes use of.
//!
//! A divisor says how wide the vectors of an access are, and that a mask's elements agree. It matters for what reaches
//! an offset, or a comparison of blocks. That a number is 1 matters where it is a factor, a divisor, a bound or step of
//! a loop, or compared by itself: then something disappears. Facts that do not matter are dropped, so that programs
//! that differ in these alone are one.
//!
//! The answer depends on types and not on facts: a launcher asks once for each combination of types.
use crate::analysis::analyse;
use crate::analysis::unwrapped::yielded;
use crate::{BinaryOp, BlockProgram, Elem, Facts, InstData, Op, Param, Type, Value};
use std::collections::HashSet;

/// What launchers know to divide a parameter.
const MULTIPLE: i64 = 16;

/// Which facts about a parameter matter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Relevance {
    /// What divides it: an integer, or an address.
    pub div: bool,
    /// Its value.
    pub equals: bool,
}

/// For each parameter of a program as a front end makes it.
pub fn relevance(k: &BlockProgram) -> Vec<Relevance> {
    let exact = exact_quotients(k);
    let one = |p: &Param| Relevance { div: divisor_matters(k, p.value, &exact), equals: value_matters(k, p.value) };
    k.params.iter().map(one).collect()
}

/// Quotients of scalars by constants that leave no remainder where all parameters are multiples of [`MULTIPLE`].
fn exact_quotients(k: &BlockProgram) -> HashSet<Value> {
    let mut multiples = k.clone();
    multiples.params.iter_mut().for_each(|p| p.facts = Facts { div: MULTIPLE, ..Facts::default() });
    let facts = analyse(&multiples);
    let mut exact = HashSet::new();
    k.walk(&mut |_, d| {
        if matches!(&d.args[..], [a, b] if k.ty(*a).is_scalar() && k.ty(*b).is_scalar())
            && facts.exact_divisor(d).is_some()
        {
            exact.extend(&d.results);
        }
    });
    exact
}

/// Forgets facts that do not matter.
pub fn drop_irrelevant(k: &mut BlockProgram, relevance: &[Relevance]) {
    for (n, found) in relevance.iter().enumerate() {
        let unaligned = k.params.get(n).and_then(|p| k.ty(p.value).elem()).map_or(1, Elem::bytes);
        let Some(p) = k.params.get_mut(n) else { continue };
        if !found.div {
            (p.facts.div, p.align) = (Facts::default().div, p.align.min(unaligned));
        }
        if !found.equals {
            p.facts.equals = None;
        }
    }
}

/// Values that are computed from one by these ops, with the results and carried values of loops and branches.
fn reached(k: &BlockProgram, from: Value, passes_on: impl Fn(&InstData) -> bool) -> HashSet<Value> {
    let mut found = HashSet::from([from]);
    loop {
        let before = found.len();
        k.walk(&mut |_, d| {
            let skipped = usize::from(d.op == Op::For);
            let params: Vec<Value> = d.regions.iter().flat_map(|r| r.params.iter().skip(skipped)).copied().collect();
            match d.op {
                Op::For | Op::While => {
                    let (inits, first) = if d.op == Op::For { (3, 0) } else { (0, 1) };
                    for (n, param) in params.iter().enumerate() {
                        let next = yielded(k, d, first + n);
                        if d.args.get(inits + n).into_iter().chain(&next).any(|v| found.contains(v)) {
                            found.extend(d.results.get(n).into_iter().chain([param]));
                        }
                    }
                    // An index is a multiple of what divides its start and its step.
                    if d.op == Op::For && [0, 2].iter().any(|n| found.contains(&d.args[*n])) {
                        found.extend(d.regions.iter().filter_map(|r| r.params.first()));
                    }
                }
                Op::If => {
                    let given = (0..d.results.len()).filter(|n| yielded(k, d, *n).iter().any(|v| found.contains(v)));
                    let given: Vec<Value> = given.map(|n| d.results[n]).collect();
                    found.extend(given);
                }
                _ if d.regions.is_empty() && d.args.iter().any(|v| found.contains(v)) && passes_on(d) => {
                    found.extend(&d.results);
                }
                _ => {}
            }
        });
        if found.len() == before {
            return found;
        }
    }
}

fn is_number(k: &BlockProgram, v: Value) -> bool {
    matches!(k.ty(v), Type::Block { elem, .. } if elem.is_int())
}

/// Whether vectors or masks depend on what divides a parameter.
fn divisor_matters(k: &BlockProgram, param: Value, exact: &HashSet<Value>) -> bool {
    let keeps_divisor = |d: &InstData| {
        let forgets = match d.op {
            // A quotient of single numbers has any divisor, where there may be a remainder.
            Op::Binary(BinaryOp::Div | BinaryOp::Shr) => {
                d.args.iter().all(|v| k.ty(*v).is_scalar()) && d.results.iter().all(|v| !exact.contains(v))
            }
            Op::Load(..) | Op::Cmp(_) | Op::Reduce { .. } | Op::Scan { .. } | Op::Gather { .. } | Op::Dot { .. } => {
                true
            }
            Op::Cast(to) => !to.is_int(),
            _ => false,
        };
        !forgets
    };
    let found = reached(k, param, keeps_divisor);
    let mut matters = false;
    k.walk(&mut |_, d| {
        let takes = |n: usize| d.args.get(n).is_some_and(|v| found.contains(v));
        let is_block = |n: usize| d.args.get(n).is_some_and(|v| !k.ty(*v).is_scalar());
        matters |= match d.op {
            Op::PtrAdd => takes(1),
            Op::Cmp(_) => is_block(0) && (takes(0) || takes(1)),
            Op::Load(..) | Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. } => takes(0) && is_block(0),
            Op::TileLoad | Op::TileStore | Op::Bitcast | Op::Check { .. } => (0..d.args.len()).any(takes),
            _ => false,
        };
    });
    matters
}

/// Whether something disappears where a parameter is 1.
fn value_matters(k: &BlockProgram, param: Value) -> bool {
    if !is_number(k, param) {
        return true;
    }
    let copies = |d: &InstData| match d.op {
        Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_) | Op::Select => true,
        Op::MultipleOf(_) => true,
        Op::Cast(to) => to.is_int(),
        _ => false,
    };
    let found = reached(k, param, copies);
    let mut matters = false;
    k.walk(&mut |_, d| {
        let takes = |n: usize| d.args.get(n).is_some_and(|v| found.contains(v));
        matters |= match d.op {
            Op::Binary(BinaryOp::Mul | BinaryOp::Div | BinaryOp::Rem) => takes(0) || takes(1),
            Op::Cmp(_) => (takes(0) || takes(1)) && k.ty(d.args[0]).is_scalar(),
            Op::For => takes(0) || takes(1) || takes(2),
            _ => false,
        };
    });
    matters
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, CmpOp, Grid};

    /// `out[row * stride + i] = x[i] / count` for `i < n`, if `row < rows`.
    fn row_program() -> BlockProgram {
        let mut b = Builder::new("k", Grid::Launch, 4);
        let [x, out, single] = ["x", "out", "single"].map(|name| b.param(name, Elem::F32, false));
        let [stride, n, rows, count, unused] =
            ["stride", "n", "rows", "count", "unused"].map(|name| b.scalar(name, Elem::I32, Facts::default()));
        let (row, i) = (b.program_id(0), b.iota(128));
        let inside = b.cmp(CmpOp::Lt, i, n);
        let x = b.ptr_add(x, i);
        let v = b.load(x, Some(inside), None);
        let count = b.cast(count, Elem::F32);
        let v = b.binary(BinaryOp::Div, v, count);
        let start = b.binary(BinaryOp::Mul, row, stride);
        let at = b.binary(BinaryOp::Add, start, i);
        let out = b.ptr_add(out, at);
        let some = b.cmp(CmpOp::Lt, row, rows);
        b.if_else(
            some,
            |b| {
                b.store(out, v, Some(inside));
                vec![]
            },
            |_| vec![],
        );
        let first = b.ptr_add(single, row);
        b.store(first, count, None);
        let _ = unused;
        b.finish()
    }

    #[test]
    fn strides_matter_and_counts_do_not() {
        let found = relevance(&row_program());
        let of = |n: usize| (found[n].div, found[n].equals);
        let [x, out, single, stride, n, rows, count, unused] = [0, 1, 2, 3, 4, 5, 6, 7].map(of);
        assert_eq!([x.0, out.0, single.0], [true, true, false], "{found:?}");
        assert_eq!(stride, (true, true));
        assert_eq!(n, (true, false));
        assert_eq!(rows, (false, true));
        assert_eq!([count, unused], [(false, false); 2]);
    }

    /// A half that is an offset is a multiple of 8 where the whole is one of 16; a number of tiles has any divisor.
    #[test]
    fn exact_quotients_keep_divisors() {
        let mut b = Builder::new("k", Grid::Launch, 4);
        let x = b.param("x", Elem::F16, false);
        let [depth, rows] =
            ["depth", "rows"].map(|name| b.scalar(name, Elem::I32, Facts { div: 16, ..Facts::default() }));
        let [two, last, tile] = [2, 63, 64].map(|n| b.i32(n));
        let half = b.binary(BinaryOp::Div, depth, two);
        let padded = b.binary(BinaryOp::Add, rows, last);
        let tiles = b.binary(BinaryOp::Div, padded, tile);
        let start = b.binary(BinaryOp::Add, half, tiles);
        let i = b.iota(128);
        let [half_at, at] = [half, start].map(|start| b.binary(BinaryOp::Add, start, i));
        let [aligned, other] = [half_at, at].map(|at| b.ptr_add(x, at));
        let v = b.load(aligned, None, None);
        b.store(other, v, None);
        let k = b.finish();
        assert_eq!(relevance(&k).iter().map(|r| r.div).collect::<Vec<_>>(), [true, true, false]);
        let facts = analyse(&k);
        assert_eq!([aligned, other].map(|p| facts.alignment(p, 0)), [(128, 16), (128, 2)]);
    }

    /// What does not matter is the same program with and without its fact.
    #[test]
    fn facts_that_do_not_matter_are_dropped() {
        let plain = row_program();
        let found = relevance(&plain);
        for n in 0..plain.params.len() {
            let mut k = plain.clone();
            if matches!(k.ty(k.params[n].value), Type::Block { .. }) {
                k.params[n].facts = Facts { div: 16, ..Facts::default() };
            }
            let mut known = k.clone();
            drop_irrelevant(&mut known, &found);
            assert_eq!(known.params[n] == k.params[n], found[n].div, "{}", k.params[n].name);
        }
    }
}
