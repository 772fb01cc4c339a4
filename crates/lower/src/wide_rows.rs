//! Column reductions and norms over wide rows, where no vector divides a large matrix's rows, or rows are narrower than a strip: as many rows
//! as fill vectors are one wide row. The results of its columns are side by side in scratch, and a second step combines those that belong to
//! the same column of the matrix. Norms store along wide rows in a third one.
use crate::LowerError;
use crate::dag::NodeOp;
use crate::expr::CoordId;
use crate::nest::Nest;
use crate::row_loop::RowLoop;
use crate::row_loop::reduced::{Reduced, in_passes};
use crate::row_loop::split_row::{JOINED, columns_of, joining_warps};
use crate::rows::{Emitted, RowPlan, Wide};
use crate::schedule;
use crate::space::runs_on;
use kiln_block::passes::layout::VECTOR;
use kiln_plan::{Axis, Schedule, Step};

/// Bytes of a row from which on it fills the loads of an instance.
const STRIP: usize = 256;
/// Columns of an instance of the second step.
const COLUMNS: usize = 128;
/// Most rows in a wide row, and least wide rows.
const MOST: usize = 64;
const LEAST: usize = 64;

/// How many rows may be one wide row along the kept axis number `k`: such that vectors divide the wide rows, where they do not divide
/// rows, or rows are narrow.
pub fn counts(nest: &Nest, k: usize) -> Vec<usize> {
    let Ok(Fit { rows, columns }) = fits(nest, k) else { return vec![] };
    let mut bytes = VECTOR;
    for n in nest.scene.dag.reach(&nest.scene.roots()) {
        let node = nest.scene.dag.node(n);
        if matches!(node.op, NodeOp::Load { .. }) {
            bytes = bytes.min(node.dtype.bytes());
        }
    }
    let aligned = |p: usize| (p * columns * bytes).is_multiple_of(VECTOR);
    let narrow = columns * bytes < STRIP;
    if aligned(1) && !narrow {
        return vec![];
    }
    (1..=MOST.ilog2()).map(|i| 1usize << i).filter(|p| aligned(*p) && rows.div_ceil(*p) >= LEAST).collect()
}

/// A matrix whose rows may be parts of wide ones.
struct Fit {
    rows: usize,
    columns: usize,
}

/// The matrix whose columns are along the kept axis number `k` of a nest, if they may be those of wide rows; why not.
fn fits(nest: &Nest, k: usize) -> Result<Fit, &'static str> {
    let (scene, row) = (&nest.scene, nest.space.row_ids());
    let Some(n) = nest.row() else { return Err("it has no rows") };
    let [row] = &row[..] else { return Err("the row is of several axes") };
    let Some(along) = nest.kept().nth(k).copied().filter(|_| k + 1 == nest.kept().count()) else {
        return Err("it is not the last axis that is kept");
    };
    if scene.live().into_iter().any(|n| !scene.dag.node(n).sums_in_any_order()) {
        return Err("scans and the positions of maxima depend on the order of rows");
    }
    let levels = in_passes(scene, &scene.levels(), &[*row], n);
    let [level] = &levels[..] else { return Err("a reduction needs another one") };
    if level.iter().any(|r| matches!(r, Reduced::Moments(_))) {
        return Err("mean and variance are not combined over wide rows");
    }
    let bodies: Vec<_> = level.iter().map(Reduced::body).collect();
    let mut straight = true;
    for n in scene.dag.reach(&bodies) {
        scene.dag.node(n).exprs(&mut |e| straight &= runs_on(e, *row, along));
    }
    let along_row = scene.stores.iter().filter(|s| s.at.uses(*row));
    for s in along_row.clone() {
        straight &= runs_on(&s.at, *row, along);
    }
    if !straight {
        return Err("rows are not one after the other in memory");
    }
    if along_row.count() % scene.stores.len().max(1) != 0 {
        return Err("some results are stored for each row, others for each column");
    }
    Ok(Fit { rows: n, columns: along.extent })
}

/// Columns that a block of the second step combines, of so many parts in wide rows of `count`.
pub fn together(parts: usize, count: usize) -> usize {
    COLUMNS.min(columns_of(parts * count))
}

