//! Flash attention on GPUs: a block of queries per instance, a loop over blocks of keys and values, and an online
//! softmax. With few queries, instances take slices of the keys (split-KV), which a second step combines.
//!
//! Takes: an attention with whatever follows it, and the tiles of its schedule. Gives: one program, or two steps.
//!
//! The few queries of a group of heads that share their keys are the rows of one tile, so that keys and values are loaded once for all.
//!
//! A single f32 query takes sums of products along rows of keys, as they lie in memory, instead of matmuls of a tile
//! that is mostly empty.
//!
//! Tiles are powers of two. Heads of other widths are cut into parts of such sizes ([`attention::parts`]): scores are sums over the parts of
//! queries and keys, and each part of the values' columns has sums of its own.
//!
//! Blocks of keys that no query of the block attends to are neither loaded nor computed: those after the queries under a
//! causal mask, and those before the first and beyond the end that a mask states ([`key_range`]), which the program computes
//! from what it reads, as the position in a cache. The loop then ends at a number read from memory. Where PyTorch multiplies an
//! infinite or NaN value there by zero, which gives NaN, the result here may be finite.
mod schedule;
mod warpgroup;

use crate::LowerError;
use crate::dag::{Dag, NodeId, NodeOp, Scene, Store};
use crate::emit::Lanes;
use crate::expr::{CoordId, Expr, linear};
use crate::frame::{Frame, loads, looped, open_with};
use crate::key_end::key_range;
use crate::launch;
use crate::lowering::Lowering;
use crate::math;
use crate::matmul::{self, precision, zero_outside};
use crate::multiply::{Attention, Multiply};
use crate::placed::{self, Positions, the_sums};
use crate::resolve::{Body, LOG_SUM_EXP, Matmul as Place, Resolver};
use crate::scores::{self, Causal, Sizes, masked_score};
use crate::steps::Emitted;
use crate::tiled::{Cut, Shape};
use crate::types;
use kiln_block::{BinaryOp as B, Builder, CmpOp, DotPrecision, Elem, Kernel, ReduceOp as R, UnaryOp as U, Value};
use kiln_graph::{BinaryOp, DType, FullyMasked, Graph, Op, Type, ValueId};
use kiln_plan::attention::{self, Tiles};
use kiln_plan::exec::{Slot, Work};
use kiln_plan::{Hardware, Precision};
use std::f64::consts::LOG2_E;

const NOT_PLACED: &str = "attention whose result is not stored element by element";

/// Coordinates of the program: batch…, key head, query of its group, query, column of the values; key as scores have it and as
/// values do; column of queries and keys likewise.
struct Coords {
    head: CoordId,
    group: CoordId,
    s: CoordId,
    e: CoordId,
    t: [CoordId; 2],
    d: [CoordId; 2],
}

impl Coords {
    fn of(z: &Sizes) -> Coords {
        let id = |i: usize| (z.batch.len() + i) as CoordId;
        Coords { head: id(0), group: id(1), s: id(2), e: id(3), t: [id(4), id(5)], d: [id(6), id(7)] }
    }
}

/// `of.dual`: the log-sum-exp of attention `v`, if the kernel stores it beside the result.
pub fn lower(of: &Lowering, v: ValueId, z: &Sizes, machine: &Hardware) -> Result<Emitted, LowerError> {
    let dtype = matmul::operands(of, v);
    let sizes = sizes_of(of, v)?;
    if !sizes.has_program() {
        return Err(of.unsupported(format!("attention with heads of {} and {} {dtype}", z.d, z.e)));
    }
    let Some(Multiply::Attention(asked)) = of.multiply else {
        return Err(of.unsupported("no tiles fit the attention"));
    };
    match schedule::way(&sizes, &asked, machine).map_err(|why| of.unsupported(why))? {
        attention::Way::Warps(tiles) => {
            let made = Multiply::Attention(schedule::of_tiles(&sizes, &tiles));
            let step = Emitted { made: Some(made), ..Emitted::step(program(of, v, z, tiles, sizes.packed > 1)?) };
            joined(of, v, z, step, tiles.parts, machine)
        }
        attention::Way::Warpgroups(shape) => {
            let steps = warpgroup::lower(of, v, z, (&sizes, shape), &asked, machine)?;
            let steps = steps.ok_or_else(|| of.unsupported(warpgroup::NEEDS))?;
            joined(of, v, z, steps, shape.parts, machine)
        }
    }
}

