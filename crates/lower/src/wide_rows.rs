//! Column sums reshaped to wide rows, where no vector divides a large matrix's rows, or rows are narrower than a strip:
//! as many rows as fill vectors are one wide row. The results of its columns are side by side in scratch, and a second
//! step combines those that belong to the same column of the matrix.
use crate::LowerError;
use crate::columns::{STRIP, sharing};
use crate::dag::{NodeId, NodeOp, Scene};
use crate::nest::Nest;
use crate::row_loop::RowLoop;
use crate::rows::{self, Emitted, RowPlan};
use crate::schedule;
use crate::space::{Space, runs_on};
use crate::tile::Cut;
use crate::unaligned::VECTOR;
use kiln_plan::{Axis, Schedule, Step};

/// Bytes from which on the second step takes little time compared with the first.
const LARGE: usize = 8 << 20;
/// Least strips of a wide row.
const STRIPS: usize = 4;
/// Percentage of used lanes in strips that is enough.
const FULL: usize = 95;
/// Most rows in a wide row, and least wide rows.
const MOST: usize = 64;
const LEAST: usize = 64;
/// Most parts that a block of the second step combines.
const PARTS: usize = 4096;

/// The schedule of a nest that is faster with wide rows, where `base` is the one without.
pub fn default(nest: &Nest, base: &Schedule) -> Result<Option<Schedule>, LowerError> {
    if nest.machine.contract.batch_invariant {
        return Ok(None);
    }
    let mut tiled = schedule::tile(nest, base)?;
    let plan = schedule::row_plan(nest, base, &mut tiled)?;
    let Some((axis, count)) = rows_per_wide_row(&tiled.space, &plan, &tiled.scene, nest) else { return Ok(None) };
    let Some(wide) = widened(nest, (axis, count))? else { return Ok(None) };
    let Some(mut schedule) = rows::base(&wide) else { return Ok(None) };
    let mut tiled = schedule::tile(&wide, &schedule)?;
    let plan = schedule::row_plan(&wide, &schedule, &mut tiled)?;
    if !across(&plan) {
        return Ok(None);
    }
    let instances: usize = plan.kept.iter().map(Cut::count).product();
    let most = (plan.row.extent / (2 * plan.row.block)).min(PARTS / count);
    let parts = (sharing(plan.machine) / instances).clamp(1, most.max(1));
    schedule.steps.retain(|s| !matches!(s, Step::SplitReduce(..) | Step::Persist(_)));
    schedule.steps.extend((parts > 1).then_some(Step::SplitReduce(Axis::Row, parts)));
    schedule.steps.insert(0, Step::Widen(axis, count));
    Ok(Some(schedule))
}

/// How many rows may be one wide row along the kept axis number `k`: such that vectors divide the wide rows, where they do not divide
/// rows, or rows are narrow.
pub fn counts(nest: &Nest, k: usize) -> Vec<usize> {
    let (Some(rows), Some(along)) = (nest.row(), nest.kept().nth(k).copied()) else { return vec![] };
    let row = nest.space.row_ids();
    let stored = nest.scene.stores.iter().any(|s| row.iter().any(|r| s.at.uses(*r)));
    let Some(bodies) = bodies(&nest.scene).filter(|_| !stored && row.len() == 1) else { return vec![] };
    let (mut bytes, mut straight) = (VECTOR, true);
    for n in nest.scene.dag.reach(&bodies) {
        let node = nest.scene.dag.node(n);
        node.exprs(&mut |e| straight &= runs_on(e, row[0], along));
        if matches!(node.op, NodeOp::Load { .. }) {
            bytes = bytes.min(node.dtype.bytes());
        }
    }
    let narrow = along.extent * bytes < STRIP;
    let fits = |p: usize| {
        let aligned = (p * along.extent * bytes).is_multiple_of(VECTOR);
        aligned && rows.is_multiple_of(p) && rows / p >= LEAST
    };
    let odd = !(along.extent * bytes).is_multiple_of(VECTOR);
    if !straight || !(odd || narrow) {
        return vec![];
    }
    (1..=MOST.ilog2()).map(|i| 1usize << i).filter(|p| fits(*p)).collect()
}

/// The nest with `count` neighbours along the row as one along this axis; `None` if the row is not a multiple.
pub fn widened<'a>(nest: &'a Nest<'a>, (axis, count): (Axis, usize)) -> Result<Option<Nest<'a>>, LowerError> {
    let (mut space, names) = nest.named();
    let id = |axis: Axis| names.iter().find(|n| n.0 == axis).map(|n| n.1);
    let (Some(row), Some(along)) = (id(Axis::Row), id(axis)) else { return Ok(None) };
    if !space.find(row).is_some_and(|c| c.extent.is_multiple_of(count)) || space.deal(row, count, along).is_none() {
        return Ok(None);
    }
    nest.moved_to(space).map(Some)
}

