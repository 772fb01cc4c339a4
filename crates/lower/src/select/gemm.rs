//! Schedules of matmuls ([`crate::matmul::gemm`]): by tiles, with operands swapped, as a dual GEMM, by the library.

use crate::cost::library;
use crate::error::{LowerError, unsupported_as_none};
use crate::matmul;
use crate::matmul::dims::Dims;
use crate::matmul::gemm::{Found, Multiplied, Second, find, lower, on_gpu, whole};
use crate::matmul::wgmma::shape::MAX_SKINNY_ROWS;
use crate::nest::lowering::Lowering;
use crate::select::matmul::{candidates as matmul_candidates, slices_without_advantage, swapped_candidates};
use crate::select::propose;
use kiln_graph::{DType, ValueId};
use kiln_plan::matmul_schedule::{MatmulSchedule, TiledMatmul};
use kiln_plan::{Hardware, Precision};

/// The number of rows or that of columns, whichever is less; under a batch-invariant contract that of columns.
pub fn least(kernel: &Lowering, machine: &Hardware) -> Result<usize, LowerError> {
    let Found { d, .. } = find(kernel, machine)?;
    Ok(if machine.contract.batch_invariant { d.n } else { d.m.min(d.n) })
}

/// Schedules of the kernel's matmul on a GPU, with the microseconds they are predicted to take. Not all of them fit.
pub fn candidates(kernel: &Lowering, machine: &Hardware) -> Result<Vec<(MatmulSchedule, f64)>, LowerError> {
    let g = kernel.graph;
    let Found { v, dual, d } = find(kernel, machine)?;
    if !g.dtype(v).is_float() || d.k == 0 || g.ty(v).count() == 0 {
        return Ok(vec![]);
    }
    let (dims, full) = (&d, &whole(&d, dual));
    let mut all = in_form(kernel, machine, Multiplied { v, dual, swap: false, dims })?;
    if let Some(Second::Half(_)) = dual {
        all.extend(in_form(kernel, machine, Multiplied { v, dual: None, swap: false, dims: full })?);
    }
    if dual.is_none() && may_swap(kernel, v, &d) {
        all.extend(in_form(kernel, machine, Multiplied { v, dual, swap: true, dims })?);
    }
    let mut all: Vec<(MatmulSchedule, f64)> = all.into_iter().map(|(p, us)| (MatmulSchedule::Matmul(p), us)).collect();
    let without_advantage = slices_without_advantage(&all);
    let Some(best) = all.iter().filter(|c| !without_advantage(c)).min_by(|a, b| a.1.total_cmp(&b.1)).copied() else {
        return Ok(all);
    };
    // Operands that are not both K-major.
    let other =
        |m: &MatmulSchedule| matches!(m, MatmulSchedule::Matmul(p) if p.form.copies.contains(&true) || p.form.swap);
    let share = library::share(kernel, v, full, other(&best.0));
    // It was measured beside warpgroups.
    let share = if machine.arch.has_wgmma() { share } else { share.max(1.0) };
    // What it takes does not depend on the schedules of its launches.
    let multiply = Some(MatmulSchedule::Library);
    let of_library = Lowering { multiply, propose: propose::any_schedule_of, ..*kernel };
    if let Some(steps) = unsupported_as_none(lower(&of_library, machine))? {
        all.push((MatmulSchedule::Library, library::us(&of_library, full, &steps, best.1 * share)));
    }
    Ok(all)
}

/// The schedules of one form.
fn in_form(
    kernel: &Lowering,
    machine: &Hardware,
    multiplied: Multiplied,
) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    let swap = multiplied.swap;
    let mut all = on_gpu(kernel, multiplied, |p| match swap {
        true => swapped_candidates(kernel, p, machine),
        false => matmul_candidates(kernel, p, machine),
    })?;
    all.iter_mut().for_each(|c| (c.0.form.swap, c.0.form.dual) = (swap, multiplied.has_halves()));
    Ok(all)
}

/// Whether the operands may be swapped: those of a skinny GEMM, so that its few rows are columns, or in tf32.
fn may_swap(kernel: &Lowering, v: ValueId, d: &Dims) -> bool {
    let skinny = matches!(kernel.graph.dtype(v), DType::Bf16 | DType::F16) && d.m <= MAX_SKINNY_ROWS;
    let applies = skinny || matmul::precision(kernel, v) == Precision::Tf32;
    applies && !kernel.machine.contract.batch_invariant && kernel.machine.arch.has_wgmma()
}
