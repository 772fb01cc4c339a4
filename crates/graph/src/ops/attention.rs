//! Inference and decomposition of scaled dot-product attention.
use super::{
    Built,
    softmax::{log_sum_exp, softmax, softmax_beside},
};
use crate::{
    BinaryOp, CompareOp, DType, FullyMasked, Graph, Op, ScoreStep, Type, ValueId,
    infer::{broadcast, broadcasts_to, check_type, float, number, same_dtype},
};

impl Op {
    /// Which operand of attention is its mask, if it has one: the first after those of its score function and its sink.
    pub fn mask_place(&self) -> usize {
        let Op::Attention { sink, .. } = self else { return 0 };
        self.after_steps() + usize::from(*sink)
    }
    /// Which operand of attention is its sink: the first after those of its score function.
    pub fn sink_place(&self) -> Option<usize> {
        matches!(self, Op::Attention { sink: true, .. }).then(|| self.after_steps())
    }
    /// Whether this is an attention that the host's library does not have: with a score function, or for its
    /// log-sum-exp.
    pub fn is_attention_of_steps(&self) -> bool {
        matches!(self, Op::Attention { score, lse, .. } if !score.is_empty() || *lse)
    }
    /// Whether what attention adds to its scores, or makes of them, is of a wider type than its operands, these types.
    pub fn has_wide_scores(&self, args: &[DType]) -> bool {
        let Op::Attention { sink, .. } = self else { return false };
        let of_scores = args.iter().enumerate().skip(3).filter(|(i, _)| !sink || *i + 1 != self.mask_place());
        of_scores.into_iter().any(|(_, d)| *d != DType::Bool && *d != args[0])
    }
    /// The attention of the same scores whose result is the log-sum-exp, or the other way round.
    pub fn attention_beside(&self) -> Option<Op> {
        let mut op = self.clone();
        let Op::Attention { lse, .. } = &mut op else { return None };
        *lse = !*lse;
        Some(op)
    }
    fn after_steps(&self) -> usize {
        let Op::Attention { score, .. } = self else { return 0 };
        3 + score.iter().filter(|step| step.takes_operand()).count()
    }
}

