//! Flash attention by warpgroups, from `sm_90` on: tiles of queries, keys and values through tensor maps, both matmuls
//! by `wgmma`.
//!
//! Takes: an attention of half types whose operands are strided arrays. Gives: the block program of a tile of queries,
//! `for keys { load; dot; softmax; load; dot }`, which the passes of the block IR make persistent and warp-specialised
//! ([`kiln_block::passes::warpgroup`]); or `None` if an operand is computed, or a pass refuses.
//!
//! Operands of the scores (biases, masks) come as tiles too, where tensor maps describe them and shared memory has room
//! ([`score_tiles`]); others are read by address.
//!
//! Where a mask depends on data, a kernel before this one finds the blocks of keys that it leaves
//! ([`crate::attention::block_mask`]).
//!
//! Where tiles are few, keys are split into slices, which a second step joins, as for warps. The queries of a group of
//! heads that share their keys are the rows of one tile where they fit; a producer then needs bounds that rise or fall
//! along the queries ([`packed_ends`]).
//!
//! Tiles are taken head by head within groups of heads whose keys and values fit the L2 cache together, those with most
//! keys first, so that short ones fill what long ones leave.
use crate::attention::block_mask::Mask;
use crate::attention::program::{
    Coords, Operands, Sum, bounds, indices, log_sum_exp, of_block, operands, part_id, results, slice, start, sums,
    trend,
};
pub use crate::attention::schedule::RING;
use crate::attention::{schedule, score_tiles};
use crate::emit::emitter::Lanes;
use crate::emit::frame::{Frame, loads, looped, open_bare};
use crate::emit::math;
use crate::error::LowerError;
use crate::matmul;
use crate::matmul::wgmma::lanes;
use crate::matmul::wgmma::strided::Strided;
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{Dag, NodeId, NodeOp, Scene};
use crate::scalar::expr::{CoordId, Expr};
use crate::scalar::key_range::{key_range, masked_range};
use crate::scalar::resolve::{Body, MatmulSource, Resolver};
use crate::scalar::scores::{Causal, Sizes, mask_dtype, masked_score};
use crate::scalar::types;
use crate::schedule::tile::Cut;
use crate::steps::Emitted;
use kiln_block::passes::split;
use kiln_block::passes::warpgroup::roles::back_to_back_dots::{self, WarpRoles};
use kiln_block::passes::warpgroup::{Launch, persistent};
use kiln_block::{
    BinaryOp as B, BlockProgram, Builder, CmpOp, DotPrecision, Elem, Op as BlockOp, ReduceOp as R, Type, UnaryOp as U,
    Value,
};
use kiln_graph::{BinaryOp, FullyMasked, Op, Scalar, ValueId};
use kiln_plan::attention::{self, Tiles, Warpgroups};
use kiln_plan::exec::{Slot, Work};
use kiln_plan::matmul_schedule::{MatmulSchedule, TiledAttention};
use kiln_plan::{Hardware, Step};
use std::f64::consts::LOG2_E;

/// Columns into which weights are summed in the loop, and which are summed after it: those that the lanes of a warp
/// hold next to each other, so that no lane needs another's sum.
const PARTS: usize = 8;

/// Scratch buffers of the sums of slices, which are the first ones: as [`results`] stores them.
const SLICE_SUMS: u32 = 3;

/// An operand as a strided array: what it reads, its coordinates along rows and columns, and rows of a tile.
struct Operand {
    array: Strided,
    map: Value,
    elem: Elem,
    rows: usize,
    columns: usize,
}

/// What warpgroups need, as an error message.
pub const NEEDS: &str = "tiles in shared memory need operands of half types that are strided arrays with rows of multiples of 16 bytes, and \
     room for them";

