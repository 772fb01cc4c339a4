//! Scaled dot-product attention, and the modules built on it that PyTorch runs as one operator in evaluation mode.
use super::{
    Table,
    context::{Ctx, Res},
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, DType, FullyMasked, Op, ReduceOp, Scalar, UnaryOp, ValueId};

pub const TABLE: Table = &[
    ("aten::scaled_dot_product_attention", attention),
    ("aten::_scaled_dot_product_attention_math", attention),
    ("aten::_scaled_dot_product_cudnn_attention", attention),
    ("aten::_scaled_dot_product_efficient_attention", attention),
    ("aten::_scaled_dot_product_flash_attention", attention),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", attention),
    ("aten::_scaled_dot_product_fused_attention_overrideable", attention),
    ("aten::_native_multi_head_attention", multi_head),
    ("aten::_transformer_encoder_layer_fwd", encoder_layer),
];

/// Positions of the arguments that follow query, key and value.
pub struct Places {
    mask: Option<usize>,
    pub dropout: usize,
    causal: usize,
    scale: usize,
}

/// Scaled dot-product attention and the forms that torch chooses for a device, without `aten::`; `None` for all other
/// operators.
pub fn places(name: &str) -> Option<Places> {
    let (mask, dropout, causal, scale) = match name {
        // (mask?, dropout, causal, scale?, enable_gqa)
        "scaled_dot_product_attention" => (Some(3), 4, 5, 6),
        // (mask?, dropout, causal, mask of the dropout?, scale?, enable_gqa)
        "_scaled_dot_product_attention_math" => (Some(3), 4, 5, 7),
        // (mask?, with logsumexp, dropout, causal, with the mask of the dropout, scale?)
        "_scaled_dot_product_cudnn_attention" => (Some(3), 5, 6, 8),
        // (mask?, with logsumexp, dropout, causal, scale?)
        "_scaled_dot_product_efficient_attention" => (Some(3), 5, 6, 7),
        // (dropout, causal, with the mask of the dropout, scale?)
        "_scaled_dot_product_flash_attention" => (None, 3, 4, 6),
        // (dropout, causal, mask?, scale?)
        "_scaled_dot_product_flash_attention_for_cpu" => (Some(5), 3, 4, 6),
        // (mask?, dropout, causal, with the mask of the dropout, scale?)
        "_scaled_dot_product_fused_attention_overrideable" => (Some(3), 4, 5, 7),
        _ => return None,
    };
    Some(Places { mask, dropout, causal, scale })
}

/// `(q, k, v, …)`, without dropout. The second result of the forms of a device is the log-sum-exp, but for the one in
/// steps; further ones are of use in training alone.
fn attention(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let places = call.name.strip_prefix("aten::").and_then(places).ok_or("arguments in an unknown order")?;
    if !matches!(call.overload.as_str(), "" | "default") {
        return Err(format!("attention with the arguments of its overload `{}`", call.overload));
    }
    let (mut q, mut k, mut v) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?);
    let ty = c.out(call, 0)?;
    let width = *c.shape(q).last().ok_or("attention of rank 0")?;
    let scale = c.opt_scalar(call, places.scale)?.map_or(1.0 / (width as f64).sqrt(), Scalar::as_f64);
    // Rank 2 has no heads axis: add one of size 1.
    if c.rank(q) == 2 {
        for x in [&mut q, &mut k, &mut v] {
            let shape = [&[1], &c.shape(*x)[..]].concat();
            *x = c.reshape(*x, &shape)?;
        }
    }
    let mut args = vec![q, k, v];
    let mask = places.mask.map_or(Ok(None), |at| c.opt_tensor(call, at))?;
    if let Some(mask) = mask {
        // The public operator has turned a bool mask into an additive one for the forms of a device.
        if c.dtype(mask) == DType::Bool && call.name != "aten::scaled_dot_product_attention" {
            return Err("a bool mask where torch adds it".into());
        }
        args.push(if c.dtype(mask) == DType::Bool { mask } else { c.cast(mask, c.dtype(q))? });
    }
    let (scale, causal, fully_masked) = (Scalar::Float(scale), c.bool(call, places.causal)?, FullyMasked::Zero);
    let of = |c: &mut Ctx, lse: bool, shape: &[usize]| {
        let r = c.node(Op::Attention { scale, causal, fully_masked, score: vec![], sink: false, lse }, &args)?;
        c.reshape(r, shape)
    };
    let mut results = vec![of(c, false, &ty.shape)?];
    if c.only_results(call, 1).is_err() && call.name != "aten::_scaled_dot_product_attention_math" {
        let sums = c.out(call, 1)?;
        if sums.count() != ty.count() / ty.shape.last().copied().unwrap_or(1).max(1) {
            return Err(format!("a log-sum-exp of shape {:?}", sums.shape));
        }
        let r = of(c, true, &sums.shape)?;
        results.push(c.cast(r, sums.dtype)?);
    }
    Ok(results)
}

