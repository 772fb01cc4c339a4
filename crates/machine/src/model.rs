//! Parameters of the cost models that choose schedules: not facts of the hardware but fitted to measurements on it, one
//! set per machine. Cycles are clock cycles at [`Units::clock`](crate::Units::clock).
//!
//! Each model has launches of its own, since each counts another part of one. No figure has the time of the host, which
//! queues launches ahead.
//!
//! - [`Rates::launch`](crate::Rates::launch): a whole kernel that does next to nothing;
//! - [`Nests::launch`]: the start of a kernel behind another one; what its first and last instances wait for is in
//!   [`Nests::exposed`], its blocks in [`Nests::dispatch`];
//! - [`Nests::second`]: one more kernel for the same nest, all of it but its bytes;
//! - [`Gemm::start`], [`Warpgroups::fill`]: the start of a matmul's main kernel, with the first loads of its operands;
//! - [`Gemm::launch`], [`Gemm::dependent_launch`]: a kernel beside the matmul, all of it but its bytes, after the end
//!   of the kernel before it or overlapping that;
//! - [`Attention::join`], [`Beside::join`]: the kernel that combines slices of keys, all of it but its bytes.
use serde::{Deserialize, Serialize};

/// Kernels over rows, beside [`Nests`].
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// Bytes that are read between a program instance and the one whose rows it prefetches into L2: enough to cover
    /// memory latency at full bandwidth, few enough that the rows are not evicted before they are used.
    pub prefetch_distance: usize,
}

/// Points, rows and scans: the cost model of schedules. Microseconds, cycles of a warp's scheduler, and ratios.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nests {
    /// Microseconds from the end of the kernel before to the first instruction: without the latency of the first
    /// instances, which is [`Nests::exposed`], and without blocks, which are [`Nests::dispatch`].
    pub launch: f64,
    /// Microseconds to dispatch a block.
    pub dispatch: f64,
    /// Bandwidth of memory, relative to [`Rates::bandwidth`](crate::Rates::bandwidth).
    pub bandwidth: f64,
    /// Bandwidth of the L2 cache, relative to the same.
    pub cache: f64,
    /// Rate at which it takes stores, each as the whole cache lines that it touches, relative to the same.
    pub stores: f64,
    /// How much faster memory is where everything fits the L2 cache, and the share of the cache that counts for it.
    pub l2_speedup: f64,
    /// The share.
    pub l2_usable_share: f64,
    /// Share of the L2 cache from which on rows that are read again come from memory.
    pub reread_l2_share: f64,
    /// Share of the bytes that two instances share at the edges of their tiles that memory transfers twice.
    pub edges: f64,
    /// Microseconds of a load.
    pub latency: f64,
    /// Microseconds of a step of a loop, which waits for its loads before those of the next step are issued.
    pub chain: f64,
    /// Microseconds of a reduction across the blocks of a cluster.
    pub cluster: f64,
    /// Microseconds that a chunk of a scanned row waits for those just before it.
    pub look_back: f64,
    /// Microseconds of a read of the totals of chunks long before.
    pub totals: f64,
    /// How much slower memory is while the last wave of instances leaves multiprocessors idle, as a share of their idle
    /// time.
    pub wave: f64,
    /// How much less the kinds of work of a block overlap that is alone on its multiprocessor.
    pub lone_block_penalty: f64,
    /// Share of a round of resident instances that overlaps nothing, where a kernel begins and ends.
    pub ramp: f64,
    /// Cycles of a cache line that a warp's access touches.
    pub line: f64,
    /// Cycles of a scheduler for an instruction.
    pub issue: f64,
    /// Bytes of traffic for a word that is kept in memory for want of registers.
    pub spilled: f64,
    /// Cycles of a multiprocessor for a number that a block sends to one of its cluster.
    pub remote: f64,
    /// Cycles of an instruction of a warp alone.
    pub warp: f64,
    /// Bytes that the start of a span of memory costs.
    pub page: f64,
    /// Share of an instance's time that others do not hide.
    pub exposed: f64,
    /// Microseconds of a further kernel of the same nest, which combines partial results or copies operands: start,
    /// latency and end, all but its bytes.
    pub second: f64,
}

