//! Scaled dot-product attention.
use super::{
    Table,
    context::{Ctx, Res},
};
use crate::raw::Call;
use kiln_graph::{DType, Op, Scalar, ValueId};

pub const TABLE: Table = &[("aten::scaled_dot_product_attention", attention)];

/// `(q, k, v, mask?, dropout, causal, scale?, enable_gqa)`.
fn attention(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    if c.float(call, 4)? != 0.0 {
        return Err("attention with dropout draws random numbers".into());
    }
    let (mut q, mut k, mut v) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?);
    let ty = c.out(call, 0)?;
    let width = *c.shape(q).last().ok_or("attention of rank 0")?;
    let scale = c.opt_scalar(call, 6)?.map_or(1.0 / (width as f64).sqrt(), Scalar::as_f64);
    // Without a heads axis there is one head.
    if c.rank(q) == 2 {
        for x in [&mut q, &mut k, &mut v] {
            let shape = [&[1], &c.shape(*x)[..]].concat();
            *x = c.reshape(*x, &shape)?;
        }
    }
    let mut args = vec![q, k, v];
    if let Some(mask) = c.opt_tensor(call, 3)? {
        args.push(if c.dtype(mask) == DType::Bool { mask } else { c.cast(mask, c.dtype(q))? });
    }
    let r = c.node(Op::Attention { scale: Scalar::Float(scale), causal: c.bool(call, 5)? }, &args)?;
    Ok(vec![c.reshape(r, &ty.shape)?])
}
