//! Reductions and scans by any associative function.
//!
//! A function that is one op of the IR on its two operands becomes the IR's own reduction; others are its region.
use super::arguments::{known_flag, known_int, tensor, tensors};
use super::{Primitive, Walk, row};
use crate::emit::Emitted;
use crate::error::{Eval, internal, type_error, unsupported, value_error};
use crate::ops::convert::cast;
use crate::ops::shape;
use crate::types::{Number, TensorType};
use crate::value::{Callee, Tensor, Value};
use kiln_block::{BinaryOp, Op, ReduceOp, ScanOp};

pub const TABLE: &[Primitive] = &[
    row("reduce", "input, axis, combine_fn, keep_dims=False", reduce),
    row("associative_scan", "input, axis, combine_fn, reverse=False", scan),
    row("_flip", "x, axis", flip),
];

fn function(value: &Value) -> Eval<Callee> {
    match value {
        Value::Callee(callee) => Ok(*callee),
        other => Err(type_error(
            format!("{} does not combine two elements", other.describe()),
            "pass a function that is decorated as a kernel, or one of the language such as `maximum`",
        )),
    }
}

fn reduce(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let combine = function(&arguments[2])?;
    let mut inputs = tensors(walk, &arguments[0])?;
    let shape_before = checked_inputs(&inputs, "reduce")?;
    let padded = inputs.iter().any(|input| input.ty.has_pads());
    let mut kept = shape_before.clone();
    let mut results = match &arguments[1] {
        none if none.is_none() && padded => {
            kept.fill(1);
            reduced_axis_by_axis(walk, inputs, combine)?
        }
        none if none.is_none() => {
            kept.fill(1);
            for input in &mut inputs {
                *input = shape::reshape(walk.emit(), input, &[input.ty.count()])?;
            }
            reduced(walk, &inputs, 0, combine)?
        }
        axis => {
            let axis = shape::axis(known_int("axis", axis)?, shape_before.len())?;
            kept[axis] = 1;
            reduced(walk, &inputs, axis, combine)?
        }
    };
    if known_flag("keep_dims", &arguments[3])? {
        for result in &mut results {
            *result = shape::reshape(walk.emit(), result, &kept)?;
        }
    }
    Ok(as_given(&arguments[0], results))
}

fn scan(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let combine = function(&arguments[2])?;
    let inputs = tensors(walk, &arguments[0])?;
    let rank = checked_inputs(&inputs, "associative_scan")?.len();
    let axis = shape::axis(known_int("axis", &arguments[1])?, rank)?;
    let reverse = known_flag("reverse", &arguments[3])?;
    if let ([input], false) = (&inputs[..], reverse)
        && let Some(op) = known_combination(walk, input, combine)?.and_then(scan_op)
    {
        return walk.emit().scan(op, input, axis).map(Value::Tensor);
    }
    let counted = if reverse { walk.emit().counted_along(&inputs[0].ty.shape, axis)? } else { None };
    // From the last element on, the pad comes first.
    let results = match counted {
        None => {
            let yields = combination(walk, &inputs, combine)?;
            walk.emit().scan_by(&inputs, axis, reverse, &yields)?
        }
        Some(counted) => {
            let inputs = [&inputs[..], &[counted]].concat();
            let yields = counted_combination(walk, &inputs, combine)?;
            let mut results = walk.emit().scan_by(&inputs, axis, reverse, &yields)?;
            results.pop();
            results
        }
    };
    Ok(as_given(&arguments[0], results))
}

/// The innermost axis first, so that elements are combined in their order.
fn reduced_axis_by_axis(walk: &mut dyn Walk, mut inputs: Vec<Tensor>, combine: Callee) -> Eval<Vec<Tensor>> {
    for axis in (0..inputs[0].ty.shape.len()).rev() {
        inputs = reduced(walk, &inputs, axis, combine)?;
    }
    Ok(inputs)
}

/// The common shape.
fn checked_inputs(inputs: &[Tensor], name: &str) -> Eval<Vec<usize>> {
    let Some(head) = inputs.first() else {
        return Err(value_error(format!("{name} of no blocks"), "pass a block"));
    };
    if !head.ty.is_block() {
        return Err(type_error(
            format!("{name} takes a block; this is {}, a scalar", head.ty),
            "use the scalar itself",
        ));
    }
    if let Some(other) = inputs.iter().find(|input| input.ty.shape != head.ty.shape) {
        return Err(type_error(
            format!("{name} takes blocks of one shape; these are {} and {}", head.ty, other.ty),
            "broadcast them to one shape",
        ));
    }
    if shape::any_pointer(inputs) {
        return Err(unsupported(format!("{name} of pointers is not supported"), "combine offsets instead"));
    }
    Ok(head.ty.shape.clone())
}

/// One result if a block was given, a tuple if a tuple was.
fn as_given(given: &Value, results: Vec<Tensor>) -> Value {
    let mut values: Vec<Value> = results.into_iter().map(Value::Tensor).collect();
    match (given, values.len()) {
        (Value::Tuple(_), _) | (_, 0) => Value::tuple(values),
        _ => values.swap_remove(0),
    }
}

/// The scan of the IR by an op.
fn scan_op(op: BinaryOp) -> Option<ScanOp> {
    match op {
        BinaryOp::Add => Some(ScanOp::Sum),
        BinaryOp::Mul => Some(ScanOp::Prod),
        BinaryOp::Max => Some(ScanOp::Max),
        _ => None,
    }
}

