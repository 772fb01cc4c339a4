//! Inference and decomposition of scaled dot-product attention.
use super::{Built, softmax::softmax};
use crate::{
    BinaryOp, CompareOp, DType, FullyMasked, Graph, Op, Type, ValueId,
    infer::{broadcast, broadcasts_to, check_type, float, number, same_dtype},
};

pub(super) fn infer(op: &Op, args: &[&Type]) -> Result<Type, String> {
    if let Op::Attention { scale, .. } = op {
        number(*scale)?;
    }
    let (q, k, v) = (args[0], args[1], args[2]);
    let dtype = same_dtype(&args[..3])?;
    float(q)?;
    let ([qb @ .., hq, s, d], [kb @ .., hk, t, dk], [vb @ .., hv, tv, e]) = (&q.shape[..], &k.shape[..], &v.shape[..])
    else {
        return Err(format!("q {q}, k {k}, v {v}: each needs [batch.., heads, length, width]"));
    };
    if qb != kb || kb != vb || hk != hv || t != tv || d != dk {
        return Err(format!("q {q}, k {k}, v {v}: batch, key heads, key length and width must agree"));
    }
    if *hk == 0 && *hq != 0 || *hk != 0 && hq % hk != 0 {
        return Err(format!("{hq} query heads are not a multiple of {hk} key heads"));
    }
    let scores = [qb, &[*hq, *s, *t]].concat();
    if let Some(mask) = args.get(3) {
        if mask.dtype != DType::Bool && mask.dtype != dtype {
            return Err(format!("the mask is {}, it must be bool or {dtype}", mask.dtype));
        }
        if !broadcasts_to(&mask.shape, &scores) || broadcast(&mask.shape, &scores).is_err() {
            return Err(format!("the mask {mask} does not broadcast to the scores {scores:?}"));
        }
    }
    check_type(&Type { dtype, shape: scores }).map_err(|e| format!("scores: {e}"))?;
    Ok(Type { dtype, shape: [qb, &[*hq, *s, *e]].concat() })
}

pub(super) fn decompose(g: &mut Graph, op: &Op, args: &[ValueId], ty: &Type) -> Built {
    let &Op::Attention { scale, causal, fully_masked } = op else { return Ok(args[0]) };
    let (mut q, mut k, mut v) = (args[0], args[1], args[2]);
    let q_shape = g.shape(q).to_vec();
    let r = q_shape.len();
    let (lead, heads, s) = (&q_shape[..r - 3], q_shape[r - 3], q_shape[r - 2]);
    let (key_heads, t) = (g.shape(k)[r - 3], g.shape(k)[r - 2]);
    let mut scores_shape = [&q_shape[..r - 1], &[t]].concat();
    let grouped = heads != key_heads;
    if grouped {
        // Query heads that share a key head get an axis of their own.
        let group = heads / key_heads.max(1);
        q = g.reshape(q, [lead, &[key_heads, group], &q_shape[r - 2..]].concat())?;
        scores_shape = [lead, &[key_heads, group, s, t]].concat();
        let with_group_axis = |g: &mut Graph, x: ValueId| {
            let mut shape = g.shape(x).to_vec();
            shape.insert(r - 2, 1);
            g.reshape(x, shape)
        };
        k = with_group_axis(g, k)?;
        v = with_group_axis(g, v)?;
    }
    let k = g.transpose(k)?;
    let mut scores = g.dot(q, k)?;
    scores = g.binary_scalar(BinaryOp::Mul, scores, scale.as_f64())?;
    if causal {
        let row = g.iota(DType::I64, [s, 1], 0);
        let column = g.iota(DType::I64, [1, t], 1);
        let seen = g.compare(CompareOp::Le, column, row)?;
        let hidden = g.constant_like(scores, f64::NEG_INFINITY)?;
        scores = g.select(seen, scores, hidden)?;
    }
    if let Some(&mask) = args.get(3) {
        let mask = if grouped && g.shape(mask).len() >= 3 {
            let whole = g.broadcast_to(mask, [&q_shape[..r - 1], &[t]].concat())?;
            g.reshape(whole, scores_shape)?
        } else {
            mask
        };
        scores = if g.dtype(mask) == DType::Bool {
            let hidden = g.constant_like(scores, f64::NEG_INFINITY)?;
            g.select(mask, scores, hidden)?
        } else {
            g.binary(BinaryOp::Add, scores, mask)?
        };
    }
    let axis = g.shape(scores).len() - 1;
    // Without a mask, some key counts for every query.
    let safe = args.len() > 3 && fully_masked == FullyMasked::Zero;
    let p = softmax(g, scores, axis, safe)?;
    let y = g.dot(p, v)?;
    g.reshape(y, ty.shape.clone())
}
