//! What a loop carries: the index's range and divisor, and affine forms of values that change by the same amount per
//! iteration.
use super::{
    affine::Affine,
    values::{Analysis, Def, power_of_two_in},
};
use crate::{BinaryOp, BlockProgram, Const, Elem, Inst, InstData, Op, Value};
use std::collections::HashMap;

impl Analysis {
    pub(super) fn for_loop(&mut self, k: &BlockProgram, i: Inst, data: &InstData) {
        let (Some(region), [lo, hi, step, init @ ..]) = (data.regions.first(), &data.args[..]) else { return };
        for (n, v) in region.params.iter().enumerate() {
            self.define(k, *v, Def::Carried(i, n));
        }
        let [index, carried @ ..] = &region.params[..] else { return };
        let (flo, fhi, fstep) =
            (self.forms.get(lo).cloned(), self.forms.get(hi).cloned(), self.forms.get(step).cloned());
        let number = |f: &Option<Affine>| f.as_ref().and_then(Affine::as_constant);
        let extreme = |f: &Option<Affine>| f.as_ref().and_then(|f| self.range(f, &[]));
        if let (Some((l, _)), Some((_, h))) = (extreme(&flo), extreme(&fhi)) {
            let last = h.saturating_sub(1).max(l);
            // With a constant start and step the last value is a whole number of steps from the start.
            let step = number(&flo).and(number(&fstep)).filter(|s| *s > 0).unwrap_or(1);
            self.ranges.insert(*index, (l, l.saturating_add(last.saturating_sub(l) / step * step)));
        }
        self.divisors.insert(*index, self.divisor(*lo).min(self.divisor(*step)));
        self.forms.insert(*index, Affine::scalar(*index));

        let defs = k.definitions_in(region);
        let next: &[Value] = match region.insts.last().map(|i| k.inst(*i)) {
            Some(last) if last.op == Op::Yield => &last.args,
            _ => &[],
        };
        let trips = match (number(&flo), number(&fhi), number(&fstep)) {
            (Some(l), Some(h), Some(s)) if s > 0 => Some((h.saturating_sub(l).max(0) as u64).div_ceil(s as u64)),
            _ => None,
        };
        for (n, v) in carried.iter().enumerate() {
            let form = init.get(n).and_then(|v| self.forms.get(v)).cloned();
            let per_trip = next.get(n).and_then(|x| self.increment(k, &defs, *x, *v));
            let divisor = per_trip.map(power_of_two_in);
            let divisor = divisor.or_else(|| next.get(n).and_then(|x| self.moves_by(k, &defs, *x, *v)));
            if let (Some(init), Some(divisor)) = (init.get(n), divisor) {
                let axes = self.carried_axes(*init, divisor);
                self.axes.insert(*v, axes.clone());
                data.results.get(n).map(|r| self.axes.insert(*r, axes));
            }
            let (Some(form), Some(d)) = (form, per_trip) else {
                self.opaque(*v, k.ty(*v));
                if let (Some(init), Some(by)) = (init.get(n), divisor) {
                    let divisor = self.divisor(*init).min(by);
                    self.divisors.insert(*v, divisor);
                    data.results.get(n).map(|r| self.divisors.insert(*r, divisor));
                }
                continue;
            };
            // In iteration k, k = (index - lo) / step.
            let inside = match (&flo, number(&fstep)) {
                _ if d == 0 => Some(form.clone()),
                (Some(lo), Some(s)) if s > 0 && d % s == 0 => {
                    let trip = Affine::scalar(*index).add_scaled(lo, -1).and_then(|t| t.scaled(d / s));
                    trip.and_then(|t| form.add_scaled(&t.with_coeffs(vec![0; form.coeffs.len()]), 1))
                }
                _ => None,
            };
            match inside {
                Some(f) => _ = self.forms.insert(*v, f),
                None => self.opaque(*v, k.ty(*v)),
            }
            let total = if d == 0 { Some(0) } else { trips.and_then(|t| i64::try_from(t).ok()?.checked_mul(d)) };
            if let (Some(total), Some(r)) = (total, data.results.get(n))
                && let Some(f) = form.add_scaled(&Affine::constant(total, form.coeffs.len()), 1)
            {
                self.forms.insert(*r, f);
            }
        }
        self.region(k, region);
    }
    /// The divisor of what all elements of a value grow by per iteration: 1 if that is computed in the loop.
    fn moves_by(&self, k: &BlockProgram, defs: &HashMap<Value, Inst>, next: Value, carried: Value) -> Option<i64> {
        let data = k.inst(*defs.get(&next)?);
        let is_carried = |v: &Value| without_hint(k, defs, *v) == carried;
        let mut by = match (&data.op, &data.args[..]) {
            (Op::PtrAdd | Op::Binary(BinaryOp::Add), [from, by]) if is_carried(from) => *by,
            (Op::Binary(BinaryOp::Add), [by, from]) if is_carried(from) => *by,
            _ => return None,
        };
        while let Some(data) = defs.get(&by).map(|i| k.inst(*i)) {
            match (&data.op, &data.args[..]) {
                (Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Cast(Elem::I64), [of]) => by = *of,
                _ if k.ty(by).is_scalar() => return Some(1),
                _ => return None,
            }
        }
        let uniform = self.forms.get(&by).is_some_and(Affine::is_uniform);
        match k.ty(by).is_scalar() {
            true => Some(self.divisor(by)),
            false => uniform.then(|| self.forms.get(&by).map_or(1, |form| self.form_divisor(form))),
        }
    }
    /// `d` where `next` is `carried + d`: a chain of additions of uniform constants.
    fn increment(&self, k: &BlockProgram, defs: &HashMap<Value, Inst>, mut next: Value, carried: Value) -> Option<i64> {
        let mut d: i64 = 0;
        for _ in 0..16 {
            next = without_hint(k, defs, next);
            if next == carried {
                return Some(d);
            }
            let data = k.inst(*defs.get(&next)?);
            let [a, b] = data.args[..] else { return None };
            let constant = |v| self.uniform_constant(k, defs, v);
            let (rest, by) = match data.op {
                Op::PtrAdd | Op::Binary(BinaryOp::Add) => match constant(b) {
                    Some(c) => (a, c),
                    None if data.op != Op::PtrAdd => (b, constant(a)?),
                    None => return None,
                },
                Op::Binary(BinaryOp::Sub) => (a, constant(b)?.checked_neg()?),
                _ => return None,
            };
            (next, d) = (rest, d.checked_add(by)?);
        }
        None
    }
    /// The constant that all elements of a value have; values of the loop's own body are looked up in `defs`.
    fn uniform_constant(&self, k: &BlockProgram, defs: &HashMap<Value, Inst>, mut v: Value) -> Option<i64> {
        for _ in 0..8 {
            if let Some(f) = self.forms.get(&v) {
                return f.as_constant();
            }
            let data = k.inst(*defs.get(&v)?);
            match (&data.op, &data.args[..]) {
                (Op::Const(Const::Int(c)), _) => return Some(*c),
                (Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Cast(Elem::I64), [a]) => v = *a,
                _ => return None,
            }
        }
        None
    }
}

/// The value of which a `multiple_of` among these definitions says something.
pub(crate) fn without_hint(k: &BlockProgram, defs: &HashMap<Value, Inst>, mut v: Value) -> Value {
    while let Some(data) = defs.get(&v).map(|i| k.inst(*i)).filter(|d| matches!(d.op, Op::MultipleOf(_))) {
        v = data.args[0];
    }
    v
}
