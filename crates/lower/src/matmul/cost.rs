//! Predicted cycles of matmuls without pipelining.
use super::Matmul;
use super::tiles::Tile;
use kiln_machine::Tiles;
use kiln_plan::Engine;

/// Most threads of a multiprocessor, and those of a warp.
const THREADS: usize = 2048;
const WARP: usize = 32;
/// How many times the instructions of an unaligned element those of one are whose index is computed: fitted to convolutions by im2col.
const GATHERED: f64 = 5.3;
/// Instructions of a multiprocessor in a cycle, times a warp's lanes.
const LANES: f64 = 128.0;
/// Registers of a thread for all but accumulators and operands.
const OTHER: usize = 40;

/// Where an operand lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rows {
    /// In rows of multiples of 16 bytes.
    Aligned,
    /// In rows of any length, which are read element by element.
    Unaligned,
    /// Each element where an index and its bounds say: patches of a convolution.
    Gathered,
}

/// Cycles of tiles by an engine, for operands of `bytes` an element.
///
/// A multiprocessor holds as many instances as its registers allow. An instance waits for its operands in each step of K and multiplies
/// them; together instances are bound by arithmetic, by the L2 cache, and by memory.
pub fn tiles(p: &Matmul, t: &Tile, engine: Engine, bytes: usize, rows: [Rows; 2]) -> f64 {
    let gemm = &p.machine.gemm;
    let of: &Tiles = if engine == Engine::Mma { &gemm.mma } else { &gemm.fma };
    let batch = p.batch.iter().product::<usize>();
    let instances = batch * p.m.div_ceil(t.m) * p.n.div_ceil(t.n);
    let steps = p.k.div_ceil(t.k) as f64;
    // FMAs of rows that no result needs are left out.
    let used =
        |tile: usize, n: usize| if engine == Engine::Mma { tile } else { tile.min(n.next_power_of_two().max(16)) };
    let (m, n) = (used(t.m, p.m), p.sums() * used(t.n, p.n));
    let threads = WARP * t.warps;
    let loaded = (m + n) * t.k;
    let registers = (t.m * t.n * p.sums() + loaded * bytes / 4) / threads + OTHER;
    let most = p.machine.limits.registers_per_multiprocessor / (registers * threads);
    let resident = most.clamp(1, THREADS / threads);
    // Instances of the busiest multiprocessor.
    let own = instances.div_ceil(p.machine.units.multiprocessors);
    let at_once = own.min(resident);
    let each = |rows: Rows| match rows {
        // Elements of f32 are rounded to tf32.
        Rows::Aligned if engine == Engine::Mma && bytes == 4 => of.unaligned,
        Rows::Aligned => 0.0,
        Rows::Unaligned => of.unaligned,
        Rows::Gathered => GATHERED * of.unaligned,
    };
    let read = (each(rows[0]) * m as f64 + each(rows[1]) * n as f64) * t.k as f64 / LANES;
    let halves = if engine == Engine::Mma { 2.0 } else { 4.0 };
    let multiplied = (m * n * t.k) as f64 / of.rate * (bytes as f64 / halves).max(1.0);
    let cache = (loaded * bytes) as f64 / of.cache;
    let finish = (t.m * t.n) as f64 / threads as f64 * of.finish;
    let alone = steps * (of.step + of.loading * (loaded * bytes / threads) as f64 + read + multiplied) + finish;
    let together = steps * (multiplied.max(cache) + read) + finish / 4.0;
    let own = own as f64;
    let cycles = (own / at_once as f64 * alone).max(own * together);
    let elements = batch * (p.m * p.k + p.sums() * p.k * p.n + p.m * p.n);
    gemm.start + cycles.max(((elements * bytes) as f64 + p.beside) / gemm.memory)
}
