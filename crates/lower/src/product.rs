//! Matrix products on GPUs: a tile of the result per instance, a loop over K with masked pointer loads, the epilogue on the
//! accumulator. Operands may go through memory first, and K may be cut into parts.
mod candidates;
mod memory;
mod split;

use crate::dag::{Dag, NodeId, NodeOp, Scene, Store};
use crate::emit::Lanes;
use crate::expr::{CoordId, Expr};
use crate::placed::{self, the_anchor};
use crate::resolve::{Body, Product as Place, Resolved, Resolver};
use crate::rows::Emitted;
use crate::space::Space;
use crate::tile::{Cut, Frame, Shape, loads, open_with};
use crate::warpgroup::{self, Asked, Major, Parts};
use crate::{LowerError, Target, math, reduction};
use kiln_block::{BinaryOp as B, Builder, DotPrecision, Elem, Kernel, Value};
use kiln_graph::{DType, Type, ValueId};
use kiln_plan::{
    Family,
    exec::{Slot, Work},
};

pub use candidates::{candidates, chosen_parts};

type OperandAt<'a> = &'a dyn Fn(&mut Resolver, &[Expr]) -> Resolved;

/// A product as a batch of matrices; operands are asked at (batch…, m, k) and (batch…, k, n).
pub struct Product<'a> {
    pub v: ValueId,
    pub batch: Vec<usize>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// All of K, where `k` is that of a part and the first axis of the batch counts parts.
    pub whole: Option<usize>,
    pub a: OperandAt<'a>,
    pub b: OperandAt<'a>,
    /// (batch…, m, n) from an index of the value.
    pub place: &'a dyn Fn(&[Expr]) -> Vec<Expr>,
}

/// Tile of one instance.
#[derive(Clone, Copy, Debug)]
struct Tile {
    m: usize,
    n: usize,
    k: usize,
    warps: usize,
}

/// Tiles of rows that are walked together before the next columns, so that operands stay in the second-level cache.
const GROUP: usize = 8;

pub fn lower(of: &Body, p: &Product, target: Target) -> Result<Emitted, LowerError> {
    let mut out = Emitted::default();
    let plain = of.template.is_some_and(|t| t.family == Family::Tile);
    let copies = if plain { [None, None] } else { memory::copied(of, p, target, &mut out)? };
    let (a, b) = (memory::from(&copies[0], p.a, 0), memory::from(&copies[1], p.b, 1));
    let p = &Product { batch: p.batch.clone(), a: &a, b: &b, ..*p };
    if !plain && let Some((_, split)) = in_parts(of, p, target, out.scratch.len() as u32)? {
        return Ok(out.then(split));
    }
    let dims = [&p.batch[..], &[p.m, p.n]].concat();
    if let Some(placed) = placed::outputs(of, p.v, &dims, p.place)
        && let Some(step) = fused(of, p, &dims, &placed, target)?
    {
        out.steps.push(step);
        return Ok(out);
    }
    // The epilogue is not element by element: the product goes through memory.
    let dtype = of.graph.dtype(p.v);
    let acc = dtype.compute();
    let slot = Slot::Scratch(out.scratch.len() as u32);
    let product = Body { product: Some((p.v, Place::Node)), ..*of };
    let scene = |at: &[Expr]| {
        let mut r = product.resolver();
        let value = r.dag.add(NodeOp::Anchor { at: at.to_vec() }, dtype);
        // In the value's own order, which the epilogue reads.
        let order = own_order(of, p, at)?;
        Ok((r.dag, vec![Store { slot, dtype: acc, at: order, guards: vec![], value }]))
    };
    let step = tiled(of, p, &dims, of.name, target, &scene)?;
    let name = format!("{}_epilogue", of.name);
    let rest = Body { product: Some((p.v, Place::At(slot, acc))), name: &name, ..*of };
    out.scratch.push(Type::new(acc, [of.graph.ty(p.v).count()]));
    out.steps.push(step);
    let scratch = out.scratch.len() as u32;
    Ok(out.then(reduction::lower(&rest, target, scratch)?))
}

/// The product in parts of K that are summed apart, so that all multiprocessors have work; `None`: K stays whole.
fn in_parts(of: &Body, p: &Product, target: Target, scratch: u32) -> Result<Option<(Parts, Emitted)>, LowerError> {
    let (dtype, asked) = (of.graph.dtype(p.v), Asked::from(of.template));
    let Some(sides) = sides(of, p, target)? else { return Ok(None) };
    // What is read at quotients of K is an array in parts of some lengths alone.
    for parts in warpgroup::parts(p, dtype, sides, asked) {
        if parts.count == 1 {
            return Ok(None);
        }
        if let Ok(split) = split::lower(of, p, parts, target, scratch) {
            return Ok(Some((parts, split)));
        }
    }
    match asked.schedule.parts {
        Some(n) if n > 1 => Err(of.unsupported(warpgroup::NEEDS)),
        _ => Ok(None),
    }
}

