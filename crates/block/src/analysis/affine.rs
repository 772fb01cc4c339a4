//! Affine forms of integers and pointers over block coordinates, and masks as conjunctions of affine bounds.
//!
//! Forms are over the integers: index arithmetic that reaches a pointer or a bound is taken not to wrap (an address from a
//! wrapped index would be outside its buffer). Arithmetic on anything else is not looked at.
use crate::{BinaryOp, CmpOp, Const, Elem, Inst, InstData, Kernel, Op, Region, Type, Value};
use std::collections::HashMap;

/// Value of the element at coordinates x: `root + Σ k·scalar + constant + Σ coeffs[a]·x[a]`; for pointers in elements.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Affine {
    /// The scalar pointer it starts from; `None` for integers.
    pub root: Option<Value>,
    /// Scalar integers that have no form of their own, with nonzero factors, by value number.
    pub scalars: Vec<(Value, i64)>,
    pub constant: i64,
    /// One per axis of the block; 0 on axes of size 1.
    pub coeffs: Vec<i64>,
}

impl Affine {
    pub fn constant(c: i64, rank: usize) -> Affine {
        Affine { constant: c, coeffs: vec![0; rank], ..Affine::default() }
    }
    /// Just this scalar (integer).
    pub fn scalar(v: Value) -> Affine {
        Affine { scalars: vec![(v, 1)], ..Affine::default() }
    }
    /// The same for all elements of the block.
    pub fn is_uniform(&self) -> bool {
        self.coeffs.iter().all(|c| *c == 0)
    }
    pub fn as_constant(&self) -> Option<i64> {
        (self.root.is_none() && self.scalars.is_empty() && self.is_uniform()).then_some(self.constant)
    }
    /// The form without its coordinates, as a scalar.
    pub fn base(&self) -> Affine {
        Affine { coeffs: vec![], ..self.clone() }
    }
    /// `self + k·other`; `None` if numbers overflow, ranks differ or both have roots. Equal roots cancel when subtracted.
    pub fn add_scaled(&self, other: &Affine, k: i64) -> Option<Affine> {
        let root = match (self.root, other.root, k) {
            (r, None, _) => r,
            (None, r, 1) => r,
            (Some(a), Some(b), -1) if a == b => None,
            _ => return None,
        };
        if self.coeffs.len() != other.coeffs.len() {
            return None;
        }
        let fma = |a: i64, b: i64| b.checked_mul(k).and_then(|b| a.checked_add(b));
        let coeffs = self.coeffs.iter().zip(&other.coeffs).map(|(a, b)| fma(*a, *b)).collect::<Option<_>>()?;
        let mut scalars = self.scalars.clone();
        for &(v, c) in &other.scalars {
            match scalars.binary_search_by_key(&v, |s| s.0) {
                Ok(i) => scalars[i].1 = fma(scalars[i].1, c)?,
                Err(i) => scalars.insert(i, (v, c.checked_mul(k)?)),
            }
        }
        scalars.retain(|s| s.1 != 0);
        Some(Affine { root, scalars, constant: fma(self.constant, other.constant)?, coeffs })
    }
    /// `k·self` for an integer form.
    pub fn scaled(&self, k: i64) -> Option<Affine> {
        match self.root {
            Some(_) => None,
            None => Affine::constant(0, self.coeffs.len()).add_scaled(self, k),
        }
    }
    fn with_coeffs(&self, coeffs: Vec<i64>) -> Affine {
        Affine { coeffs, ..self.clone() }
    }
    /// The form of the value seen through an op that only moves elements (splat, broadcast, expand_dims, permute, reshape).
    fn moved(&self, op: &Op, from: &[usize], to: &[usize]) -> Option<Affine> {
        let c = &self.coeffs;
        if c.len() != from.len() {
            return None;
        }
        Some(self.with_coeffs(match op {
            Op::Splat => vec![0; to.len()],
            Op::Broadcast | Op::ConvertLayout => c.clone(),
            Op::ExpandDims(axis) => {
                let mut c = c.clone();
                c.insert((*axis as usize).min(c.len()), 0);
                c
            }
            Op::Permute(perm) => perm.iter().map(|p| c.get(*p as usize).copied()).collect::<Option<_>>()?,
            Op::Reshape => reshaped(c, from, to)?,
            _ => return None,
        }))
    }
}