/// Schedules of an attention on a GPU, with the microseconds they are predicted to take. Not all of them fit.
pub fn candidates(of: &Lowering, machine: &Hardware) -> Result<Vec<(Multiply, f64)>, LowerError> {
    let (v, sums) = crate::attention::find(of)?;
    let of = &of.with_body(Body { dual: sums.map(|x| (x, Place::Node)), ..of.body });
    let sizes = sizes_of(of, v)?;
    let us = |way: &attention::Way| (machine.rates.launch + sizes.seconds_by(way, machine)) * 1e6;
    let skips =
        sizes.warpgroups(machine).is_some() && warpgroup::finds_keys(of, v, &scores::sizes(of, v), &sizes, machine)?;
    let mut all = vec![];
    for way in sizes.ways(machine) {
        let (plain, us) = (schedule::of_way(&sizes, &way, machine), us(&way));
        if skips && plain.stages.is_some() {
            all.push((Multiply::Attention(Attention { block_mask: true, ..plain }), us));
        }
        all.push((Multiply::Attention(plain), us));
    }
    Ok(all)
}

fn sizes_of(of: &Lowering, v: ValueId) -> Result<attention::Sizes, LowerError> {
    let Op::Attention { causal, .. } = *of.graph.op(v) else { return Err(of.unsupported("not attention")) };
    let [q, k, w] = [0, 1, 2].map(|i| of.graph.shape(of.graph.args(v)[i]));
    let sizes = attention::Sizes::of(matmul::operands(of, v), [q, k, w], causal);
    Ok(attention::Sizes { precision: precision(of, v), ..sizes })
}

/// The steps that give the sums of slices of the keys in the first scratch buffers, with the one that joins these.
fn joined(
    of: &Lowering,
    v: ValueId,
    z: &Sizes,
    slices: Emitted,
    parts: usize,
    _machine: &Hardware,
) -> Result<Emitted, LowerError> {
    if parts == 1 {
        return Ok(slices);
    }
    let rows: usize = z.batch.iter().product::<usize>() * z.heads * z.group * z.s;
    let mut scratch: Vec<Type> = [rows * z.e, rows, rows].map(|n| Type::new(DType::F32, [parts * n])).to_vec();
    scratch.extend_from_slice(&slices.scratch);
    let mut all = Emitted { scratch, ..slices };
    for anchor in std::iter::once(v).chain(of.dual.map(|d| d.0)) {
        // A step for what is as large as the result, and one for what has a number for each query.
        let outputs = of.graph.outputs.iter().enumerate();
        let own = outputs.filter(|(_, out)| of.dual.is_none() || follows(of.graph, **out, anchor));
        let (stored, outputs): (Vec<usize>, Vec<ValueId>) = own.unzip();
        let mut graph = of.graph.clone();
        graph.outputs = outputs;
        let name = format!("{}_{}", of.name, if of.dual.is_some_and(|d| d.0 == anchor) { "join_sums" } else { "join" });
        let matmul = Some((anchor, Place::KeyParts { first: 0, count: parts }));
        let body = of.with_body(Body { name: &name, graph: &graph, matmul, dual: None, ..of.body });
        let mut rest = launch::body(&body, all.scratch.len() as u32)?;
        for step in &mut rest.steps {
            let Work::Block { args, .. } = step else { continue };
            for slot in args {
                if let Slot::Output(i) = slot {
                    *i = stored[*i as usize] as u32;
                }
            }
        }
        all = all.then(rest);
    }
    Ok(all)
}

/// Whether a value is computed from another.
fn follows(g: &Graph, v: ValueId, from: ValueId) -> bool {
    let mut seen = vec![false; g.len()];
    let mut todo = vec![v];
    while let Some(x) = todo.pop() {
        if x == from {
            return true;
        }
        if !std::mem::replace(&mut seen[x.0 as usize], true) {
            todo.extend(g.args(x));
        }
    }
    false
}

