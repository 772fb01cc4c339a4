//! Flash attention on GPUs: a block of queries per instance, a loop over blocks of keys and values, and an online
//! softmax. With few queries, instances take slices of the keys (split-KV), which a second step combines.
//!
//! Takes: an attention with whatever follows it, and the tiles of its schedule. Gives: one program, or two steps.
//!
//! The few queries of a group of heads that share their keys are the rows of one tile, so that keys and values are
//! loaded once for all.
//!
//! A single f32 query takes sums of products along rows of keys, as they lie in memory, instead of matmuls of a tile
//! that is mostly empty.
//!
//! Tiles are powers of two. Heads of other widths are cut into parts of such sizes ([`attention::parts`]): scores are
//! sums over the parts of queries and keys, and each part of the values' columns has sums of its own.
//!
//! Blocks of keys that no query of the block attends to are neither loaded nor computed: those after the queries under
//! a causal mask, and those before the first and beyond the end that a mask states ([`crate::scalar::key_range`]),
//! which the program computes from what it reads, as the position in a cache. The loop then ends at a number read from
//! memory. Where PyTorch multiplies an infinite or NaN value there by zero, which gives NaN, the result here may be
//! finite.
pub use crate::attention::program::Coords;
pub use crate::attention::program::Operands;
pub use crate::attention::program::Sum;
pub use crate::attention::program::bounds;
pub use crate::attention::program::indices;
pub use crate::attention::program::log_sum_exp;
pub use crate::attention::program::of_block;
pub use crate::attention::program::operands;
pub use crate::attention::program::part_id;
pub use crate::attention::program::results;
pub use crate::attention::program::start;
pub use crate::attention::program::sums;
use crate::emit::emitter::Lanes;
use crate::emit::frame::{Frame, loads, looped, open_with};
use crate::emit::math;
use crate::error::LowerError;
use crate::matmul::mma::zero_outside;
use crate::matmul::{self, precision};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{NodeId, NodeOp, Scene, Store};
use crate::scalar::expr::CoordId;
use crate::scalar::resolve::{Body, MatmulSource};
use crate::scalar::scores::{Causal, Sizes};
use crate::scalar::types;
use crate::schedule::tile::{Cut, Shape};
use kiln_block::{BinaryOp as B, BlockProgram, Builder, CmpOp, DotPrecision, Elem, ReduceOp as R, UnaryOp as U, Value};
use kiln_graph::{DType, FullyMasked, Op, ValueId};
use kiln_plan::Precision;
use kiln_plan::attention::{self, Tiles};
use kiln_plan::exec::Work;
use std::f64::consts::LOG2_E;

pub fn program(
    kernel: &Lowering,
    v: ValueId,
    z: &Sizes,
    tiles: Tiles,
    packed: bool,
) -> Result<Work<BlockProgram>, LowerError> {
    let g = kernel.graph;
    let Op::Attention { causal, fully_masked, .. } = *g.op(v) else { return Err(kernel.unsupported("not attention")) };
    let dtype = matmul::operand_dtype(kernel, v);
    let Coords { head, group, s, e, t: [t1, t2], d: [d1, d2] } = Coords::of(z);
    let at = indices(z, packed);
    let mut r = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body }.resolver();
    let stores = results(kernel, v, z, &at, tiles.parts, &mut r)?;
    let mut scene = Scene { dag: r.dag.clone(), stores };
    let sums = sums(kernel, &scene, tiles.parts)?;

    let Operands { q, k, v: w, raw, score, sink, ends } = operands(&mut r, v, z, &at, Causal::Guard)?;
    scene.dag = r.dag;

    let precision = match precision(kernel, v) {
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
    let mut f = open_with(kernel.name, &scene, &shape, &used, kernel.machine);
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

/// An operand of a matmul over `along`, zero beyond its end: also if it does not depend on `along`, as a repeated
/// element need not be finite.
fn operand(f: &mut Frame, node: NodeId, dtype: DType, shape: [usize; 2], along: CoordId) -> Value {
    let v = f.em.operand_tile(&mut f.b, node, dtype, &shape);
    let masked = matches!(&f.em.dag.node(node).op, NodeOp::Load { at, .. } if at.uses(along));
    let mask = f.em.coords.get(&along).and_then(|c| c.mask).filter(|_| !masked);
    zero_outside(f, v, mask)
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