pub(super) fn infer(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let Op::Attention { scale, score, lse, .. } = op else { return Err("not attention".into()) };
    number(*scale)?;
    let mask_place = op.mask_place();
    if !(mask_place..=mask_place + 1).contains(&args.len()) {
        return Err(format!("{} operands, {mask_place} are wanted, or one more with a mask", args.len()));
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
    let fits = |what: &str, x: &Type| {
        if !broadcasts_to(&x.shape, &scores) || broadcast(&x.shape, &scores).is_err() {
            return Err(format!("the {what} {x} does not broadcast to the scores {scores:?}"));
        }
        Ok(())
    };
    if let Some(mask) = args.get(mask_place) {
        if ![DType::Bool, dtype, dtype.compute()].contains(&mask.dtype) {
            return Err(format!("the mask is {}, it must be bool, {dtype} or {}", mask.dtype, dtype.compute()));
        }
        fits("mask", mask)?;
    }
    if let Some(sink) = op.sink_place().map(|i| args[i]) {
        if sink.dtype != dtype && sink.dtype != dtype.compute() {
            return Err(format!("the sink is {}, it must be {dtype} or {}", sink.dtype, dtype.compute()));
        }
        let each = [qb, &[*hq, *s, 1]].concat();
        if !broadcasts_to(&sink.shape, &each) || broadcast(&sink.shape, &each).is_err() {
            return Err(format!("the sink {sink} does not broadcast to one score of each query, {each:?}"));
        }
    }
    for x in &args[3..op.after_steps()] {
        if ![dtype, dtype.compute()].contains(&x.dtype) {
            let compute = dtype.compute();
            return Err(format!("an operand of the score function is {}, it must be {dtype} or {compute}", x.dtype));
        }
        fits("operand", x)?;
    }
    for step in score {
        check_step(step, dtype)?;
    }
    check_type(&Type { dtype, shape: scores }).map_err(|e| format!("scores: {e}"))?;
    let (dtype, last) = if *lse { (dtype.compute(), 1) } else { (dtype, *e) };
    Ok(Type { dtype, shape: [qb, &[*hq, *s, last]].concat() })
}

/// Whether a step makes a score of a score.
fn check_step(step: &ScoreStep, dtype: DType) -> Result<(), String> {
    match step {
        ScoreStep::Unary(u) => {
            let score = Type::new(dtype, []);
            if crate::infer::infer(&Op::Unary(*u), &[&score]) != Ok(score) {
                return Err(format!("`{step}` of a score is not a score"));
            }
        }
        ScoreStep::Number(b, _) | ScoreStep::Operand(b) if !ScoreStep::BINARY.contains(b) => {
            let known: Vec<&str> = ScoreStep::BINARY.iter().map(|b| b.name()).collect();
            return Err(format!("`{step}` is no step of a score function: use one of {}", known.join(", ")));
        }
        ScoreStep::Number(_, s) => number(*s)?,
        ScoreStep::Operand(_) => {}
    }
    Ok(())
}

pub(super) fn decompose(g: &mut Graph, op: &Op, args: &[ValueId], ty: &Type) -> Built {
    let Op::Attention { scale, causal, fully_masked, score, lse, .. } = op else { return Ok(args[0]) };
    let mask_place = op.mask_place();
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
    // A mask, an operand of a step or a sink, in the shape of the scores where that has an axis of groups.
    let fitted_to = |g: &mut Graph, x: ValueId, keys: usize| match grouped && g.shape(x).len() >= 3 {
        true => {
            let whole = g.broadcast_to(x, [&q_shape[..r - 1], &[keys]].concat())?;
            let mut shape = scores_shape.clone();
            shape[r] = keys;
            g.reshape(whole, shape)
        }
        false => Ok(x),
    };
    let fitted = |g: &mut Graph, x: ValueId| fitted_to(g, x, t);
    let mut more = args[3..op.after_steps()].iter();
    for step in score {
        scores = match step {
            ScoreStep::Unary(u) => g.unary(*u, scores)?,
            ScoreStep::Number(b, s) => g.binary_scalar(*b, scores, s.as_f64())?,
            ScoreStep::Operand(b) => match more.next() {
                Some(&x) => {
                    let x = fitted(g, x)?;
                    g.binary(*b, scores, x)?
                }
                // Invariant: inference has counted the operands.
                None => scores,
            },
        };
    }
    if *causal {
        let row = g.iota(DType::I64, [s, 1], 0);
        let column = g.iota(DType::I64, [1, t], 1);
        let seen = g.compare(CompareOp::Le, column, row)?;
        let hidden = g.constant_like(scores, f64::NEG_INFINITY)?;
        scores = g.select(seen, scores, hidden)?;
    }
    if let Some(&mask) = args.get(mask_place) {
        let mask = fitted(g, mask)?;
        scores = if g.dtype(mask) == DType::Bool {
            let hidden = g.constant_like(scores, f64::NEG_INFINITY)?;
            g.select(mask, scores, hidden)?
        } else {
            g.binary(BinaryOp::Add, scores, mask)?
        };
    }
    let axis = g.shape(scores).len() - 1;
    if *lse {
        let sink = op.sink_place().map(|place| fitted_to(g, args[place], 1)).transpose()?;
        let wide = g.dtype(scores).compute();
        let scores = g.cast(scores, wide)?;
        let sink = sink.map(|x| g.cast(x, wide)).transpose()?;
        let y = log_sum_exp(g, scores, sink, axis)?;
        return g.reshape(y, ty.shape.clone());
    }
    // Without a mask or a score function, some key counts for every query.
    let safe = (args.get(mask_place).is_some() || !score.is_empty()) && *fully_masked == FullyMasked::Zero;
    let p = match op.sink_place() {
        Some(place) => {
            let sink = fitted_to(g, args[place], 1)?;
            // A sink may be wider than the scores.
            let wide = g.dtype(sink);
            let scores = g.cast(scores, wide)?;
            let p = softmax_beside(g, scores, sink, axis, safe)?;
            let dtype = g.dtype(v);
            g.cast(p, dtype)?
        }
        None => softmax(g, scores, axis, safe)?,
    };
    let y = g.dot(p, v)?;
    g.reshape(y, ty.shape.clone())
}