/// What the program stores: the kernel's outputs, or for a slice of the keys its weighted sums, maxima and sums of
/// weights.
fn results(
    of: &Lowering,
    v: ValueId,
    z: &Sizes,
    at: &[Expr],
    parts: usize,
    r: &mut Resolver,
) -> Result<Vec<Store>, LowerError> {
    let part = Expr::coord(part_id(z), parts);
    let nb = z.batch.len();
    let dims = [&z.batch[..], &[z.heads, z.group, z.s, z.e]].concat();
    if parts > 1 {
        let rows = linear(&at[..nb + 3], &dims[..nb + 3]);
        let row_count: usize = dims[..nb + 3].iter().product();
        let whole = linear(at, &dims);
        let places = [(whole, row_count * z.e), (rows.clone(), row_count), (rows, row_count)];
        let store = |(i, (at, size)): (usize, (Expr, usize))| {
            let value = r.dag.add(NodeOp::Anchor { at: vec![Expr::default().shift(i as i64)] }, DType::F32);
            let at = at.plus(&part.clone().scale(size as i64));
            Store::new(Slot::Scratch(i as u32), DType::F32, at, value)
        };
        return Ok(places.into_iter().enumerate().map(store).collect());
    }
    let place = |ix: &[Expr]| {
        let h = ix[nb].clone();
        let k = z.group as i64;
        let mut all = ix[..nb].to_vec();
        all.extend([h.clone().div(k), h.rem(k), ix[nb + 1].clone(), ix[nb + 2].clone()]);
        all
    };
    let body = Body { matmul: Some((v, Place::Node)), ..of.body };
    let g = of.graph;
    let lse = g.values().find(|v| matches!(g.op(*v), Op::Attention { lse: true, .. }));
    let store = |(i, &out): (usize, &ValueId)| {
        // The log-sum-exp has no columns.
        let rank = if lse.is_some_and(|lse| follows(g, out, lse)) { nb + 3 } else { nb + 4 };
        let of_rank = |ix: &[Expr]| place(ix).into_iter().take(rank).collect::<Vec<Expr>>();
        let placed = placed::output(&body, i, &dims[..rank], Positions { place: &of_rank, lattice: &[] }, None);
        placed.ok_or_else(|| of.unsupported(NOT_PLACED))?.store(r, &at[..rank])
    };
    g.outputs.iter().enumerate().map(store).collect()
}

/// What stores read of an attention.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Sum {
    /// The mean of the values.
    Mean,
    LogSumExp,
    /// Of a slice of the keys: the weighted sums of values, the maximum, and the sum of weights.
    Slice(usize),
}

/// The anchors of the program's stores. `parts`: the number of slices of the keys.
fn sums(of: &Lowering, scene: &Scene, parts: usize) -> Result<Vec<(NodeId, Sum)>, LowerError> {
    if parts > 1 {
        return Ok(scene.stores.iter().enumerate().map(|(i, s)| (s.value, Sum::Slice(i))).collect());
    }
    let anchors = the_sums(scene, 1 + usize::from(of.dual.is_some())).ok_or_else(|| of.unsupported(NOT_PLACED))?;
    let kind = |n: NodeId| match &scene.dag.node(n).op {
        NodeOp::Anchor { at } if at.last().is_some_and(|e| e.constant == LOG_SUM_EXP) => (n, Sum::LogSumExp),
        _ => (n, Sum::Mean),
    };
    Ok(anchors.into_iter().map(kind).collect())
}

/// The logarithm of a sum of exponentials, from the maximum of the exponents and the sum relative to it.
fn log_sum_exp(b: &mut Builder, most: Value, weights: Value) -> Value {
    let log = b.unary(U::Log, weights);
    let log = b.binary(B::Add, most, log);
    let infinity = math::float(b, Elem::F32, f64::INFINITY);
    let infinite = b.cmp(CmpOp::Eq, most, infinity);
    b.select(infinite, most, log)
}

/// What the program of an attention reads, at the coordinates of [`Coords`].
struct Operands {
    q: NodeId,
    k: NodeId,
    v: NodeId,
    /// The product of a query and a key, which the program sets: an anchor at the empty index, which no element of a value has.
    raw: NodeId,
    score: NodeId,
    sink: Option<NodeId>,
    /// Between which keys the mask leaves any.
    ends: [Option<NodeId>; 2],
}

