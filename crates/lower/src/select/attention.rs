//! Schedules of attention: tiles of warps and of warpgroups, with and without blocks of keys that a mask leaves.

use crate::attention::program::sizes_of;
use crate::attention::{find, schedule, warpgroups};
use crate::error::LowerError;
use crate::nest::lowering::Lowering;
use crate::scalar::resolve::{Body, MatmulSource};
use crate::scalar::scores;
use kiln_plan::Hardware;
use kiln_plan::attention::Way;
use kiln_plan::matmul_schedule::{MatmulSchedule, TiledAttention};

/// Schedules of an attention on a GPU, with the microseconds they are predicted to take. Not all of them fit.
pub fn candidates(kernel: &Lowering, machine: &Hardware) -> Result<Vec<(MatmulSchedule, f64)>, LowerError> {
    let (v, sums) = find(kernel)?;
    let kernel = &kernel.with_body(Body { second_output: sums.map(|x| (x, MatmulSource::Node)), ..kernel.body });
    let sizes = sizes_of(kernel, v)?;
    let us = |way: &Way| (machine.rates.launch + sizes.seconds_by(way, machine)) * 1e6;
    let skips = sizes.warpgroups(machine).is_some()
        && warpgroups::finds_keys(kernel, v, &scores::sizes(kernel, v), &sizes, machine)?;
    let mut all = vec![];
    for way in sizes.ways(machine) {
        let (plain, us) = (schedule::of_way(&sizes, &way, machine), us(&way));
        if skips && plain.stages.is_some() {
            all.push((MatmulSchedule::Attention(TiledAttention { block_mask: true, ..plain }), us));
        }
        all.push((MatmulSchedule::Attention(plain), us));
    }
    Ok(all)
}
