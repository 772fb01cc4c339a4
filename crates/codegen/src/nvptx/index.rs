//! Integers and pointers of a thread as `base + constant`.
//!
//! The registers of an index block mostly differ by constants: they share one base, whose divisor and range are known.
//! Sums, products with constants, division and comparison keep this form, so addresses come out as one base with
//! immediate offsets, and the masks of neighbouring elements as one condition. Integers wrap, as PyTorch's do: what
//! follows from the order of sums holds only where the range shows that the sum stays within the type (`fits`). Only
//! the offsets of pointers are assumed not to wrap, as in `kiln_block::analysis`.
use super::emit::{Emit, Res, Val, int, mistyped};
use inkwell::IntPredicate;
use inkwell::values::{FloatValue, IntValue, PointerValue};
use kiln_block::{BinaryOp, CachePolicy, CmpOp, Elem, Facts};
use std::collections::HashMap;

/// `base + off` in `bits` (32 or 64); without base a constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Index<'c> {
    pub base: Option<IntValue<'c>>,
    /// A power of two that divides the base.
    pub div: u64,
    /// Least and largest value of the base.
    pub lo: i64,
    pub hi: i64,
    pub off: i64,
    pub bits: u32,
    /// What the base is a quotient of.
    pub of: Option<Dividend<'c>>,
}

/// A number that is not negative, `base + off`, and a constant by which it is divided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Dividend<'c> {
    base: IntValue<'c>,
    div: u64,
    lo: i64,
    hi: i64,
    off: i64,
    by: i64,
}

/// `base + off` elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pointer<'c> {
    pub base: PointerValue<'c>,
    pub elem: Elem,
    /// A power of two in bytes that divides the base.
    pub align: u64,
    pub off: i64,
    /// Memory that the kernel never writes.
    pub readonly: bool,
    /// What the caches do with an access to it.
    pub cache: CachePolicy,
}

