//! A thread's position: values that follow from the thread's index, computed once at the entry.
use super::emit::{Emit, Res, int};
use super::index::Index;
use inkwell::IntPredicate;
use inkwell::builder::Builder;
use inkwell::values::IntValue;
use std::collections::HashMap;

/// A number as a sum over bits of the thread index: what each bit adds; 0 adds nothing.
pub(super) type Weights = Vec<i64>;

pub(super) struct Threads<'c> {
    /// Positioned at the end of the entry block.
    entry: Builder<'c>,
    thread: IntValue<'c>,
    /// Bits of the thread index: five, and log2 of the warps.
    pub bits: usize,
    sums: HashMap<Weights, IntValue<'c>>,
    firsts: HashMap<i64, IntValue<'c>>,
}

impl<'c> Threads<'c> {
    /// `e` must be in the entry block, which ends only after the whole program is written. The threads of all `blocks`
    /// that share an instance are numbered consecutively. With several `groups` of warps the thread index is that
    /// within its group.
    pub fn new(e: &Emit<'c>, entry: Builder<'c>, warp_bits: usize, blocks: usize, groups: usize) -> Res<Threads<'c>> {
        let mut thread = int(e.call("llvm.nvvm.read.ptx.sreg.tid.x", &[], &[])?)?;
        if blocks > 1 {
            let rank = int(e.call("llvm.nvvm.read.ptx.sreg.cluster.ctarank", &[], &[])?)?;
            let own = 5 + warp_bits as i64 - i64::from(blocks.ilog2());
            thread = entry.build_or(entry.build_left_shift(rank, e.int(own), "")?, thread, "")?;
        }
        if groups > 1 {
            // Groups start at multiples of their size.
            thread = entry.build_and(thread, e.int((32 << warp_bits) - 1), "")?;
        }
        Ok(Threads { entry, thread, bits: 5 + warp_bits, sums: HashMap::new(), firsts: HashMap::new() })
    }
    /// Weights of the bits from `own` up, which are the block's rank in its cluster.
    pub fn rank(&self, own: usize) -> Vec<i64> {
        (0..self.bits - own).map(|i| 1 << i).collect()
    }
    /// The end of the entry block, for values that are needed on all paths.
    pub fn entry(&self) -> &Builder<'c> {
        &self.entry
    }
    /// Σ weights[i] · bit i of the thread index. The weights are distinct powers of two, or any numbers for addresses.
    pub fn sum(&mut self, e: &Emit<'c>, weights: &[i64]) -> Res<Index<'c>> {
        let (lo, hi) = weights.iter().fold((0, 0), |(lo, hi), w| (lo + w.min(&0), hi + w.max(&0)));
        let div = weights.iter().filter(|w| **w != 0).map(|w| 1u64 << w.trailing_zeros()).min();
        let Some(div) = div else { return Ok(Index::constant(0, 32)) };
        let base = match self.sums.get(weights) {
            Some(v) => *v,
            None => {
                let v = self.build(e, weights)?;
                self.sums.insert(weights.to_vec(), v);
                v
            }
        };
        Ok(Index { base: Some(base), div, lo, hi, off: 0, bits: 32, of: None })
    }
    fn build(&self, e: &Emit<'c>, weights: &[i64]) -> Res<IntValue<'c>> {
        let b = &self.entry;
        let mut total: Option<IntValue<'c>> = None;
        let mut at = 0;
        while at < weights.len() {
            let w = weights[at];
            // A run of bits whose weights double is one field of the thread index.
            let mut n = 1;
            while at + n < weights.len() && weights[at + n] == w << n {
                n += 1;
            }
            if w != 0 {
                let mut field = self.thread;
                if at > 0 {
                    field = b.build_right_shift(field, e.int(at as i64), false, "")?;
                }
                if at + n < self.bits {
                    field = b.build_and(field, e.int((1 << n) - 1), "")?;
                }
                if w != 1 {
                    field = b.build_int_nsw_mul(field, e.int(w), "")?;
                }
                total = Some(match total {
                    Some(t) => b.build_int_nsw_add(t, field, "")?,
                    None => field,
                });
            } else {
                n = 1;
            }
            at += n;
        }
        Ok(total.unwrap_or_else(|| e.int(0)))
    }
    /// Bit `i` of the thread index as a condition.
    pub fn bit(&mut self, e: &Emit<'c>, i: usize) -> Res<IntValue<'c>> {
        let zero = self.first(e, 1 << i)?;
        Ok(self.entry.build_not(zero, "")?)
    }
    /// Whether all bits of `mask` are zero in the thread index: the first of the threads that hold replicas.
    pub fn first(&mut self, e: &Emit<'c>, mask: i64) -> Res<IntValue<'c>> {
        if let Some(v) = self.firsts.get(&mask) {
            return Ok(*v);
        }
        let masked = self.entry.build_and(self.thread, e.int(mask), "")?;
        let v = self.entry.build_int_compare(IntPredicate::EQ, masked, e.int(0), "")?;
        self.firsts.insert(mask, v);
        Ok(v)
    }
}