/// Coefficients after a row-major reshape: every axis is its bits (sizes are powers of two), and the bits that come together
/// in a new axis must again double from one to the next.
fn reshaped(coeffs: &[i64], from: &[usize], to: &[usize]) -> Option<Vec<i64>> {
    let mut bits = vec![];
    for (c, n) in coeffs.iter().zip(from).rev() {
        for b in 0..n.trailing_zeros() {
            bits.push(c.checked_mul(1 << b)?);
        }
    }
    let mut bits = bits.into_iter();
    let mut out = vec![];
    for n in to.iter().rev() {
        let axis: Vec<i64> = bits.by_ref().take(n.trailing_zeros() as usize).collect();
        if axis.windows(2).any(|w| w[0].checked_mul(2) != Some(w[1])) {
            return None;
        }
        out.push(axis.first().copied().unwrap_or(0));
    }
    out.reverse();
    Some(out)
}

/// A conjunction: every form compared with zero.
pub type Bounds = Vec<(Affine, CmpOp)>;

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Def {
    Param,
    /// Result `n` of an instruction.
    Result(Inst, usize),
    /// Parameter `n` of the region of a `for`.
    Carried(Inst, usize),
}

/// What is known about a kernel's values.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    forms: HashMap<Value, Affine>,
    bounds: HashMap<Value, Bounds>,
    /// Power-of-two divisors of scalars that stand in forms.
    divisors: HashMap<Value, i64>,
    /// Least and largest value of scalars that stand in forms.
    ranges: HashMap<Value, (i64, i64)>,
    pub(super) types: HashMap<Value, Type>,
    /// Alignment in bytes of the scalar pointers that forms start from.
    pub(super) aligns: HashMap<Value, usize>,
    /// Blocks without a form.
    pub(super) axes: HashMap<Value, Vec<super::Axis>>,
    defs: HashMap<Value, Def>,
}

/// Divisor of zero: larger than any alignment asked for.
const ANY: i64 = 1 << 40;

pub(super) fn power_of_two_in(n: i64) -> i64 {
    if n == 0 { ANY } else { (1 << n.trailing_zeros().min(40)) as i64 }
}

/// Analyses a verified kernel.
pub fn analyse(k: &Kernel) -> Analysis {
    let mut a = Analysis::default();
    for p in &k.params {
        a.define(k, p.value, Def::Param);
        match k.ty(p.value) {
            Type::Ptr { .. } => {
                a.aligns.insert(p.value, p.align);
                a.forms.insert(p.value, Affine { root: Some(p.value), ..Affine::default() });
            }
            ty => a.opaque(p.value, &ty.clone()),
        }
    }
    a.region(k, &k.body);
    a
}