/// Matmuls without software pipelining, and copies of operands and results around a matmul.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gemm {
    /// Cycles of the launch of tiles without pipelining, up to their first matmul.
    pub start: f64,
    /// Bytes per cycle that these read and write, from and to memory.
    pub memory: f64,
    /// Tiles by `mma`.
    pub mma: Tiles,
    /// Tiles by FMAs.
    pub fma: Tiles,
    /// Cycles of a kernel beside a matmul that starts after the one before it has ended, all but its bytes: the splits
    /// of 3xTF32 operands, and half the transposes.
    pub launch: f64,
    /// The same where its start overlaps the end of the kernel before (programmatic dependent launch): copies, sums of
    /// slices, and the other half.
    pub dependent_launch: f64,
    /// Bytes per cycle that the kernels of either kind of launch read and write.
    pub read: f64,
}

/// Tiles without pipelining, whose operands are loaded to registers.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tiles {
    /// Cycles of latency of a step of K.
    pub step: f64,
    /// Cycles on top for each byte that a thread loads.
    pub loading: f64,
    /// Share of a step's arithmetic that its loads do not hide in an instance alone.
    pub exposed: f64,
    /// Instructions for each element of rows that are not aligned, which are read element by element.
    pub unaligned: f64,
    /// The same for elements whose index is computed.
    pub gathered: f64,
    /// The same where a tile has a column of its own for each thread: what depends on k is the same for all of them.
    pub own_column: f64,
    /// FMAs per cycle and multiprocessor, in a tile so large that its operands cost nothing.
    pub rate: f64,
    /// What operands cost: FMAs take `1 + narrow · (1/rows + 1/columns)` times as long in a tile.
    pub narrow: f64,
    /// Bytes per cycle from the L2 cache to a multiprocessor.
    pub cache: f64,
    /// Cycles for each element of a thread in the epilogue.
    pub finish: f64,
    /// Cycles for each operation of the epilogue on such an element.
    pub after: f64,
}

/// Warpgroup matmuls. All rates are per clock cycle.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Warpgroups {
    /// Bytes from L2 to one multiprocessor.
    pub cache: f64,
    /// Fraction of that for rows that are no multiple of 128 bytes apart, which cross lines of the cache.
    pub crossing: f64,
    /// Bytes of rows outside of an operand, which a copy fills with zeros.
    pub outside: f64,
    /// Bytes from L2 to all multiprocessors that none share: rows that an implicit GEMM reads for each point of its
    /// window.
    pub windows: f64,
    /// Bytes that the epilogue reads beside the accumulators, per multiprocessor.
    pub beside: f64,
    /// Bytes from memory to all multiprocessors.
    pub all: f64,
    /// Bytes of shared memory per multiprocessor, written by copies and read by tensor cores.
    pub shared: f64,
    /// Cycles of memory latency of a copy. The bytes in flight divided by it are the bandwidth of one multiprocessor.
    pub latency: f64,
    /// Factor on the bytes of results whose rows end within a line of the cache.
    pub ragged: f64,
    /// Cycles of the launch of the persistent kernel, and until its ring of operand stages is full for the first time.
    pub fill: f64,
    /// Cycles on top for clusters.
    pub cluster: f64,
    /// Cycles of the epilogue of a tile of any size.
    pub finish: f64,
    /// Cycles on top of [`Warpgroups::finish`] for a tile of 128x256; proportionally fewer for smaller tiles.
    pub finish_wide: f64,
    /// Epilogue operations per multiprocessor.
    pub after: f64,
    /// Cycles per tile to hand the tensor cores over from one consumer to the other (ping-pong).
    pub pass: f64,
    /// Cycles in which a consumer reads 64 rows of a left operand to registers, of 128 bytes along K, and rounds them.
    pub registers: f64,
    /// Cycles, for each column of a tile, of the matmuls from registers that run meanwhile: tensor cores hold few of
    /// them ahead.
    pub flight: f64,
    /// Arithmetic rates.
    pub engines: Engines,
}

