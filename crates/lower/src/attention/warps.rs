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
use crate::attention::program::{
    Coords, Operands, Sum, TileRows, bounds, indices, log_sum_exp, of_block, operands, part_id, results, start, sums,
};
use crate::emit::emitter::Lanes;
use crate::emit::frame::{Frame, Used, loads, looped, open_with};
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

/// The program of an attention whose blocks are multiplied by warps.
pub fn program(
    kernel: &Lowering,
    v: ValueId,
    z: &Sizes,
    tiles: Tiles,
    rows: TileRows,
) -> Result<Work<BlockProgram>, LowerError> {
    let a = Resolved::new(kernel, v, z, tiles, rows)?;
    let (shape, queries) = (a.shape(), a.queries());
    let mut f = open_with(kernel.name, &a.scene, &shape, &a.buffers(), kernel.machine);
    let part = f.part;
    f.em.coords.insert(part_id(z), Lanes { base: part, ..Lanes::default() });
    let program = Program::of(&mut f, &a);
    // Before values of queries, which are not the block's.
    let [start, end] = a.operands.ends;
    let ends = [(start, R::Min), (end, R::Max)].map(|(n, by)| Some(of_block(&mut f, n?, by, &queries)));
    let sums = program.over_keys(&mut f, ends);
    program.finish(&mut f, &sums);
    f.finish()
}

/// An attention as scalar programs over the coordinates of [`Coords`].
struct Resolved<'a> {
    z: &'a Sizes,
    tiles: Tiles,
    rows: TileRows,
    products: Products,
    /// Of queries, keys and values.
    dtype: DType,
    causal: bool,
    fully_masked: FullyMasked,
    scene: Scene,
    /// The anchors of the scene's stores.
    sums: Vec<(NodeId, Sum)>,
    operands: Operands,
}

impl<'a> Resolved<'a> {
    fn new(
        kernel: &Lowering,
        v: ValueId,
        z: &'a Sizes,
        tiles: Tiles,
        rows: TileRows,
    ) -> Result<Resolved<'a>, LowerError> {
        let Op::Attention { causal, fully_masked, .. } = *kernel.graph.op(v) else {
            return Err(kernel.unsupported("not attention"));
        };
        let at = indices(z, rows);
        let mut r = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body }.resolver();
        let stores = results(kernel, v, z, &at, tiles.parts, &mut r)?;
        let mut scene = Scene { dag: r.dag.clone(), stores };
        let sums = sums(kernel, &scene, tiles.parts)?;
        let operands = operands(&mut r, v, z, &at, Causal::Guard)?;
        scene.dag = r.dag;
        let precision = match precision(kernel, v) {
            Precision::Tf32x3 => DotPrecision::Tf32x3,
            _ => DotPrecision::Exact,
        };
        let single_query = tiles.queries == 1;
        let products = Products { single_query, queries: tiles.queries, keys: tiles.keys, precision };
        let dtype = matmul::operand_dtype(kernel, v);
        Ok(Resolved { z, tiles, rows, products, dtype, causal, fully_masked, scene, sums, operands })
    }
    /// The queries, cut into blocks.
    fn queries(&self) -> Cut {
        Cut { id: Coords::of(self.z).s, extent: self.rows.sizes(self.z).s, block: self.tiles.queries, axis: 0 }
    }
    fn shape(&self) -> Shape {
        let (z, tiles) = (self.z, &self.tiles);
        let Coords { head, group, e, .. } = Coords::of(z);
        let mut cuts: Vec<Cut> = z.batch.iter().enumerate().map(|(i, &d)| Cut::uniform(i as CoordId, d)).collect();
        cuts.extend([Cut::uniform(head, z.heads), Cut::uniform(group, self.rows.sizes(z).group), self.queries()]);
        cuts.push(Cut { id: e, extent: z.e, block: z.e.next_power_of_two().max(16), axis: 1 });
        Shape { cuts, rank: 2, parts: tiles.parts, warps: tiles.warps, blocks: 1, reversed: false }
    }
    /// Buffers that the program reads and writes.
    fn buffers(&self) -> Vec<Used> {
        let Operands { q, k, v, score, sink, ends, .. } = self.operands;
        let scene = &self.scene;
        let read = [scene.roots(), vec![q, k, v, score], ends.into_iter().chain([sink]).flatten().collect()].concat();
        let mut used = loads(&scene.dag, &read, |_| false);
        used.extend(scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
        used
    }
}

/// A coordinate of the keys, cut into blocks, and its lanes in a block.
struct KeyLanes {
    cut: Cut,
    lane: Option<Value>,
}

