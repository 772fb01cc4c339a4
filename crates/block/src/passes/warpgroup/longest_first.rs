//! Starts the instances with the most iterations first, so that short ones fill what long ones leave.
//!
//! Takes a program whose instances wait for none: a tile each, with loops. Where a loop has the more iterations the
//! larger the instance's number along the first axis, as under a causal mask, numbers are counted from the end.
use crate::{BinaryOp as B, BlockProgram, Const, Elem, Inst, InstData, Op, Region, Type, Value};
use std::collections::HashMap;

/// How a scalar changes with the instance's number along axis 0, all else equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trend {
    Flat,
    Rises,
    Falls,
    Unknown,
}
use Trend::{Falls, Flat, Rises, Unknown};

impl Trend {
    fn negated(self) -> Trend {
        match self {
            Rises => Falls,
            Falls => Rises,
            other => other,
        }
    }
    /// Of what grows with both.
    fn and(self, other: Trend) -> Trend {
        match (self, other) {
            (Flat, trend) | (trend, Flat) => trend,
            (a, b) if a == b => a,
            _ => Unknown,
        }
    }
}

/// The same program, with its instances in the order that suits these loops.
pub fn run(kernel: &BlockProgram, loops: &[Inst]) -> BlockProgram {
    let mut k = kernel.clone();
    if loops.iter().any(|i| has_more_for_later(kernel, *i)) {
        let mut body = std::mem::take(&mut k.body);
        reverse(&mut k, &mut body);
        k.body = body;
    }
    k
}

/// Whether a loop surely does not have fewer iterations in later instances, and may have more.
fn has_more_for_later(k: &BlockProgram, i: Inst) -> bool {
    let mut trends = Trends { k, made: definitions(k), known: HashMap::new() };
    let [lo, hi] = [0, 1].map(|n| trends.of(k.inst(i).args[n]));
    (lo, hi) == (Flat, Rises)
}

fn definitions(k: &BlockProgram) -> HashMap<Value, Inst> {
    let mut made = HashMap::new();
    k.walk(&mut |inst, data| made.extend(data.results.iter().map(|v| (*v, inst))));
    made
}

struct Trends<'a> {
    k: &'a BlockProgram,
    made: HashMap<Value, Inst>,
    known: HashMap<Value, Trend>,
}

impl Trends<'_> {
    fn of(&mut self, v: Value) -> Trend {
        if let Some(known) = self.known.get(&v) {
            return *known;
        }
        let Some(data) = self.made.get(&v).map(|i| self.k.inst(*i)) else {
            // Indices of loops are not asked for: bounds are computed before.
            let is_param = self.k.params.iter().any(|p| p.value == v);
            return if is_param { Flat } else { Unknown };
        };
        let trend = self.computed(data);
        self.known.insert(v, trend);
        trend
    }
    fn computed(&mut self, data: &InstData) -> Trend {
        match (&data.op, &data.args[..]) {
            (Op::ProgramId(0), _) => Rises,
            (Op::ProgramId(_) | Op::NumPrograms(_) | Op::Const(_), _) => Flat,
            (Op::Binary(B::Add | B::Min | B::Max), [a, b]) => self.of(*a).and(self.of(*b)),
            (Op::Binary(B::Sub), [a, b]) => self.of(*a).and(self.of(*b).negated()),
            (Op::Binary(B::Mul | B::Div), [a, b]) if self.is_positive(*b) => self.of(*a),
            (Op::Binary(B::Mul), [a, b]) if self.is_positive(*a) => self.of(*b),
            (Op::Cast(to), [a]) if to.is_int() && self.k.ty(*a).elem().is_some_and(Elem::is_int) => self.of(*a),
            (op, args) if op.is_pure() && args.iter().all(|v| self.of(*v) == Flat) => Flat,
            _ => Unknown,
        }
    }
    fn is_positive(&self, v: Value) -> bool {
        let op = self.made.get(&v).map(|i| &self.k.inst(*i).op);
        matches!(op, Some(Op::Const(Const::Int(n))) if *n > 0)
    }
}

/// Counts numbers along axis 0 from the end.
fn reverse(k: &mut BlockProgram, r: &mut Region) {
    for inst in std::mem::take(&mut r.insts) {
        let mut regions = std::mem::take(&mut k.inst_mut(inst).regions);
        regions.iter_mut().for_each(|inner| reverse(k, inner));
        k.inst_mut(inst).regions = regions;
        if k.inst(inst).op != Op::ProgramId(0) {
            r.insts.push(inst);
            continue;
        }
        let mut one = |k: &mut BlockProgram, op: Op, args: &[Value]| {
            let v = k.new_value(Type::scalar(Elem::I32));
            r.insts.push(k.new_inst(InstData { op, args: args.to_vec(), results: vec![v], regions: vec![] }));
            v
        };
        let number = one(k, Op::ProgramId(0), &[]);
        let count = one(k, Op::NumPrograms(0), &[]);
        let unit = one(k, Op::Const(Const::Int(1)), &[]);
        let last = one(k, Op::Binary(B::Sub), &[count, unit]);
        let data = k.inst(inst).clone();
        *k.inst_mut(inst) = InstData { op: Op::Binary(B::Sub), args: vec![last, number], ..data };
        r.insts.push(inst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    /// A loop to `(first + 1) * 64` or, for another axis or a fall, to something else.
    fn counted(axis: u8, sign: B) -> bool {
        let mut b = Builder::new("counted", [4, 4, 1], 4);
        let n = b.scalar("n", Elem::I32, crate::Facts::default());
        let (number, size, zero) = (b.program_id(axis), b.i32(64), b.i32(0));
        let hi = b.binary(B::Mul, number, size);
        let hi = b.binary(sign, n, hi);
        let hi = b.binary(B::Min, hi, n);
        b.for_loop([zero, hi, size], &[], |_, _, _| vec![]);
        let k = b.finish();
        let found = k.body.insts.iter().copied().find(|i| k.inst(*i).op == Op::For).unwrap();
        let reversed = run(&k, &[found]);
        let mut counts = 0;
        reversed.walk(&mut |_, d| counts += usize::from(d.op == Op::NumPrograms(0)));
        counts > 0
    }

    #[test]
    fn only_loops_that_grow_along_the_first_axis_turn_it_round() {
        assert!(counted(0, B::Add));
        assert!(!counted(1, B::Add));
        assert!(!counted(0, B::Sub));
    }
}