/// Which axes of the operands are contiguous, where warpgroups take both.
fn sides(of: &Body, p: &Product, target: Target) -> Result<Option<[Major; 2]>, LowerError> {
    if !warpgroup::takes(of.graph.dtype(p.v), target) {
        return Ok(None);
    }
    let (left, right) = (memory::read(of, p, 0)?.strided(p), memory::read(of, p, 1)?.strided(p));
    Ok(left.zip(right).map(|(left, right)| [left.major, right.major]))
}

/// Row-major position in the value of an element of the product.
fn own_order(of: &Body, p: &Product, at: &[Expr]) -> Result<Expr, LowerError> {
    let shape = of.graph.shape(p.v).to_vec();
    let space = Space::new(&shape, &vec![false; shape.len()]);
    let mut position = Expr::default();
    let strides = Type::new(DType::F32, shape).strides();
    let exprs = (p.place)(&space.axes);
    for (e, d) in exprs.iter().zip(at) {
        let inverse = crate::invert::invert(e, d).ok_or_else(|| of.unsupported("a product in an unknown order"))?;
        for (id, expr) in inverse.coords {
            if let Some(axis) = space.axes.iter().position(|a| a.as_coord() == Some(id)) {
                position = position.plus(&expr.scale(strides[axis] as i64));
            }
        }
    }
    Ok(position)
}

fn fused(
    of: &Body,
    p: &Product,
    dims: &[usize],
    placed: &[placed::Placed],
    target: Target,
) -> Result<Option<Work<Kernel>>, LowerError> {
    let product = Body { product: Some((p.v, Place::Node)), ..*of };
    let scene = |at: &[Expr]| {
        let mut r = product.resolver();
        let stores = placed.iter().map(|o| o.store(&mut r, at)).collect::<Result<Vec<_>, _>>()?;
        Ok((r.dag, stores))
    };
    let space = Space::new(dims, &vec![false; dims.len()]);
    let (dag, stores) = scene(&space.axes)?;
    if the_anchor(&Scene { dag, stores }).is_none() {
        return Ok(None);
    }
    tiled(of, p, dims, of.name, target, &scene).map(Some)
}

fn tile(p: &Product, dtype: DType, wanted: Option<[usize; 2]>) -> Tile {
    let batch: usize = p.batch.iter().product();
    let tiles = |m: usize, n: usize| batch * p.m.div_ceil(m) * p.n.div_ceil(n);
    let k = match dtype.bytes() {
        8 => 16,
        4 => 32,
        _ => 64,
    };
    let fit = |n: usize, most: usize| n.next_power_of_two().clamp(16, most);
    let large = dtype.bytes() < 8 && p.m > 64 && p.n > 64 && tiles(128, 128) >= 100;
    let (m, n) = if large { (fit(p.m, 128), fit(p.n, 128)) } else { (fit(p.m, 64), fit(p.n, 64)) };
    let [m, n] = wanted.unwrap_or([m, n]);
    let warps = if m * n >= 128 * 128 {
        8
    } else if m * n >= 64 * 32 {
        4
    } else {
        1
    };
    Tile { m, n, k: k.min(p.k.next_power_of_two().max(16)), warps }
}

/// Coordinates of the program: batch…, m, n, then k as A sees it and as B does.
pub struct Coords {
    pub m: CoordId,
    pub n: CoordId,
    pub ka: CoordId,
    pub kb: CoordId,
}

type Stored = Result<(Dag, Vec<Store>), LowerError>;