/// `None` where warpgroups do not apply.
pub fn lower(
    kernel: &Lowering,
    v: ValueId,
    z: &Sizes,
    (sizes, shape): (&attention::Sizes, Warpgroups),
    asked: &TiledAttention,
    machine: &Hardware,
) -> Result<Option<Emitted>, LowerError> {
    let processors = machine.units.multiprocessors;
    let crew =
        WarpRoles { consumers: shape.consumers, left: shape.left, right: RING, columns: Some(z.e), depth: Some(z.d) };
    let mut tiles = usize::MAX;
    loop {
        let found = plain(kernel, v, z, (sizes, shape), asked.block_mask, tiles)?;
        let Some(plain) = found else { return Ok(None) };
        let Work::Block { code, mut args } = plain.work else { return Ok(None) };
        let most = code.instances().min(processors);
        let blocks = asked.persist.unwrap_or(most);
        if blocks > most {
            let step = Step::Persist(blocks);
            return Err(kernel.unsupported(format!("`{step}` does not fit: at most {most} blocks have tiles")));
        }
        let made = TiledAttention {
            persist: Some(blocks),
            block_mask: !plain.before.steps.is_empty(),
            ..schedule::of_warpgroups(&shape)
        };
        let dynamic = code.instances() > blocks;
        if dynamic {
            args.push(Slot::Counter);
        }
        let launch = Launch { blocks, cluster: 1, group: 1, axes: None, dynamic };
        let code = persistent::run(&split::run(&code), launch)
            .and_then(|code| back_to_back_dots::run(&code, Some(crew), machine));
        match (code, plain.tiles.checked_sub(1)) {
            (Ok(code), _) => {
                let made = Some(MatmulSchedule::Attention(made));
                let step = Emitted { matmul_schedule: made, ..Emitted::step(Work::Block { code, args }) };
                return Ok(Some(plain.before.then(step)));
            }
            // Shared memory may have room for fewer tiles.
            (Err(_), Some(fewer)) => tiles = fewer,
            (Err(_), None) => return Ok(None),
        }
    }
}

/// The program of one tile per instance.
struct Plain {
    /// What runs before it.
    before: Emitted,
    work: Work<BlockProgram>,
    /// How many operands of the scores come as tiles.
    tiles: usize,
}

/// Whether a kernel before the attention may look for the blocks of keys that its mask leaves.
pub fn finds_keys(
    kernel: &Lowering,
    v: ValueId,
    z: &Sizes,
    sizes: &attention::Sizes,
    machine: &Hardware,
) -> Result<bool, LowerError> {
    let mut r = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body }.resolver();
    let packed = sizes.packed > 1;
    let (at, rows_of) = (indices(z, packed), in_rows(z, packed));
    let Operands { raw, score, .. } = operands(&mut r, v, z, &at, Causal::Comparison)?;
    let (score, _) = without_scale(&mut r.dag, score, raw);
    let mask = Mask::of(&mut r.dag, score, mask_dtype(kernel.graph, v), &rows_of, Warpgroups::ROWS, Slot::Scratch(0));
    Ok(mask.is_some_and(|mask| sizes.finds_keys(mask.heads(), machine)))
}

/// Sizes where, packed, the rows of all heads of a group are those of one.
fn in_rows(z: &Sizes, packed: bool) -> Sizes {
    let (group, s) = if packed { (1, z.group * z.s) } else { (z.group, z.s) };
    Sizes { batch: z.batch.clone(), group, s, ..*z }
}