/// `at`: the result's indices, as [`indices`] gives them.
fn operands(r: &mut Resolver, v: ValueId, z: &Sizes, at: &[Expr], causal: Causal) -> Result<Operands, LowerError> {
    let (args, nb) = (r.graph.args(v), z.batch.len());
    let Coords { t: [t1, t2], d: [d1, d2], .. } = Coords::of(z);
    let q_head = at[nb].clone().scale(z.group as i64).plus(&at[nb + 1]);
    let lead = &at[..nb];
    let [ct1, ct2] = [t1, t2].map(|i| Expr::coord(i, z.t));
    let [cd1, cd2] = [d1, d2].map(|i| Expr::coord(i, z.d));
    let q = r.at(args[0], &[lead, &[q_head.clone(), at[nb + 2].clone(), cd1]].concat(), &[])?;
    let k = r.at(args[1], &[lead, &[at[nb].clone(), ct1.clone(), cd2]].concat(), &[])?;
    let values = r.at(args[2], &[lead, &[at[nb].clone(), ct2, at[nb + 3].clone()]].concat(), &[])?;
    let raw = r.dag.add(NodeOp::Anchor { at: vec![] }, r.graph.dtype(args[0]).compute());
    let of_score = [lead, &[q_head, at[nb + 2].clone(), ct1]].concat();
    let score = masked_score(r, raw, v, &of_score, causal)?;
    let sink = scores::sink(r, v, &of_score)?;
    let ends = key_range(&mut r.dag, score, t1, z.t);
    Ok(Operands { q, k, v: values, raw, score, sink, ends })
}

/// Coordinate of the slice of the keys.
fn part_id(z: &Sizes) -> CoordId {
    z.batch.len() as CoordId + 8
}

/// Indices of the result by the program's coordinates: batch…, key head, query head of its group, query, column. `packed`: the rows of a
/// tile are the queries of all heads of a group.
fn indices(z: &Sizes, packed: bool) -> Vec<Expr> {
    let dims = [&z.batch[..], &[z.heads, z.group, z.s, z.e]].concat();
    let mut at: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    if packed {
        let row = Expr::coord(Coords::of(z).s, z.group * z.s);
        let group = z.batch.len() + 1;
        (at[group], at[group + 1]) = (row.clone().div(z.s as i64), row.rem(z.s as i64));
    }
    at
}