fn tiled(
    of: &Body,
    p: &Product,
    dims: &[usize],
    name: &str,
    target: Target,
    scene: &dyn Fn(&[Expr]) -> Stored,
) -> Result<Work<Kernel>, LowerError> {
    let dtype = of.graph.dtype(p.v);
    let t = tile(p, dtype, of.template.and_then(|t| t.tile));
    let base = dims.len() as CoordId;
    let ids = Coords { m: base - 2, n: base - 1, ka: base, kb: base + 1 };
    let axes: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    let batch = &axes[..dims.len() - 2];
    let (em, en) = (axes[dims.len() - 2].clone(), axes[dims.len() - 1].clone());
    let (ka, kb) = (Expr::coord(ids.ka, p.k), Expr::coord(ids.kb, p.k));

    let (dag, stores) = scene(&axes)?;
    let mut r = of.resolver();
    r.product = Some((p.v, Place::Node));
    r.dag = dag;
    let a = (p.a)(&mut r, &[batch, &[em, ka]].concat())?;
    let b = (p.b)(&mut r, &[batch, &[kb, en]].concat())?;
    let scene = Scene { dag: r.dag, stores };
    let anchor = the_anchor(&scene).ok_or_else(|| of.unsupported("a product read at several elements"))?;

    let task = warpgroup::Task {
        name,
        product: p,
        scene: &scene,
        coords: &ids,
        operands: [a, b],
        anchor,
        dtype,
        asked: of.template.into(),
    };
    let wanted = of.template.map(|t| t.family);
    if wanted != Some(Family::Tile)
        && let Some(work) = warpgroup::lower(&task, target)
    {
        return Ok(work);
    }
    if wanted == Some(Family::Warpgroup) || p.whole.is_some() {
        return Err(of.unsupported(warpgroup::NEEDS));
    }
    let cut = |id: CoordId, extent: usize, block: usize, axis: usize| Cut { id, extent, block, axis };
    let mut cuts: Vec<Cut> = (p.batch.iter().enumerate()).map(|(i, &d)| Cut::uniform(i as CoordId, d)).collect();
    cuts.extend([cut(ids.m, p.m, t.m, 0), cut(ids.n, p.n, t.n, 1)]);
    let shape = Shape { cuts, rank: 2, parts: 1, warps: t.warps };
    let mut used = loads(&scene.dag, &[scene.roots(), vec![a, b]].concat(), |_| false);
    used.extend(scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
    let mut f = open_with(name, &scene, &shape, &used);
    grouped(&mut f, p, &ids, t);
    let acc = accumulate(&mut f, p, &ids, t, [a, b], dtype);
    f.em.set(anchor, acc);
    for s in &scene.stores {
        f.store(s);
    }
    Ok(f.finish())
}

/// Walks the tiles in groups of rows, where the rows are whole groups.
fn grouped(f: &mut Frame, p: &Product, ids: &Coords, t: Tile) {
    let (rows, columns) = (p.m.div_ceil(t.m), p.n.div_ceil(t.n));
    if rows % GROUP != 0 || rows == GROUP || columns < 2 || !p.batch.iter().all(|&b| b == 1) {
        return;
    }
    let b = &mut f.b;
    let pid = b.program_id(0);
    let pid = b.cast(pid, f.em.index);
    let (g, gc) = (f.em.int(b, GROUP as i64), f.em.int(b, (GROUP * columns) as i64));
    let (group, within) = (b.binary(B::Div, pid, gc), b.binary(B::Rem, pid, gc));
    let (column, row) = (b.binary(B::Div, within, g), b.binary(B::Rem, within, g));
    let first = b.binary(B::Mul, group, g);
    let row = b.binary(B::Add, first, row);
    let m = f.lanes(Cut { id: ids.m, extent: p.m, block: t.m, axis: 0 }, Some(row));
    let n = f.lanes(Cut { id: ids.n, extent: p.n, block: t.n, axis: 1 }, Some(column));
    f.em.coords.insert(ids.m, m);
    f.em.coords.insert(ids.n, n);
}

fn accumulate(f: &mut Frame, p: &Product, ids: &Coords, t: Tile, [a, b]: [NodeId; 2], dtype: DType) -> Value {
    let held = math::held(dtype);
    let zero = math::float(&mut f.b, held, 0.0);
    let start = f.b.splat(zero, &[t.m, t.n]);
    let ka = Cut { id: ids.ka, extent: p.k, block: t.k, axis: 1 };
    let kb = Cut { id: ids.kb, extent: p.k, block: t.k, axis: 0 };
    let lanes = [f.iota(ka), f.iota(kb)];
    let (lo, hi, step) = (f.b.i32(0), f.b.i32(p.k as i64), f.b.i32(t.k as i64));
    let ragged = !p.k.is_multiple_of(t.k);
    let out = looped(f, [lo, hi, step], &[start], |f, index, now| {
        let base = f.b.cast(index, f.em.index);
        let mut masks = vec![];
        for (cut, lane) in [ka, kb].iter().zip(lanes) {
            let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, p.k));
            f.em.coords.insert(cut.id, Lanes { base: Some(base), lane, mask });
            masks.push(mask);
        }
        let a = f.em.operand_tile(&mut f.b, a, dtype, &[t.m, t.k]);
        let b = f.em.operand_tile(&mut f.b, b, dtype, &[t.k, t.n]);
        // A mask on one side is enough against products of garbage, but 0 · NaN is NaN: both sides are zero there.
        let (a, b) = (zero_outside(f, a, masks[0]), zero_outside(f, b, masks[1]));
        if dtype != DType::F32 {
            return vec![f.b.dot(a, b, now[0], DotPrecision::Exact)];
        }
        // Sums of tiles, then the sum of those: the rounding error of a long f32 sum grows with the number of terms.
        let part = f.b.dot(a, b, start, DotPrecision::Exact);
        vec![f.b.binary(B::Add, now[0], part)]
    });
    out[0]
}

fn zero_outside(f: &mut Frame, v: Value, mask: Option<Value>) -> Value {
    let Some(mask) = mask else { return v };
    let elem = f.b.elem(v).unwrap_or(Elem::F32);
    let zero = math::float(&mut f.b, elem, 0.0);
    f.b.select(mask, v, zero)
}

/// A loop whose body uses the frame; what it emits is forgotten after.
pub fn looped(
    f: &mut Frame,
    bounds: [Value; 3],
    carried: &[Value],
    body: impl FnOnce(&mut Frame, Value, &[Value]) -> Vec<Value>,
) -> Vec<Value> {
    let mut b = std::mem::replace(&mut f.b, Builder::new("", [0; 3], 1));
    let out = b.for_loop(bounds, carried, |inner, index, now| {
        std::mem::swap(inner, &mut f.b);
        f.em.enter();
        let next = body(f, index, now);
        f.em.leave();
        std::mem::swap(inner, &mut f.b);
        next
    });
    f.b = b;
    out
}
