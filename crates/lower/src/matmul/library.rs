//! Matmuls by the library of a GPU (cuBLASLt): `call library`.
//!
//! Takes: a body with one matmul. Gives: steps with a library call whose operands and result are matrices in memory.
//! Bias, residual, scale, ReLU and tanh GELU are the library's epilogue where they come in its order and types
//! ([`epilogue`]); what else comes after the matmul is a program of its own.
//!
//! The algorithm is chosen when a session is made, and the call is recorded with the launches. `library` in a machine's
//! description says where the library is faster than Kiln's own programs. Its steps come with alternative steps without
//! it: a machine whose library is missing, or has no algorithm for the call, runs those.
pub mod epilogue;

use crate::error::LowerError;
use crate::matmul::dims::Dims;
use crate::matmul::{host, precision};
use crate::nest::lowering::Lowering;
use crate::steps::Emitted;
use kiln_graph::{DType, Type, ValueId};
use kiln_plan::Precision;
use kiln_plan::exec::{GemmCall, Slot, Work};
use kiln_plan::matmul_schedule::MatmulSchedule;

/// Bytes of the workspace, as NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;
/// Rows, columns and terms must be below this.
const MAX_SIZE: usize = 1 << 31;

/// The matmul `v` by the library. Refused unless operands and result are strided matrices with a single pitch.
pub fn lower(kernel: &Lowering, v: ValueId, d: &Dims) -> Result<Emitted, LowerError> {
    let takes = matches!(kernel.graph.dtype(v), DType::Bf16 | DType::F16 | DType::F32 | DType::F64);
    if !takes || [d.m, d.n, d.k].iter().any(|n| *n >= MAX_SIZE) {
        return Err(
            kernel.unsupported("the library takes matmuls of floats, of fewer than 2^31 rows, columns and terms")
        );
    }
    if precision(kernel, v) == Precision::Tf32x3 {
        return Err(kernel.unsupported("the library has no 3xTF32 matmul"));
    }
    let mut out = match epilogue::lower(kernel, v, d) {
        Some(whole) => whole,
        None => host::by_library(kernel, v, d)?,
    };
    let workspace = Slot::Scratch(out.scratch.len() as u32);
    for step in &mut out.steps {
        if let Work::Gemm(call) = step {
            if call.strided().is_none() {
                return Err(kernel
                    .unsupported("the library takes strided matrices only: rows or columns must be one pitch apart"));
            }
            *call =
                GemmCall { tf32: precision(kernel, v) == Precision::Tf32, workspace: Some(workspace), ..call.clone() };
        }
    }
    out.scratch.push(Type::new(DType::U8, [WORKSPACE]));
    out.matmul_schedule = Some(MatmulSchedule::Library);
    Ok(out)
}
