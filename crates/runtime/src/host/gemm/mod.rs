//! Matmuls on the host: operands of any strides are packed into panels, and micro-kernels for the instruction set at
//! hand run over these, in blocks that fit the caches. Half types are widened while packing (but for bf16
//! where there is a matrix unit), accumulated in f32 and rounded once.
//!
//! Takes: a call with the addresses of its operands. Never: allocates in warm calls (panels live in buffers of the threads).
#[cfg(target_arch = "x86_64")]
mod amx;
mod block;
mod buffer;
mod finish;
mod kernel;
mod pack;
mod prefetch;
mod prepack;
mod vector;

pub(crate) use finish::finish;
pub(crate) use prepack::{Panels, Role, Weights, prepack};

use super::{Parallel, Shared};
use block::{Job, Lanes, Result};
use half::{bf16, f16};
use kiln_cpu::Level;
use kiln_graph::DType;
use kiln_plan::exec::{GemmCall, Matrix};
use pack::{Element, Side, Source};
use std::sync::Arc;

/// Addresses of the operands' slots (before `Matrix::offset`).
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub a: *const u8,
    pub b: *const u8,
    pub c: *mut u8,
}

/// Computes the matmul. Operands that are in `weights` are not read at their addresses.
///
/// # Safety
/// The operands' slots hold everything that the call's offsets, sizes and strides reach (as `Executable::check` makes sure),
/// are aligned for their dtype, and nothing else touches `c`'s meanwhile. `weights` are this call's, from `prepack`.
pub(crate) unsafe fn gemm(p: Parallel, g: &GemmCall, x: Operands, weights: &Weights) {
    // SAFETY: as this function's.
    unsafe { gemm_by(Level::used(), p, g, x, weights) }
}

/// Computes the matmul by an instruction set of this processor.
///
/// # Safety
/// As [`gemm`].
unsafe fn gemm_by(level: Level, p: Parallel, g: &GemmCall, x: Operands, w: &Weights) {
    // SAFETY: as this function's.
    unsafe {
        match (g.dtype, g.c_dtype) {
            (DType::F64, _) => typed::<f64, f64>(level, p, g, x, w),
            (DType::F16, DType::F32) => typed::<f16, f32>(level, p, g, x, w),
            (DType::Bf16, DType::F32) => typed::<bf16, f32>(level, p, g, x, w),
            (DType::F16, _) => typed::<f16, f16>(level, p, g, x, w),
            (DType::Bf16, _) => typed::<bf16, bf16>(level, p, g, x, w),
            // `Executable::check` lets only float matmuls through.
            _ => typed::<f32, f32>(level, p, g, x, w),
        }
    }
}

/// Results this narrow are computed transposed, so that vectors run along their long side …
const NARROW: usize = 16;
/// … if sums are this deep, or there are hardly any columns: else it costs more to write the result across.
const DEEP: usize = 128;

/// Whether a matmul is computed as that of the transposed operands.
fn flipped(g: &GemmCall) -> bool {
    let stride = |s: &[_]| Side(s).stride();
    let by_column = stride(&g.c.rows) == Some(1) && stride(&g.c.cols) != Some(1);
    g.m > 1
        && (g.n == 1 || by_column && g.m >= NARROW || g.n <= NARROW && g.m > g.n && (g.k >= DEEP || g.n <= NARROW / 4))
}

/// Offset of batch `i` (linear, last axis fastest).
fn offset(strides: &[usize], batch: &[usize], i: usize) -> usize {
    let (mut rest, mut offset) = (i, 0);
    for (n, stride) in batch.iter().zip(strides).rev() {
        offset += rest % n * stride;
        rest /= n;
    }
    offset
}

/// # Safety
/// As [`gemm`].
unsafe fn typed<S: Element, C: Element<Acc = S::Acc>>(
    level: Level,
    p: Parallel,
    g: &GemmCall,
    x: Operands,
    w: &Weights,
) {
    let batches: usize = g.batch.iter().product();
    if g.m == 0 || g.n == 0 || batches == 0 {
        return;
    }
    let (x, flip) = (Shared(x), flipped(g));
    let job = |i: usize| {
        let x = x.get();
        let first = |m: &Matrix| m.offset + offset(&m.batch_strides, &g.batch, i);
        let lanes = |at: *const u8, m, packed: &Option<Arc<Panels>>, lanes, depth| match packed {
            Some(panels) => Lanes::Packed(panels.at(&g.batch, i)),
            None => Lanes::Strided(Source { at: at.cast::<S>().wrapping_add(first(m)), lanes, depth }),
        };
        let a = lanes(x.a, &g.a, &w.a, Side(&g.a.rows), Side(&g.a.cols));
        let b = lanes(x.b, &g.b, &w.b, Side(&g.b.cols), Side(&g.b.rows));
        let c = x.c.cast::<C>().wrapping_add(first(&g.c));
        let (rows, cols) = (Side(&g.c.rows), Side(&g.c.cols));
        let ((m, a, b, n), (rows, cols)) = match flip {
            false => ((g.m, a, b, g.n), (rows, cols)),
            true => ((g.n, b, a, g.m), (cols, rows)),
        };
        Job { level, m, n, k: g.k, a, b, c: Result { at: c, rows, cols } }
    };
    // SAFETY: as `gemm`'s contract; results of different batches are apart.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if level == Level::Amx && g.dtype == DType::Bf16 {
            return amx::run(p, batches, job);
        }
        match !g.batch_invariant && vector::fits(&job(0)) {
            true => vector::run(p, batches, job),
            false => block::run(p, batches, job),
        }
    }
}

#[cfg(test)]
mod tests;
