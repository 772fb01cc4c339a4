//! Integers that do not wrap, by the rule of programs with values of the launch: what addresses and masks of accesses
//! are computed from is meant over the integers.
//!
//! The rule covers sums, differences and products, with what moves and chooses their elements, and casts from fewer
//! bits to more. It ends at quotients, remainders, shifts, bit operations and unsigned integers: hashes wrap on purpose.
use crate::{BinaryOp, BlockProgram, Elem, Inst, InstData, Op, Region, Type, UnaryOp, Value};
use std::collections::{HashMap, HashSet};

/// The integers, and the masks that compare them.
pub fn unwrapped(k: &BlockProgram) -> HashSet<Value> {
    let mut places = vec![];
    k.walk(&mut |_, d| places.extend(placed(d)));
    Origins::of(k).closure(places, Reach::Operands)
}

/// The same for accesses through some pointers, with the conditions and the bounds of loops that decide whether such an
/// access runs.
pub fn unwrapped_at(k: &BlockProgram, origins: &Origins, pointers: &HashSet<Value>) -> HashSet<Value> {
    let mut places = vec![];
    guards(k, &k.body, pointers, &mut places);
    k.walk(&mut |_, d| match (&d.op, &d.args[..], &d.results[..]) {
        (Op::Select, [condition, ..], [v]) if pointers.contains(v) => places.push(*condition),
        (_, [pointer, ..], _) if pointers.contains(pointer) => places.extend(placed(d)),
        _ => {}
    });
    origins.closure(places, Reach::Conditions)
}

/// How far the rule reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// To what a number is computed from.
    Operands,
    /// To the conditions that choose it, and the bounds that a loop counts between, as well.
    Conditions,
}

/// Where a value comes from.
#[derive(Clone, Copy)]
enum Origin {
    /// Result, or carried value, `n` of an instruction.
    Made { inst: Inst, n: usize },
    /// The index of a loop.
    Index { inst: Inst },
}

/// Where all values come from.
pub struct Origins<'a> {
    k: &'a BlockProgram,
    origins: HashMap<Value, Origin>,
}

impl<'a> Origins<'a> {
    pub fn of(k: &'a BlockProgram) -> Origins<'a> {
        let mut origins = HashMap::new();
        k.walk(&mut |inst, d| {
            for (n, v) in d.results.iter().enumerate() {
                origins.insert(*v, Origin::Made { inst, n });
            }
            let mut params = d.regions.iter().flat_map(|r| &r.params);
            if d.op == Op::For {
                origins.extend(params.next().map(|v| (*v, Origin::Index { inst })));
            }
            if matches!(d.op, Op::For | Op::While) {
                origins.extend(params.enumerate().map(|(n, v)| (*v, Origin::Made { inst, n })));
            }
        });
        Origins { k, origins }
    }
    /// Integers and masks of these, and what they are computed from as far as the rule passes on.
    fn closure(&self, mut open: Vec<Value>, reach: Reach) -> HashSet<Value> {
        let mut found = HashSet::new();
        while let Some(v) = open.pop() {
            let counts = matches!(self.k.ty(v), Type::Block { elem, .. } if elem.is_int() || *elem == Elem::Bool);
            if counts && found.insert(v) {
                open.extend(self.sources(v, reach));
            }
        }
        found
    }
    /// Operands to which the rule passes on from a value.
    pub fn sources(&self, v: Value, reach: Reach) -> Vec<Value> {
        let k = self.k;
        let (inst, n) = match self.origins.get(&v) {
            Some(Origin::Made { inst, n }) => (*inst, *n),
            Some(Origin::Index { inst }) if reach == Reach::Conditions => return k.inst(*inst).args[..3].to_vec(),
            Some(Origin::Index { .. }) | None => return vec![],
        };
        let d = k.inst(inst);
        let conditions = reach == Reach::Conditions;
        match &d.op {
            Op::For => {
                let bounds = if conditions { &d.args[..3] } else { &[] };
                [bounds, d.args.get(3 + n..4 + n).unwrap_or_default(), &yielded(k, d, n)].concat()
            }
            Op::While => {
                let condition = if conditions { yielded(k, d, 0) } else { vec![] };
                [&condition, d.args.get(n..=n).unwrap_or_default(), &yielded(k, d, n + 1)].concat()
            }
            Op::If if conditions => [d.args.clone(), yielded(k, d, n)].concat(),
            Op::If => yielded(k, d, n),
            Op::Select if reach == Reach::Operands => d.args[1..].to_vec(),
            _ if passes_on(k, d) => d.args.clone(),
            _ => vec![],
        }
    }
}

/// What the regions of an op yield as their value `n`.
pub fn yielded(k: &BlockProgram, d: &InstData, n: usize) -> Vec<Value> {
    let ends = d.regions.iter().filter_map(|r| r.insts.last());
    ends.filter_map(|i| k.inst(*i).args.get(n).copied()).collect()
}

/// Whether operands of an op without regions are meant as its result is.
fn passes_on(k: &BlockProgram, d: &InstData) -> bool {
    match &d.op {
        Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min)
        | Op::Unary(UnaryOp::Neg | UnaryOp::Abs)
        | Op::Cmp(_)
        | Op::Select
        | Op::Splat
        | Op::Broadcast
        | Op::ExpandDims(_)
        | Op::Reshape
        | Op::Permute(_)
        | Op::Part { .. }
        | Op::Join
        | Op::Split(_)
        | Op::Cat { .. }
        | Op::MultipleOf(_)
        | Op::ConvertLayout => true,
        Op::Cast(to) => {
            let from = k.ty(d.args[0]).elem();
            let integers = from.is_some_and(|e| e.is_int() && e.is_signed()) && to.is_int() && to.is_signed();
            integers && from.is_some_and(|from| from.bytes() <= to.bytes())
        }
        Op::Binary(BinaryOp::And | BinaryOp::Or | BinaryOp::Xor) | Op::Unary(UnaryOp::Not) => {
            d.results.iter().all(|v| k.ty(*v).elem() == Some(Elem::Bool))
        }
        _ => false,
    }
}