/// FMAs per cycle and multiprocessor, by operand type.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Engines {
    /// bf16 and f16.
    pub half: f64,
    /// f32 operands rounded to tf32.
    pub tf32: f64,
    /// f32 by 3xTF32, in FMAs of the f32 matmul.
    pub tf32x3: f64,
    /// f8e4m3 and f8e5m2.
    pub f8: f64,
    /// f32 without tensor cores (SIMT), by tile size, largest first; the last entry holds for tiles of any size.
    pub single: Vec<Simt>,
}
/// The SIMT rate for tiles of at least `area` elements; threads with fewer elements load more operands per FMA.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simt {
    /// Elements of the result tile, at least.
    pub area: usize,
    /// FMAs per cycle and multiprocessor.
    pub rate: f64,
    /// The same if both operands are M/N-major (contiguous along the result's axes, not along K).
    pub transposed: f64,
}

impl Engines {
    /// f32 FMAs per cycle and multiprocessor without tensor cores, for tiles of `area` elements; `transposed` as
    /// [`Simt::transposed`].
    pub fn single(&self, area: usize, transposed: bool) -> f64 {
        let of = self.single.iter().find(|t| area >= t.area).or(self.single.last());
        of.map_or(0.0, |t| if transposed { t.transposed } else { t.rate })
    }
}

/// Fused attention.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Flops per second and multiprocessor with half types.
    pub half: f64,
    /// Flops per second and multiprocessor with f32.
    pub single: f64,
    /// Flops per second and multiprocessor with f32 by 3xTF32, in flops of the f32 matmuls; 0 where it is not used.
    #[serde(default)]
    pub tf32x3: f64,
    /// Flops per second of a single block of fewer than 64 queries, with half types.
    pub half_narrow: f64,
    /// Flops per second of a single block of 64 queries or more, with half types.
    pub half_block: f64,
    /// The price of programs with half types by warps, where it was fitted.
    #[serde(default)]
    pub warps: WarpAttention,
    /// Persistent blocks with half types by warpgroups; without these, zeros.
    #[serde(default)]
    pub warpgroups: WarpgroupAttention,
    /// Fraction of [`Attention::single`] (or [`Attention::tf32x3`]) that a single block reaches with f32: with 1, 2, 4,
    /// … 128 queries.
    pub single_shares: [f64; 8],
    /// Number of large blocks that fills the GPU.
    pub enough: usize,
    /// Number of concurrent blocks up to which more slices of the keys make attention faster.
    pub most: usize,
    /// The same for blocks of fewer than 64 queries, with half types: they wait for memory.
    pub most_narrow: usize,
    /// Seconds of the second kernel, which combines the slices after the first has ended, all but its bytes.
    pub join: f64,
}

/// What blocks of attention take beside flops.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// Seconds of an iteration over keys.
    pub iteration: f64,
    /// Seconds of a tile of queries.
    pub tile: f64,
    /// Seconds of the second kernel, which combines slices and whose start overlaps the end of the first, all but its
    /// bytes.
    pub join: f64,
}

/// The price of attention by warps with half types.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarpAttention {
    /// Flops per second and multiprocessor.
    pub rate: f64,
    /// Flops per second of a block of fewer than 64 queries.
    pub narrow: f64,
    /// What comes on top.
    pub beside: Beside,
}

/// Attention by warpgroups.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarpgroupAttention {
    /// Flops per second of a block.
    pub rate: f64,
    /// Exponentials per second of a block.
    pub exponentials: f64,
    /// Most that a multiprocessor reads at a time, as a multiple of its share of the memory's bandwidth.
    pub pull: f64,
    /// What comes on top.
    pub beside: Beside,
}

/// Kernels written by hand: what their price has beside the figures of nests and matmuls. Fields that a description
/// omits have the values of an H200.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Handwritten {
    /// Cycles that an instance waits for loads from memory that nothing else hides.
    pub load: f64,
    /// Cycles of an instance's start and end.
    pub instance: f64,
    /// Cycles of a reduction or a scan across the warps of an instance.
    pub exchange: f64,
    /// Share of the shared memory's rate that tiles reach whose operands pass through it to registers.
    pub staged: f64,
    /// How much several bounds of a launch overlap: the exponent of their sum.
    pub overlap: f64,
    /// Seconds of the start of an instance on a thread of a host.
    pub host_instance: f64,
    /// Elements of a block beyond which a thread of a host computes at its full rate; smaller blocks take longer by
    /// their loops' starts and ends.
    pub host_block: f64,
}

