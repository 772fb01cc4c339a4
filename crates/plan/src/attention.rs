//! Tiling of fused attention on a GPU, and its predicted time. Tiles are chosen where they are priced: lowering follows this choice.
//!
//! [`Sizes::tiles`] says how many queries and keys a block takes, and into how many slices the keys are split where there are few blocks.
//! The planner compares the time of these blocks ([`Sizes::seconds`]) with that of two matmuls with a softmax in between. The figures are
//! the machine's ([`kiln_machine::Attention`]).
use crate::Hardware;
use kiln_graph::DType;

/// Queries and keys per tile, warps per block, and slices of the keys that separate blocks process (a second launch combines them).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tiles {
    /// Queries per block.
    pub queries: usize,
    /// Keys per tile, which a block processes one after another.
    pub keys: usize,
    /// Warps per block.
    pub warps: usize,
    /// Keys per slice: a multiple of `keys`.
    pub part: usize,
    /// Number of slices; 1 if the keys are not split.
    pub parts: usize,
}

/// Tiles of the warp-specialised kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Warpgroups {
    /// Warpgroups that multiply, each with [`Warpgroups::ROWS`] queries of a tile.
    pub consumers: usize,
    /// Keys per iteration.
    pub keys: usize,
    /// Tiles of queries that shared memory has room for.
    pub left: usize,
}
impl Warpgroups {
    /// Queries of a warpgroup: the rows of one `wgmma`.
    pub const ROWS: usize = 64;
    /// Queries per tile.
    pub fn rows(&self) -> usize {
        self.consumers * Warpgroups::ROWS
    }
}

/// How the fused program is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Blocks of warps that load their operands themselves, with matmuls by `mma`.
    Warps(Tiles),
    /// Persistent blocks with a producer, and matmuls by `wgmma`.
    Warpgroups(Warpgroups),
}

/// Sizes of an attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Element type of the operands.
    pub dtype: DType,
    /// Heads of all batches that have tiles of their own: query heads, or key heads where groups are packed.
    pub heads: usize,
    /// Rows of queries of such a head.
    pub queries: usize,
    /// Query heads in the rows of one head: all that share their keys and values, so that these are loaded once. 1: not packed.
    pub packed: usize,
    /// Keys per head.
    pub keys: usize,
    /// Elements of a query, and of a value.
    pub widths: [usize; 2],
    /// Does each query attend only to keys up to its own position?
    pub causal: bool,
}

/// Widest heads that fit in registers.
const WIDEST: usize = 256;
/// Elements of a tile of keys for fewer than 64 queries, with half types.
const NARROW: usize = 8192;
/// Most rows of queries of a group of heads that share their keys, for which they are packed: more fill tiles of their own.
const PACKED: usize = 64;
/// Most queries for which tiles have 16 rows.
const FEW: usize = 32;
/// Least number of blocks of 128 queries per multiprocessor for which these are used: with fewer, multiprocessors would be idle.
const TWICE: usize = 2;

