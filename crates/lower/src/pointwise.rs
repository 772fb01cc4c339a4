//! Pointwise programs: one value per point of a space, no point needing another.
//!
//! Takes: a body without reductions, or a scalar program of a point's coordinates. Gives: one step per output size.
//! On a GPU, where no tile fits the innermost axis (images of 7x7, 14x14, 28x28) and everything that changes along it
//! is contiguous over outer axes too, these axes are processed as one; what belongs to a channel is indexed by a
//! quotient.
use crate::LowerError;
use crate::dag::{NodeOp, Scene, Store};
use crate::expr::{Atom, CoordId, Expr, delinear, linear};
use crate::nest::{Nest, Visit};
use crate::resolve::Body;
use crate::rows::bind;
use crate::schedule;
use crate::space::{Coord, Space, runs_on};
use crate::tile::{pointwise_block, warps_for};
use crate::unaligned::starts_between;
use kiln_block::Kernel;
use kiln_plan::exec::{Slot, Work};
use kiln_plan::{Axis, Hardware, Schedule, Step};
use std::ops::Range;

/// Side of the square tiles of transposing programs: 128 bytes of a row.
fn side_of(bytes: usize) -> usize {
    (128 / bytes.max(1)).clamp(16, 64)
}

/// Calls `f` with a nest for each number of elements that outputs of a body have.
pub fn each(of: &Body, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let (name, body) = (of.name, of.graph);
    let mut left: Vec<usize> = (0..body.outputs.len()).collect();
    let mut nests = 0;
    while let Some(&first) = left.first() {
        let count = body.ty(body.outputs[first]).count();
        let (group, rest): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|&i| body.ty(body.outputs[i]).count() == count);
        left = rest;
        if count == 0 {
            continue;
        }
        let name = if nests == 0 { name.to_string() } else { format!("{name}_{nests}") };
        nests += 1;
        let shape = body.shape(body.outputs[first]).to_vec();
        let at = |s: &Space| outputs(of, &group, &s.axes, &shape);
        let nest = Nest::new(&name, Space::new(&shape, &vec![false; shape.len()]), &at, machine)?;
        f(&nest.of_bytes(of.bytes))?;
    }
    Ok(())
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
        stores.push(Store::new(Slot::Output(i as u32), body.dtype(v), at, value));
    }
    Ok(Scene { dag: r.dag, stores })
}

/// One step over the points of `shape`. `scene` gives the program at a point's coordinates.
pub fn points<F>(name: &str, shape: &[usize], scene: &F, machine: &Hardware) -> Result<Work<Kernel>, LowerError>
where
    F: Fn(&[Expr]) -> Result<Scene, LowerError>,
{
    let at = |s: &Space| scene(&s.axes);
    let nest = Nest::new(name, Space::new(shape, &vec![false; shape.len()]), &at, machine)?;
    let mut steps = schedule::lowered(&nest, None, 0)?.steps;
    steps.pop().ok_or_else(|| LowerError::Invariant { kernel: name.to_string(), what: "points without a step".into() })
}

/// The schedule of a nest without a row.
pub fn default(nest: &Nest) -> Schedule {
    let total = nest.space.count();
    let (block, warps) = pointwise_block(nest.machine, per_thread(&nest.scene, nest.space.coords.last()), total);
    tiling(&nest.space, &nest.scene, (block, warps), nest.machine)
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

fn tiling(space: &Space, scene: &Scene, (block, warps): (usize, usize), machine: &Hardware) -> Schedule {
    let coords = &space.coords;
    let axis = |n: usize| Axis::Kept(n as u8);
    let split = |tile: &[(usize, usize)], warps: usize| -> Schedule {
        tile.iter().map(|(n, block)| Step::Split(axis(*n), *block)).chain(bind(warps, machine)).collect()
    };
    let Some((last, outer)) = coords.split_last() else { return split(&[], 1) };
    let at = outer.len();
    if outer.is_empty() {
        return flat(0..1, last.extent, (block, warps), machine);
    }
    let merged = || flat(0..coords.len(), space.count(), (block, warps), machine);
    if let Some(across) = transposed(scene, outer, last.id)
        && let Some(n) = coords.iter().position(|c| c.id == across)
        && coords[n].extent >= 8
        && last.extent >= 8
    {
        let square = side_of(widest(scene));
        let side = |n: usize| n.next_power_of_two().min(square);
        let warps = warps_for(square * square, if square > 32 { 16 } else { 8 });
        return split(&[(n, side(coords[n].extent)), (at, side(last.extent))], warps);
    }
    let Some(inner) = inner_block(last.extent, block) else { return merged() };
    let uneven = !last.extent.is_multiple_of(inner) || inner * widest(scene) < LINE;
    if machine.arch.is_gpu()
        && uneven
        && let Some((first, extent)) = in_one_run(space, scene, block)
    {
        return flat(first..coords.len(), extent, (block, warps), machine);
    }
    // Pieces of rows shorter than a cache line, or unaligned rows: the results are one contiguous run, and what is read
    // is indexed by quotients of the position.
    let short = inner < last.extent && inner * widest(scene) < LINE;
    let unaligned = space.count() <= 1 << 30 && stores_unaligned(scene, last.id) && !windows(scene);
    if machine.arch.is_gpu() && (short || unaligned) {
        return merged();
    }
    let rows: usize = outer.iter().map(|c| c.extent).product();
    let high = (block / inner).min(rows.next_power_of_two());
    if high <= 1 {
        return split(&[(at, inner)], warps.min(warps_for(inner, 4)));
    }
    // Only the outer coordinates that fill a tile's height are computed per row, by division; the others are scalars.
    let mut taken = 0;
    let mut extent = 1;
    while extent < high && taken < outer.len() {
        taken += 1;
        extent *= outer[outer.len() - taken].extent;
    }
    let first = outer.len() - taken;
    let tile = split(&[(first, high.min(extent.next_power_of_two())), (at, inner)], warps);
    fuse(first..at).into_iter().chain(tile.steps).collect()
}

/// The step that fuses these axes, if there are several.
fn fuse(axes: Range<usize>) -> Option<Step> {
    (axes.len() > 1).then(|| Step::Fuse(axes.map(|n| Axis::Kept(n as u8)).collect()))
}

/// Bytes of a cache line, which rows of a tile should fill.
const LINE: usize = 128;

/// Bytes of the vector stores that rows should allow.
const WRITTEN: usize = 8;

/// Whether rows of a result are not aligned to such stores.
fn stores_unaligned(scene: &Scene, last: CoordId) -> bool {
    scene.stores.iter().any(|s| starts_between(&s.at, last, (WRITTEN / s.dtype.bytes().max(1)).max(1)))
}

/// The first of the innermost axes to fuse and the extent of all of them, if everything that changes with the last of them is contiguous over all: rows of
/// any length are then loaded and stored as one run, and what belongs to a row (a bias of its channel) is indexed by a
/// quotient of the position.
fn in_one_run(space: &Space, scene: &Scene, block: usize) -> Option<(usize, usize)> {
    let coords = &space.coords;
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
    (first + 1 < coords.len()).then_some((first, extent))
}

/// These axes as one, in blocks of its positions.
fn flat(axes: Range<usize>, extent: usize, (block, warps): (usize, usize), machine: &Hardware) -> Schedule {
    let first = Axis::Kept(axes.start as u8);
    let block = Step::Split(first, block.min(extent.next_power_of_two()));
    fuse(axes).into_iter().chain([block]).chain(bind(warps, machine)).collect()
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
