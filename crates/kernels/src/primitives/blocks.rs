//! Blocks: made, cast, moved, combined element by element, multiplied.
use super::arguments::{known, known_flag, known_int, known_text, sequence, sizes, tensor, type_of};
use super::windows::descriptor_gather;
use super::{Primitive, Walk, row};
use crate::emit::retyped;
use crate::error::{Eval, type_error, value_error};
use crate::ops::arithmetic::{self, Extreme, NanRule, extreme};
use crate::ops::convert::{bitcast, broadcast, cast, scalar_constant, to_tensor};
use crate::ops::{dot, shape};
use crate::syntax::tree::BinaryOp;
use crate::types::{Number, Scalar, checked_shape, padded};
use crate::value::{Tensor, Value};
use kiln_block::ReduceOp;

pub const TABLE: &[Primitive] = &[
    row("arange", "start, end", arange),
    row("full", "shape, value, dtype", full_block),
    row("cast", "input, dtype, fp_downcast_rounding=None, bitcast=False", cast_value),
    row("broadcast", "input, other", broadcast_pair),
    row("broadcast_to", "input, *shape", broadcast_to),
    row("expand_dims", "input, axis", expand_dims),
    row("reshape", "input, *shape, can_reorder=False", reshape),
    row("view", "input, *shape, can_reorder=False", reshape),
    row("permute", "input, *dims", permute),
    row("trans", "input, *dims", permute),
    row("join", "a, b", join),
    row("split", "a", split),
    row("cat", "input, other, can_reorder=False, dim=0", cat),
    row("item", "input", |e, a| {
        let x = tensor(e, &a[0])?;
        shape::item(e.emit(), &x).map(Value::Tensor)
    }),
    row("_index_along", "input, axis", index_along),
    row("_with_pads", "input, largest", with_pads),
    row("_without_pads", "input, shape", |e, a| {
        let (x, shape) = (tensor(e, &a[0])?, checked_shape(&sizes(&a[1])?)?);
        Ok(Value::Tensor(retyped(&x, &shape)))
    }),
    row("where", "condition, x, y", |e, a| arithmetic::select(e.emit(), &a[0], &a[1], &a[2]).map(Value::Tensor)),
    row("add", "x, y, sanitize_overflow=True", |e, a| operator(e, BinaryOp::Add, a)),
    row("sub", "x, y, sanitize_overflow=True", |e, a| operator(e, BinaryOp::Sub, a)),
    row("mul", "x, y, sanitize_overflow=True", |e, a| operator(e, BinaryOp::Mul, a)),
    row("maximum", "x, y, propagate_nan=None", |e, a| extreme_of(e, Extreme::Max, a)),
    row("minimum", "x, y, propagate_nan=None", |e, a| extreme_of(e, Extreme::Min, a)),
    row("fmax", "x, y", |e, a| extreme(e.emit(), Extreme::Max, &a[0], &a[1], NanRule::Ignore).map(Value::Tensor)),
    row("fmin", "x, y", |e, a| extreme(e.emit(), Extreme::Min, &a[0], &a[1], NanRule::Ignore).map(Value::Tensor)),
    row("clamp", "x, min, max, propagate_nan=None", clamp),
    row("logical_and", "x, y", |e, a| logical(e, kiln_block::BinaryOp::And, a)),
    row("logical_or", "x, y", |e, a| logical(e, kiln_block::BinaryOp::Or, a)),
    row(
        "dot",
        "input, other, acc=None, input_precision=None, allow_tf32=None, max_num_imprecise_acc=None, out_dtype=None",
        dot_blocks,
    ),
    row("map_elementwise", "scalar_fn, *args, pack=1", map_elementwise),
    row("gather", "src, index, axis", |e, a| {
        if let Value::Descriptor(descriptor) = &a[0] {
            return descriptor_gather(e, descriptor, &a[1], &a[2]);
        }
        let (x, positions) = (tensor(e, &a[0])?, tensor(e, &a[1])?);
        shape::gather(e.emit(), &x, &positions, known_int("axis", &a[2])?).map(Value::Tensor)
    }),
    row("histogram", "input, num_bins, mask=None", histogram),
];

fn arange(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let (start, end) = (known_int("start", &arguments[0])?, known_int("end", &arguments[1])?);
    if end <= start {
        return Err(value_error(format!("arange from {start} to {end} is empty"), "the end is larger than the start"));
    }
    if start < i128::from(i32::MIN) || end > i128::from(i32::MAX) {
        return Err(value_error("arange counts in int32", "add an int64 to a smaller range"));
    }
    let count = checked_shape(&[end - start])?;
    let index = walk.emit().iota(count[0])?;
    if start == 0 {
        return Ok(Value::Tensor(index));
    }
    operator(walk, BinaryOp::Add, &[Value::Tensor(index), Value::int(start)])
}

fn full_block(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let shape = checked_shape(&sizes(&arguments[0])?)?;
    let ty = type_of(&arguments[2])?.with_shape(shape);
    shape::full(walk.emit(), &arguments[1], &ty).map(Value::Tensor)
}

