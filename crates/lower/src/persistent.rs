//! Which row programs become persistent kernels, for long rows and for strips of columns: clusters stay resident and
//! loop over rows (grid-stride), each block has the same part of every row, and the next row is prefetched while one is
//! computed.
//!
//! Takes: the tiles of a plan and what it reads. Gives: the number of clusters, or `None` where rows do not fill most
//! of their tiles or a persistent kernel is not profitable. The block pass `persistent_rows` builds the loop: it copies
//! what rows share to shared memory once; each thread copies the elements of the next row that it will read itself, so
//! it waits for its own copies alone.
//!
//! Without this, a cluster per row waits for memory at the same time as all others, and reads what rows share (a gain)
//! from the L2 cache for every row, which then is as busy as memory.
use kiln_block::passes::persistent_rows::WARPS;
use kiln_plan::Hardware;

/// Bytes of a row that a thread holds in registers, which are twice as wide where it computes with half types.
const EACH: usize = 128;
/// Parts of rows, and of what rows share, that shared memory holds.
const PARTS: usize = 3;
/// Least rows per cluster: with fewer, too few clusters work in the last round.
const ROUNDS: usize = 8;

/// The full-length loads and the reductions of a row program.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reads {
    /// Loads of each row's own elements, and of what all rows share.
    pub own: usize,
    pub shared: usize,
    /// Number of reductions, if all of them may combine elements in any order, else 0.
    pub reductions: usize,
    /// Bytes of an element if all have the same, else 0.
    pub bytes: usize,
    /// Special functions are applied to elements after all reductions.
    pub late: bool,
}

/// The schedule of a persistent kernel over rows.
#[derive(Clone, Copy, Debug)]
pub struct Persistent {
    pub warps: usize,
    pub clusters: usize,
}

/// The tiles that a persistent kernel loops over.
#[derive(Clone, Copy, Debug)]
pub struct Tiles {
    pub count: usize,
    /// Elements of a tile, and the valid ones of them.
    pub elements: usize,
    pub there: usize,
    /// Number of tiles after which the alignment repeats.
    pub period: usize,
}

/// The schedule of a persistent kernel, if that is profitable: most threads of a cluster have all their elements, and a
/// tile has two reductions or more, which keep the blocks of a cluster together. What rows share is kept in the
/// alignment of a cluster's rows, which therefore are a multiple of `period` apart. Rows that share nothing keep enough
/// bytes in flight without: softmax of 131072 in f32 is 4 % faster when all multiprocessors take part, of which
/// persistent clusters leave out a tenth, and half types gain only where they fill four blocks or more.
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
    let profitable = fits && full && gains && held && !few && tiles.count >= ROUNDS * clusters;
    profitable.then_some(Persistent { warps: blocks * WARPS, clusters })
}
