//! Normalisations, converted to composite ops. A missing gain or bias becomes ones or zeros if the op needs both.
use super::{
    Table,
    context::{Ctx, Res, along},
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp, DType, Op, ReduceOp, Scalar, Type, UnaryOp, ValueId};

pub const TABLE: Table = &[
    ("aten::layer_norm", layer_norm),
    ("aten::native_layer_norm", layer_norm),
    ("aten::group_norm", group_norm),
    ("aten::native_group_norm", |c, call| {
        let (x, groups, eps) = (c.tensor(call, 0)?, c.int(call, 6)? as usize, c.float(call, 7)?);
        grouped(c, call, x, groups, 1, eps)
    }),
    ("aten::batch_norm", batch_norm),
    ("aten::native_batch_norm", batch_norm),
    ("aten::_native_batch_norm_legit", |c, call| match call.overload.as_str() {
        "no_stats" => by_the_batch(c, call, 5),
        _ => batch_norm(c, call),
    }),
    ("aten::_native_batch_norm_legit_functional", batch_norm),
    ("aten::_native_batch_norm_legit_no_training", batch_norm_functional),
    ("aten::_batch_norm_no_update", batch_norm_functional),
    ("aten::instance_norm", instance_norm),
    ("aten::rms_norm", rms_norm),
    ("aten::_fused_rms_norm", rms_norm),
    ("aten::_weight_norm", weight_norm),
];

/// Gain and bias (arguments `gain_at` and `gain_at + 1`) of the given shape in `dtype`; `None` if both are missing.
fn affine(c: &mut Ctx, call: &Call, gain_at: usize, dtype: DType, shape: &[usize]) -> Res<Option<[ValueId; 2]>> {
    let (gain, bias) = (c.opt_tensor(call, gain_at)?, c.opt_tensor(call, gain_at + 1)?);
    if gain.is_none() && bias.is_none() {
        return Ok(None);
    }
    let ty = Type::new(dtype, shape);
    let or = |c: &mut Ctx, v: Option<ValueId>, otherwise| match v {
        Some(v) => c.cast(v, dtype),
        None => c.full(&ty, Scalar::Int(otherwise)),
    };
    Ok(Some([or(c, gain, 1)?, or(c, bias, 0)?]))
}

fn with_affine(x: ValueId, affine: Option<[ValueId; 2]>) -> Vec<ValueId> {
    let mut args = vec![x];
    args.extend(affine.into_iter().flatten());
    args
}

/// `(x, shape, gain?, bias?, eps, …)`.
fn layer_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, shape, eps) = (c.tensor(call, 0)?, c.sizes(call, 1)?, c.float(call, 4)?);
    let affine = affine(c, call, 2, c.dtype(x), &shape)?;
    let op = Op::LayerNorm { axes: shape.len(), affine: affine.is_some(), eps: Scalar::Float(eps) };
    Ok(vec![c.node(op, &with_affine(x, affine))?])
}

/// `(x, groups, gain?, bias?, eps, …)`.
fn group_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, groups, eps) = (c.tensor(call, 0)?, c.int(call, 1)? as usize, c.float(call, 4)?);
    grouped(c, call, x, groups, 2, eps)
}

fn grouped(c: &mut Ctx, call: &Call, x: ValueId, groups: usize, gain_at: usize, eps: f64) -> Res<Vec<ValueId>> {
    let channels = *c.shape(x).get(1).ok_or("no channel axis")?;
    let affine = affine(c, call, gain_at, c.dtype(x), &[channels])?;
    let op = Op::GroupNorm { groups, affine: affine.is_some(), eps: Scalar::Float(eps) };
    Ok(vec![c.node(op, &with_affine(x, affine))?])
}

/// `(x, gain?, bias?, mean?, var?, training, momentum, eps, …)`. Training without running statistics means those of the
/// batch, in evaluation too.
fn batch_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    if c.bool(call, 5)? {
        return by_the_batch(c, call, 7);
    }
    let (x, eps) = (c.tensor(call, 0)?, c.float(call, 7)?);
    let channels = *c.shape(x).get(1).ok_or("no channel axis")?;
    let dtype = c.dtype(x);
    let [gain, bias] = match affine(c, call, 1, dtype, &[channels])? {
        Some(both) => both,
        None => {
            let ty = Type::new(dtype, [channels]);
            [c.full(&ty, Scalar::Int(1))?, c.full(&ty, Scalar::Int(0))?]
        }
    };
    let (mean, var) = (c.tensor(call, 3)?, c.tensor(call, 4)?);
    let (mean, var) = (c.cast(mean, dtype)?, c.cast(var, dtype)?);
    Ok(vec![c.node(Op::BatchNorm { eps: Scalar::Float(eps) }, &[x, gain, bias, mean, var])?])
}

