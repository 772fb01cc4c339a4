//! Template candidates of a matmul, with predicted times that are good enough to leave out what cannot win.
use super::cost::tiles;
use super::{Matmul, heads, in_parts, memory, sides};
use crate::LowerError;
use crate::resolve::Body;
use crate::warpgroup;
use kiln_plan::Hardware;
use kiln_plan::{Family, Template};

/// Tiles of the template without pipelining.
const TILES: [[usize; 2]; 6] = [[16, 64], [32, 64], [64, 64], [64, 128], [128, 64], [128, 128]];
/// Most rows or columns of a matmul for which row reductions ([`Family::Rows`]) are a candidate.
const FEW: usize = 16;

/// Templates with the microseconds they are predicted to take, unordered.
pub fn candidates(of: &Body, p: &Matmul, machine: &Hardware) -> Result<Vec<(Template, f64)>, LowerError> {
    let dtype = super::operands(of, p.v);
    let by_warpgroups = |p: &Matmul, _| {
        let p = &heads::settled(of, p, machine)?;
        Ok(sides(of, p, machine)?.map(|s| warpgroup::candidates(p, dtype, s)))
    };
    let mut all = memory::prepared(of, p, machine, by_warpgroups)?.unwrap_or_default();
    let us = |cycles: f64| cycles / machine.units.clock * 1e6;
    all.extend(
        TILES.map(|tile| {
            (Template { tile: Some(tile), ..Family::Tile.into() }, us(tiles(p, tile, machine.gemm.aligned)))
        }),
    );
    if p.m.min(p.n) <= FEW && p.row.is_none() {
        all.push((Family::Rows.into(), us(rows(p, dtype.bytes()))));
    }
    Ok(all)
}

/// Split-K slices that lowering chooses by default.
pub fn chosen_parts(of: &Body, p: &Matmul, machine: &Hardware) -> Result<usize, LowerError> {
    memory::prepared(of, p, machine, |p, _| {
        let p = &heads::settled(of, p, machine)?;
        Ok(in_parts(of, p, machine, 0)?.map_or(1, |(parts, _)| parts.count))
    })
}

/// Cycles of row reductions: the time of memory, or that of FMAs from the cache.
fn rows(p: &Matmul, bytes: usize) -> f64 {
    let of = &p.machine.gemm;
    let batch = p.batch.iter().product::<usize>() as f64;
    let read = batch * ((p.m + p.sums() * p.n) * p.k * bytes) as f64 / of.rows_read;
    read.max(
        batch * (p.m * p.n * p.sums()) as f64 * p.k as f64 / (p.machine.units.multiprocessors as f64 * of.rows_rate),
    )
}
