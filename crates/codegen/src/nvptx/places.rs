//! Where partial results lie in shared memory.
use kiln_block::layout::Flat;

/// Reads a thread does rather than share them out, which costs one more barrier.
pub(super) const READS: usize = 16;

/// How far partial results lie apart: those of neighbouring elements of the result, and those of one element.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub element: i64,
    pub sharer: i64,
}

impl Places {
    /// Lanes that have an element each lie side by side, that all banks are used; else the partial results of an element do,
    /// that they are read together.
    pub fn of(slice: &Flat, bits: usize, sharers: usize) -> Places {
        let lanes = slice.lanes.iter().flatten().count();
        if slice.per_thread() == 1 && lanes > 2 && sharers <= READS {
            Places { element: 1, sharer: 1 << bits }
        } else {
            Places { element: sharers as i64, sharer: 1 }
        }
    }
    /// Where the partial results of an element of the result begin.
    pub fn of_element(&self, element: usize) -> usize {
        element * self.element as usize
    }
}
