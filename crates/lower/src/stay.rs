//! Long rows, and strips of columns, that clusters walk over: they stay, each block has the same part of every row, and the next
//! row is on its way while one is computed. A cluster that starts for each row waits for memory together with all others, and
//! reads what rows share, as a gain, again from the second-level cache, which then is as busy as memory.
use crate::Target;
use kiln_block::passes::ahead::{WARPS, clusters};

/// Bytes of a row that a thread has: what its registers hold, twice as wide where it computes with half types.
const EACH: usize = 128;
/// Parts of rows and of what they share that shared memory holds.
const PARTS: usize = 3;
/// Rows for each cluster, at least: fewer leave the last round too empty.
const ROUNDS: usize = 8;

/// What a row program reads in vectors.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reads {
    /// Of every row alone, and of all.
    pub own: usize,
    pub shared: usize,
    /// Reductions in any order; 0 where others are among them.
    pub reductions: usize,
    /// Bytes of an element if all have as many, else 0.
    pub bytes: usize,
}

/// How rows are walked.
#[derive(Clone, Copy, Debug)]
pub struct Stay {
    pub warps: usize,
    pub clusters: usize,
}

/// How so many tiles of so many elements are walked, if they are worth it: tiles that fill the threads of a cluster evenly, with
/// two exchanges a tile or more, which keep its blocks together. Rows of f32 that share nothing keep enough bytes under way
/// without: softmax of 131072 is 4 % faster when all processors have a part, of which clusters that stay leave a tenth out.
pub fn of(target: Target, tiles: usize, elements: usize, reads: Reads) -> Option<Stay> {
    let Target::Gpu { arch: 90.. } = target else { return None };
    let blocks = elements * reads.bytes / (32 * WARPS * EACH);
    let fits = elements.is_power_of_two() && matches!(blocks, 4 | 8 | 16);
    let gains = reads.bytes == 2 || reads.bytes == 4 && reads.shared > 0;
    let held = reads.own == 1 && reads.own + reads.shared <= PARTS && reads.reductions > 1;
    let clusters = clusters(blocks);
    (fits && gains && held && tiles >= ROUNDS * clusters).then_some(Stay { warps: blocks * WARPS, clusters })
}
