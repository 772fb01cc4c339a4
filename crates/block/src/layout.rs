//! Layouts: which element of a block each register of each thread holds.
//!
//! One representation for all: a linear layout. Block dimensions are powers of two, so an element's coordinates are bits, and a
//! layout says for every bit of the register number, of the lane and of the warp which coordinate bits it flips. Strided
//! registers, tensor-core fragments and their row and column slices are all of this form; so conversions, reductions and
//! broadcasts are written once.
use serde::{Deserialize, Serialize};

/// Coordinates that one bit adds, one number per axis: a power of two on one axis, zeros elsewhere. All zeros: a copy.
pub type Basis = Vec<u32>;

/// Element of (register r, lane l, warp w): the XOR of the bases of the bits set in r, l and w.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Layout {
    pub registers: Vec<Basis>,
    /// Five.
    pub lanes: Vec<Basis>,
    /// log2 of the warps.
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
            for (i, basis) in bits.iter().enumerate().filter(|(i, _)| n >> i & 1 == 1) {
                let _ = i;
                at.iter_mut().zip(basis).for_each(|(a, b)| *a ^= b);
            }
        }
        at
    }
}
