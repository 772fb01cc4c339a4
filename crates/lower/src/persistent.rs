//! Long rows, and strips of columns, that clusters walk over: they persistent, each block has the same part of every row, and the next
//! row is on its way while one is computed. A cluster that starts for each row waits for memory together with all others, and
//! reads what rows share, as a gain, again from the second-level cache, which then is as busy as memory.
use kiln_block::passes::persistent_rows::WARPS;
use kiln_plan::Hardware;

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
    /// Special functions of elements are left for when all reductions are done.
    pub late: bool,
}

/// How rows are walked.
#[derive(Clone, Copy, Debug)]
pub struct Persistent {
    pub warps: usize,
    pub clusters: usize,
}

/// Tiles that are walked over.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    pub count: usize,
    /// Elements, and those of them that are there.
    pub elements: usize,
    pub there: usize,
    /// Tiles after which one starts again at the same place between two multiples of a vector.
    pub period: usize,
}

/// How tiles are walked over, if that is worth it: such that most threads of a cluster have all their elements, with two
/// exchanges a tile or more, which keep its blocks together. What rows share is kept as the rows of a cluster start, which
/// then are a multiple of `period` apart. Rows that share nothing keep enough bytes in flight without: softmax of 131072 in
/// f32 is 4 % faster when all processors have a part, of which clusters that stay leave a tenth out, and half types gain by
/// staying only where they fill four blocks or more.
pub fn of(machine: &Hardware, tiles: Tiles, reads: Reads) -> Option<Persistent> {
    if !machine.arch.has_clusters() || machine.contract.batch_invariant {
        return None;
    }
    let blocks = tiles.elements * reads.bytes / (32 * WARPS * EACH);
    let fits = tiles.elements.is_power_of_two() && matches!(blocks, 2 | 4 | 8 | 16);
    let full = 16 * tiles.there >= 9 * tiles.elements;
    let alone = reads.bytes == 2 && !reads.late && blocks > 2 && tiles.there == tiles.elements;
    let gains = alone || reads.shared > 0 && matches!(reads.bytes, 2 | 4);
    let held = reads.own == 1 && reads.own + reads.shared <= PARTS && reads.reductions > 1;
    let most = machine.limits.clusters_of(blocks);
    let clusters = if reads.shared > 0 { most - most % tiles.period } else { most };
    let few = 10 * clusters < 9 * most;
    let worth = fits && full && gains && held && !few && tiles.count >= ROUNDS * clusters;
    worth.then_some(Persistent { warps: blocks * WARPS, clusters })
}
