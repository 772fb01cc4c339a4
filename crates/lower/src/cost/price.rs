//! The cost model of nests: predicts the microseconds of a schedule, term by term.
//!
//! Takes: a nest in numbers and a schedule that fits it. Gives: its time. What instances hold, load and exchange is
//! counted from the layout that code generation gives a tile (`crates/block/src/passes/layout`); rates and latencies
//! are those of the machine ([`kiln_machine::Nests`]). Never: chooses, or looks at a program.
use crate::cost::features::{Access, NestFeatures, SECTOR};
use crate::schedule::{look_back, widen};
use kiln_machine::Nests;
use kiln_plan::Hardware;

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

impl TileFootprint {
    /// The price, term by term.
    pub fn price(&self, facts: &NestFeatures, machine: &Hardware) -> Price {
        let (w, m, units, limits) = (self, &machine.nests, &machine.units, &machine.limits);
        let multiprocessors = units.multiprocessors as f64;
        let cycles = units.clock / 1e6;
        let of_block = (w.warps / w.blocks).max(1.0);
        let threads = WARP * of_block;
        let steps = w.passes * w.trips;
        let (scans, levels) = (facts.scans as f64, facts.levels as f64);
        // Blocks that fit a multiprocessor.
        let (file, registers, most) = w.allocated(facts, machine);
        let spilled = w.spilled(facts, machine);
        let by_threads = (limits.warps_per_multiprocessor as f64 / of_block).floor();
        let mut resident = (file / (registers.min(most) * threads)).floor();
        resident = resident.min(by_threads).min(limits.blocks_per_multiprocessor as f64).max(1.0);
        if w.persist > 0.0 {
            resident = 1.0;
        }
        let clusters = limits.clusters_of(w.blocks as usize) as f64;
        let at_once = if w.blocks > 1.0 { clusters * resident } else { multiprocessors * resident };
        let launched = if w.persist > 0.0 { w.persist } else { w.instances };
        let per = w.instances / launched;
        let rounds = launched / at_once;
        let reductions = facts.reductions as f64 + scans * w.trips;
        let barriers = levels + scans * w.trips;
        let waits = if w.across_blocks > 0 {
            barriers * m.cluster
        } else if let Some(group) = w.look_back {
            // For the chunks just before, and for the reads of all others' totals.
            let at_once = look_back::at_once(w.warps as usize, (w.tile / w.chunk) as usize) as f64;
            let groups = f64::from(u8::from(group > 1.0));
            m.look_back * (1.0 + groups) + m.totals * (groups + w.looked_back(group) / at_once)
        } else {
            0.0
        };
        // Multiprocessors that have work.
        let used = multiprocessors.min(launched * w.blocks).min(if w.blocks > 1.0 {
            clusters * w.blocks
        } else {
            multiprocessors
        });
        let instructions = w.instructions(facts);
        let issue = instructions * m.issue * w.instances / (used * 4.0 * cycles);
        // One instance, without the time that it shares with others.
        let own = instructions / w.warps / cycles * m.warp;
        let one = if w.persist > 0.0 {
            m.latency / per + waits + own
        } else {
            m.latency * if w.prefetch { 0.0 } else { steps } + waits + own
        };
        let counted = if rounds < 4.0 { (rounds - 1e-9).ceil() } else { rounds + 0.5 }.max(1.0);
        let times = if w.persist > 0.0 { per } else { 1.0 };
        let latency = counted * one * times;
        // Memory.
        let bytes = facts.bytes as f64;
        let mut moved = bytes + m.page * w.spans * w.instances;
        // What is needed again is in the L2 cache if not too much else was meanwhile.
        let of_instance = bytes / w.instances.max(1.0);
        let lost = |instances: f64| {
            1.0 / (1.0 + (m.reread_l2_share * units.l2 as f64 / (instances * of_instance).max(1.0)).powi(2))
        };
        if w.passes > 1.0 {
            let read = 0.5 * moved;
            let kept = if w.reversed { (m.l2_usable_share * units.l2 as f64 / read).min(1.0) } else { 0.0 };
            moved += (w.passes - 1.0 - kept) * read * lost(at_once.min(launched));
        }
        let twice = |next: f64| m.edges + (1.0 - m.edges) * lost(next);
        moved += w.shared.iter().map(|(bytes, next)| bytes * twice(*next)).sum::<f64>() * w.instances;
        let warm = 1.0 + m.l2_speedup / (1.0 + (bytes / (m.l2_usable_share * units.l2 as f64)).powi(6));
        // In a last wave that is not full, memory is not either.
        let wave = if rounds > 1.0 { 1.0 + m.wave * (rounds.ceil() / rounds - 1.0) } else { 1.0 };
        let memory = moved / (m.bandwidth * machine.rates.bandwidth / 1e6) / warm * wave;
        // A store takes as long for a part of a cache line as for all of it. What a window loads for each of its
        // results takes longer.
        let written = if facts.window { 0.0 } else { w.written / m.stores };
        let cache = (w.sectors / m.cache).max(written) * w.instances / (machine.rates.bandwidth / 1e6);
        let l1 = w.lines * w.instances * m.line / (used * cycles);
        let dispatch = m.dispatch * w.instances * w.blocks;
        // Each block of a cluster sends its partial results to all.
        let sent = if w.across_blocks > 0 { reductions * w.tile / w.chunk * w.blocks * w.blocks } else { 0.0 };
        let remote = sent * w.instances * m.remote / (used * cycles);
        let beside = resident.min((launched * w.blocks / used).max(1.0));
        // Words that do not fit registers go to the L2 cache and back.
        let spills = spilled * m.spilled * WARP * w.warps * w.instances * (1.0 + levels) * steps;
        // An instance that looks back reads the totals of half its row's chunks, or groups, each a word.
        let totals = w.look_back.map_or(0.0, |group| w.instances * w.looked_back(group) * (w.tile / w.chunk) * 8.0);
        let stream = memory.max(cache) + (spills + totals) / (m.cache * machine.rates.bandwidth / 1e6);
        // What takes longest hides most of the rest, the more so the more blocks there are; of the latency of a round,
        // they hide each other's.
        let beside = beside.max(1.0);
        // Blocks that share a row wait for each other; cluster exchange is priced in `remote`. Rows that are copied
        // ahead arrive meanwhile, as those of another block do.
        let apart = if w.along { (beside / w.blocks).max(1.0) } else { beside };
        let ahead = w.prefetch || w.persist > 0.0;
        let apart = apart + f64::from(u8::from(ahead));
        let power = 2.0 - m.lone_block_penalty / apart;
        // Loads of a step of a loop follow those of the step before; rows that are copied ahead do not.
        let chain = if steps > 1.0 && !ahead { m.chain * rounds.max(1.0) * steps } else { 0.0 };
        let kinds = [stream, l1, issue, dispatch, remote, chain];
        let together = kinds.iter().map(|t| t.powf(power)).sum::<f64>().powf(1.0 / power);
        // A part of the first round, or step of a loop, and of the last one overlaps nothing, the less the fewer blocks
        // there are.
        let ramp = m.ramp * rounds.min(1.0) / (rounds.max(1.0) * times * steps).max(1.0);
        let busy = together * (1.0 + ramp) + latency / beside;
        let exposed = m.exposed * one;
        let launch = m.launch;
        let mut second = if w.copies { m.second } else { 0.0 };
        // The launch that clears what is waited for overlaps the one before it.
        if w.look_back.is_none() && w.parts > 1.0 {
            second += self.joins(facts, m, machine);
        }
        let us = busy + exposed + launch + second;
        Price { us, launch, memory, cache, l1, issue, latency, exposed, extra_launches: second }
    }

    /// Totals of a row that an instance reads on average, where sums of so many chunks are published too.
    fn looked_back(&self, group: f64) -> f64 {
        if group > 1.0 { group / 2.0 + self.parts / (2.0 * group) } else { self.parts / 2.0 }
    }
    /// The launches that combine partial results.
    fn joins(&self, facts: &NestFeatures, m: &Nests, machine: &Hardware) -> f64 {
        let rows = self.tile / self.chunk;
        let bytes = self.parts * self.unshared_instances * rows * 4.0;
        let rate = m.cache * machine.rates.bandwidth / 1e6;
        if let Some(count) = self.wide {
            let columns = widen::together(self.parts as usize, count) as f64;
            let blocks = self.unshared_instances * rows / count as f64 / columns;
            let share = (blocks / machine.units.multiprocessors as f64).min(1.0);
            let values = 1.0 + f64::from(u8::from(self.stored_along));
            let sectors = (SECTOR as f64 / (4.0 * columns)).max(1.0);
            return values * (m.second + bytes * sectors / (rate * share));
        }
        let later = facts.passes.max(1) as f64;
        let each = if self.stored_along || facts.passes > 1 { self.parts } else { 1.0 };
        later * (m.second + bytes * each / rate)
    }
}
