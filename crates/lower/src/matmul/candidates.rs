//! Schedules of a matmul that tuning tries, with predicted times that are good enough to leave out what cannot win.
use super::cost::tiles;
use super::tiles::{engine, sized};
use super::{Matmul, fitting, heads, memory, sides};
use crate::LowerError;
use crate::dag::Scene;
use crate::expr::{CoordId, Expr};
use crate::multiply::{Forms, Product};
use crate::resolve::Body;
use crate::warpgroup;
use kiln_plan::Hardware;

/// Tiles without pipelining.
const TILES: [[usize; 2]; 6] = [[16, 64], [32, 64], [64, 64], [64, 128], [128, 64], [128, 128]];

/// Schedules with the microseconds they are predicted to take, unordered. Not all of them fit.
pub fn candidates(of: &Body, p: &Matmul, machine: &Hardware) -> Result<Vec<(Product, f64)>, LowerError> {
    let dtype = super::operands(of, p.v);
    let read = p;
    let mut all = memory::prepared(of, p, machine, |p, _, copies| {
        let p = &heads::settled(of, p, machine)?;
        let Some(sides) = sides(of, p, machine)? else { return Ok(vec![]) };
        let before = memory::cycles(of, read, copies)? / machine.units.clock * 1e6;
        let whole = fitting(of, p).is_some();
        let one = |(slices, tile, us)| {
            let apart = slices == 1 && !whole;
            let after = if apart { heads::separate(p) } else { 0.0 };
            (Product { forms: Forms { copies, slices, apart, ..Forms::default() }, tile }, us + before + after)
        };
        Ok(warpgroup::candidates(p, dtype, sides, prefetches(of, p)).into_iter().map(one).collect::<Vec<_>>())
    })?;
    let us = |cycles: f64| cycles / machine.units.clock * 1e6;
    let apart = fitting(of, p).is_none();
    let rows = memory::rows(of, p)?;
    let own = sized(p, dtype, None);
    let others = TILES.map(|tile| sized(p, dtype, Some(tile))).into_iter().filter(|t| *t != own);
    all.extend(std::iter::once(own).chain(others).map(|tile| {
        let after = if apart { heads::separate(p) } else { 0.0 };
        let price = us(tiles(p, &tile, engine(dtype, p), dtype.bytes(), rows)) + after;
        let tile = tile.of_schedule(engine(dtype, p));
        (Product { forms: Forms { apart, ..Forms::default() }, tile }, price)
    }));
    Ok(all)
}

/// Whether the epilogue reads a tile that can be copied ahead.
pub fn prefetches(of: &Body, p: &Matmul) -> bool {
    let Some(placed) = fitting(of, p) else { return false };
    let dims = [&p.batch[..], &[p.m, p.n]].concat();
    let axes: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    let rows = p.batch.len() as CoordId;
    let scene = super::epilogue(of, p, &placed, &axes);
    scene.is_ok_and(|(dag, stores)| {
        warpgroup::prefetched(&Scene { dag, stores }, p, (rows, p.m), (rows + 1, p.n)).is_some()
    })
}

/// Microseconds of row reductions: the time of memory, or that of FMAs from the cache.
pub fn by_rows(of: &Body, p: &Matmul) -> f64 {
    let (gemm, bytes) = (&p.machine.gemm, super::operands(of, p.v).bytes());
    let batch = p.batch.iter().product::<usize>() as f64;
    let read = batch * ((p.m + p.sums() * p.n) * p.k * bytes) as f64 / gemm.rows_read;
    let multiplied = (p.m * p.n * p.sums()) as f64 * p.k as f64;
    let cycles = read.max(batch * multiplied / (p.machine.units.multiprocessors as f64 * gemm.rows_rate));
    cycles / p.machine.units.clock * 1e6
}
