//! Products by the library of a GPU (cuBLASLt): operands and result as matrices in memory, the rest of the body in programs around.
use crate::gemm::Dims;
use crate::product::precision;
use crate::resolve::Body;
use crate::rows::Emitted;
use crate::{LowerError, gemm};
use kiln_graph::{DType, Op, Type, ValueId};
use kiln_plan::{
    Precision,
    exec::{GemmCall, Slot, Work},
};

/// Bytes of its intermediate results, as NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;
/// Most rows, columns or terms.
const MOST: usize = 1 << 31;

/// The product `v` by the library. Refused unless operands and result are matrices in memory of one pitch.
pub fn lower(of: &Body, v: ValueId, d: &Dims) -> Result<Emitted, LowerError> {
    let takes = matches!(of.graph.dtype(v), DType::Bf16 | DType::F16 | DType::F32 | DType::F64);
    if !takes || [d.m, d.n, d.k].iter().any(|n| *n >= MOST) {
        return Err(of.unsupported("the library takes products of floats, of fewer than 2^31 rows, columns and terms"));
    }
    if precision(of, v) == Precision::Tf32x3 {
        return Err(of.unsupported("the library makes no product in f32 as three in tf32"));
    }
    let mut out = gemm::by_library(of, v, d)?;
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
    /// Most products, on an H200: the table of products in `benches/results/gemm.md`.
    const LIKE: f64 = 1.02;
    /// Products in half precision of 2^40 multiply-adds and more, most of them along K: at the power limit the library draws less.
    /// 4096x4096x65536 took 0.94 of the time; half of that K as long as Kiln's own, and so did wide products of as much work.
    const LONG: (usize, usize, f64) = (1 << 40, 8, 0.94);
    /// Products in tf32, for which Kiln turns an operand: 4096 cubed took 0.92, 1024 cubed 1.5.
    const TURNED: (usize, f64) = (1 << 36, 0.92);
    let sizes = d.batch.iter().copied().chain([d.m, d.n, d.k]);
    let work = sizes.fold(1usize, usize::saturating_mul);
    match of.graph.dtype(v) {
        DType::Bf16 | DType::F16 if work >= LONG.0 && d.k >= LONG.1 * d.m.max(d.n) => LONG.2,
        DType::F32 if of.precision == Precision::Tf32 && work >= TURNED.0 && copied() => TURNED.1,
        _ => LIKE,
    }
}

/// Microseconds that are expected, where Kiln's own templates take `own`: what is more in the body goes through memory.
pub fn us(of: &Body, d: &Dims, own: f64, share: f64) -> f64 {
    /// Bytes a microsecond, and the launch.
    const COPY: f64 = 4.2e6;
    const LAUNCH: f64 = 2.0;
    let alone = of.graph.values().filter(|v| !matches!(of.graph.op(*v), Op::Input(_))).count() == 1;
    let elements = d.batch.iter().product::<usize>() as f64 * d.m as f64 * d.n as f64;
    own * share + if alone { 0.0 } else { LAUNCH + elements * 8.0 / COPY }
}
