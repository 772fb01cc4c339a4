//! Pointwise programs: one value per point of a space, no point needing another.
//!
//! Takes: a body without reductions, or a scalar program of a point's coordinates. Gives: one step per output size.
//! On a GPU, where no tile fits the innermost axis (images of 7x7, 14x14, 28x28) and everything that changes along it
//! is contiguous over outer axes too, these axes are processed as one; what belongs to a channel is indexed by a
//! quotient.
use crate::LowerError;
use crate::dag::{NodeOp, Scene, Store};
use crate::expr::{Atom, CoordId, Expr, delinear, linear};
use crate::resolve::Body;
use crate::space::{Coord, Space, runs_on};
use crate::tile::{Cut, Shape, open, pointwise_block, warps_for};
use crate::unaligned::starts_between;
use kiln_block::Kernel;
use kiln_plan::Hardware;
use kiln_plan::exec::{Slot, Work};

/// Side of the square tiles of transposing programs: 128 bytes of a row.
fn side_of(bytes: usize) -> usize {
    (128 / bytes.max(1)).clamp(16, 64)
}

/// All outputs of a body, in one step if they have the same number of elements.
pub fn lower(of: &Body, machine: &Hardware) -> Result<Vec<Work<Kernel>>, LowerError> {
    let (name, body) = (of.name, of.graph);
    let mut steps = vec![];
    // Outputs of other sizes are steps of their own.
    let mut left: Vec<usize> = (0..body.outputs.len()).collect();
    while let Some(&first) = left.first() {
        let count = body.ty(body.outputs[first]).count();
        let (group, rest): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|&i| body.ty(body.outputs[i]).count() == count);
        left = rest;
        if count == 0 {
            continue;
        }
        let name = if steps.is_empty() { name.to_string() } else { format!("{name}_{}", steps.len()) };
        let shape = body.shape(body.outputs[first]).to_vec();
        let scene = |axes: &[Expr]| outputs(of, &group, axes, &shape);
        steps.push(points(&name, &shape, &scene, machine)?);
    }
    Ok(steps)
}

/// The outputs `group` of a body at a point of `shape`, stored there.
fn outputs(of: &Body, group: &[usize], axes: &[Expr], shape: &[usize]) -> Result<Scene, LowerError> {
    let (mut r, body) = (of.resolver(), of.graph);
    let mut stores = vec![];
    let position = linear(axes, shape);
    for &i in group {
        let v = body.outputs[i];
        let ix = delinear(&position, body.shape(v));
        let value = r.at(v, &ix, &[])?;
        let at = linear(&ix, body.shape(v));
        stores.push(Store { slot: Slot::Output(i as u32), dtype: body.dtype(v), at, guards: vec![], value });
    }
    Ok(Scene { dag: r.dag, stores })
}

/// One step over the points of `shape`. `scene` gives the program at a point's coordinates.
pub fn points<F>(name: &str, shape: &[usize], scene: &F, machine: &Hardware) -> Result<Work<Kernel>, LowerError>
where
    F: Fn(&[Expr]) -> Result<Scene, LowerError>,
{
    let mut space = Space::new(shape, &vec![false; shape.len()]);
    let at = |s: &Space| scene(&s.axes);
    let settled = space.settle(at)?;
    let total = space.count();
    let (block, warps) = pointwise_block(machine, per_thread(&settled, space.coords.last()), total);
    let before = space.axes.clone();
    let plan = tiling(&mut space, &settled, (block, warps), machine);
    let scene = if space.axes == before { settled } else { scene(&space.axes)? };
    let mut frame = open(name, &scene, &plan);
    for s in &scene.stores {
        frame.store(s);
    }
    frame.finish()
}

/// Bytes of the widest element read or written.
pub fn widest(scene: &Scene) -> usize {
    let loads = scene.live().into_iter().filter_map(|n| {
        let node = scene.dag.node(n);
        matches!(node.op, NodeOp::Load { .. }).then(|| node.dtype.bytes())
    });
    loads.chain(scene.stores.iter().map(|s| s.dtype.bytes())).max().unwrap_or(4)
}

