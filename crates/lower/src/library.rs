//! Matmuls by the library of a GPU (cuBLASLt): operands and result as matrices in memory. What comes after the matmul is the library's
//! epilogue where it has one like it, and else a program of its own.
mod epilogue;

use crate::gemm::Dims;
use crate::matmul::precision;
use crate::resolve::Body;
use crate::rows::Emitted;
use crate::{LowerError, gemm};
use kiln_graph::{DType, Type, ValueId};
use kiln_plan::{
    Precision,
    exec::{GemmCall, Slot, Work},
};

/// Bytes of its intermediate results, as NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;
/// Most rows, columns or terms.
const MOST: usize = 1 << 31;

/// The matmul `v` by the library. Refused unless operands and result are matrices in memory of one pitch.
pub fn lower(of: &Body, v: ValueId, d: &Dims) -> Result<Emitted, LowerError> {
    let takes = matches!(of.graph.dtype(v), DType::Bf16 | DType::F16 | DType::F32 | DType::F64);
    if !takes || [d.m, d.n, d.k].iter().any(|n| *n >= MOST) {
        return Err(of.unsupported("the library takes matmuls of floats, of fewer than 2^31 rows, columns and terms"));
    }
    if precision(of, v) == Precision::Tf32x3 {
        return Err(of.unsupported("the library makes no matmul in f32 as three in tf32"));
    }
    let mut out = match epilogue::lower(of, v, d) {
        Some(whole) => whole,
        None => gemm::by_library(of, v, d)?,
    };
    let workspace = Slot::Scratch(out.scratch.len() as u32);
    for step in &mut out.steps {
        if let Work::Gemm(call) = step {
            if call.strided().is_none() {
                return Err(of.unsupported("the library takes matrices whose rows or columns are one pitch apart"));
            }
            *call = GemmCall { tf32: precision(of, v) == Precision::Tf32, workspace: Some(workspace), ..call.clone() };
        }
    }
    out.scratch.push(Type::new(DType::U8, [WORKSPACE]));
    Ok(out)
}

/// How much of the time of Kiln's own template the library is expected to take. `copied`: an operand goes through memory first, which
/// the library does without.
pub fn share(of: &Body, v: ValueId, d: &Dims, copied: impl FnOnce() -> bool) -> f64 {
    let kiln_machine::Library { share, long, depth, transposed } = of.machine.library;
    let sizes = d.batch.iter().copied().chain([d.m, d.n, d.k]);
    let work = sizes.fold(1u64, |all, n| all.saturating_mul(n as u64));
    match of.graph.dtype(v) {
        DType::Bf16 | DType::F16 if work >= long.work && d.k as f64 >= depth * d.m.max(d.n) as f64 => long.share,
        DType::F32 if of.precision == Precision::Tf32 && work >= transposed.work && copied() => transposed.share,
        _ => share,
    }
}

/// Microseconds that are expected of these steps, where the matmul takes `matmul`: what comes after it goes through memory.
pub fn us(of: &Body, d: &Dims, steps: &Emitted, matmul: f64) -> f64 {
    let after = steps.steps.iter().rev().take_while(|w| matches!(w, Work::Block { .. })).count();
    let elements = d.batch.iter().product::<usize>() as f64 * d.m as f64 * d.n as f64;
    let rest = of.machine.rates.launch + elements * 8.0 / of.machine.rates.bandwidth;
    matmul + if after == 0 { 0.0 } else { rest * 1e6 }
}