/// The program of one tile per instance; at most so many operands of its scores come as tiles.
fn plain(
    kernel: &Lowering,
    v: ValueId,
    z: &Sizes,
    (sizes, shape): (&attention::Sizes, Warpgroups),
    block_mask: bool,
    most: usize,
) -> Result<Option<Plain>, LowerError> {
    let g = kernel.graph;
    let Op::Attention { fully_masked, .. } = *g.op(v) else { return Err(kernel.unsupported("not attention")) };
    let dtype = matmul::operand_dtype(kernel, v);
    let Coords { s, e, t: [t1, t2], d: [d1, d2], .. } = Coords::of(z);
    let packed = sizes.packed > 1;
    let at = indices(z, packed);
    let parts = shape.parts;
    let rows_of = in_rows(z, packed);
    let (group, queries) = (rows_of.group, rows_of.s);
    let mut r = Body { matmul: Some((v, MatmulSource::Node)), ..kernel.body }.resolver();
    let stores = results(kernel, v, z, &at, parts, &mut r)?;
    let mut scene = Scene { dag: r.dag.clone(), stores };
    let sums = sums(kernel, &scene, parts)?;

    let Operands { q, k, v: w, raw, score, sink, mut ends } = operands(&mut r, v, z, &at, Causal::Comparison)?;
    let (score, scale) = without_scale(&mut r.dag, score, raw);
    let far = is_far(&r.dag, score, t1);
    let tiles = Tiles { queries: shape.rows(), keys: shape.keys, warps: 4 * shape.consumers, part: shape.part, parts };
    // Where the mask depends on data: the kernel that finds the blocks of keys that it leaves, and these.
    let mut before = Emitted::default();
    let mut found = None;
    let slot = Slot::Scratch(if parts > 1 { SLICE_SUMS } else { 0 });
    if block_mask && let Some(mask) = Mask::of(&mut r.dag, score, mask_dtype(g, v), &rows_of, shape.rows(), slot) {
        let name = format!("{}_keys", kernel.name);
        if mask.attends {
            // Rows without a key between these are found.
            ends = masked_range(&mut r.dag, score, t1, z.t, mask_dtype(g, v).mask_limit());
        }
        before.steps.push(mask.program(&name, &r.dag, &rows_of, &tiles, ends, kernel.machine)?);
        before.scratch.push(mask.scratch());
        ends = [None; 2];
        let positions = mask.positions(&mut r.dag);
        found = Some((mask, positions));
    } else if block_mask {
        let step = Step::BlockMask;
        return Err(kernel.unsupported(format!(
            "`{step}` does not fit: no mask of the scores depends on data, or none that can be skipped"
        )));
    } else if packed {
        ends = packed_ends(&mut r, v, z, raw)?;
    }
    scene.dag = r.dag;

    let extents = [&z.batch[..], &[z.heads, group]].concat();
    let bytes = dtype.bytes();
    let array = |node: NodeId, rows: (CoordId, usize), columns: (CoordId, usize)| match &scene.dag.node(node) {
        n if n.dtype != dtype => None,
        n => match &n.op {
            NodeOp::Load { slot, at, guards } if guards.is_empty() => {
                Strided::array(*slot, at, &extents, [rows, columns], bytes)
            }
            _ => None,
        },
    };
    let (Some(q), Some(k), Some(w)) =
        (array(q, (s, queries), (d1, z.d)), array(k, (t1, z.t), (d2, z.d)), array(w, (t2, z.t), (e, z.e)))
    else {
        return Ok(None);
    };

    let mut beside = score_tiles::of(&scene.dag, score, &extents, [(s, queries), (t1, z.t)]);
    beside.truncate(most);

    let rows = shape.rows();
    let [wide_d, wide_e] = [z.d, z.e].map(|n| n.next_power_of_two().max(128 / bytes));
    let cut = |id, extent, block, axis| Cut { id, extent, block, axis };
    let cuts = [cut(s, queries, rows, 0), cut(e, z.e, wide_e, 1)];
    let outputs: Vec<Option<Strided>> =
        scene.stores.iter().map(|st| Strided::store(st, &extents, (s, queries), (e, z.e))).collect();
    let mut read = [scene.roots(), ends.into_iter().chain([sink]).flatten().collect()].concat();
    read.extend(found.iter().flat_map(|(_, positions)| positions.concat()));
    let mut used = loads(&scene.dag, &read, |_| false);
    used.extend(score_tiles::others(&scene.dag, score, &beside));
    used.extend(scene.stores.iter().zip(&outputs).filter(|o| o.1.is_none()).map(|(st, _)| (st.slot, st.dtype, false)));
    let mut f = open_bare(kernel.name, &scene, &used, (&cuts, 0), kernel.machine);
    let elem = types::stored(dtype);
    let mut operand = |name: &str, array: Strided, elem: Elem, [rows, columns]: [usize; 2]| {
        let map = f.descriptor(name, array.slot, array.map(elem, [rows, columns]), true);
        Operand { array, map, elem, rows, columns }
    };
    let q = operand("q", q, elem, [rows, wide_d]);
    let k = operand("k", k, elem, [shape.keys, wide_d]);
    let w = operand("v", w, elem, [shape.keys, wide_e]);
    let beside: Vec<(NodeId, Operand)> = (beside.into_iter().enumerate())
        .map(|(i, (n, a))| {
            let elem = types::stored(scene.dag.node(n).dtype);
            (n, operand(&format!("s{i}"), a, elem, [rows, shape.keys]))
        })
        .collect();
    let maps: Vec<Option<Value>> = (outputs.iter().zip(&scene.stores).enumerate())
        .map(|(i, (out, store))| {
            let out = out.as_ref()?;
            let ty = out.map(types::stored(store.dtype), [rows, wide_e]);
            Some(f.descriptor(&format!("o{i}"), out.slot, ty, false))
        })
        .collect();

    // ---- The tile's place ----
    let all: usize = extents.iter().product();
    let each = z.t * (z.d + z.e) * bytes;
    // Query heads that share keys are neighbours.
    let most = (kernel.machine.units.l2 / 2 / each.max(1)).max(1) * group;
    let together = (1..=all.min(most)).rev().find(|n| all.is_multiple_of(*n)).unwrap_or(1);
    let count = queries.div_ceil(rows);
    f.b.set_warps(4 * shape.consumers);
    let [within, tile, outer] = [0, 1, 2].map(|axis| f.b.program_id(axis));
    let (per, last) = (f.b.i32(together as i64), f.b.i32(count as i64 - 1));
    f.b.set_grid([together * parts, count, all / together]);
    let mut within = within;
    if parts > 1 {
        // Slices of a head are neighbours.
        let kernel = f.b.i32(parts as i64);
        let part = f.b.binary(B::Rem, within, kernel);
        within = f.b.binary(B::Div, within, kernel);
        let part = f.b.cast(part, f.em.index);
        f.part = Some(part);
        f.em.coords.insert(part_id(z), Lanes { base: f.part, ..Lanes::default() });
    }
    // Later queries attend to more keys where a mask is causal: those come first.
    let tile = f.b.binary(B::Sub, last, tile);
    let mut number = f.b.binary(B::Mul, outer, per);
    number = f.b.binary(B::Add, number, within);
    let mut batch = vec![];
    for &n in extents.iter().rev() {
        let n = f.b.i32(n as i64);
        batch.push(f.b.binary(B::Rem, number, n));
        number = f.b.binary(B::Div, number, n);
    }
    batch.reverse();
    let size = f.b.i32(rows as i64);
    let first = f.b.binary(B::Mul, tile, size);
    for (i, position) in batch.iter().enumerate() {
        let base = f.b.cast(*position, f.em.index);
        f.em.coords.insert(i as CoordId, Lanes::uniform(base));
    }
    let zero = f.b.i32(0);
    for (cut, first) in cuts.into_iter().zip([first, zero]) {
        let lanes = lanes(&mut f, cut, first);
        f.em.coords.insert(cut.id, lanes);
    }

    // ---- The loop over keys ----
    let load_at = |f: &mut Frame, o: &Operand, row: Value, column: Value| {
        let args = [&[o.map], &o.array.starts(&mut f.b, &batch, row, [column; 2])[..]].concat();
        f.b.inst(BlockOp::TileLoad, &args, &[Type::block(o.elem, [o.rows, o.columns])], vec![])[0]
    };
    let load = |f: &mut Frame, o: &Operand, row: Value| {
        let zero = f.b.i32(0);
        load_at(f, o, row, zero)
    };
    let query = load(&mut f, &q, first);
    let of_keys = cut(t1, z.t, shape.keys, 1);
    let lane = f.iota(of_keys);
    let bounded = found.is_some() || ends.iter().any(Option::is_some);
    // A tile without keys takes the block beyond the last one; where blocks are found, the last one, of which no key is
    // left.
    let whole = z.t.is_multiple_of(shape.keys);
    let beyond =
        if found.is_some() && parts == 1 && whole { z.t - shape.keys } else { z.t.next_multiple_of(shape.keys) };
    let ragged = ends.iter().any(Option::is_some) || (found.is_some() && parts > 1) || !whole;
    let none = math::float(&mut f.b, Elem::F32, 0.0);
    let lowest = math::float(&mut f.b, Elem::F32, f64::NEG_INFINITY);
    let mut bounding = cuts[0];
    if packed {
        bounding = cut(packed_ids(z)[0], z.s, z.s, 0);
        f.em.coords.insert(bounding.id, Lanes::default());
    }
    let [start_at, end_at] =
        [(ends[0], R::Min), (ends[1], R::Max)].map(|(n, by)| Some(of_block(&mut f, n?, by, &bounding)));
    let [most, sum] = start(&mut f, sink, scale, [rows, PARTS]);
    let start = [most, sum, f.b.splat(none, &[rows, wide_e])];
    let [mut lo, mut hi, step] = bounds(&mut f, z, &tiles, [start_at, end_at], None);
    // From where to where no score is masked.
    let mut inside = None;
    if let Some((mask, positions)) = &found {
        let [start, end, from, to] = mask.of_tile(&mut f, tile, shape.keys, positions);
        [lo, hi] = slice(&mut f, &tiles, [start, end], [true; 2]);
        inside = Some((&mask.conditions, [from, to]));
    }
    // One iteration at least: where no query attends to a key, of zeros, or of keys that are masked.
    if bounded {
        let beyond = f.b.i32(beyond as i64);
        let empty = f.b.cmp(CmpOp::Le, hi, lo);
        lo = f.b.select(empty, beyond, lo);
        // It is between these anyway; index arithmetic in 32 bits relies on it.
        let none = f.b.i32(0);
        lo = f.b.binary(B::Min, lo, beyond);
        lo = f.b.binary(B::Max, lo, none);
    }
    let one = f.b.i32(1);
    let least = f.b.binary(B::Add, lo, one);
    hi = f.b.binary(B::Max, hi, least);
    let out = looped(&mut f, [lo, hi, step], &start, |f, index, now| {
        let base = f.b.cast(index, f.em.index);
        let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, z.t));
        f.em.coords.insert(t1, Lanes { base: Some(base), lane, mask, block: 0 });
        let keys = load(f, &k, index);
        let keys = f.b.permute(keys, &[1, 0]);
        let nothing = f.b.splat(none, &[rows, shape.keys]);
        let scores = f.b.dot(query, keys, nothing, DotPrecision::Exact);
        f.em.set(raw, scores);
        for (node, o) in &beside {
            let tile = load_at(f, o, first, index);
            let tile = f.b.cast(tile, types::held(scene.dag.node(*node).dtype));
            f.em.set(*node, tile);
        }
        if let Some((conditions, [from, to])) = inside {
            let (begun, goes_on) = (f.b.cmp(CmpOp::Ge, index, from), f.b.cmp(CmpOp::Lt, index, to));
            let all = f.b.binary(B::And, begun, goes_on);
            let some = f.b.unary(U::Not, all);
            for &(condition, value) in conditions {
                let c = f.em.value(&mut f.b, condition);
                let (op, known) = if value { (B::Or, all) } else { (B::And, some) };
                let known = f.b.splat(known, &f.b.shape(c));
                let c = f.b.binary(op, known, c);
                f.em.set(condition, c);
            }
        }
        let mut x = f.em.value(&mut f.b, score);
        if let Some(m) = mask {
            x = f.b.select(m, x, lowest);
        }
        let b = &mut f.b;
        let unit = math::float(b, Elem::F32, scale * LOG2_E);
        let most = b.reduce(R::Max, x, 1);
        let most = b.expand_dims(most, 1);
        let most = b.binary(B::Max, now[0], most);
        // Where all keys so far are masked, the maximum is minus infinity, which must not be subtracted from itself.
        let empty = b.cmp(CmpOp::Eq, most, lowest);
        let safe = b.select(empty, none, most);
        let less = b.binary(B::Mul, safe, unit);
        let less = b.unary(U::Neg, less);
        // 2^(x·unit - most·unit), the argument by one FMA where no product overflows.
        let power = |b: &mut Builder, x: Value| {
            if far {
                let x = b.binary(B::Sub, x, safe);
                let x = b.binary(B::Mul, x, unit);
                return b.unary(U::Exp2Approx, x);
            }
            let x = b.binary(B::Mul, x, unit);
            let x = b.binary(B::Add, x, less);
            b.unary(U::Exp2Approx, x)
        };
        let p = power(b, x);
        let keep = power(b, now[0]);
        let sum = parts_summed(b, p);
        let kept = b.binary(B::Mul, now[1], keep);
        let sum = b.binary(B::Add, kept, sum);
        let p = b.cast(p, elem);
        let acc = b.binary(B::Mul, now[2], keep);
        let values = load(f, &w, index);
        let acc = f.b.dot(p, values, acc, DotPrecision::Exact);
        vec![most, sum, acc]
    });

    // ---- The epilogue ----
    let b = &mut f.b;
    let mut weights = b.reduce(R::Sum, out[1], 1);
    weights = b.expand_dims(weights, 1);
    let unit = math::float(b, Elem::F32, scale);
    let most = if scale == 1.0 { out[0] } else { b.binary(B::Mul, out[0], unit) };
    for (node, sum) in sums {
        let b = &mut f.b;
        let value = match sum {
            Sum::Slice(i) => [out[2], most, weights][i],
            Sum::LogSumExp => log_sum_exp(b, most, weights),
            Sum::Mean => {
                let one = math::float(b, Elem::F32, 1.0);
                let mut weights = weights;
                if fully_masked != FullyMasked::Nan {
                    let empty = b.cmp(CmpOp::Eq, weights, none);
                    weights = b.select(empty, one, weights);
                }
                let share = b.binary(B::Div, one, weights);
                b.binary(B::Mul, out[2], share)
            }
        };
        f.em.set(node, value);
    }
    let single: Vec<CoordId> = cuts.iter().filter(|c| c.extent == 1).map(|c| c.id).collect();
    for ((store, out), map) in scene.stores.iter().zip(&outputs).zip(maps) {
        let (Some(out), Some(map)) = (out, map) else {
            f.store_within(store, &single);
            continue;
        };
        let v = f.em.value(&mut f.b, store.value);
        let v = f.b.cast(v, types::stored(store.dtype));
        let v = f.b.broadcast_to(v, &[rows, wide_e]);
        let args = [&[map, v], &out.starts(&mut f.b, &batch, first, [zero; 2])[..]].concat();
        f.b.inst(BlockOp::TileStore, &args, &[], vec![]);
    }
    Ok(Some(Plain { before, work: f.finish()?, tiles: beside.len() }))
}

