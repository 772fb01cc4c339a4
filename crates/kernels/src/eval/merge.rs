//! Values that meet: at the end of a branch, on the way around a loop, at returns. A value is a tree whose leaves are
//! run-time values; two meet if the trees are alike.
use super::Evaluator;
use crate::error::{Eval, internal, type_error};
use crate::ops::arithmetic::is_number;
use crate::ops::convert::{scalar_constant, to_tensor};
use crate::ops::shape::full;
use crate::types::TensorType;
use crate::value::{Array, BlockPointer, Constant, Descriptor, Tensor, Tuple, Value};
use std::rc::Rc;

/// The run-time values in a value, in order.
pub fn flatten(value: &Value) -> Vec<Tensor> {
    let mut leaves = vec![];
    collect(value, &mut leaves);
    leaves
}

fn collect(value: &Value, leaves: &mut Vec<Tensor>) {
    match value {
        Value::Tensor(tensor) => leaves.push(tensor.clone()),
        Value::Tuple(tuple) => tuple.values.iter().for_each(|value| collect(value, leaves)),
        Value::BlockPointer(pointer) => {
            leaves.push(pointer.base.clone());
            leaves.extend([&pointer.shape, &pointer.strides, &pointer.offsets].into_iter().flatten().cloned());
        }
        Value::Descriptor(descriptor) => {
            leaves.push(descriptor.base.clone());
            leaves.extend([&descriptor.shape, &descriptor.strides].into_iter().flatten().cloned());
        }
        Value::Array(array) => {
            leaves.push(array.base.clone());
            leaves.extend([&array.shape, &array.strides].into_iter().flatten().cloned());
        }
        Value::Constant(_)
        | Value::Type(_)
        | Value::Callee(_)
        | Value::Method { .. }
        | Value::Module(_)
        | Value::Slice { .. }
        | Value::Ellipsis
        | Value::Missing(_) => {}
    }
}

/// The same value with other run-time values in it.
pub fn rebuild(template: &Value, leaves: &mut impl Iterator<Item = Tensor>) -> Eval<Value> {
    let mut next = || leaves.next().ok_or_else(|| internal("fewer values come back than were handed on"));
    Ok(match template {
        Value::Tensor(_) => Value::Tensor(next()?),
        Value::Tuple(tuple) => {
            let values: Vec<Value> = tuple.values.iter().map(|value| rebuild(value, leaves)).collect::<Eval<_>>()?;
            Value::Tuple(Tuple { values: Rc::new(values), fields: tuple.fields.clone() })
        }
        Value::BlockPointer(pointer) => {
            let base = next()?;
            let mut list = |old: &[Tensor]| old.iter().map(|_| next()).collect::<Eval<Vec<Tensor>>>();
            let (shape, strides, offsets) = (list(&pointer.shape)?, list(&pointer.strides)?, list(&pointer.offsets)?);
            let block = pointer.block.clone();
            Value::BlockPointer(Rc::new(BlockPointer { base, shape, strides, offsets, block }))
        }
        Value::Descriptor(descriptor) => {
            let base = next()?;
            let mut list = |old: &[Tensor]| old.iter().map(|_| next()).collect::<Eval<Vec<Tensor>>>();
            let (shape, strides) = (list(&descriptor.shape)?, list(&descriptor.strides)?);
            let (block, pads_nan) = (descriptor.block.clone(), descriptor.pads_nan);
            Value::Descriptor(Rc::new(Descriptor { base, shape, strides, block, pads_nan }))
        }
        Value::Array(array) => {
            let base = next()?;
            let mut list = |old: &[Tensor]| old.iter().map(|_| next()).collect::<Eval<Vec<Tensor>>>();
            let (shape, strides) = (list(&array.shape)?, list(&array.strides)?);
            Value::Array(Rc::new(Array { base, shape, strides }))
        }
        other => other.clone(),
    })
}

