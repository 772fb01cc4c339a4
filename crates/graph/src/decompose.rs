//! Decompositions: a composite op as a graph of primitives that computes the same.
//!
//! Takes an op and its operand types; gives a graph with the operands as inputs and one output. Numerics are PyTorch's:
//! on f16 and bf16 a composite computes in f32 and rounds once, so its decomposition casts up first and down last.
//! Primitives are pointwise ops without a formula, views, movement, reductions and `Dot`. The decomposition of each op
//! is next to its row ([`crate::ops`]).
use crate::{DType, Graph, GraphError, Op, Type, ValueId, infer, ops::Rounding};

pub use crate::ops::window::transposed_conv;

/// Decomposes `v`'s op; the inputs of the result are `v`'s operands. `None` if the op is primitive.
pub fn decompose(g: &Graph, v: ValueId) -> Result<Option<Graph>, GraphError> {
    let types: Vec<Type> = g.args(v).iter().map(|a| g.ty(*a).clone()).collect();
    decompose_op(g.op(v), &types)
}

/// Decomposes an op on operands of the given types. `None` if it is primitive; an error if the types do not fit the op.
pub fn decompose_op(op: &Op, types: &[Type]) -> Result<Option<Graph>, GraphError> {
    if !is_composite(op) {
        return Ok(None);
    }
    let refs: Vec<&Type> = types.iter().collect();
    let ty = infer::infer(op, &refs).map_err(|what| GraphError::Operand {
        value: ValueId(0),
        op: op.name().to_string(),
        what,
    })?;
    let mut g = Graph::new(op.name());
    let args: Vec<ValueId> = types.iter().map(|t| g.input(t.clone())).collect();
    let wide = widen(&mut g, op, &args)?;
    let result = match (op, op.row().decompose) {
        (Op::Unary(u), _) => match u.function().formula {
            Some(formula) => formula(&mut g, wide[0])?,
            None => return Ok(None),
        },
        (_, Some(decompose)) => decompose(&mut g, op, &wide, &ty)?,
        (_, None) => return Ok(None),
    };
    let result = g.cast(result, ty.dtype)?;
    g.output(result);
    Ok(Some(g.without_dead()))
}

/// Whether [`decompose`] has a decomposition of the op.
pub fn is_composite(op: &Op) -> bool {
    match op {
        Op::Unary(u) => u.is_composite(),
        _ => op.row().decompose.is_some(),
    }
}

/// The graph with every composite for which `which` is true replaced by its decomposition.
pub fn decompose_all(g: &Graph, which: impl Fn(&Op) -> bool) -> Result<Graph, GraphError> {
    g.rebuild(|new, v, args| {
        if !which(g.op(v)) {
            return Ok(None);
        }
        match decompose(g, v)? {
            Some(part) => Ok(new.inline(&part, args)?.first().copied()),
            None => Ok(None),
        }
    })
}

/// The operands, cast to the precision in which the composite computes. Operands of a bare matmul (without a bias) keep
/// their dtype, because `Dot` accumulates in f32 and rounds once itself; so do operands of a maximum, which never
/// rounds.
fn widen(g: &mut Graph, op: &Op, args: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
    let keeps_dtype = match op {
        Op::Linear if args.first().is_some_and(|a| g.dtype(*a).is_f8()) => true,
        Op::Linear | Op::Conv { transposed: false, .. } => args.len() == 2,
        Op::Pool { kind, .. } => *kind == crate::PoolKind::Max,
        Op::Unary(u) => u.function().row.rounding == Rounding::Exact,
        _ => false,
    };
    let wide = matches!(op, Op::Unary(u) if u.function().wide);
    let widened = |g: &mut Graph, a: &ValueId| {
        let dtype = g.dtype(*a);
        let to = if wide { DType::F64 } else { dtype.compute() };
        if keeps_dtype || !dtype.is_float() { Ok(*a) } else { g.cast(*a, to) }
    };
    args.iter().map(|a| widened(g, a)).collect()
}
