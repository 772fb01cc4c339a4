//! Attention with a sink as programs write it, for libtorch, which has no operator for it: a softmax of the scores with
//! the sink beside them, whose probability is left out.
use kiln_graph::{BinaryOp, CompareOp, DType, FullyMasked, Graph, GraphError, Op, ReduceOp, Type, ValueId};

/// The graph of an attention without a score function, on operands of these types.
pub(super) fn written(op: &Op, types: &[Type]) -> Result<Graph, GraphError> {
    let mut g = Graph::new("attention");
    let args: Vec<ValueId> = types.iter().map(|ty| g.input(ty.clone())).collect();
    let Op::Attention { scale, causal, fully_masked, .. } = op else { return Ok(g) };
    let (q, mut k, mut v) = (args[0], args[1], args[2]);
    let (rank, dtype) = (types[0].rank(), types[0].dtype);
    let [lead @ .., heads, s, _] = &types[0].shape[..] else { return Ok(g) };
    let t = types[1].shape[rank - 2];
    for x in [&mut k, &mut v] {
        // Each head of keys for a group of heads of queries.
        let shape = g.shape(*x).to_vec();
        let (own, rest) = (shape[rank - 3], &shape[rank - 2..]);
        let one = g.reshape(*x, [lead, &[own, 1], rest].concat())?;
        let all = g.broadcast_to(one, [lead, &[own, heads / own.max(1)], rest].concat())?;
        *x = g.reshape(all, [lead, &[*heads], rest].concat())?;
    }
    let k = g.transpose(k)?;
    let scores = g.dot(q, k)?;
    let mut scores = g.binary_scalar(BinaryOp::Mul, scores, scale.as_f64())?;
    let hidden = g.constant_like(scores, f64::NEG_INFINITY)?;
    if *causal {
        let (row, column) = (g.iota(DType::I64, [*s, t], 0), g.iota(DType::I64, [*s, t], 1));
        let seen = g.compare(CompareOp::Ge, row, column)?;
        scores = g.select(seen, scores, hidden)?;
    }
    if let Some(&mask) = args.get(op.mask_place()) {
        scores = match g.dtype(mask) {
            DType::Bool => g.select(mask, scores, hidden)?,
            _ => g.binary(BinaryOp::Add, scores, mask)?,
        };
    }
    let sink = op.sink_place().map_or(args[0], |i| args[i]);
    let scores = g.cast(scores, g.dtype(sink))?;
    let sink = g.broadcast_to(sink, [lead, &[*heads, *s, 1]].concat())?;
    let axis = rank - 1;
    let all = g.add(Op::Concat { axis }, &[scores, sink])?;
    let mut p = g.add(Op::Softmax { axis }, &[all])?;
    if *fully_masked == FullyMasked::Zero {
        let most = g.reduce(ReduceOp::Max, all, [axis])?;
        let (lowest, zero) = (g.constant_like(most, f64::NEG_INFINITY)?, g.constant_like(p, 0.0)?);
        let none = g.compare(CompareOp::Eq, most, lowest)?;
        p = g.select(none, zero, p)?;
    }
    let p = g.add(Op::Slice { axis, start: 0, len: t, step: 1 }, &[p])?;
    let p = g.cast(p, dtype)?;
    let y = g.dot(p, v)?;
    g.output(y);
    Ok(g)
}
