//! Predicted cycles of matmuls without pipelining.
use super::Matmul;

/// Cycles without pipelining: every wave of tiles waits `wait` cycles for its operands at each step of K.
pub fn tiles(p: &Matmul, [m, n]: [usize; 2], wait: f64) -> f64 {
    /// Elements of a step of K.
    const STEP: usize = 64;
    let of = &p.machine.gemm;
    let tiles = p.batch.iter().product::<usize>() * p.m.div_ceil(m) * p.n.div_ceil(n) * p.sums();
    let step = (m * n * STEP) as f64 / of.rate;
    let waves = tiles.div_ceil(p.machine.units.multiprocessors * of.tiles_per_multiprocessor);
    waves as f64 * p.k.div_ceil(STEP) as f64 * (wait + of.tiles_per_multiprocessor as f64 * step)
}
