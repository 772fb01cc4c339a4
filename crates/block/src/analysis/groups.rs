//! Neighbours along an axis in aligned groups, whose first coordinate is a multiple of the group's size; and blocks of
//! pointers that are contiguous across two axes, as the channels of a pixel shuffle or the residues of a transposed
//! convolution are.
//!
//! Sizes of groups are powers of two. These facts survive where an affine form does not: where rows of a tile split
//! into quotients and remainders by multiples of the group's size.
use super::axis::unit;
use super::values::{ANY, Analysis, Def, power_of_two_in};
use crate::layout::Interleaved;
use crate::{BinaryOp, BlockProgram, Elem, Op, Value};

/// Sizes of groups that are looked for.
const COUNTS: [i64; 2] = [2, 4];
/// Least distance between the breaks along an axis, in elements.
pub const APART: i64 = 8;

impl Analysis {
    /// How a block of pointers is contiguous across two axes, if it is.
    pub fn interleaved(&self, k: &BlockProgram, ptr: Value) -> Option<Interleaved> {
        let shape = k.ty(ptr).shape();
        (0..shape.len()).rev().find_map(|along| {
            let count = self.step(k, ptr, along, APART).filter(|step| COUNTS.contains(step))?;
            let groups = |axis: &usize| {
                *axis != along
                    && shape[*axis] as i64 % count == 0
                    && self.step_in_groups(k, ptr, *axis, count) == Some(1)
            };
            let across = (0..shape.len()).rev().find(groups)?;
            let align = self.divisor_of_groups(k, ptr, across, count) as usize;
            Some(Interleaved { along, across, count: count as usize, align })
        })
    }
    /// Difference from one element along `axis` to the next in aligned groups of `n`.
    fn step_in_groups(&self, k: &BlockProgram, v: Value, axis: usize, n: i64) -> Option<i64> {
        self.difference(k, v, axis, &|x, by| {
            let least = self.affine(x).and_then(|f| self.range(f, k.ty(x).shape())).map_or(-1, |r| r.0);
            let starts = self.axes(x).get(axis).is_some_and(|a| a.contiguous.min(a.divisor) >= n);
            by % n == 0 && starts && least >= 0
        })
    }
    /// A power of two that divides the first element of every aligned group of `n` along `axis` (pointers: the address
    /// in bytes).
    fn divisor_of_groups(&self, k: &BlockProgram, v: Value, axis: usize, n: i64) -> i64 {
        if let Some(form) = self.affine(v) {
            let steps = form.coeffs.iter().enumerate();
            let steps = steps.map(|(a, c)| power_of_two_in(*c).saturating_mul(if a == axis { n } else { 1 }));
            let divisor = steps.fold(self.form_divisor(form), i64::min);
            return match form.root {
                Some(root) => {
                    let align = self.aligns.get(&root).copied().unwrap_or(1) as i64;
                    align.min(divisor.saturating_mul(unit(k.ty(v))))
                }
                None => divisor,
            };
        }
        let known = || self.axes(v).get(axis).map_or(1, |a| a.at(n));
        let Some(Def::Result(i, _)) = self.def(v) else { return known() };
        let data = k.inst(i);
        let of = |at: usize, axis| data.args.get(at).map_or(1, |v| self.divisor_of_groups(k, *v, axis, n));
        let number = |at: usize| data.args.get(at).and_then(|v| self.affine(*v)?.as_constant());
        match &data.op {
            Op::Broadcast => of(0, axis),
            Op::Cast(to) if to.is_int() && to.is_signed() && k.ty(data.args[0]).elem().is_some_and(Elem::is_int) => {
                of(0, axis)
            }
            Op::ExpandDims(at) if *at as usize > axis => of(0, axis),
            Op::ExpandDims(at) if (*at as usize) < axis => of(0, axis - 1),
            Op::PtrAdd => of(0, axis).min(of(1, axis).saturating_mul(unit(k.ty(v)))),
            Op::Binary(BinaryOp::Add | BinaryOp::Sub) => of(0, axis).min(of(1, axis)),
            Op::Binary(BinaryOp::Mul) => {
                number(1).map_or_else(known, |c| of(0, axis).saturating_mul(power_of_two_in(c)).min(ANY))
            }
            Op::Binary(BinaryOp::Rem) => number(1).map_or_else(known, |c| of(0, axis).min(power_of_two_in(c))),
            _ => known(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, analysis::analyse};

    /// Rows that are `channels` of `residues` each, columns that are positions in lines of 65: the store of a
    /// transposed convolution, whose first position is `start`.
    fn store(residues: i64, start: i64) -> (BlockProgram, Value) {
        let mut b = Builder::new("k", [8, 8, 1], 4);
        let x = b.param("x", Elem::Bf16, true);
        let [rows, columns] = [0, 1].map(|axis| {
            let (at, size, lane) = (b.program_id(axis), b.i32(64), b.iota(64));
            let at = b.binary(BinaryOp::Mul, at, size);
            let at = b.binary(BinaryOp::Add, at, lane);
            b.expand_dims(at, 1 - axis as usize)
        });
        let [residues, pitch, line, double] = [residues, 130 * 65, 65, 130].map(|n| b.i32(n));
        let (channel, residue) = (b.binary(BinaryOp::Div, rows, residues), b.binary(BinaryOp::Rem, rows, residues));
        let channel = b.binary(BinaryOp::Mul, channel, pitch);
        let row = b.binary(BinaryOp::Add, channel, residue);
        let (y, x_at) = (b.binary(BinaryOp::Div, columns, line), b.binary(BinaryOp::Rem, columns, line));
        let (y, x_at) = (b.binary(BinaryOp::Mul, y, double), b.binary(BinaryOp::Mul, x_at, residues));
        let column = b.binary(BinaryOp::Add, y, x_at);
        let (row, column) = (b.broadcast_to(row, &[64, 64]), b.broadcast_to(column, &[64, 64]));
        let at = b.binary(BinaryOp::Add, row, column);
        let start = b.i32(start);
        let from = b.ptr_add(x, start);
        let p = b.ptr_add(from, at);
        (b.finish(), p)
    }

    #[test]
    fn residues_are_interleaved() {
        let of = |residues, start| {
            let (k, p) = store(residues, start);
            analyse(&k).interleaved(&k, p)
        };
        let found = |count, align| Some(Interleaved { along: 1, across: 0, count, align });
        assert_eq!(of(2, 0), found(2, 4));
        assert_eq!(of(2, -1), found(2, 2), "rows that start at an odd element");
        assert_eq!(of(4, 0), found(4, 4), "lines of 130 elements");
        assert_eq!(of(3, 0), None, "three residues do not divide a tile");
        assert_eq!(of(8, 0), None, "lanes of eight rows fill sectors by themselves");
    }
}
