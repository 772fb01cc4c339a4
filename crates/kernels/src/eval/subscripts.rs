//! `x[...]`: elements and parts of blocks, arrays and tuples, and what is assigned to them.
use super::Evaluator;
use crate::emit::Emitter;
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::ops::arithmetic::binary;
use crate::ops::convert::{cast_number, to_tensor};
use crate::ops::elements;
use crate::ops::window::{AxisIndex, Padding, Window};
use crate::primitives::known_int;
use crate::syntax::tree::{BinaryOp, Expr, ExprKind};
use crate::types::{Number, checked_shape};
use crate::value::{Array, Constant, Tensor, Tuple, Value};
use std::rc::Rc;

impl Evaluator<'_> {
    /// An index, whose slices are values of their own.
    pub(super) fn index(&mut self, expr: &Expr) -> Eval<Value> {
        match &expr.kind {
            ExprKind::Tuple(items) => {
                let values: Vec<Value> = items.iter().map(|item| self.index(item)).collect::<Eval<_>>()?;
                Ok(Value::tuple(values))
            }
            ExprKind::Slice { lower, upper, step } => {
                if let Some(step) = step.as_ref().filter(|step| step.kind != ExprKind::None) {
                    let error = unsupported("a slice with a step is not supported", "take the elements one by one");
                    return Err(self.located(error, step.span));
                }
                let bound = |evaluator: &mut Self, end: &Option<Box<Expr>>| -> Eval<Option<Box<Value>>> {
                    let Some(end) = end else { return Ok(None) };
                    let value = evaluator.expr(end)?;
                    Ok(if value.is_none() { None } else { Some(Box::new(value)) })
                };
                let (lower, upper) = (bound(self, lower)?, bound(self, upper)?);
                Ok(Value::Slice { lower, upper })
            }
            _ => self.expr(expr),
        }
    }

    pub(super) fn subscript(&mut self, base: &Value, index: &Value) -> Eval<Value> {
        match base {
            Value::Tensor(block) => elements::of_block(&mut self.emit, block, index).map(Value::Tensor),
            Value::Array(array) => {
                let index = axis_indices(&mut self.emit, array, index)?;
                window(array, index).load(&mut self.emit, Padding::Zero).map(Value::Tensor)
            }
            Value::Tuple(tuple) => tuple_subscript(tuple, index),
            Value::Constant(Constant::Str(text)) => {
                let characters = text.chars().map(|c| Value::str(c.to_string())).collect();
                tuple_subscript(&Tuple { values: Rc::new(characters), fields: None }, index)
            }
            other => Err(type_error(
                format!("{} has no elements", other.describe()),
                "blocks take `[None, :]`, and tuples an index",
            )),
        }
    }

    /// Gives elements a value.
    pub(super) fn assign_elements(
        &mut self,
        target: &Expr,
        container: &Value,
        index: &Value,
        value: &Value,
    ) -> Eval<()> {
        match (container, &target.kind) {
            (Value::Array(array), _) => {
                let index = axis_indices(&mut self.emit, array, index)?;
                let value = to_tensor(&mut self.emit, value)?;
                window(array, index).store(&mut self.emit, &value)
            }
            (Value::Tensor(block), ExprKind::Name(name)) => {
                let updated = elements::updated(&mut self.emit, block, index, value)?;
                self.frame_mut()?.scope.set(name, Value::Tensor(updated), target.span);
                Ok(())
            }
            (Value::Tensor(_), _) => Err(unsupported(
                "elements of a block that has no name are not assigned",
                "assign the block to a variable first",
            )),
            (other, _) => Err(unsupported(
                format!("elements of {} are not assigned", other.describe()),
                "elements of blocks and of arrays are",
            )),
        }
    }
}

fn window(array: &Array, index: Vec<AxisIndex>) -> Window<'_> {
    let checked = (0..index.len()).collect();
    Window { base: &array.base, shape: &array.shape, strides: &array.strides, index, checked }
}

