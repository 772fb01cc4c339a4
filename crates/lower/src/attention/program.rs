//! What the programs of attention share: their coordinates and operands, which keys an instance visits, and what they
//! store.
use crate::emit::emitter::Lanes;
use crate::emit::frame::Frame;
use crate::emit::{launch, math};
use crate::error::LowerError;
use crate::matmul::{self, precision};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{Dag, NodeId, NodeOp, Scene, Store};
use crate::scalar::epilogue_map::{self, Positions, accumulators};
use crate::scalar::expr::{CoordId, Expr, linear};
use crate::scalar::key_range::key_range;
use crate::scalar::resolve::{Body, LOG_SUM_EXP, MatmulSource, Resolver};
use crate::scalar::scores::{self, Causal, Sizes, masked_score};
use crate::schedule::tile::Cut;
use crate::steps::Emitted;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Elem, ReduceOp as R, UnaryOp as U, Value};
use kiln_graph::{BinaryOp, DType, Graph, Op, Type, ValueId};
use kiln_plan::Hardware;
use kiln_plan::attention::{self, Tiles};
use kiln_plan::exec::{Slot, Work};
use std::f64::consts::LOG2_E;

const NOT_PLACED: &str = "attention whose result is not stored element by element";

/// Coordinates of the program: batch…, key head, query of its group, query, column of the values; key as scores have it
/// and as values do; column of queries and keys likewise.
pub struct Coords {
    pub head: CoordId,
    pub group: CoordId,
    pub s: CoordId,
    pub e: CoordId,
    pub t: [CoordId; 2],
    pub d: [CoordId; 2],
}

impl Coords {
    pub fn of(z: &Sizes) -> Coords {
        let id = |i: usize| (z.batch.len() + i) as CoordId;
        Coords { head: id(0), group: id(1), s: id(2), e: id(3), t: [id(4), id(5)], d: [id(6), id(7)] }
    }
}

pub fn sizes_of(kernel: &Lowering, v: ValueId) -> Result<attention::Sizes, LowerError> {
    let Op::Attention { causal, .. } = *kernel.graph.op(v) else { return Err(kernel.unsupported("not attention")) };
    let [q, k, w] = [0, 1, 2].map(|i| kernel.graph.shape(kernel.graph.args(v)[i]));
    let sizes = attention::Sizes::of(matmul::operand_dtype(kernel, v), [q, k, w], causal);
    Ok(attention::Sizes { precision: precision(kernel, v), ..sizes })
}

/// The steps that give the sums of slices of the keys in the first scratch buffers, with the one that joins these.
pub fn joined(
    kernel: &Lowering,
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
    for anchor in std::iter::once(v).chain(kernel.second_output.map(|d| d.0)) {
        // A step for what is as large as the result, and one for what has a number for each query.
        let outputs = kernel.graph.outputs.iter().enumerate();
        let of_anchor =
            outputs.filter(|(_, out)| kernel.second_output.is_none() || follows(kernel.graph, **out, anchor));
        let (stored, outputs): (Vec<usize>, Vec<ValueId>) = of_anchor.unzip();
        let mut graph = kernel.graph.clone();
        graph.outputs = outputs;
        let name = format!(
            "{}_{}",
            kernel.name,
            if kernel.second_output.is_some_and(|d| d.0 == anchor) { "join_sums" } else { "join" }
        );
        let matmul = Some((anchor, MatmulSource::KeyParts { scratch: 0, count: parts }));
        let body = kernel.with_body(Body { name: &name, graph: &graph, matmul, second_output: None, ..kernel.body });
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
pub fn results(
    kernel: &Lowering,
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
    let body = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body };
    let g = kernel.graph;
    let lse = g.values().find(|v| matches!(g.op(*v), Op::Attention { lse: true, .. }));
    let store = |(i, &out): (usize, &ValueId)| {
        // The log-sum-exp has no columns.
        let rank = if lse.is_some_and(|lse| follows(g, out, lse)) { nb + 3 } else { nb + 4 };
        let of_rank = |ix: &[Expr]| place(ix).into_iter().take(rank).collect::<Vec<Expr>>();
        let placed = epilogue_map::output(&body, i, &dims[..rank], Positions { place: &of_rank, lattice: &[] }, None);
        placed.ok_or_else(|| kernel.unsupported(NOT_PLACED))?.store(r, &at[..rank])
    };
    g.outputs.iter().enumerate().map(store).collect()
}

/// What stores read of an attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sum {
    /// The mean of the values.
    Mean,
    LogSumExp,
    /// Of a slice of the keys: the weighted sums of values, the maximum, and the sum of weights.
    Slice(usize),
}

