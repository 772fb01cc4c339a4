//! `persist N`: so many clusters loop over the rows, and copy the next iteration's rows to shared memory while they
//! compute ([`kiln_block::passes::persistent_rows`]).
//!
//! Takes: a plan, the program of its nest, and a number of clusters. Gives: whether the pass makes a persistent program
//! of the plan's, or why not. Never: emits that program; a test holds this against the pass.
use crate::scalar::dag::{Guard, NodeId, NodeOp, Scene, Write};
use crate::scalar::expr::{Atom, CoordId, Expr};
use crate::schedule::row_plan::RowPlan;
use crate::schedule::stage_operands::{follows, place_in_copy};
use crate::schedule::stage_rows::{behind, packable};
use crate::schedule::tile::Cut;
use kiln_graph::DType;
use kiln_machine::isa::VECTOR;

/// Most instances of the program and clusters together: positions in the grid are 32-bit integers.
const MAX_INSTANCES: usize = 1 << 30;

/// Whether so many persistent clusters fit a plan, or why not.
pub fn fits(plan: &RowPlan, scene: &Scene, clusters: usize) -> Result<(), String> {
    if plan.blocks == 1 {
        return Err("only clusters stay resident; `bind cluster` before it".into());
    }
    if plan.tail.is_some() {
        return Err("a row with a tail is in two tiles; leave out `tail`".into());
    }
    let instances = plan.shape(1).instances();
    if clusters == 0 || instances < clusters || instances + clusters >= MAX_INSTANCES {
        return Err(format!("{clusters} persistent clusters do not fit {instances} tiles"));
    }
    let live = scene.live();
    let scans = live.iter().any(|n| matches!(scene.dag.node(*n).op, NodeOp::Scan { .. }));
    let atomic = scene.stores.iter().any(|s| matches!(s.how, Write::Atomic(_)));
    if !plan.whole() || scans || atomic {
        return Err("a persistent cluster has tiles of whole rows, without scans and atomics".into());
    }
    let steps = steps(plan, clusters);
    if !live.into_iter().any(|n| is_prefetched(plan, scene, n, &steps)) {
        return Err("no load that changes per iteration reads whole aligned vectors".into());
    }
    Ok(())
}

/// By how much a kept coordinate grows per iteration; `None` where that differs between iterations.
struct CoordStep {
    id: CoordId,
    by: Option<i64>,
}

/// The steps of all kept coordinates, where an iteration is `clusters` instances after the one before.
fn steps(plan: &RowPlan, clusters: usize) -> Vec<CoordStep> {
    let mut number = Some(clusters);
    let mut outer = plan.shape(1).instances();
    let mut steps = vec![];
    for cut in plan.kept.iter().rev().filter(|c| c.count() > 1) {
        outer /= cut.count();
        let carried = number.filter(|n| n.is_multiple_of(cut.count()));
        let position = if outer == 1 { number } else { carried.map(|_| 0) };
        steps.push(CoordStep { id: cut.id, by: position.map(|p| (p * cut.block) as i64) });
        number = carried.map(|n| n / cut.count());
    }
    steps
}

/// By how much an index grows per iteration; `None` where that is not known. Coordinates without a step stay.
fn growth(e: &Expr, steps: &[CoordStep]) -> Option<i64> {
    let mut sum = 0;
    for (atom, factor) in &e.terms {
        let by = match atom {
            Atom::Coord { id, .. } => steps.iter().find(|s| s.id == *id).map_or(Some(0), |s| s.by)?,
            Atom::Div(x, k) => Some(growth(x, steps)?).filter(|g| g % k == 0).map(|g| g / k)?,
            Atom::Mod(x, k) => Some(growth(x, steps)?).filter(|g| g % k == 0).map(|_| 0)?,
            Atom::Value { .. } => return None,
        };
        sum += by * factor;
    }
    Some(sum)
}

/// Whether a load is prefetched: it takes whole aligned vectors for every thread, at a place that changes per iteration
/// and that indices alone determine.
fn is_prefetched(plan: &RowPlan, scene: &Scene, load: NodeId, steps: &[CoordStep]) -> bool {
    let node = scene.dag.node(load);
    let NodeOp::Load { slot, at, guards } = &node.op else { return false };
    let mut gathered = false;
    at.nodes(&mut |_| gathered = true);
    guards.iter().for_each(|g| g.expr.nodes(&mut |_| gathered = true));
    if gathered || scene.stores.iter().any(|s| s.slot == *slot) {
        return false;
    }
    let bytes = node.dtype.bytes().max(1);
    let fills_threads = |elements: usize| elements * bytes >= 32 * plan.warps * VECTOR;
    if let Some(kept) = run_of_rows(plan, at, node.dtype).filter(|_| guards.is_empty()) {
        let moves = growth(&Expr::coord(kept.id, kept.extent), steps) != Some(0);
        return moves && fills_threads((plan.row.extent * kept.block).next_power_of_two());
    }
    let access = TiledLoad::new(plan, at, guards);
    access.moves(steps) && access.reads_vectors(plan, bytes) && fills_threads(access.elements())
}