impl Analysis {
    /// Form of an integer or pointer (block). `None`: not affine, or not of such a type.
    pub fn affine(&self, v: Value) -> Option<&Affine> {
        self.forms.get(&v)
    }
    /// The mask as a conjunction of affine bounds (`form op 0`); an always-true mask has none.
    pub fn bounds(&self, mask: Value) -> Option<&Bounds> {
        self.bounds.get(&mask)
    }
    /// Largest known power of two that divides a scalar (2^40 for zero); 1 if nothing is known.
    pub fn divisor(&self, v: Value) -> i64 {
        match self.forms.get(&v) {
            Some(f) if f.root.is_none() && f.scalars != [(v, 1)] => self.form_divisor(f),
            _ => self.divisors.get(&v).copied().unwrap_or(1),
        }
    }
    /// Largest known power of two that divides the form without its coordinates and its root.
    pub fn form_divisor(&self, f: &Affine) -> i64 {
        let scalars = f.scalars.iter().map(|(v, c)| {
            let d = self.divisors.get(v).copied().unwrap_or(1);
            power_of_two_in(*c).saturating_mul(d).min(ANY)
        });
        scalars.fold(power_of_two_in(f.constant), i64::min)
    }
    /// Least and largest value of an integer form on a block of this shape, if its scalars are bounded.
    pub fn range(&self, f: &Affine, shape: &[usize]) -> Option<(i64, i64)> {
        if f.root.is_some() {
            return None;
        }
        let (mut lo, mut hi) = (f.constant, f.constant);
        let scalars = f.scalars.iter().map(|(v, c)| self.ranges.get(v).map(|r| (*c, r.0, r.1)));
        let axes = f.coeffs.iter().zip(shape).map(|(c, n)| Some((*c, 0, *n as i64 - 1)));
        for term in scalars.chain(axes) {
            let (c, l, h) = term?;
            let (l, h) = (c.checked_mul(l)?, c.checked_mul(h)?);
            lo = lo.checked_add(l.min(h))?;
            hi = hi.checked_add(l.max(h))?;
        }
        Some((lo, hi))
    }
    /// Where the value comes from.
    pub fn def(&self, v: Value) -> Option<Def> {
        self.defs.get(&v).copied()
    }

