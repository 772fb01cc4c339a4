//! Pointwise composites of several operands, which broadcast: computed in the accumulation type and rounded once.
use super::Built;
use crate::{
    BinaryOp, CompareOp, Graph, Op, Type, UnaryOp, ValueId,
    infer::{broadcast, float, same_dtype},
};

/// Floats of one type, of the shape they broadcast to.
pub(super) fn infer(_: &Op, args: &[&Type]) -> Result<Type, String> {
    let dtype = same_dtype(args)?;
    let mut shape = vec![];
    for arg in args {
        float(arg)?;
        shape = broadcast(&shape, &arg.shape)?;
    }
    Ok(Type { dtype, shape })
}

/// `max(a, b) + log1p(exp(-|a - b|))`. Equal infinities have no difference: the result is that infinity.
pub(super) fn logaddexp(g: &mut Graph, _: &Op, args: &[ValueId], _: &Type) -> Built {
    let (a, b) = (args[0], args[1]);
    let most = g.binary(BinaryOp::Max, a, b)?;
    let difference = g.binary(BinaryOp::Sub, a, b)?;
    let difference = g.unary(UnaryOp::Abs, difference)?;
    let difference = g.unary(UnaryOp::Neg, difference)?;
    let e = g.unary(UnaryOp::Exp, difference)?;
    let log = g.unary(UnaryOp::Log1p, e)?;
    let sum = g.binary(BinaryOp::Add, most, log)?;
    let (infinite, same) = (g.unary(UnaryOp::IsInf, a)?, g.compare(CompareOp::Eq, a, b)?);
    let keep = g.binary(BinaryOp::And, infinite, same)?;
    g.select(keep, most, sum)
}