impl Default for Handwritten {
    /// Of GPUs: fitted to the times of 22 launches in their configurations on an H200 (`benches/results/kernels.md`),
    /// where they choose what reaches 0.98 of the best in the median. Of hosts: orders of magnitude.
    fn default() -> Handwritten {
        Handwritten {
            load: 270.0,
            instance: 490.0,
            exchange: 560.0,
            staged: 0.5,
            overlap: 1.64,
            host_instance: 60e-9,
            host_block: 64.0,
        }
    }
}

/// How many iterations of a loop are copied ahead. Fields that a description omits have the values of an H200.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pipelines {
    /// Stages of a loop, at most, where two blocks share a multiprocessor.
    pub stages_of_two: usize,
    /// The same where a block has one to itself: its warps alone hide the latency of memory.
    pub stages_of_one: usize,
    /// The same where a producer copies: more gain nothing.
    pub producer_stages: usize,
    /// Stages with which two blocks that have a producer each beat one with more: one computes its epilogue while the
    /// other multiplies.
    pub enough_of_two: usize,
}

impl Default for Pipelines {
    /// Measured on an H200 (`benches/results/kernels.md`). Six stages in place of four for a block alone: 8 products of
    /// 512x2048x2048 in f16 went from 423 to 454 TFLOP/s. Two blocks of four stages in place of one of eight: tiles of
    /// 64x128 of 4096x4096x256 took 26.4 us in place of 38.7.
    fn default() -> Pipelines {
        Pipelines { stages_of_two: 4, stages_of_one: 6, producer_stages: 8, enough_of_two: 4 }
    }
}

/// Time of cuBLASLt matmuls as a fraction of the time of Kiln's own program. Fields that a description omits have the
/// values of an H200.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Library {
    /// Fraction for matmuls in general.
    pub share: f64,
    /// Large half-precision matmuls with a long K: at the power limit the library draws less power.
    pub long: Large,
    /// Least ratio of K to the larger of M and N for a matmul to count as [`Library::long`].
    pub depth: f64,
    /// Large tf32 matmuls whose operands are not both K-major, so that Kiln's program swaps them, or copies
    /// (transposes) one first.
    pub transposed: Large,
}

/// The fraction for matmuls of at least a size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Large {
    /// Number of FMAs, at least.
    pub work: u64,
    /// Fraction of the time of Kiln's own program.
    pub share: f64,
}

impl Default for Library {
    /// cuBLASLt 13 on an H200: the table of GEMMs in `benches/results/gemm.md`. 4096x4096x65536 (M, N, K) took 0.94 of
    /// the time of Kiln's program; with half of that K both took the same time, as did wide matmuls of as much work.
    /// In tf32, 4096 cubed took 0.985 of the time of operands swapped (0.94 of one copied) and 1024 cubed 1.5.
    fn default() -> Library {
        let long = Large { work: 1 << 40, share: 0.94 };
        Library { share: 1.02, long, depth: 8.0, transposed: Large { work: 1 << 36, share: 0.985 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn omitted_library_fields_have_defaults() {
        assert_eq!(serde_json::from_str::<Library>("{}").ok(), Some(Library::default()));
        let some = serde_json::from_str::<Library>(r#"{"share": 0.9}"#).ok();
        assert_eq!(some, Some(Library { share: 0.9, ..Library::default() }));
    }

    #[test]
    fn the_simt_rate_is_that_of_the_largest_tile_that_fits() {
        let of = |area, rate, transposed| Simt { area, rate, transposed };
        let single = vec![of(4096, 70.0, 80.0), of(0, 45.0, 46.0)];
        let e = Engines { single, ..Engines::default() };
        assert_eq!([e.single(8192, false), e.single(4096, true), e.single(100, false)], [70.0, 80.0, 45.0]);
    }
}