/// The anchors of the program's stores. `parts`: the number of slices of the keys.
pub fn sums(kernel: &Lowering, scene: &Scene, parts: usize) -> Result<Vec<(NodeId, Sum)>, LowerError> {
    if parts > 1 {
        return Ok(scene.stores.iter().enumerate().map(|(i, s)| (s.value, Sum::Slice(i))).collect());
    }
    let anchors = accumulators(scene, 1 + usize::from(kernel.second_output.is_some()))
        .ok_or_else(|| kernel.unsupported(NOT_PLACED))?;
    let kind = |n: NodeId| match &scene.dag.node(n).op {
        NodeOp::Anchor { at } if at.last().is_some_and(|e| e.constant == LOG_SUM_EXP) => (n, Sum::LogSumExp),
        _ => (n, Sum::Mean),
    };
    Ok(anchors.into_iter().map(kind).collect())
}

/// The logarithm of a sum of exponentials, from the maximum of the exponents and the sum relative to it.
pub fn log_sum_exp(b: &mut Builder, maximum: Value, weights: Value) -> Value {
    let log = b.unary(U::Log, weights);
    let log = b.binary(B::Add, maximum, log);
    let infinity = math::float(b, Elem::F32, f64::INFINITY);
    let infinite = b.cmp(CmpOp::Eq, maximum, infinity);
    b.select(infinite, maximum, log)
}

/// What the program of an attention reads, at the coordinates of [`Coords`].
pub struct Operands {
    pub q: NodeId,
    pub k: NodeId,
    pub v: NodeId,
    /// The product of a query and a key, which the program sets: an anchor at the empty index, which no element of a
    /// value has.
    pub raw: NodeId,
    pub score: NodeId,
    pub sink: Option<NodeId>,
    /// Between which keys the mask leaves any.
    pub ends: [Option<NodeId>; 2],
}

/// `at`: the result's indices, as [`indices`] gives them.
pub fn operands(r: &mut Resolver, v: ValueId, z: &Sizes, at: &[Expr], causal: Causal) -> Result<Operands, LowerError> {
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
pub fn part_id(z: &Sizes) -> CoordId {
    z.batch.len() as CoordId + 8
}

/// What the rows of a tile are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TileRows {
    /// The queries of a head.
    OfHead,
    /// The queries of all heads of a group, which share their keys.
    OfGroup,
}

impl TileRows {
    pub fn of(sizes: &attention::Sizes) -> TileRows {
        if sizes.packed > 1 { TileRows::OfGroup } else { TileRows::OfHead }
    }
    /// Sizes where a query of a group is a row.
    pub fn sizes(self, z: &Sizes) -> Sizes {
        let (group, s) = match self {
            TileRows::OfHead => (z.group, z.s),
            TileRows::OfGroup => (1, z.group * z.s),
        };
        Sizes { batch: z.batch.clone(), group, s, ..*z }
    }
}

/// Indices of the result by the program's coordinates: batch…, key head, query head of its group, query, column.
pub fn indices(z: &Sizes, rows: TileRows) -> Vec<Expr> {
    let dims = [&z.batch[..], &[z.heads, z.group, z.s, z.e]].concat();
    let mut at: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as CoordId, d)).collect();
    if rows == TileRows::OfGroup {
        let row = Expr::coord(Coords::of(z).s, z.group * z.s);
        let group = z.batch.len() + 1;
        (at[group], at[group + 1]) = (row.clone().div(z.s as i64), row.rem(z.s as i64));
    }
    at
}

