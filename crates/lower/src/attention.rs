//! Attention: on GPUs by [`warps`] and [`warpgroups`]. On the host a call of its library, which keeps scores in the
//! caches, masks them and skips keys that a causal query does not attend to. A mask that is not in memory is stored by
//! a step; where it ends the keys at a number read from memory ([`crate::scalar::key_range`]), a step computes the end
//! for each query, and the library stops there.
pub mod block_mask;
pub mod program;
pub mod schedule;
pub mod score_tiles;
pub mod warpgroups;
pub mod warps;

use crate::attention::program::{joined, sizes_of};
use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul;
use crate::matmul::host::{self, Host, Operand, only_matmul};
use crate::nest::lowering::Lowering;
use crate::scalar::dag::{NodeId, Scene, Store};
use crate::scalar::expr::{CoordId, Expr, linear};
use crate::scalar::key_range::key_end;
use crate::scalar::resolve::{Body, MatmulSource, Resolver};
use crate::scalar::scores::{Causal, Sizes, masked_score, sizes};
use crate::steps::Emitted;
use kiln_graph::{DType, Op, Type, ValueId};
use kiln_plan::Hardware;
use kiln_plan::attention::Way;
use kiln_plan::exec::{AttentionCall, Mask, Matrix, Sink, Slot, Work, axes};
use kiln_plan::matmul_schedule::MatmulSchedule;

/// The attention of a body, and that of its log-sum-exp if both are results.
pub fn find(kernel: &Lowering) -> Result<(ValueId, Option<ValueId>), LowerError> {
    let found =
        |sums: bool| only_matmul(kernel, |v| matches!(kernel.graph.op(v), Op::Attention { lse, .. } if *lse == sums));
    match (found(false), found(true)) {
        (Ok(v), sums) => Ok((v, sums.ok())),
        (Err(_), sums) => Ok((sums?, None)),
    }
}

pub fn lower(kernel: &Lowering, machine: &Hardware) -> Result<Emitted, LowerError> {
    let g = kernel.graph;
    let (v, sums) = find(kernel)?;
    let z = sizes(kernel, v);
    if z.t == 0 || z.d == 0 {
        return Err(kernel.unsupported("attention without keys, or with heads of width 0"));
    }
    match kernel.multiply {
        Some(MatmulSchedule::Matmul(_)) => return Err(kernel.unsupported("the schedule is one of a matmul")),
        Some(MatmulSchedule::Library) if machine.arch.is_gpu() => {
            return Err(kernel.unsupported("the library takes matmuls, not attention"));
        }
        Some(MatmulSchedule::Attention(_)) if !machine.arch.is_gpu() => return Err(kernel.unsupported(host::ON_HOST)),
        _ => {}
    }
    if machine.arch.is_gpu() {
        let dual = sums.map(|x| (x, MatmulSource::Node));
        return on_gpu(&kernel.with_body(Body { second_output: dual, ..kernel.body }), v, &z, machine);
    }
    let Op::Attention { scale, causal, fully_masked, .. } = *g.op(v) else {
        return Err(kernel.unsupported("not attention"));
    };
    if g.op(v).is_attention_of_steps() {
        return Err(kernel.unsupported("attention with a score function, or its log-sum-exp, on the host"));
    }
    let args = g.args(v);
    let mut h = Host::new(*kernel);
    let shape = |r: usize, c: usize| [&z.batch[..], &[z.heads, z.group, r, c]].concat();
    let n = z.batch.len();
    // From (batch.., key head, query of the group, row, column) to those with one axis of heads.
    let query = |at: &[Expr]| {
        let mut ix = at[..n].to_vec();
        ix.extend([at[n].clone().scale(z.group as i64).plus(&at[n + 1]), at[n + 2].clone(), at[n + 3].clone()]);
        ix
    };
    let q = h.operand(args[0], &shape(z.s, z.d), "q", query)?;
    let keys = |cols: usize| [&z.batch[..], &[z.heads, z.t, cols]].concat();
    let k = h.operand(args[1], &keys(z.d), "k", |at| at.to_vec())?;
    let w = h.operand(args[2], &keys(z.e), "v", |at| at.to_vec())?;
    // What broadcasts to the scores, in the type in which `operand` stores it.
    let mut of_scores = |x: ValueId, what: &str, keys: usize| -> Result<(DType, Matrix), LowerError> {
        let shape = own_axes(g.shape(x), shape(z.s, keys), &z);
        let operand = h.operand(x, &shape, what, |at| {
            let mut ix = query(at);
            ix.drain(..ix.len() - g.shape(x).len());
            ix
        })?;
        Ok((g.dtype(x).matmul(), grouped(&broadcast(operand, &shape), &z, keys)))
    };
    let mask = args.get(g.op(v).mask_place()).map(|&m| of_scores(m, "mask", z.t)).transpose()?;
    let sink = g.op(v).sink_place().map(|i| of_scores(args[i], "sink", 1)).transpose()?;
    let ends = match Ends::of(kernel, v, &z)? {
        Some(ends) => {
            let slot = h.scratch(DType::I64, &ends.shape);
            let step = ends.step(kernel, &format!("{}_keys", kernel.name), slot)?;
            h.out.steps.push(step);
            let strides = Type::new(DType::I64, &*ends.shape).strides();
            Some(grouped(&broadcast(Operand { slot, offset: 0, strides }, &ends.shape), &z, 1))
        }
        None => None,
    };
    let (slot, out_dtype) = h.destination(v)?;
    let out = Operand { slot, offset: 0, strides: Type::new(out_dtype, shape(z.s, z.e)).strides() };
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
        q: grouped(&q, &z, z.d),
        k: k.matrix([z.t, z.d]),
        v: w.matrix([z.t, z.e]),
        out: grouped(&out, &z, z.e),
        mask: mask.map(|(dtype, matrix)| Mask { dtype, matrix }),
        ends,
        sink: sink.map(|(dtype, matrix)| Sink { dtype, matrix }),
    };
    h.out.steps.push(Work::Attention(Box::new(call)));
    h.finish(v, (slot, out_dtype))
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

/// `of.dual`: the log-sum-exp of attention `v`, if the kernel stores it beside the result.
fn on_gpu(kernel: &Lowering, v: ValueId, z: &Sizes, machine: &Hardware) -> Result<Emitted, LowerError> {
    let dtype = matmul::operand_dtype(kernel, v);
    let sizes = sizes_of(kernel, v)?;
    if !sizes.has_program() {
        return Err(kernel.unsupported(format!("attention with heads of {} and {} {dtype}", z.d, z.e)));
    }
    let Some(MatmulSchedule::Attention(asked)) = kernel.multiply else {
        return Err(kernel.unsupported("no tiles fit the attention"));
    };
    match schedule::way(&sizes, &asked, machine).map_err(|why| kernel.unsupported(why))? {
        Way::Warps(tiles) => {
            let made = MatmulSchedule::Attention(schedule::of_tiles(&sizes, &tiles));
            let step = Emitted {
                matmul_schedule: Some(made),
                ..Emitted::step(warps::program(kernel, v, z, tiles, sizes.packed > 1)?)
            };
            joined(kernel, v, z, step, tiles.parts, machine)
        }
        Way::Warpgroups(shape) => {
            let steps = warpgroups::lower(kernel, v, z, (&sizes, shape), &asked, machine)?;
            let steps = steps.ok_or_else(|| kernel.unsupported(warpgroups::NEEDS))?;
            joined(kernel, v, z, steps, shape.parts, machine)
        }
    }
}
