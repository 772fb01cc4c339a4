//! Ops that move elements: to other shapes, and to other places of a block.
use super::Emitter;
use super::pads::{reshapes_in_place, retyped, with_size};
use crate::error::Eval;
use crate::types::{Number, Scalar, padded};
use crate::value::Tensor;
use kiln_block::{BinaryOp, CmpOp, Const, Op, ReduceOp};

impl Emitter {
    /// Scalar to block; the same value if there are no axes.
    pub fn splat(&mut self, x: &Tensor, shape: &[usize]) -> Eval<Tensor> {
        if shape.is_empty() {
            return Ok(x.clone());
        }
        self.one(Op::Splat, &[x.value], x.ty.with_shape(shape))
    }
    pub fn broadcast(&mut self, x: &Tensor, shape: &[usize]) -> Eval<Tensor> {
        if x.ty.shape == shape {
            return Ok(x.clone());
        }
        self.one(Op::Broadcast, &[x.value], x.ty.with_shape(shape))
    }
    pub fn expand_dims(&mut self, x: &Tensor, axis: usize) -> Eval<Tensor> {
        let mut shape = x.ty.shape.clone();
        shape.insert(axis.min(shape.len()), 1);
        if shape.len() == 1 {
            return self.splat(x, &shape);
        }
        self.one(Op::ExpandDims(axis as u8), &[x.value], x.ty.with_shape(shape))
    }
    pub fn reshape(&mut self, x: &Tensor, shape: &[usize]) -> Eval<Tensor> {
        if x.ty.shape == shape {
            return Ok(x.clone());
        }
        if !reshapes_in_place(&x.ty.shape, shape) {
            return self.reshape_by_gather(x, shape);
        }
        if padded(&x.ty.shape) == padded(shape) {
            return Ok(retyped(x, shape));
        }
        self.one(Op::Reshape, &[x.value], x.ty.with_shape(shape))
    }
    pub fn permute(&mut self, x: &Tensor, order: &[usize]) -> Eval<Tensor> {
        let shape: Vec<usize> = order.iter().map(|axis| x.ty.shape[*axis]).collect();
        let order = order.iter().map(|axis| *axis as u8).collect();
        self.one(Op::Permute(order), &[x.value], x.ty.with_shape(shape))
    }
    /// `count` elements along an axis, from `at` on.
    pub fn part(&mut self, x: &Tensor, axis: usize, at: usize, count: usize) -> Eval<Tensor> {
        let mut shape = x.ty.shape.clone();
        shape[axis] = count;
        self.one(Op::Part { axis: axis as u8, at: at as u32 }, &[x.value], x.ty.with_shape(shape))
    }
    /// `count` elements along an axis, from any place on.
    pub fn slice(&mut self, x: &Tensor, axis: usize, from: usize, count: usize) -> Eval<Tensor> {
        let shape = with_size(&x.ty.shape, axis, count);
        if from == 0 && padded(&shape) == padded(&x.ty.shape) {
            return Ok(retyped(x, &shape));
        }
        let index = self.index_along(&shape, axis)?;
        let from = self.int_like(&index, from as i128)?;
        let positions = self.binary(BinaryOp::Add, &index, &from)?;
        self.gather(x, &positions, axis)
    }
    /// Two blocks as the two places of a new last axis.
    pub fn join(&mut self, a: &Tensor, b: &Tensor) -> Eval<Tensor> {
        let ty = a.ty.with_shape([&a.ty.shape[..], &[2]].concat());
        self.one(Op::Join, &[a.value, b.value], ty)
    }
    /// The two places of a last axis of two.
    pub fn split(&mut self, x: &Tensor) -> Eval<[Tensor; 2]> {
        let ty = x.ty.with_shape(&x.ty.shape[..x.ty.shape.len() - 1]);
        Ok([self.one(Op::Split(0), &[x.value], ty.clone())?, self.one(Op::Split(1), &[x.value], ty)?])
    }
    /// Two blocks one after the other along an axis.
    pub fn concatenate(&mut self, a: &Tensor, b: &Tensor, axis: usize) -> Eval<Tensor> {
        let size = a.ty.shape[axis];
        let mut shape = a.ty.shape.clone();
        shape[axis] = 2 * size.next_power_of_two();
        let both = self.one(Op::Cat { axis: axis as u8 }, &[a.value, b.value], a.ty.with_shape(&shape[..]))?;
        if size.is_power_of_two() {
            return Ok(both);
        }
        // The second block begins where the first one's pad ends.
        let index = self.index_along(&with_size(&shape, axis, 2 * size), axis)?;
        let skipped = self.int_like(&index, size.next_power_of_two() as i128 - size as i128)?;
        let after_pad = self.binary(BinaryOp::Add, &index, &skipped)?;
        let ends = self.int_like(&index, size as i128)?;
        let in_first = self.compare(CmpOp::Lt, &index, &ends)?;
        let positions = self.select(&in_first, &index, &after_pad)?;
        self.gather(&both, &positions, axis)
    }
    /// The elements at positions along an axis (i32).
    pub fn gather(&mut self, x: &Tensor, positions: &Tensor, axis: usize) -> Eval<Tensor> {
        let positions = self.filled_pads(positions, Const::Int(0))?;
        let ty = x.ty.with_shape(&positions.ty.shape[..]);
        self.one(Op::Gather { axis: axis as u8 }, &[x.value, positions.value], ty)
    }
    /// A block without an axis of one element.
    pub fn drop_axis(&mut self, x: &Tensor, axis: usize, shape: &[usize]) -> Eval<Tensor> {
        if !shape.is_empty() {
            return self.reshape(x, shape);
        }
        match x.ty.scalar {
            Scalar::Number(Number::Int1) => self.reduce(ReduceOp::Or, x, axis),
            Scalar::Number(_) => self.reduce(ReduceOp::Max, x, axis),
            Scalar::Pointer(_) | Scalar::ConstPointer(_) => {
                let addresses = self.bitcast(x, Scalar::Number(Number::Int64))?;
                let address = self.reduce(ReduceOp::Max, &addresses, axis)?;
                self.bitcast(&address, x.ty.scalar)
            }
        }
    }
}
