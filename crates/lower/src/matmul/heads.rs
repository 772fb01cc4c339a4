//! Epilogues that reduce parts of a matmul's rows, such as a norm of each head after a projection: reduced in tiles as
//! wide as a head, where that is predicted to be faster than wider tiles and a separate step for the rows.
use super::{Matmul, operands, sides};
use crate::LowerError;
use crate::resolve::Body;
use crate::warpgroup;
use kiln_plan::Hardware;

/// The matmul, with `row` only where its tiles are to reduce rows.
pub fn settled<'a>(of: &Body, p: &Matmul<'a>, machine: &Hardware) -> Result<Matmul<'a>, LowerError> {
    let row = match p.row {
        Some(len) if len < p.n && !in_tile(of, p, len, machine)? => None,
        row => row,
    };
    Ok(Matmul { batch: p.batch.clone(), row, ..*p })
}

/// Whether heads of `len` columns are reduced in tiles as wide as one: as the schedule says, or as is predicted to be faster.
fn in_tile(of: &Body, p: &Matmul, len: usize, machine: &Hardware) -> Result<bool, LowerError> {
    match of.product() {
        Some(asked) => Ok(!asked.forms.apart),
        None => is_profitable(of, p, len, machine),
    }
}

/// Whether tiles as wide as a head of `len` columns are predicted to be faster.
fn is_profitable(of: &Body, p: &Matmul, len: usize, machine: &Hardware) -> Result<bool, LowerError> {
    let even = len.is_power_of_two() && len >= 64 && p.n.is_multiple_of(len) && p.dual.is_none();
    let Some(sides) = sides(of, p, machine)?.filter(|_| even) else { return Ok(false) };
    let dtype = operands(of, p.v);
    let us = |row| {
        let p = Matmul { batch: p.batch.clone(), row, ..*p };
        warpgroup::cycles(&p, dtype, sides).map(|cycles| cycles / machine.units.clock * 1e6)
    };
    let Some(heads) = us(Some(len)) else { return Ok(false) };
    Ok(us(None).is_none_or(|wide| heads < wide + separate(p)))
}

/// Microseconds of a separate step for the epilogue: the accumulators are written in f32 and read again.
pub fn separate(p: &Matmul) -> f64 {
    let elements = p.batch.iter().product::<usize>() * p.sums() * p.m * p.n;
    (p.machine.rates.launch + elements as f64 * 8.0 / p.machine.rates.bandwidth) * 1e6
}