fn cast_value(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let to = type_of(&arguments[1])?.scalar;
    let rounding = known_text("fp_downcast_rounding", &arguments[2])?;
    if let (Value::Constant(constant), Scalar::Number(number), false) =
        (&arguments[0], to, known_flag("bitcast", &arguments[3])?)
        && (number.is_float() || number == Number::Int1)
    {
        return scalar_constant(walk.emit(), constant, number).map(Value::Tensor);
    }
    let x = tensor(walk, &arguments[0])?;
    if known_flag("bitcast", &arguments[3])? {
        return bitcast(walk.emit(), &x, to).map(Value::Tensor);
    }
    if x.ty.scalar == to {
        return Ok(Value::Tensor(x));
    }
    let narrows = match (x.ty.scalar, to) {
        (Scalar::Number(from), Scalar::Number(to)) => from.is_float() && to.is_float() && to.bits() < from.bits(),
        _ => false,
    };
    match (&rounding[..], to) {
        ("", _) => cast(walk.emit(), &x, to).map(Value::Tensor),
        _ if !narrows => Err(value_error(
            format!("a rounding mode is given for a cast of {} to {to}", x.ty),
            "it is for casts to narrower floats; leave it out",
        )),
        ("rtne", _) => cast(walk.emit(), &x, to).map(Value::Tensor),
        ("rtz", Scalar::Number(number)) => walk.emit().cast_toward_zero(&x, number).map(Value::Tensor),
        _ => Err(value_error(format!("the rounding mode '{rounding}' does not exist"), "'rtne' and 'rtz' do")),
    }
}

/// Sizes given one by one, or as one tuple.
fn listed_sizes(rest: &Value) -> Eval<Vec<i128>> {
    match rest {
        Value::Tuple(tuple) if tuple.values.len() == 1 && matches!(tuple.values[0], Value::Tuple(_)) => {
            sizes(&tuple.values[0])
        }
        _ => sizes(rest),
    }
}

fn broadcast_pair(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let (a, b) = (tensor(walk, &arguments[0])?, tensor(walk, &arguments[1])?);
    let (a, b) = broadcast(walk.emit(), &a, &b)?;
    Ok(Value::tuple(vec![Value::Tensor(a), Value::Tensor(b)]))
}

fn broadcast_to(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let to = checked_shape(&listed_sizes(&arguments[1])?)?;
    shape::broadcast_shape(walk.emit(), &x, &to).map(Value::Tensor)
}

fn expand_dims(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let axes = sizes(&arguments[1])?;
    shape::expand_dims(walk.emit(), &x, &axes).map(Value::Tensor)
}

fn reshape(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let to = checked_shape(&listed_sizes(&arguments[1])?)?;
    shape::reshape(walk.emit(), &x, &to).map(Value::Tensor)
}

fn permute(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let order = listed_sizes(&arguments[1])?;
    if order.is_empty() {
        return shape::transpose(walk.emit(), &x).map(Value::Tensor);
    }
    shape::permute(walk.emit(), &x, &order).map(Value::Tensor)
}

fn join(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let (a, b) = (tensor(walk, &arguments[0])?, tensor(walk, &arguments[1])?);
    shape::join(walk.emit(), &a, &b).map(Value::Tensor)
}

fn split(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let halves = shape::split(walk.emit(), &x)?;
    Ok(Value::tuple(halves.into_iter().map(Value::Tensor).collect()))
}

fn cat(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let (a, b) = (tensor(walk, &arguments[0])?, tensor(walk, &arguments[1])?);
    shape::concatenate(walk.emit(), &a, &b, known_int("dim", &arguments[3])?).map(Value::Tensor)
}

fn index_along(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    if arguments[1].is_none() && x.ty.has_pads() {
        return flat_index(walk, &x.ty.shape).map(Value::Tensor);
    }
    if arguments[1].is_none() {
        let index = walk.emit().iota(x.ty.count())?;
        return shape::reshape(walk.emit(), &index, &x.ty.shape).map(Value::Tensor);
    }
    let axis = shape::axis(known_int("axis", &arguments[1])?, x.ty.shape.len())?;
    walk.emit().index_along(&x.ty.shape, axis).map(Value::Tensor)
}

/// The block as one whose sizes are powers of two; what is added is the largest or the least number.
fn with_pads(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let op = match known_flag("largest", &arguments[1])? {
        true => ReduceOp::Min,
        false => ReduceOp::Max,
    };
    let filled = walk.emit().with_identity_in_all_pads(op, &x)?;
    Ok(Value::Tensor(retyped(&filled, &padded(&x.ty.shape))))
}

/// The number of each element of a shape, row by row.
fn flat_index(walk: &mut dyn Walk, shape: &[usize]) -> Eval<Tensor> {
    let emit = walk.emit();
    let mut number = emit.index_along(shape, 0)?;
    for axis in 1..shape.len() {
        let size = emit.int_like(&number, shape[axis] as i128)?;
        let outer = emit.binary(kiln_block::BinaryOp::Mul, &number, &size)?;
        let index = emit.index_along(shape, axis)?;
        number = emit.binary(kiln_block::BinaryOp::Add, &outer, &index)?;
    }
    Ok(number)
}

