//! Inference and decomposition of `linear`: `x · Wᵀ + b`.
use super::Built;
use crate::{
    BinaryOp, Graph, Op, Type, ValueId,
    infer::{float, same_dtype},
};

pub(super) fn infer(_: &Op, args: &[&Type]) -> Result<Type, String> {
    let (x, w) = (args[0], args[1]);
    let dtype = same_dtype(&args[..2])?.matmul();
    float(x)?;
    let ([lead @ .., k], [n, k2]) = (&x.shape[..], &w.shape[..]) else {
        return Err(format!("input {x}, weight {w}: they must be [.., K] and [N, K]"));
    };
    if k != k2 {
        return Err(format!("input {x}, weight {w}: K is {k} in one and {k2} in the other"));
    }
    if let Some(b) = args.get(2)
        && (b.shape != [*n] || b.dtype != dtype)
    {
        return Err(format!("the bias is {b}, it must be {dtype}[{n}]"));
    }
    Ok(Type { dtype, shape: [lead, &[*n]].concat() })
}

pub(super) fn decompose(g: &mut Graph, _: &Op, args: &[ValueId], ty: &Type) -> Built {
    let shape = g.shape(args[0]).to_vec();
    let x = if shape.len() == 1 { g.reshape(args[0], [1, shape[0]])? } else { args[0] };
    let w = g.transpose(args[1])?;
    let y = g.dot(x, w)?;
    let y = g.reshape(y, ty.shape.clone())?;
    match args.get(2) {
        Some(bias) => g.binary(BinaryOp::Add, y, *bias),
        None => Ok(y),
    }
}