/// The offsets, masks and starts of an access.
fn placed(d: &InstData) -> &[Value] {
    match (&d.op, &d.args[..]) {
        (Op::PtrAdd, [_, offset]) => std::slice::from_ref(offset),
        (Op::Load(..), [_, mask, ..]) => std::slice::from_ref(mask),
        (Op::Store(_) | Op::Atomic { .. }, [_, _, mask]) => std::slice::from_ref(mask),
        (Op::TileLoad, [_, starts @ ..]) => starts,
        (Op::TileStore, [_, _, starts @ ..]) => starts,
        _ => &[],
    }
}

/// Collects conditions and bounds of what has an access through such a pointer in a region; true if this one has.
fn guards(k: &BlockProgram, r: &Region, pointers: &HashSet<Value>, found: &mut Vec<Value>) -> bool {
    let mut any = false;
    for i in &r.insts {
        let d = k.inst(*i);
        let accesses = matches!(d.op, Op::Load(..) | Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. });
        let inner = d.regions.iter().fold(false, |any, r| guards(k, r, pointers, found) | any);
        match d.op {
            Op::For if inner => found.extend(&d.args[..3]),
            Op::If if inner => found.extend(&d.args[..1]),
            Op::While if inner => found.extend(yielded(k, d, 0)),
            _ => {}
        }
        any |= inner || accesses && d.args.first().is_some_and(|p| pointers.contains(p));
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, CmpOp, Facts, Grid};

    /// The offset `pid * 128 + i` and its mask do not wrap; a hash that chooses what is stored may.
    #[test]
    fn offsets_and_masks_but_not_hashes() {
        let mut b = Builder::new("k", Grid::Launch, 4);
        let (x, n) = (b.param("x", Elem::I32, false), b.scalar("n", Elem::I32, Facts::default()));
        let (pid, size, i) = (b.program_id(0), b.i32(128), b.iota(128));
        let start = b.binary(BinaryOp::Mul, pid, size);
        let at = b.binary(BinaryOp::Add, start, i);
        let mask = b.cmp(CmpOp::Lt, at, n);
        let factor = b.i32(1_664_525);
        let hash = b.binary(BinaryOp::Mul, at, factor);
        let low = b.cmp(CmpOp::Lt, hash, factor);
        let kept = b.select(low, at, hash);
        let p = b.ptr_add(x, at);
        b.store(p, kept, Some(mask));
        let found = unwrapped(&b.finish());
        assert!([start, at, mask, n, pid].iter().all(|v| found.contains(v)));
        assert!([hash, low, kept].iter().all(|v| !found.contains(v)));
    }

    /// A hash that is cast to an unsigned integer wraps on purpose, whatever is done with it.
    #[test]
    fn casts_to_unsigned_end_the_rule() {
        let mut b = Builder::new("k", Grid::Launch, 4);
        let x = b.param("x", Elem::I32, false);
        let (pid, factor) = (b.program_id(0), b.i32(1_664_525));
        let hash = b.binary(BinaryOp::Mul, pid, factor);
        let unsigned = b.cast(hash, Elem::U32);
        let at = b.cast(unsigned, Elem::I64);
        let p = b.ptr_add(x, at);
        b.store(p, pid, None);
        let found = unwrapped(&b.finish());
        assert!(found.contains(&at) && !found.contains(&hash));
    }
}
