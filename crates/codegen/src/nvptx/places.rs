//! Where partial results lie in shared memory.
use kiln_block::layout::Flat;

/// Reads that a thread does itself; more are shared out among threads, at the cost of one more barrier.
pub(super) const READS: usize = 16;

/// Distances between partial results: of neighbouring elements of the result, and of one element.
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub element: i64,
    pub sharer: i64,
}

impl Places {
    /// If lanes have one element each, these are adjacent, so that all banks are used; otherwise the partial results of
    /// an element are, so that they are read together.
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