fn program(of: &Lowering, v: ValueId, z: &Sizes, tiles: Tiles, packed: bool) -> Result<Work<Kernel>, LowerError> {
    let g = of.graph;
    let Op::Attention { causal, fully_masked, .. } = *g.op(v) else { return Err(of.unsupported("not attention")) };
    let dtype = matmul::operands(of, v);
    let Coords { head, group, s, e, t: [t1, t2], d: [d1, d2] } = Coords::of(z);
    let at = indices(z, packed);
    let mut r = Body { matmul: Some((v, Place::Node)), ..of.body }.resolver();
    let stores = results(of, v, z, &at, tiles.parts, &mut r)?;
    let mut scene = Scene { dag: r.dag.clone(), stores };
    let sums = sums(of, &scene, tiles.parts)?;

    let Operands { q, k, v: w, raw, score, sink, ends } = operands(&mut r, v, z, &at, Causal::Guard)?;
    scene.dag = r.dag;

    let precision = match precision(of, v) {
        Precision::Tf32x3 => DotPrecision::Tf32x3,
        _ => DotPrecision::Exact,
    };
    let way = Way { one: tiles.queries == 1, queries: tiles.queries, keys: tiles.keys, precision };
    let cut = |id, extent, block, axis| Cut { id, extent, block, axis };
    let mut cuts: Vec<Cut> = z.batch.iter().enumerate().map(|(i, &d)| Cut::uniform(i as CoordId, d)).collect();
    let (groups, rows) = if packed { (1, z.group * z.s) } else { (z.group, z.s) };
    cuts.extend([Cut::uniform(head, z.heads), Cut::uniform(group, groups)]);
    let of_queries = cut(s, rows, tiles.queries, 0);
    cuts.extend([of_queries, cut(e, z.e, z.e.next_power_of_two().max(16), 1)]);
    let shape = Shape { cuts, rank: 2, parts: tiles.parts, warps: tiles.warps, blocks: 1, reversed: false };
    let read = [scene.roots(), vec![q, k, w, score], ends.into_iter().chain([sink]).flatten().collect()].concat();
    let mut used = loads(&scene.dag, &read, |_| false);
    used.extend(scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
    let mut f = open_with(of.name, &scene, &shape, &used, of.machine);
    let part = f.part;
    f.em.coords.insert(part_id(z), Lanes { base: part, ..Lanes::default() });
    let depth = [cut(d1, z.d, 0, 1), cut(d2, z.d, 0, way.depth())].map(|c| in_parts(&mut f, c));
    let columns = in_parts(&mut f, cut(e, z.e, 0, 1));
    let (ta, tb) = (cut(t1, z.t, tiles.keys, way.along()), cut(t2, z.t, tiles.keys, 0));
    let lanes = [f.iota(ta), f.iota(tb)];
    let ragged = !z.t.is_multiple_of(tiles.keys);

    // Before values of queries, which are not the block's.
    let [first, end] = ends;
    let ends = [(first, R::Min), (end, R::Max)].map(|(n, by)| Some(of_block(&mut f, n?, by, &of_queries)));
    let query = parts_of(&mut f, &depth[0], |f, wide| operand(f, q, dtype, [tiles.queries, wide], d1));
    let zero = math::float(&mut f.b, Elem::F32, 0.0);
    let lowest = math::float(&mut f.b, Elem::F32, f64::NEG_INFINITY);
    let rows = tiles.queries;
    let mut start = start(&mut f, sink, 1.0, [rows, 1]).to_vec();
    start.extend(columns.iter().map(|part| f.b.splat(zero, &[rows, part.wide])));
    let bounds = bounds(&mut f, z, &tiles, ends, if causal { Some(s) } else { None });
    let half = matches!(dtype, DType::F16 | DType::Bf16);
    let power = |b: &mut Builder, x: Value| {
        if !half {
            return b.unary(U::Exp, x);
        }
        // Weights are rounded to half types.
        let unit = math::float(b, Elem::F32, LOG2_E);
        let x = b.binary(B::Mul, x, unit);
        b.unary(U::Exp2Approx, x)
    };
    let out = looped(&mut f, bounds, &start, |f, index, now| {
        let base = f.b.cast(index, f.em.index);
        let mut masks = vec![];
        for (c, lane) in [ta, tb].iter().zip(lanes) {
            let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, z.t));
            f.em.coords.insert(c.id, Lanes { base: Some(base), lane, mask, block: 0 });
            masks.push(mask);
        }
        let keys = parts_of(f, &depth[1], |f, wide| operand(f, k, dtype, way.keys(wide), d2));
        let scores = way.scores(f, &query, &keys);
        f.em.set(raw, scores);
        let mut x = f.em.value(&mut f.b, score);
        if let Some(m) = masks[0] {
            x = f.b.select(m, x, lowest);
        }
        let (b, along) = (&mut f.b, way.along());
        let most = b.reduce(R::Max, x, along);
        let most = b.expand_dims(most, along);
        let most = b.binary(B::Max, now[0], most);
        // Where all keys so far are masked, the maximum is minus infinity, which must not be subtracted from itself.
        let nothing = b.cmp(CmpOp::Eq, most, lowest);
        let safe = b.select(nothing, zero, most);
        let p = b.binary(B::Sub, x, safe);
        let p = power(b, p);
        let keep = b.binary(B::Sub, now[0], safe);
        let keep = power(b, keep);
        let sum = b.reduce(R::Sum, p, along);
        let sum = b.expand_dims(sum, along);
        let kept = b.binary(B::Mul, now[1], keep);
        let sum = b.binary(B::Add, kept, sum);
        let p = b.cast(p, types::stored(dtype));
        let values = parts_of(f, &columns, |f, wide| operand(f, w, dtype, [tiles.keys, wide], t2));
        let mut next = vec![most, sum];
        for (values, now) in values.into_iter().zip(&now[2..]) {
            let acc = f.b.binary(B::Mul, *now, keep);
            next.push(way.weighted(f, p, values, acc));
        }
        next
    });
    let (most, total, mut accs) = (out[0], out[1], out[2..].iter());
    let mut stores: Vec<&Store> = scene.stores.iter().collect();
    parts_of(&mut f, &columns, |f, _| {
        let acc = accs.next().copied().unwrap_or(most);
        for &(node, sum) in &sums {
            let value = match sum {
                Sum::Mean => quotient(f, acc, total, fully_masked),
                Sum::LogSumExp => log_sum_exp(&mut f.b, most, total),
                Sum::Slice(i) => [acc, most, total][i],
            };
            f.em.set(node, value);
        }
        stores.iter().for_each(|st| f.store(st));
        // What all columns share is stored once.
        stores.retain(|st| st.at.uses(e));
    });
    f.finish()
}

