//! The cost of adding the sums of split-K slices, in clock cycles.
use crate::matmul::Matmul;

/// Cycles of the launch that sums `parts` split-K slices of a matmul whose result has `elements` elements. It overlaps
/// the end of the matmul.
pub fn sum(p: &Matmul, parts: usize, elements: usize) -> f64 {
    let gemm = &p.machine.gemm;
    if parts == 1 {
        0.0
    } else {
        gemm.dependent_launch + ((elements * parts * 4) as f64 + p.epilogue_bytes) / gemm.read
    }
}
