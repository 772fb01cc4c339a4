//! The schedules of a matmul on a GPU, with predicted times.
use super::cost::tiles;
use super::memory::{self, Way};
use super::tiles::{self, engine};
use super::{Matmul, epilogue, fitting, operands};
use crate::dag::Scene;
use crate::expr::{CoordId, Expr};
use crate::lowering::Lowering;
use crate::multiply::{Forms, Product};
use crate::placed::the_sums;
use crate::warpgroup::{self, Major, Through, majors};
use crate::{LowerError, unsupported_as_none};
use kiln_plan::{Hardware, Precision};

/// Where the epilogue is computed.
pub struct Epilogue {
    /// Length of the rows that tiles reduce.
    pub row: Option<usize>,
    /// By a launch of its own.
    pub apart: bool,
    /// What tiles store and read through shared memory.
    pub through: Through,
}

/// The places where a matmul's epilogue can be computed.
pub fn epilogues(of: &Lowering, p: &Matmul) -> Result<Vec<Epilogue>, LowerError> {
    let in_tiles = fused(of, p)?.map(|through| Epilogue { row: p.row, apart: false, through });
    // The halves of one matmul are no values that can be stored.
    let is_stored = p.values().count() == p.sums();
    let apart = is_stored && (p.row.is_some() || in_tiles.is_none());
    let stored = Through { stored: vec![of.graph.dtype(p.v).compute().bytes()], prefetched: false };
    let apart = apart.then_some(Epilogue { row: None, apart: true, through: stored });
    Ok(in_tiles.into_iter().chain(apart).collect())
}

/// What passes through shared memory if tiles compute the epilogue; `None` where they cannot.
fn fused(of: &Lowering, p: &Matmul) -> Result<Option<Through>, LowerError> {
    let Some(placed) = fitting(of, p) else { return Ok(None) };
    let dims = [&p.batch[..], &[p.m, p.n]].concat();
    let axes: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    let rows = p.batch.len() as CoordId;
    let Some((dag, stores)) = unsupported_as_none(epilogue(of, p, &placed, &axes))? else { return Ok(None) };
    let scene = Scene { dag, stores };
    let sums = the_sums(&scene, p.sums());
    Ok(sums.map(|_| warpgroup::through(&scene, p, [(rows, p.m), (rows + 1, p.n)])))
}

/// Schedules with the microseconds they are predicted to take: for each form larger tiles come first. Not all of them fit.
pub fn candidates(of: &Lowering, p: &Matmul, machine: &Hardware) -> Result<Vec<(Product, f64)>, LowerError> {
    let (dtype, epilogues) = (operands(of, p.v), epilogues(of, p)?);
    let mut all = vec![];
    for way in memory::ways(of, p, machine)? {
        all.extend(staged(of, p, &way, &epilogues));
    }
    let rows = memory::rows(of, p)?;
    for e in &epilogues {
        let p = &Matmul { batch: p.batch.clone(), row: e.row, ..*p };
        let after = if e.apart { separate(p) } else { 0.0 };
        let forms = Forms { apart: e.apart, ..Forms::default() };
        all.extend(tiles::tiles(p, dtype).into_iter().map(|tile| {
            let price = us(p, tiles(p, &tile, engine(dtype, p), dtype.bytes(), rows)) + after;
            (Product { forms, tile: tile.of_schedule(engine(dtype, p)) }, price)
        }));
    }
    Ok(all)
}

/// The same of a matmul with its operands swapped, in tiles whose operands are staged: those of loads to registers are
/// as narrow as the matmul is. In tf32 that is for left operands which tensor cores take from registers.
pub fn swapped_candidates(of: &Lowering, p: &Matmul, machine: &Hardware) -> Result<Vec<(Product, f64)>, LowerError> {
    let epilogues = epilogues(of, p)?;
    let tf32 = p.precision == Precision::Tf32;
    let mut ways = memory::ways(of, p, machine)?;
    ways.retain(|way| !tf32 || way.rounded || majors(way.sides) == [Major::Outer, Major::Depth]);
    let mut all: Vec<(Product, f64)> = ways.iter().flat_map(|way| staged(of, p, way, &epilogues)).collect();
    all.iter_mut().for_each(|c| c.0.forms.swap = true);
    Ok(all)
}

/// The same in tiles whose operands are staged in shared memory, which get them in this way.
pub fn staged(of: &Lowering, p: &Matmul, way: &Way, epilogues: &[Epilogue]) -> Vec<(Product, f64)> {
    let mut all = vec![];
    for e in epilogues {
        let Way { precision, rounded, .. } = *way;
        let p = &Matmul { batch: p.batch.clone(), precision, rounded, row: e.row, ..*p };
        // The launch that sums slices computes the epilogue wherever it is.
        let most = if e.apart && epilogues.len() > 1 { 1 } else { warpgroup::SLICES };
        for (slices, tile, cycles) in warpgroup::candidates(p, operands(of, p.v), way.sides, &e.through, most) {
            let apart = e.apart && slices == 1;
            let forms = Forms { copies: way.copies, slices, apart, ..Forms::default() };
            let after = if apart { separate(p) } else { 0.0 };
            all.push((Product { forms, tile }, us(p, way.cycles + cycles) + after));
        }
    }
    all
}

fn us(p: &Matmul, cycles: f64) -> f64 {
    cycles / p.machine.units.clock * 1e6
}

/// Microseconds of a separate step for the epilogue: the accumulators are written in f32 and read again.
fn separate(p: &Matmul) -> f64 {
    let elements = p.batch.iter().product::<usize>() * p.sums() * p.m * p.n;
    (p.machine.rates.launch + elements as f64 * 8.0 / p.machine.rates.bandwidth) * 1e6
}