/// Coordinates of a packed row: its query, and its head within the group.
fn packed_ids(z: &Sizes) -> [CoordId; 2] {
    [11, 12].map(|i| z.batch.len() as CoordId + i)
}

/// Between which keys the mask leaves any, by the query of a packed row. A tile has the rows of all heads of a group,
/// and a producer does not look through them: bounds that differ by head, or do not rise or fall along the queries, are
/// not used.
fn packed_ends(r: &mut Resolver, v: ValueId, z: &Sizes, raw: NodeId) -> Result<[Option<NodeId>; 2], LowerError> {
    let [query, head] = packed_ids(z);
    let key = Coords::of(z).t[0];
    let (all, nb) = (indices(z, false), z.batch.len());
    let heads = all[nb].clone().scale(z.group as i64).plus(&Expr::coord(head, z.group));
    let at = [&all[..nb], &[heads, Expr::coord(query, z.s), Expr::coord(key, z.t)]].concat();
    let score = masked_score(r, raw, v, &at, Causal::Comparison)?;
    let ends = key_range(&mut r.dag, score, key, z.t);
    let depends = r.dag.depends(&[]);
    Ok(ends.map(|n| {
        let used = |n: &NodeId, id| depends[*n as usize].contains(&id);
        n.filter(|n| !used(n, head) && (!used(n, query) || trend(&r.dag, *n, query).is_some()))
    }))
}