/// A part of a coordinate that is cut into powers of two: its lanes, and how many they are.
struct Part {
    id: CoordId,
    lanes: Lanes,
    wide: usize,
}

fn in_parts(f: &mut Frame, whole: Cut) -> Vec<Part> {
    let mut first = 0;
    let part = |wide| {
        let lanes = f.lanes_from(Cut { block: wide, ..whole }, first);
        first += wide;
        Part { id: whole.id, lanes, wide }
    };
    attention::parts(whole.extent).into_iter().map(part).collect()
}

/// What `of` gives where the coordinate is each of its parts.
fn parts_of<T>(f: &mut Frame, parts: &[Part], mut of: impl FnMut(&mut Frame, usize) -> T) -> Vec<T> {
    let one = |part: &Part| {
        f.em.coords.insert(part.id, part.lanes);
        // What depends on the coordinate has another value in the next part.
        f.em.enter();
        let value = of(f, part.wide);
        f.em.leave(&mut f.b);
        value
    };
    parts.iter().map(one).collect()
}

/// The greatest score `[rows, 1]` and the sum of the weights `[rows, parts]`, a power of two, of queries before the first key: those of the
/// sink, which the first slice of the keys counts. The score is in units of `scale`, a positive number.
fn start(f: &mut Frame, sink: Option<NodeId>, scale: f64, [rows, parts]: [usize; 2]) -> [Value; 2] {
    let [zero, lowest] = [0.0, f64::NEG_INFINITY].map(|x| math::float(&mut f.b, Elem::F32, x));
    let Some(sink) = sink else { return [f.b.splat(lowest, &[rows, 1]), f.b.splat(zero, &[rows, parts])] };
    let mut sink = f.em.value(&mut f.b, sink);
    if let Some(part) = f.part {
        let part = f.b.cast(part, Elem::I32);
        let first = f.b.i32(0);
        let first = f.b.cmp(CmpOp::Eq, part, first);
        sink = f.b.select(first, sink, lowest);
    }
    let none = f.b.cmp(CmpOp::Eq, sink, lowest);
    // One; NaN for a sink that is not a number, or infinite.
    let safe = f.b.select(none, zero, sink);
    let weight = f.b.binary(B::Sub, sink, safe);
    let mut weight = f.b.unary(U::Exp, weight);
    if parts > 1 {
        let share = math::float(&mut f.b, Elem::F32, 1.0 / parts as f64);
        weight = f.b.binary(B::Mul, weight, share);
    }
    let mut most = sink;
    if scale != 1.0 {
        // Finite, also when it is multiplied by the scale and by the logarithm of e again.
        let bound = f64::from(f32::MAX) / (2.0 * scale * LOG2_E).max(2.0);
        let [unit, lo, hi] = [1.0 / scale, -bound, bound].map(|x| math::float(&mut f.b, Elem::F32, x));
        most = f.b.binary(B::Mul, sink, unit);
        most = f.b.binary(B::Min, most, hi);
        most = f.b.binary(B::Max, most, lo);
        most = f.b.select(none, lowest, most);
    }
    [f.b.broadcast_to(most, &[rows, 1]), f.b.broadcast_to(weight, &[rows, parts])]
}

/// An operand of a matmul over `along`, zero beyond its end: also if it does not depend on `along`, as a repeated
/// element need not be finite.
fn operand(f: &mut Frame, node: NodeId, dtype: DType, shape: [usize; 2], along: CoordId) -> Value {
    let v = f.em.operand_tile(&mut f.b, node, dtype, &shape);
    let masked = matches!(&f.em.dag.node(node).op, NodeOp::Load { at, .. } if at.uses(along));
    let mask = f.em.coords.get(&along).and_then(|c| c.mask).filter(|_| !masked);
    zero_outside(f, v, mask)
}

