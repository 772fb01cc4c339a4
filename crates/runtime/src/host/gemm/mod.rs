//! Matrix products on the host: operands of any strides are packed into panels, and micro-kernels for the instruction set at
//! hand run over these, in blocks that fit the caches. Half types are widened while packing, accumulated in f32 and rounded once.
//!
//! Takes: a call with the addresses of its operands. Never: allocates in warm calls (panels live in buffers of the threads).
mod block;
mod buffer;
mod kernel;
mod pack;
mod vector;

use super::{Parallel, Shared};
use block::{Job, Lanes, Result};
use half::{bf16, f16};
use kernel::Isa;
use kiln_graph::DType;
use kiln_plan::exec::{GemmCall, Matrix};
use pack::{Element, Side, Source};

/// Addresses of the operands' slots (before `Matrix::offset`).
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub a: *const u8,
    pub b: *const u8,
    pub c: *mut u8,
}

/// Computes the product.
///
/// # Safety
/// The operands' slots hold everything that the call's offsets, sizes and strides reach (as `Executable::check` makes sure),
/// are aligned for their dtype, and nothing else touches `c`'s meanwhile.
pub(crate) unsafe fn gemm(p: Parallel, g: &GemmCall, x: Operands) {
    // SAFETY: as this function's.
    unsafe { gemm_by(Isa::best(), p, g, x) }
}

/// Computes the product by an instruction set of this processor.
///
/// # Safety
/// As [`gemm`].
unsafe fn gemm_by(isa: Isa, p: Parallel, g: &GemmCall, x: Operands) {
    // SAFETY: as this function's.
    unsafe {
        match (g.dtype, g.c_dtype) {
            (DType::F64, _) => typed::<f64, f64>(isa, p, g, x),
            (DType::F16, DType::F32) => typed::<f16, f32>(isa, p, g, x),
            (DType::Bf16, DType::F32) => typed::<bf16, f32>(isa, p, g, x),
            (DType::F16, _) => typed::<f16, f16>(isa, p, g, x),
            (DType::Bf16, _) => typed::<bf16, bf16>(isa, p, g, x),
            // `Executable::check` lets only float products through.
            _ => typed::<f32, f32>(isa, p, g, x),
        }
    }
}

/// Results this narrow are computed transposed, so that vectors run along their long side.
const NARROW: usize = 16;

/// Whether a product is computed as that of the transposed operands.
fn flipped(g: &GemmCall) -> bool {
    let stride = |s: &[_]| Side(s).stride();
    let by_column = stride(&g.c.rows) == Some(1) && stride(&g.c.cols) != Some(1);
    g.m > 1 && (g.n == 1 || by_column && g.m >= NARROW || g.n < NARROW && g.m > g.n)
}

/// Offset of batch `i` (linear, last axis fastest) of an operand.
fn offset(m: &Matrix, batch: &[usize], i: usize) -> usize {
    let (mut rest, mut offset) = (i, m.offset);
    for (n, stride) in batch.iter().zip(&m.batch_strides).rev() {
        offset += rest % n * stride;
        rest /= n;
    }
    offset
}

/// # Safety
/// As [`gemm`].
unsafe fn typed<S: Element, C: Element<Acc = S::Acc>>(isa: Isa, p: Parallel, g: &GemmCall, x: Operands) {
    let batches: usize = g.batch.iter().product();
    if g.m == 0 || g.n == 0 || batches == 0 {
        return;
    }
    let (x, flip) = (Shared(x), flipped(g));
    let job = |i: usize| {
        let x = x.get();
        // SAFETY: the offsets lie within the slots, as `gemm`'s contract says.
        let (a, b, c) = unsafe {
            let of = |at: *const u8, m| at.cast::<S>().add(offset(m, &g.batch, i));
            (of(x.a, &g.a), of(x.b, &g.b), x.c.cast::<C>().add(offset(&g.c, &g.batch, i)))
        };
        let a = Source { at: a, lanes: Side(&g.a.rows), depth: Side(&g.a.cols) };
        let b = Source { at: b, lanes: Side(&g.b.cols), depth: Side(&g.b.rows) };
        let (rows, cols) = (Side(&g.c.rows), Side(&g.c.cols));
        let ((m, a, b, n), (rows, cols)) = match flip {
            false => ((g.m, a, b, g.n), (rows, cols)),
            true => ((g.n, b, a, g.m), (cols, rows)),
        };
        let (a, b) = (Lanes::Strided(a), Lanes::Strided(b));
        Job { isa, m, n, k: g.k, a, b, c: Result { at: c, rows, cols } }
    };
    // SAFETY: as `gemm`'s contract; results of different batches are apart.
    unsafe {
        match vector::fits(&job(0)) {
            true => vector::run(p, batches, job),
            false => block::run(p, batches, job),
        }
    }
}

#[cfg(test)]
mod tests;
