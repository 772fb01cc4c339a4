//! Block pointers and tensor descriptors: windows of arrays, read by masked loads of pointers.
use super::arguments::{known_text, one_of, sizes, tensor};
use super::{Primitive, Walk, row};
use crate::emit::Update;
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::ops::convert::{cast_number, scalar_constant};
use crate::ops::shape::item;
use crate::ops::window::{AxisIndex, Padding, Window};
use crate::types::{Number, checked_shape};
use crate::value::{BlockPointer, Constant, Descriptor, Tensor, Value};
use kiln_block::AtomicOp;
use std::rc::Rc;

pub const TABLE: &[Primitive] = &[
    row("make_block_ptr", "base, shape, strides, offsets, block_shape, order", make_block_pointer),
    row("advance", "base, offsets", advance),
    row("make_tensor_descriptor", "base, shape, strides, block_shape, padding_option='zero'", make_descriptor),
    row("load_tensor_descriptor", "desc, offsets", |e, a| descriptor_load(e, descriptor_of(&a[0])?, &a[1])),
    row("scatter", "desc, value, x_offsets, y_offset", scatter),
    row("store_tensor_descriptor", "desc, offsets, value", |e, a| {
        descriptor_store(e, descriptor_of(&a[0])?, &a[1], &a[2])?;
        Ok(Value::NONE)
    }),
];

/// Integers as i64 scalars.
fn wide(walk: &mut dyn Walk, values: &Value) -> Eval<Vec<Tensor>> {
    let values = match values {
        Value::Tuple(tuple) => tuple.values.to_vec(),
        other => vec![other.clone()],
    };
    values
        .iter()
        .map(|value| {
            if let Value::Constant(constant @ (Constant::Int(_) | Constant::Bool(_))) = value {
                return scalar_constant(walk.emit(), constant, Number::Int64);
            }
            let tensor = tensor(walk, value)?;
            if !tensor.number()?.is_int() {
                return Err(type_error(format!("a size or an offset is {}", tensor.ty), "it is an integer"));
            }
            let scalar = item(walk.emit(), &tensor)?;
            cast_number(walk.emit(), &scalar, Number::Int64)
        })
        .collect()
}

fn same_rank(name: &str, counts: &[usize]) -> Eval<()> {
    match counts.windows(2).all(|pair| pair[0] == pair[1]) {
        true => Ok(()),
        false => Err(value_error(
            format!("{name} gets lists of {counts:?} values"),
            "shape, strides, offsets and block_shape have one value an axis",
        )),
    }
}

fn base_pointer(walk: &mut dyn Walk, value: &Value) -> Eval<Tensor> {
    let base = tensor(walk, value)?;
    if base.is_pointer() && !base.ty.is_block() {
        return Ok(base);
    }
    Err(type_error(format!("the base is {}", base.ty), "it is one pointer"))
}

fn make_block_pointer(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let base = base_pointer(walk, &arguments[0])?;
    let (shape, strides) = (wide(walk, &arguments[1])?, wide(walk, &arguments[2])?);
    let offsets = wide(walk, &arguments[3])?;
    let block = checked_shape(&sizes(&arguments[4])?)?;
    same_rank("make_block_ptr", &[shape.len(), strides.len(), offsets.len(), block.len()])?;
    Ok(Value::BlockPointer(Rc::new(BlockPointer { base, shape, strides, offsets, block })))
}

fn advance(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let Value::BlockPointer(pointer) = &arguments[0] else {
        return Err(type_error(
            format!("advance moves a block pointer; this is {}", arguments[0].describe()),
            "make one with make_block_ptr, or add to a pointer",
        ));
    };
    let steps = wide(walk, &arguments[1])?;
    same_rank("advance", &[pointer.offsets.len(), steps.len()])?;
    let mut offsets = vec![];
    for (offset, step) in pointer.offsets.iter().zip(&steps) {
        let zero = walk.emit().constant_of(step.value) == Some(kiln_block::Const::Int(0));
        offsets.push(match zero {
            true => offset.clone(),
            false => walk.emit().binary(kiln_block::BinaryOp::Add, offset, step)?,
        });
    }
    Ok(Value::BlockPointer(Rc::new(BlockPointer { offsets, ..(**pointer).clone() })))
}

fn make_descriptor(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let base = base_pointer(walk, &arguments[0])?;
    let (shape, strides) = (wide(walk, &arguments[1])?, wide(walk, &arguments[2])?);
    let block = checked_shape(&sizes(&arguments[3])?)?;
    same_rank("make_tensor_descriptor", &[shape.len(), strides.len(), block.len()])?;
    let padding = known_text("padding_option", &arguments[4])?;
    one_of("padding_option", &padding, &["zero", "nan"])?;
    if block.is_empty() || block.len() > 5 {
        return Err(value_error(format!("a descriptor has {} axes", block.len()), "it has 1 to 5"));
    }
    let pads_nan = padding == "nan";
    Ok(Value::Descriptor(Rc::new(Descriptor { base, shape, strides, block, pads_nan })))
}

impl Descriptor {
    /// What is read outside of the array.
    fn padding(&self) -> Padding {
        if self.pads_nan { Padding::Nan } else { Padding::Zero }
    }
}