    fn define(&mut self, k: &Kernel, v: Value, def: Def) {
        self.defs.insert(v, def);
        self.types.insert(v, k.ty(v).clone());
    }
    /// A scalar without a form stands for itself.
    fn opaque(&mut self, v: Value, ty: &Type) {
        match ty {
            Type::Block { elem, shape } if elem.is_int() && shape.is_empty() => {
                self.forms.insert(v, Affine::scalar(v));
            }
            Type::Ptr { elem, shape } if shape.is_empty() => {
                self.aligns.insert(v, elem.bytes());
                self.forms.insert(v, Affine { root: Some(v), ..Affine::default() });
            }
            _ => {}
        }
    }
    fn region(&mut self, k: &Kernel, r: &Region) {
        for &i in &r.insts {
            let data = k.inst(i);
            for (n, v) in data.results.iter().enumerate() {
                self.define(k, *v, Def::Result(i, n));
            }
            match &data.op {
                Op::For => self.for_loop(k, i, data),
                _ => {
                    for r in &data.regions {
                        self.region(k, r);
                    }
                    if let [v] = data.results[..] {
                        self.simple(k, data, v);
                    }
                }
            }
            for &v in &data.results {
                if !self.forms.contains_key(&v) {
                    self.opaque(v, k.ty(v));
                }
            }
        }
    }
    /// An instruction with one result and without regions.
    fn simple(&mut self, k: &Kernel, data: &InstData, v: Value) {
        let ty = k.ty(v);
        if let Type::Block { elem: Elem::Bool, .. } = ty {
            if let Some(b) = self.mask(k, data, ty) {
                self.bounds.insert(v, b);
            }
            return;
        }
        if let Some(mut f) = self.form(k, data, v) {
            f.coeffs.iter_mut().zip(ty.shape()).filter(|(_, n)| **n == 1).for_each(|(c, _)| *c = 0);
            if f.scalars != [(v, 1)] || f.constant != 0 {
                self.forms.insert(v, f);
                return;
            }
            self.forms.insert(v, f);
        }
        if ty.is_scalar() && ty.elem().is_some_and(Elem::is_int) && matches!(ty, Type::Block { .. }) {
            let d = self.opaque_divisor(data);
            self.divisors.insert(v, d);
            if let Some(range) = self.opaque_range(data) {
                self.ranges.insert(v, range);
            }
        } else if let Some(axes) = self.derive_axes(k, data, v) {
            self.axes.insert(v, axes);
        }
    }
    fn form(&mut self, k: &Kernel, data: &InstData, v: Value) -> Option<Affine> {
        let ty = k.ty(v);
        let rank = ty.shape().len();
        if let Type::Block { elem, .. } = ty
            && !elem.is_int()
        {
            return None;
        }
        let arg = |n: usize| data.args.get(n).and_then(|a| self.forms.get(a));
        match &data.op {
            Op::Const(Const::Int(c)) => Some(Affine::constant(*c, rank)),
            Op::ProgramId(axis) => {
                let n = *k.grid.get(*axis as usize)? as i64;
                if n == 1 {
                    return Some(Affine::constant(0, 0));
                }
                self.ranges.insert(v, (0, (n - 1).max(0)));
                Some(Affine::scalar(v))
            }
            Op::NumPrograms(axis) => Some(Affine::constant(*k.grid.get(*axis as usize)? as i64, 0)),
            Op::Iota => Some(Affine { coeffs: vec![1], ..Affine::default() }),
            Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Permute(_) | Op::Reshape | Op::ConvertLayout => {
                arg(0)?.moved(&data.op, k.ty(data.args[0]).shape(), ty.shape())
            }
            Op::Binary(op) => self.binary(*op, arg(0)?, arg(1)?, ty.shape()),
            Op::Unary(crate::UnaryOp::Neg) => arg(0)?.scaled(-1),
            Op::Cast(Elem::I64) if k.ty(data.args[0]).elem() == Some(Elem::I32) => arg(0).cloned(),
            Op::Cast(Elem::I32) if k.ty(data.args[0]).elem() == Some(Elem::I64) => {
                let f = arg(0)?;
                let (lo, hi) = self.range(f, ty.shape())?;
                (lo >= i64::from(i32::MIN) && hi <= i64::from(i32::MAX)).then(|| f.clone())
            }
            Op::PtrAdd => arg(0)?.add_scaled(arg(1)?, 1),
            _ => None,
        }
    }
    fn binary(&self, op: BinaryOp, a: &Affine, b: &Affine, shape: &[usize]) -> Option<Affine> {
        match op {
            BinaryOp::Add => a.add_scaled(b, 1),
            BinaryOp::Sub => a.add_scaled(b, -1),
            BinaryOp::Mul => match (a.as_constant(), b.as_constant()) {
                (_, Some(c)) => a.scaled(c),
                (Some(c), _) => b.scaled(c),
                _ => None,
            },
            BinaryOp::Shl => match b.as_constant() {
                Some(c @ 0..=31) => a.scaled(1 << c),
                _ => None,
            },
            BinaryOp::Div | BinaryOp::Rem => {
                let (quotient, rest) = self.divide(a, b.as_constant()?, shape)?;
                Some(if op == BinaryOp::Div { quotient } else { rest })
            }
            _ => None,
        }
    }
    /// Quotient and remainder by `c`, if the form is `c·q + r` with 0 ≤ r < c and q ≥ 0, each affine.
    fn divide(&self, f: &Affine, c: i64, shape: &[usize]) -> Option<(Affine, Affine)> {
        if c <= 0 || f.root.is_some() {
            return None;
        }
        let (mut q, mut r) = (f.clone(), f.clone());
        for (q, r) in q.coeffs.iter_mut().zip(&mut r.coeffs).chain([(&mut q.constant, &mut r.constant)]) {
            if *q % c == 0 { (*q, *r) = (*q / c, 0) } else { *q = 0 }
        }
        // A constant splits into a multiple and a rest.
        (q.constant, r.constant) = (f.constant.div_euclid(c), f.constant.rem_euclid(c));
        q.scalars = f.scalars.iter().filter(|s| s.1 % c == 0).map(|s| (s.0, s.1 / c)).collect();
        r.scalars.retain(|s| s.1 % c != 0);
        let (lo, hi) = self.range(&r, shape)?;
        (lo >= 0 && hi < c && self.range(&q, shape)?.0 >= 0).then_some((q, r))
    }
    fn mask(&self, k: &Kernel, data: &InstData, ty: &Type) -> Option<Bounds> {
        let arg = |n: usize| data.args.get(n).and_then(|a| self.bounds.get(a));
        match &data.op {
            Op::Const(Const::Bool(true)) => Some(vec![]),
            Op::Cmp(op) => {
                let [a, b] = data.args[..] else { return None };
                let diff = self.forms.get(&a)?.add_scaled(self.forms.get(&b)?, -1)?;
                // Pointers compare as addresses, which have no place here.
                k.ty(a).elem().is_some_and(Elem::is_int).then(|| vec![(diff, *op)])
            }
            Op::Binary(BinaryOp::And) => {
                let mut all = arg(0)?.clone();
                for b in arg(1)? {
                    if !all.contains(b) {
                        all.push(b.clone());
                    }
                }
                Some(all)
            }
            op => {
                let from = k.ty(*data.args.first()?).shape();
                arg(0)?.iter().map(|(f, c)| Some((f.moved(op, from, ty.shape())?, *c))).collect()
            }
        }
    }
    fn opaque_divisor(&self, data: &InstData) -> i64 {
        let arg = |n: usize| data.args.get(n).map_or(1, |v| self.divisor(*v));
        match &data.op {
            Op::Binary(BinaryOp::Mul) => arg(0).saturating_mul(arg(1)).min(ANY),
            Op::Binary(BinaryOp::And) => arg(0).max(arg(1)),
            Op::Binary(
                BinaryOp::Add
                | BinaryOp::Sub
                | BinaryOp::Min
                | BinaryOp::Max
                | BinaryOp::Or
                | BinaryOp::Xor
                | BinaryOp::Rem,
            ) => arg(0).min(arg(1)),
            Op::Select => arg(1).min(arg(2)),
            Op::Cast(to) if to.is_int() && *to != Elem::U8 => arg(0),
            Op::Unary(crate::UnaryOp::Neg) => arg(0),
            _ => 1,
        }
    }
    /// Range of a scalar without a form of its own, from those of its operands.
    fn opaque_range(&self, data: &InstData) -> Option<(i64, i64)> {
        let Op::Binary(op) = data.op else { return None };
        let arg = |n: usize| self.range(self.forms.get(&data.args[n])?, &[]);
        let ((al, ah), (bl, bh)) = (arg(0)?, arg(1)?);
        match op {
            BinaryOp::Div if al >= 0 && bl > 0 => Some((al / bh, ah / bl)),
            BinaryOp::Rem if al >= 0 && bl > 0 => Some((0, ah.min(bh - 1))),
            BinaryOp::Min => Some((al.min(bl), ah.min(bh))),
            BinaryOp::Max => Some((al.max(bl), ah.max(bh))),
            _ => None,
        }
    }
    fn for_loop(&mut self, k: &Kernel, i: Inst, data: &InstData) {
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
            let last = (h - 1).max(l);
            // Steps from a constant on do not reach every number.
            let step = number(&flo).and(number(&fstep)).filter(|s| *s > 0).unwrap_or(1);
            self.ranges.insert(*index, (l, l + (last - l) / step * step));
        }
        self.divisors.insert(*index, self.divisor(*lo).min(self.divisor(*step)));
        self.forms.insert(*index, Affine::scalar(*index));