/// Elements of a thread on a GPU: 32 bytes of the widest type, unless loads are mostly masked or shared.
fn per_thread(scene: &Scene, last: Option<&Coord>) -> usize {
    if widest(scene) >= 4 {
        return 8;
    }
    let mut loads: Vec<(Slot, &Expr, bool)> = vec![];
    for n in scene.live() {
        if let NodeOp::Load { slot, at, guards } = &scene.dag.node(n).op {
            let load = (*slot, at, guards.iter().all(|g| within_vector(&g.expr, last)));
            if !loads.contains(&load) {
                loads.push(load);
            }
        }
    }
    // Each element comes from one of several buffers, so most loads of a thread are masked off.
    if loads.len() > 3 && loads.iter().all(|l| !l.2) {
        return 32;
    }
    // Windows load each element several times.
    if windows(scene) { 8 } else { 16 }
}

/// Whether more than two elements of one buffer make an element of a result, as in a window.
fn windows(scene: &Scene) -> bool {
    let mut loads: Vec<(Slot, &Expr)> = vec![];
    for n in scene.live() {
        if let NodeOp::Load { slot, at, .. } = &scene.dag.node(n).op
            && !loads.contains(&(*slot, at))
        {
            loads.push((*slot, at));
        }
    }
    loads.iter().any(|l| loads.iter().filter(|m| m.0 == l.0).count() > 2)
}

/// Whether a guard alternates within a vector, as for interleaved pairs.
fn within_vector(e: &Expr, last: Option<&Coord>) -> bool {
    match &e.terms[..] {
        [(Atom::Mod(_, k), 1)] => *k <= 16,
        [(Atom::Coord { id, extent }, 1)] => *extent <= 16 && last.is_some_and(|l| l.id == *id),
        _ => false,
    }
}

fn tiling(space: &mut Space, scene: &Scene, (block, warps): (usize, usize), machine: &Hardware) -> Shape {
    let coords = space.coords.clone();
    let Some((last, outer)) = coords.split_last() else {
        return Shape { cuts: vec![], rank: 0, parts: 1, warps: 1 };
    };
    if outer.is_empty() {
        return flat(*last, block, warps);
    }
    if let Some(across) = transposed(scene, outer, last.id)
        && let Some(&other) = space.find(across)
        && other.extent >= 8
        && last.extent >= 8
    {
        let square = side_of(widest(scene));
        let side = |n: usize| n.next_power_of_two().min(square);
        let mut cuts: Vec<Cut> =
            outer.iter().filter(|c| c.id != across).map(|c| Cut::uniform(c.id, c.extent)).collect();
        cuts.push(Cut { id: across, extent: other.extent, block: side(other.extent), axis: 0 });
        cuts.push(Cut { id: last.id, extent: last.extent, block: side(last.extent), axis: 1 });
        return Shape { cuts, rank: 2, parts: 1, warps: warps_for(square * square, if square > 32 { 16 } else { 8 }) };
    }
    let Some(inner) = inner_block(last.extent, block) else { return merged(space, block, warps) };
    let uneven = !last.extent.is_multiple_of(inner) || inner * widest(scene) < LINE;
    if machine.arch.is_gpu()
        && uneven
        && let Some(run) = in_one_run(space, scene, block)
    {
        let cuts = outer.iter().filter(|c| space.find(c.id).is_some()).map(|c| Cut::uniform(c.id, c.extent));
        let run = flat(run, block, warps);
        return Shape { cuts: cuts.chain(run.cuts).collect(), ..run };
    }
    // Pieces of rows shorter than a cache line, or unaligned rows: the results are one contiguous run, and what is read
    // is indexed by quotients of the position.
    let short = inner < last.extent && inner * widest(scene) < LINE;
    let unaligned = space.count() <= 1 << 30 && stores_unaligned(scene, last.id) && !windows(scene);
    if machine.arch.is_gpu() && (short || unaligned) {
        return merged(space, block, warps);
    }
    let inner_cut = |rank: usize| Cut { id: last.id, extent: last.extent, block: inner, axis: rank - 1 };
    let rows: usize = outer.iter().map(|c| c.extent).product();
    let high = (block / inner).min(rows.next_power_of_two());
    if high <= 1 {
        let mut cuts: Vec<Cut> = outer.iter().map(|c| Cut::uniform(c.id, c.extent)).collect();
        cuts.push(inner_cut(1));
        return Shape { cuts, rank: 1, parts: 1, warps: warps.min(warps_for(inner, 4)) };
    }
    // Only the outer coordinates that fill a tile's height are computed per row, by division; the others are scalars.
    let mut taken = 0;
    let mut extent = 1;
    while extent < high && taken < outer.len() {
        taken += 1;
        extent *= outer[outer.len() - taken].extent;
    }
    let (grid, tall) = outer.split_at(outer.len() - taken);
    let ids: Vec<CoordId> = tall.iter().map(|c| c.id).collect();
    let mut cuts: Vec<Cut> = grid.iter().map(|c| Cut::uniform(c.id, c.extent)).collect();
    if let Some(id) = space.merge(&ids) {
        cuts.push(Cut { id, extent, block: high.min(extent.next_power_of_two()), axis: 0 });
    }
    cuts.push(inner_cut(2));
    Shape { cuts, rank: 2, parts: 1, warps }
}