/// The parameters of a multi-head attention layer.
struct Heads {
    heads: usize,
    /// Weight and bias of the joined QKV projection, then weight and bias of the output projection.
    weights: [ValueId; 4],
    /// True for masked-out scores, over `[batch, heads, queries, keys]`.
    hidden: Option<ValueId>,
}

/// Projection `i` (0 query, 1 key, 2 value) of `x`, as `[batch, heads, tokens, depth]`: sliced from the joined
/// projection if there is one.
fn project(c: &mut Ctx, x: ValueId, joined: Option<ValueId>, h: &Heads, i: usize) -> Res<ValueId> {
    let [batch, tokens, width] = c.shape(x)[..] else {
        return Err("multi-head attention of a rank other than 3".into());
    };
    let part = match joined {
        Some(joined) => c.slice(joined, 2, i * width, width, 1)?,
        None => {
            let weight = c.slice(h.weights[0], 0, i * width, width, 1)?;
            let bias = c.slice(h.weights[1], 0, i * width, width, 1)?;
            c.node(Op::Linear, &[x, weight, bias])?
        }
    };
    let part = c.reshape(part, &[batch, tokens, h.heads, width / h.heads])?;
    c.permute(part, &[0, 2, 1, 3])
}

/// Input projections, attention and output projection of `[query, key, value]`, each `[batch, tokens, width]`. Also
/// returns the probabilities `[batch, heads, queries, keys]` if `probabilities`.
fn projected_attention(
    c: &mut Ctx,
    from: [ValueId; 3],
    h: &Heads,
    probabilities: bool,
) -> Res<(ValueId, Option<ValueId>)> {
    let [batch, queries, width] = c.shape(from[0])[..] else {
        return Err("multi-head attention of a rank other than 3".into());
    };
    if h.heads == 0 || width % h.heads != 0 {
        return Err(format!("{} heads of {width} columns", h.heads));
    }
    let is_self = from[1] == from[0] && from[2] == from[0];
    let joined = if is_self { Some(c.node(Op::Linear, &[from[0], h.weights[0], h.weights[1]])?) } else { None };
    let mut parts = vec![];
    for (i, x) in from.into_iter().enumerate() {
        parts.push(project(c, x, joined, h, i)?);
    }
    let [q, k, v] = parts[..] else { return Err("attention of other than three operands".into()) };
    let scale = 1.0 / ((width / h.heads) as f64).sqrt();
    let (r, weights) = if probabilities {
        let keys = c.transpose(k)?;
        let scores = c.node(Op::Dot, &[q, keys])?;
        let mut scores = c.with(BinaryOp::Mul, scores, scale)?;
        if let Some(hidden) = h.hidden {
            let masked = c.float_const(c.dtype(scores), f64::NEG_INFINITY);
            scores = c.select(hidden, masked, scores)?;
        }
        let weights = c.node(Op::Softmax { axis: 3 }, &[scores])?;
        (c.node(Op::Dot, &[weights, v])?, Some(weights))
    } else {
        if let Some(hidden) = h.hidden {
            parts.push(c.unary(UnaryOp::Not, hidden)?);
        }
        // `masked_softmax` in ATen/native/transformers gives NaN for a fully masked query.
        let fully_masked = if h.hidden.is_some() { FullyMasked::Nan } else { FullyMasked::Zero };
        let op = Op::Attention {
            scale: Scalar::Float(scale),
            causal: false,
            fully_masked,
            score: vec![],
            sink: false,
            lse: false,
        };
        (c.node(op, &parts)?, None)
    };
    let r = c.permute(r, &[0, 2, 1, 3])?;
    let r = c.reshape(r, &[batch, queries, width])?;
    Ok((c.node(Op::Linear, &[r, h.weights[2], h.weights[3]])?, weights))
}

