//! Split-K, for matmuls with few tiles and a long K: slices of K are computed like batches, and a second step sums them
//! in order, so results are the same from run to run. Slices are whole stages of the pipeline, or whole tiles of loads
//! to registers; the last may reach beyond K, where a tensor map reads zeros and loads are masked.
use crate::emit::launch;
use crate::error::LowerError;
use crate::matmul::slices::Parts;
use crate::matmul::{Dual, Matmul, OperandAt, sums, tiled};
use crate::nest::lowering::Lowering;
use crate::scalar::expr::Expr;
use crate::scalar::resolve::{Body, MatmulSource, Resolver};
use crate::steps::Emitted;
use kiln_graph::Type;
use kiln_plan::Hardware;
use kiln_plan::exec::Slot;
use kiln_plan::matmul_schedule::TiledMatmul;

/// The matmul in slices of K, and the step that sums them and computes the rest of the kernel. `scratch`: the number of
/// the first free scratch buffer.
pub fn lower(
    kernel: &Lowering,
    p: &Matmul,
    parts: Parts,
    machine: &Hardware,
    asked: &TiledMatmul,
    scratch: u32,
) -> Result<Emitted, LowerError> {
    let dtype = kernel.graph.dtype(p.v);
    let (acc, count) = (dtype.compute(), kernel.graph.ty(p.v).count());
    let Parts { count: parts, len } = parts;
    let whole = |part: &Expr, k: &Expr| part.clone().scale(len as i64).plus(k);
    let of_left = |at: &[Expr]| {
        let [part, batch @ .., m, k] = at else { return Err(kernel.unsupported("a matmul without rows")) };
        Ok([batch, &[m.clone(), whole(part, k)]].concat())
    };
    let of_right = |at: &[Expr]| {
        let [part, batch @ .., k, n] = at else { return Err(kernel.unsupported("a matmul without columns")) };
        Ok([batch, &[whole(part, k), n.clone()]].concat())
    };
    let left = |r: &mut Resolver, at: &[Expr]| (p.a)(r, &of_left(at)?);
    let right = |r: &mut Resolver, at: &[Expr]| (p.b)(r, &of_right(at)?);
    let other = |r: &mut Resolver, at: &[Expr]| p.dual.map_or(p.b, |t| t.b)(r, &of_right(at)?);
    let dual = p.dual.map(|t| Dual { b: &other, ..t });
    let low_left = |r: &mut Resolver, at: &[Expr]| p.low.map_or(p.a, |l| l[0])(r, &of_left(at)?);
    let low_right = |r: &mut Resolver, at: &[Expr]| p.low.map_or(p.b, |l| l[1])(r, &of_right(at)?);
    let low: Option<[OperandAt; 2]> = p.low.map(|_| [&low_left as OperandAt, &low_right as OperandAt]);
    let batch = [&[parts], &p.batch[..]].concat();
    let piece = Matmul { batch, k: len, full_k: Some(p.k), a: &left, b: &right, dual, low, ..*p };
    let scene = |at: &[Expr]| sums(kernel, p, &at[1..], scratch, &at[0].clone().scale(count as i64));
    let dims = [&piece.batch[..], &[p.m, p.n]].concat();
    let (step, made) = tiled(kernel, &piece, &dims, asked, machine, &scene)?;
    let buffers: Vec<Type> = p.values().map(|_| Type::new(acc, [parts * count])).collect();
    let next = scratch + buffers.len() as u32;
    let out = Emitted { steps: vec![step], scratch: buffers, matmul_schedule: Some(made), ..Emitted::default() };
    let out = out.in_form(|form| form.slices = parts);
    let name = format!("{}_sum", kernel.name);
    let rest =
        p.at(kernel, |i| MatmulSource::Parts { slot: Slot::Scratch(scratch + i as u32), dtype: acc, count: parts });
    Ok(out.then(launch::body(&rest.with_body(Body { name: &name, ..rest.body }), next)?))
}