fn operator(walk: &mut dyn Walk, op: BinaryOp, arguments: &[Value]) -> Eval<Value> {
    if let (Value::Constant(_), Value::Constant(_)) = (&arguments[0], &arguments[1]) {
        let a = Value::Tensor(tensor(walk, &arguments[0])?);
        return arithmetic::binary(walk.emit(), op, &a, &arguments[1]).map(Value::Tensor);
    }
    arithmetic::binary(walk.emit(), op, &arguments[0], &arguments[1]).map(Value::Tensor)
}

fn nan_rule(value: &Value) -> Eval<NanRule> {
    let name = known_text("propagate_nan", value)?;
    match name.rsplit('.').next() {
        Some("" | "NONE") | None => Ok(NanRule::Ignore),
        Some("ALL") => Ok(NanRule::Propagate),
        Some(other) => Err(value_error(format!("propagate_nan '{other}' does not exist"), "NONE and ALL do")),
    }
}

fn extreme_of(walk: &mut dyn Walk, which: Extreme, arguments: &[Value]) -> Eval<Value> {
    let rule = nan_rule(&arguments[2])?;
    extreme(walk.emit(), which, &arguments[0], &arguments[1], rule).map(Value::Tensor)
}

fn clamp(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let rule = nan_rule(&arguments[3])?;
    let emit = walk.emit();
    let x = to_tensor(emit, &arguments[0])?;
    let least = extreme(emit, Extreme::Max, &Value::Tensor(x), &arguments[1], rule)?;
    let clamped = extreme(emit, Extreme::Min, &Value::Tensor(least), &arguments[2], rule)?;
    if !clamped.number()?.is_float() {
        return Err(type_error(
            format!("clamp takes floats; this is {}", clamped.ty),
            "use `minimum(maximum(x, low), high)`",
        ));
    }
    Ok(Value::Tensor(clamped))
}

fn logical(walk: &mut dyn Walk, op: kiln_block::BinaryOp, arguments: &[Value]) -> Eval<Value> {
    let (a, b) = (tensor(walk, &arguments[0])?, tensor(walk, &arguments[1])?);
    arithmetic::logical(walk.emit(), op, &a, &b).map(Value::Tensor)
}

fn dot_blocks(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let (a, b) = (tensor(walk, &arguments[0])?, tensor(walk, &arguments[1])?);
    let sum = match &arguments[2] {
        none if none.is_none() => None,
        sum => Some(tensor(walk, sum)?),
    };
    let named = known_text("input_precision", &arguments[3])?;
    let allow_tf32 = match &arguments[4] {
        none if none.is_none() => None,
        value => Some(known_flag("allow_tf32", value)?),
    };
    let out = match &arguments[6] {
        none if none.is_none() => None,
        ty => type_of(ty)?.scalar.number(),
    };
    let precision = dot::precision(Some(&named[..]).filter(|name| !name.is_empty()), allow_tf32)?;
    let options = dot::DotOptions { precision, out };
    dot::dot(walk.emit(), &a, &b, sum.as_ref(), &options).map(Value::Tensor)
}

/// The function is applied to whole blocks, which means the same.
fn map_elementwise(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let Value::Callee(function) = &arguments[0] else {
        return Err(known("scalar_fn", &arguments[0]));
    };
    let values = sequence(&arguments[1])?;
    walk.call_function(*function, values)
}

/// How often each number below `num_bins` occurs.
fn histogram(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let bins = checked_shape(&[known_int("num_bins", &arguments[1])?])?[0];
    if x.ty.shape.len() != 1 || !x.number()?.is_int() {
        return Err(type_error(
            format!("histogram takes integers in a block of one axis; this is {}", x.ty),
            "flatten it with `ravel`",
        ));
    }
    checked_shape(&[x.ty.count() as i128, bins as i128])?;
    let emit = walk.emit();
    let bin = emit.iota(bins)?;
    let bin = cast(emit, &bin, x.ty.scalar)?;
    let (rows, columns) = (emit.expand_dims(&x, 1)?, emit.expand_dims(&bin, 0)?);
    let (rows, columns) = broadcast(emit, &rows, &columns)?;
    let mut hit = emit.compare(kiln_block::CmpOp::Eq, &rows, &columns)?;
    if !arguments[2].is_none() {
        let mask = to_tensor(emit, &arguments[2])?;
        let mask = crate::ops::convert::broadcast_to(emit, &mask, &x.ty.shape)?;
        let mask = emit.expand_dims(&mask, 1)?;
        hit = arithmetic::logical(emit, kiln_block::BinaryOp::And, &hit, &mask)?;
    }
    let counts = emit.cast(&hit, Number::Int32)?;
    emit.reduce(ReduceOp::Sum, &counts, 0).map(Value::Tensor)
}
