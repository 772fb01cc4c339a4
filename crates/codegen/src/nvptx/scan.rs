//! Scans: for each bit of the axis from the lowest, the upper half of every range of that size takes on the total of
//! its lower half. Once a range is spread over threads, the prefix from other threads is the same for all elements that
//! a thread held together until then: it is kept as a separate carry and added at the end.
use super::emit::{Fail, Res, Val, float, mistyped};
use super::exchange::Placement;
use super::r#gen::Gen;
use super::index::Reg;
use super::reduce::wide;
use inkwell::types::BasicTypeEnum;
use kiln_block::layout::{Flat, axis_bits, bits_of};
use kiln_block::{Elem, InstData, ReduceOp, ScanOp};
use std::collections::HashMap;
use std::ops::Range;

/// A scan in progress, by registers.
struct Scan<'c> {
    op: ReduceOp,
    elem: Elem,
    /// Prefix within what a thread held together before its first exchange.
    prefix: Vec<Val<'c>>,
    /// Prefix of what precedes that, in the ranges so far.
    carry: Vec<Option<Val<'c>>>,
    /// Totals of the ranges so far; registers of one range have the same.
    total: Vec<Val<'c>>,
    /// Sums made so far, so that registers with the same operands share one.
    sums: HashMap<(Val<'c>, Val<'c>), Val<'c>>,
}

