//! What a kernel promises of its values (`multiple_of`, `assume`), as facts about parameters, which analyses read.
//!
//! A promise about a parameter counts where it stands in no branch and no loop: a fact holds for the whole program. Any
//! other value is known to be a multiple where that is said, and in what follows (`multiple_of` of the block IR).
//! Promises that contradict what is known are left out.
use super::Emitter;
use crate::error::Eval;
use crate::value::Tensor;
use kiln_block::{BinaryOp, CmpOp, Const, Facts, InstData, Op, Param, Value};

/// A comparison of a value with a constant.
struct Bound {
    value: Value,
    op: CmpOp,
    constant: i64,
}

impl Emitter {
    /// The integers or pointers, known to be multiples from here on: a fact about a parameter where it stands in no
    /// branch and no loop, else about the value.
    pub fn known_multiples(&mut self, x: &Tensor, divisors: &[u32]) -> Eval<Tensor> {
        let always = self.open.len() == 1;
        if let ([divisor], true) = (divisors, always && !x.ty.scalar.is_pointer())
            && self.promise_divisor(x.value, i64::from(*divisor))
        {
            return Ok(x.clone());
        }
        self.one(Op::MultipleOf(divisors.to_vec()), &[x.value], x.ty.clone())
    }
    /// Takes what a condition says of parameters as known.
    pub fn promise(&mut self, condition: Value) {
        let Some(InstData { op, args, .. }) = self.defining(condition).cloned() else { return };
        match op {
            Op::Binary(BinaryOp::And) => args.iter().for_each(|side| self.promise(*side)),
            Op::Cmp(op) => {
                if let Some(bound) = self.bound(op, args[0], args[1]) {
                    self.promise_bound(&bound);
                }
            }
            _ => {}
        }
    }
    /// A comparison whose constant, if one side is, stands on the right.
    fn bound(&self, op: CmpOp, left: Value, right: Value) -> Option<Bound> {
        let int = |value: Value| match self.constant_of(value) {
            Some(Const::Int(constant)) => Some(constant),
            _ => None,
        };
        match (int(left), int(right)) {
            (None, Some(constant)) => Some(Bound { value: left, op, constant }),
            (Some(constant), None) => {
                let op = match op {
                    CmpOp::Lt => CmpOp::Gt,
                    CmpOp::Le => CmpOp::Ge,
                    CmpOp::Gt => CmpOp::Lt,
                    CmpOp::Ge => CmpOp::Le,
                    CmpOp::Eq | CmpOp::Ne => op,
                };
                Some(Bound { value: right, op, constant })
            }
            _ => None,
        }
    }
    fn promise_bound(&mut self, bound: &Bound) {
        let Bound { value, op, constant } = *bound;
        let remainder = self.defining(value).filter(|inst| inst.op == Op::Binary(BinaryOp::Rem));
        if let (Some(inst), CmpOp::Eq, 0) = (remainder, op, constant) {
            if let (dividend, Some(Const::Int(divisor))) = (inst.args[0], self.constant_of(inst.args[1])) {
                self.promise_divisor(dividend, divisor);
            }
            return;
        }
        self.learn(value, |facts| match op {
            CmpOp::Ge => facts.least = facts.least.max(Some(constant)),
            CmpOp::Gt => facts.least = facts.least.max(constant.checked_add(1)),
            CmpOp::Le => facts.most = Some(facts.most.unwrap_or(i64::MAX).min(constant)),
            CmpOp::Lt => facts.most = Some(facts.most.unwrap_or(i64::MAX).min(constant.saturating_sub(1))),
            CmpOp::Eq => (facts.least, facts.most) = (Some(constant), Some(constant)),
            CmpOp::Ne => {}
        });
    }
    fn promise_divisor(&mut self, value: Value, divisor: i64) -> bool {
        self.learn(value, |facts| {
            if let Some(both) = common_multiple(facts.div, divisor) {
                facts.div = both;
            }
        })
    }
    /// Changes what is known of a parameter; whether the value is one.
    fn learn(&mut self, value: Value, change: impl FnOnce(&mut Facts)) -> bool {
        let always = self.open.len() == 1;
        let program = &mut self.program;
        let Some(at) = program.params.iter().position(|param| param.value == value) else { return false };
        let range = program.ty(value).elem().and_then(kiln_block::Elem::int_range);
        let Param { facts, .. } = &mut program.params[at];
        let mut changed = *facts;
        change(&mut changed);
        let Some(range) = range.filter(|_| always && facts.equals.is_none()) else { return true };
        let (least, most) = changed.range(range);
        let within = |end: Option<i64>| end.is_none_or(|end| (range.0..=range.1).contains(&end));
        if least <= most && within(changed.least) && within(changed.most) && changed.div <= range.1 {
            *facts = changed;
        }
        true
    }
}

/// The least common multiple of two positive numbers, if it fits.
fn common_multiple(a: i64, b: i64) -> Option<i64> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    if b < 1 || x < 1 { None } else { (a / x).checked_mul(b) }
}
