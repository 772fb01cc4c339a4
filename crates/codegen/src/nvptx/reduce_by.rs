//! Reductions by a region, which may have several operands and need not commute.
//!
//! Bits of the axis go in order from the lowest, so that every step combines two neighbouring ranges: registers of one
//! thread, lanes by a shuffle, and all warps that are next on the axis at once, through shared memory as for built-in
//! reductions.
use super::emit::{Fail, Res};
use super::r#gen::Gen;
use super::reduce::{Combiner, Part};
use kiln_block::layout::{Flat, axis_bits, bits_of};
use kiln_block::{BinaryOp, Elem, InstData, Op, Value};

impl<'c> Gen<'c, '_> {
    pub fn reduce_by(&mut self, data: &InstData, axis: usize) -> Res<()> {
        self.one_block()?;
        let mut flat = self.lie_together(data.args.iter())?;
        let elems: Vec<Elem> = data.args.iter().map(|v| self.elem(*v)).collect::<Res<_>>()?;
        let mut parts: Vec<Part<'c>> = vec![vec![]; flat.per_thread()];
        for v in &data.args {
            parts.iter_mut().zip(self.plain(*v)?).for_each(|(part, x)| part.push(x));
        }
        let shape = self.k.ty(data.args[0]).shape();
        let (mut bits, mut axis, by) = (bits_of(shape), axis_bits(shape, axis), Combiner::Region(data));
        while !axis.is_empty() {
            let warps: Vec<usize> = axis.clone().map_while(|b| flat.warps.iter().position(|w| *w == Some(b))).collect();
            let done = axis.start..axis.start + warps.len().max(1) as u8;
            let slice = flat.without(&done);
            bits -= done.len();
            if !warps.is_empty() {
                parts = self.over_warps(by, &elems, &slice, bits, &warps, parts)?;
            } else if let Some(lane) = flat.lanes.iter().position(|b| *b == Some(axis.start)) {
                parts = parts.iter().map(|p| self.with_lane(by, &elems, p, lane)).collect::<Res<_>>()?;
            } else {
                parts = self.over_register(by, &elems, &flat, axis.start, &parts)?;
            }
            flat = slice;
            axis.end -= done.len() as u8;
        }
        for (n, v) in data.results.iter().enumerate() {
            self.lies_as(*v, &flat)?;
            let regs = parts.iter().map(|p| self.register(*v, p[n])).collect();
            self.set(*v, regs);
        }
        Ok(())
    }
    /// Whether the order of a region's operands makes no difference: that of one such op. Others go by their order.
    pub fn commutes(&self, data: &InstData) -> bool {
        use BinaryOp::{Add, And, Mul, Or, Xor};
        let Some(region) = data.regions.first() else { return false };
        let ([a, b], [one, last]) = (&region.params[..], &region.insts[..]) else { return false };
        let (one, last) = (self.k.inst(*one), self.k.inst(*last));
        let both = one.args == [*a, *b] || one.args == [*b, *a];
        both && last.args == one.results && matches!(one.op, Op::Binary(Add | Mul | And | Or | Xor))
    }
    /// Combines registers that differ in this bit of the element number; the others keep their order.
    fn over_register(
        &mut self,
        by: Combiner,
        elems: &[Elem],
        flat: &Flat,
        bit: u8,
        parts: &[Part<'c>],
    ) -> Res<Vec<Part<'c>>> {
        let at = flat.registers.iter().position(|b| *b == bit);
        let at = at.ok_or_else(|| Fail::Defect(format!("no thread has bit {bit} of the elements")))?;
        let low = (0..parts.len()).filter(|r| r >> at & 1 == 0);
        low.map(|r| self.combine_by(by, elems, &parts[r], &parts[r | 1 << at])).collect()
    }
    fn lies_as(&self, v: Value, flat: &Flat) -> Res<()> {
        match self.flat(v)? == *flat {
            true => Ok(()),
            false => Err(Fail::Defect(format!("{v} does not lie as what is reduced to it"))),
        }
    }
}
