//! Integers that do not wrap, by the rule of programs with values of the launch: what addresses and masks of accesses
//! are computed from is meant over the integers.
//!
//! The rule covers sums, differences and products, with what moves and chooses their elements. It ends at quotients,
//! remainders, shifts and bit operations: hashes wrap on purpose.
use crate::{BinaryOp, BlockProgram, Elem, Inst, InstData, Op, Type, UnaryOp, Value};
use std::collections::{HashMap, HashSet};

/// The integers, and the masks that compare them.
pub fn unwrapped(k: &BlockProgram) -> HashSet<Value> {
    let (mut made, mut open) = (HashMap::new(), vec![]);
    k.walk(&mut |i, d| {
        for (n, v) in d.results.iter().enumerate() {
            made.insert(*v, Made { inst: i, n });
        }
        if matches!(d.op, Op::For | Op::While) {
            let skipped = usize::from(d.op == Op::For);
            for (n, v) in d.regions.iter().flat_map(|r| &r.params).skip(skipped).enumerate() {
                made.insert(*v, Made { inst: i, n });
            }
        }
        open.extend(placed(d));
    });
    let mut found = HashSet::new();
    while let Some(v) = open.pop() {
        let counts = matches!(k.ty(v), Type::Block { elem, .. } if elem.is_int() || *elem == Elem::Bool);
        if counts
            && found.insert(v)
            && let Some(made) = made.get(&v)
        {
            open.extend(sources(k, *made));
        }
    }
    found
}

/// Where a value comes from: result, or carried value, `n` of an instruction.
#[derive(Clone, Copy)]
struct Made {
    inst: Inst,
    n: usize,
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

/// Operands to which the rule passes on from a result.
fn sources(k: &BlockProgram, Made { inst, n }: Made) -> Vec<Value> {
    let d = k.inst(inst);
    let yielded = |at: usize| {
        let ends = d.regions.iter().filter_map(|r| r.insts.last());
        ends.filter_map(move |i| k.inst(*i).args.get(at).copied()).collect::<Vec<_>>()
    };
    match &d.op {
        Op::For => [d.args.get(3 + n).copied().into_iter().collect(), yielded(n)].concat(),
        Op::While => [d.args.get(n).copied().into_iter().collect(), yielded(n + 1)].concat(),
        Op::If => yielded(n),
        Op::Select => d.args[1..].to_vec(),
        Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Max | BinaryOp::Min)
        | Op::Unary(UnaryOp::Neg)
        | Op::Cmp(_)
        | Op::Cast(_)
        | Op::Splat
        | Op::Broadcast
        | Op::ExpandDims(_)
        | Op::Reshape
        | Op::Permute(_)
        | Op::Part { .. }
        | Op::ConvertLayout => d.args.clone(),
        Op::Binary(BinaryOp::And | BinaryOp::Or | BinaryOp::Xor) | Op::Unary(UnaryOp::Not)
            if d.results.iter().all(|v| k.ty(*v).elem() == Some(Elem::Bool)) =>
        {
            d.args.clone()
        }
        _ => vec![],
    }
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
}
