//! Attention: on GPUs by [`flash`]. On the host, scores by a library matmul, softmax in a block step, and a matmul with
//! the values; a bounded number of batches at a time. Queries are processed in bands whose scores stay in the caches;
//! under a causal mask a band has only the keys that its last query attends to.
use crate::dag::{NodeId, NodeOp, Scene, Store};
use crate::expr::{Expr, linear};
use crate::flash;
use crate::host::{Host, Operand, the_matmul};
use crate::resolve::{Body, Resolved, Resolver, kept};
use crate::row::Row;
use crate::rows::{self, Emitted};
use crate::scores::{Sizes, masked_score, sizes};
use crate::space::Space;
use crate::{LowerError, pointwise};
use kiln_graph::{CompareOp, DType, FullyMasked, Op, ReduceOp, Type, ValueId};
use kiln_plan::Hardware;
use kiln_plan::exec::{Matrix, Slot};

/// Most scores in memory at a time.
const SCORES: usize = 1 << 25;

/// Most bands of queries, and fewest queries of a band.
const BANDS: usize = 8;
const BAND: usize = 32;
/// Scores that stay in the caches between steps.
const NEAR: usize = 1 << 18;

pub fn lower(of: &Body, machine: &Hardware) -> Result<Emitted, LowerError> {
    let g = of.graph;
    let v = the_matmul(of, |v| matches!(g.op(v), Op::Attention { .. }))?;
    let z = sizes(of, v);
    if z.t == 0 || z.d == 0 {
        return Err(of.unsupported("attention without keys, or with heads of width 0"));
    }
    if machine.arch.is_gpu() {
        return flash::lower(of, v, &z, machine);
    }
    let args = g.args(v);
    let (dtype, acc) = (g.dtype(v), g.dtype(v).compute());
    let mut h = Host::new(*of);
    let shape = |r: usize, c: usize| [&z.batch[..], &[z.heads, z.group, r, c]].concat();
    let n = z.batch.len();
    let query = |at: &[Expr]| {
        let mut ix = at[..n].to_vec();
        ix.extend([at[n].clone().scale(z.group as i64).plus(&at[n + 1]), at[n + 2].clone(), at[n + 3].clone()]);
        ix
    };
    let q = h.operand(args[0], &shape(z.s, z.d), "q", query)?;
    let keys = |rows: usize, cols: usize| [&z.batch[..], &[z.heads, rows, cols]].concat();
    let k = h.operand(args[1], &keys(z.t, z.d), "k", |at| at.to_vec())?;
    let w = h.operand(args[2], &keys(z.t, z.e), "v", |at| at.to_vec())?;
    let place = h.destination(v)?;
    let out = Operand { slot: place.0, offset: 0, strides: Type::new(dtype, shape(z.s, z.e)).strides() };

    // The first axis of the batch is processed in pieces.
    let bands = bands(&z, matches!(g.op(v), Op::Attention { causal: true, .. }));
    let tallest = bands.iter().map(|b| b.rows).max().unwrap_or(0);
    let first_len = z.batch.first().copied().unwrap_or(1);
    let each = shape(tallest, z.t).iter().product::<usize>() / first_len.max(1);
    let at_once = (SCORES / each.max(1)).clamp(1, first_len.max(1));
    let piece = |count: usize, r: usize, c: usize| {
        let mut p = shape(r, c);
        if n > 0 {
            p[0] = count;
        }
        p
    };
    let raw = h.scratch(acc, &piece(at_once, tallest, z.t));
    let soft = h.scratch(dtype, &piece(at_once, tallest, z.t));
    let starts = (0..first_len).step_by(at_once).flat_map(|first| bands.iter().map(move |band| (first, *band)));
    for (i, (first, band)) in starts.enumerate() {
        let count = at_once.min(first_len - first);
        let lead = |o: &Operand| if n > 0 { o.offset + first * o.strides[0] } else { o.offset };
        let row = |o: &Operand| lead(o) + band.first * o.strides[n + 2];
        let grouped = |o: &Operand, width: usize, flip: bool| {
            let m = o.matrix([band.keys, width]);
            let mut batch_strides = m.batch_strides;
            batch_strides.push(0);
            let (rows, cols) = if flip { (m.cols, m.rows) } else { (m.rows, m.cols) };
            Matrix { slot: m.slot, offset: lead(o), rows, cols, batch_strides }
        };
        let scores = piece(count, band.rows, band.keys);
        let dense = |slot: Slot| {
            let strides = Type::new(dtype, &*scores).strides();
            Operand { slot, offset: 0, strides }.matrix([band.rows, band.keys])
        };
        let a = Matrix { offset: row(&q), ..q.matrix([band.rows, z.d]) };
        h.gemm(dtype, acc, &scores, z.d, [a, grouped(&k, z.d, true), dense(raw)]);
        let name = format!("{}_softmax{i}", of.name);
        let places = Places { raw: (raw, acc), soft: (soft, dtype), first, has_batch: n > 0, row: band.first };
        let step = softmax(of, &name, v, &z, &scores, &places, h.out.scratch.len() as u32)?;
        h.out.scratch.extend(step.scratch);
        h.out.steps.extend(step.steps);
        let c = Matrix { offset: row(&out), ..out.matrix([band.rows, z.e]) };
        h.gemm(dtype, place.1, &piece(count, band.rows, z.e), band.keys, [dense(soft), grouped(&w, z.e, false), c]);
    }
    h.finish(v, place)
}

