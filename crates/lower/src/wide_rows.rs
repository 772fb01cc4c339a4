//! Column sums reshaped to wide rows, where no vector divides a large matrix's rows, or rows are narrower than a strip:
//! as many rows as fill vectors are one wide row. The results of its columns are side by side in scratch, and a second
//! step combines those that belong to the same column of the matrix.
use crate::LowerError;
use crate::columns::{STRIP, sharing};
use crate::dag::{NodeId, NodeOp, Scene};
use crate::row_loop::RowLoop;
use crate::rows::{self, Emitted, RowPlan};
use crate::space::{Coord, Space, runs_on};
use crate::tile::Cut;
use crate::unaligned::VECTOR;

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

/// The steps of a kernel that is faster with wide rows.
pub fn reshaped<F>(
    name: &str,
    space: &Space,
    plan: &RowPlan,
    scene: &F,
    first: u32,
) -> Result<Option<Emitted>, LowerError>
where
    F: Fn(&Space) -> Result<Scene, LowerError>,
{
    if plan.machine.contract.batch_invariant {
        return Ok(None);
    }
    let own = scene(space)?;
    let Some((along, count)) = rows_per_wide_row(space, plan, &own) else { return Ok(None) };
    let mut dealt = space.clone();
    if dealt.deal(plan.row.id, count, along.id).is_none() {
        return Ok(None);
    }
    let settled = scene(&dealt)?;
    let Some(wide) = rows::plan(&mut dealt, &settled, plan.machine) else { return Ok(None) };
    if !across(&wide) {
        return Ok(None);
    }
    let instances: usize = wide.kept.iter().map(Cut::count).product();
    let most = (wide.row.extent / (2 * wide.row.block)).min(PARTS / count);
    let parts = (sharing(plan.machine) / instances).clamp(1, most.max(1));
    let parts_scene = scene(&dealt)?;
    let mut before = RowLoop::new(name, &parts_scene, RowPlan { parts, ..wide }, first);
    let (step, slots) = before.first_level()?;
    let after = RowLoop::new(name, &own, RowPlan { parts: before.plan.parts * count, ..plan.clone() }, first);
    let last = after.joined(slots, count)?;
    Ok(Some(Emitted { scratch: before.into_scratch(), steps: vec![step, last] }))
}

/// Whether rows are strided in memory (columns are reduced).
fn across(plan: &RowPlan) -> bool {
    plan.rank == 2 && plan.row.axis == 0
}

/// The coordinate along which columns lie, and the number of rows in a wide row.
fn rows_per_wide_row(space: &Space, plan: &RowPlan, scene: &Scene) -> Option<(Coord, usize)> {
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
    Some((along, count))
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
