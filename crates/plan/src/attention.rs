//! Tiling of fused attention on a GPU, and its predicted time. Tiles are chosen where they are priced: lowering follows
//! this choice.
//!
//! [`Sizes::tiles`] says how many queries and keys a block takes, and into how many slices the keys are split where
//! there are few blocks. The planner compares the time of these blocks ([`Sizes::seconds`]) with that of two matmuls
//! with a softmax in between. The figures are the machine's ([`kiln_machine::Attention`]).
use crate::{Hardware, Precision};
use kiln_graph::{DType, Op};
use kiln_machine::Beside;

/// Queries and keys per tile, warps per block, and slices of the keys that separate blocks process (a second launch
/// combines them).
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
    /// Keys per slice: a multiple of `keys`.
    pub part: usize,
    /// Number of slices; 1 if the keys are not split.
    pub parts: usize,
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
    /// Blocks of warps that load their operands themselves, with matmuls by `mma`, or on the FMA engine for f32 that is
    /// multiplied exactly.
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
    /// Query heads in the rows of one head: all that share their keys and values, so that these are loaded once. 1: not
    /// packed.
    pub packed: usize,
    /// Keys per head.
    pub keys: usize,
    /// Elements of a query, and of a value.
    pub widths: [usize; 2],
    /// Does each query attend only to keys up to its own position?
    pub causal: bool,
    /// How f32 is multiplied: exactly, or by 3xTF32.
    pub precision: Precision,
}

/// Widest heads that fit in registers.
const WIDEST: usize = 256;
/// Elements of a tile of keys for fewer than 64 queries, with half types.
const NARROW: usize = 8192;
/// Most rows of queries of a group of heads that share their keys, for which they are packed: more fill tiles of their
/// own.
const PACKED: usize = 64;
/// Widest heads of f32 of which 128 queries and their sums fit in the registers of 8 warps.
const WIDE: usize = 96;
/// Most queries for which tiles have 16 rows.
const FEW: usize = 32;
/// Most slices of keys per multiprocessor: the tiles that run one after the other.
const ROUNDS: usize = 2;
/// Least number of blocks of 128 queries per multiprocessor for which these are used: with fewer, multiprocessors would
/// be idle.
const TWICE: usize = 2;

/// Queries of a block of the kernel that looks for the keys that a mask leaves.
pub const MASK_ROWS: usize = 32;
/// Its operations for a pair of a query and a key, with those that wait for memory. An estimate, as those of a softmax
/// are.
const MASK_OPS: f64 = 20.;
/// Most of an attention's time that this kernel may take.
const LOOKING: f64 = 0.1;

/// Narrowest part of a head: the depth of a matmul on tensor cores.
const LEAST: usize = 16;
/// Most parts of a head: each costs matmuls of its own.
const PARTS: usize = 3;

/// Powers of two, largest first, that cover the columns of a head: tiles have such sizes, and the next one above a
/// width may have almost twice its columns.
pub fn parts(width: usize) -> Vec<usize> {
    let whole = width.next_power_of_two().max(LEAST);
    let (mut all, mut left) = (vec![], width);
    while left > 0 && all.len() < PARTS {
        let up = left.next_power_of_two().max(LEAST);
        let part = if all.len() + 1 == PARTS || up == LEAST || up == left { up } else { up / 2 };
        all.push(part);
        left = left.saturating_sub(part);
    }
    // Equal ones are one of twice the size.
    while let [.., a, b] = all[..]
        && a == b
    {
        all.truncate(all.len() - 2);
        all.push(2 * a);
    }
    if width > 0 && all.iter().sum::<usize>() < whole { all } else { vec![whole] }
}

/// Columns of a head as tiles have them.
fn columns(width: usize) -> usize {
    parts(width).iter().sum()
}

