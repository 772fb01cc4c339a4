//! Matmuls on the host, in blocks that fit the caches (as in BLIS).
//!
//! Takes: a [`GemmCall`] and the addresses of its operands. Gives: the result, written in place.
//! Never: allocates in warm calls; panels live in buffers that each thread keeps.
//!
//! Operands of any strides are packed into panels, in the order in which the micro-kernels read them. The instruction
//! set (AVX-512, AVX2 or portable) is chosen at run time. f16 and bf16 are widened to f32 while packing, accumulated in
//! f32 and rounded once; where the processor has a matrix unit (AMX), bf16 is multiplied without widening. Integers are
//! multiplied and added with wrapping, those narrower than i32 in i32. An operand is read in place if it already has
//! the required layout and only a few rows or columns of the other one use it. Rows and columns may have several axes,
//! so a convolution is an implicit GEMM: it reads the windows of its padded input through strides.
//!
//! In this folder, lanes are the rows of a or the columns of b, and depth is K.
#[cfg(target_arch = "x86_64")]
pub(in crate::host) mod amx;
pub(in crate::host) mod block;
pub(in crate::host) mod buffer;
mod finish;
pub(in crate::host) mod kernel;
pub(in crate::host) mod pack;
mod prefetch;
mod prepack;
mod vector;

pub(crate) use finish::finish;
pub(crate) use prepack::{Packed, Panels, Role, Weights, packs, prepack};

use super::{Parallel, Shared};
use block::{Job, Lanes, Result};
use half::{bf16, f16};
use kiln_cpu::Level;
use kiln_graph::DType;
use kiln_plan::exec::{GemmCall, Matrix};
use pack::{Element, Side, Source};

/// Addresses of the buffers of a, b and c, before `Matrix::offset` is added.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub a: *const u8,
    pub b: *const u8,
    pub c: *mut u8,
}

/// Computes the matmul. Operands that `weights` holds packed are not read at their addresses.
///
/// # Safety
/// The operands' slots hold everything that the call's offsets, sizes and strides reach (as `Executable::check` makes
/// sure), are aligned for their dtype, and nothing else accesses `c` during the call. `weights` are those that
/// `prepack` made for this call.
pub(crate) unsafe fn gemm(p: Parallel, g: &GemmCall, x: Operands, weights: &Weights) {
    // SAFETY: as this function's.
    unsafe { gemm_by(Level::used(), p, g, x, weights) }
}

/// Computes the matmul with an instruction set that this processor has.
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
            (DType::I64, _) => typed::<i64, i64>(level, p, g, x, w),
            (DType::I32, _) => typed::<i32, i32>(level, p, g, x, w),
            (DType::I16, _) => typed::<i16, i16>(level, p, g, x, w),
            (DType::I8, _) => typed::<i8, i8>(level, p, g, x, w),
            (DType::U8, _) => typed::<u8, u8>(level, p, g, x, w),
            // `Executable::check` lets no others through.
            _ => typed::<f32, f32>(level, p, g, x, w),
        }
    }
}

/// Most columns of a result that is computed transposed, so that vectors run along its long side.
const NARROW: usize = 16;
/// Least K for that, unless there are at most `NARROW / 4` columns: below it, writing the transposed result costs more
/// than it saves.
const DEEP: usize = 128;

/// Whether a matmul is computed transposed, with its operands swapped.
fn flipped(g: &GemmCall) -> bool {
    let stride = |s: &[_]| Side(s).stride();
    let by_column = stride(&g.c.rows) == Some(1) && stride(&g.c.cols) != Some(1);
    g.m > 1
        && (g.n == 1 || by_column && g.m >= NARROW || g.n <= NARROW && g.m > g.n && (g.k >= DEEP || g.n <= NARROW / 4))
}

/// Offset of batch `i` in elements; `i` counts all batch axes, the last one fastest.
pub(in crate::host) fn offset(strides: &[usize], batch: &[usize], i: usize) -> usize {
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
    let [n, k] = [g.n, g.k];
    if g.m == 0 || g.n == 0 || batches == 0 {
        return;
    }
    let (x, flip) = (Shared(x), flipped(g));
    let job = |i: usize| {
        let x = x.get();
        let first = |m: &Matrix| m.offset + offset(&m.batch_strides, &g.batch, i);
        let lanes = |at: *const u8, m, packed: &Option<Packed>, lanes, depth| match packed {
            Some(panels) => Lanes::Packed(panels.data.at(&g.batch, i)),
            None => Lanes::Strided(Source { at: at.cast::<S>().wrapping_add(first(m)), lanes, depth }),
        };
        let a = lanes(x.a, &g.a, &w.a, Side(&g.a.rows), Side(&g.a.cols));
        let b = lanes(x.b, &g.b, &w.b, Side(&g.b.cols), Side(&g.b.rows));
        let c = x.c.cast::<C>().wrapping_add(first(&g.c));
        let (rows, cols) = (Side(&g.c.rows), Side(&g.c.cols));
        let ((m, a, b, n), (rows, cols)) = match flip {
            false => ((g.m, a, b, n), (rows, cols)),
            true => ((n, b, a, g.m), (cols, rows)),
        };
        Job { level, m, n, k, a, b, c: Result { at: c, rows, cols } }
    };
    // SAFETY: as `gemm`'s contract; results of different batches are disjoint.
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