/// The loop over the keys of an instance: first, end, step. `start`, `end`: between which keys the mask leaves any; slices are cut for
/// these, so that few keys are not the work of one slice. `queries`: the queries' coordinate under a causal mask.
fn bounds(
    f: &mut Frame,
    z: &Sizes,
    tiles: &Tiles,
    [start, end]: [Option<Value>; 2],
    queries: Option<CoordId>,
) -> [Value; 3] {
    let seen = if queries.is_some() { z.t.min(z.s) } else { z.t };
    let (mut lo, mut hi, step) = (f.b.i32(0), f.b.i32(seen as i64), f.b.i32(tiles.keys as i64));
    if let Some(end) = end {
        hi = f.b.binary(B::Min, hi, end);
    }
    if let Some(start) = start {
        // Blocks of keys begin at multiples of their size.
        let blocks = f.b.binary(B::Div, start, step);
        lo = f.b.binary(B::Mul, blocks, step);
    }
    [lo, hi] = slice(f, tiles, [lo, hi], [start.is_some(), end.is_some()]);
    if let Some(base) = queries.and_then(|s| f.em.coords.get(&s)?.base) {
        // Keys past the block's last query are masked for all of its queries.
        let base = f.b.cast(base, Elem::I32);
        let own = f.b.i32(tiles.queries as i64);
        let end = f.b.binary(B::Add, base, own);
        hi = f.b.binary(B::Min, hi, end);
    }
    [lo, hi, step]
}

/// The instance's slice of the keys `lo..hi`: of those that a mask leaves where it has bounds, else of [`Tiles::part`] keys.
fn slice(f: &mut Frame, tiles: &Tiles, [lo, hi]: [Value; 2], [starts, ends]: [bool; 2]) -> [Value; 2] {
    let Some(part) = f.part else { return [lo, hi] };
    let len = if starts || ends {
        // Blocks of keys for each slice, rounded up.
        let once = (tiles.parts * tiles.keys) as i64;
        let (once, less, step) = (f.b.i32(once), f.b.i32(once - 1), f.b.i32(tiles.keys as i64));
        let keys = if starts { f.b.binary(B::Sub, hi, lo) } else { hi };
        let up = f.b.binary(B::Add, keys, less);
        let blocks = f.b.binary(B::Div, up, once);
        f.b.binary(B::Mul, blocks, step)
    } else {
        f.b.i32(tiles.part as i64)
    };
    let part = f.b.cast(part, Elem::I32);
    let before = f.b.binary(B::Mul, part, len);
    let lo = if starts { f.b.binary(B::Add, lo, before) } else { before };
    let end = f.b.binary(B::Add, lo, len);
    [lo, f.b.binary(B::Min, hi, end)]
}

/// The least or greatest of a bound of the keys over the block's queries, as i32. `queries`: their coordinate and how many
/// a block has. Where the bound is known to rise or fall along the queries, it is that of the last or the first one.
fn of_block(f: &mut Frame, bound: NodeId, by: R, queries: &Cut) -> Value {
    let at = f.em.coords.get(&queries.id).copied().zip(trend(f.em.dag, bound, queries.id));
    let Some((lanes, trend)) = at else {
        let bound = f.em.value(&mut f.b, bound);
        let bound = f.b.cast(bound, Elem::I32);
        return reduced(&mut f.b, bound, by);
    };
    let mut base = lanes.base;
    if (trend == Trend::Rises) == (by == R::Max) {
        let last = f.em.int(&mut f.b, queries.block as i64 - 1);
        let position = base.map_or(last, |base| f.b.binary(B::Add, base, last));
        let most = f.em.int(&mut f.b, queries.extent as i64 - 1);
        base = Some(f.b.binary(B::Min, position, most));
    }
    f.em.enter();
    f.em.coords.insert(queries.id, Lanes { base, ..Lanes::default() });
    let bound = f.em.value(&mut f.b, bound);
    f.em.leave(&mut f.b);
    f.em.coords.insert(queries.id, lanes);
    // It is at most the number of keys, which a loop can count.
    f.b.cast(bound, Elem::I32)
}

/// The least or greatest element.
fn reduced(b: &mut Builder, mut v: Value, by: R) -> Value {
    while !b.ty(v).is_scalar() {
        v = b.reduce(by, v, 0);
    }
    v
}

/// How a number changes along a coordinate.
#[derive(Clone, Copy, PartialEq)]
enum Trend {
    Rises,
    Falls,
}

