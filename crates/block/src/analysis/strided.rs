//! Forms of integers and pointers whose strides are numbers of the launch.
//!
//! [`super::Affine`] has constant factors: `row * stride` is an unknown block to it. Here the factor of a coordinate is
//! a [`Polynomial`] over uniform scalars, so that `base + row * stride + column` has a pitch and a start along both
//! axes as it would have with constants. As there, forms are over the integers.
mod polynomial;

use crate::{BinaryOp, BlockProgram, CmpOp, Const, Elem, Inst, InstData, Op, Type, UnaryOp, Value};
pub use polynomial::{Monomial, Polynomial};
use std::collections::{HashMap, HashSet};

/// Value of the element at coordinates x: `root + base + Σ strides[a]·x[a]`; pointers count in elements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Strided {
    /// The scalar pointer it starts from; `None` for integers.
    pub root: Option<Value>,
    pub base: Polynomial,
    /// One per axis of the block; 0 on axes of size 1.
    pub strides: Vec<Polynomial>,
    /// Remainders that were taken for their dividends.
    pub wraps: Vec<Wrap>,
}

/// A remainder `position % size`, along one axis of a block: equal to the position where that is below the size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wrap {
    pub axis: usize,
    /// The position at coordinate 0; it grows by 1 along the axis.
    pub start: Polynomial,
    pub size: Polynomial,
}

/// A conjunction of comparisons of forms with zero.
pub type StridedBounds = Vec<(Strided, CmpOp)>;

/// Forms of a program's values, found as they are asked for.
pub struct StridedForms<'a> {
    k: &'a BlockProgram,
    made: HashMap<Value, Origin>,
    known: HashMap<Value, Option<Strided>>,
    /// How many values are being looked at, each for the one before it.
    depth: usize,
}

/// Most values between one and what its form is made from: the search is recursive.
const MAX_DEPTH: usize = 256;

#[derive(Clone, Copy)]
enum Origin {
    Result(Inst),
    /// Carried value `n` of a loop.
    Carried(Inst, usize),
    /// An index, or a parameter: a scalar without a form.
    Scalar,
}

impl Strided {
    fn uniform(base: Polynomial, rank: usize) -> Strided {
        Strided { base, strides: vec![Polynomial::default(); rank], ..Strided::default() }
    }
    /// Whether all elements of the block have the same value.
    pub fn is_uniform(&self) -> bool {
        self.strides.iter().all(Polynomial::is_zero)
    }
    /// `self + factor * other`; `None` if ranks differ, or roots do not cancel.
    pub fn add_scaled(&self, other: &Strided, factor: i64) -> Option<Strided> {
        let root = match (self.root, other.root, factor) {
            (root, None, _) => root,
            (None, root, 1) => root,
            (Some(a), Some(b), -1) if a == b => None,
            _ => return None,
        };
        if self.strides.len() != other.strides.len() {
            return None;
        }
        let strides = self.strides.iter().zip(&other.strides).map(|(a, b)| a.add_scaled(b, factor));
        let mut wraps = self.wraps.clone();
        wraps.extend(other.wraps.iter().filter(|w| !self.wraps.contains(w)).cloned());
        Some(Strided {
            root,
            base: self.base.add_scaled(&other.base, factor)?,
            strides: strides.collect::<Option<_>>()?,
            wraps,
        })
    }
    /// An integer form times a number that all elements share.
    fn times(&self, by: &Polynomial) -> Option<Strided> {
        if self.root.is_some() {
            return None;
        }
        let strides = self.strides.iter().map(|s| s.times(by)).collect::<Option<_>>()?;
        Some(Strided { root: None, base: self.base.times(by)?, strides, wraps: self.wraps.clone() })
    }
    /// The form of the result of an op that only moves elements.
    fn moved(&self, op: &Op, to: &[usize]) -> Option<Strided> {
        let mut form = self.clone();
        match op {
            Op::Splat => form.strides = vec![Polynomial::default(); to.len()],
            Op::Broadcast | Op::ConvertLayout => {}
            Op::ExpandDims(axis) => {
                let axis = (*axis as usize).min(form.strides.len());
                form.strides.insert(axis, Polynomial::default());
                form.wraps.iter_mut().filter(|w| w.axis >= axis).for_each(|w| w.axis += 1);
            }
            Op::Permute(perm) => {
                form.strides = perm.iter().map(|p| self.strides.get(*p as usize).cloned()).collect::<Option<_>>()?;
                for wrap in &mut form.wraps {
                    wrap.axis = perm.iter().position(|p| *p as usize == wrap.axis)?;
                }
            }
            _ => return None,
        }
        Some(form)
    }
}

