//! Whether instances have the more iterations the larger their number along the first axis, as under a causal mask.
//! Those with the most are to start first, so that short ones fill what long ones leave.
use crate::{BinaryOp as B, BlockProgram, Const, Elem, Inst, InstData, Op, Value};
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

/// Whether one of these loops has more iterations in later instances.
pub fn suits(k: &BlockProgram, loops: &[Inst]) -> bool {
    loops.iter().any(|i| has_more_for_later(k, *i))
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
        suits(&k, &[found])
    }

    #[test]
    fn only_loops_that_grow_along_the_first_axis_start_from_its_end() {
        assert!(counted(0, B::Add));
        assert!(!counted(1, B::Add));
        assert!(!counted(0, B::Sub));
    }
}
