//! Attention on the host: a call of its library, which keeps scores in the caches, masks them and skips keys that a
//! causal query does not attend to.
//!
//! A mask that is not in memory is stored by a step. Where it ends the keys at a number read from memory
//! ([`crate::scalar::key_range`]), a step computes the end for each query, and the library stops there.
use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul::host::{Host, Operand};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{NodeId, Scene, Store};
use crate::scalar::expr::{CoordId, Expr, linear};
use crate::scalar::key_range::key_end;
use crate::scalar::resolve::Resolver;
use crate::scalar::scores::{Causal, Sizes, masked_score};
use crate::steps::Emitted;
use kiln_graph::{DType, Op, Type, ValueId};
use kiln_plan::Hardware;
use kiln_plan::exec::{AttentionCall, Mask, Matrix, Sink, Slot, Work, axes};

/// The library's call for attention `v`, with the steps around it.
pub fn lower(kernel: &Lowering, v: ValueId, z: &Sizes, machine: &Hardware) -> Result<Emitted, LowerError> {
    let g = kernel.graph;
    let Op::Attention { scale, causal, fully_masked, .. } = *g.op(v) else {
        return Err(kernel.unsupported("not attention"));
    };
    if g.op(v).is_attention_of_steps() {
        return Err(kernel.unsupported("attention with a score function, or its log-sum-exp, on the host"));
    }
    let args = g.args(v);
    let mut h = Host::new(*kernel);
    let q = h.operand(args[0], &by_query(z, z.s, z.d), "q", |at| one_head_axis(z, at))?;
    let keys = |cols: usize| [&z.batch[..], &[z.heads, z.t, cols]].concat();
    let k = h.operand(args[1], &keys(z.d), "k", |at| at.to_vec())?;
    let w = h.operand(args[2], &keys(z.e), "v", |at| at.to_vec())?;
    let mask = args.get(g.op(v).mask_place()).map(|&m| of_scores(&mut h, z, m, "mask", z.t)).transpose()?;
    let sink = g.op(v).sink_place().map(|i| of_scores(&mut h, z, args[i], "sink", 1)).transpose()?;
    let ends = ends(&mut h, kernel, v, z)?;
    let (slot, out_dtype) = h.destination(v)?;
    let out = Operand { slot, offset: 0, strides: Type::new(out_dtype, by_query(z, z.s, z.e)).strides() };
    let call = AttentionCall {
        dtype: g.dtype(v).matmul(),
        out_dtype,
        batch_invariant: machine.contract.batch_invariant,
        batch: [&z.batch[..], &[z.heads]].concat(),
        group: z.group,
        queries: z.s,
        keys: z.t,
        depth: z.d,
        width: z.e,
        scale: scale.as_f64(),
        causal,
        fully_masked,
        q: grouped(&q, z, z.d),
        k: k.matrix([z.t, z.d]),
        v: w.matrix([z.t, z.e]),
        out: grouped(&out, z, z.e),
        mask: mask.map(|ScoreOperand { dtype, matrix }| Mask { dtype, matrix }),
        ends,
        sink: sink.map(|ScoreOperand { dtype, matrix }| Sink { dtype, matrix }),
    };
    h.out.steps.push(Work::Attention(Box::new(call)));
    h.finish(v, (slot, out_dtype))
}

/// The axes (batch.., key head, query of the group, row, column).
fn by_query(z: &Sizes, rows: usize, columns: usize) -> Vec<usize> {
    [&z.batch[..], &[z.heads, z.group, rows, columns]].concat()
}

/// From (batch.., key head, query of the group, row, column) to those with one axis of heads.
fn one_head_axis(z: &Sizes, at: &[Expr]) -> Vec<Expr> {
    let n = z.batch.len();
    let head = at[n].clone().scale(z.group as i64).plus(&at[n + 1]);
    [&at[..n], &[head, at[n + 2].clone(), at[n + 3].clone()]].concat()
}

/// What broadcasts to the scores, in the type in which [`Host::operand`] stores it.
struct ScoreOperand {
    dtype: DType,
    matrix: Matrix,
}

/// An operand of the scores, with so many columns.
fn of_scores(h: &mut Host, z: &Sizes, x: ValueId, what: &str, columns: usize) -> Result<ScoreOperand, LowerError> {
    let g = h.of.graph;
    let shape = own_axes(g.shape(x), by_query(z, z.s, columns), z);
    let operand = h.operand(x, &shape, what, |at| {
        let ix = one_head_axis(z, at);
        ix[ix.len() - g.shape(x).len()..].to_vec()
    })?;
    Ok(ScoreOperand { dtype: g.dtype(x).matmul(), matrix: grouped(&broadcast(operand, &shape), z, columns) })
}

