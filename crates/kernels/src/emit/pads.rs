//! Blocks of any size: the program computes with the next power of two along each axis, and what lies behind a block's
//! size, its pad, never counts.
//!
//! Ops by element let the pad hold anything. Accesses of memory leave it out of their mask; reductions get their
//! identity in it, dots zeros along the inner axis. A reshape keeps the elements where they are if it can, and else
//! gathers them.
use super::Emitter;
use crate::error::Eval;
use crate::types::{Number, padded};
use crate::value::Tensor;
use kiln_block::{BinaryOp, CmpOp, Const, ReduceOp};

impl Emitter {
    /// 0, 1, … along an axis of a shape, in every position of the others.
    pub fn index_along(&mut self, shape: &[usize], axis: usize) -> Eval<Tensor> {
        let index = self.iota(shape[axis])?;
        self.along(&index, shape, axis)
    }
    /// A block of one axis as an axis of a shape, in every position of the others.
    pub fn along(&mut self, x: &Tensor, shape: &[usize], axis: usize) -> Eval<Tensor> {
        let mut wide = x.clone();
        for at in (0..shape.len()).filter(|at| *at != axis) {
            wide = self.expand_dims(&wide, at)?;
        }
        self.broadcast(&wide, shape)
    }
    /// An integer in the type and shape of a block.
    pub fn int_like(&mut self, x: &Tensor, value: i128) -> Eval<Tensor> {
        let scalar = self.int(x.number()?, value)?;
        self.splat(&scalar, &x.ty.shape)
    }
    fn constant_like(&mut self, x: &Tensor, value: Const) -> Eval<Tensor> {
        let number = x.number()?;
        let scalar = match value {
            Const::Float(value) => self.float(number, value)?,
            Const::Int(value) => self.int(number, i128::from(value))?,
            Const::Bool(value) => self.int(number, i128::from(value))?,
        };
        self.splat(&scalar, &x.ty.shape)
    }

    /// Which elements of a shape are not in the pad of an axis; `None` where it has none.
    pub fn counted_along(&mut self, shape: &[usize], axis: usize) -> Eval<Option<Tensor>> {
        if shape[axis].is_power_of_two() {
            return Ok(None);
        }
        let index = self.iota(shape[axis])?;
        let end = self.int_like(&index, shape[axis] as i128)?;
        let counted = self.compare(CmpOp::Lt, &index, &end)?;
        self.along(&counted, shape, axis).map(Some)
    }
    /// A mask without what is in pads.
    pub fn masked(&mut self, mask: Option<&Tensor>, shape: &[usize]) -> Eval<Option<Tensor>> {
        let mut mask = mask.cloned();
        for axis in 0..shape.len() {
            mask = match (mask, self.counted_along(shape, axis)?) {
                (Some(mask), Some(counted)) => Some(self.binary(BinaryOp::And, &mask, &counted)?),
                (mask, counted) => mask.or(counted),
            };
        }
        Ok(mask)
    }
    /// The block with a value in its pads.
    pub fn filled_pads(&mut self, x: &Tensor, fill: Const) -> Eval<Tensor> {
        match self.masked(None, &x.ty.shape)? {
            None => Ok(x.clone()),
            Some(counted) => {
                let fill = self.constant_like(x, fill)?;
                self.select(&counted, x, &fill)
            }
        }
    }
    /// The block with a value in the pad of an axis.
    pub fn filled_pad(&mut self, x: &Tensor, axis: usize, fill: Const) -> Eval<Tensor> {
        match self.counted_along(&x.ty.shape, axis)? {
            None => Ok(x.clone()),
            Some(counted) => {
                let fill = self.constant_like(x, fill)?;
                self.select(&counted, x, &fill)
            }
        }
    }
    /// The block with what changes no result of a reduction in the pad of its axis.
    pub fn with_identity_in_pads(&mut self, op: ReduceOp, x: &Tensor, axis: usize) -> Eval<Tensor> {
        if x.ty.shape[axis].is_power_of_two() {
            return Ok(x.clone());
        }
        let identity = identity(op, x.number()?);
        self.filled_pad(x, axis, identity)
    }

    pub fn with_identity_in_all_pads(&mut self, op: ReduceOp, x: &Tensor) -> Eval<Tensor> {
        let identity = identity(op, x.number()?);
        self.filled_pads(x, identity)
    }

    /// A reshape that moves elements: each is taken from where it lies.
    pub fn reshape_by_gather(&mut self, x: &Tensor, shape: &[usize]) -> Eval<Tensor> {
        let (from, to) = (padded(&x.ty.shape), padded(shape));
        let flat = self.reshape(&retyped(x, &from), &[from.iter().product()])?;
        let place = self.iota(to.iter().product())?;
        // The number of the element, of those that count, at each place of the result.
        let number = self.moved(&place, &to, shape)?;
        let source = self.moved(&number, &x.ty.shape, &from)?;
        let moved = self.gather(&flat, &source, 0)?;
        Ok(retyped(&self.reshape(&moved, &to)?, shape))
    }
    /// Positions in a flat block of sizes `from` as positions of the same elements in one of sizes `to`.
    fn moved(&mut self, position: &Tensor, from: &[usize], to: &[usize]) -> Eval<Tensor> {
        let mut moved = self.int_like(position, 0)?;
        let (mut stride_from, mut stride_to) = (1, 1);
        for axis in (0..from.len()).rev() {
            let stride = self.int_like(position, stride_from)?;
            let size = self.int_like(position, from[axis] as i128)?;
            let outer = self.binary(BinaryOp::Div, position, &stride)?;
            let along = self.binary(BinaryOp::Rem, &outer, &size)?;
            let stride = self.int_like(position, stride_to)?;
            let offset = self.binary(BinaryOp::Mul, &along, &stride)?;
            moved = self.binary(BinaryOp::Add, &moved, &offset)?;
            stride_from *= from[axis] as i128;
            stride_to *= to[axis] as i128;
        }
        Ok(moved)
    }
}