/// The steps of a nest whose rows are widened along an axis; `rest` is the schedule of the wide rows.
pub fn run(nest: &Nest, (axis, count): (Axis, usize), rest: &Schedule, first: u32) -> Result<Emitted, LowerError> {
    let refuse = |why: &str| schedule::refusal(nest, &Step::Widen(axis, count), why);
    let Some(wide) = widened(nest, (axis, count))? else {
        return Err(refuse("the row is no multiple of it, or there is no such axis"));
    };
    if bodies(&nest.scene).is_none() {
        return Err(refuse("only sums and other reductions in any order that need no other can be widened"));
    }
    let mut tiled = schedule::tile(&wide, rest)?;
    let plan = schedule::row_plan(&wide, rest, &mut tiled)?;
    let Some(base) = rows::base(nest).filter(|_| across(&plan)) else {
        return Err(refuse("rows are contiguous in memory"));
    };
    let mut own = schedule::tile(nest, &base)?;
    let own_plan = schedule::row_plan(nest, &base, &mut own)?;
    let mut before = RowLoop::new(nest.name, &tiled.scene, plan, first);
    let (step, slots) = before.first_level()?;
    let after = RowLoop::new(nest.name, &own.scene, RowPlan { parts: before.plan.parts * count, ..own_plan }, first);
    let last = after.joined(slots, count)?;
    Ok(Emitted { scratch: before.into_scratch(), steps: vec![step, last], made: None })
}

/// Whether rows are strided in memory (columns are reduced).
fn across(plan: &RowPlan) -> bool {
    plan.rank == 2 && plan.row.axis == 0
}

/// The axis along which columns lie, and the number of rows in a wide row.
fn rows_per_wide_row(space: &Space, plan: &RowPlan, scene: &Scene, nest: &Nest) -> Option<(Axis, usize)> {
    let along = *space.find(plan.kept.last()?.id)?;
    let stored_along = scene.stores.iter().any(|s| s.at.uses(plan.row.id));
    if !plan.machine.arch.is_gpu() || !across(plan) || plan.whole() || stored_along {
        return None;
    }
    let bodies = bodies(scene)?;
    let mut bytes = VECTOR;
    let mut straight = true;
    for n in scene.dag.reach(&bodies) {
        let node = scene.dag.node(n);
        node.exprs(&mut |e| straight &= runs_on(e, plan.row.id, along));
        if matches!(node.op, NodeOp::Load { .. }) {
            bytes = bytes.min(node.dtype.bytes());
        }
    }
    let (rows, columns) = (plan.row.extent, along.extent);
    let strip = STRIP / bytes;
    // With rows of half vectors a second step is not profitable.
    let odd = !(columns * bytes).is_multiple_of(VECTOR / 2);
    let narrow = columns < strip && 4 * columns < 3 * columns.next_power_of_two();
    let all: usize = plan.kept.iter().map(|c| c.extent).product::<usize>() * rows;
    if !straight || !(odd || narrow) || all * bytes < LARGE {
        return None;
    }
    let fits = |p: usize| {
        let aligned = (p * columns * bytes).is_multiple_of(VECTOR) && p * columns >= STRIPS * strip;
        aligned && rows.is_multiple_of(p) && rows / p >= LEAST
    };
    // The fewest rows that nearly fill the last strip, else those that fill it most.
    let filled = |p: usize| (100 * p * columns / (p * columns).next_multiple_of(strip)).min(FULL);
    let counts = (1..=MOST.ilog2()).map(|i| 1usize << i).filter(|p| fits(*p));
    let count = counts.max_by_key(|p| (filled(*p), std::cmp::Reverse(*p)))?;
    let axis = nest.kept().position(|c| c.id == along.id)?;
    Some((Axis::Kept(axis as u8), count))
}

/// The bodies of all reductions, if none depends on another one and all may be combined in any order.
fn bodies(scene: &Scene) -> Option<Vec<NodeId>> {
    let mut found = vec![];
    for n in scene.live() {
        let node = scene.dag.node(n);
        if !node.sums_in_any_order() {
            return None;
        }
        if let NodeOp::Reduce { body, .. } = node.op {
            found.push(body);
        }
    }
    let reduces = |n: &NodeId| matches!(scene.dag.node(*n).op, NodeOp::Reduce { .. });
    (!scene.dag.reach(&found).iter().any(reduces)).then_some(found)
}
