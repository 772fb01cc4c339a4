//! Elements and parts of a block, and a block with other ones in their place.
use super::arithmetic::logical;
use super::convert::{broadcast_to, cast, to_tensor};
use super::memory::element_constant;
use crate::emit::Emitter;
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::types::{Number, Scalar, broadcast_shape};
use crate::value::{Constant, Tensor, Value};
use kiln_block::{BinaryOp, CmpOp};

/// What an index says of an axis.
enum Item {
    NewAxis,
    Whole,
    Part {
        from: usize,
        count: usize,
    },
    /// An int32 scalar; the result has no such axis.
    At(Tensor),
}

/// The items of an index, one for each axis of the block beside new ones.
fn items(emit: &mut Emitter, block: &Tensor, index: &Value) -> Eval<Vec<Item>> {
    let single = [index.clone()];
    let given: &[Value] = match index {
        Value::Tuple(tuple) => &tuple.values,
        _ => &single,
    };
    let rank = block.ty.shape.len();
    let named = given.iter().filter(|item| !item.is_none() && !matches!(item, Value::Ellipsis)).count();
    if named > rank {
        return Err(value_error(
            format!("unsupported tensor index: {} has {rank} axes, and the index names {named}", block.ty),
            "write one `:` for each axis",
        ));
    }
    if given.iter().filter(|item| matches!(item, Value::Ellipsis)).count() > 1 {
        return Err(value_error("an index has `...` twice", "write it once, for all axes that are not named"));
    }
    let mut items = vec![];
    let mut axis = 0;
    for item in given {
        match item {
            Value::Constant(Constant::None) => items.push(Item::NewAxis),
            Value::Ellipsis => {
                items.extend((named..rank).map(|_| Item::Whole));
                axis += rank - named;
            }
            item => {
                items.push(axis_item(emit, block.ty.shape[axis], item)?);
                axis += 1;
            }
        }
    }
    items.extend((axis..rank).map(|_| Item::Whole));
    Ok(items)
}

fn axis_item(emit: &mut Emitter, size: usize, item: &Value) -> Eval<Item> {
    match item {
        Value::Slice { lower: None, upper: None } => Ok(Item::Whole),
        Value::Slice { lower, upper } => {
            let end = |bound: &Option<Box<Value>>, open: i128| match bound.as_deref() {
                None => Ok(open),
                Some(value) => match value.constant().and_then(Constant::as_int) {
                    Some(end) if end < 0 => Ok(end + size as i128),
                    Some(end) => Ok(end.min(size as i128)),
                    None => Err(type_error(
                        format!("a slice of a block ends at {}", value.describe()),
                        "ends are constants: take elements at run time with `gather`",
                    )),
                },
            };
            let (from, to) = (end(lower, 0)?.max(0), end(upper, size as i128)?);
            match (usize::try_from(from), usize::try_from(to - from)) {
                (Ok(from), Ok(count)) if count > 0 => Ok(Item::Part { from, count }),
                _ => Err(value_error(
                    format!("the slice from {from} to {to} of {size} elements is empty"),
                    "a block has at least one element along each axis",
                )),
            }
        }
        Value::Constant(constant) if constant.as_int().is_some() => {
            let position = constant.as_int().unwrap_or(0);
            let from_front = if position < 0 { position + size as i128 } else { position };
            if !(0..size as i128).contains(&from_front) {
                return Err(value_error(
                    format!("element {position} of {size} along an axis"),
                    "elements are numbered from 0",
                ));
            }
            emit.int(Number::Int32, from_front).map(Item::At)
        }
        Value::Tensor(position) if !position.ty.is_block() && position.number()?.is_int() => {
            emit.cast(position, Number::Int32).map(Item::At)
        }
        other => Err(unsupported(
            format!("unsupported tensor index: {} is no index of a block", other.describe()),
            "`None`, `:`, `...`, constant slices and integers are; use `gather` for blocks of positions",
        )),
    }
}

/// `block[index]`.
pub fn of_block(emit: &mut Emitter, block: &Tensor, index: &Value) -> Eval<Tensor> {
    let mut result = block.clone();
    let mut axis = 0;
    for item in items(emit, block, index)? {
        match item {
            Item::NewAxis => {
                result = emit.expand_dims(&result, axis)?;
                axis += 1;
            }
            Item::Whole => axis += 1,
            Item::Part { from, count } => {
                result = emit.slice(&result, axis, from, count)?;
                axis += 1;
            }
            Item::At(position) => result = element(emit, &result, axis, &position)?,
        }
    }
    Ok(result)
}