impl Sizes {
    /// The sizes for operands of these shapes (batch…, heads, rows, columns), multiplied exactly.
    pub fn of(dtype: DType, [q, k, v]: [&[usize]; 3], causal: bool) -> Sizes {
        let end = |s: &[usize], i: usize| s.len().checked_sub(i).and_then(|at| s.get(at)).copied().unwrap_or(1);
        let heads: usize = q[..q.len().saturating_sub(2)].iter().product();
        let (queries, group) = (end(q, 2), end(q, 3) / end(k, 3).max(1));
        let mut sizes = Sizes {
            dtype,
            heads,
            queries,
            packed: 1,
            keys: end(k, 2),
            widths: [end(q, 1), end(v, 1)],
            causal,
            precision: Precision::Exact,
        };
        // A causal mask ends a block's keys by its queries' positions, which rows of several heads do not have in
        // order.
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
    /// These sizes in the precision in which this machine multiplies them: f32 by 3xTF32 where the contract allows a
    /// matmul as much or less, and that is predicted to be faster.
    pub fn settled(self, m: &Hardware) -> Sizes {
        let split = Sizes { precision: Precision::Tf32x3, ..self };
        // The prediction depends on the batch.
        let allowed = m.f32_matmul(&Op::Dot).0 != Precision::Exact && !m.contract.batch_invariant;
        // Tiles of a single query have no matmuls.
        let applies = self.dtype == DType::F32 && self.queries > 1 && m.attention.tf32x3 > 0.;
        if allowed && applies && split.predicted(m) < self.predicted(m) { split } else { self }
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
        let columns = self.widths.map(columns).into_iter().max().unwrap_or(widest);
        let fills = |queries: usize| queries <= rows && m.counted(self.blocks(queries)) >= m.attention.enough;
        if self.precision == Precision::Tf32x3 {
            // With 128 registers a thread, two blocks share a multiprocessor, and one multiplies while the other loads.
            let keys = if columns > 96 && columns <= 128 { 32 } else { 64 };
            return if fills(64) { [64, keys, 8] } else { [16, 64, 4] };
        }
        let large = [[128, 64, 8], [64, if widest == 128 { 128 } else { 64 }, 8], [32, 64, 8]];
        let fits = |b: &&[usize; 3]| fills(b[0]) && (b[0] < 128 || columns <= WIDE);
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
        let warps = Way::Warps(tiles);
        match self.warpgroups(m).map(Way::Warpgroups) {
            Some(warpgroups) if z.seconds_by(&warpgroups, m) <= z.seconds_by(&warps, m) => warpgroups,
            _ => warps,
        }
    }
    /// Ways to write the program: those of both kinds that their prices choose, in more slices of the keys and in
    /// fewer.
    pub fn ways(&self, m: &Hardware) -> Vec<Way> {
        if m.contract.batch_invariant {
            let warps = Way::Warps(self.tiles(m));
            let way = self.way(m);
            return if way == warps { vec![way] } else { vec![way, warps] };
        }
        let slices = |keys: usize, parts: usize| {
            let all = self.seen().div_ceil(keys).max(1);
            let cut = move |n: usize| {
                let part = all.div_ceil(n.min(all)) * keys;
                (part, self.seen().div_ceil(part).max(1))
            };
            let mut cuts: Vec<(usize, usize)> = [1, parts / 2, parts, 2 * parts].map(|n| cut(n.max(1))).to_vec();
            cuts.dedup();
            cuts
        };
        let mut all = vec![];
        if let Some(w) = self.warpgroups(m) {
            for consumers in [2, 1] {
                let cuts = slices(w.keys, w.parts).into_iter();
                all.extend(cuts.map(|(part, parts)| Way::Warpgroups(Warpgroups { consumers, part, parts, ..w })));
            }
        }
        let t = self.tiles(m);
        let cuts = slices(t.keys, t.parts).into_iter();
        all.extend(cuts.map(|(part, parts)| Way::Warps(Tiles { part, parts, ..t })));
        all
    }
    /// Predicted seconds of a way to write the program, without its launch.
    pub fn seconds_by(&self, way: &Way, m: &Hardware) -> f64 {
        match way {
            Way::Warps(tiles) => {
                // Keys and values are read, and sums of slices written and read again.
                let width: usize = self.widths.iter().sum();
                let sums = if tiles.parts > 1 { 8 * tiles.parts * self.queries * self.widths[1] } else { 0 };
                let bytes = self.heads * (self.keys * width * self.dtype.bytes() + sums);
                self.seconds_by_warps(tiles, m).max(bytes as f64 / m.rates.bandwidth)
            }
            Way::Warpgroups(w) => self.seconds_by_warpgroups(w, m),
        }
    }
    /// Tiles of the warp-specialised kernel, where the machine and the types have one. Keys are split into slices where
    /// tiles are few and that is predicted to be faster.
    pub fn warpgroups(&self, m: &Hardware) -> Option<Warpgroups> {
        // Fewer queries wait for memory, and tiles of 64 rows are mostly empty.
        let sizes = self.queries > FEW && self.keys > 0;
        let widths = self.widest() <= WIDEST && self.widths.iter().all(|n| n.is_multiple_of(8));
        if !m.arch.has_wgmma() || !self.is_half() || !sizes || !widths {
            return None;
        }
        let consumers = if self.queries <= Warpgroups::ROWS { 1 } else { 2 };
        // Scores and sums share the registers of a thread.
        let keys = if self.widest() > 128 { 64 } else { 128 };
        let all = self.seen().div_ceil(keys);
        let whole =
            Warpgroups { consumers, keys, left: if self.widest() > 64 { 1 } else { 2 }, part: all * keys, parts: 1 };
        let z = Sizes { heads: m.counted(self.heads), ..*self };
        let tiles = z.blocks(whole.rows()).max(1);
        // As many slices as fill so many rounds.
        let cut = |rounds: usize| {
            let parts = (rounds * m.units.multiprocessors / tiles).clamp(1, all);
            let part = all.div_ceil(parts) * keys;
            Warpgroups { part, parts: self.seen().div_ceil(part), ..whole }
        };
        let all = std::iter::once(whole).chain((1..=ROUNDS).map(cut));
        all.min_by(|a, b| z.seconds_by_warpgroups(a, m).total_cmp(&z.seconds_by_warpgroups(b, m)))
    }
    /// Predicted seconds of the warp-specialised kernel, without its launch: rounds of tiles, each of so many
    /// iterations; and of the launch that combines slices.
    fn seconds_by_warpgroups(&self, w: &Warpgroups, m: &Hardware) -> f64 {
        let (per, processors) = (w.rows(), m.units.multiprocessors);
        let width: usize = self.widths.iter().map(|n| n.next_multiple_of(16)).sum();
        let blocks = self.queries.div_ceil(per);
        let keys = w.keys * width * self.dtype.bytes();
        let of = &m.attention.warpgroups;
        let loading = (keys * processors) as f64 / (of.pull * m.rates.bandwidth);
        let multiplied = 2. * (per * w.keys * width) as f64 / of.rate;
        let each = multiplied.max(loading).max((per * w.keys) as f64 / of.exponentials) + of.beside.iteration;
        let iterations = |block: usize| {
            let seen = if self.causal { self.keys.min((block + 1) * per) } else { self.keys };
            seen.div_ceil(w.keys).div_ceil(w.parts)
        };
        let tiles = self.heads * blocks * w.parts;
        let (rounds, begun) = match self.causal {
            // Short tiles fill what long ones leave.
            true => {
                let all = self.heads * w.parts * (0..blocks).map(iterations).sum::<usize>();
                (all.div_ceil(processors), tiles as f64 / processors as f64)
            }
            false => (tiles.div_ceil(processors) * iterations(0), tiles.div_ceil(processors) as f64),
        };
        let joined = match w.parts {
            1 => 0.,
            // Sums of slices are written and read again.
            parts => {
                of.beside.join + (2 * 4 * parts * self.heads * self.queries * self.widths[1]) as f64 / m.rates.bandwidth
            }
        };
        // Where a head has one tile, no other reads its keys.
        let bytes = if blocks == 1 { self.heads * self.keys * width * self.dtype.bytes() } else { 0 };
        let iterated = each * rounds.max(iterations(blocks.saturating_sub(1))) as f64;
        joined + (iterated + of.beside.tile * begun.max(1.)).max(bytes as f64 / m.rates.bandwidth)
    }
    /// Whether a kernel before the warp-specialised one may look for the blocks of keys that a mask leaves: it
    /// evaluates the mask for every pair of a query and a key, once for all heads that share it. What that saves
    /// depends on data. `masks`: heads that have masks of their own.
    pub fn finds_keys(&self, masks: usize, m: &Hardware) -> bool {
        let pairs = (masks * self.queries * self.seen()) as f64;
        let blocks = masks * self.queries.div_ceil(MASK_ROWS);
        let busy = blocks as f64 / m.units.multiprocessors as f64;
        let looking = m.rates.launch + pairs * MASK_OPS / (m.rates.alu * busy.min(1.));
        looking <= LOOKING * self.predicted(m)
    }
    /// Predicted seconds of the fused program, without its launch.
    pub fn predicted(&self, m: &Hardware) -> f64 {
        self.seconds_by(&self.way(m), m)
    }
    /// Predicted seconds with these tiles, without the kernel's launch: those of the longest block, or of all blocks if
    /// they share multiprocessors; and those of the launch that combines slices.
    pub fn seconds(&self, t: &Tiles, m: &Hardware) -> f64 {
        let a = &m.attention;
        let (of_block, of_processor) = if self.is_half() {
            (if t.queries < 64 { a.half_narrow } else { a.half_block }, a.half)
        } else {
            // A plan may ask for 3xTF32 where its rate is not known.
            let rate = if self.precision == Precision::Tf32x3 && a.tf32x3 > 0. { a.tf32x3 } else { a.single };
            (rate * a.single_shares[(t.queries.ilog2() as usize).min(7)], rate)
        };
        self.seconds_at(t, [of_block, of_processor], Beside { join: a.join, ..Beside::default() }, m)
    }
    /// The same by figures that were fitted, where there are any.
    fn seconds_by_warps(&self, t: &Tiles, m: &Hardware) -> f64 {
        let of = &m.attention.warps;
        match self.is_half() && of.rate > 0. {
            true => self.seconds_at(t, [if t.queries < 64 { of.narrow } else { of.rate }, of.rate], of.beside, m),
            false => self.seconds(t, m),
        }
    }
    /// Predicted seconds at these rates of a block and of a multiprocessor.
    fn seconds_at(&self, t: &Tiles, [of_block, of_processor]: [f64; 2], beside: Beside, m: &Hardware) -> f64 {
        let tile = 2. * (t.queries * t.keys * self.widths.map(columns).iter().sum::<usize>()) as f64;
        let each = t.part.div_ceil(t.keys) as f64;
        let blocks = (self.blocks(t.queries) * t.parts) as f64;
        let share = if self.causal && t.parts == 1 { 0.5 + 0.5 / each } else { 1. };
        let joined = if t.parts > 1 { beside.join } else { 0. };
        let alone = each * (tile / of_block + beside.iteration);
        let together = blocks * (each * share * tile / of_processor + beside.tile) / m.units.multiprocessors as f64;
        joined + alone.max(together)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiles(dtype: DType, heads: usize, [queries, keys, width]: [usize; 3]) -> [usize; 3] {
        let z = Sizes {
            dtype,
            heads,
            queries,
            packed: 1,
            keys,
            widths: [width; 2],
            causal: false,
            precision: Precision::Exact,
        };
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
    #[test]
    fn parts_cover_a_width_with_less_than_the_next_power_of_two() {
        let known: [(usize, &[usize]); 13] = [
            (1, &[16]),
            (16, &[16]),
            (17, &[32]),
            (24, &[32]),
            (40, &[32, 16]),
            (64, &[64]),
            (72, &[64, 16]),
            (88, &[64, 32]),
            (96, &[64, 32]),
            (152, &[128, 32]),
            (160, &[128, 32]),
            (200, &[128, 64, 16]),
            (255, &[256]),
        ];
        for (width, want) in known {
            assert_eq!(parts(width), want, "{width}");
        }
        for width in 1..=512 {
            let all = parts(width);
            let (sum, whole) = (all.iter().sum::<usize>(), width.next_power_of_two().max(LEAST));
            assert!(sum >= width && sum <= whole && (all.len() == 1 || sum < whole), "{width}: {all:?}");
            assert!(all.len() <= PARTS && all.iter().all(|p| p.is_power_of_two() && *p >= LEAST), "{width}: {all:?}");
            assert!(all.windows(2).all(|w| w[0] > w[1]), "{width}: {all:?}");
        }
    }
    #[test]
    fn f32_is_split_where_the_contract_and_the_price_allow_it() {
        let mut machine = kiln_machine::Arch::Sm90a.machine().clone();
        (machine.attention.single, machine.attention.tf32x3) = (200e9, 300e9);
        let of = |machine: &kiln_machine::Machine, contract: &str, dtype, queries| {
            let m = Hardware { machine, contract: contract.parse().expect("a contract") };
            let z = [32, queries, 64];
            Sizes::of(dtype, [&z, &[32, 1024, 64], &[32, 1024, 64]], false).settled(&m).precision
        };
        for (contract, want) in [
            ("torch", Precision::Exact),
            ("exact", Precision::Exact),
            ("torch+splits", Precision::Tf32x3),
            ("exact+splits", Precision::Tf32x3),
            ("fast", Precision::Tf32x3),
            ("fast+no_tf32", Precision::Exact),
            ("torch+splits+batch_invariant", Precision::Exact),
            ("fast+batch_invariant", Precision::Exact),
        ] {
            assert_eq!(of(&machine, contract, DType::F32, 512), want, "{contract}");
        }
        // A single query has no matmuls, and half types have tensor cores of their own.
        assert_eq!(of(&machine, "torch+splits", DType::F32, 1), Precision::Exact);
        assert_eq!(of(&machine, "torch+splits", DType::Bf16, 512), Precision::Exact);
        let slow = kiln_machine::Attention { tf32x3: 100e9, ..machine.attention.clone() };
        let slow = kiln_machine::Machine { attention: slow, ..machine.clone() };
        assert_eq!(of(&slow, "torch+splits", DType::F32, 512), Precision::Exact);
        let none = kiln_machine::Attention { tf32x3: 0., ..machine.attention.clone() };
        let none = kiln_machine::Machine { attention: none, ..machine.clone() };
        assert_eq!(of(&none, "torch+splits", DType::F32, 512), Precision::Exact);
        // Where no matmul may, attention may not.
        let mut other = machine.clone();
        other.rates.tf32x3 = None;
        assert_eq!(of(&other, "torch+splits", DType::F32, 512), Precision::Exact);
    }
    #[test]
    fn padding_is_priced() {
        let seconds = |width: usize| {
            let q = [64, 1024, width];
            let z = Sizes::of(DType::F32, [&q, &q, &q], false);
            let m = Hardware { machine: kiln_machine::Arch::Sm90a.machine(), contract: crate::Contract::default() };
            z.seconds(&Tiles { queries: 64, keys: 64, warps: 8, part: 1024, parts: 1 }, &m)
        };
        assert_eq!((seconds(152), seconds(255)), (seconds(160), seconds(256)));
        assert!(seconds(160) < 0.63 * seconds(256));
    }
}
