//! Inference and decomposition of normalisations: over the last axes, over groups of channels, by running statistics.
use super::Built;
use crate::{
    BinaryOp, Graph, GraphError, Op, ReduceOp, Scalar, Type, UnaryOp, ValueId,
    infer::{axis_len, float, number},
};

pub(super) fn infer(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let x = args[0];
    float(x)?;
    match op {
        Op::LayerNorm { axes, affine: _, eps } => {
            number(*eps)?;
            if *axes == 0 || *axes > x.rank() {
                return Err(format!("normalises over the last {axes} axes of {x}; give 1 to {}", x.rank()));
            }
            all_shaped(x, &args[1..], &x.shape[x.rank() - axes..], "gain and bias")
        }
        Op::RmsNorm { eps } => {
            number(*eps)?;
            let last = x.shape.last().ok_or_else(|| format!("{x} has no axis to normalise over"))?;
            all_shaped(x, &args[1..], &[*last], "gain")
        }
        Op::GroupNorm { groups, affine: _, eps } => {
            number(*eps)?;
            let channels = axis_len(x, 1)?;
            if *groups == 0 || channels % groups != 0 {
                return Err(format!("{channels} channels do not make {groups} groups"));
            }
            all_shaped(x, &args[1..], &[channels], "gain and bias")
        }
        Op::BatchNorm { eps } => {
            number(*eps)?;
            all_shaped(x, &args[1..], &[axis_len(x, 1)?], "gain, bias, mean and variance")
        }
        _ => Err("is not a normalisation".into()),
    }
}

pub(super) fn decompose(g: &mut Graph, op: &Op, args: &[ValueId], _: &Type) -> Built {
    let x = args[0];
    let rank = g.shape(x).len();
    match op {
        Op::LayerNorm { axes, eps, .. } => {
            let y = normalised(g, x, (rank - axes..rank).collect(), *eps)?;
            affine(g, y, &args[1..])
        }
        Op::RmsNorm { eps } => {
            let square = g.binary(BinaryOp::Mul, x, x)?;
            let mean = g.reduce(ReduceOp::Mean, square, [rank - 1])?;
            let scale = rsqrt_eps(g, mean, *eps)?;
            let y = g.binary(BinaryOp::Mul, x, scale)?;
            g.binary(BinaryOp::Mul, y, args[1])
        }
        Op::GroupNorm { groups, eps, .. } => {
            let (shape, count) = (g.shape(x).to_vec(), g.ty(x).count());
            let rows = shape[0] * groups;
            let inner = count.checked_div(rows).unwrap_or(0);
            let grouped = g.reshape(x, [shape[0], *groups, inner])?;
            let y = normalised(g, grouped, vec![2], *eps)?;
            let y = g.reshape(y, shape)?;
            let rest = per_channel(g, &args[1..], rank)?;
            affine(g, y, &rest)
        }
        Op::BatchNorm { eps } => {
            let rest = per_channel(g, &args[1..], rank)?;
            let scale = rsqrt_eps(g, rest[3], *eps)?;
            let y = g.binary(BinaryOp::Sub, x, rest[2])?;
            let y = g.binary(BinaryOp::Mul, y, scale)?;
            affine(g, y, &rest[..2])
        }
        _ => Ok(x),
    }
}

fn all_shaped(x: &Type, rest: &[&Type], shape: &[usize], what: &str) -> Result<Type, String> {
    let wanted = Type { dtype: x.dtype, shape: shape.to_vec() };
    match rest.iter().find(|t| ***t != wanted) {
        Some(t) => Err(format!("{what} must be {wanted}, got {t}")),
        None => Ok(x.clone()),
    }
}

/// `x · gain + bias`; `x` itself without gain and bias.
fn affine(g: &mut Graph, x: ValueId, rest: &[ValueId]) -> Built {
    let [gain, bias] = rest else { return Ok(x) };
    let y = g.binary(BinaryOp::Mul, x, *gain)?;
    g.binary(BinaryOp::Add, y, *bias)
}

/// Reshapes `[C]` to `[C, 1, …]`, to broadcast along axis 1 of `rank` axes.
fn per_channel(g: &mut Graph, values: &[ValueId], rank: usize) -> Result<Vec<ValueId>, GraphError> {
    let reshaped = |v: &ValueId| {
        let mut shape = g.shape(*v).to_vec();
        shape.resize(rank - 1, 1);
        g.reshape(*v, shape)
    };
    values.iter().map(reshaped).collect()
}

/// `1 / sqrt(x + eps)`.
fn rsqrt_eps(g: &mut Graph, x: ValueId, eps: Scalar) -> Built {
    let x = g.binary_scalar(BinaryOp::Add, x, eps.as_f64())?;
    g.unary(UnaryOp::Rsqrt, x)
}

/// `(x - mean) / sqrt(variance + eps)` over the axes.
fn normalised(g: &mut Graph, x: ValueId, axes: Vec<usize>, eps: Scalar) -> Built {
    let mean = g.reduce(ReduceOp::Mean, x, axes.clone())?;
    let centred = g.binary(BinaryOp::Sub, x, mean)?;
    let square = g.binary(BinaryOp::Mul, centred, centred)?;
    let variance = g.reduce(ReduceOp::Mean, square, axes)?;
    let scale = rsqrt_eps(g, variance, eps)?;
    g.binary(BinaryOp::Mul, centred, scale)
}