/// Whether one can stand for the other where run-time values are exchanged; else what differs.
pub fn alike(a: &Value, b: &Value) -> Result<(), String> {
    let differ = || Err(format!("{} and {}", a.describe(), b.describe()));
    let same = match (a, b) {
        (Value::Tensor(a), Value::Tensor(b)) => a.ty == b.ty,
        (Value::Tuple(x), Value::Tuple(y)) => {
            if x.values.len() != y.values.len() {
                return differ();
            }
            return x.values.iter().zip(y.values.iter()).try_for_each(|(x, y)| alike(x, y));
        }
        (Value::BlockPointer(x), Value::BlockPointer(y)) => x.block == y.block && x.base.ty == y.base.ty,
        (Value::Descriptor(x), Value::Descriptor(y)) => x.block == y.block && x.base.ty == y.base.ty,
        (Value::Array(x), Value::Array(y)) => {
            let types = |array: &Array| leaf_types(&Value::Array(Rc::new(array.clone())));
            types(x) == types(y)
        }
        (Value::Constant(x), Value::Constant(y)) => x == y,
        (Value::Type(x), Value::Type(y)) => x == y,
        (Value::Module(x), Value::Module(y)) => x == y,
        (Value::Callee(x), Value::Callee(y)) => x == y,
        (Value::Ellipsis, Value::Ellipsis) => true,
        _ => false,
    };
    if same { Ok(()) } else { differ() }
}

impl Evaluator<'_> {
    /// The value that assignment gives a variable: numbers become run-time values, in tuples too.
    pub(super) fn run_time(&mut self, value: Value) -> Eval<Value> {
        if self.frame()?.compile_time {
            return Ok(value);
        }
        match value {
            Value::Constant(ref constant) if is_number(constant) => {
                to_tensor(&mut self.emit, &value).map(Value::Tensor)
            }
            Value::Tuple(tuple) => {
                let values: Vec<Value> =
                    tuple.values.iter().map(|value| self.run_time(value.clone())).collect::<Eval<_>>()?;
                Ok(Value::Tuple(Tuple { values: Rc::new(values), fields: tuple.fields }))
            }
            other => Ok(other),
        }
    }
    /// A returned value in the form of another: constants become run-time values of its type.
    pub(super) fn in_form_of(&mut self, value: &Value, other: &Value) -> Eval<Value> {
        match (value, other) {
            // A side that returns nothing gives zeros.
            (Value::Constant(Constant::None), Value::Tensor(tensor)) if !tensor.is_pointer() => {
                full(&mut self.emit, &Value::int(0), &tensor.ty).map(Value::Tensor)
            }
            (Value::Constant(constant), Value::Tensor(tensor)) => {
                let number = tensor.number()?;
                scalar_constant(&mut self.emit, constant, number).map(Value::Tensor)
            }
            (Value::Constant(a), Value::Constant(b)) if a != b && is_number(a) && is_number(b) => {
                to_tensor(&mut self.emit, value).map(Value::Tensor)
            }
            (Value::Tuple(tuple), Value::Tuple(like)) if tuple.values.len() == like.values.len() => {
                let pairs = tuple.values.iter().zip(like.values.iter());
                let values: Vec<Value> =
                    pairs.map(|(value, other)| self.in_form_of(value, other)).collect::<Eval<_>>()?;
                Ok(Value::Tuple(Tuple { values: Rc::new(values), fields: tuple.fields.clone() }))
            }
            _ => Ok(value.clone()),
        }
    }
}

/// Types of the run-time values in a value.
pub fn leaf_types(value: &Value) -> Vec<TensorType> {
    flatten(value).into_iter().map(|tensor| tensor.ty).collect()
}

/// Two values that are returned in different places have one type.
pub fn check_returns(a: &Value, b: &Value) -> Eval<()> {
    alike(a, b).map_err(|differ| {
        type_error(format!("Return type mismatch: {differ}"), "give all returns of the function one type")
    })
}
