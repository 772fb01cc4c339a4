//! Scaled dot-product attention, and the modules around it that PyTorch runs as one operator outside training.
use super::{
    Table,
    context::{Ctx, Res},
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, DType, Op, Scalar, UnaryOp, ValueId};

pub const TABLE: Table = &[
    ("aten::scaled_dot_product_attention", attention),
    ("aten::_native_multi_head_attention", multi_head),
    ("aten::_transformer_encoder_layer_fwd", encoder_layer),
];

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

/// Self-attention of `x` (`[batch, tokens, width]`) between its projections: the weight, then the bias, of the joined query, key and
/// value, and of the output.
fn self_attention(c: &mut Ctx, x: ValueId, heads: usize, weights: [ValueId; 4]) -> Res<ValueId> {
    let [batch, tokens, width] = c.shape(x)[..] else {
        return Err("multi-head attention of another rank than 3".into());
    };
    if heads == 0 || width % heads != 0 {
        return Err(format!("{heads} heads of {width} columns"));
    }
    let depth = width / heads;
    let joined = c.node(Op::Linear, &[x, weights[0], weights[1]])?;
    let joined = c.reshape(joined, &[batch, tokens, 3, heads, depth])?;
    let mut parts = vec![];
    for i in 0..3 {
        let part = c.slice(joined, 2, i, 1, 1)?;
        let part = c.reshape(part, &[batch, tokens, heads, depth])?;
        parts.push(c.permute(part, &[0, 2, 1, 3])?);
    }
    let scale = Scalar::Float(1.0 / (depth as f64).sqrt());
    let r = c.node(Op::Attention { scale, causal: false }, &parts)?;
    let r = c.permute(r, &[0, 2, 1, 3])?;
    let r = c.reshape(r, &[batch, tokens, width])?;
    c.node(Op::Linear, &[r, weights[2], weights[3]])
}

/// The weights at `at..at + 4`.
fn projections(c: &mut Ctx, call: &Call, at: usize) -> Res<[ValueId; 4]> {
    Ok([c.tensor(call, at)?, c.tensor(call, at + 1)?, c.tensor(call, at + 2)?, c.tensor(call, at + 3)?])
}
fn heads(c: &Ctx, call: &Call, at: usize) -> Res<usize> {
    usize::try_from(c.int(call, at)?).map_err(|_| "a negative number of heads".to_string())
}

/// `(q, k, v, width, heads, qkv weight, bias, out weight, bias, mask?, need_weights, average, mask_type?)`.
fn multi_head(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    c.only_results(call, 1)?;
    let (q, k, v) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?);
    if q != k || q != v {
        return Err("multi-head attention between different tensors".into());
    }
    if c.opt_tensor(call, 9)?.is_some() {
        return Err("multi-head attention with a mask".into());
    }
    let weights = projections(c, call, 5)?;
    let heads = heads(c, call, 4)?;
    Ok(vec![self_attention(c, q, heads, weights)?])
}

/// `(x, width, heads, qkv weight, bias, out weight, bias, gelu, norm_first, eps, norm 1 weight, bias, norm 2 weight, bias, first
/// linear's weight, bias, second linear's weight, bias, mask?, mask_type?)`.
fn encoder_layer(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    if c.opt_tensor(call, 18)?.is_some() {
        return Err("an encoder layer with a mask".into());
    }
    let (x, heads, weights) = (c.tensor(call, 0)?, heads(c, call, 2)?, projections(c, call, 3)?);
    let (activation, first) = (if c.bool(call, 7)? { UnaryOp::GeluErf } else { UnaryOp::Relu }, c.bool(call, 8)?);
    let eps = c.scalar(call, 9)?;
    let norm = |c: &mut Ctx, x, at| {
        let args = [x, c.tensor(call, at)?, c.tensor(call, at + 1)?];
        c.node(Op::LayerNorm { axes: 1, affine: true, eps }, &args)
    };
    let linear = |c: &mut Ctx, x, at| {
        let args = [x, c.tensor(call, at)?, c.tensor(call, at + 1)?];
        c.node(Op::Linear, &args)
    };
    let feed_forward = |c: &mut Ctx, x| {
        let h = linear(c, x, 14)?;
        let h = c.unary(activation, h)?;
        linear(c, h, 16)
    };
    let inner = if first { norm(c, x, 10)? } else { x };
    let a = self_attention(c, inner, heads, weights)?;
    let mut x = c.binary(BinaryOp::Add, x, a)?;
    if !first {
        x = norm(c, x, 10)?;
    }
    let inner = if first { norm(c, x, 12)? } else { x };
    let f = feed_forward(c, inner)?;
    x = c.binary(BinaryOp::Add, x, f)?;
    Ok(vec![if first { x } else { norm(c, x, 12)? }])
}