        let defs = definitions(k, region);
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
            if let (Some(init), Some(d)) = (init.get(n), per_trip) {
                let axes = self.carried_axes(*init, d);
                self.axes.insert(*v, axes.clone());
                data.results.get(n).map(|r| self.axes.insert(*r, axes));
            }
            let (Some(form), Some(d)) = (form, per_trip) else {
                self.opaque(*v, k.ty(*v));
                continue;
            };
            // The k-th trip has k = (index - lo) / step.
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
    /// `d` where `next` is `carried + d`: a chain of additions of uniform constants.
    fn increment(&self, k: &Kernel, defs: &HashMap<Value, Inst>, mut next: Value, carried: Value) -> Option<i64> {
        let mut d: i64 = 0;
        for _ in 0..16 {
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
    /// The number that a value is in all its elements; values of the loop's own body are looked up in `defs`.
    fn uniform_constant(&self, k: &Kernel, defs: &HashMap<Value, Inst>, mut v: Value) -> Option<i64> {
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

/// Instructions of a region's own list, by result.
fn definitions(k: &Kernel, r: &Region) -> HashMap<Value, Inst> {
    r.insts.iter().flat_map(|i| k.inst(*i).results.iter().map(|v| (*v, *i))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Builder;

    /// `out[pid*1024 + i]` under `pid*1024 + i < 1000000`.
    #[test]
    fn masked_vector() {
        let mut b = Builder::new("k", [977, 1, 1], 4);
        let x = b.param("x", Elem::F32, true);
        let pid = b.program_id(0);
        let n = b.i32(1024);
        let start = b.binary(BinaryOp::Mul, pid, n);
        let i = b.iota(1024);
        let at = b.binary(BinaryOp::Add, start, i);
        let limit = b.i32(1_000_000);
        let mask = b.cmp(CmpOp::Lt, at, limit);
        let p = b.ptr_add(x, at);
        let v = b.load(p, Some(mask), None);
        b.store(p, v, Some(mask));
        let a = analyse(&b.finish());
        let form = Affine { root: Some(x), scalars: vec![(pid, 1024)], constant: 0, coeffs: vec![1] };
        assert_eq!(a.affine(p), Some(&form));
        assert_eq!(a.divisor(start), 1024);
        assert_eq!(a.alignment(p, 0), (1024, 16));
        let tail = Affine { root: None, scalars: vec![(pid, 1024)], constant: -1_000_000, coeffs: vec![1] };
        assert_eq!(a.bounds(mask), Some(&vec![(tail, CmpOp::Lt)]));
    }

    /// A carried pointer tile that moves 32 elements a trip, with the index moving by 32 or by 1.
    #[test]
    fn carried_pointers() {
        for step in [32, 1] {
            let mut b = Builder::new("k", [4, 1, 1], 4);
            let x = b.param("x", Elem::Bf16, true);
            let (rows, cols) = (b.iota(64), b.iota(32));
            let (rows, cols) = (b.expand_dims(rows, 1), b.expand_dims(cols, 0));
            let pitch = b.i32(256);
            let rows = b.binary(BinaryOp::Mul, rows, pitch);
            let at = b.binary(BinaryOp::Add, rows, cols);
            let p = b.ptr_add(x, at);
            let (lo, hi, s) = (b.i32(0), b.i32(8 * step), b.i32(step));
            let mut seen = (x, x);
            let last = b.for_loop([lo, hi, s], &[p], |b, index, c| {
                seen = (index, c[0]);
                let by = b.i32(32);
                vec![b.ptr_add(c[0], by)]
            });
            let a = analyse(&b.finish());
            let inside =
                Affine { root: Some(x), scalars: vec![(seen.0, 32 / step)], constant: 0, coeffs: vec![256, 1] };
            assert_eq!(a.affine(seen.1), Some(&inside));
            assert_eq!(a.alignment(seen.1, 1), (32, 16));
            assert_eq!(a.alignment(seen.1, 0).0, 1);
            assert_eq!(a.affine(last[0]).map(|f| f.constant), Some(256));
        }
    }

    #[test]
    fn reshape_and_division() {
        assert_eq!(reshaped(&[32, 1], &[4, 32], &[128]), Some(vec![1]));
        assert_eq!(reshaped(&[64, 1], &[4, 32], &[128]), None);
        assert_eq!(reshaped(&[3], &[16], &[2, 8]), Some(vec![24, 3]));
        let mut b = Builder::new("k", [8, 1, 1], 4);
        let pid = b.program_id(0);
        let c = b.i32(128);
        let start = b.binary(BinaryOp::Mul, pid, c);
        let i = b.iota(64);
        let at = b.binary(BinaryOp::Add, start, i);
        let (q, r) = (b.binary(BinaryOp::Div, at, c), b.binary(BinaryOp::Rem, at, c));
        let a = analyse(&b.finish());
        assert_eq!(a.affine(q), Some(&Affine { scalars: vec![(pid, 1)], coeffs: vec![0], ..Affine::default() }));
        assert_eq!(a.affine(r), Some(&Affine { coeffs: vec![1], ..Affine::default() }));
    }
}