/// The op that a function of two elements is, if it is one. The function is walked in a region that is thrown away.
fn known_combination(walk: &mut dyn Walk, input: &Tensor, combine: Callee) -> Eval<Option<BinaryOp>> {
    let element = shape::element(&input.ty);
    let operands = walk.emit().open(&[element.clone(), element])?;
    let values = operands.iter().cloned().map(Value::Tensor).collect();
    let result = walk.call_function(combine, values);
    let emitted = walk.emit().discard();
    let result = result?.tensor().map(|tensor| tensor.value);
    let [a, b] = [operands[0].value, operands[1].value];
    match &emitted[..] {
        [Emitted { op: Op::Binary(op), args, result: value }]
            if (args[..] == [a, b] || args[..] == [b, a]) && *value == result =>
        {
            Ok(Some(*op))
        }
        _ => Ok(None),
    }
}

fn reduced(walk: &mut dyn Walk, inputs: &[Tensor], axis: usize, combine: Callee) -> Eval<Vec<Tensor>> {
    if let [input] = inputs
        && let Some(known) = known_combination(walk, input, combine)?
        && let Some(result) = reduced_by_op(walk, input, axis, known)?
    {
        return Ok(vec![result]);
    }
    let Some(counted) = walk.emit().counted_along(&inputs[0].ty.shape, axis)? else {
        let yields = combination(walk, inputs, combine)?;
        return walk.emit().reduce_by(inputs, axis, &yields);
    };
    let inputs = [inputs, &[counted]].concat();
    let yields = counted_combination(walk, &inputs, combine)?;
    let mut results = walk.emit().reduce_by(&inputs, axis, &yields)?;
    results.pop();
    Ok(results)
}

fn reduced_by_op(walk: &mut dyn Walk, x: &Tensor, axis: usize, op: BinaryOp) -> Eval<Option<Tensor>> {
    let is_bool = x.number()? == Number::Int1;
    let emit = walk.emit();
    let op = match op {
        BinaryOp::Add => ReduceOp::Sum,
        BinaryOp::Mul => ReduceOp::Prod,
        BinaryOp::Max => ReduceOp::Max,
        BinaryOp::Min => ReduceOp::Min,
        BinaryOp::And => ReduceOp::And,
        BinaryOp::Or => ReduceOp::Or,
        BinaryOp::MaxNum => ReduceOp::MaxNum,
        BinaryOp::MinNum => ReduceOp::MinNum,
        _ => return Ok(None),
    };
    if is_bool && !matches!(op, ReduceOp::And | ReduceOp::Or) {
        return Ok(None);
    }
    emit.reduce(op, x, axis).map(Some)
}

/// Opens a region that combines an element of each operand with another of each, and leaves it open; gives what it
/// yields, in the types of the operands. The function's first operands are what is combined so far.
fn combination(walk: &mut dyn Walk, inputs: &[Tensor], combine: Callee) -> Eval<Vec<Tensor>> {
    let elements: Vec<TensorType> = inputs.iter().map(|input| shape::element(&input.ty)).collect();
    let operands = walk.emit().open(&[&elements[..], &elements[..]].concat())?;
    combined_elements(walk, operands, &elements, combine)
}

/// What the function gives for two elements of each type.
fn combined_elements(
    walk: &mut dyn Walk,
    operands: Vec<Tensor>,
    elements: &[TensorType],
    combine: Callee,
) -> Eval<Vec<Tensor>> {
    let result = walk.call_function(combine, operands.into_iter().map(Value::Tensor).collect())?;
    let results = tensors(walk, &result)?;
    if results.len() != elements.len() {
        return Err(type_error(
            format!("the function that combines {} values gives {}", elements.len(), results.len()),
            "it returns as many values as it combines",
        ));
    }
    results
        .iter()
        .zip(elements)
        .map(|(result, element)| {
            if result.ty.shape != element.shape {
                return Err(type_error(
                    format!("the function that combines elements of type {element} gives {}", result.ty),
                    "it returns an element",
                ));
            }
            cast(walk.emit(), result, element.scalar)
        })
        .collect()
}

/// `combination` of blocks of which the last says what counts: of two elements the function takes part only if both do.
fn counted_combination(walk: &mut dyn Walk, inputs: &[Tensor], combine: Callee) -> Eval<Vec<Tensor>> {
    let elements: Vec<TensorType> = inputs.iter().map(|input| shape::element(&input.ty)).collect();
    let operands = walk.emit().open(&[&elements[..], &elements[..]].concat())?;
    let (a, b) = operands.split_at(inputs.len());
    let (Some((a_counts, a)), Some((b_counts, b))) = (a.split_last(), b.split_last()) else {
        return Err(internal("nothing is combined"));
    };
    let combined = combined_elements(walk, [a, b].concat(), &elements[..a.len()], combine)?;
    let emit = walk.emit();
    let both = emit.binary(BinaryOp::And, a_counts, b_counts)?;
    let mut yields = vec![];
    for (at, combined) in combined.iter().enumerate() {
        let one = emit.select(a_counts, &a[at], &b[at])?;
        yields.push(emit.select(&both, combined, &one)?);
    }
    yields.push(emit.binary(BinaryOp::Or, a_counts, b_counts)?);
    Ok(yields)
}

/// The elements of an axis from the last to the first.
fn flip(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let axis = shape::axis(known_int("dim", &arguments[1])?, x.ty.shape.len())?;
    let emit = walk.emit();
    let last = emit.int(Number::Int32, x.ty.shape[axis] as i128 - 1)?;
    let last = emit.splat(&last, &x.ty.shape)?;
    let index = emit.index_along(&x.ty.shape, axis)?;
    let from_last = emit.binary(BinaryOp::Sub, &last, &index)?;
    emit.gather(&x, &from_last, axis).map(Value::Tensor)
}
