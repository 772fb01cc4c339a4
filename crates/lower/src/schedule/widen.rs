//! Column reductions and norms over wide rows, where no vector divides a large matrix's rows, or rows are narrower than
//! a strip: as many rows as fill vectors are one wide row. The results of its columns are side by side in scratch, and
//! a second step combines those that belong to the same column of the matrix. Norms store along wide rows in a third
//! one.
use crate::error::LowerError;
use crate::nest::Nest;
use crate::nest::passes::{Reduced, in_passes};
use crate::scalar::dag::NodeOp;
use crate::scalar::expr::CoordId;
use crate::scalar::space::runs_on;
use crate::schedule::row_plan::RowPlan;
use crate::schedule::split_reduce::{MAX_JOINED_PARTIALS, columns_of};
use kiln_machine::isa::VECTOR;
use kiln_plan::Axis;

/// Bytes of a row from which on it fills the loads of an instance.
const STRIP: usize = 256;
/// Columns of an instance of the second step.
pub const COLUMNS: usize = 128;
/// Most rows in a wide row, and least wide rows.
const MAX_ROWS_IN_WIDE_ROW: usize = 64;
const MIN_WIDE_ROWS: usize = 64;

/// How many rows may be one wide row along the kept axis number `k`: such that vectors divide the wide rows, where they
/// do not divide rows, or rows are narrow.
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
    (1..=MAX_ROWS_IN_WIDE_ROW.ilog2())
        .map(|i| 1usize << i)
        .filter(|p| aligned(*p) && rows.div_ceil(*p) >= MIN_WIDE_ROWS)
        .collect()
}

/// A matrix whose rows may be parts of wide ones.
pub struct Fit {
    pub rows: usize,
    pub columns: usize,
}

/// The matrix whose columns are along the kept axis number `k` of a nest, if they may be those of wide rows; why not.
pub fn fits(nest: &Nest, k: usize) -> Result<Fit, &'static str> {
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
    together(parts, count) * parts * count <= MAX_JOINED_PARTIALS
}

/// The nest with `count` neighbours along the row as one along this axis, and the coordinate along it; `None` if there
/// is no such axis.
pub fn widened<'a>(
    nest: &'a Nest<'a>,
    (axis, count): (Axis, usize),
) -> Result<Option<(Nest<'a>, CoordId)>, LowerError> {
    let (mut space, names) = nest.named();
    let id = |axis: Axis| names.iter().find(|n| n.0 == axis).map(|n| n.1);
    let (Some(row), Some(along)) = (id(Axis::Row), id(axis)) else { return Ok(None) };
    let Some(along) = space.distribute(row, count, along) else { return Ok(None) };
    Ok(Some((nest.moved_to(space)?, along)))
}

/// Whether rows are strided in memory (columns are reduced).
pub fn across(plan: &RowPlan) -> bool {
    plan.rank == 2 && plan.row.axis == 0
}
