//! The cost model of matmuls by warpgroups, in clock cycles. Its figures are the machine's
//! ([`kiln_machine::Warpgroups`], [`kiln_machine::Gemm`]).
use crate::matmul::Matmul;
use crate::matmul::operands::CopyLaunch;
use crate::matmul::wgmma::shape::{Engine, Shape};
use crate::matmul::wgmma::strided::{Major, SPAN, Side, majors};
use kiln_machine::{Engines, Gemm, Machine, Warpgroups, isa};

/// Cycles of the launches that copy operands.
pub fn copies(launches: &[CopyLaunch], machine: &Machine) -> f64 {
    let gemm = &machine.gemm;
    let cycles = |launch: &CopyLaunch| match *launch {
        CopyLaunch::Copy { bytes } => copy(gemm, bytes),
        CopyLaunch::Transpose { bytes } => transpose(gemm, bytes, machine.units.l2),
        CopyLaunch::Split3xTf32 { elements } => split_3xtf32(gemm, elements),
    };
    launches.iter().map(cycles).sum()
}

/// Cycles of the launches that split both operands for 3xTF32, `elements` in all.
fn split_3xtf32(gemm: &Gemm, elements: usize) -> f64 {
    2.0 * gemm.launch + (elements * 12) as f64 / gemm.read
}

/// Cycles of the launch that copies an operand with its axes exchanged: at half the bandwidth of memory, unless the L2
/// cache holds it.
pub fn transpose(gemm: &Gemm, bytes: usize, l2: usize) -> f64 {
    let times = if bytes < l2 / 4 { 2 } else { 4 };
    (gemm.launch + gemm.dependent_launch) / 2.0 + (times * bytes) as f64 / gemm.read
}

/// Cycles of the launch that copies `bytes` of an operand to rows that a tensor map describes, or im2col patches, whose
/// reads mostly hit the L2 cache. It overlaps the end of the launch before.
pub fn copy(gemm: &Gemm, bytes: usize) -> f64 {
    gemm.dependent_launch + (2 * bytes) as f64 / gemm.read
}

impl Engine {
    /// FMAs per cycle of a multiprocessor, for a tile of `area` elements: threads with few accumulators load more
    /// operands per FMA. `transposed`: the left operand is M-major and the right one N-major.
    fn rate(self, engines: &Engines, area: usize, transposed: bool) -> f64 {
        match self {
            Engine::TensorCores => engines.half,
            Engine::Tf32 => engines.tf32,
            Engine::Tf32x3 => engines.tf32x3,
            Engine::F8 => engines.f8,
            Engine::Simt => engines.single(area, transposed),
        }
    }
}

