//! The schedules of a matmul on a GPU, with predicted times.
use crate::cost::mma::tiles as mma_cycles;
use crate::cost::slices::sum;
use crate::cost::wgmma as wgmma_cost;
use crate::error::{LowerError, unsupported_as_none};
use crate::matmul::mma::{self, engine};
use crate::matmul::operands::{self as matmul_operands, Rows, Way};
use crate::matmul::slices::{Parts, SLICES};
use crate::matmul::wgmma::shape::{self, Choices, Engine, Through};
use crate::matmul::wgmma::strided::{Major, Side, majors};
use crate::matmul::wgmma::through;
use crate::matmul::{Matmul, epilogue, fitting, operand_dtype};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::Scene;
use crate::scalar::epilogue_map::accumulators;
use crate::scalar::expr::{CoordId, Expr};
use kiln_graph::DType;
use kiln_plan::form::ProgramFamily;
use kiln_plan::matmul_schedule::{MatmulForm, MatmulSchedule, MatmulTile, TiledMatmul};
use kiln_plan::price_error::ADVANTAGE_OF_OTHER_FAMILY;
use kiln_plan::{Hardware, Precision};

/// Where the epilogue is computed.
pub struct Epilogue {
    /// Length of the rows that tiles reduce.
    pub row: Option<usize>,
    /// By a launch of its own.
    pub separate_launch: bool,
    /// What tiles store and read through shared memory.
    pub through: Through,
}

/// The places where a matmul's epilogue can be computed.
pub fn epilogues(kernel: &Lowering, p: &Matmul) -> Result<Vec<Epilogue>, LowerError> {
    let in_tiles = fused(kernel, p)?.map(|through| Epilogue { row: p.row, separate_launch: false, through });
    // The halves of one matmul are no values that can be stored.
    let is_stored = p.values().count() == p.sums();
    let is_separate = is_stored && (p.row.is_some() || in_tiles.is_none());
    let stored = Through { stored: vec![kernel.graph.dtype(p.v).compute().bytes()], prefetched: false };
    let separate = is_separate.then_some(Epilogue { row: None, separate_launch: true, through: stored });
    Ok(in_tiles.into_iter().chain(separate).collect())
}

/// What passes through shared memory if tiles compute the epilogue; `None` where they cannot.
fn fused(kernel: &Lowering, p: &Matmul) -> Result<Option<Through>, LowerError> {
    let Some(placed) = fitting(kernel, p) else { return Ok(None) };
    let dims = [&p.batch[..], &[p.m, p.n]].concat();
    let axes: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    let rows = p.batch.len() as CoordId;
    let Some((dag, stores)) = unsupported_as_none(epilogue(kernel, p, &placed, &axes))? else { return Ok(None) };
    let scene = Scene { dag, stores };
    let sums = accumulators(&scene, p.sums());
    Ok(sums.map(|_| through(&scene, p, [(rows, p.m), (rows + 1, p.n)])))
}

/// Schedules with the microseconds they are predicted to take: for each form larger tiles come first. Not all of them
/// fit.
pub fn candidates(kernel: &Lowering, p: &Matmul, machine: &Hardware) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    let (dtype, epilogues) = (operand_dtype(kernel, p.v), epilogues(kernel, p)?);
    let mut all = vec![];
    for way in matmul_operands::ways(kernel, p, machine)? {
        all.extend(staged(kernel, p, &way, &epilogues));
    }
    let rows = matmul_operands::rows(kernel, p)?;
    for e in &epilogues {
        let p = &Matmul { batch: p.batch.clone(), row: e.row, ..*p };
        let epilogue_us = if e.separate_launch { separate(p) } else { 0.0 };
        let form = MatmulForm { separate_epilogue: e.separate_launch, ..MatmulForm::default() };
        all.extend(mma::tiles(p, dtype).into_iter().map(|tile| {
            let price = us(p, mma_cycles(p, &tile, engine(dtype, p), dtype.bytes(), rows)) + epilogue_us;
            (TiledMatmul { form, tile: tile.of_schedule(engine(dtype, p)) }, price)
        }));
    }
    if !epilogues.is_empty() {
        all.extend(mma_slices(p, dtype, rows));
    }
    Ok(all)
}

/// Fewest tiles along K of a slice, on average.
const MIN_TILES_OF_SLICE: usize = 2;

/// Schedules of tensor-core tiles with operands in registers, in slices of K: of powers of two, up to what gives every
/// multiprocessor a tile. A launch of their own sums them and computes the epilogue.
fn mma_slices(p: &Matmul, dtype: DType, rows: [Rows; 2]) -> Vec<(TiledMatmul, f64)> {
    let is_stored = p.values().count() == p.sums();
    if engine(dtype, p) != kiln_plan::Engine::Mma || !is_stored || p.machine.contract.batch_invariant {
        return vec![];
    }
    let p = &Matmul { batch: p.batch.clone(), row: None, ..*p };
    let batch = p.batch.iter().product::<usize>();
    let mut all = vec![];
    for tile in mma::tiles(p, dtype) {
        let tile = mma::Tile { group: 1, ..tile };
        let instances = batch * p.m.div_ceil(tile.m) * p.n.div_ceil(tile.n);
        let most = SLICES.min(p.k / (MIN_TILES_OF_SLICE * tile.k));
        let idle = |count: &usize| instances * count / 2 < p.machine.units.multiprocessors;
        let counts = (1..).map(|power| 1 << power).take_while(|count| *count <= most && idle(count));
        for parts in counts.map_while(|count| Parts::of(count, p.k, tile.k)) {
            let cycles = mma_cycles(&parts.piece(p), &tile, kiln_plan::Engine::Mma, dtype.bytes(), rows);
            let form = MatmulForm { slices: parts.count, ..MatmulForm::default() };
            let schedule = TiledMatmul { form, tile: tile.of_schedule(kiln_plan::Engine::Mma) };
            all.push((schedule, us(p, cycles + sum(p, parts.count, elements(p)))));
        }
    }
    all
}

