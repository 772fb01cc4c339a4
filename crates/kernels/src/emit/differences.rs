//! Which differences of integers are constants, whatever the values of the launch: that of `i * B + B` and `i * B` is.
//!
//! An integer is taken apart into a sum of other values times constants. Arithmetic is meant over the integers, as in
//! offsets.
use super::Emitter;
use crate::value::Tensor;
use kiln_block::{BinaryOp, Const, Op, Value};
use std::collections::BTreeMap;

/// Nesting of sums and products that is looked into.
const MAX_DEPTH: usize = 16;

/// A constant, and values with their factors.
#[derive(Default)]
struct Sum {
    constant: i128,
    factors: BTreeMap<u32, i128>,
}

impl Emitter {
    /// `upper - lower`, if it is the same in each launch.
    pub fn constant_difference(&self, upper: &Tensor, lower: &Tensor) -> Option<i128> {
        let mut sum = Sum::default();
        self.add_times(&mut sum, upper.value, 1, MAX_DEPTH)?;
        self.add_times(&mut sum, lower.value, -1, MAX_DEPTH)?;
        sum.factors.values().all(|factor| *factor == 0).then_some(sum.constant)
    }
    /// Adds a value times a factor; nothing if numbers get too large.
    fn add_times(&self, sum: &mut Sum, value: Value, factor: i128, depth: usize) -> Option<()> {
        let integer = |value: &Value| match self.constant_of(*value) {
            Some(Const::Int(constant)) => Some(i128::from(constant)),
            _ => None,
        };
        if let Some(constant) = integer(&value) {
            sum.constant = sum.constant.checked_add(constant.checked_mul(factor)?)?;
            return Some(());
        }
        let inst = if depth == 0 { None } else { self.defining(value) };
        match inst.map(|inst| (&inst.op, &inst.args[..])) {
            Some((Op::Binary(BinaryOp::Add), [a, b])) => {
                self.add_times(sum, *a, factor, depth - 1)?;
                self.add_times(sum, *b, factor, depth - 1)
            }
            Some((Op::Binary(BinaryOp::Sub), [a, b])) => {
                self.add_times(sum, *a, factor, depth - 1)?;
                self.add_times(sum, *b, factor.checked_neg()?, depth - 1)
            }
            Some((Op::Binary(BinaryOp::Mul), [a, b])) if integer(a).is_some() || integer(b).is_some() => {
                let (constant, other) = integer(a).map_or_else(|| (integer(b), a), |constant| (Some(constant), b));
                self.add_times(sum, *other, factor.checked_mul(constant?)?, depth - 1)
            }
            Some((Op::Cast(to), [inner]))
                if to.is_int() && self.program.ty(*inner).elem().is_some_and(|e| e.is_int()) =>
            {
                self.add_times(sum, *inner, factor, depth - 1)
            }
            _ => {
                *sum.factors.entry(self.known_as(value).0).or_default() += factor;
                Some(())
            }
        }
    }
    /// The first value that is the same place in the grid.
    fn known_as(&self, value: Value) -> Value {
        let Some(inst) = self.defining(value).filter(|inst| matches!(inst.op, Op::ProgramId(_) | Op::NumPrograms(_)))
        else {
            return value;
        };
        let same = self.program.insts.iter().find(|other| other.op == inst.op);
        same.and_then(|same| same.results.first().copied()).unwrap_or(value)
    }
}