/// The cut whose rows are loaded as one run, where the tile's rows are and the access is to them.
fn run_of_rows(plan: &RowPlan, at: &Expr, dtype: DType) -> Option<Cut> {
    let [kept] = plan.kept[..] else { return None };
    let vector = VECTOR / dtype.bytes().max(1);
    let odd = !plan.row.extent.is_multiple_of(vector) && kept.block.is_multiple_of(vector);
    let is_run = plan.multi_row && odd && packable(dtype, plan.row.extent);
    behind(at, kept.id, plan.row.id, plan.row.extent, vector).filter(|_| is_run).map(|_| kept)
}

/// A load of a tile's elements, by the coordinates that the program has.
struct TiledLoad {
    at: Expr,
    /// What its mask compares.
    bounds: Vec<Expr>,
    /// Cuts with lanes.
    lanes: Vec<Cut>,
}

impl TiledLoad {
    /// Lanes of a peeled row are those of another coordinate, and shared operands of such rows may be copied.
    fn new(plan: &RowPlan, at: &Expr, guards: &[Guard]) -> TiledLoad {
        let by_lane = |e: &Expr| match &plan.unaligned {
            Some(u) => e.substitute(&|c| (c == plan.row.id).then(|| u.position.clone())),
            None => e.clone(),
        };
        let row = plan.unaligned.as_ref().map_or(plan.row, |u| Cut { id: u.lane, ..plan.row });
        let lanes: Vec<Cut> = plan.kept.iter().copied().chain([row]).filter(|c| c.block > 1).collect();
        let copied = plan.copies && guards.is_empty() && follows(at, plan.row.id);
        let at = match plan.unaligned.as_ref().filter(|_| copied) {
            Some(u) => place_in_copy(u, plan.row),
            None => at.clone(),
        };
        let ragged = lanes.iter().filter(|c| at.uses(c.id) && !c.extent.is_multiple_of(c.block));
        let mut bounds: Vec<Expr> = ragged.map(|c| Expr::coord(c.id, c.extent)).collect();
        bounds.extend(guards.iter().map(|g| by_lane(&g.expr)));
        bounds.extend(plan.unaligned.iter().filter(|_| at.uses(plan.row.id)).map(|u| u.start.clone()));
        TiledLoad { at: by_lane(&at), bounds, lanes }
    }
    /// Whether address or mask change per iteration.
    fn moves(&self, steps: &[CoordStep]) -> bool {
        [&self.at].into_iter().chain(&self.bounds).any(|e| growth(e, steps) != Some(0))
    }
    fn elements(&self) -> usize {
        let has_lanes = |c: &&Cut| [&self.at].into_iter().chain(&self.bounds).any(|e| varies(e, c));
        self.lanes.iter().filter(has_lanes).map(|c| c.block).product()
    }
    /// Whether its elements of so many bytes are runs of whole aligned vectors.
    fn reads_vectors(&self, plan: &RowPlan, bytes: usize) -> bool {
        let last = |c: &&Cut| c.axis + 1 == plan.rank && varies(&self.at, c);
        let Some(inner) = self.lanes.iter().find(last) else { return false };
        let vector = (VECTOR / bytes).max(1) as i64;
        let is_run = self.stride(inner) == 1 && inner.block * bytes >= VECTOR;
        let rows_aligned = self.lanes.iter().all(|c| c.id == inner.id || self.stride(c) % vector == 0);
        // Where a cut's lanes start is a multiple of its block.
        let block = |atom: &Atom| self.lanes.iter().find(|c| atom_varies(atom, c)).map_or(1, |c| c.block as i64);
        let starts_aligned = self.at.terms.iter().all(|(atom, factor)| factor * block(atom) % vector == 0);
        is_run && self.is_affine() && rows_aligned && starts_aligned && self.at.constant % vector == 0
    }
    /// Elements from a lane of a cut to the next, where the index is affine.
    fn stride(&self, cut: &Cut) -> i64 {
        self.at.terms.iter().filter(|(atom, _)| atom_varies(atom, cut)).map(|(_, factor)| factor).sum()
    }
    /// Whether the index is affine in lanes: dividends are the same for all of them, or cut along the divisor.
    fn is_affine(&self) -> bool {
        self.at.terms.iter().all(|(atom, _)| match atom {
            Atom::Coord { .. } => true,
            Atom::Value { .. } => false,
            Atom::Div(x, k) | Atom::Mod(x, k) => self.lanes.iter().all(|c| !varies(x, c) || is_cut_along(x, *k, c)),
        })
    }
}

/// Whether an index is the coordinate of a cut whose blocks lie within multiples of `k`.
fn is_cut_along(x: &Expr, k: i64, cut: &Cut) -> bool {
    x.as_coord() == Some(cut.id) && k % cut.block as i64 == 0
}

/// Whether an index differs between the lanes of a cut.
fn varies(e: &Expr, cut: &Cut) -> bool {
    e.terms.iter().any(|(atom, _)| atom_varies(atom, cut))
}

fn atom_varies(atom: &Atom, cut: &Cut) -> bool {
    match atom {
        Atom::Coord { id, .. } => *id == cut.id,
        Atom::Div(x, k) => varies(x, cut) && !is_cut_along(x, *k, cut),
        Atom::Mod(x, _) => varies(x, cut),
        Atom::Value { .. } => false,
    }
}