/// The greatest score `[rows, 1]` and the sum of the weights `[rows, parts]`, a power of two, of queries before the
/// first key: those of the sink, which the first slice of the keys counts. The score is in units of `scale`, a positive
/// number.
pub fn start(f: &mut Frame, sink: Option<NodeId>, scale: f64, [rows, parts]: [usize; 2]) -> [Value; 2] {
    let [zero, lowest] = [0.0, f64::NEG_INFINITY].map(|x| math::float(&mut f.b, Elem::F32, x));
    let Some(sink) = sink else { return [f.b.splat(lowest, &[rows, 1]), f.b.splat(zero, &[rows, parts])] };
    let mut sink = f.em.value(&mut f.b, sink);
    if let Some(part) = f.part {
        let part = f.b.cast(part, Elem::I32);
        let zero = f.b.i32(0);
        let is_first = f.b.cmp(CmpOp::Eq, part, zero);
        sink = f.b.select(is_first, sink, lowest);
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
    let mut maximum = sink;
    if scale != 1.0 {
        // Finite, also when it is multiplied by the scale and by the logarithm of e again.
        let bound = f64::from(f32::MAX) / (2.0 * scale * LOG2_E).max(2.0);
        let [unit, lo, hi] = [1.0 / scale, -bound, bound].map(|x| math::float(&mut f.b, Elem::F32, x));
        maximum = f.b.binary(B::Mul, sink, unit);
        maximum = f.b.binary(B::Min, maximum, hi);
        maximum = f.b.binary(B::Max, maximum, lo);
        maximum = f.b.select(none, lowest, maximum);
    }
    [f.b.broadcast_to(maximum, &[rows, 1]), f.b.broadcast_to(weight, &[rows, parts])]
}

/// The loop over the keys of an instance: first, end, step. `start`, `end`: between which keys the mask leaves any;
/// slices are cut for these, so that few keys are not the work of one slice. `queries`: the queries' coordinate under a
/// causal mask.
pub fn bounds(
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
        let queries = f.b.i32(tiles.queries as i64);
        let end = f.b.binary(B::Add, base, queries);
        hi = f.b.binary(B::Min, hi, end);
    }
    [lo, hi, step]
}

/// The instance's slice of the keys `lo..hi`: of those that a mask leaves where it has bounds, else of [`Tiles::part`]
/// keys.
pub fn slice(f: &mut Frame, tiles: &Tiles, [lo, hi]: [Value; 2], [starts, ends]: [bool; 2]) -> [Value; 2] {
    let Some(part) = f.part else { return [lo, hi] };
    let len = if starts || ends {
        // Blocks of keys for each slice, rounded up.
        let once = (tiles.parts * tiles.keys) as i64;
        let (once, round_up, step) = (f.b.i32(once), f.b.i32(once - 1), f.b.i32(tiles.keys as i64));
        let keys = if starts { f.b.binary(B::Sub, hi, lo) } else { hi };
        let rounded = f.b.binary(B::Add, keys, round_up);
        let blocks = f.b.binary(B::Div, rounded, once);
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

/// The least or greatest of a bound of the keys over the block's queries, as i32. `queries`: their coordinate and how
/// many a block has. Where the bound is known to rise or fall along the queries, it is that of the last or the first
/// one.
pub fn of_block(f: &mut Frame, bound: NodeId, by: R, queries: &Cut) -> Value {
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
        let end = f.em.int(&mut f.b, queries.extent as i64 - 1);
        base = Some(f.b.binary(B::Min, position, end));
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
pub fn reduced(b: &mut Builder, mut v: Value, by: R) -> Value {
    while !b.ty(v).is_scalar() {
        v = b.reduce(by, v, 0);
    }
    v
}

/// How a number changes along a coordinate.
#[derive(Clone, Copy, PartialEq)]
pub enum Trend {
    Rises,
    Falls,
}

/// How an integer changes along a coordinate, weakly; `None` if that is not known, or if its element does not depend on
/// the coordinate alone.
pub fn trend(dag: &Dag, n: NodeId, along: CoordId) -> Option<Trend> {
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