/// Bytes of a cache line, which rows of a tile should fill.
const LINE: usize = 128;

/// Bytes of the vector stores that rows should allow.
const WRITTEN: usize = 8;

/// Whether rows of a result are not aligned to such stores.
fn stores_unaligned(scene: &Scene, last: CoordId) -> bool {
    scene.stores.iter().any(|s| starts_between(&s.at, last, (WRITTEN / s.dtype.bytes().max(1)).max(1)))
}

/// Merges the innermost coordinates, if everything that changes with the last of them is contiguous over all: rows of
/// any length are then loaded and stored as one run, and what belongs to a row (a bias of its channel) is indexed by a
/// quotient of the position.
fn in_one_run(space: &mut Space, scene: &Scene, block: usize) -> Option<Coord> {
    let coords = space.coords.clone();
    let last = coords.last()?;
    let mut along = vec![];
    scene.exprs(&mut |e| {
        if e.uses(last.id) {
            along.push(e);
        }
    });
    let (mut first, mut extent) = (coords.len() - 1, last.extent);
    // As many as leave few lanes idle at the end.
    while first > 0 && extent < 32 * block && !extent.is_multiple_of(block) {
        let outer = coords[first - 1];
        extent *= outer.extent;
        if extent > 1 << 30 || !along.iter().all(|e| runs_on(e, outer.id, coords[first])) {
            return None;
        }
        first -= 1;
    }
    let ids: Vec<CoordId> = coords[first..].iter().map(|c| c.id).collect();
    let id = space.merge(&ids).filter(|_| ids.len() > 1)?;
    space.find(id).copied()
}

/// All coordinates as one.
fn merged(space: &mut Space, block: usize, warps: usize) -> Shape {
    let ids: Vec<CoordId> = space.coords.iter().map(|c| c.id).collect();
    match space.merge(&ids).and_then(|id| space.find(id).copied()) {
        Some(c) => flat(c, block, warps),
        None => Shape { cuts: vec![], rank: 0, parts: 1, warps: 1 },
    }
}

fn flat(c: Coord, block: usize, warps: usize) -> Shape {
    let block = block.min(c.extent.next_power_of_two());
    Shape { cuts: vec![Cut { id: c.id, extent: c.extent, block, axis: 0 }], rank: 1, parts: 1, warps }
}

/// Block along the innermost axis that wastes few lanes; `None` if the axis is too short for one.
fn inner_block(extent: usize, block: usize) -> Option<usize> {
    let waste = |c: usize| (extent.div_ceil(c) * c) as f64 / extent as f64;
    let mut best = extent.next_power_of_two().min(block);
    let mut c = best;
    while c >= 16 {
        if waste(c) < waste(best) - 0.1 {
            best = c;
        }
        c /= 2;
    }
    (best >= 8 && waste(best) <= 1.4).then_some(best)
}

/// An outer coordinate along which some access is contiguous that is strided along the innermost.
fn transposed(scene: &Scene, outer: &[Coord], last: CoordId) -> Option<CoordId> {
    let mut votes: Vec<(usize, CoordId)> = outer.iter().map(|c| (0, c.id)).collect();
    let mut look = |at: &Expr| {
        if at.stride(last).is_some_and(|s| s.abs() > 1) {
            votes.iter_mut().filter(|v| at.stride(v.1) == Some(1)).for_each(|v| v.0 += 1);
        }
    };
    for n in scene.live() {
        if let NodeOp::Load { at, .. } = &scene.dag.node(n).op {
            look(at);
        }
    }
    scene.stores.iter().for_each(|s| look(&s.at));
    votes.into_iter().filter(|v| v.0 > 0).max().map(|v| v.1)
}