impl Shape {
    /// Rows of operands outside of the matmul that a tile copies, on average.
    fn outside(&self, p: &Matmul, sides: [Major; 2]) -> f64 {
        let beyond = |tiles: usize, size: usize, all: usize| (tiles * size).saturating_sub(all) as f64 / tiles as f64;
        // Of a K-major operand one consumer has, only rows of the matmul are copied.
        let none = self.tiles_m == 1 && self.copies == 1 && sides[0] == Major::Depth;
        let left = if none { 0.0 } else { beyond(self.tiles_m, self.m, p.m) };
        left + beyond(self.tiles_n, self.used, p.n) / self.cluster as f64
    }
    /// Cycles of a stage in which tensor cores wait for consumers that read their rows of the left operand to
    /// registers: what matmuls in flight do not hide. Consumers that share a tile do so at the same time.
    fn read_to_registers(&self, figures: &Warpgroups) -> f64 {
        let blocks = (self.m / self.copies).div_ceil(64) * self.spans;
        (figures.registers * blocks as f64 - figures.flight * (self.sums * self.used) as f64).max(0.0)
    }
    /// Clock cycles of the launch: waves of as many tiles as there are multiprocessors, each bound by the slowest of
    /// arithmetic, copies from the L2 cache, and its share of memory bandwidth.
    pub fn cycles(&self, p: &Matmul, sides: [Side; 2]) -> f64 {
        let transposed = majors(sides) == [Major::Outer; 2];
        let figures = &p.machine.warpgroups;
        let multiprocessors = p.machine.units.multiprocessors;
        let tiles = self.batch * self.tiles_m * self.tiles_n;
        let area = (self.sums * self.m * self.used) as f64;
        let depths = self.depths as f64;
        // Rows and columns outside of the matmul are not read.
        let right = (self.sums * self.used.min(p.n)) as f64 / self.cluster as f64;
        let span = (self.engine.parts() * self.spans * SPAN) as f64;
        // Rows that cross lines of the L2 cache are copied at a fraction of its rate.
        let [left_rate, right_rate] =
            sides.map(|s| if s.lines { figures.cache } else { figures.crossing * figures.cache });
        let outside = self.outside(p, majors(sides)) / figures.outside;
        let copied = (self.m.min(p.m) as f64 / left_rate + right / right_rate + outside) * span * depths;
        // A copy for both blocks of a cluster is written to the shared memory of both.
        let written = (self.m.min(p.m) + self.sums * self.n.min(p.n)) as f64 * span * depths;
        let one = (self.stages * (self.m.min(p.m) + self.sums * self.n.min(p.n))) as f64 * span / figures.latency;
        // Bytes that a tile is the first to read, on average. Of the window points that read a row in an implicit GEMM,
        // one is the first.
        let elements = p.m * p.k + self.sums * p.n * p.run.map_or(p.k, |run| run.pitch);
        let read_first = (self.batch * elements * self.engine.bytes() * self.engine.parts()) as f64 / tiles as f64;
        // Window points read a row again, from the L2 cache; tiles one below the other read the same.
        let windows = if p.run.is_some() { right * span * depths / self.tiles_m as f64 } else { 0.0 };
        // Bytes of the sectors that a tile stores to; few where rows are reduced.
        let width = if p.full_k.is_some() { 4 } else { self.engine.bytes().max(2) };
        let sent =
            if p.row.is_none() { (self.batch * p.m * p.n * width) as f64 * p.sectors / tiles as f64 } else { 0.0 };
        let row = if p.transposed { p.m } else { p.n } * width;
        let by_map = row.is_multiple_of(16);
        // Rows of results that end within a line of the cache, and those that lie beside them.
        let ragged = if row.is_multiple_of(SPAN) { 1.0 } else { figures.ragged };
        // Tensor cores compute whole stages, the FMA engine multiples of 8 along K.
        let deep = match self.engine {
            Engine::Simt => p.k.next_multiple_of(8),
            _ => self.depths * self.depth(),
        };
        let arithmetic =
            area * deep as f64 / self.engine.rate(&figures.engines, self.sums * self.m * self.n, transposed);
        let arithmetic = arithmetic + if self.registers { depths * self.read_to_registers(figures) } else { 0.0 };
        // Arithmetic of the epilogue. A row reduction happens here or in a step of its own, which is not priced either,
        // so it counts only where blocks have tiles enough for ping-pong. Next to f32 FMAs it is little.
        let parts = p.full_k.map_or(1, |_| p.batch[0]);
        let many = p.row.is_none() || self.batch / parts * p.m >= 2 * isa::GROUP_ROWS * multiprocessors;
        let after = if many && self.engine != Engine::Simt { p.epilogue_ops } else { 0.0 };
        let after = after / (self.batch * p.m * p.n) as f64 * (self.m * self.n) as f64;
        // What the epilogue reads beside the accumulators. By address it waits for that; what is prefetched is there.
        let epilogue = if p.full_k.is_none() { p.epilogue_bytes / tiles as f64 } else { 0.0 };
        let waits = if self.buffers > 0 { 0.0 } else { epilogue / figures.beside };
        let finish = figures.finish + figures.finish_wide * area / 32768.0 + after / figures.after + waits;
        let processors = multiprocessors / self.cluster * self.cluster;
        // Ping-pong: the epilogue of a tile overlaps the multiplication of the next, and copies never stop. Epilogues
        // that reduce rows gain from it where blocks have two tiles and more.
        let enough = if p.row.is_some() { 2 * processors } else { processors + 1 };
        let ping_pong = self.in_flight > 1 && tiles >= enough;
        // Shared memory is written by copies, and read once for each 64 rows.
        let again = (self.m.div_ceil(64) * (64 + self.sums * self.used)) as f64 * span * depths;
        let shared = (written + again) / figures.shared;
        let crosses = sides.iter().any(|s| !s.lines);
        let moved = if ping_pong && !crosses { shared } else { shared.max(copied) };
        let wave = |running: usize| {
            let memory = (read_first / one).max(read_first * running as f64 / figures.all);
            let multiplied = arithmetic.max(moved).max(memory).max(windows * running as f64 / figures.windows);
            let passed = if self.in_flight > 1 { figures.pass } else { 0.0 };
            // Stores by address hold an epilogue up until all but its last part is on its way to memory; those by
            // tensor map do not.
            let finish = if by_map { finish } else { finish.max(sent * running as f64 / figures.all) };
            let all =
                passed + if ping_pong { multiplied.max((multiplied + finish) / 2.0) } else { multiplied + finish };
            all.max((read_first + ragged * (sent + epilogue)) * running as f64 / figures.all)
        };
        let (whole, left) = (tiles / processors, tiles % processors);
        let last = if ping_pong { finish } else { 0.0 };
        let fill = figures.fill + if self.cluster > 1 { figures.cluster } else { 0.0 };
        fill + whole as f64 * wave(processors) + if left > 0 { wave(left) } else { 0.0 } + last
    }
}