impl<'c> Gen<'c, '_> {
    pub fn scan(&mut self, data: &InstData, op: ScanOp, axis: usize) -> Res<Vec<Reg<'c>>> {
        let arg = data.args[0];
        let (k, flat, elem) = (self.k, self.flat(arg)?, self.elem(arg)?);
        if self.blocks.count > 1 {
            return Err(Fail::Unsupported("a scan over several blocks".into()));
        }
        let shape = k.ty(arg).shape();
        let op = match op {
            ScanOp::Sum => ReduceOp::Sum,
            ScanOp::Prod => ReduceOp::Prod,
            ScanOp::Max => ReduceOp::Max,
        };
        let mut prefix: Vec<Val<'c>> = vec![];
        for v in self.plain(arg)? {
            prefix.push(if elem.is_float() { self.wide(v, elem)?.into() } else { v });
        }
        let (total, carry) = (prefix.clone(), vec![None; prefix.len()]);
        let mut scan = Scan { op, elem: wide(elem), prefix, carry, total, sums: HashMap::new() };
        let axis = axis_bits(shape, axis);
        for bit in axis.clone() {
            match flat.registers.iter().position(|b| *b == bit) {
                Some(i) => self.scan_registers(&mut scan, i)?,
                None => self.scan_threads(&mut scan, &flat, bits_of(shape), axis.start..bit, bit)?,
            }
        }
        let mut out = vec![];
        for (carry, prefix) in scan.carry.iter().zip(&scan.prefix) {
            let v = match carry {
                Some(carry) => self.combine(op, &[scan.elem], &vec![*carry], &vec![*prefix])?[0],
                None => *prefix,
            };
            let v = if self.waits { self.here(v, scan.elem)? } else { v };
            out.push(match elem {
                Elem::F16 | Elem::Bf16 => Reg::Plain(self.narrow(float(v)?, elem)?),
                _ => Reg::of(v, elem),
            });
        }
        Ok(out)
    }
    fn sum(&mut self, scan: &mut Scan<'c>, a: Val<'c>, b: Val<'c>) -> Res<Val<'c>> {
        if let Some(v) = scan.sums.get(&(a, b)) {
            return Ok(*v);
        }
        let v = self.combine(scan.op, &[scan.elem], &vec![a], &vec![b])?[0];
        scan.sums.insert((a, b), v);
        Ok(v)
    }
    /// Combines halves that differ in bit `i` of the register.
    fn scan_registers(&mut self, scan: &mut Scan<'c>, i: usize) -> Res<()> {
        let spread = scan.carry.iter().any(Option::is_some);
        for low in (0..scan.prefix.len()).filter(|r| r >> i & 1 == 0) {
            let high = low | 1 << i;
            let (a, b) = (scan.total[low], scan.total[high]);
            match scan.carry[high] {
                Some(carry) => scan.carry[high] = Some(self.sum(scan, a, carry)?),
                None if spread => scan.carry[high] = Some(a),
                None => scan.prefix[high] = self.sum(scan, a, scan.prefix[high])?,
            }
            let whole = self.sum(scan, a, b)?;
            (scan.total[low], scan.total[high]) = (whole, whole);
        }
        Ok(())
    }
    /// Combines halves that differ in a bit of the lane or warp; the lower bits of the axis are `done`.
    fn scan_threads(&mut self, scan: &mut Scan<'c>, flat: &Flat, bits: usize, done: Range<u8>, bit: u8) -> Res<()> {
        let thread = flat.threads().position(|b| b == Some(bit)).ok_or_else(|| mistyped("a scan"))?;
        let upper = self.threads.bit(&self.e, thread)?;
        // One register per range.
        let first = |r: usize| flat.register_of(flat.register(r) & !done.clone().fold(0, |m, b| m | 1 << b));
        let firsts: Vec<usize> =
            (0..flat.per_thread()).map(|r| first(r).ok_or_else(|| mistyped("a scan"))).collect::<Res<_>>()?;
        let mut own: Vec<(usize, Val<'c>)> = vec![];
        for r in (0..firsts.len()).filter(|r| firsts[*r] == *r) {
            own.push((r, scan.total[r]));
        }
        let others: Vec<Val<'c>> = if thread < 5 {
            let mask = self.e.int(1 << thread);
            own.iter().map(|(_, t)| self.lane_value("bfly", *t, mask)).collect::<Res<_>>()?
        } else {
            self.warps_value(flat, bits, &done, bit, scan.elem, &own)?
        };
        let mut picked: HashMap<(Val<'c>, Option<Val<'c>>), Val<'c>> = HashMap::new();
        let nothing = self.nothing(scan.op, scan.elem, scan.total[0])?;
        for (r, first) in firsts.into_iter().enumerate() {
            let at = own.iter().position(|o| o.0 == first).ok_or_else(|| mistyped("a scan"))?;
            let (other, carry) = (others[at], scan.carry[r]);
            let now = match picked.get(&(other, carry)) {
                Some(v) => *v,
                None => {
                    let with = match carry {
                        Some(carry) => self.sum(scan, other, carry)?,
                        None => other,
                    };
                    let v = self.e.select(upper, with, carry.unwrap_or(nothing))?;
                    picked.insert((other, carry), v);
                    v
                }
            };
            scan.carry[r] = Some(now);
            scan.total[r] = self.sum(scan, scan.total[r], other)?;
        }
        Ok(())
    }

    /// The identity of the op.
    fn nothing(&self, op: ReduceOp, elem: Elem, like: Val<'c>) -> Res<Val<'c>> {
        Ok(match (op, like.get_type()) {
            (ReduceOp::Sum, BasicTypeEnum::FloatType(t)) => t.const_float(-0.0).into(),
            (ReduceOp::Prod, BasicTypeEnum::FloatType(t)) => t.const_float(1.0).into(),
            (_, BasicTypeEnum::FloatType(t)) => t.const_float(f64::NEG_INFINITY).into(),
            (ReduceOp::Sum, BasicTypeEnum::IntType(t)) => t.const_zero().into(),
            (ReduceOp::Prod, BasicTypeEnum::IntType(t)) => t.const_int(1, false).into(),
            (_, BasicTypeEnum::IntType(t)) if !elem.is_signed() => t.const_zero().into(),
            (_, BasicTypeEnum::IntType(t)) => t.const_int(1 << (t.get_bit_width() - 1), false).into(),
            (_, other) => return Err(Fail::Unsupported(format!("a scan of {other}"))),
        })
    }
    /// The totals of the warp that differs in element bit `bit`, for registers `own` (one per range), through scratch.
    fn warps_value(
        &mut self,
        flat: &Flat,
        bits: usize,
        done: &Range<u8>,
        bit: u8,
        elem: Elem,
        own: &[(usize, Val<'c>)],
    ) -> Res<Vec<Val<'c>>> {
        let mut elements = 1;
        let mut weights = vec![0; bits];
        for b in (0..bits).filter(|b| !done.contains(&(*b as u8))) {
            (weights[b], elements) = (elements, elements * 2);
        }
        let place = Placement { weights, elements };
        let start = self.room(&[elements * elem.bytes()])?[0];
        let at = self.scratch_base(flat, &place, elem)?;
        let of = |r: usize| start + place.at(flat.register(r)) * elem.bytes();
        for (r, v) in own {
            let ptr = self.shared_at(at, of(*r))?;
            self.shared_store(ptr, &[*v], elem)?;
        }
        self.filled()?;
        // The partner's position: the own one with the bit flipped.
        let at = self.e.xor(at, self.e.int((place.weights[bit as usize] * elem.bytes()) as i64))?;
        let mut others = vec![];
        for (r, _) in own {
            let ptr = self.shared_at(at, of(*r))?;
            others.extend(self.shared_load(ptr, 1, elem)?);
        }
        Ok(others)
    }
}