/// What one register of a block value holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reg<'c> {
    Plain(Val<'c>),
    Int(Index<'c>),
    Ptr(Pointer<'c>),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Min,
    Max,
    Less,
    Not,
    Equal,
    Whole,
    Extend,
    Carries,
}

/// Values made for one instruction, shared by registers that need the same one.
#[derive(Default)]
pub(super) struct Memo<'c> {
    ints: HashMap<(Key, Option<IntValue<'c>>, Option<IntValue<'c>>, i64), IntValue<'c>>,
    ptrs: HashMap<(PointerValue<'c>, IntValue<'c>), PointerValue<'c>>,
    /// What was first added to a base, of so many neighbours, before it was divided by a constant.
    divided: HashMap<(IntValue<'c>, i64, i64), i64>,
}

impl<'c> Memo<'c> {
    fn int(
        &mut self,
        key: (Key, Option<IntValue<'c>>, Option<IntValue<'c>>, i64),
        make: impl FnOnce() -> Res<IntValue<'c>>,
    ) -> Res<IntValue<'c>> {
        if let Some(v) = self.ints.get(&key) {
            return Ok(*v);
        }
        let v = make()?;
        self.ints.insert(key, v);
        Ok(v)
    }
}

/// Neighbours that share divisions: not all of a thread, whose quotients would be in registers at the same time.
const NEAR: i64 = 16;

fn limits(bits: u32) -> (i64, i64) {
    if bits == 32 { (i32::MIN.into(), i32::MAX.into()) } else { (i64::MIN, i64::MAX) }
}
/// The range if it did not overflow, else all.
fn range(bits: u32, lo: Option<i64>, hi: Option<i64>) -> (i64, i64) {
    let (least, most) = limits(bits);
    match (lo, hi) {
        (Some(lo), Some(hi)) if lo >= least && hi <= most => (lo, hi),
        _ => (least, most),
    }
}
/// The power of two in a number.
pub(super) fn two(n: i64) -> u64 {
    if n == 0 { 1 << 40 } else { 1 << n.trailing_zeros().min(40) }
}

impl<'c> Index<'c> {
    pub fn constant(off: i64, bits: u32) -> Index<'c> {
        Index { base: None, div: 1 << 40, lo: 0, hi: 0, off, bits, of: None }
    }
    /// Any integer of 32 or 64 bits.
    pub fn opaque(v: IntValue<'c>) -> Index<'c> {
        let bits = v.get_type().get_bit_width();
        if let Some(c) = v.get_sign_extended_constant() {
            return Index::constant(c, bits);
        }
        let (lo, hi) = limits(bits);
        Index { base: Some(v), div: 1, lo, hi, off: 0, bits, of: None }
    }
    /// A parameter, with what is known about it.
    pub fn known(self, facts: &Facts) -> Index<'c> {
        if let Some(n) = facts.equals {
            return Index::constant(n, self.bits);
        }
        let (lo, hi) = facts.range((self.lo, self.hi));
        Index { div: self.div.max(two(facts.div)), lo, hi, ..self }
    }
    /// A number that does not wrap, so that its base is within what leaves room for the constant.
    pub fn unwrapped(self) -> Index<'c> {
        let (least, most) = limits(self.bits);
        let (lo, hi) = (least.saturating_sub(self.off).max(self.lo), most.saturating_sub(self.off).min(self.hi));
        if lo <= hi { Index { lo, hi, ..self } } else { self }
    }
    pub fn plus(self, c: i64) -> Index<'c> {
        Index { off: wrap(self.off.wrapping_add(c), self.bits), ..self }
    }
    pub fn as_constant(&self) -> Option<i64> {
        self.base.is_none().then_some(self.off)
    }
    /// The least value, if no value wraps.
    fn least(&self) -> Option<i64> {
        Some(self.bounds(0)?.0)
    }
    /// The largest value, if no value wraps.
    fn most(&self) -> Option<i64> {
        Some(self.bounds(0)?.1)
    }
    /// Whether no value wraps.
    fn fits(&self) -> bool {
        self.bounds(0).is_some()
    }
    /// Least and largest value of the number and `more`, if none wraps.
    fn bounds(&self, more: i64) -> Option<(i64, i64)> {
        let (least, most) = limits(self.bits);
        let off = self.off.checked_add(more)?;
        let (lo, hi) = (self.lo.checked_add(off)?, self.hi.checked_add(off)?);
        (lo >= least && hi <= most).then_some((lo, hi))
    }
    /// Whether the number and its parts have 32 bits, with room for another number.
    fn is_narrow(&self) -> bool {
        const LIMIT: i64 = 1 << 30;
        let small = |n: i64| (-LIMIT..LIMIT).contains(&n);
        small(self.lo) && small(self.hi) && small(self.off)
    }
    fn ty(&self, e: &Emit<'c>) -> inkwell::types::IntType<'c> {
        if self.bits == 32 { e.i32() } else { e.i64() }
    }
    /// The number itself.
    pub fn value(&self, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<IntValue<'c>> {
        let ty = self.ty(e);
        match self.base {
            None => Ok(e.int_of(ty, self.off)),
            Some(base) if self.off == 0 => Ok(base),
            Some(base) => memo.int((Key::Whole, Some(base), None, self.off), || e.add(base, e.int_of(ty, self.off))),
        }
    }
    /// The number as f32, where it and its parts are exact: the part that registers share is converted once, as a
    /// conversion costs as much as several additions. `None` if it may be larger.
    pub fn as_float(&self, e: &Emit<'c>) -> Res<Option<FloatValue<'c>>> {
        const EXACT: i64 = 1 << 24;
        let small = |n: Option<i64>| n.is_some_and(|n| (-EXACT..=EXACT).contains(&n));
        let ends = [self.lo.checked_add(self.off), self.hi.checked_add(self.off), Some(self.lo), Some(self.hi)];
        if !ends.into_iter().all(small) || !small(Some(self.off)) {
            return Ok(None);
        }
        let off = e.f32().const_float(self.off as f64);
        let Some(base) = self.base else { return Ok(Some(off)) };
        let base = if self.bits > 32 { e.b.build_int_truncate(base, e.i32(), "")? } else { base };
        let base = e.b.build_signed_int_to_float(base, e.f32(), "")?;
        Ok(Some(if self.off == 0 { base } else { e.fadd(base, off)? }))
    }
    pub fn add(self, o: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Index<'c>> {
        let off = wrap(self.off.wrapping_add(o.off), self.bits);
        let (a, b) = match (self.base, o.base) {
            (_, None) => return Ok(Index { off, ..self }),
            (None, _) => return Ok(Index { off, ..o }),
            (Some(a), Some(b)) => (a, b),
        };
        let base = memo.int((Key::Add, Some(a), Some(b), 0), || e.add(a, b))?;
        let (lo, hi) = range(self.bits, self.lo.checked_add(o.lo), self.hi.checked_add(o.hi));
        Ok(Index { base: Some(base), div: self.div.min(o.div), lo, hi, off, bits: self.bits, of: None })
    }
    /// A result of an op that does not wrap. Its base does not either where the constant is on the safe side, and ends
    /// where the constant would make the result wrap.
    pub fn unwrapped_result(self, op: BinaryOp, a: &Index<'c>, b: &Index<'c>) -> Index<'c> {
        let scaled = |i: &Index<'c>, c: i64| {
            let ends = i.lo.checked_mul(c).zip(i.hi.checked_mul(c));
            (ends.map(|(x, y)| (x.min(y), x.max(y))), i.off.checked_mul(c))
        };
        // Of the base, and the constant.
        let (ends, off) = match (op, a.as_constant(), b.as_constant()) {
            (BinaryOp::Add, None, None) => {
                (a.lo.checked_add(b.lo).zip(a.hi.checked_add(b.hi)), a.off.checked_add(b.off))
            }
            (BinaryOp::Sub, None, None) => {
                (a.lo.checked_sub(b.hi).zip(a.hi.checked_sub(b.lo)), a.off.checked_sub(b.off))
            }
            (BinaryOp::Mul, None, Some(c)) => scaled(a, c),
            (BinaryOp::Mul, Some(c), None) => scaled(b, c),
            _ => (None, None),
        };
        let Some((lo, hi)) = ends.filter(|_| off == Some(self.off)) else { return self };
        let (least, most) = limits(self.bits);
        let (lo, hi) = (lo.max(least.saturating_sub(self.off)), hi.min(most.saturating_sub(self.off)));
        if least <= lo && lo <= hi && hi <= most { Index { lo, hi, ..self } } else { self }
    }
    /// The number without what is added to a multiple of `divisor`'s and the base's common power of two: a number from
    /// zero up has the same quotient by that divisor. `None` if it may be negative.
    pub fn with_same_quotient(self, divisor: &Index<'c>) -> Option<Index<'c>> {
        let least = self.least()?;
        let unit = self.div.min(divisor.div).min(two(divisor.off)) as i64;
        let rest = self.off.rem_euclid(unit);
        (least >= 0).then(|| Index { off: self.off - rest, ..self })
    }
    pub fn sub(self, o: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Index<'c>> {
        let off = wrap(self.off.wrapping_sub(o.off), self.bits);
        let Some(b) = o.base else { return Ok(Index { off, ..self }) };
        let zero = e.int_of(self.ty(e), 0);
        let a = self.base.unwrap_or(zero);
        let base = memo.int((Key::Sub, Some(a), Some(b), 0), || e.sub(a, b))?;
        let (lo, hi) = range(self.bits, self.lo.checked_sub(o.hi), self.hi.checked_sub(o.lo));
        Ok(Index { base: Some(base), div: self.div.min(o.div), lo, hi, off, bits: self.bits, of: None })
    }
    pub fn mul(self, o: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Index<'c>> {
        match (self.as_constant(), o.as_constant()) {
            (Some(a), Some(b)) => Ok(Index::constant(wrap(a.wrapping_mul(b), self.bits), self.bits)),
            (None, Some(c)) => self.times(c, e, memo),
            (Some(c), None) => o.times(c, e, memo),
            (None, None) => {
                let (a, b) = (self.value(e, memo)?, o.value(e, memo)?);
                let base = memo.int((Key::Mul, Some(a), Some(b), 0), || e.mul(a, b))?;
                let div = |i: &Index<'c>| i.div.min(two(i.off));
                let div = div(&self).saturating_mul(div(&o)).min(1 << 40);
                let corners = self.bounds(0).zip(o.bounds(0)).and_then(|((a, b), (c, d))| {
                    let all: Option<Vec<i64>> =
                        [(a, c), (a, d), (b, c), (b, d)].into_iter().map(|(x, y)| x.checked_mul(y)).collect();
                    all.and_then(|all| Some((*all.iter().min()?, *all.iter().max()?)))
                });
                let (lo, hi) = range(self.bits, corners.map(|c| c.0), corners.map(|c| c.1));
                Ok(Index { base: Some(base), div, lo, hi, off: 0, bits: self.bits, of: None })
            }
        }
    }
    fn times(self, c: i64, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Index<'c>> {
        let Some(base) = self.base else { return Ok(self) };
        match c {
            0 => return Ok(Index::constant(0, self.bits)),
            1 => return Ok(self),
            _ => {}
        }
        let ty = self.ty(e);
        let base = memo.int((Key::Mul, Some(base), None, c), || e.mul(base, e.int_of(ty, c)))?;
        let (a, b) = (self.lo.checked_mul(c), self.hi.checked_mul(c));
        let (lo, hi) = if c > 0 { range(self.bits, a, b) } else { range(self.bits, b, a) };
        let div = self.div.saturating_mul(two(c)).min(1 << 40);
        Ok(Index {
            base: Some(base),
            div,
            lo,
            hi,
            off: wrap(self.off.wrapping_mul(c), self.bits),
            bits: self.bits,
            of: None,
        })
    }
    /// Quotient and remainder by a positive constant; `None` if the number may be negative.
    pub fn divide(self, c: i64, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Option<(Index<'c>, Index<'c>)>> {
        let bits = self.bits;
        let (Some(least), Some(most)) = (self.least(), self.most()) else { return Ok(None) };
        if c <= 0 || least < 0 {
            return Ok(None);
        }
        let Some(base) = self.base else {
            return Ok(Some((Index::constant(self.off / c, bits), Index::constant(self.off % c, bits))));
        };
        if most < c {
            return Ok(Some((Index::constant(0, bits), self)));
        }
        // Within multiples of g of the base, constants below g do not carry.
        let g = self.div.min(two(c)) as i64;
        let (whole, rest) = (self.off.div_euclid(g) * g, self.off.rem_euclid(g));
        let ty = self.ty(e);
        let (least, most) = ((least - rest).max(0), most - rest);
        if g == c && self.lo >= 0 {
            let q = memo.int((Key::Div, Some(base), None, c), || e.udiv(base, e.int_of(ty, c)))?;
            let div = self.div / c as u64;
            let q = Index { base: Some(q), div, lo: self.lo / c, hi: self.hi / c, off: whole / c, bits, of: None };
            return Ok(Some((q, Index::constant(rest, bits))));
        }
        // Neighbours share a division: the quotient of a number that is `after` more is larger by a constant, or
        // carries.
        let anchor = *memo.divided.entry((base, c, whole.div_euclid(NEAR))).or_insert(whole);
        let after = whole - anchor;
        let n = Index { off: anchor, ..self }.value(e, memo)?;
        let mut q = memo.int((Key::Div, Some(n), None, c), || e.udiv(n, e.int_of(ty, c)))?;
        let mut r = memo.int((Key::Rem, Some(n), None, c), || e.urem(n, e.int_of(ty, c)))?;
        let (more, after) = (after.div_euclid(c), after.rem_euclid(c));
        if after > 0 {
            let first = e.int_of(ty, c - after);
            let carries = memo.int((Key::Carries, Some(r), None, after), || e.icmp(IntPredicate::UGE, r, first))?;
            let next = |r: IntValue<'c>| {
                let by = e.select(carries, e.int_of(ty, after - c).into(), e.int_of(ty, after).into())?;
                e.add(r, int(by)?)
            };
            q =
                memo.int((Key::Add, Some(q), Some(carries), 0), || e.add(q, e.b.build_int_z_extend(carries, ty, "")?))?;
            r = memo.int((Key::Add, Some(r), Some(carries), after), || next(r))?;
        }
        let of = Dividend { base, div: self.div, lo: self.lo, hi: self.hi, off: anchor + after, by: c };
        let (lo, hi) = (least / c - more, most / c - more);
        let q = Index { base: Some(q), div: 1, lo, hi, off: more, bits, of: Some(of) };
        let r = Index { base: Some(r), div: g as u64, lo: 0, hi: c - g, off: rest, bits, of: None };
        Ok(Some((q, r)))
    }
    /// The lesser or the greater of two signed numbers.
    pub fn extreme(self, o: Index<'c>, least: bool, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Index<'c>> {
        let (a, b) = (self.value(e, memo)?, o.value(e, memo)?);
        let (key, name) = if least { (Key::Min, "llvm.smin") } else { (Key::Max, "llvm.smax") };
        let ty = self.ty(e).into();
        let base = memo.int((key, Some(a), Some(b), 0), || int(e.call(name, &[ty], &[a.into(), b.into()])?))?;
        let pick = |a: Option<i64>, b: Option<i64>| Some(if least { a?.min(b?) } else { a?.max(b?) });
        let (lo, hi) = range(self.bits, pick(self.least(), o.least()), pick(self.most(), o.most()));
        let div = |i: &Index<'c>| i.div.min(two(i.off));
        Ok(Index { base: Some(base), div: div(&self).min(div(&o)), lo, hi, off: 0, bits: self.bits, of: None })
    }
    /// To 64 or 32 bits.
    pub fn resize(self, bits: u32, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Index<'c>> {
        let Some(base) = self.base.filter(|_| bits != self.bits) else {
            return Ok(Index { bits, off: wrap(self.off, bits), ..self });
        };
        // Base and offset are extended separately only where the sum does not wrap.
        if bits > self.bits && !self.fits() {
            return Index::opaque(self.value(e, memo)?).resize(bits, e, memo);
        }
        let base = memo.int((Key::Extend, Some(base), None, bits.into()), || match bits {
            64 => e.sext(base, e.i64()),
            _ => e.trunc(base, e.i32()),
        })?;
        let (lo, hi) = range(bits, Some(self.lo), Some(self.hi));
        Ok(Index { base: Some(base), lo, hi, bits, off: wrap(self.off, bits), div: self.div, of: None })
    }
    /// The comparison as a condition.
    pub fn compare(self, op: CmpOp, o: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<IntValue<'c>> {
        let not = |v: IntValue<'c>, memo: &mut Memo<'c>| memo.int((Key::Not, Some(v), None, 0), || e.not(v));
        if self.is_narrow() && o.is_narrow() && self.bits == 64 && o.bits == 64 {
            let (a, b) = (self.resize(32, e, memo)?, o.resize(32, e, memo)?);
            return a.compare(op, b, e, memo);
        }
        match op {
            CmpOp::Lt => self.less(o, e, memo),
            CmpOp::Ge => {
                let less = self.less(o, e, memo)?;
                not(less, memo)
            }
            CmpOp::Le => self.at_most(o, e, memo),
            CmpOp::Gt => {
                let at_most = self.at_most(o, e, memo)?;
                not(at_most, memo)
            }
            CmpOp::Eq => self.equal(o, e, memo),
            CmpOp::Ne => {
                let same = self.equal(o, e, memo)?;
                not(same, memo)
            }
        }
    }
    /// a <= b: a < b + 1 where that does not wrap, else not b < a.
    fn at_most(self, o: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<IntValue<'c>> {
        if o.bounds(1).is_some() {
            return self.less(o.plus(1), e, memo);
        }
        let above = o.less(self, e, memo)?;
        memo.int((Key::Not, Some(above), None, 0), || e.not(above))
    }
    /// a < b, so that neighbouring registers share one comparison.
    fn less(self, o: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<IntValue<'c>> {
        if let Some((number, limit)) = self.times_divisor(o.as_constant()) {
            return number.less(limit, e, memo);
        }
        if let Some((number, limit)) = o.times_divisor(self.as_constant().and_then(|c| c.checked_add(1))) {
            let below = number.less(limit, e, memo)?;
            return memo.int((Key::Not, Some(below), None, 0), || e.not(below));
        }
        let mut sides = (self, o);
        if let (Some((least_a, most_a)), Some((least_b, most_b))) = (self.bounds(0), o.bounds(0)) {
            if most_a < least_b || least_a >= most_b {
                return Ok(e.bool(most_a < least_b));
            }
            sides = self.rounded(o).unwrap_or(sides);
        }
        let (a, b) = (sides.0.value(e, memo)?, sides.1.value(e, memo)?);
        memo.int((Key::Less, Some(a), Some(b), 0), || e.icmp(IntPredicate::SLT, a, b))
    }
    /// What to compare in place of a < b: base_a < base_b + t with t rounded up to a multiple of what divides both bases,
    /// or base_a - t < base_b where a limit of any size would wrap. `None` if both sums may wrap.
    fn rounded(self, o: Index<'c>) -> Option<(Index<'c>, Index<'c>)> {
        let div = self.div.min(o.div) as i64;
        let t = o.off.checked_sub(self.off)?.checked_add(div - 1)?.div_euclid(div) * div;
        let sides =
            [(Index { off: 0, ..self }, Index { off: t, ..o }), (Index { off: -t, ..self }, Index { off: 0, ..o })];
        sides.into_iter().find(|(left, right)| left.fits() && right.fits())
    }
    /// A number and a limit: the number is below it where this quotient is below `than`.
    fn times_divisor(self, than: Option<i64>) -> Option<(Index<'c>, Index<'c>)> {
        let Dividend { base, div, lo, hi, off, by } = self.of?;
        let limit = than?.checked_sub(self.off)?.checked_mul(by)?;
        let number = Index { base: Some(base), div, lo, hi, off, bits: self.bits, of: None };
        (number.fits() && limit <= limits(self.bits).1).then(|| (number, Index::constant(limit.max(0), self.bits)))
    }
    /// base_a == base_b + t: valid for integers that wrap, too.
    fn equal(self, o: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<IntValue<'c>> {
        let t = wrap(o.off.wrapping_sub(self.off), self.bits);
        let div = self.div.min(o.div) as i64;
        if t.rem_euclid(div) != 0 {
            return Ok(e.bool(false));
        }
        let ty = self.ty(e);
        let a = self.base.unwrap_or(e.int_of(ty, 0));
        let right = match o.base {
            None => e.int_of(ty, t),
            Some(_) => Index { off: t, ..o }.value(e, memo)?,
        };
        memo.int((Key::Equal, Some(a), Some(right), 0), || e.icmp(IntPredicate::EQ, a, right))
    }
}

/// The constant wrapped to this many bits.
fn wrap(c: i64, bits: u32) -> i64 {
    if bits == 32 { i64::from(c as i32) } else { c }
}

impl<'c> Pointer<'c> {
    pub fn add(self, i: Index<'c>, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Pointer<'c>> {
        let off = self.off.wrapping_add(i.off);
        let Some(base) = i.base else { return Ok(Pointer { off, ..self }) };
        let offset = Index { off: 0, base: Some(base), ..i }.resize(64, e, memo)?.value(e, memo)?;
        let next = match memo.ptrs.get(&(self.base, offset)) {
            Some(p) => *p,
            None => {
                let p = e.gep(memory_type(e, self.elem), self.base, offset)?;
                memo.ptrs.insert((self.base, offset), p);
                p
            }
        };
        let align = self.align.min(i.div.saturating_mul(self.elem.bytes() as u64));
        Ok(Pointer { base: next, align, off, ..self })
    }
    /// The address itself.
    pub fn value(&self, e: &Emit<'c>) -> Res<PointerValue<'c>> {
        e.gep(memory_type(e, self.elem), self.base, e.int_of(e.i64(), self.off))
    }
}

/// Type of an element in memory.
pub(super) fn memory_type<'c>(e: &Emit<'c>, elem: Elem) -> inkwell::types::BasicTypeEnum<'c> {
    match elem {
        Elem::Bool => e.i8().into(),
        other => e.elem(other),
    }
}

impl<'c> Reg<'c> {
    /// From a plain LLVM value of this element type.
    pub fn of(v: Val<'c>, elem: Elem) -> Reg<'c> {
        match (v, elem) {
            (Val::IntValue(i), Elem::I32 | Elem::I64) => Reg::Int(Index::opaque(i)),
            _ => Reg::Plain(v),
        }
    }
    pub fn plain(&self, e: &Emit<'c>, memo: &mut Memo<'c>) -> Res<Val<'c>> {
        match self {
            Reg::Plain(v) => Ok(*v),
            Reg::Int(i) => Ok(i.value(e, memo)?.into()),
            Reg::Ptr(p) => Ok(p.value(e)?.into()),
        }
    }
    pub fn index(&self) -> Res<Index<'c>> {
        match self {
            Reg::Int(i) => Ok(*i),
            Reg::Plain(v) => Ok(Index::opaque(int(*v)?)),
            Reg::Ptr(_) => Err(mistyped("arithmetic")),
        }
    }
    pub fn condition(&self) -> Res<IntValue<'c>> {
        match self {
            Reg::Plain(v) => int(*v),
            _ => Err(mistyped("a condition")),
        }
    }
    pub fn pointer(&self) -> Res<Pointer<'c>> {
        match self {
            Reg::Ptr(p) => Ok(*p),
            _ => Err(mistyped("an access through a pointer")),
        }
    }
}
