//! Predicted cycles of matmuls without pipelining.
use crate::matmul::Matmul;
use crate::matmul::mma::Tile;
use crate::matmul::operands::Rows;
use kiln_machine::Tiles;
use kiln_machine::isa::{ISSUED, WARP};
use kiln_plan::Engine;

/// Fewest rows that FMAs compute.
const MIN_ROWS: usize = 8;
/// Registers of a thread for all but accumulators and operands.
const OTHER_REGISTERS: usize = 40;

/// Cycles of tiles by an engine, for operands of `bytes` an element.
///
/// A multiprocessor holds as many instances as its registers allow. An instance waits for its operands in each step of
/// K and multiplies them; together instances are bound by arithmetic, by the L2 cache, and by memory.
pub fn tiles(p: &Matmul, t: &Tile, engine: Engine, bytes: usize, rows_of: [Rows; 2]) -> f64 {
    let gemm = &p.machine.gemm;
    let figures: &Tiles = if engine == Engine::Mma { &gemm.mma } else { &gemm.fma };
    let batch = p.batch.iter().product::<usize>();
    let instances = batch * p.m.div_ceil(t.m) * p.n.div_ceil(t.n);
    let steps = p.k.div_ceil(t.k) as f64;
    // FMAs of rows that no result needs are left out.
    let rows = if engine == Engine::Mma { t.m } else { t.m.min(p.m.next_power_of_two().max(MIN_ROWS)) };
    let (m, n) = (rows, p.sums() * t.n);
    let threads = WARP * t.warps;
    let loaded = (m + n) * t.k;
    let registers = (t.m * t.n * p.sums() + loaded * bytes / 4) / threads + OTHER_REGISTERS;
    let fit = p.machine.limits.registers_per_multiprocessor / (registers * threads);
    let resident = fit.clamp(1, p.machine.limits.warps_per_multiprocessor / t.warps);
    // Instances of the busiest multiprocessor.
    let of_processor = instances.div_ceil(p.machine.units.multiprocessors);
    let at_once = of_processor.min(resident);
    let instructions = |rows: Rows, column_per_thread: bool| match rows {
        // Elements of f32 are rounded to tf32.
        Rows::Aligned if engine == Engine::Mma && bytes == 4 => figures.unaligned,
        Rows::Aligned => 0.0,
        Rows::Unaligned => figures.unaligned,
        Rows::Gathered if column_per_thread => figures.own_column,
        Rows::Gathered => figures.gathered,
    };
    let lanes = (ISSUED * WARP) as f64;
    let read = instructions(rows_of[0], false) * m as f64 + instructions(rows_of[1], t.n >= threads) * n as f64;
    let read = read * t.k as f64 / lanes;
    let halves = if engine == Engine::Mma { 2.0 } else { 4.0 };
    let rate = figures.rate / (1.0 + figures.narrow * (1.0 / t.m as f64 + 1.0 / t.n as f64));
    let multiplied = (m * n * t.k) as f64 / rate * (bytes as f64 / halves).max(1.0);
    let cache = (loaded * bytes) as f64 / figures.cache;
    let elements = batch * p.m * p.n;
    // Slices of K store their sums in f32, and the launch that adds these computes the epilogue.
    let (width, epilogue_ops, epilogue_bytes) = match p.full_k {
        Some(_) => (4 * p.sums(), 0.0, 0.0),
        None => (bytes, p.epilogue_ops, p.epilogue_bytes),
    };
    let finish =
        (t.m * t.n) as f64 / threads as f64 * (figures.finish + figures.after * epilogue_ops / elements as f64);
    // Few warps issue a part of a multiprocessor's instructions.
    let busy = t.warps.min(ISSUED) as f64 / ISSUED as f64;
    let waits = figures.step + figures.loading * (loaded * bytes / threads) as f64;
    let alone = steps * (waits + (read + figures.exposed * multiplied) / busy) + finish;
    let together = steps * (multiplied.max(cache) + read) + finish / ISSUED as f64;
    let of_processor = of_processor as f64;
    let cycles = (of_processor / at_once as f64 * alone).max(of_processor * together);
    let operands = batch * (p.m * p.k + p.sums() * p.k * p.n) * bytes;
    let memory = ((elements * width) as f64 * p.sectors + operands as f64 + epilogue_bytes) / gemm.memory;
    gemm.start + cycles.hypot(memory)
}