/// Queries that are processed together, and the number of keys that they may attend to.
#[derive(Clone, Copy)]
struct Band {
    first: usize,
    rows: usize,
    keys: usize,
}

fn bands(z: &Sizes, causal: bool) -> Vec<Band> {
    let scores = z.batch.iter().product::<usize>() * z.heads * z.group * z.s * z.t;
    let most = if causal { BANDS } else { (scores / NEAR).clamp(1, BANDS) };
    let step = z.s.div_ceil(most).next_multiple_of(BAND);
    let band = |first: usize| {
        let end = z.s.min(first + step);
        Band { first, rows: end - first, keys: if causal { z.t.min(end) } else { z.t } }
    };
    (0..z.s).step_by(step.max(1)).map(band).collect()
}

/// Raw scores, probabilities, and the first batch and query of the piece.
struct Places {
    raw: (Slot, DType),
    soft: (Slot, DType),
    first: usize,
    has_batch: bool,
    row: usize,
}

fn softmax(
    of: &Body,
    name: &str,
    v: ValueId,
    z: &Sizes,
    shape: &[usize],
    p: &Places,
    scratch: u32,
) -> Result<Emitted, LowerError> {
    let last = shape.len() - 1;
    let keys = shape[last];
    let row_axes: Vec<bool> = (0..shape.len()).map(|i| i == last).collect();
    let scene = |s: &Space| {
        let mut r = of.resolver();
        r.row = Some(Row::of(s, &s.axes[last], keys));
        let at = linear(&s.axes, shape);
        let score = |r: &mut Resolver, along: &Expr| {
            let at = linear(&[&s.axes[..last], std::slice::from_ref(along)].concat(), shape);
            let raw = r.dag.add(NodeOp::Load { slot: p.raw.0, at, guards: vec![] }, p.raw.1);
            let n = shape.len() - 4;
            let mut ix = s.axes[..n].to_vec();
            if p.has_batch {
                ix[0] = ix[0].clone().shift(p.first as i64);
            }
            ix.extend([
                s.axes[n].clone().scale(z.group as i64).plus(&s.axes[n + 1]),
                s.axes[n + 2].clone().shift(p.row as i64),
                along.clone(),
            ]);
            masked_score(r, raw, v, &ix)
        };
        let own = score(&mut r, &s.axes[last])?;
        let other = if keys == 1 {
            own
        } else {
            let along = r.row_index(&[keys])?.swap_remove(0);
            r.body(&kept(&s.axes[..last], shape, &[]), &[], |r, _| score(r, &along))?
        };
        let value = match of.graph.op(v) {
            Op::Attention { fully_masked: FullyMasked::Nan, .. } => r.softmax(own, other, keys)?,
            _ => safe_softmax(&mut r, own, other, keys)?,
        };
        let store = Store { slot: p.soft.0, dtype: p.soft.1, at, guards: vec![], value };
        Ok(Scene { dag: r.dag, stores: vec![store] })
    };
    if keys == 1 {
        let point = |axes: &[Expr]| scene(&Space::of(axes));
        return Ok(Emitted { scratch: vec![], steps: vec![pointwise::points(name, shape, &point, of.machine)?] });
    }
    rows::emit(name, Space::new(shape, &row_axes), &scene, of.machine, scratch)
}

/// Softmax of a row of scores; zeros where all scores are masked, as PyTorch's `_safe_softmax`.
fn safe_softmax(r: &mut Resolver, own: NodeId, other: NodeId, len: usize) -> Resolved {
    let p = r.softmax(own, other, len)?;
    let dtype = r.dag.node(own).dtype;
    let most = if len == 1 { other } else { r.reduced(ReduceOp::Max, other, len)? };
    let (lowest, zero) = (r.dag.number(dtype, f64::NEG_INFINITY), r.dag.number(dtype, 0.0));
    let nothing = r.dag.add(NodeOp::Compare(CompareOp::Eq, most, lowest), DType::Bool);
    Ok(r.dag.add(NodeOp::Select(nothing, zero, p), dtype))
}
