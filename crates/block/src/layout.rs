//! Layouts: which element of a block each register of each thread holds.
//!
//! All layouts are linear. Block dimensions are powers of two, so an element's coordinates are bits, and a layout says
//! for every bit of the register number, of the lane and of the warp which coordinate bits it flips. Strided registers,
//! tensor-core fragments and their row and column slices are all of this form, so conversion, reduction and broadcast
//! are each written once.
//!
//! [`Flat`] is the same on row-major element numbers, whose bits are the concatenated bits of the coordinates: there
//! reshaping and inserting axes change nothing, and the other ops move or drop bits. Passes and code generation work on
//! that form.
//!
//! [`choose()`] gives the layout of a tile from the accesses of its elements.
pub mod choose;
mod flat;
pub mod fragment;

pub use choose::{Choice, Combined, Interleaved, Tile, TileAccess, choose};
pub use flat::{Flat, LANE_BITS, axis_bits, bits_of};
use serde::{Deserialize, Serialize};

/// Coordinates that one bit adds, one number per axis: a power of two on one axis, zeros elsewhere. All zeros:
/// replicas.
pub type Basis = Vec<u32>;

/// Element of (register r, lane l, warp w): the XOR of the bases of the bits set in r, l and w.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Layout {
    pub registers: Vec<Basis>,
    /// Five bits.
    pub lanes: Vec<Basis>,
    /// log2(warps) bits.
    pub warps: Vec<Basis>,
}

impl Layout {
    /// Registers per thread.
    pub fn per_thread(&self) -> usize {
        1 << self.registers.len()
    }
    /// Coordinates of the element in register `r` of lane `l` of warp `w`.
    pub fn at(&self, r: usize, l: usize, w: usize, rank: usize) -> Vec<u32> {
        let mut at = vec![0; rank];
        for (bits, n) in [(&self.registers, r), (&self.lanes, l), (&self.warps, w)] {
            for (_, basis) in bits.iter().enumerate().filter(|(i, _)| n >> i & 1 == 1) {
                at.iter_mut().zip(basis).for_each(|(a, b)| *a ^= b);
            }
        }
        at
    }
    /// The layout on row-major element numbers; `None` if a basis is more than one bit of the shape or some bit has no
    /// basis.
    pub fn flat(&self, shape: &[usize]) -> Option<Flat> {
        let bit = |basis: &Basis| -> Option<Option<u8>> {
            let mut found = None;
            for (axis, b) in basis.iter().enumerate().filter(|(_, b)| **b != 0) {
                let range = axis_bits(shape, axis);
                let bit = range.start + b.trailing_zeros() as u8;
                if !b.is_power_of_two() || found.is_some() || bit >= range.end {
                    return None;
                }
                found = Some(bit);
            }
            Some(found)
        };
        let all = |bases: &[Basis]| bases.iter().map(bit).collect::<Option<Vec<_>>>();
        let registers = all(&self.registers)?.into_iter().collect::<Option<Vec<_>>>()?;
        let flat = Flat { registers, lanes: all(&self.lanes)?, warps: all(&self.warps)? };
        flat.covers(bits_of(shape)).then_some(flat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_and_back() {
        let flat = Flat::blocked(&[8, 64], &[1, 0], 4, 1, &[]);
        let layout = flat.layout(&[8, 64]);
        assert_eq!(layout.flat(&[8, 64]), Some(flat.clone()));
        for r in 0..layout.per_thread() {
            for (l, w) in [(0, 0), (5, 1), (31, 1)] {
                let at = layout.at(r, l, w, 2);
                assert_eq!(flat.at(r, l, w), (at[0] * 64 + at[1]) as usize);
            }
        }
    }

    #[test]
    fn what_is_not_a_bit_has_no_flat_form() {
        let wrong = Layout { registers: vec![vec![3]], lanes: vec![vec![0]; 5], warps: vec![] };
        assert_eq!(wrong.flat(&[4]), None);
    }
}
