//! Affine forms, masks and ranges of a kernel's values, in one walk over its regions.
use super::affine::Affine;
use crate::{BinaryOp, BlockProgram, CmpOp, Const, Elem, Grid, Inst, InstData, Op, Param, Region, Type, Value};
use std::collections::HashMap;

/// A conjunction of comparisons of forms with zero.
pub type Bounds = Vec<(Affine, CmpOp)>;

/// Where a value comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Def {
    Param,
    /// Result `n` of an instruction.
    Result(Inst, usize),
    /// Parameter `n` of the region of a loop.
    Carried(Inst, usize),
}

/// What is known about a kernel's values.
#[derive(Clone, Debug, Default)]
pub struct Analysis {
    pub(super) forms: HashMap<Value, Affine>,
    bounds: HashMap<Value, Bounds>,
    /// Power-of-two divisors of scalars that occur in forms.
    pub(super) divisors: HashMap<Value, i64>,
    /// Least and largest value of scalars that occur in forms.
    pub(super) ranges: HashMap<Value, (i64, i64)>,
    pub(super) types: HashMap<Value, Type>,
    /// Alignment in bytes of the scalar pointers that forms start from.
    pub(super) aligns: HashMap<Value, usize>,
    /// Blocks without a form.
    pub(super) axes: HashMap<Value, Vec<super::Axis>>,
    defs: HashMap<Value, Def>,
}

/// Integers that count from 0 and are often meant to wrap, as in hashes: their arithmetic has no forms.
fn wraps(elem: Elem) -> bool {
    matches!(elem, Elem::U16 | Elem::U32 | Elem::U64)
}

/// Divisor of zero: larger than any alignment needed.
pub(super) const ANY: i64 = 1 << 40;

pub(super) fn power_of_two_in(n: i64) -> i64 {
    if n == 0 { ANY } else { 1i64 << n.trailing_zeros().min(40) }
}