/// The ends of the keys, which a step stores, where the mask states one for each query.
fn ends(h: &mut Host, kernel: &Lowering, v: ValueId, z: &Sizes) -> Result<Option<Matrix>, LowerError> {
    let Some(ends) = Ends::of(kernel, v, z)? else { return Ok(None) };
    let slot = h.scratch(DType::I64, &ends.shape);
    let step = ends.step(kernel, &format!("{}_keys", kernel.name), slot)?;
    h.out.steps.push(step);
    let strides = Type::new(DType::I64, &*ends.shape).strides();
    Ok(Some(grouped(&broadcast(Operand { slot, offset: 0, strides }, &ends.shape), z, 1)))
}

/// The axes of scores, of size 1 where a mask of this shape is the same along them.
fn own_axes(mask: &[usize], mut scores: Vec<usize>, z: &Sizes) -> Vec<usize> {
    // Scores have two axes for the heads.
    let heads = z.batch.len();
    let is_one = |axis: usize| {
        let axis = if axis > heads { axis - 1 } else { axis };
        let missing = heads + 3 - mask.len();
        axis < missing || mask[axis - missing] == 1
    };
    scores.iter_mut().enumerate().filter(|(i, _)| is_one(*i)).for_each(|(_, n)| *n = 1);
    scores
}

/// The operand with stride 0 along axes of size 1.
fn broadcast(mut x: Operand, shape: &[usize]) -> Operand {
    x.strides.iter_mut().zip(shape).filter(|(_, n)| **n == 1).for_each(|(stride, _)| *stride = 0);
    x
}

/// An operand over (batch.., key head, query of the group, query, column) as a matrix whose rows are the group's
/// queries.
fn grouped(x: &Operand, z: &Sizes, cols: usize) -> Matrix {
    let n = z.batch.len() + 1;
    let along = |axis: usize| x.strides[axis];
    Matrix {
        slot: x.slot,
        offset: x.offset,
        rows: axes([(z.group, along(n)), (z.s, along(n + 1))]),
        cols: axes([(cols, along(n + 2))]),
        batch_strides: x.strides[..n].to_vec(),
    }
}

/// The ends of the keys, where the mask states one for each query.
struct Ends<'a> {
    v: ValueId,
    z: &'a Sizes,
    /// The axes (batch.., key head, query of the group, query, 1); of size 1 where the mask is the same along them.
    shape: Vec<usize>,
}

/// A coordinate of the key that no space has.
const KEY: CoordId = (1 << 20) - 1;

impl Ends<'_> {
    fn of<'a>(kernel: &Lowering, v: ValueId, z: &'a Sizes) -> Result<Option<Ends<'a>>, LowerError> {
        let Some(&mask) = kernel.graph.args(v).get(kernel.graph.op(v).mask_place()) else { return Ok(None) };
        let all = [&z.batch[..], &[z.heads, z.group, z.s, 1]].concat();
        let ends = Ends { v, z, shape: own_axes(kernel.graph.shape(mask), all, z) };
        let anywhere: Vec<Expr> = (0..).zip(&ends.shape).map(|(id, &n)| Expr::coord(id, n)).collect();
        Ok(ends.at(&mut kernel.resolver(), &anywhere)?.map(|_| ends))
    }
    /// The end of the keys at an index.
    fn at(&self, r: &mut Resolver, at: &[Expr]) -> Result<Option<NodeId>, LowerError> {
        let n = self.z.batch.len();
        let mut ix = at[..n].to_vec();
        let head = at[n].clone().scale(self.z.group as i64).plus(&at[n + 1]);
        ix.extend([head, at[n + 2].clone(), Expr::coord(KEY, self.z.t)]);
        let any = r.dag.number(r.graph.dtype(self.v), 0.0);
        let score = masked_score(r, any, self.v, &ix, Causal::Guard)?;
        Ok(key_end(&mut r.dag, score, KEY, self.z.t))
    }
    /// The step that stores them.
    fn step(&self, kernel: &Lowering, name: &str, slot: Slot) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
        let scene = |axes: &[Expr]| {
            let mut r = kernel.resolver();
            let value = match self.at(&mut r, axes)? {
                Some(end) => end,
                // What is known everywhere may not be seen here.
                None => r.dag.number(DType::I64, self.z.t as f64),
            };
            let store = Store::new(slot, DType::I64, linear(axes, &self.shape), value);
            Ok(Scene { dag: r.dag, stores: vec![store] })
        };
        launch::unnamed_points(name, &self.shape, &scene, kernel.machine, kernel.propose)
    }
}
