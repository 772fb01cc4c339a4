//! Schedules of pairwise distances, which are those of a matmul.
use crate::error::LowerError;
use crate::matmul::pairwise;
use crate::nest::lowering::Lowering;
use crate::select::matmul::candidates as matmul_candidates;
use kiln_plan::Hardware;
use kiln_plan::matmul_schedule::MatmulSchedule;

/// Schedules with the microseconds they are predicted to take. Not all of them fit.
pub fn candidates(kernel: &Lowering, machine: &Hardware) -> Result<Vec<(MatmulSchedule, f64)>, LowerError> {
    let all = pairwise::with(kernel, machine, |p| matmul_candidates(kernel, p, machine))??;
    Ok(all.into_iter().map(|(p, us)| (MatmulSchedule::Matmul(p), us)).collect())
}