/// The program under construction.
struct Program<'a> {
    a: &'a Resolved<'a>,
    /// Parts of the columns of queries, of keys, and of values.
    query_parts: Vec<Part>,
    key_parts: Vec<Part>,
    value_parts: Vec<Part>,
    /// Keys as scores have them, and as values do.
    keys: [KeyLanes; 2],
}

/// What the loop over keys carries.
struct Sums {
    /// The greatest score of a row.
    maximum: Value,
    weights: Value,
    /// Weighted sums of each part of the values' columns.
    values: Vec<Value>,
}

impl<'a> Program<'a> {
    fn of(f: &mut Frame, a: &'a Resolved<'a>) -> Program<'a> {
        let (z, tiles, products) = (a.z, &a.tiles, &a.products);
        let Coords { e, t: [t1, t2], d: [d1, d2], .. } = Coords::of(z);
        let mut parts = |id, extent, axis| in_parts(f, Cut { id, extent, block: 0, axis });
        let query_parts = parts(d1, z.d, 1);
        let key_parts = parts(d2, z.d, products.depth_axis());
        let value_parts = parts(e, z.e, 1);
        let keys = [(t1, products.key_axis()), (t2, 0)].map(|(id, axis)| {
            let cut = Cut { id, extent: z.t, block: tiles.keys, axis };
            KeyLanes { cut, lane: f.iota(cut) }
        });
        Program { a, query_parts, key_parts, value_parts, keys }
    }
    /// The loop over blocks of keys. `ends`: between which keys the mask leaves any.
    fn over_keys(&self, f: &mut Frame, ends: [Option<Value>; 2]) -> Sums {
        let (a, rows) = (self.a, self.a.tiles.queries);
        let Coords { s, d: [d1, _], .. } = Coords::of(a.z);
        let query = parts_of(f, &self.query_parts, |f, wide| operand(f, a.operands.q, a.dtype, [rows, wide], d1));
        let zero = math::float(&mut f.b, Elem::F32, 0.0);
        let lowest = math::float(&mut f.b, Elem::F32, f64::NEG_INFINITY);
        let mut start = start(f, a.operands.sink, 1.0, [rows, 1]).to_vec();
        start.extend(self.value_parts.iter().map(|part| f.b.splat(zero, &[rows, part.wide])));
        let bounds = bounds(f, a.z, &a.tiles, ends, if a.causal { Some(s) } else { None });
        let out = looped(f, bounds, &start, |f, index, now| {
            let scores = self.scores(f, index, &query, lowest);
            self.add_block(f, scores, now, [zero, lowest])
        });
        Sums { maximum: out[0], weights: out[1], values: out[2..].to_vec() }
    }
    /// Scores of the block of keys that starts at `index`.
    fn scores(&self, f: &mut Frame, index: Value, query: &[Value], lowest: Value) -> Value {
        let (a, products) = (self.a, &self.a.products);
        let base = f.b.cast(index, f.em.index);
        let ragged = !a.z.t.is_multiple_of(a.tiles.keys);
        let masks = [0, 1].map(|i| {
            let KeyLanes { cut, lane } = self.keys[i];
            let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, a.z.t));
            f.em.coords.insert(cut.id, Lanes { base: Some(base), lane, mask, block: 0 });
            mask
        });
        let d2 = Coords::of(a.z).d[1];
        let keys =
            parts_of(f, &self.key_parts, |f, wide| operand(f, a.operands.k, a.dtype, products.key_tile(wide), d2));
        let scores = products.scores(f, query, &keys);
        f.em.set(a.operands.raw, scores);
        let scores = f.em.value(&mut f.b, a.operands.score);
        masks[0].map_or(scores, |m| f.b.select(m, scores, lowest))
    }
    /// What the loop carries, with a further block of keys: the maximum, the sum of weights, and sums of values.
    fn add_block(&self, f: &mut Frame, scores: Value, now: &[Value], [zero, lowest]: [Value; 2]) -> Vec<Value> {
        let (a, products) = (self.a, &self.a.products);
        let (b, axis) = (&mut f.b, products.key_axis());
        let maximum = b.reduce(R::Max, scores, axis);
        let maximum = b.expand_dims(maximum, axis);
        let maximum = b.binary(B::Max, now[0], maximum);
        // Where all keys so far are masked, the maximum is minus infinity, which must not be subtracted from itself.
        let nothing = b.cmp(CmpOp::Eq, maximum, lowest);
        let subtracted = b.select(nothing, zero, maximum);
        let weights = b.binary(B::Sub, scores, subtracted);
        let weights = exponential(b, weights, a.dtype);
        let keep = b.binary(B::Sub, now[0], subtracted);
        let keep = exponential(b, keep, a.dtype);
        let sum = b.reduce(R::Sum, weights, axis);
        let sum = b.expand_dims(sum, axis);
        let kept = b.binary(B::Mul, now[1], keep);
        let sum = b.binary(B::Add, kept, sum);
        let weights = b.cast(weights, types::stored(a.dtype));
        let (keys, t2) = (a.tiles.keys, Coords::of(a.z).t[1]);
        let values = parts_of(f, &self.value_parts, |f, wide| operand(f, a.operands.v, a.dtype, [keys, wide], t2));
        let mut next = vec![maximum, sum];
        for (values, now) in values.into_iter().zip(&now[2..]) {
            let acc = f.b.binary(B::Mul, *now, keep);
            next.push(products.weighted(f, weights, values, acc));
        }
        next
    }
    /// The epilogue, and the stores of its results, for each part of the values' columns.
    fn finish(&self, f: &mut Frame, sums: &Sums) {
        let (a, e) = (self.a, Coords::of(self.a.z).e);
        let mut values = sums.values.iter();
        let mut stores: Vec<&Store> = a.scene.stores.iter().collect();
        parts_of(f, &self.value_parts, |f, _| {
            let values = values.next().copied().unwrap_or(sums.maximum);
            for &(node, sum) in &a.sums {
                let value = match sum {
                    Sum::Mean => quotient(f, values, sums.weights, a.fully_masked),
                    Sum::LogSumExp => log_sum_exp(&mut f.b, sums.maximum, sums.weights),
                    Sum::Slice(i) => [values, sums.maximum, sums.weights][i],
                };
                f.em.set(node, value);
            }
            stores.iter().for_each(|st| f.store(st));
            // What all columns share is stored once.
            stores.retain(|st| st.at.uses(e));
        });
    }
}

