//! Where a load or store of a program is: index expressions of its tensor as values at its lanes.
//!
//! The position of an element in its tensor is one coordinate, affine over the lanes of the access. Its quotients and
//! remainders by sizes are affine too where all lanes are within those sizes, which is followed through all instances:
//! rows and columns are then sums of what the program has, as they were before it added them up.
use crate::scalar::expr::{Atom, Expr};
use kiln_block::analysis::{Affine, Bounds, Footprints};
use kiln_block::{BinaryOp, Builder, CmpOp, Const, Elem, Inst, Type, Value};

/// The coordinate of expressions: the position in row-major order.
pub const POSITION: u32 = 0;

/// An access of a program.
pub struct Point<'a> {
    pub footprints: &'a Footprints<'a>,
    pub access: Inst,
    /// Position of the element, along the axes of the access's block.
    pub position: Affine,
    /// i32, or i64 where positions need it.
    pub index: Elem,
}

impl Point<'_> {
    pub fn shape(&self) -> &[usize] {
        self.footprints.shape(self.access)
    }
    /// An expression as an affine form over the lanes; `None` if it has quotients that are none.
    pub fn form(&self, e: &Expr) -> Option<Affine> {
        let start = Affine::constant(e.constant, self.position.coeffs.len());
        e.terms.iter().try_fold(start, |sum, (atom, factor)| {
            let term = match atom {
                Atom::Coord { .. } => self.position.clone(),
                Atom::Div(x, by) => self.divided(&self.form(x)?, *by)?.quotient,
                Atom::Mod(x, by) => self.divided(&self.form(x)?, *by)?.remainder,
                Atom::Value { .. } => return None,
            };
            sum.add_scaled(&term, *factor)
        })
    }
    /// A form divided by a number, if what no factor of it divides stays below it.
    fn divided(&self, form: &Affine, by: i64) -> Option<Divided> {
        let (mut quotient, mut remainder) = (form.clone(), form.clone());
        quotient.constant = form.constant.div_euclid(by);
        remainder.constant = form.constant.rem_euclid(by);
        for (q, r) in quotient.coeffs.iter_mut().zip(&mut remainder.coeffs) {
            (*q, *r) = if *q % by == 0 { (*q / by, 0) } else { (0, *r) };
        }
        quotient.scalars.retain(|s| s.1 % by == 0);
        quotient.scalars.iter_mut().for_each(|s| s.1 /= by);
        remainder.scalars.retain(|s| s.1 % by != 0);
        let bounds = self.footprints.bounds(self.access)?;
        let fits = self.footprints.is_within(self.access, &bounds, &remainder, by);
        fits.then_some(Divided { quotient, remainder })
    }
    /// The value of an expression at each lane, at the smallest shape.
    pub fn value(&self, b: &mut Builder, e: &Expr) -> Value {
        if let Some(form) = self.form(e) {
            return self.of_form(b, &form).value(b, self.index);
        }
        let mut sum = self.number(b, e.constant);
        for (atom, factor) in &e.terms {
            let (x, by, op) = match atom {
                Atom::Div(x, by) => (x, *by, BinaryOp::Div),
                Atom::Mod(x, by) => (x, *by, BinaryOp::Rem),
                Atom::Coord { .. } | Atom::Value { .. } => return b.broken("an index that is read, in a launch"),
            };
            // Positions and what is computed of them are not negative, so that quotients round down.
            let (x, by) = (self.value(b, x), self.number(b, by));
            let term = b.binary(op, x, by);
            let factor = self.number(b, *factor);
            let term = b.binary(BinaryOp::Mul, term, factor);
            sum = b.binary(BinaryOp::Add, sum, term);
        }
        sum
    }
    /// A form in its uniform and its varying part.
    pub fn of_form(&self, b: &mut Builder, form: &Affine) -> Parts {
        let mut uniform = (form.constant != 0).then(|| self.number(b, form.constant));
        for (v, factor) in &form.scalars {
            let v = b.cast(*v, self.index);
            let term = self.scaled(b, v, *factor);
            uniform = Some(sum(b, uniform, term));
        }
        let (mut varying, rank) = (None, form.coeffs.len());
        for (axis, factor) in form.coeffs.iter().enumerate().filter(|(_, factor)| **factor != 0) {
            let mut lanes = b.iota(self.shape()[axis]);
            for other in (0..rank).filter(|other| *other != axis) {
                lanes = b.expand_dims(lanes, other);
            }
            let lanes = b.cast(lanes, self.index);
            let term = self.scaled(b, lanes, *factor);
            varying = Some(sum(b, varying, term));
        }
        Parts { uniform, varying }
    }
    /// Where an element of a form is read or written: a scalar pointer, and a block of offsets from it.
    pub fn address(&self, b: &mut Builder, pointer: Value, at: &Parts) -> Value {
        let start = at.uniform.map_or(pointer, |uniform| b.ptr_add(pointer, uniform));
        at.varying.map_or(start, |varying| b.ptr_add(start, varying))
    }
    /// The mask that keeps a form within `elements`: of the access's bounds those along the form's own axes, if they
    /// suffice; `None` if all lanes are inside.
    pub fn mask(&self, b: &mut Builder, form: Option<&Affine>, elements: usize) -> Option<Value> {
        let whole = self.footprints.mask(self.access);
        let (Some(form), Some(bounds)) = (form, self.footprints.bounds(self.access)) else { return whole };
        let along = |bound: &Affine| bound.coeffs.iter().zip(&form.coeffs).all(|(c, factor)| *c == 0 || *factor != 0);
        let needed: Bounds = bounds.iter().filter(|(bound, _)| along(bound)).cloned().collect();
        let is_enough = self.footprints.is_within(self.access, &needed, form, elements as i64);
        if needed.len() == bounds.len() || !is_enough {
            return whole;
        }
        let mut mask = None;
        for (bound, op) in &needed {
            let holds = self.compared(b, bound, *op);
            mask = Some(match mask {
                Some(mask) => b.binary(BinaryOp::And, mask, holds),
                None => holds,
            });
        }
        mask
    }
    fn compared(&self, b: &mut Builder, bound: &Affine, op: CmpOp) -> Value {
        // The constant stays on the other side, so that sums are of positions alone.
        let positions = Affine { constant: 0, ..bound.clone() };
        let left = self.of_form(b, &positions).value(b, self.index);
        let right = self.number(b, bound.constant.saturating_neg());
        b.cmp(op, left, right)
    }
    fn scaled(&self, b: &mut Builder, v: Value, factor: i64) -> Value {
        if factor == 1 {
            return v;
        }
        let factor = self.number(b, factor);
        b.binary(BinaryOp::Mul, v, factor)
    }
    fn number(&self, b: &mut Builder, n: i64) -> Value {
        b.constant(Type::scalar(self.index), Const::Int(n))
    }
}

struct Divided {
    quotient: Affine,
    remainder: Affine,
}

/// A form as values: the same on all lanes, and what differs.
pub struct Parts {
    uniform: Option<Value>,
    varying: Option<Value>,
}

impl Parts {
    /// One value of an offset that was computed as a whole.
    pub fn whole(v: Value) -> Parts {
        Parts { uniform: None, varying: Some(v) }
    }
    fn value(&self, b: &mut Builder, index: Elem) -> Value {
        match (self.uniform, self.varying) {
            (Some(uniform), Some(varying)) => b.binary(BinaryOp::Add, uniform, varying),
            (Some(v), None) | (None, Some(v)) => v,
            (None, None) => b.constant(Type::scalar(index), Const::Int(0)),
        }
    }
}

fn sum(b: &mut Builder, so_far: Option<Value>, term: Value) -> Value {
    so_far.map_or(term, |so_far| b.binary(BinaryOp::Add, so_far, term))
}