/// Analyses a verified kernel.
pub fn analyse(k: &BlockProgram) -> Analysis {
    let mut a = Analysis::default();
    for p in &k.params {
        a.define(k, p.value, Def::Param);
        match k.ty(p.value) {
            Type::Ptr { .. } => {
                a.aligns.insert(p.value, p.align);
                a.forms.insert(p.value, Affine { root: Some(p.value), ..Affine::default() });
            }
            ty => {
                let ty = ty.clone();
                a.scalar_param(p, &ty);
            }
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

    pub(super) fn define(&mut self, k: &BlockProgram, v: Value, def: Def) {
        self.defs.insert(v, def);
        self.types.insert(v, k.ty(v).clone());
    }
    /// A scalar parameter, with what is known about it.
    fn scalar_param(&mut self, p: &Param, ty: &Type) {
        let Some(limits) = ty.elem().and_then(Elem::int_range) else { return };
        match p.facts.equals {
            Some(n) => _ = self.forms.insert(p.value, Affine::constant(n, 0)),
            None => self.opaque(p.value, ty),
        }
        self.divisors.insert(p.value, power_of_two_in(p.facts.div));
        if p.facts.least.is_some() || p.facts.most.is_some() {
            self.ranges.insert(p.value, p.facts.range(limits));
        }
    }
    /// A scalar without a derivable form becomes a term of its own.
    pub(super) fn opaque(&mut self, v: Value, ty: &Type) {
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
    pub(super) fn region(&mut self, k: &BlockProgram, r: &Region) {
        for &i in &r.insts {
            let data = k.inst(i);
            for (n, v) in data.results.iter().enumerate() {
                self.define(k, *v, Def::Result(i, n));
            }
            match &data.op {
                Op::For => self.for_loop(k, i, data),
                _ => {
                    for (at, r) in data.regions.iter().enumerate() {
                        if let (Op::Roles(roles), [copy]) = (&data.op, &r.params[..]) {
                            self.define(k, *copy, Def::Param);
                            self.opaque(*copy, k.ty(*copy));
                            self.ranges.extend(roles.get(at).map(|role| (*copy, (0, role.copies as i64 - 1))));
                        }
                        if matches!(data.op, Op::While | Op::ReduceBy { .. } | Op::ScanBy { .. }) {
                            for (n, v) in r.params.iter().enumerate() {
                                self.define(k, *v, Def::Carried(i, n));
                                self.opaque(*v, k.ty(*v));
                            }
                        }
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
    fn simple(&mut self, k: &BlockProgram, data: &InstData, v: Value) {
        let ty = k.ty(v);
        if let Op::MultipleOf(divisors) = &data.op {
            return self.multiple_of(data, v, divisors);
        }
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
            if let Some(range) = self.opaque_range(k, data) {
                self.ranges.insert(v, range);
            }
        } else if let (Op::Bitcast, Type::Ptr { elem, shape }) = (&data.op, ty)
            && shape.is_empty()
        {
            // An address in bytes, or a pointer to elements of another type.
            let align = self.scalar_divisor(data.args[0]).max(elem.bytes() as i64);
            self.aligns.insert(v, align as usize);
            self.forms.insert(v, Affine { root: Some(v), ..Affine::default() });
        } else if let Some(axes) = self.derive_axes(k, data, v) {
            self.axes.insert(v, axes);
        }
    }
    fn form(&mut self, k: &BlockProgram, data: &InstData, v: Value) -> Option<Affine> {
        let ty = k.ty(v);
        let rank = ty.shape().len();
        if let Type::Block { elem, .. } = ty
            && (!elem.is_int() || wraps(*elem))
        {
            return None;
        }
        let arg = |n: usize| data.args.get(n).and_then(|a| self.forms.get(a));
        match &data.op {
            Op::Const(Const::Int(c)) => Some(Affine::constant(*c, rank)),
            Op::ProgramId(axis) => {
                let n = k.grid.along(*axis).map_or(Grid::MOST, |n| n as i64);
                if n == 1 {
                    return Some(Affine::constant(0, 0));
                }
                self.ranges.insert(v, (0, (n - 1).max(0)));
                Some(Affine::scalar(v))
            }
            Op::NumPrograms(axis) => match k.grid.along(*axis) {
                Some(n) => Some(Affine::constant(n as i64, 0)),
                None => {
                    self.ranges.insert(v, (1, Grid::MOST));
                    Some(Affine::scalar(v))
                }
            },
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
        // The constant splits into a multiple of `c` and a remainder.
        (q.constant, r.constant) = (f.constant.div_euclid(c), f.constant.rem_euclid(c));
        q.scalars = f.scalars.iter().filter(|s| s.1 % c == 0).map(|s| (s.0, s.1 / c)).collect();
        r.scalars.retain(|s| s.1 % c != 0);
        let (lo, hi) = self.range(&r, shape)?;
        (lo >= 0 && hi < c && self.range(&q, shape)?.0 >= 0).then_some((q, r))
    }
    fn mask(&self, k: &BlockProgram, data: &InstData, ty: &Type) -> Option<Bounds> {
        let arg = |n: usize| data.args.get(n).and_then(|a| self.bounds.get(a));
        match &data.op {
            Op::Const(Const::Bool(true)) => Some(vec![]),
            Op::Cmp(op) => {
                let [a, b] = data.args[..] else { return None };
                let diff = self.forms.get(&a)?.add_scaled(self.forms.get(&b)?, -1)?;
                // Pointers compare as addresses, which forms do not express.
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
            Op::Binary(BinaryOp::Div) => self.exact_divisor(data).map_or(1, |by| arg(0) / by),
            Op::Cast(to) if to.is_int() && to.is_signed() => arg(0),
            Op::Unary(crate::UnaryOp::Neg) => arg(0),
            _ => 1,
        }
    }
    /// The constant power of two by which a scalar is divided, if that leaves no remainder.
    pub(super) fn exact_divisor(&self, data: &InstData) -> Option<i64> {
        let [number, by] = data.args[..] else { return None };
        let by = self.affine(by)?.as_constant().filter(|by| *by > 0 && power_of_two_in(*by) == *by)?;
        (data.op == Op::Binary(BinaryOp::Div) && self.divisor(number) >= by).then_some(by)
    }
    /// Range of a scalar without a form of its own, from those of its operands.
    fn opaque_range(&self, k: &BlockProgram, data: &InstData) -> Option<(i64, i64)> {
        let Op::Binary(op) = data.op else { return None };
        if k.ty(data.args[0]).elem().is_none_or(wraps) {
            return None;
        }
        let arg = |n: usize| self.range(self.forms.get(&data.args[n])?, &[]);
        if op == BinaryOp::Rem && arg(1).is_none() {
            // A remainder has its dividend's sign, and is no larger.
            return arg(0).filter(|(least, _)| *least >= 0).map(|(_, most)| (0, most));
        }
        let ((al, ah), (bl, bh)) = (arg(0)?, arg(1)?);
        match op {
            BinaryOp::Div if al >= 0 && bl > 0 => Some((al / bh, ah / bl)),
            BinaryOp::Rem if al >= 0 && bl > 0 => Some((0, ah.min(bh - 1))),
            BinaryOp::Min => Some((al.min(bl), ah.min(bh))),
            BinaryOp::Max => Some((al.max(bl), ah.max(bh))),
            _ => None,
        }
    }
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

    /// A carried pointer tile that advances 32 elements per iteration, with an index step of 32 or 1.
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
    fn division() {
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
