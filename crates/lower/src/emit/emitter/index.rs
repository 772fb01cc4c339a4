//! Index expressions, bounds and addresses: what is the same for all lanes is kept apart from what differs.
use crate::emit::emitter::{Emitter, Lanes};
use crate::emit::row_run::Run;
use crate::scalar::dag::Guard;
use crate::scalar::expr::{Atom, Expr};
use kiln_block::{BinaryOp as B, Builder, CmpOp, Const, Type, Value};
use kiln_plan::exec::Slot;

/// An index expression as a uniform and a varying part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Split {
    uniform: Option<Value>,
    constant: i64,
    varying: Option<Value>,
}

impl Emitter<'_> {
    pub fn address(&mut self, b: &mut Builder, slot: Slot, at: &Expr) -> Value {
        // Every slot of the program has a parameter before emission.
        let p = self.params.get(&slot).copied();
        let p = p.unwrap_or_else(|| b.broken(format!("buffer {slot:?} is not a parameter")));
        let split = self.split(b, at);
        let p = match self.uniform(b, split) {
            Some(u) => b.ptr_add(p, u),
            None => p,
        };
        match split.varying {
            Some(v) => b.ptr_add(p, v),
            None => p,
        }
    }
    /// Addresses of a run, at an offset of `more` elements.
    pub fn run_address(&mut self, b: &mut Builder, p: Value, run: &Run, more: i64) -> Value {
        let mut p = p;
        if let Some(base) = run.base {
            p = b.ptr_add(p, base);
        }
        if more != 0 {
            let more = self.int(b, more);
            p = b.ptr_add(p, more);
        }
        b.ptr_add(p, run.lane)
    }
    /// The conjunction of `mask` and all guards.
    pub fn guard(&mut self, b: &mut Builder, guards: &[Guard], mut mask: Option<Value>) -> Option<Value> {
        for g in guards {
            let (min, max) = g.expr.range();
            // The range of an index read from memory is what its guard enforces, so it must not be used to drop the
            // guard.
            let mut read = false;
            g.expr.nodes(&mut |_| read = true);
            let v = self.expr(b, &g.expr);
            for (op, bound, needed) in [(CmpOp::Ge, g.lo, min < g.lo || read), (CmpOp::Lt, g.hi, max >= g.hi || read)] {
                if !needed || bound == i64::MIN || bound == i64::MAX {
                    continue;
                }
                let bound = self.int(b, bound);
                let c = b.cmp(op, v, bound);
                mask = Some(match mask {
                    Some(m) => b.binary(B::And, m, c),
                    None => c,
                });
            }
        }
        mask
    }

    /// An index expression as one value of the index type.
    pub fn expr(&mut self, b: &mut Builder, e: &Expr) -> Value {
        let s = self.split(b, e);
        match (self.uniform(b, s), s.varying) {
            (Some(u), Some(v)) => b.binary(B::Add, u, v),
            (Some(u), None) => u,
            (None, Some(v)) => v,
            (None, None) => self.int(b, 0),
        }
    }
    fn split(&mut self, b: &mut Builder, e: &Expr) -> Split {
        if let Some(s) = self.known(e) {
            return s;
        }
        if let Some((id, by)) = self.skew.as_ref().filter(|s| e.uses(s.0)) {
            let straight = e.substitute(&|c| (c == *id).then(|| by.clone()));
            return self.split(b, &straight);
        }
        let in_lanes = |id| self.coords.get(&id).is_some_and(|l| l.lane.is_some());
        // Not for unaligned rows: their quotients say where they are aligned.
        if let Some(by_remainder) = e.rounded_down(in_lanes).filter(|_| self.skew.is_none()) {
            let s = self.split(b, &by_remainder);
            return self.keep(e, s);
        }
        let mut uniform: Vec<(Value, i64)> = vec![];
        let mut varying: Vec<(Value, i64)> = vec![];
        for (a, c) in &e.terms {
            match a {
                Atom::Coord { id, .. } => {
                    let Some(lanes) = self.coords.get(id).copied() else {
                        b.broken(format!("coordinate {id} is neither in the tile nor in the grid"));
                        continue;
                    };
                    uniform.extend(lanes.base.map(|v| (v, *c)));
                    varying.extend(lanes.lane.map(|v| (v, *c)));
                }
                Atom::Div(x, k) | Atom::Mod(x, k) => {
                    let quotient = matches!(a, Atom::Div(..));
                    if let Some(lanes) = self.in_block(x, *k) {
                        let base = lanes.base.filter(|_| quotient || *k != lanes.block as i64);
                        let k = self.int(b, *k);
                        uniform.extend(base.map(|v| (b.binary(if quotient { B::Div } else { B::Rem }, v, k), *c)));
                        varying.extend(lanes.lane.filter(|_| !quotient).map(|lane| (lane, *c)));
                        continue;
                    }
                    // Quotients of expressions round down, those of block programs toward zero: a dividend that may be
                    // negative is first made positive by adding a multiple of the divisor.
                    let lift = match x.range().0 {
                        lo if lo < 0 && lo > -(1 << 40) => -lo.div_euclid(*k),
                        _ => 0,
                    };
                    let x = self.expr(b, &x.as_ref().clone().shift(lift * k));
                    let k = self.int(b, *k);
                    let mut v = b.binary(if quotient { B::Div } else { B::Rem }, x, k);
                    if quotient && lift > 0 {
                        let lift = self.int(b, lift);
                        v = b.binary(B::Sub, v, lift);
                    }
                    if b.ty(v).is_scalar() { uniform.push((v, *c)) } else { varying.push((v, *c)) }
                }
                Atom::Value { node, .. } => {
                    let v = self.value(b, *node);
                    let v = b.cast(v, self.index);
                    if b.ty(v).is_scalar() { uniform.push((v, *c)) } else { varying.push((v, *c)) }
                }
            }
        }
        varying.sort_by_key(|t| b.ty(t.0).count());
        let s = Split { uniform: self.sum(b, uniform), constant: e.constant, varying: self.sum(b, varying) };
        self.keep(e, s)
    }
    /// The lanes of a coordinate whose blocks lie within multiples of `k`: quotients by `k` are the same for all lanes.
    fn in_block(&self, x: &Expr, k: i64) -> Option<Lanes> {
        let lanes = *self.coords.get(&x.as_coord()?)?;
        (lanes.block > 0 && k % lanes.block as i64 == 0).then_some(lanes)
    }
    fn keep(&mut self, e: &Expr, s: Split) -> Split {
        if let Some(scope) = self.scopes.last_mut() {
            scope.exprs.insert(e.clone(), s);
        }
        s
    }
    fn sum(&mut self, b: &mut Builder, terms: Vec<(Value, i64)>) -> Option<Value> {
        let mut total: Option<Value> = None;
        for (v, c) in terms {
            let v = if c == 1 {
                v
            } else {
                let c = self.int(b, c);
                b.binary(B::Mul, v, c)
            };
            total = Some(match total {
                Some(t) => b.binary(B::Add, t, v),
                None => v,
            });
        }
        total
    }
    fn known(&self, e: &Expr) -> Option<Split> {
        self.scopes.iter().rev().find_map(|s| s.exprs.get(e).copied())
    }
    fn uniform(&mut self, b: &mut Builder, s: Split) -> Option<Value> {
        match (s.uniform, s.constant) {
            (u, 0) => u,
            (None, c) => Some(self.int(b, c)),
            (Some(u), c) => {
                let c = self.int(b, c);
                Some(b.binary(B::Add, u, c))
            }
        }
    }
    pub fn int(&self, b: &mut Builder, v: i64) -> Value {
        b.constant(Type::scalar(self.index), Const::Int(v))
    }
}
