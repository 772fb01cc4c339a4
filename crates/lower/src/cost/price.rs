//! The numbers of the cost model of nests: what a schedule does, and its price.
//!
//! [`crate::cost::tiled_nest`] reads a schedule's steps, [`crate::cost::footprint`] counts what instances hold, load and
//! exchange, in the layout that code generation gives a tile ([`kiln_block::layout::choose()`]), and
//! [`crate::cost::terms`] computes the price from that.
use crate::cost::features::Access;

/// Threads of a warp.
pub const WARP: f64 = 32.0;

/// Predicted microseconds, and where they go. Memory, caches and issue overlap: with many blocks on a multiprocessor
/// they take the root of the sum of their squares, with fewer more, up to their sum. Of the latency counts what
/// resident blocks do not hide of each other's; it, what is exposed, and launches add up.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Price {
    /// All of it; 0 where there is no model, on the host.
    pub us: f64,
    /// The launch.
    pub launch: f64,
    /// Bytes from and to memory, over its bandwidth.
    pub memory: f64,
    /// Sectors from and to the L2 cache.
    pub cache: f64,
    /// Lines of the L1 caches.
    pub l1: f64,
    /// Instructions of all warps.
    pub issue: f64,
    /// Rounds of resident instances, one after the other.
    pub latency: f64,
    /// The start and the end of the kernel, where an instance waits alone.
    pub exposed: f64,
    /// Further launches: partial results, copies of operands.
    pub extra_launches: f64,
}

impl std::ops::Add for Price {
    type Output = Price;
    /// The price of two launches, one after the other.
    fn add(self, b: Price) -> Price {
        Price {
            us: self.us + b.us,
            launch: self.launch + b.launch,
            memory: self.memory + b.memory,
            cache: self.cache + b.cache,
            l1: self.l1 + b.l1,
            issue: self.issue + b.issue,
            latency: self.latency + b.latency,
            exposed: self.exposed + b.exposed,
            extra_launches: self.extra_launches + b.extra_launches,
        }
    }
}

/// A bit of a tile's coordinates: its axis among the splits, and which bit of it.
pub type Bit = (usize, u32);

/// A schedule in numbers: what one instance of its (first) program does.
#[derive(Default, Debug)]
pub struct TileFootprint {
    pub instances: f64,
    pub blocks: f64,
    pub warps: f64,
    /// Most registers of a thread.
    pub limit: Option<f64>,
    /// Elements of the tile; registers of a thread for them, and those of these inside of the nest.
    pub tile: f64,
    pub registers_for_tile: f64,
    pub elements_per_thread: f64,
    /// Chunks of a row that an instance processes, and how often it reads them.
    pub trips: f64,
    pub passes: f64,
    pub whole: bool,
    /// Rows are so many of a matrix, whose results a launch of its own combines.
    pub wide: Option<usize>,
    pub parts: f64,
    pub chunk: f64,
    /// Instances without shared rows.
    pub unshared_instances: f64,
    pub persist: f64,
    pub prefetch: bool,
    /// The last pass begins with what the one before it read last.
    pub reversed: bool,
    pub peeled: bool,
    pub copies: bool,
    pub tail: bool,
    /// All elements are of half types.
    pub halves: bool,
    /// Where instances wait for the totals of those before them: chunks of a group whose sum is published too; 1
    /// without groups.
    pub look_back: Option<f64>,
    /// The row's elements are needed more than once.
    pub rereads_row: bool,
    pub stored_along: bool,
    /// Arrays of whole rows that are stored.
    pub stores: f64,
    /// Partial results of a reduction in a thread; bits of the row along lanes, warps of a block, and blocks.
    pub results: f64,
    pub lanes: u32,
    /// Rows are contiguous in memory.
    pub along: bool,
    pub across_warps: u32,
    pub across_blocks: u32,
    /// Accesses of an instance's warps.
    pub accesses: f64,
    /// 32-bit words that a thread has loaded: all, those that it holds for several levels of reductions, those that it
    /// needs after them.
    pub words: f64,
    /// The words without those beside others.
    pub words_once: f64,
    pub words_live_across: f64,
    pub words_after_reduction: f64,
    /// Elements that move between threads, and those of tiles of several rows that are staged.
    pub moved: f64,
    pub packed: f64,
    /// Bytes of sectors of an instance, spans of memory, and cache lines that its warps' accesses touch, each time.
    pub sectors: f64,
    /// Bytes of cache lines that its warps' stores touch, each time.
    pub written: f64,
    pub spans: f64,
    pub lines: f64,
    /// Instructions of a thread: arithmetic; quotients and bounds, also those that give it coordinates of fused axes.
    pub arithmetic: f64,
    pub indices: f64,
    /// Vectors of a fused axis go on where its last coordinate starts again, so that each element has its own address.
    pub crosses: bool,
    /// Elements of a thread that have bounds of their own, and those of them in vectors.
    pub bounded_elements: f64,
    pub masked: f64,
    /// Passes of shared memory for an element of rows that are staged.
    pub passes_of_rows: f64,
    /// Registers of a thread that its loads fill.
    pub loaded: f64,
    /// Bytes of sectors that an instance shares with one that starts so many instances later.
    pub shared: Vec<(f64, f64)>,
}

/// One access as a tile sees it.
pub struct TiledAccess<'a> {
    pub access: &'a Access,
    /// The split axis along which it is contiguous.
    pub along: Option<usize>,
    /// Different elements of a tile, its spans of memory, the elements of one, and their alignment in bytes.
    pub elements: f64,
    pub spans: f64,
    pub length: f64,
    pub align: usize,
    /// Elements of a tile that follow each other in memory.
    pub run: usize,
    pub vector: usize,
    /// Share of the tiles' elements that are in the nest.
    pub valid: f64,
    /// Cache lines that a warp's access touches; sectors and lines of a store.
    pub lines: f64,
    pub written: [f64; 2],
    /// Elements of a vector have bounds of their own.
    pub masked: bool,
    /// Another access reads the same elements, or their neighbours.
    pub again: bool,
    /// Of a window whose accesses share them: loads of a thread for one of its elements, and elements of each load.
    pub loads: Option<(f64, usize)>,
    /// Instances from one to the next along what is contiguous in memory.
    pub next: f64,
}

pub fn log2(n: usize) -> u32 {
    n.max(1).next_power_of_two().ilog2()
}