/// Which of these schedules are slices of K in registers that are not much cheaper than staged tiles: they are a choice
/// only where their form is asked for.
pub fn slices_without_advantage(all: &[(MatmulSchedule, f64)]) -> impl Fn(&(MatmulSchedule, f64)) -> bool + use<> {
    let staged = all.iter().filter(|c| ProgramFamily::of(&c.0) == ProgramFamily::StagedTiles);
    let staged = staged.map(|c| c.1).fold(f64::INFINITY, f64::min);
    move |(schedule, us)| {
        let split = matches!(schedule, MatmulSchedule::Matmul(p) if p.form.slices > 1);
        let in_registers = ProgramFamily::of(schedule) == ProgramFamily::RegisterTiles;
        split && in_registers && us * ADVANTAGE_OF_OTHER_FAMILY > staged
    }
}

/// The same of a matmul with its operands swapped, in tiles whose operands are staged: those of loads to registers are
/// as narrow as the matmul is. In tf32 that is for left operands which tensor cores take from registers.
pub fn swapped_candidates(
    kernel: &Lowering,
    p: &Matmul,
    machine: &Hardware,
) -> Result<Vec<(TiledMatmul, f64)>, LowerError> {
    let epilogues = epilogues(kernel, p)?;
    let tf32 = p.precision == Precision::Tf32;
    let mut ways = matmul_operands::ways(kernel, p, machine)?;
    ways.retain(|way| !tf32 || way.rounded || majors(way.sides) == [Major::Outer, Major::Depth]);
    let mut all: Vec<(TiledMatmul, f64)> = ways.iter().flat_map(|way| staged(kernel, p, way, &epilogues)).collect();
    all.iter_mut().for_each(|c| c.0.form.swap = true);
    Ok(all)
}

/// The same in tiles whose operands are staged in shared memory, which get them in this way.
pub fn staged(kernel: &Lowering, p: &Matmul, way: &Way, epilogues: &[Epilogue]) -> Vec<(TiledMatmul, f64)> {
    let mut all = vec![];
    for e in epilogues {
        let &Way { precision, rounded, .. } = way;
        let copies = wgmma_cost::copies(&way.launches, p.machine);
        let p = &Matmul { batch: p.batch.clone(), precision, rounded, row: e.row, ..*p };
        // The launch that sums slices computes the epilogue wherever it is.
        let most = if e.separate_launch && epilogues.len() > 1 { 1 } else { SLICES };
        for (slices, tile, cycles) in wgmma_tiles(p, operand_dtype(kernel, p.v), way.sides, &e.through, most) {
            let separate_epilogue = e.separate_launch && slices == 1;
            let form = MatmulForm { copies: way.copies, slices, separate_epilogue, ..MatmulForm::default() };
            let epilogue_us = if separate_epilogue { separate(p) } else { 0.0 };
            all.push((TiledMatmul { form, tile }, us(p, copies + cycles) + epilogue_us));
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

fn elements(p: &Matmul) -> usize {
    p.batch.iter().product::<usize>() * p.m * p.n * p.sums()
}

/// Slices (at most `most`) and tiles that fit a matmul, with the cycles they are predicted to take, the launch that
/// sums slices included. Larger tiles come first.
fn wgmma_tiles(
    p: &Matmul,
    dtype: DType,
    sides: [Side; 2],
    through: &Through,
    most: usize,
) -> Vec<(usize, MatmulTile, f64)> {
    let Some(engine) = Engine::of(dtype, p.precision, majors(sides)) else { return vec![] };
    let mut all = vec![];
    // Slices are stored as they are summed.
    let sums = Through { stored: vec![DType::F32.bytes()], prefetched: false };
    for count in 1..=most {
        // An array of windows goes on beyond K: its slices are whole.
        let parts =
            Parts::of(count, p.k, engine.slice_depth()).filter(|parts| p.run.is_none() || count * parts.len == p.k);
        let Some(parts) = parts else { continue };
        let (piece, through) = (parts.piece(p), if count == 1 { through } else { &sums });
        for &(m, n, copies, spans) in engine.tiles().iter().filter(|t| !engine.is_wide(p, t)) {
            // FMAs have one tile in flight, and share no operands.
            let pairs = [(1, 1), (2, 1), (1, 2), (2, 2)];
            let pairs = if engine == Engine::Simt { &pairs[..1] } else { &pairs };
            for &(cluster, in_flight) in pairs {
                let choices = Choices { cluster, ..Choices::of(in_flight) };
                let found = shape::shape(&piece, engine, [m, n, copies, spans], choices, sides, through);
                all.extend(found.map(|s| {
                    let cycles = s.cycles(&piece, sides) + sum(p, count, elements(p));
                    (count, s.tile(p.machine), cycles)
                }));
            }
        }
    }
    all
}
