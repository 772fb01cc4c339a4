//! What matmuls by the library are expected to take.

use crate::matmul::dims::Dims;
use crate::nest::lowering::Lowering;
use crate::steps::Emitted;
use kiln_graph::{DType, ValueId};
use kiln_plan::Precision;
use kiln_plan::exec::Work;

/// Expected time of the library, relative to that of Kiln's own program. `copied`: whether that copies an
/// operand first or swaps them, as they are not both K-major, which the library need not.
pub fn share(kernel: &Lowering, v: ValueId, d: &Dims, copied: bool) -> f64 {
    let kiln_machine::Library { share, long, depth, transposed } = kernel.machine.library;
    let sizes = d.batch.iter().copied().chain([d.m, d.n, d.k]);
    let work = sizes.fold(1u64, |all, n| all.saturating_mul(n as u64));
    match kernel.graph.dtype(v) {
        DType::Bf16 | DType::F16 if work >= long.work && d.k as f64 >= depth * d.m.max(d.n) as f64 => long.share,
        DType::F32 if kernel.precision == Precision::Tf32 && work >= transposed.work && copied => transposed.share,
        _ => share,
    }
}

/// Expected microseconds of these steps, of which the matmul takes `matmul`: what comes after the matmul goes through
/// memory.
pub fn us(kernel: &Lowering, d: &Dims, steps: &Emitted, matmul: f64) -> f64 {
    let after = steps.steps.iter().rev().take_while(|w| matches!(w, Work::Block { .. })).count();
    let elements = d.batch.iter().product::<usize>() as f64 * d.m as f64 * d.n as f64;
    let rest = kernel.machine.rates.launch + elements * 8.0 / kernel.machine.rates.bandwidth;
    matmul + if after == 0 { 0.0 } else { rest * 1e6 }
}