/// How an integer changes along a coordinate, weakly; `None` if that is not known, or if its element does not depend on
/// the coordinate alone.
fn trend(dag: &Dag, n: NodeId, along: CoordId) -> Option<Trend> {
    use Trend::{Falls, Rises};
    let opposite = |t: Trend| if t == Rises { Falls } else { Rises };
    // `None` inside: it does not change.
    fn of(dag: &Dag, n: NodeId, along: CoordId, opposite: &impl Fn(Trend) -> Trend) -> Option<Option<Trend>> {
        let both = |a: Option<Trend>, b: Option<Trend>| match (a, b) {
            (None, t) | (t, None) => Some(t),
            (Some(a), Some(b)) => (a == b).then_some(Some(a)),
        };
        match &dag.node(n).op {
            NodeOp::Const(_) => Some(None),
            NodeOp::Index(e) if !e.uses(along) => Some(None),
            NodeOp::Index(e) => e.stride(along).map(|c| Some(if c > 0 { Trend::Rises } else { Trend::Falls })),
            NodeOp::Load { at, guards, .. } if guards.is_empty() && !at.uses(along) => Some(None),
            NodeOp::Cast(a) if dag.node(*a).dtype.is_int() => of(dag, *a, along, opposite),
            NodeOp::Binary(BinaryOp::Add | BinaryOp::Min | BinaryOp::Max, a, b) => {
                both(of(dag, *a, along, opposite)?, of(dag, *b, along, opposite)?)
            }
            NodeOp::Binary(BinaryOp::Sub, a, b) => {
                both(of(dag, *a, along, opposite)?, of(dag, *b, along, opposite)?.map(opposite))
            }
            _ => None,
        }
    }
    of(dag, n, along, &opposite)?
}

/// How a block multiplies: by matmuls, with scores `[queries, keys]`; or for a single query by sums over rows of keys
/// and of values as they lie in memory, with scores `[keys, 1]`.
struct Way {
    /// A single query.
    one: bool,
    queries: usize,
    keys: usize,
    precision: DotPrecision,
}

impl Way {
    /// The axis of the scores along which keys lie.
    fn along(&self) -> usize {
        usize::from(!self.one)
    }
    /// The axis of the tile of keys along which a key lies.
    fn depth(&self) -> usize {
        usize::from(self.one)
    }
    /// The shape of a tile of this many columns of the keys.
    fn keys(&self, wide: usize) -> [usize; 2] {
        if self.one { [self.keys, wide] } else { [wide, self.keys] }
    }
    /// The scores: the sum over parts of the columns.
    fn scores(&self, f: &mut Frame, query: &[Value], keys: &[Value]) -> Value {
        let zero = math::float(&mut f.b, Elem::F32, 0.0);
        let none = f.b.splat(zero, &if self.one { [self.keys, 1] } else { [self.queries, self.keys] });
        query.iter().zip(keys).fold(none, |sum, (&query, &keys)| match self.one {
            true => {
                let more = row_sums(f, query, keys, 1);
                if sum == none { more } else { f.b.binary(B::Add, sum, more) }
            }
            false => f.b.dot(query, keys, sum, self.precision),
        })
    }
    fn weighted(&self, f: &mut Frame, weights: Value, values: Value, acc: Value) -> Value {
        if self.one {
            let more = row_sums(f, weights, values, 0);
            return f.b.binary(B::Add, acc, more);
        }
        f.b.dot(weights, values, acc, self.precision)
    }
}

/// The sum of products along an axis, which stays with size 1.
fn row_sums(f: &mut Frame, a: Value, b: Value, axis: usize) -> Value {
    let [a, b] = [a, b].map(|x| f.b.cast(x, Elem::F32));
    let products = f.b.binary(B::Mul, a, b);
    let sum = f.b.reduce(R::Sum, products, axis);
    f.b.expand_dims(sum, axis)
}

/// Weighted sums divided by the sum of their weights. Where all keys are masked both are zero, and the quotient NaN.
fn quotient(f: &mut Frame, sums: Value, weights: Value, fully_masked: FullyMasked) -> Value {
    if fully_masked == FullyMasked::Nan {
        return f.b.binary(B::Div, sums, weights);
    }
    let zero = math::float(&mut f.b, Elem::F32, 0.0);
    let one = math::float(&mut f.b, Elem::F32, 1.0);
    let empty = f.b.cmp(CmpOp::Eq, weights, zero);
    let weights = f.b.select(empty, one, weights);
    f.b.binary(B::Div, sums, weights)
}
