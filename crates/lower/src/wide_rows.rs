//! Column sums reshaped to wide rows, where no vector divides a large matrix's rows, or rows are narrower than a strip:
//! as many rows as fill vectors are one wide row. The results of its columns are side by side in scratch, and a second
//! step combines those that belong to the same column of the matrix.
use crate::LowerError;
use crate::dag::{NodeId, NodeOp, Scene};
use crate::nest::Nest;
use crate::row_loop::RowLoop;
use crate::rows::{Emitted, RowPlan};
use crate::schedule;
use crate::space::runs_on;
use crate::unaligned::VECTOR;
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
    if !across(&plan) {
        return Err(refuse("rows are contiguous in memory"));
    }
    let steps = [Step::Split(Axis::Row, 1), Step::Split(axis, COLUMNS), Step::Warps(COLUMNS / 32)];
    let joins = steps.into_iter().collect();
    let mut own = schedule::tile(nest, &joins)?;
    let own_plan = schedule::row_plan(nest, &joins, &mut own)?;
    let mut before = RowLoop::new(nest.name, &tiled.scene, plan, first);
    let (step, slots) = before.first_level()?;
    let after = RowLoop::new(nest.name, &own.scene, RowPlan { parts: before.plan.parts * count, ..own_plan }, first);
    let last = after.joined(slots, count)?;
    Ok(Emitted { scratch: before.into_scratch(), steps: vec![step, last], ..Emitted::default() })
}

/// Whether rows are strided in memory (columns are reduced).
fn across(plan: &RowPlan) -> bool {
    plan.rank == 2 && plan.row.axis == 0
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
