//! Decompositions: a composite op as a graph of primitives that computes the same.
//!
//! Takes an op and its operand types; gives a graph with the operands as inputs and one output. Numerics are PyTorch's:
//! on half types a composite computes in f32 and rounds once, so its decomposition casts up first and down last.
//! Primitives are what is left: pointwise ops that are no named function, views, movement, reductions, `Dot`.
mod nn;
mod window;

use crate::{BinaryOp, CompareOp, DType, Graph, GraphError, Op, ReduceOp, Scalar, Type, UnaryOp, ValueId, infer};

pub(crate) type Built = Result<ValueId, GraphError>;

/// `v`'s op in primitives, with `v`'s operands as inputs; `None` if it is primitive already.
pub fn decompose(g: &Graph, v: ValueId) -> Result<Option<Graph>, GraphError> {
    let types: Vec<Type> = g.args(v).iter().map(|a| g.ty(*a).clone()).collect();
    decompose_op(g.op(v), &types)
}

/// An op on operands of given types in primitives; `None` if it is primitive already.
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
    let result = match op {
        Op::Unary(u) => unary(&mut g, *u, wide[0])?,
        Op::Pool { kind, window, stride, padding, dilation, .. } => {
            let steps = window::Steps { window, stride, padding, dilation };
            window::pool(&mut g, wide[0], *kind, &steps, &ty.shape)?
        }
        Op::Conv { stride, padding, dilation, groups, transposed, .. } => {
            let kernel = types[1].shape.get(2..).unwrap_or(&[]);
            let steps = window::Steps { window: kernel, stride, padding, dilation };
            match transposed {
                true => window::transposed(&mut g, &wide, &steps, *groups, &ty.shape)?,
                false => window::conv(&mut g, &wide, &steps, *groups, &ty.shape)?,
            }
        }
        _ => nn::decompose(&mut g, op, &wide, &ty)?,
    };
    let result = g.cast(result, ty.dtype)?;
    g.output(result);
    Ok(Some(g.without_dead()))
}

/// A transposed convolution of these operands as one product and sums of what it gives, in the type the product is summed in.
/// The product's operands are as they are given.
pub fn transposed_conv(g: &mut Graph, op: &Op, args: &[ValueId]) -> Result<ValueId, GraphError> {
    let types: Vec<&Type> = args.iter().map(|a| g.ty(*a)).collect();
    let refused = |what: String| GraphError::Operand { value: ValueId(0), op: op.name().to_string(), what };
    let ty = infer::infer(op, &types).map_err(refused)?;
    let Op::Conv { stride, padding, dilation, groups, transposed: true, .. } = op else {
        return Err(refused("it is no transposed convolution".into()));
    };
    let window = types[1].shape.get(2..).unwrap_or_default().to_vec();
    let steps = window::Steps { window: &window, stride, padding, dilation };
    let y = window::transposed(g, args, &steps, *groups, &ty.shape)?;
    g.cast(y, ty.dtype)
}

/// Whether [`decompose`] takes the op apart.
pub fn is_composite(op: &Op) -> bool {
    match op {
        Op::Unary(u) => u.is_composite(),
        Op::Softmax { .. } | Op::LogSoftmax { .. } | Op::LayerNorm { .. } | Op::RmsNorm { .. } => true,
        Op::GroupNorm { .. } | Op::BatchNorm { .. } | Op::Linear | Op::Attention { .. } => true,
        Op::Conv { .. } | Op::Pool { .. } => true,
        _ => false,
    }
}

/// The graph with every composite that `which` accepts taken apart.
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

/// The operands in the precision the composite computes in. A product without anything after it keeps its half types:
/// `Dot` accumulates in f32 and rounds once itself. So does a maximum, which never rounds.
fn widen(g: &mut Graph, op: &Op, args: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
    let stays = match op {
        Op::Linear if args.first().is_some_and(|a| g.dtype(*a).is_f8()) => true,
        Op::Linear | Op::Conv { transposed: false, .. } => args.len() == 2,
        Op::Pool { kind, .. } => *kind == crate::PoolKind::Max,
        Op::Unary(UnaryOp::Relu) => true,
        _ => false,
    };
    let widened = |g: &mut Graph, a: &ValueId| {
        let dtype = g.dtype(*a);
        if stays || !dtype.is_float() { Ok(*a) } else { g.cast(*a, dtype.compute()) }
    };
    args.iter().map(|a| widened(g, a)).collect()
}