/// What is at a position of an axis; 0 outside.
fn element(emit: &mut Emitter, x: &Tensor, axis: usize, position: &Tensor) -> Eval<Tensor> {
    if x.is_pointer() {
        return Err(unsupported(
            format!("elements of {} are not taken", x.ty),
            "index the offsets, and add them to the pointer",
        ));
    }
    let mut shape = x.ty.shape.clone();
    let last = emit.int(Number::Int32, shape[axis] as i128 - 1)?;
    let zero = emit.int(Number::Int32, 0)?;
    let within = emit.binary(BinaryOp::Max, position, &zero)?;
    let within = emit.binary(BinaryOp::Min, &within, &last)?;
    shape[axis] = 1;
    let positions = emit.splat(&within, &shape)?;
    let taken = emit.gather(x, &positions, axis)?;
    shape.remove(axis);
    let taken = emit.drop_axis(&taken, axis, &shape)?;
    if emit.constant_of(position.value).is_some() {
        return Ok(taken);
    }
    let inside = emit.compare(CmpOp::Eq, position, &within)?;
    let inside = emit.splat(&inside, &shape)?;
    let outside = super::shape::full(emit, &Value::int(0), &taken.ty)?;
    emit.select(&inside, &taken, &outside)
}

/// The block with a value in place of `block[index]`; positions outside change nothing.
pub fn updated(emit: &mut Emitter, block: &Tensor, index: &Value, value: &Value) -> Eval<Tensor> {
    let Scalar::Number(number) = block.ty.scalar else {
        return Err(unsupported(
            format!("elements of {} are not assigned", block.ty),
            "assign elements of the offsets, and add them to the pointer",
        ));
    };
    let items = items(emit, block, index)?;
    if items.iter().any(|item| matches!(item, Item::NewAxis)) {
        return Err(type_error("a new axis is assigned to", "leave `None` out, and give the value the axis"));
    }
    let value = match value {
        Value::Constant(constant) => element_constant(emit, constant, number)?,
        other => to_tensor(emit, other)?,
    };
    let value = cast(emit, &value, block.ty.scalar)?;
    let value = in_place(emit, block, &items, &value)?;
    let mut chosen: Option<Tensor> = None;
    for (axis, item) in items.iter().enumerate() {
        let mut conditions = vec![];
        let index = emit.index_along(&block.ty.shape, axis)?;
        match item {
            Item::Whole | Item::NewAxis => {}
            Item::At(position) => {
                let position = emit.splat(position, &block.ty.shape)?;
                conditions.push(emit.compare(CmpOp::Eq, &index, &position)?);
            }
            Item::Part { from, count } => {
                let (first, end) =
                    (emit.int_like(&index, *from as i128)?, emit.int_like(&index, (from + count) as i128)?);
                conditions.push(emit.compare(CmpOp::Ge, &index, &first)?);
                conditions.push(emit.compare(CmpOp::Lt, &index, &end)?);
            }
        }
        for condition in conditions {
            chosen = Some(match chosen {
                None => condition,
                Some(chosen) => logical(emit, BinaryOp::And, &chosen, &condition)?,
            });
        }
    }
    match chosen {
        None => Ok(value),
        Some(chosen) => emit.select(&chosen, &value, block),
    }
}

/// A value for a part of a block, in the block's shape and at the part's place in it.
fn in_place(emit: &mut Emitter, block: &Tensor, items: &[Item], value: &Tensor) -> Eval<Tensor> {
    let shape = &block.ty.shape;
    if !value.ty.is_block() {
        return emit.splat(value, shape);
    }
    let size = |(axis, item): (usize, &Item)| match item {
        Item::At(_) => None,
        Item::Part { count, .. } => Some(*count),
        Item::Whole | Item::NewAxis => Some(shape[axis]),
    };
    let part: Vec<usize> = items.iter().enumerate().filter_map(size).collect();
    if broadcast_shape(&value.ty.shape, &part)? != part {
        return Err(type_error(
            format!("{} is assigned to a part of shape {part:?}", value.ty),
            "assign a value of the part's shape, or one that broadcasts to it",
        ));
    }
    let mut placed = broadcast_to(emit, value, &part)?;
    for (axis, item) in items.iter().enumerate() {
        match item {
            Item::At(_) => placed = emit.expand_dims(&placed, axis)?,
            Item::Part { from, count } if *count < shape[axis] => {
                placed = shifted(emit, &placed, axis, *from, shape[axis])?
            }
            Item::Part { .. } | Item::Whole | Item::NewAxis => {}
        }
    }
    emit.broadcast(&placed, shape)
}

/// The elements of an axis from `from` on of an axis of another size; the others hold anything.
fn shifted(emit: &mut Emitter, x: &Tensor, axis: usize, from: usize, size: usize) -> Eval<Tensor> {
    let last = x.ty.shape[axis] as i128 - 1;
    let mut shape = x.ty.shape.clone();
    shape[axis] = size;
    let index = emit.index_along(&shape, axis)?;
    let (from, zero, last) =
        (emit.int_like(&index, from as i128)?, emit.int_like(&index, 0)?, emit.int_like(&index, last)?);
    let position = emit.binary(BinaryOp::Sub, &index, &from)?;
    let position = emit.binary(BinaryOp::Max, &position, &zero)?;
    let position = emit.binary(BinaryOp::Min, &position, &last)?;
    emit.gather(x, &position, axis)
}