/// `(x, gain?, bias?, …)` with eps at `eps_at`: a norm by mean and variance of each channel over the batch.
fn by_the_batch(c: &mut Ctx, call: &Call, eps_at: usize) -> Res<Vec<ValueId>> {
    let (x, eps) = (c.tensor(call, 0)?, c.float(call, eps_at)?);
    let (dtype, shape) = (c.dtype(x), c.shape(x));
    let channels = *shape.get(1).ok_or("no channel axis")?;
    let affine = affine(c, call, 1, dtype.compute(), &[channels])?;
    let over: Vec<usize> = (0..shape.len()).filter(|a| *a != 1).collect();
    let by_channel = along(shape.len(), 1, channels)?;
    let normed = c.in_compute(x, dtype, |c, x| {
        let mean = c.reduce(ReduceOp::Mean, x, &over)?;
        let centred = c.binary(BinaryOp::Sub, x, mean)?;
        let square = c.binary(BinaryOp::Mul, centred, centred)?;
        let variance = c.reduce(ReduceOp::Mean, square, &over)?;
        let above_zero = c.with(BinaryOp::Add, variance, eps)?;
        let scale = c.unary(UnaryOp::Rsqrt, above_zero)?;
        let normed = c.binary(BinaryOp::Mul, centred, scale)?;
        let Some([gain, bias]) = affine else { return Ok(normed) };
        let (gain, bias) = (c.reshape(gain, &by_channel)?, c.reshape(bias, &by_channel)?);
        let scaled = c.binary(BinaryOp::Mul, normed, gain)?;
        c.binary(BinaryOp::Add, scaled, bias)
    })?;
    Ok(vec![normed])
}

/// `(x, gain?, bias?, mean, var, momentum, eps)`: batch norm of a functional program; mean and deviation, its further
/// results, are empty.
fn batch_norm_functional(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (before, after) = call.args.split_at_checked(5).unwrap_or((&call.args, &[]));
    let args = [before, &[Arg::Bool(false)], after].concat();
    batch_norm(c, &Call { args, ..empty(call) })
}

/// `(x, gain?, bias?, mean?, var?, use_input_stats, momentum, eps, …)`: a group norm with one channel per group, or a
/// batch norm if the running statistics are used.
fn instance_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    if !c.bool(call, 5)? {
        let mut same = Call { args: call.args.clone(), ..empty(call) };
        *same.args.get_mut(5).ok_or("no argument that says which statistics are used")? = Arg::Bool(false);
        return batch_norm(c, &same);
    }
    let (x, eps) = (c.tensor(call, 0)?, c.float(call, 7)?);
    let channels = *c.shape(x).get(1).ok_or("no channel axis")?;
    grouped(c, call, x, channels, 1, eps)
}

fn empty(call: &Call) -> Call {
    Call {
        name: call.name.clone(),
        overload: call.overload.clone(),
        args: vec![],
        outs: call.outs.clone(),
        source: call.source.clone(),
        module: call.module.clone(),
        vouched: false,
    }
}

/// `(x, shape, gain?, eps?)`; eps defaults to the machine epsilon of the compute type.
fn rms_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, shape) = (c.tensor(call, 0)?, c.sizes(call, 1)?);
    let dtype = c.dtype(x);
    // torch uses the epsilon of the type it computes in, which is f32 for narrower floats.
    let machine = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let eps = c.opt_scalar(call, 3)?.map_or(machine, Scalar::as_f64);
    let gain = match c.opt_tensor(call, 2)? {
        Some(g) => c.cast(g, dtype)?,
        None => c.full(&Type::new(dtype, shape.clone()), Scalar::Int(1))?,
    };
    if shape.len() == 1 {
        return Ok(vec![c.node(Op::RmsNorm { eps: Scalar::Float(eps) }, &[x, gain])?]);
    }
    let rank = c.rank(x);
    let first = rank.checked_sub(shape.len()).ok_or("a norm over more axes than there are")?;
    let axes: Vec<usize> = (first..rank).collect();
    Ok(vec![c.in_compute(x, dtype, |c, x| {
        let xx = c.binary(BinaryOp::Mul, x, x)?;
        let mean = c.reduce(ReduceOp::Mean, xx, &axes)?;
        let mean = c.with(BinaryOp::Add, mean, eps)?;
        let r = c.unary(UnaryOp::Rsqrt, mean)?;
        let r = c.binary(BinaryOp::Mul, x, r)?;
        let gain = c.cast(gain, c.dtype(x))?;
        c.binary(BinaryOp::Mul, r, gain)
    })?])
}

/// `(v, g, axis)`: `v g / |v|`, with the norm over all axes but one; over all for axis -1.
fn weight_norm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (v, g) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let (rank, dtype) = (c.rank(v), c.dtype(v));
    let kept = match c.int(call, 2)? {
        -1 => None,
        axis => Some(super::context::normal_axis(axis, rank)?),
    };
    let axes: Vec<usize> = (0..rank).filter(|a| Some(*a) != kept).collect();
    Ok(vec![c.in_compute(v, dtype, |c, v| {
        let vv = c.binary(BinaryOp::Mul, v, v)?;
        let sum = c.reduce(ReduceOp::Sum, vv, &axes)?;
        let norm = c.unary(UnaryOp::Sqrt, sum)?;
        let g = c.cast(g, c.dtype(v))?;
        let factor = c.binary(BinaryOp::Div, g, norm)?;
        c.binary(BinaryOp::Mul, v, factor)
    })?])
}