fn descriptor_of(value: &Value) -> Eval<&Descriptor> {
    match value {
        Value::Descriptor(descriptor) => Ok(descriptor),
        other => Err(type_error(
            format!("{} is not a tensor descriptor", other.describe()),
            "make one with make_tensor_descriptor",
        )),
    }
}

fn descriptor_window<'a>(descriptor: &'a Descriptor, offsets: &[Tensor]) -> Eval<Window<'a>> {
    let Descriptor { base, shape, strides, block, .. } = descriptor;
    same_rank("a descriptor", &[block.len(), offsets.len()])?;
    let index = AxisIndex::spans(offsets, block);
    Ok(Window { base, shape, strides, index, checked: (0..block.len()).collect() })
}

/// Rows of an array of two axes, each of as many elements as the descriptor's block has columns.
fn rows_window<'a>(walk: &mut dyn Walk, descriptor: &'a Descriptor, rows: &Value, column: &Value) -> Eval<Window<'a>> {
    let Descriptor { base, shape, strides, block, .. } = descriptor;
    let rows = tensor(walk, rows)?;
    let column = wide(walk, column)?;
    let ([1, columns], [column], [_]) = (&block[..], &column[..], &rows.ty.shape[..]) else {
        return Err(type_error(
            format!("rows {} of a descriptor whose blocks are {block:?} are taken", rows.ty),
            "rows are a block of one axis, and the descriptor's block_shape is [1, columns]",
        ));
    };
    if !rows.number()?.is_int() {
        return Err(type_error(format!("numbers of rows are {}", rows.ty), "they are integers"));
    }
    let index = vec![AxisIndex::List(rows), AxisIndex::Span { start: column.clone(), count: *columns }];
    Ok(Window { base, shape, strides, index, checked: vec![0, 1] })
}

pub fn descriptor_gather(walk: &mut dyn Walk, descriptor: &Descriptor, rows: &Value, column: &Value) -> Eval<Value> {
    let window = rows_window(walk, descriptor, rows, column)?;
    window.load(walk.emit(), descriptor.padding()).map(Value::Tensor)
}

fn scatter(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let window = rows_window(walk, descriptor_of(&arguments[0])?, &arguments[2], &arguments[3])?;
    let value = tensor(walk, &arguments[1])?;
    window.store(walk.emit(), &value)?;
    Ok(Value::NONE)
}

pub fn descriptor_update(
    walk: &mut dyn Walk,
    update: Update,
    descriptor: &Descriptor,
    offsets: &Value,
    value: &Value,
) -> Eval<Value> {
    let wide_float = matches!(descriptor.base.pointee(), Some(Number::Float32 | Number::Float64));
    if wide_float && matches!(update.op, AtomicOp::Max | AtomicOp::Min) {
        return Err(unsupported(
            "descriptors take no maxima and minima of float32 and float64",
            "update the elements through pointers, with `atomic_max` or `atomic_min`",
        ));
    }
    let offsets = wide(walk, offsets)?;
    descriptor_window(descriptor, &offsets)?.update(walk.emit(), update, value).map(Value::Tensor)
}

pub fn descriptor_load(walk: &mut dyn Walk, descriptor: &Descriptor, offsets: &Value) -> Eval<Value> {
    let offsets = wide(walk, offsets)?;
    descriptor_window(descriptor, &offsets)?.load(walk.emit(), descriptor.padding()).map(Value::Tensor)
}

pub fn descriptor_store(walk: &mut dyn Walk, descriptor: &Descriptor, offsets: &Value, value: &Value) -> Eval<()> {
    let offsets = wide(walk, offsets)?;
    let value = tensor(walk, value)?;
    if value.ty.shape != descriptor.block {
        return Err(type_error(
            format!("{} is stored through a descriptor of blocks {:?}", value.ty, descriptor.block),
            "store a block of the descriptor's shape",
        ));
    }
    descriptor_window(descriptor, &offsets)?.store(walk.emit(), &value)
}

/// Axes along which a block pointer may run over the array's end.
fn checked_axes(boundary: &Value, rank: usize) -> Eval<Vec<usize>> {
    if boundary.is_none() {
        return Ok(vec![]);
    }
    let axes = sizes(boundary)?;
    axes.into_iter().map(|axis| crate::ops::shape::axis(axis, rank)).collect()
}

pub fn pointer_load(walk: &mut dyn Walk, pointer: &BlockPointer, boundary: &Value, padding: &str) -> Eval<Value> {
    let checked = checked_axes(boundary, pointer.block.len())?;
    let padding = if padding == "nan" { Padding::Nan } else { Padding::Zero };
    Window::at(pointer, checked).load(walk.emit(), padding).map(Value::Tensor)
}

pub fn pointer_store(walk: &mut dyn Walk, pointer: &BlockPointer, value: &Value, boundary: &Value) -> Eval<()> {
    let checked = checked_axes(boundary, pointer.block.len())?;
    let value = tensor(walk, value)?;
    if value.ty.is_block() && value.ty.shape != pointer.block {
        return Err(unsupported(
            format!("{} is stored through a block pointer of {:?}", value.ty, pointer.block),
            "store a block of the pointer's shape",
        ));
    }
    Window::at(pointer, checked).store(walk.emit(), &value)
}
