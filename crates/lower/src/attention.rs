//! Attention: on GPUs by [`warps`] and [`warpgroups`], on the host by its library ([`host`]).
pub mod block_mask;
pub mod host;
pub mod program;
pub mod schedule;
pub mod score_tiles;
pub mod warpgroups;
pub mod warps;

use crate::attention::program::{TileRows, joined, sizes_of};
use crate::error::LowerError;
use crate::matmul;
use crate::matmul::host::{ON_HOST, only_matmul};
use crate::nest::lowering::Lowering;
use crate::scalar::resolve::{Body, MatmulSource};
use crate::scalar::scores::{Sizes, sizes};
use crate::steps::Emitted;
use kiln_graph::{Op, ValueId};
use kiln_plan::Hardware;
use kiln_plan::attention::Way;
use kiln_plan::matmul_schedule::MatmulSchedule;

/// The attention of a body, and that of its log-sum-exp if both are results.
pub fn find(kernel: &Lowering) -> Result<(ValueId, Option<ValueId>), LowerError> {
    let found =
        |sums: bool| only_matmul(kernel, |v| matches!(kernel.graph.op(v), Op::Attention { lse, .. } if *lse == sums));
    match (found(false), found(true)) {
        (Ok(v), sums) => Ok((v, sums.ok())),
        (Err(_), sums) => Ok((sums?, None)),
    }
}

/// The steps of a body with an attention.
pub fn lower(kernel: &Lowering, machine: &Hardware) -> Result<Emitted, LowerError> {
    let (v, sums) = find(kernel)?;
    let z = sizes(kernel, v);
    if z.t == 0 || z.d == 0 {
        return Err(kernel.unsupported("attention without keys, or with heads of width 0"));
    }
    match kernel.multiply {
        Some(MatmulSchedule::Matmul(_)) => return Err(kernel.unsupported("the schedule is one of a matmul")),
        Some(MatmulSchedule::Library) if machine.arch.is_gpu() => {
            return Err(kernel.unsupported("the library takes matmuls, not attention"));
        }
        Some(MatmulSchedule::Attention(_)) if !machine.arch.is_gpu() => return Err(kernel.unsupported(ON_HOST)),
        _ => {}
    }
    if machine.arch.is_gpu() {
        let dual = sums.map(|x| (x, MatmulSource::Node));
        return on_gpu(&kernel.with_body(Body { second_output: dual, ..kernel.body }), v, &z, machine);
    }
    host::lower(kernel, v, &z, machine)
}

/// `second_output`: the log-sum-exp of attention `v`, if the kernel stores it beside the result.
fn on_gpu(kernel: &Lowering, v: ValueId, z: &Sizes, machine: &Hardware) -> Result<Emitted, LowerError> {
    let dtype = matmul::operand_dtype(kernel, v);
    let sizes = sizes_of(kernel, v)?;
    if !sizes.has_program() {
        return Err(kernel.unsupported(format!("attention with heads of {} and {} {dtype}", z.d, z.e)));
    }
    let Some(MatmulSchedule::Attention(asked)) = kernel.multiply else {
        return Err(kernel.unsupported("no tiles fit the attention"));
    };
    match schedule::way(&sizes, &asked, machine).map_err(|why| kernel.unsupported(why))? {
        Way::Warps(tiles) => {
            let made = MatmulSchedule::Attention(schedule::of_tiles(&sizes, &tiles));
            let step = Emitted {
                matmul_schedule: Some(made),
                ..Emitted::step(warps::program(kernel, v, z, tiles, TileRows::of(&sizes))?)
            };
            joined(kernel, v, z, step, tiles.parts, machine)
        }
        Way::Warpgroups(shape) => {
            let request = warpgroups::Request { v, z, shape, rows: TileRows::of(&sizes), asked: &asked };
            let steps = warpgroups::lower(kernel, &request, machine)?;
            let steps = steps.ok_or_else(|| kernel.unsupported(warpgroups::NEEDS))?;
            joined(kernel, v, z, steps, shape.parts, machine)
        }
    }
}