/// Exponentials, which are weights of operands of this dtype.
fn exponential(b: &mut Builder, x: Value, dtype: DType) -> Value {
    if !matches!(dtype, DType::F16 | DType::Bf16) {
        return b.unary(U::Exp, x);
    }
    // Weights are rounded to half types.
    let unit = math::float(b, Elem::F32, LOG2_E);
    let x = b.binary(B::Mul, x, unit);
    b.unary(U::Exp2Approx, x)
}

/// A part of a coordinate that is cut into powers of two: its lanes, and how many they are.
struct Part {
    id: CoordId,
    lanes: Lanes,
    wide: usize,
}

fn in_parts(f: &mut Frame, whole: Cut) -> Vec<Part> {
    let mut offset = 0;
    let part = |wide| {
        let lanes = f.lanes_from(Cut { block: wide, ..whole }, offset);
        offset += wide;
        Part { id: whole.id, lanes, wide }
    };
    attention::parts(whole.extent).into_iter().map(part).collect()
}

/// What `emit` gives where the coordinate is each of its parts.
fn parts_of<T>(f: &mut Frame, parts: &[Part], mut emit: impl FnMut(&mut Frame, usize) -> T) -> Vec<T> {
    let one = |part: &Part| {
        f.em.coords.insert(part.id, part.lanes);
        // What depends on the coordinate has another value in the next part.
        f.em.enter();
        let value = emit(f, part.wide);
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
struct Products {
    single_query: bool,
    queries: usize,
    keys: usize,
    precision: DotPrecision,
}

impl Products {
    /// The axis of the scores along which keys lie.
    fn key_axis(&self) -> usize {
        usize::from(!self.single_query)
    }
    /// The axis of the tile of keys along which a key lies.
    fn depth_axis(&self) -> usize {
        usize::from(self.single_query)
    }
    /// The shape of a tile of this many columns of the keys.
    fn key_tile(&self, wide: usize) -> [usize; 2] {
        if self.single_query { [self.keys, wide] } else { [wide, self.keys] }
    }
    /// The scores: the sum over parts of the columns.
    fn scores(&self, f: &mut Frame, query: &[Value], keys: &[Value]) -> Value {
        let zero = math::float(&mut f.b, Elem::F32, 0.0);
        let none = f.b.splat(zero, &if self.single_query { [self.keys, 1] } else { [self.queries, self.keys] });
        query.iter().zip(keys).fold(none, |sum, (&query, &keys)| match self.single_query {
            true => {
                let more = row_sums(f, query, keys, 1);
                if sum == none { more } else { f.b.binary(B::Add, sum, more) }
            }
            false => f.b.dot(query, keys, sum, self.precision),
        })
    }
    fn weighted(&self, f: &mut Frame, weights: Value, values: Value, acc: Value) -> Value {
        if self.single_query {
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
