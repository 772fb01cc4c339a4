//! Matrix products with views before and pointwise work (or a reduction of rows) after.
use crate::expr::{Expr, delinear, linear};
use crate::host::{Host, the_product};
use crate::resolve::{Body, broadcast_index};
use crate::rows::Emitted;
use crate::{LowerError, Target, product, reduction};
use kiln_graph::{Graph, Op, ValueId};
use kiln_plan::{Family, Template};

/// A product as batches of `m × k` by `k × n`.
pub struct Dims {
    pub batch: Vec<usize>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Sizes of a `Dot` or `Linear`; the leading axes of a linear layer's input are its rows.
pub fn dims(g: &Graph, v: ValueId) -> Option<Dims> {
    let args = g.args(v);
    let out = g.shape(v);
    match g.op(v) {
        Op::Dot => {
            let (batch, mn) = out.split_at(out.len() - 2);
            Some(Dims { batch: batch.to_vec(), m: mn[0], n: mn[1], k: *g.shape(args[0]).last()? })
        }
        Op::Linear => {
            let (n, lead) = out.split_last()?;
            Some(Dims { batch: vec![], m: lead.iter().product(), n: *n, k: *g.shape(args[1]).last()? })
        }
        _ => None,
    }
}

/// Index of operand 0 (`at` = batch…, m, k) or 1 (`at` = batch…, k, n).
pub fn operand_index(g: &Graph, v: ValueId, which: usize, at: &[Expr]) -> Vec<Expr> {
    let args = g.args(v);
    let shape = g.shape(args[which]);
    let (batch, last) = at.split_at(at.len() - 2);
    match (g.op(v), which) {
        (Op::Linear, 0) => {
            let mut ix = delinear(&last[0], &shape[..shape.len() - 1]);
            ix.push(last[1].clone());
            ix
        }
        (Op::Linear, _) => vec![last[1].clone(), last[0].clone()],
        _ => {
            let mut ix = broadcast_index(batch, &shape[..shape.len() - 2]);
            ix.extend_from_slice(last);
            ix
        }
    }
}

pub fn lower(of: &Body, target: Target) -> Result<Emitted, LowerError> {
    let g = of.graph;
    let v = the_product(of, |v| matches!(g.op(v), Op::Dot | Op::Linear))?;
    let d = dims(g, v).ok_or_else(|| of.unsupported("not a matrix product"))?;
    if !g.dtype(v).is_float() || d.k == 0 || g.ty(v).count() == 0 {
        return reduction::lower(of, target, 0);
    }
    let few = d.m <= 4 || d.n <= 4;
    match (target, of.template.map(|t| t.family)) {
        (_, Some(Family::Rows)) => reduction::lower(of, target, 0),
        (Target::Host, _) => host(of, v, &d),
        (Target::Gpu { .. }, None) if few => reduction::lower(of, target, 0),
        (Target::Gpu { .. }, _) => on_gpu(of, v, &d, |p| product::lower(of, p, target)),
    }
}

/// Templates that take the kernel's product on a GPU, with the microseconds they are predicted to take.
pub fn candidates(of: &Body, target: Target) -> Result<Vec<(Template, f64)>, LowerError> {
    let g = of.graph;
    let v = the_product(of, |v| matches!(g.op(v), Op::Dot | Op::Linear))?;
    let d = dims(g, v).ok_or_else(|| of.unsupported("not a matrix product"))?;
    if target == Target::Host || !g.dtype(v).is_float() || d.k == 0 || g.ty(v).count() == 0 {
        return Ok(vec![]);
    }
    on_gpu(of, v, &d, |p| product::candidates(of, p, target))
}

/// Parts of K that lowering cuts the kernel's product into unasked.
pub fn parts(of: &Body, target: Target) -> Result<usize, LowerError> {
    let v = the_product(of, |v| matches!(of.graph.op(v), Op::Dot | Op::Linear))?;
    let d = dims(of.graph, v).ok_or_else(|| of.unsupported("not a matrix product"))?;
    on_gpu(of, v, &d, |p| product::chosen_parts(of, p, target))
}

fn on_gpu<T>(of: &Body, v: ValueId, d: &Dims, then: impl FnOnce(&product::Product) -> T) -> T {
    let g = of.graph;
    let args = g.args(v);
    let lead = g.shape(v).len() - 1;
    let linear_layer = matches!(g.op(v), Op::Linear);
    let product = product::Product {
        v,
        batch: d.batch.clone(),
        m: d.m,
        n: d.n,
        k: d.k,
        whole: None,
        a: &|r, at| r.at(args[0], &operand_index(g, v, 0, at), &[]),
        b: &|r, at| r.at(args[1], &operand_index(g, v, 1, at), &[]),
        place: &|ix| {
            if linear_layer { vec![linear(&ix[..lead], &g.shape(v)[..lead]), ix[lead].clone()] } else { ix.to_vec() }
        },
    };
    then(&product)
}

fn host(of: &Body, v: ValueId, d: &Dims) -> Result<Emitted, LowerError> {
    let g = of.graph;
    let (args, dtype) = (g.args(v), g.dtype(v));
    let mut h = Host::new(*of);
    let shape = |r: usize, c: usize| [&d.batch[..], &[r, c]].concat();
    let a = h.operand(args[0], &shape(d.m, d.k), "a", |at| operand_index(g, v, 0, at))?;
    let b = h.operand(args[1], &shape(d.k, d.n), "b", |at| operand_index(g, v, 1, at))?;
    let place = h.destination(v)?;
    let c = crate::host::Operand {
        slot: place.0,
        offset: 0,
        strides: kiln_graph::Type::new(dtype, shape(d.m, d.n)).strides(),
    };
    h.gemm(dtype, place.1, &shape(d.m, d.n), d.k, [a.matrix([d.m, d.k]), b.matrix([d.k, d.n]), c.matrix([d.m, d.n])]);
    h.finish(v, place)
}