/// Whether a block of it has registers for them.
pub fn joins(parts: usize, count: usize) -> bool {
    together(parts, count) * parts * count <= JOINED
}

/// The nest with `count` neighbours along the row as one along this axis, and the coordinate along it; `None` if there is no such axis.
pub fn widened<'a>(
    nest: &'a Nest<'a>,
    (axis, count): (Axis, usize),
) -> Result<Option<(Nest<'a>, CoordId)>, LowerError> {
    let (mut space, names) = nest.named();
    let id = |axis: Axis| names.iter().find(|n| n.0 == axis).map(|n| n.1);
    let (Some(row), Some(along)) = (id(Axis::Row), id(axis)) else { return Ok(None) };
    let Some(along) = space.deal(row, count, along) else { return Ok(None) };
    Ok(Some((nest.moved_to(space)?, along)))
}

/// The steps of a nest whose rows are widened along an axis; `rest` is the schedule of the wide rows.
pub fn run(nest: &Nest, (axis, count): (Axis, usize), rest: &Schedule, first: u32) -> Result<Emitted, LowerError> {
    let refuse = |why: &str| schedule::refusal(nest, &Step::Widen(axis, count), why);
    let Axis::Kept(k) = axis else { return Err(refuse("it is for an axis that is kept")) };
    let Fit { rows, columns } = fits(nest, usize::from(k)).map_err(refuse)?;
    let Some((wide, along)) = widened(nest, (axis, count))? else { return Err(refuse("there is no such axis")) };
    let supported = |s: &Step| {
        matches!(s, Step::Split(..) | Step::Warps(_) | Step::Registers(_) | Step::SplitReduce(..) | Step::Reverse(_))
    };
    if let Some(step) = rest.steps.iter().find(|s| !supported(s)) {
        return Err(schedule::refusal(nest, step, "wide rows are only split, and bound to warps"));
    }
    let mut tiled = schedule::tile(&wide, rest)?;
    let registers = tiled.registers;
    let mut plan = schedule::row_plan(&wide, rest, &mut tiled)?;
    if !across(&plan) {
        return Err(refuse("rows are contiguous in memory"));
    }
    let extent = columns * count;
    if plan.row.block == 1 {
        return Err(refuse("a chunk has one wide row"));
    }
    plan.wide = (!rows.is_multiple_of(count)).then_some(Wide { along, extent, all: rows * columns });
    let norm = tiled.scene.stores.iter().any(|s| s.at.uses(plan.row.id));
    let mut before = RowLoop::new(nest.name, &tiled.scene, plan, first);
    if before.levels.len() != 1 {
        return Err(refuse("a block has a whole wide row"));
    }
    let (step, found) = before.first_level()?;
    let parts = before.plan.parts * count;
    if !joins(before.plan.parts, count) {
        return Err(refuse(&format!("{parts} partial results of a column are too many")));
    }
    let warps = joining_warps(together(before.plan.parts, count) * parts).max(COLUMNS / 32);
    let joins = [Step::Split(Axis::Row, 1), Step::Split(axis, COLUMNS), Step::Warps(warps)].into_iter().collect();
    let mut own = schedule::tile(nest, &joins)?;
    let own_plan = schedule::row_plan(nest, &joins, &mut own)?;
    let mut steps = vec![step];
    let mut scratch = before.scratch();
    let after = RowPlan { parts, ..own_plan };
    let mut after = RowLoop::new(nest.name, &own.scene, after, first + scratch.len() as u32);
    if norm {
        let (join, results) = after.results(&found, count)?;
        scratch.extend(after.scratch());
        steps.extend([join, before.written(&results, columns)?]);
    } else {
        steps.push(after.joined(found, count)?);
    }
    steps.iter_mut().for_each(|step| schedule::limit_registers(step, registers));
    Ok(Emitted { scratch, steps, ..Emitted::default() })
}

/// Whether rows are strided in memory (columns are reduced).
fn across(plan: &RowPlan) -> bool {
    plan.rank == 2 && plan.row.axis == 0
}