/// The mask argument at `at` in the form of [`Heads::hidden`]. Nonzero masks a key out. Its mask type, at `kind_at`, is
/// 0 for `[queries, keys]`, 1 for `[batch, keys]`, 2 for all four axes.
fn hidden(c: &mut Ctx, call: &Call, at: usize, kind_at: usize, batch: usize) -> Res<Option<ValueId>> {
    let Some(mask) = c.opt_tensor(call, at)? else { return Ok(None) };
    let hidden = c.cast(mask, DType::Bool)?;
    let shape = match (c.int(call, kind_at)?, &c.shape(mask)[..]) {
        (0, [queries, keys]) => [1, 1, *queries, *keys],
        (1, [rows, keys]) if *rows == batch => [batch, 1, 1, *keys],
        (2, [a, b, queries, keys]) => [*a, *b, *queries, *keys],
        (kind, shape) => return Err(format!("a mask of kind {kind} and shape {shape:?}")),
    };
    c.reshape(hidden, &shape).map(Some)
}

/// The four weights at `at..at + 4`, in the order of [`Heads::weights`].
fn projections(c: &mut Ctx, call: &Call, at: usize) -> Res<[ValueId; 4]> {
    Ok([c.tensor(call, at)?, c.tensor(call, at + 1)?, c.tensor(call, at + 2)?, c.tensor(call, at + 3)?])
}
fn heads(c: &Ctx, call: &Call, at: usize) -> Res<usize> {
    usize::try_from(c.int(call, at)?).map_err(|_| "a negative number of heads".to_string())
}

/// `(q, k, v, width, heads, qkv weight, bias, out weight, bias, mask?, need_weights, average, mask_type?)`. The second
/// result, if it is used, is the probabilities, optionally averaged over the heads.
fn multi_head(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let from = [c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?];
    let batch = *c.shape(from[0]).first().ok_or("multi-head attention of rank 0")?;
    let h =
        Heads { heads: heads(c, call, 4)?, weights: projections(c, call, 5)?, hidden: hidden(c, call, 9, 12, batch)? };
    let probabilities = c.only_results(call, 1).is_err();
    let (r, weights) = projected_attention(c, from, &h, probabilities)?;
    let Some(mut weights) = weights else { return Ok(vec![r]) };
    if c.bool(call, 11)? {
        weights = c.reduce(ReduceOp::Mean, weights, &[1])?;
    }
    let shape = c.out(call, 1)?.shape;
    Ok(vec![r, c.reshape(weights, &shape)?])
}

/// `(x, width, heads, qkv weight, bias, out weight, bias, gelu, norm_first, eps, norm 1 weight, bias, norm 2 weight,
/// bias, first linear's weight, bias, second linear's weight, bias, mask?, mask_type?)`.
fn encoder_layer(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let batch = *c.shape(x).first().ok_or("an encoder layer of rank 0")?;
    let h =
        Heads { heads: heads(c, call, 2)?, weights: projections(c, call, 3)?, hidden: hidden(c, call, 18, 19, batch)? };
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
    let (a, _) = projected_attention(c, [inner; 3], &h, false)?;
    let mut x = c.binary(BinaryOp::Add, x, a)?;
    if !first {
        x = norm(c, x, 10)?;
    }
    let inner = if first { norm(c, x, 12)? } else { x };
    let f = feed_forward(c, inner)?;
    x = c.binary(BinaryOp::Add, x, f)?;
    Ok(vec![if first { x } else { norm(c, x, 12)? }])
}