/// Positions by axis of an array.
fn axis_indices(emit: &mut Emitter, array: &Array, index: &Value) -> Eval<Vec<AxisIndex>> {
    let single = [index.clone()];
    let items: &[Value] = match index {
        Value::Tuple(tuple) => &tuple.values,
        _ => &single,
    };
    if items.len() != array.shape.len() {
        return Err(type_error(
            format!("an array of {} axes is indexed by {} values", array.shape.len(), items.len()),
            "give a position or `start:start + SIZE` for each axis",
        ));
    }
    items.iter().zip(&array.shape).map(|(item, size)| axis_index(emit, item, size)).collect()
}

fn axis_index(emit: &mut Emitter, item: &Value, size: &Tensor) -> Eval<AxisIndex> {
    match item {
        Value::Slice { lower, upper: Some(upper) } => {
            let lower = lower.as_deref().cloned().unwrap_or(Value::int(0));
            let (lower, upper) = (integer(emit, &lower)?, integer(emit, upper)?);
            let count = emit.constant_difference(&upper, &lower).ok_or_else(|| {
                type_error(
                    "the size of a slice of an array is known only at run time",
                    "write `start:start + SIZE`, where SIZE is a constexpr; elements outside read as 0",
                )
            })?;
            if count < 1 {
                return Err(value_error(
                    format!("a slice of an array has {count} elements"),
                    "it has at least one: write `start:start + SIZE`",
                ));
            }
            let count = checked_shape(&[count])?[0];
            Ok(AxisIndex::Span { start: lower, count })
        }
        Value::Slice { upper: None, .. } => Err(type_error(
            "a slice to the end of an array's axis has no size that is known at compile time",
            "write `0:SIZE`, where SIZE is a constexpr of at least the axis's size; elements outside read as 0",
        )),
        Value::Constant(constant) if constant.as_int().is_some_and(|position| position < 0) => {
            let from_end = binary(emit, BinaryOp::Add, &Value::Tensor(size.clone()), item)?;
            integer(emit, &Value::Tensor(from_end)).map(AxisIndex::Single)
        }
        Value::Tensor(positions) if positions.ty.is_block() => {
            if positions.ty.shape.len() != 1 || !positions.number()?.is_int() {
                return Err(type_error(
                    format!("an axis of an array is indexed by {}", positions.ty),
                    "positions are integers, or a block of them with one axis",
                ));
            }
            Ok(AxisIndex::List(positions.clone()))
        }
        position => integer(emit, position).map(AxisIndex::Single),
    }
}

/// An int64 scalar.
fn integer(emit: &mut Emitter, value: &Value) -> Eval<Tensor> {
    let scalar = to_tensor(emit, value)?;
    if scalar.ty.is_block() || !scalar.ty.scalar.number().is_some_and(Number::is_int) {
        return Err(type_error(
            format!("a position is {}", scalar.ty),
            "positions are integers; cast with `.to(tl.int32)`",
        ));
    }
    cast_number(emit, &scalar, Number::Int64)
}

fn tuple_subscript(tuple: &Tuple, index: &Value) -> Eval<Value> {
    let count = tuple.values.len() as i128;
    let from_front = |at: i128| if at < 0 { at + count } else { at };
    match index {
        Value::Constant(constant) if constant.as_int().is_some() => {
            let at = constant.as_int().map_or(0, from_front);
            usize::try_from(at).ok().and_then(|at| tuple.values.get(at)).cloned().ok_or_else(|| {
                value_error(
                    format!("element {} of a tuple of {count}", constant.repr()),
                    "its elements are numbered from 0",
                )
            })
        }
        Value::Slice { lower, upper, .. } => {
            let end = |bound: &Option<Box<Value>>, open: i128| -> Eval<usize> {
                let known = bound.as_deref().map(|value| known_int("an end of a slice", value)).transpose()?;
                Ok(from_front(known.unwrap_or(open)).clamp(0, count) as usize)
            };
            let (from, to) = (end(lower, 0)?, end(upper, count)?);
            let values = tuple.values.get(from..to.max(from)).unwrap_or_default().to_vec();
            Ok(Value::tuple(values))
        }
        other => Err(type_error(
            format!("{} is no index of a tuple", other.describe()),
            "indices of tuples are integers that are known at compile time",
        )),
    }
}
