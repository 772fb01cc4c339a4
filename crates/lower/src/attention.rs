//! Attention: on GPUs by [`flash`]. On the host, scores by a library matmul, softmax in a block step, and a matmul with
//! the values; a bounded number of batches at a time. Queries are processed in bands whose scores stay in the caches;
//! under a causal mask a band has only the keys that its last query attends to. Where a mask ends the keys at a number
//! read from memory ([`key_end`]), a step computes the greatest end of a band, and both matmuls stop there.
use crate::dag::{NodeId, NodeOp, Scene, Store};
use crate::expr::{CoordId, Expr, delinear, linear};
use crate::flash;
use crate::host::{Host, Operand, the_matmul};
use crate::key_end::key_end;
use crate::resolve::{Body, Resolved, Resolver, kept};
use crate::row::Row;
use crate::rows::{self, Emitted};
use crate::scores::{Sizes, masked_score, sizes};
use crate::space::Space;
use crate::{LowerError, pointwise};
use kiln_graph::{BinaryOp, CompareOp, DType, FullyMasked, Op, ReduceOp, Scalar, Type, ValueId};
use kiln_plan::Hardware;
use kiln_plan::exec::{Limited, Matrix, Slot};

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
        let part = Part { first: [first, band.first], size: [count, band.rows] };
        let end = match Ends::of(of, v, &z, &part)? {
            Some(ends) => {
                let slot = h.scratch(DType::I64, &[1]);
                let step = ends.step(of, &format!("{}_keys{i}", of.name), slot, h.out.scratch.len() as u32)?;
                h.out.scratch.extend(step.scratch);
                h.out.steps.extend(step.steps);
                Some(slot)
            }
            None => None,
        };
        h.gemm(dtype, acc, &scores, z.d, [a, grouped(&k, z.d, true), dense(raw)]);
        h.limit(Limited::Columns, end);
        let name = format!("{}_softmax{i}", of.name);
        let places = Places { raw: (raw, acc), soft: (soft, dtype), first, has_batch: n > 0, row: band.first, end };
        let step = softmax(of, &name, v, &z, &scores, &places, h.out.scratch.len() as u32)?;
        h.out.scratch.extend(step.scratch);
        h.out.steps.extend(step.steps);
        let c = Matrix { offset: row(&out), ..out.matrix([band.rows, z.e]) };
        h.gemm(dtype, place.1, &piece(count, band.rows, z.e), band.keys, [dense(soft), grouped(&w, z.e, false), c]);
        h.limit(Limited::Depth, end);
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
    /// The number of raw scores of a row that are computed, if not all are.
    end: Option<Slot>,
}

/// A piece of the scores: the first of the first batch axis and of the queries, and how many of each.
struct Part {
    first: [usize; 2],
    size: [usize; 2],
}

/// The ends of the keys of a piece, where the mask states one for each query.
struct Ends<'a> {
    v: ValueId,
    z: &'a Sizes,
    part: &'a Part,
    /// The axes before the keys; of size 1 where the mask is the same along them.
    shape: Vec<usize>,
}

/// A coordinate of the key that no space has.
const KEY: CoordId = (1 << 20) - 1;

