//! Where partial results lie in shared memory.
use super::exchange::Placement;
use kiln_block::layout::Flat;

/// Reads that a thread does itself; more are shared out among threads, at the cost of one more barrier.
pub(super) const READS: usize = 16;

/// From so many elements of a result on, those who share the reads out take an element each.
const WARP_BITS: usize = 5;

/// Distances between partial results: of neighbouring elements of the result, and of one element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Places {
    pub element: i64,
    pub sharer: i64,
    /// Registers of a thread whose elements are side by side.
    pub run: usize,
}

impl Places {
    /// Partial results of `sharers`, `bytes` each, for the elements of `slice`: those of an element side by side, so
    /// that they are read together, or those of a sharer, so that lanes use all banks; what takes fewer passes, and
    /// what other blocks write as whole lines.
    pub fn of(slice: &Flat, bits: usize, sharers: usize, bytes: usize) -> Places {
        let run = slice.registers.iter().enumerate().take_while(|(i, b)| *i == **b as usize).count();
        let of_element = Places { element: sharers as i64, sharer: 1, run: 1 };
        let of_sharer = Places { element: 1, sharer: 1 << bits, run: (1 << run).min(16 / bytes) };
        let registers = slice.per_thread();
        let better = match registers * sharers > READS {
            // Lanes take partial results of few elements, or elements.
            true => bits >= WARP_BITS,
            false => of_sharer.cost(slice, bits, sharers, bytes) <= of_element.cost(slice, bits, sharers, bytes),
        };
        if better { of_sharer } else { of_element }
    }
    /// Where the partial results of an element of the result begin.
    pub fn of_element(&self, element: usize) -> usize {
        element * self.element as usize
    }
    /// Passes and accesses of a warp that writes its own partial results and reads those of all sharers.
    fn cost(&self, slice: &Flat, bits: usize, sharers: usize, bytes: usize) -> usize {
        let of_elements = (0..bits).map(|b| (self.element as usize) << b);
        let of_sharers = (0..sharers.ilog2()).map(|b| (self.sharer as usize) << b);
        let place = Placement { weights: of_elements.chain(of_sharers).collect(), elements: sharers << bits };
        let vector = if self.sharer == 1 { sharers.min(16 / bytes) } else { self.run };
        let reads = slice.per_thread() * sharers / vector;
        let writes = slice.per_thread() / self.run;
        reads * (1 + place.passes(slice, vector, bytes)) + writes * (1 + place.passes(slice, self.run, bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(registers: Vec<u8>, lanes: [Option<u8>; 5]) -> Flat {
        Flat { registers, lanes: lanes.to_vec(), warps: vec![] }
    }

    #[test]
    fn lanes_of_many_elements_read_those_of_one_sharer() {
        let each = slice(vec![], [0, 1, 2, 3, 4].map(Some));
        assert_eq!(Places::of(&each, 5, 8, 4), Places { element: 1, sharer: 32, run: 1 });
        // Vectors of four partial results are in all banks too, but are written at a stride.
        assert_eq!(Places::of(&each, 5, 4, 4), Places { element: 1, sharer: 32, run: 1 });
        // Two elements a lane: vectors would meet in 16 banks.
        let pairs = slice(vec![5], [0, 1, 2, 3, 4].map(Some));
        assert_eq!(Places::of(&pairs, 6, 8, 4), Places { element: 1, sharer: 64, run: 1 });
        let beside = slice(vec![0], [1, 2, 3, 4, 5].map(Some));
        assert_eq!(Places::of(&beside, 6, 8, 4), Places { element: 1, sharer: 64, run: 2 });
    }

    #[test]
    fn lanes_of_few_elements_read_those_of_one_element() {
        assert_eq!(Places::of(&slice(vec![], [None; 5]), 0, 8, 4).sharer, 1);
        let two = slice(vec![], [None, None, None, None, Some(0)]);
        assert_eq!(Places::of(&two, 1, 16, 4), Places { element: 16, sharer: 1, run: 1 });
    }

    #[test]
    fn many_reads_are_shared_out_by_element_or_by_sharer() {
        let wide = slice(vec![5, 6, 7], [0, 1, 2, 3, 4].map(Some));
        assert_eq!(Places::of(&wide, 8, 4, 4), Places { element: 1, sharer: 256, run: 1 });
        let narrow = slice(vec![0, 1], [None; 5]);
        assert_eq!(Places::of(&narrow, 2, 16, 4), Places { element: 16, sharer: 1, run: 1 });
    }
}
