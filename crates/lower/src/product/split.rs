//! Products with few tiles and a long K: parts of K side by side, like batches, and their sums in the order of the parts.
use super::{Product, own_order, tiled};
use crate::dag::{NodeOp, Store};
use crate::expr::Expr;
use crate::resolve::{Body, Product as Place, Resolver};
use crate::rows::Emitted;
use crate::warpgroup::Parts;
use crate::{LowerError, Target, reduction};
use kiln_graph::Type;
use kiln_plan::exec::Slot;

/// The product in parts of K, and the step that sums them up and does the rest of the kernel. Scratch memory before `scratch` is
/// others'.
pub fn lower(of: &Body, p: &Product, parts: Parts, target: Target, scratch: u32) -> Result<Emitted, LowerError> {
    let dtype = of.graph.dtype(p.v);
    let (acc, count) = (dtype.compute(), of.graph.ty(p.v).count());
    let slot = Slot::Scratch(scratch);
    let Parts { count: parts, len } = parts;
    let whole = |part: &Expr, k: &Expr| part.clone().scale(len as i64).plus(k);
    let left = |r: &mut Resolver, at: &[Expr]| {
        let [part, batch @ .., m, k] = at else { return Err(of.unsupported("a product without rows")) };
        (p.a)(r, &[batch, &[m.clone(), whole(part, k)]].concat())
    };
    let right = |r: &mut Resolver, at: &[Expr]| {
        let [part, batch @ .., k, n] = at else { return Err(of.unsupported("a product without columns")) };
        (p.b)(r, &[batch, &[whole(part, k), n.clone()]].concat())
    };
    let batch = [&[parts], &p.batch[..]].concat();
    let piece = Product { batch, k: len, whole: Some(p.k), a: &left, b: &right, ..*p };
    let product = Body { product: Some((p.v, Place::Node)), ..*of };
    let scene = |at: &[Expr]| {
        let mut r = product.resolver();
        let value = r.dag.add(NodeOp::Anchor { at: at.to_vec() }, dtype);
        let order = at[0].clone().scale(count as i64).plus(&own_order(of, p, &at[1..])?);
        Ok((r.dag, vec![Store { slot, dtype: acc, at: order, guards: vec![], value }]))
    };
    let dims = [&piece.batch[..], &[p.m, p.n]].concat();
    let step = tiled(of, &piece, &dims, of.name, target, &scene)?;
    let out = Emitted { steps: vec![step], scratch: vec![Type::new(acc, [parts * count])] };
    let name = format!("{}_sum", of.name);
    let rest = Body { product: Some((p.v, Place::Parts { slot, dtype: acc, count: parts })), name: &name, ..*of };
    Ok(out.then(reduction::lower(&rest, target, scratch + 1)?))
}