impl Sizes {
    /// The sizes for operands of these shapes: batch…, heads, rows, columns.
    pub fn of(dtype: DType, [q, k, v]: [&[usize]; 3], causal: bool) -> Sizes {
        let end = |s: &[usize], i: usize| s.len().checked_sub(i).and_then(|at| s.get(at)).copied().unwrap_or(1);
        let heads: usize = q[..q.len().saturating_sub(2)].iter().product();
        let (queries, group) = (end(q, 2), end(q, 3) / end(k, 3).max(1));
        let mut sizes =
            Sizes { dtype, heads, queries, packed: 1, keys: end(k, 2), widths: [end(q, 1), end(v, 1)], causal };
        // A causal mask ends a block's keys by its queries' positions, which rows of several heads do not have in order.
        if sizes.is_half() && !causal && (2..=PACKED).contains(&(group * queries)) && group > 1 {
            sizes = Sizes { heads: heads / group, queries: group * queries, packed: group, ..sizes };
        }
        sizes
    }
    /// Is there a fused program for these sizes?
    pub fn has_program(&self) -> bool {
        self.widest() <= WIDEST && self.dtype != DType::F64
    }
    fn widest(&self) -> usize {
        self.widths[0].max(self.widths[1]).next_power_of_two()
    }
    /// Number of keys that at least one query attends to.
    pub fn seen(&self) -> usize {
        if self.causal { self.keys.min(self.queries) } else { self.keys }
    }
    fn is_half(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::Bf16)
    }
    fn blocks(&self, queries: usize) -> usize {
        self.heads * self.queries.div_ceil(queries)
    }
    /// Queries, keys and warps of a block.
    fn block(&self, m: &Hardware) -> [usize; 3] {
        let (rows, widest) = (self.queries.next_power_of_two(), self.widest());
        if self.is_half() {
            return match rows {
                // As many keys as keep loads in flight without filling a thread's registers.
                ..=FEW => [16, (NARROW / widest).clamp(64, 128), 4],
                128.. if widest <= 64 && m.counted(self.blocks(128)) >= TWICE * m.units.multiprocessors => [128, 64, 4],
                _ if widest <= 128 && self.seen().div_ceil(64).is_multiple_of(2) => [64, 128, 4],
                _ => [64, 64, 4],
            };
        }
        if rows == 1 {
            return [1, (8192 / widest).clamp(16, 128), 4];
        }
        let large = [[128, 64, 8], [64, if widest == 128 { 128 } else { 64 }, 8], [32, 64, 8]];
        let fits = |b: &&[usize; 3]| {
            b[0] <= rows && m.counted(self.blocks(b[0])) >= m.attention.enough && (b[0] < 128 || widest <= 64)
        };
        large.iter().find(fits).copied().unwrap_or([rows.min(16), 64, 4])
    }
    /// The tiles for these sizes. Keys are split into slices where blocks are few and that is predicted to be faster.
    pub fn tiles(&self, m: &Hardware) -> Tiles {
        let [queries, keys, warps] = self.block(m);
        let keys = keys.min(self.seen().next_power_of_two().max(16));
        let all = self.seen().div_ceil(keys).max(1);
        let blocks = m.counted(self.blocks(queries)).max(1);
        let (enough, most) = match self.is_half() && queries < 64 {
            true => (m.attention.most_narrow, m.attention.most_narrow),
            false => (m.attention.enough, m.attention.most),
        };
        let most = if blocks < enough { (most / blocks).min(all).max(1) } else { 1 };
        let parts = 1 << most.ilog2();
        let whole = Tiles { queries, keys, warps, part: all * keys, parts: 1 };
        let part = all.div_ceil(parts) * keys;
        let cut = Tiles { part, parts: self.seen().div_ceil(part).max(1), ..whole };
        if self.seconds(&cut, m) < self.seconds(&whole, m) { cut } else { whole }
    }
    /// The faster way to write the program.
    pub fn way(&self, m: &Hardware) -> Way {
        let tiles = self.tiles(m);
        // The two sum in different orders.
        let z = Sizes { heads: m.counted(self.heads), ..*self };
        match self.warpgroups(m) {
            Some(w) if z.seconds_by_warpgroups(&w, m) < z.seconds(&tiles, m) => Way::Warpgroups(w),
            _ => Way::Warps(tiles),
        }
    }
    /// Tiles of the warp-specialised kernel, where the machine and the types have one.
    pub fn warpgroups(&self, m: &Hardware) -> Option<Warpgroups> {
        // Fewer queries wait for memory, and tiles of 64 rows are mostly empty.
        let sizes = self.queries > FEW && self.packed == 1 && self.keys > 0;
        let widths = self.widest() <= WIDEST && self.widths.iter().all(|n| n.is_multiple_of(8));
        if !m.arch.has_wgmma() || !self.is_half() || !sizes || !widths {
            return None;
        }
        let consumers = if self.queries <= Warpgroups::ROWS { 1 } else { 2 };
        // Scores and sums share the registers of a thread.
        let keys = if self.widest() > 128 { 64 } else { 128 };
        Some(Warpgroups { consumers, keys, left: if self.widest() > 64 { 1 } else { 2 } })
    }
    /// Predicted seconds of the warp-specialised kernel, without its launch: rounds of tiles, each of so many iterations.
    fn seconds_by_warpgroups(&self, w: &Warpgroups, m: &Hardware) -> f64 {
        let per = w.rows();
        let width: usize = self.widths.iter().map(|n| n.next_multiple_of(16)).sum();
        let each = 2. * (per * w.keys * width) as f64 / m.attention.warpgroups;
        let blocks = self.queries.div_ceil(per);
        let iterations = |block: usize| {
            let seen = if self.causal { self.keys.min((block + 1) * per) } else { self.keys };
            seen.div_ceil(w.keys)
        };
        let (tiles, processors) = (self.heads * blocks, m.units.multiprocessors);
        let rounds = match self.causal {
            // Short tiles fill what long ones leave.
            true => (self.heads * (0..blocks).map(iterations).sum::<usize>()).div_ceil(processors),
            false => tiles.div_ceil(processors) * iterations(0),
        };
        each * rounds.max(iterations(blocks.saturating_sub(1))) as f64
    }
    /// Predicted seconds of the fused program, without its launch.
    pub fn predicted(&self, m: &Hardware) -> f64 {
        match self.way(m) {
            Way::Warps(tiles) => self.seconds(&tiles, m),
            Way::Warpgroups(w) => self.seconds_by_warpgroups(&w, m),
        }
    }
    /// Predicted seconds with these tiles, without the kernel's launch: those of the longest block, or of all blocks if they share
    /// multiprocessors; and those of the launch that combines slices.
    pub fn seconds(&self, t: &Tiles, m: &Hardware) -> f64 {
        let a = &m.attention;
        let (of_block, of_processor) = if self.is_half() {
            (if t.queries < 64 { a.half_narrow } else { a.half_block }, a.half)
        } else {
            (a.single * a.single_shares[(t.queries.ilog2() as usize).min(7)], a.single)
        };
        let tile = 2. * (t.queries * t.keys) as f64 * (self.widths[0] + self.widths[1]) as f64;
        let each = t.part.div_ceil(t.keys) as f64;
        let blocks = (self.blocks(t.queries) * t.parts) as f64;
        let share = if self.causal && t.parts == 1 { 0.5 + 0.5 / each } else { 1. };
        let joined = if t.parts > 1 { a.join } else { 0. };
        joined
            + (each * tile / of_block)
                .max(blocks * each * share * tile / (of_processor * m.units.multiprocessors as f64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiles(dtype: DType, heads: usize, [queries, keys, width]: [usize; 3]) -> [usize; 3] {
        let z = Sizes { dtype, heads, queries, packed: 1, keys, widths: [width; 2], causal: false };
        let machine = kiln_machine::Arch::Sm90a.machine();
        let t = z.tiles(&Hardware { machine, contract: crate::Contract::default() });
        assert!((t.parts - 1) * t.part < keys && keys <= t.parts * t.part && t.part.is_multiple_of(t.keys), "{t:?}");
        [t.queries, t.keys, t.parts]
    }
    #[test]
    fn heads_that_share_keys_are_packed() {
        let of = |dtype, q: [usize; 3], kv: [usize; 3], causal| {
            let z = Sizes::of(dtype, [&q, &kv, &kv], causal);
            [z.heads, z.queries, z.packed]
        };
        assert_eq!(of(DType::Bf16, [32, 1, 64], [8, 4096, 64], false), [8, 4, 4]);
        assert_eq!(of(DType::Bf16, [32, 8, 64], [4, 4096, 64], false), [4, 64, 8]);
        assert_eq!(of(DType::Bf16, [32, 9, 64], [4, 4096, 64], false), [32, 9, 1]);
        assert_eq!(of(DType::Bf16, [32, 1, 64], [32, 4096, 64], false), [32, 1, 1]);
        assert_eq!(of(DType::Bf16, [32, 4, 64], [8, 4, 64], true), [32, 4, 1]);
        assert_eq!(of(DType::F32, [32, 1, 64], [8, 4096, 64], false), [32, 1, 1]);
    }
    #[test]
    fn few_blocks_are_small_and_split_the_keys() {
        assert_eq!(tiles(DType::F32, 16, [128, 128, 64]), [16, 64, 1]);
        assert_eq!(tiles(DType::F32, 256, [197, 197, 64]), [128, 64, 1]);
        assert_eq!(tiles(DType::F32, 1, [17, 4096, 64]), [16, 64, 64]);
        assert_eq!(tiles(DType::F32, 32, [1, 1024, 128]), [1, 64, 8]);
        assert_eq!(tiles(DType::Bf16, 128, [1024, 1024, 64]), [128, 64, 1]);
        assert_eq!(tiles(DType::Bf16, 8, [1024, 1024, 128]), [64, 128, 1]);
        assert_eq!(tiles(DType::Bf16, 512, [1, 4096, 128]), [16, 64, 1]);
        assert_eq!(tiles(DType::Bf16, 32, [1, 1024, 128]), [16, 64, 16]);
        assert_eq!(tiles(DType::Bf16, 8, [4, 16384, 64]), [16, 128, 64]);
    }
}