/// Named functions, by the formulas of PyTorch's CPU kernels.
fn unary(g: &mut Graph, op: UnaryOp, x: ValueId) -> Built {
    use BinaryOp::{Add, Div, Max, Min, Mul, Sub};
    let hard = |g: &mut Graph| {
        let y = g.binary_scalar(Add, x, 3.0)?;
        let y = g.binary_scalar(Max, y, 0.0)?;
        g.binary_scalar(Min, y, 6.0)
    };
    // 1 + exp(-x)
    let logistic = |g: &mut Graph| {
        let y = g.unary(UnaryOp::Neg, x)?;
        let y = g.unary(UnaryOp::Exp, y)?;
        g.binary_scalar(Add, y, 1.0)
    };
    let log1p_exp = |g: &mut Graph| {
        let y = g.unary(UnaryOp::Exp, x)?;
        g.unary(UnaryOp::Log1p, y)
    };
    match op {
        UnaryOp::Relu => g.binary_scalar(Max, x, 0.0),
        UnaryOp::Sigmoid => {
            let y = logistic(g)?;
            g.unary(UnaryOp::Reciprocal, y)
        }
        UnaryOp::Silu => {
            let y = logistic(g)?;
            g.binary(Div, x, y)
        }
        UnaryOp::GeluErf => {
            let y = g.binary_scalar(Mul, x, std::f64::consts::FRAC_1_SQRT_2)?;
            let y = g.unary(UnaryOp::Erf, y)?;
            let y = g.binary_scalar(Add, y, 1.0)?;
            let half = g.binary_scalar(Mul, x, 0.5)?;
            g.binary(Mul, half, y)
        }
        UnaryOp::GeluTanh => {
            let square = g.binary(Mul, x, x)?;
            let cube = g.binary(Mul, square, x)?;
            let y = g.binary_scalar(Mul, cube, 0.044715)?;
            let y = g.binary(Add, x, y)?;
            let y = g.binary_scalar(Mul, y, (2.0 / std::f64::consts::PI).sqrt())?;
            let y = g.unary(UnaryOp::Tanh, y)?;
            let y = g.binary_scalar(Add, y, 1.0)?;
            let half = g.binary_scalar(Mul, x, 0.5)?;
            g.binary(Mul, half, y)
        }
        UnaryOp::Softplus => {
            let limit = g.constant_like(x, 20.0)?;
            let large = g.compare(CompareOp::Gt, x, limit)?;
            let y = log1p_exp(g)?;
            g.select(large, x, y)
        }
        UnaryOp::Mish => {
            let y = log1p_exp(g)?;
            let y = g.unary(UnaryOp::Tanh, y)?;
            g.binary(Mul, x, y)
        }
        UnaryOp::Hardswish => {
            let y = hard(g)?;
            let y = g.binary(Mul, x, y)?;
            g.binary_scalar(Div, y, 6.0)
        }
        UnaryOp::Hardsigmoid => {
            let y = hard(g)?;
            g.binary_scalar(Div, y, 6.0)
        }
        UnaryOp::LogSigmoid => {
            let low = g.binary_scalar(Min, x, 0.0)?;
            let y = g.unary(UnaryOp::Abs, x)?;
            let y = g.unary(UnaryOp::Neg, y)?;
            let y = g.unary(UnaryOp::Exp, y)?;
            let y = g.unary(UnaryOp::Log1p, y)?;
            g.binary(Sub, low, y)
        }
        other => g.unary(other, x),
    }
}

/// `1 / sqrt(x + eps)`.
pub(crate) fn rsqrt_eps(g: &mut Graph, x: ValueId, eps: Scalar) -> Built {
    let x = g.binary_scalar(BinaryOp::Add, x, eps.as_f64())?;
    g.unary(UnaryOp::Rsqrt, x)
}

/// `(x - mean) / sqrt(variance + eps)` over the axes.
pub(crate) fn normalised(g: &mut Graph, x: ValueId, axes: Vec<usize>, eps: Scalar) -> Built {
    let mean = g.reduce(ReduceOp::Mean, x, axes.clone())?;
    let centred = g.binary(BinaryOp::Sub, x, mean)?;
    let square = g.binary(BinaryOp::Mul, centred, centred)?;
    let variance = g.reduce(ReduceOp::Mean, square, axes)?;
    let scale = rsqrt_eps(g, variance, eps)?;
    g.binary(BinaryOp::Mul, centred, scale)
}

/// The least value of a dtype: what a maximum starts from.
pub(crate) fn least(dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(false),
        _ => dtype.int_range().map_or(Scalar::Float(f64::NEG_INFINITY), |(least, _)| Scalar::Int(least)),
    }
}