impl<'a> StridedForms<'a> {
    pub fn of(k: &'a BlockProgram) -> StridedForms<'a> {
        let mut made = HashMap::new();
        k.walk(&mut |inst, data| {
            made.extend(data.results.iter().map(|v| (*v, Origin::Result(inst))));
            let params = data.regions.iter().flat_map(|r| &r.params);
            match data.op {
                Op::For => made.extend(params.enumerate().map(|(n, v)| match n.checked_sub(1) {
                    Some(n) => (*v, Origin::Carried(inst, n)),
                    None => (*v, Origin::Scalar),
                })),
                _ => made.extend(params.map(|v| (*v, Origin::Scalar))),
            }
        });
        StridedForms { k, made, known: HashMap::new(), depth: 0 }
    }
    /// Form of an integer or pointer (block); `None`: there is none, or the value is not of such a type.
    pub fn form(&mut self, v: Value) -> Option<Strided> {
        if let Some(known) = self.known.get(&v) {
            return known.clone();
        }
        // What is carried through a loop depends on itself: while it is looked for, it is unknown.
        self.known.insert(v, None);
        self.depth += 1;
        let found = if self.depth < MAX_DEPTH { self.found(v) } else { None };
        self.depth -= 1;
        let form = found.or_else(|| self.leaf(v));
        self.known.insert(v, form.clone());
        form
    }
    /// A mask as a conjunction of bounds (`form op 0`); an always-true mask has none.
    pub fn bounds(&mut self, mask: Value) -> Option<StridedBounds> {
        let Some(Origin::Result(inst)) = self.made.get(&mask).copied() else { return None };
        let data = self.k.inst(inst);
        match (&data.op, &data.args[..]) {
            (Op::Const(Const::Bool(true)), _) => Some(vec![]),
            (Op::Cmp(op), [a, b]) if is_signed(self.k.ty(*a)) => {
                let (a, b) = (self.form(*a)?, self.form(*b)?);
                Some(vec![(a.add_scaled(&b, -1)?, *op)])
            }
            (Op::Binary(BinaryOp::And), [a, b]) => {
                let (a, b) = (self.bounds(*a)?, self.bounds(*b)?);
                Some([a, b].concat())
            }
            (op, [a]) => {
                let shape = self.k.ty(mask).shape().to_vec();
                self.bounds(*a)?.iter().map(|(f, c)| Some((f.moved(op, &shape)?, *c))).collect()
            }
            _ => None,
        }
    }
    fn leaf(&self, v: Value) -> Option<Strided> {
        match self.k.ty(v) {
            ty if !ty.is_scalar() => None,
            Type::Ptr { .. } => Some(Strided { root: Some(v), ..Strided::default() }),
            ty if is_signed(ty) => Some(Strided::uniform(Polynomial::scalar(v), 0)),
            _ => None,
        }
    }
    fn found(&mut self, v: Value) -> Option<Strided> {
        let (k, shape) = (self.k, self.k.ty(v).shape());
        let data = match self.made.get(&v).copied() {
            None => {
                let equals = k.params.iter().find(|p| p.value == v)?.facts.equals?;
                return Some(Strided::uniform(Polynomial::constant(equals), 0));
            }
            Some(Origin::Scalar) => return None,
            Some(Origin::Carried(inst, n)) => return self.carried(inst, n),
            Some(Origin::Result(inst)) => k.inst(inst),
        };
        if !is_signed(k.ty(v)) && !matches!(k.ty(v), Type::Ptr { .. }) {
            return None;
        }
        let mut form = self.computed(data, shape)?;
        form.strides.iter_mut().zip(shape).filter(|(_, n)| **n == 1).for_each(|(s, _)| *s = Polynomial::default());
        Some(form)
    }
    fn computed(&mut self, data: &InstData, shape: &[usize]) -> Option<Strided> {
        match (&data.op, &data.args[..]) {
            (Op::Const(Const::Int(n)), _) => Some(Strided::uniform(Polynomial::constant(*n), shape.len())),
            (Op::Iota, _) => Some(Strided { strides: vec![Polynomial::constant(1)], ..Strided::default() }),
            (Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Permute(_) | Op::ConvertLayout, [a]) => {
                self.form(*a)?.moved(&data.op, shape)
            }
            // Of a number of which nothing is known, the divisor belongs to the result alone.
            (Op::MultipleOf(_), [a]) if self.is_unknown_number(*a) => None,
            (Op::MultipleOf(_), [a]) => self.form(*a),
            (Op::Cast(to), [a]) if to.is_signed() && is_no_wider(self.k.ty(*a), *to) => self.form(*a),
            (Op::Unary(UnaryOp::Neg), [a]) => self.form(*a)?.times(&Polynomial::constant(-1)),
            (Op::PtrAdd | Op::Binary(BinaryOp::Add), [a, b]) => self.form(*a)?.add_scaled(&self.form(*b)?, 1),
            (Op::Binary(BinaryOp::Sub), [a, b]) => self.form(*a)?.add_scaled(&self.form(*b)?, -1),
            (Op::Binary(BinaryOp::Mul), [a, b]) => {
                let (a, b) = (self.form(*a)?, self.form(*b)?);
                match (a.is_uniform(), b.is_uniform()) {
                    (_, true) if b.root.is_none() => a.times(&b.base),
                    (true, _) if a.root.is_none() => b.times(&a.base),
                    _ => None,
                }
            }
            (Op::Binary(BinaryOp::Shl), [a, b]) => {
                let by = self.form(*b)?.base.as_constant().filter(|n| (0..=31).contains(n))?;
                self.form(*a)?.times(&Polynomial::constant(1 << by))
            }
            (Op::Binary(BinaryOp::Rem), [a, b]) if shape.iter().any(|n| *n > 1) => {
                let (position, size) = (self.form(*a)?, self.form(*b)?);
                let mut moving = (0..shape.len()).filter(|a| !position.strides[*a].is_zero());
                let axis = moving.next().filter(|a| position.strides[*a].as_constant() == Some(1))?;
                let plain = moving.next().is_none() && size.is_uniform() && position.root.is_none();
                (plain && position.wraps.is_empty()).then(|| {
                    let wrap = Wrap { axis, start: position.base.clone(), size: size.base };
                    Strided { wraps: vec![wrap], ..position }
                })
            }
            _ => None,
        }
    }
    /// A carried value that grows by the same amount in each iteration.
    fn carried(&mut self, inst: Inst, n: usize) -> Option<Strided> {
        let data = self.k.inst(inst);
        let ([lo, _, step, init @ ..], region) = (&data.args[..], data.regions.first()?) else { return None };
        let (index, carried) = (*region.params.first()?, *region.params.get(1 + n)?);
        let next = *self.k.inst(*region.insts.last()?).args.get(n)?;
        let inside = self.inside(inst);
        let growth = self.growth(next, carried, &inside)?;
        let init = self.form(*init.get(n)?)?;
        if growth.is_zero() {
            return Some(init);
        }
        let lo = self.form(*lo)?.base;
        let step = self.form(*step)?.base.as_constant().filter(|s| *s > 0)?;
        let trip = Polynomial::scalar(index).add_scaled(&lo, -1)?;
        let grown = trip.times(&growth.divided(step)?)?;
        init.add_scaled(&Strided::uniform(grown, init.strides.len()), 1)
    }
    /// Whether a number is no parameter and is computed from none, as what is loaded.
    fn is_unknown_number(&mut self, v: Value) -> bool {
        let is_number = self.k.ty(v).is_scalar() && is_signed(self.k.ty(v));
        let is_own_term = |form: Strided| form.base.as_term().is_some_and(|(term, factor)| *term == [v] && factor == 1);
        is_number && self.made.contains_key(&v) && self.form(v).is_none_or(is_own_term)
    }
    /// What `next` is more than `carried`, if it is the same in each iteration and for all elements.
    fn growth(&mut self, mut next: Value, carried: Value, inside: &HashSet<Value>) -> Option<Polynomial> {
        let mut sum = Polynomial::default();
        // As many additions as an unrolled loop body may have.
        for _ in 0..16 {
            if next == carried {
                return Some(sum);
            }
            let Some(Origin::Result(made)) = self.made.get(&next).copied() else { return None };
            let data = self.k.inst(made);
            if let (Op::MultipleOf(_), [from]) = (&data.op, &data.args[..]) {
                next = *from;
                continue;
            }
            let [a, b] = data.args[..] else { return None };
            let mut by = |v: Value| {
                let form = self.form(v).filter(|f| f.is_uniform() && f.root.is_none() && f.wraps.is_empty())?;
                let varies = form.base.scalars().any(|s| inside.contains(&s));
                (!varies).then_some(form.base)
            };
            (next, sum) = match data.op {
                Op::PtrAdd => (a, sum.add_scaled(&by(b)?, 1)?),
                Op::Binary(BinaryOp::Add) => match by(b) {
                    Some(n) => (a, sum.add_scaled(&n, 1)?),
                    None => (b, sum.add_scaled(&by(a)?, 1)?),
                },
                Op::Binary(BinaryOp::Sub) => (a, sum.add_scaled(&by(b)?, -1)?),
                _ => return None,
            };
        }
        None
    }
    /// Values that a loop defines.
    fn inside(&self, inst: Inst) -> HashSet<Value> {
        let mut all = HashSet::new();
        for region in &self.k.inst(inst).regions {
            all.extend(&region.params);
            self.k.walk_region(region, &mut |_, d| {
                all.extend(&d.results);
                all.extend(d.regions.iter().flat_map(|r| &r.params));
            });
        }
        all
    }
}

/// Whether arithmetic on a type is meant over the integers: counts from 0 wrap on purpose, as in hashes.
fn is_signed(ty: &Type) -> bool {
    matches!(ty, Type::Block { elem: Elem::I8 | Elem::I16 | Elem::I32 | Elem::I64, .. })
}

fn is_no_wider(ty: &Type, to: Elem) -> bool {
    is_signed(ty) && ty.elem().is_some_and(|from| from.bytes() <= to.bytes())
}

#[cfg(test)]
mod tests;
