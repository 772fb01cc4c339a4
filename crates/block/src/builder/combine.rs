//! Reductions and scans by a region, and blocks made of others.
use super::Builder;
use crate::{Op, Region, Type, Value};

impl Builder {
    /// Combines elements along an axis by `combine`, which is given an element of each operand and another of each.
    pub fn reduce_by(
        &mut self,
        axis: usize,
        operands: &[Value],
        combine: impl FnOnce(&mut Builder, &[Value], &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let (region, mut types) = self.combination(operands, combine);
        for ty in &mut types {
            let mut shape = ty.shape().to_vec();
            shape.remove(axis);
            *ty = ty.with_shape(shape);
        }
        self.inst(Op::ReduceBy { axis: axis as u8 }, operands, &types, vec![region])
    }
    /// The same for all elements up to each one, or with `reverse` from each one on.
    pub fn scan_by(
        &mut self,
        (axis, reverse): (usize, bool),
        operands: &[Value],
        combine: impl FnOnce(&mut Builder, &[Value], &[Value]) -> Vec<Value>,
    ) -> Vec<Value> {
        let (region, types) = self.combination(operands, combine);
        self.inst(Op::ScanBy { axis: axis as u8, reverse }, operands, &types, vec![region])
    }
    fn combination(
        &mut self,
        operands: &[Value],
        combine: impl FnOnce(&mut Builder, &[Value], &[Value]) -> Vec<Value>,
    ) -> (Region, Vec<Type>) {
        let types: Vec<Type> = operands.iter().map(|v| self.ty(*v).clone()).collect();
        let scalars: Vec<Type> = types.iter().chain(&types).map(|t| t.with_shape([])).collect();
        let n = operands.len();
        (self.region(&scalars, |b, params| combine(b, &params[..n], &params[n..])), types)
    }
    /// A block whose last axis has an element of each.
    pub fn join(&mut self, a: Value, b: Value) -> Value {
        let ty = self.ty(a).with_shape([self.shape(a), vec![2]].concat());
        self.one(Op::Join, &[a, b], ty)
    }
    /// Both elements of a last axis of 2.
    pub fn split(&mut self, v: Value) -> [Value; 2] {
        let shape = self.shape(v);
        let ty = self.ty(v).with_shape(&shape[..shape.len().saturating_sub(1)]);
        [0, 1].map(|half| self.one(Op::Split(half), &[v], ty.clone()))
    }
    /// Two blocks one after the other.
    pub fn cat(&mut self, a: Value, b: Value, axis: usize) -> Value {
        let mut shape = self.shape(a);
        shape[axis] *= 2;
        let ty = self.ty(a).with_shape(shape);
        self.one(Op::Cat { axis: axis as u8 }, &[a, b], ty)
    }
    /// The elements at these positions along an axis.
    pub fn gather(&mut self, v: Value, positions: Value, axis: usize) -> Value {
        let ty = self.ty(v).with_shape(self.shape(positions));
        self.one(Op::Gather { axis: axis as u8 }, &[v, positions], ty)
    }
}