/// The sums of every [`PARTS`]-th column.
fn parts_summed(b: &mut Builder, x: Value) -> Value {
    let columns = b.shape(x)[1];
    let first = b.part(x, 1, 0, PARTS);
    (PARTS..columns).step_by(PARTS).fold(first, |sum, at| {
        let part = b.part(x, 1, at, PARTS);
        b.binary(B::Add, sum, part)
    })
}

/// Whether finite scores may be so large that their product with log2 e overflows: where a tensor over the keys takes
/// part, or a large number, as in masks of the least number of a type.
fn is_far(dag: &Dag, score: NodeId, key: CoordId) -> bool {
    const LARGE: f64 = 1e37;
    dag.reach_until(&[score], |_| false).into_iter().any(|n| match &dag.node(n).op {
        NodeOp::Load { at, .. } => dag.node(n).dtype.is_float() && at.uses(key),
        NodeOp::Const(Scalar::Float(x)) => x.is_finite() && x.abs() > LARGE,
        _ => false,
    })
}

/// The score and a positive number by which it is to be multiplied: a scale that is applied to all scores moves into
/// the exponent, past masks.
fn without_scale(dag: &mut Dag, score: NodeId, raw: NodeId) -> (NodeId, f64) {
    let number = |dag: &Dag, n: NodeId| match dag.node(n).op {
        NodeOp::Const(Scalar::Float(x)) => Some(x),
        _ => None,
    };
    match dag.node(score).op.clone() {
        NodeOp::Binary(BinaryOp::Mul, x, by) if x == raw => match number(dag, by).filter(|c| *c > 0.0 && c.is_finite())
        {
            Some(c) => (x, c),
            None => (score, 1.0),
        },
        NodeOp::Select(mask, x, other) if number(dag, other) == Some(f64::NEG_INFINITY) => {
            let (inner, scale) = without_scale(dag, x, raw);
            let dtype = dag.node(score).dtype;
            (dag.add(NodeOp::Select(mask, inner, other), dtype), scale)
        }
        _ => (score, 1.0),
    }
}