/// What changes no result.
fn identity(op: ReduceOp, number: Number) -> Const {
    let of_range = |end: fn((i128, i128)) -> i128| {
        let value = number.range().map_or(0, end);
        Const::Int(i64::try_from(value).unwrap_or(value as u64 as i64))
    };
    match (op, number.is_float()) {
        (ReduceOp::Sum | ReduceOp::Or, false) => Const::Int(0),
        (ReduceOp::Sum | ReduceOp::Or, true) => Const::Float(0.0),
        (ReduceOp::Prod, false) => Const::Int(1),
        (ReduceOp::Prod, true) => Const::Float(1.0),
        (ReduceOp::MaxNum | ReduceOp::MinNum, _) => Const::Float(f64::NAN),
        (ReduceOp::Max | ReduceOp::ArgMax, true) => Const::Float(f64::NEG_INFINITY),
        (ReduceOp::Min | ReduceOp::ArgMin | ReduceOp::And, true) => Const::Float(f64::INFINITY),
        (ReduceOp::Max | ReduceOp::ArgMax, false) => of_range(|(least, _)| least),
        (ReduceOp::Min | ReduceOp::ArgMin, false) => of_range(|(_, most)| most),
        // All bits are set.
        (ReduceOp::And, false) if number.is_signed() => Const::Int(-1),
        (ReduceOp::And, false) => of_range(|(_, most)| most),
    }
}

/// The same value in a shape with the same sizes in the program.
pub fn retyped(x: &Tensor, shape: &[usize]) -> Tensor {
    Tensor { ty: x.ty.with_shape(shape), value: x.value }
}

pub fn with_size(shape: &[usize], axis: usize, size: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[axis] = size;
    shape
}

/// Whether elements keep their place in the flat, padded block. Axes of both shapes are grouped from the last on, each
/// group with as many elements on both sides; within a group only the outermost axis may have a pad.
pub fn reshapes_in_place(from: &[usize], to: &[usize]) -> bool {
    let (mut from, mut to) = (from.to_vec(), to.to_vec());
    while !from.is_empty() || !to.is_empty() {
        let [left, right] = innermost_group(&mut from, &mut to);
        let same_count = count(&padded(&left)) == count(&padded(&right));
        if !same_count || !only_outermost_padded(&left) || !only_outermost_padded(&right) {
            return false;
        }
    }
    true
}

/// Takes the fewest axes from the ends of two shapes that have as many elements; each side begins with the last axis.
fn innermost_group(from: &mut Vec<usize>, to: &mut Vec<usize>) -> [Vec<usize>; 2] {
    let mut left: Vec<usize> = from.pop().into_iter().collect();
    let mut right: Vec<usize> = to.pop().into_iter().collect();
    while count(&left) != count(&right) {
        let (group, rest) = if count(&left) < count(&right) { (&mut left, &mut *from) } else { (&mut right, &mut *to) };
        match rest.pop() {
            Some(size) => group.push(size),
            None => break,
        }
    }
    [left, right]
}

fn count(shape: &[usize]) -> usize {
    shape.iter().product()
}

/// Of sizes from the innermost on, without those of 1.
fn only_outermost_padded(inner_first: &[usize]) -> bool {
    let sizes: Vec<usize> = inner_first.iter().copied().filter(|size| *size > 1).collect();
    sizes.iter().rev().skip(1).all(|size| size.is_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flat, padded position of each element of a shape, in order.
    fn places(shape: &[usize]) -> Vec<usize> {
        let sizes = padded(shape);
        let place = |mut number: usize| {
            let (mut place, mut stride) = (0, 1);
            for axis in (0..shape.len()).rev() {
                place += number % shape[axis] * stride;
                number /= shape[axis];
                stride *= sizes[axis];
            }
            place
        };
        (0..shape.iter().product()).map(place).collect()
    }

    #[test]
    fn reshapes_in_place_keep_all_places() {
        let shapes: [&[usize]; 14] = [
            &[24],
            &[1, 24],
            &[24, 1],
            &[3, 8],
            &[8, 3],
            &[6, 4],
            &[4, 6],
            &[12, 2],
            &[2, 12],
            &[3, 2, 4],
            &[2, 3, 4],
            &[1, 6, 1, 4],
            &[24, 1, 1],
            &[2, 2, 6],
        ];
        for from in shapes {
            for to in shapes {
                let same = places(from) == places(to) && count(&padded(from)) == count(&padded(to));
                assert_eq!(reshapes_in_place(from, to), same, "{from:?} to {to:?}");
            }
        }
    }
}
