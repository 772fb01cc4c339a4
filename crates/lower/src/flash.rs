//! Attention on GPUs in one program: a block of queries per instance, keys and values block by block, softmax carried along.
use crate::LowerError;
use crate::Target;
use crate::attention::{Sizes, masked_score};
use crate::dag::{NodeOp, Scene};
use crate::emit::Lanes;
use crate::expr::Expr;
use crate::math;
use crate::placed::{self, the_sums};
use crate::product::looped;
use crate::resolve::{Body, Product as Place};
use crate::rows::Emitted;
use crate::tile::{Cut, Shape, loads, open_with};
use kiln_block::{BinaryOp as B, CmpOp, DotPrecision, Elem, ReduceOp as R, UnaryOp as U};
use kiln_graph::{DType, Op, ValueId};

/// Widest heads that are held in registers.
const WIDEST: usize = 256;

pub fn lower(of: &Body, v: ValueId, z: &Sizes, _target: Target) -> Result<Emitted, LowerError> {
    let g = of.graph;
    let Op::Attention { causal, .. } = *g.op(v) else { return Err(of.unsupported("not attention")) };
    let dtype = g.dtype(v);
    let (wide_d, wide_e) = (z.d.next_power_of_two().max(16), z.e.next_power_of_two().max(16));
    if wide_d > WIDEST || wide_e > WIDEST || dtype == DType::F64 {
        return Err(of.unsupported(format!("attention with heads of {} and {} {dtype}", z.d, z.e)));
    }
    let args = g.args(v);
    // Coordinates: batch…, key head, query of its group, s, e; t as scores have it and as values do; d likewise.
    let dims = [&z.batch[..], &[z.heads, z.group, z.s, z.e]].concat();
    let nb = z.batch.len();
    let id = |i: usize| (nb + i) as u32;
    let (head, group, s, e, t1, t2, d1, d2) = (id(0), id(1), id(2), id(3), id(4), id(5), id(6), id(7));
    let at: Vec<Expr> = dims.iter().enumerate().map(|(i, &d)| Expr::coord(i as u32, d)).collect();
    let place = |ix: &[Expr]| {
        let h = ix[nb].clone();
        let k = z.group as i64;
        let mut all = ix[..nb].to_vec();
        all.extend([h.clone().div(k), h.rem(k), ix[nb + 1].clone(), ix[nb + 2].clone()]);
        all
    };
    let unsolved = || of.unsupported("attention whose result is not stored element by element");
    let body = Body { product: Some((v, Place::Node)), ..*of };
    let placed = placed::outputs(&body, &dims, &place, None).ok_or_else(unsolved)?;
    let mut r = body.resolver();
    let stores = placed.iter().map(|o| o.store(&mut r, &at)).collect::<Result<Vec<_>, _>>()?;
    let mut scene = Scene { dag: r.dag.clone(), stores };
    let result = the_sums(&scene, 1).ok_or_else(unsolved)?[0];

    let q_head = at[nb].clone().scale(z.group as i64).plus(&at[nb + 1]);
    let lead = &at[..nb];
    let [ct1, ct2] = [t1, t2].map(|i| Expr::coord(i, z.t));
    let [cd1, cd2] = [d1, d2].map(|i| Expr::coord(i, z.d));
    let q = r.at(args[0], &[lead, &[q_head.clone(), at[nb + 2].clone(), cd1]].concat(), &[])?;
    let k = r.at(args[1], &[lead, &[at[nb].clone(), ct1.clone(), cd2]].concat(), &[])?;
    let w = r.at(args[2], &[lead, &[at[nb].clone(), ct2, at[nb + 3].clone()]].concat(), &[])?;
    // The raw score stands as an index no value has.
    let raw = r.dag.add(NodeOp::Anchor { at: vec![] }, dtype.compute());
    let score = masked_score(&mut r, raw, v, &[lead, &[q_head, at[nb + 2].clone(), ct1]].concat())?;
    scene.dag = r.dag;

    let block_s = z.s.next_power_of_two().clamp(16, if wide_d.max(wide_e) > 128 { 64 } else { 128 });
    let block_t = z.t.next_power_of_two().clamp(16, 64);
    let cut = |id, extent, block, axis| Cut { id, extent, block, axis };
    let mut cuts: Vec<Cut> = z.batch.iter().enumerate().map(|(i, &d)| Cut::uniform(i as u32, d)).collect();
    cuts.extend([Cut::uniform(head, z.heads), Cut::uniform(group, z.group)]);
    cuts.extend([cut(s, z.s, block_s, 0), cut(e, z.e, wide_e, 1)]);
    let shape = Shape { cuts, rank: 2, parts: 1, warps: (block_s / 16).clamp(1, 8) };
    let mut used = loads(&scene.dag, &[scene.roots(), vec![q, k, w, score]].concat(), |_| false);
    used.extend(scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
    let mut f = open_with(of.name, &scene, &shape, &used);
    for (id, axis) in [(d1, 1), (d2, 0)] {
        let lanes = f.lanes(cut(id, z.d, wide_d, axis), None);
        f.em.coords.insert(id, lanes);
    }
    let (ta, tb) = (cut(t1, z.t, block_t, 1), cut(t2, z.t, block_t, 0));
    let lanes = [f.iota(ta), f.iota(tb)];
    let ragged = !z.t.is_multiple_of(block_t);

    let query = f.em.operand_tile(&mut f.b, q, dtype, &[block_s, wide_d]);
    let zero = math::float(&mut f.b, Elem::F32, 0.0);
    let lowest = math::float(&mut f.b, Elem::F32, f64::NEG_INFINITY);
    let start = [f.b.splat(lowest, &[block_s, 1]), f.b.splat(zero, &[block_s, 1]), f.b.splat(zero, &[block_s, wide_e])];
    let (lo, mut hi, step) = (f.b.i32(0), f.b.i32(z.t as i64), f.b.i32(block_t as i64));
    if causal && let Some(base) = f.em.coords.get(&s).and_then(|l| l.base) {
        // Keys past the block's last query see none of it.
        let base = f.b.cast(base, Elem::I32);
        let own = f.b.i32(block_s as i64);
        let end = f.b.binary(B::Add, base, own);
        hi = f.b.binary(B::Min, hi, end);
    }
    let out = looped(&mut f, [lo, hi, step], &start, |f, index, now| {
        let base = f.b.cast(index, f.em.index);
        let mut masks = vec![];
        for (c, lane) in [ta, tb].iter().zip(lanes) {
            let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, z.t));
            f.em.coords.insert(c.id, Lanes { base: Some(base), lane, mask });
            masks.push(mask);
        }
        let keys = f.em.operand_tile(&mut f.b, k, dtype, &[wide_d, block_t]);
        let none = f.b.splat(zero, &[block_s, block_t]);
        let scores = f.b.dot(query, keys, none, DotPrecision::Exact);
        f.em.set(raw, scores);
        let mut x = f.em.value(&mut f.b, score);
        if let Some(m) = masks[0] {
            x = f.b.select(m, x, lowest);
        }
        let b = &mut f.b;
        let most = b.reduce(R::Max, x, 1);
        let most = b.expand_dims(most, 1);
        let most = b.binary(B::Max, now[0], most);
        // Where nothing has taken part yet, minus infinity must not be subtracted from itself.
        let nothing = b.cmp(CmpOp::Eq, most, lowest);
        let safe = b.select(nothing, zero, most);
        let p = b.binary(B::Sub, x, safe);
        let p = b.unary(U::Exp, p);
        let keep = b.binary(B::Sub, now[0], safe);
        let keep = b.unary(U::Exp, keep);
        let sum = b.reduce(R::Sum, p, 1);
        let sum = b.expand_dims(sum, 1);
        let kept = b.binary(B::Mul, now[1], keep);
        let sum = b.binary(B::Add, kept, sum);
        let p = b.cast(p, math::stored(dtype));
        let values = f.em.operand_tile(&mut f.b, w, dtype, &[block_t, wide_e]);
        let acc = f.b.binary(B::Mul, now[2], keep);
        let acc = f.b.dot(p, values, acc, DotPrecision::Exact);
        vec![most, sum, acc]
    });
    let empty = f.b.cmp(CmpOp::Eq, out[1], zero);
    let one = math::float(&mut f.b, Elem::F32, 1.0);
    let sum = f.b.select(empty, one, out[1]);
    let y = f.b.binary(B::Div, out[2], sum);
    f.em.set(result, y);
    for st in &scene.stores {
        f.store(st);
    }
    Ok(Emitted { scratch: vec![], steps: vec![f.finish()] })
}
