//! Windows of arrays: blocks of elements at positions by axis, of which some may lie outside.
use super::arithmetic::{binary, compare, logical};
use super::convert::{broadcast_to, cast, to_tensor};
use super::memory::pointee;
use super::shape::full;
use crate::emit::{Access, Emitter, Update};
use crate::error::{Eval, type_error};
use crate::syntax::tree::{BinaryOp, CompareOp};
use crate::types::{Number, Scalar, broadcast_shape};
use crate::value::{BlockPointer, Constant, Tensor, Value};
use kiln_block as block;

/// What is read outside of an array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding {
    Zero,
    Nan,
}

/// Which positions of an axis of an array a block has.
#[derive(Clone, Debug)]
pub enum AxisIndex {
    /// Neighbours, from an i64 scalar on.
    Span { start: Tensor, count: usize },
    /// Those in a block of one axis.
    List(Tensor),
    /// One, an i64 scalar; the block has no such axis.
    Single(Tensor),
}

impl AxisIndex {
    pub fn spans(starts: &[Tensor], block: &[usize]) -> Vec<AxisIndex> {
        let span = |(start, count): (&Tensor, &usize)| AxisIndex::Span { start: start.clone(), count: *count };
        starts.iter().zip(block).map(span).collect()
    }
    /// Elements along the axis of the block, if it has one.
    fn size(&self) -> Option<usize> {
        match self {
            AxisIndex::Span { count, .. } => Some(*count),
            AxisIndex::List(positions) => Some(positions.ty.count()),
            AxisIndex::Single(_) => None,
        }
    }
}

/// A block of an array: its base, sizes and strides, its positions by axis, and which axes may run over the end.
pub struct Window<'a> {
    pub base: &'a Tensor,
    pub shape: &'a [Tensor],
    pub strides: &'a [Tensor],
    pub index: Vec<AxisIndex>,
    pub checked: Vec<usize>,
}

impl<'a> Window<'a> {
    pub fn at(pointer: &'a BlockPointer, checked: Vec<usize>) -> Window<'a> {
        let BlockPointer { base, shape, strides, offsets, block } = pointer;
        Window { base, shape, strides, index: AxisIndex::spans(offsets, block), checked }
    }
    /// The shape of the block.
    pub fn block(&self) -> Vec<usize> {
        self.index.iter().filter_map(AxisIndex::size).collect()
    }
    /// Positions along an axis of the array, in the shape of the block; a single one is a scalar.
    fn positions(&self, emit: &mut Emitter, block: &[usize], axis: usize) -> Eval<Tensor> {
        let at = self.index[..axis].iter().filter_map(AxisIndex::size).count();
        match &self.index[axis] {
            AxisIndex::Single(position) => Ok(position.clone()),
            AxisIndex::Span { start, .. } => {
                let index = emit.index_along(block, at)?;
                let index = cast(emit, &index, Scalar::Number(Number::Int64))?;
                binary(emit, BinaryOp::Add, &Value::Tensor(start.clone()), &Value::Tensor(index))
            }
            AxisIndex::List(positions) => {
                let wide = cast(emit, positions, Scalar::Number(Number::Int64))?;
                emit.along(&wide, block, at)
            }
        }
    }
    /// Pointers to the elements, and which are inside of the array.
    fn elements(&self, emit: &mut Emitter) -> Eval<(Tensor, Option<Tensor>)> {
        let mut pointer = Value::Tensor(self.base.clone());
        let mut inside: Option<Tensor> = None;
        let block = self.block();
        for axis in 0..self.index.len() {
            let index = Value::Tensor(self.positions(emit, &block, axis)?);
            let offset = binary(emit, BinaryOp::Mul, &index, &Value::Tensor(self.strides[axis].clone()))?;
            pointer = Value::Tensor(binary(emit, BinaryOp::Add, &pointer, &Value::Tensor(offset))?);
            if self.checked.contains(&axis) {
                let bounds = [
                    compare(emit, CompareOp::Ge, &index, &Value::int(0))?,
                    compare(emit, CompareOp::Lt, &index, &Value::Tensor(self.shape[axis].clone()))?,
                ];
                for bound in bounds {
                    inside = Some(match inside {
                        None => bound,
                        Some(inside) => logical(emit, block::BinaryOp::And, &inside, &bound)?,
                    });
                }
            }
        }
        let pointer = to_tensor(emit, &pointer)?;
        let inside = inside.map(|inside| broadcast_to(emit, &inside, &block)).transpose()?;
        Ok((broadcast_to(emit, &pointer, &block)?, inside))
    }
    pub fn load(&self, emit: &mut Emitter, padding: Padding) -> Eval<Tensor> {
        let (pointer, mask) = self.elements(emit)?;
        let elem = pointee("load", &pointer)?;
        let other = match padding {
            Padding::Nan if mask.is_some() => {
                Some(full(emit, &Value::Constant(Constant::Float(f64::NAN)), &pointer.ty.with_number(elem))?)
            }
            _ => None,
        };
        emit.load(&pointer, &Access { mask, other, ..Access::default() })
    }
    pub fn store(&self, emit: &mut Emitter, value: &Tensor) -> Eval<()> {
        let (pointer, mask) = self.elements(emit)?;
        let elem = pointee("store", &pointer)?;
        let value = self.fitted(emit, value)?;
        let value = cast(emit, &value, Scalar::Number(elem))?;
        emit.store(&pointer, &value, &Access { mask, ..Access::default() })
    }
    /// An atomic update of the elements; gives what they were before.
    pub fn update(&self, emit: &mut Emitter, update: Update, value: &Value) -> Eval<Tensor> {
        let (pointer, mask) = self.elements(emit)?;
        let mask = mask.map_or(Value::NONE, Value::Tensor);
        super::atomic::update(emit, update, &pointer, value, &mask)
    }
    /// A value in the block's shape.
    fn fitted(&self, emit: &mut Emitter, value: &Tensor) -> Eval<Tensor> {
        let block = self.block();
        match broadcast_shape(&value.ty.shape, &block)? == block {
            true => broadcast_to(emit, value, &block),
            false => Err(type_error(
                format!("{} is stored in a block of shape {block:?}", value.ty),
                "store a value of the block's shape, or one that broadcasts to it",
            )),
        }
    }
}