impl Ends<'_> {
    fn of<'a>(of: &Body, v: ValueId, z: &'a Sizes, part: &'a Part) -> Result<Option<Ends<'a>>, LowerError> {
        let Some(&mask) = of.graph.args(v).get(of.graph.op(v).mask_place()) else { return Ok(None) };
        let mut shape = [&z.batch[..], &[z.heads * z.group, part.size[1]]].concat();
        if !z.batch.is_empty() {
            shape[0] = part.size[0];
        }
        let own = of.graph.shape(mask);
        let missing = shape.len() + 1 - own.len();
        for (i, n) in shape.iter_mut().enumerate() {
            if i < missing || own[i - missing] == 1 {
                *n = 1;
            }
        }
        let ends = Ends { v, z, part, shape };
        let anywhere = vec![Expr::default(); ends.shape.len()];
        Ok(ends.at(&mut of.resolver(), &anywhere)?.map(|_| ends))
    }
    /// The end of the keys at an index before the keys.
    fn at(&self, r: &mut Resolver, ix: &[Expr]) -> Result<Option<NodeId>, LowerError> {
        let (mut ix, queries) = (ix.to_vec(), self.z.batch.len() + 1);
        ix[queries] = ix[queries].clone().shift(self.part.first[1] as i64);
        if !self.z.batch.is_empty() {
            ix[0] = ix[0].clone().shift(self.part.first[0] as i64);
        }
        ix.push(Expr::coord(KEY, self.z.t));
        let any = r.dag.number(r.graph.dtype(self.v), 0.0);
        let score = masked_score(r, any, self.v, &ix)?;
        Ok(key_end(&mut r.dag, score, KEY, self.z.t))
    }
    /// The step that stores the greatest end, at least 1: of queries that attend to no key one score is computed, which
    /// is masked.
    fn step(&self, of: &Body, name: &str, slot: Slot, scratch: u32) -> Result<Emitted, LowerError> {
        let len: usize = self.shape.iter().product();
        let end = |r: &mut Resolver, position: &Expr| {
            let end = self.at(r, &delinear(position, &self.shape))?;
            end.ok_or_else(|| r.invariant("a mask ends the keys at one place and not at another"))
        };
        let store = |mut r: Resolver, end: NodeId| {
            let one = r.dag.add(NodeOp::Const(Scalar::Int(1)), DType::I64);
            let value = r.dag.binary(BinaryOp::Max, end, one);
            let store = Store { slot, dtype: DType::I64, at: Expr::default(), guards: vec![], value };
            Ok(Scene { dag: r.dag, stores: vec![store] })
        };
        if len == 1 {
            let point = |_: &[Expr]| {
                let mut r = of.resolver();
                let end = end(&mut r, &Expr::default())?;
                store(r, end)
            };
            return Ok(Emitted { scratch: vec![], steps: vec![pointwise::points(name, &[1], &point, of.machine)?] });
        }
        let scene = |s: &Space| {
            let mut r = of.resolver();
            r.row = Some(Row::of(s, &s.axes[1], len));
            let along = r.row_index(&[len])?.swap_remove(0);
            let own = r.body(&kept(&s.axes[..1], &[1, len], &[]), &[], |r, _| end(r, &along))?;
            let most = r.reduced(ReduceOp::Max, own, len)?;
            store(r, most)
        };
        rows::emit(name, Space::new(&[1, len], &[false, true]), &scene, of.machine, scratch)
    }
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
            let score = masked_score(r, raw, v, &ix)?;
            Ok(match p.end.filter(|_| !masked_by_choice(of, v)) {
                Some(end) => computed_before(r, score, along, end),
                None => score,
            })
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

/// Whether masked scores are replaced, so that raw ones may hold anything.
fn masked_by_choice(of: &Body, v: ValueId) -> bool {
    of.graph.args(v).get(of.graph.op(v).mask_place()).is_some_and(|m| of.graph.dtype(*m) == DType::Bool)
}
/// The score of keys before the end; minus infinity for others, whose raw score is not computed.
fn computed_before(r: &mut Resolver, score: NodeId, key: &Expr, end: Slot) -> NodeId {
    let dtype = r.dag.node(score).dtype;
    let key = r.dag.add(NodeOp::Index(key.clone()), DType::I64);
    let end = r.dag.add(NodeOp::Load { slot: end, at: Expr::default(), guards: vec![] }, DType::I64);
    let before = r.dag.add(NodeOp::Compare(CompareOp::Lt, key, end), DType::Bool);
    let lowest = r.dag.number(dtype, f64::NEG_INFINITY);
    r.dag.add(NodeOp::Select(before, score, lowest), dtype)
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
