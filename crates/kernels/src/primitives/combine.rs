//! Reductions and scans by any associative function.
//!
//! A function that is one op of the IR on its two operands becomes the IR's own reduction. Others are applied to halves
//! of the block, in log2 of the axis' size steps, which keep the order of the elements.
use super::arguments::{known_flag, known_int, tensor, tensors};
use super::{Primitive, Walk, row};
use crate::emit::Emitted;
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::ops::convert::{cast, to_tensor};
use crate::ops::shape;
use crate::types::Number;
use crate::value::{Callee, Constant, FunctionId, Tensor, Value};
use kiln_block::{BinaryOp, CmpOp, Op, ReduceOp, ScanOp};

pub const TABLE: &[Primitive] = &[
    row("reduce", "input, axis, combine_fn, keep_dims=False", reduce),
    row("associative_scan", "input, axis, combine_fn, reverse=False", scan),
    row("_flip", "x, axis", flip),
];

fn function(value: &Value) -> Eval<FunctionId> {
    match value {
        Value::Callee(Callee::Function(id)) => Ok(*id),
        other => Err(type_error(
            format!("{} does not combine two elements", other.describe()),
            "pass a function that is decorated as a kernel",
        )),
    }
}

fn reduce(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let combine = function(&arguments[2])?;
    let mut inputs = tensors(walk, &arguments[0])?;
    let shape_before = checked_inputs(&inputs, "reduce")?;
    let axis = match &arguments[1] {
        none if none.is_none() => {
            for input in &mut inputs {
                *input = shape::reshape(walk.emit(), input, &[input.ty.count()])?;
            }
            0
        }
        axis => shape::axis(known_int("axis", axis)?, shape_before.len())?,
    };
    let mut results = reduced(walk, &inputs, axis, combine)?;
    if known_flag("keep_dims", &arguments[3])? {
        let mut kept = shape_before.clone();
        match arguments[1].is_none() {
            true => kept.iter_mut().for_each(|size| *size = 1),
            false => kept[axis] = 1,
        }
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
    let direction = if known_flag("reverse", &arguments[3])? { Direction::Backward } else { Direction::Forward };
    let known = match (&inputs[..], direction) {
        ([input], Direction::Forward) => known_combination(walk, input, combine)?.and_then(scan_op),
        _ => None,
    };
    let results = match known {
        Some(op) => vec![walk.emit().scan(op, &inputs[0], axis)?],
        None => scanned(walk, inputs, axis, combine, direction)?,
    };
    Ok(as_given(&arguments[0], results))
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
fn known_combination(walk: &mut dyn Walk, input: &Tensor, combine: FunctionId) -> Eval<Option<BinaryOp>> {
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

fn reduced(walk: &mut dyn Walk, inputs: &[Tensor], axis: usize, combine: FunctionId) -> Eval<Vec<Tensor>> {
    if let [input] = inputs
        && let Some(known) = known_combination(walk, input, combine)?
        && let Some(result) = reduced_by_op(walk, input, axis, known)?
    {
        return Ok(vec![result]);
    }
    reduced_by_halves(walk, inputs.to_vec(), axis, combine)
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
        BinaryOp::MaxNum => return emit.reduce_max_number(x, axis).map(Some),
        BinaryOp::MinNum => return emit.reduce_min_number(x, axis).map(Some),
        _ => return Ok(None),
    };
    if is_bool && !matches!(op, ReduceOp::And | ReduceOp::Or) {
        return Ok(None);
    }
    emit.reduce(op, x, axis).map(Some)
}

/// Calls the function on blocks; results have the types of the operands.
fn combined(walk: &mut dyn Walk, combine: FunctionId, a: &[Tensor], b: &[Tensor]) -> Eval<Vec<Tensor>> {
    let operands = a.iter().chain(b).cloned().map(Value::Tensor).collect();
    let result = walk.call_function(combine, operands)?;
    let results = tensors(walk, &result)?;
    if results.len() != a.len() {
        return Err(type_error(
            format!("the function that combines {} values gives {}", a.len(), results.len()),
            "it returns as many values as it combines",
        ));
    }
    results
        .iter()
        .zip(a)
        .map(|(result, operand)| {
            if result.ty.shape != operand.ty.shape {
                return Err(type_error(
                    format!("the function that combines {} gives {}", operand.ty, result.ty),
                    "it works element by element",
                ));
            }
            cast(walk.emit(), result, operand.ty.scalar)
        })
        .collect()
}

/// Neighbours are combined until one element is left.
fn reduced_by_halves(
    walk: &mut dyn Walk,
    mut inputs: Vec<Tensor>,
    axis: usize,
    combine: FunctionId,
) -> Eval<Vec<Tensor>> {
    let mut size = inputs[0].ty.shape[axis];
    while size > 1 {
        size /= 2;
        let mut sides: [Vec<Tensor>; 2] = [vec![], vec![]];
        for input in &inputs {
            let mut paired = input.ty.shape.clone();
            paired[axis] = size;
            paired.insert(axis + 1, 2);
            let pairs = walk.emit().reshape(input, &paired)?;
            for (at, side) in sides.iter_mut().enumerate() {
                let part = walk.emit().part(&pairs, axis + 1, at, 1)?;
                let mut halved = input.ty.shape.clone();
                halved[axis] = size;
                side.push(walk.emit().reshape(&part, &halved)?);
            }
        }
        inputs = combined(walk, combine, &sides[0], &sides[1])?;
    }
    inputs
        .iter()
        .map(|input| {
            let mut dropped = input.ty.shape.clone();
            dropped.remove(axis);
            walk.emit().drop_axis(input, axis, &dropped)
        })
        .collect()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Forward,
    Backward,
}

/// A view of a block with the axis' index cut at a bit: [outer, pairs, 2, run, inner].
struct Cut {
    shape: Vec<usize>,
    run: usize,
}

impl Cut {
    fn new(shape: &[usize], axis: usize, bit: u32) -> Cut {
        let run = 1usize << bit;
        let outer: usize = shape[..axis].iter().product();
        let inner: usize = shape[axis + 1..].iter().product();
        Cut { shape: vec![outer, shape[axis] / (2 * run), 2, run, inner], run }
    }
}

/// In step j runs of 2^j elements are done; the end of each left run is combined into all of the run to its right.
fn scanned(
    walk: &mut dyn Walk,
    mut inputs: Vec<Tensor>,
    axis: usize,
    combine: FunctionId,
    direction: Direction,
) -> Eval<Vec<Tensor>> {
    let shape = inputs[0].ty.shape.clone();
    for bit in 0..shape[axis].trailing_zeros() {
        let cut = Cut::new(&shape, axis, bit);
        // The run that is complete, its element that is combined on, and the run that is extended.
        let (from, end) = match direction {
            Direction::Forward => (0, cut.run - 1),
            Direction::Backward => (1, 0),
        };
        let (mut done, mut ends, mut open) = (vec![], vec![], vec![]);
        for input in &inputs {
            let emit = walk.emit();
            let runs = emit.reshape(input, &cut.shape)?;
            let complete = emit.part(&runs, 2, from, 1)?;
            let extended = emit.part(&runs, 2, 1 - from, 1)?;
            let last = emit.part(&complete, 3, end, 1)?;
            ends.push(emit.broadcast(&last, &extended.ty.shape)?);
            done.push(complete);
            open.push(extended);
        }
        let extended = combined(walk, combine, &ends, &open)?;
        for (input, (complete, extended)) in inputs.iter_mut().zip(done.iter().zip(&extended)) {
            let sides = if from == 0 { [complete, extended] } else { [extended, complete] };
            let runs = either(walk, sides, &cut.shape)?;
            *input = walk.emit().reshape(&runs, &shape)?;
        }
    }
    Ok(inputs)
}

/// A block whose axis 2 has the two blocks as its two places.
fn either(walk: &mut dyn Walk, [left, right]: [&Tensor; 2], shape: &[usize]) -> Eval<Tensor> {
    let emit = walk.emit();
    let place = shape::index_along(emit, shape, 2)?;
    let zero = to_tensor(emit, &Value::Constant(Constant::Int(0)))?;
    let zero = emit.splat(&zero, shape)?;
    let head = emit.compare(CmpOp::Eq, &place, &zero)?;
    let (left, right) = (emit.broadcast(left, shape)?, emit.broadcast(right, shape)?);
    emit.select(&head, &left, &right)
}

/// The elements of an axis from the last to the first: halves change places at every size.
fn flip(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let x = tensor(walk, &arguments[0])?;
    let axis = shape::axis(known_int("dim", &arguments[1])?, x.ty.shape.len())?;
    let shape = x.ty.shape.clone();
    let mut flipped = x;
    for bit in 0..shape[axis].trailing_zeros() {
        let cut = Cut::new(&shape, axis, bit);
        let runs = walk.emit().reshape(&flipped, &cut.shape)?;
        let left = walk.emit().part(&runs, 2, 0, 1)?;
        let right = walk.emit().part(&runs, 2, 1, 1)?;
        let swapped = either(walk, [&right, &left], &cut.shape)?;
        flipped = walk.emit().reshape(&swapped, &shape)?;
    }
    Ok(Value::Tensor(flipped))
}
