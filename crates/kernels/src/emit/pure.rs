//! Ops without effects: arithmetic, conversions, reductions, dots.
use super::{Emitter, block_type, elem};
use crate::error::{Eval, unsupported};
use crate::types::{Number, Scalar, TensorType};
use crate::value::Tensor;
use kiln_block::{Assembly, BinaryOp, CmpOp, Const, DotPrecision, Op, ReduceOp, ScanOp, Terms, UnaryOp, Value};

impl Emitter {
    pub fn program_id(&mut self, axis: u8) -> Eval<Tensor> {
        self.one(Op::ProgramId(axis), &[], TensorType::scalar(Number::Int32))
    }
    pub fn num_programs(&mut self, axis: u8) -> Eval<Tensor> {
        self.one(Op::NumPrograms(axis), &[], TensorType::scalar(Number::Int32))
    }
    pub fn iota(&mut self, count: usize) -> Eval<Tensor> {
        self.one(Op::Iota, &[], TensorType::block(Number::Int32, [count]))
    }

    pub fn unary(&mut self, op: UnaryOp, x: &Tensor) -> Eval<Tensor> {
        let ty = match op {
            UnaryOp::IsNan | UnaryOp::IsInf => x.ty.with_number(Number::Int1),
            _ => x.ty.clone(),
        };
        self.one(Op::Unary(op), &[x.value], ty)
    }
    pub fn binary(&mut self, op: BinaryOp, a: &Tensor, b: &Tensor) -> Eval<Tensor> {
        self.one(Op::Binary(op), &[a.value, b.value], a.ty.clone())
    }
    pub fn compare(&mut self, op: CmpOp, a: &Tensor, b: &Tensor) -> Eval<Tensor> {
        self.one(Op::Cmp(op), &[a.value, b.value], a.ty.with_number(Number::Int1))
    }
    pub fn select(&mut self, condition: &Tensor, a: &Tensor, b: &Tensor) -> Eval<Tensor> {
        self.one(Op::Select, &[condition.value, a.value, b.value], a.ty.clone())
    }
    /// Inline assembly: a value of each type.
    pub fn assembly(&mut self, assembly: Assembly, operands: &[Tensor], results: &[TensorType]) -> Eval<Vec<Tensor>> {
        let args: Vec<Value> = operands.iter().map(|x| x.value).collect();
        let types = results.iter().map(block_type).collect::<Eval<Vec<_>>>()?;
        let values = self.inst(Op::Asm(Box::new(assembly)), &args, types, vec![]);
        Ok(results.iter().zip(values).map(|(ty, value)| Tensor { ty: ty.clone(), value }).collect())
    }
    /// `a * b + c`, rounded once.
    pub fn fma(&mut self, a: &Tensor, b: &Tensor, c: &Tensor) -> Eval<Tensor> {
        self.one(Op::Fma, &[a.value, b.value, c.value], a.ty.clone())
    }

    pub fn cast(&mut self, x: &Tensor, to: Number) -> Eval<Tensor> {
        if x.ty.scalar == Scalar::Number(to) {
            return Ok(x.clone());
        }
        self.one(Op::Cast(elem(to)?), &[x.value], x.ty.with_number(to))
    }
    /// To a float of fewer bits, rounded towards zero.
    pub fn cast_toward_zero(&mut self, x: &Tensor, to: Number) -> Eval<Tensor> {
        if to.is_f8() || !matches!(x.number()?, Number::Float32 | Number::Float64) {
            return Err(unsupported(
                format!("a cast of {} to {to} toward zero is not supported", x.ty),
                "round to nearest, which is the default, or cast float32 to float16 or bfloat16",
            ));
        }
        self.one(Op::CastToZero(elem(to)?), &[x.value], x.ty.with_number(to))
    }
    /// The same bits as another type of the same width; pointers are addresses in bytes.
    pub fn bitcast(&mut self, x: &Tensor, to: Scalar) -> Eval<Tensor> {
        if x.ty.scalar == to {
            return Ok(x.clone());
        }
        self.one(Op::Bitcast, &[x.value], x.ty.with_scalar(to))
    }
    pub fn pointer_add(&mut self, pointer: &Tensor, offset: &Tensor) -> Eval<Tensor> {
        self.one(Op::PtrAdd, &[pointer.value, offset.value], pointer.ty.clone())
    }

    pub fn reduce(&mut self, op: ReduceOp, x: &Tensor, axis: usize) -> Eval<Tensor> {
        let x = &self.with_identity_in_pads(op, x, axis)?;
        let mut ty = x.ty.clone();
        ty.shape.remove(axis);
        if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) {
            ty = ty.with_number(Number::Int32);
        }
        self.one(Op::Reduce { op, axis: axis as u8 }, &[x.value], ty)
    }
    /// Combines elements along an axis by the innermost region, which yields these values.
    pub fn reduce_by(&mut self, inputs: &[Tensor], axis: usize, yields: &[Tensor]) -> Eval<Vec<Tensor>> {
        let dropped = |input: &Tensor| {
            let mut shape = input.ty.shape.clone();
            shape.remove(axis);
            input.ty.with_shape(shape)
        };
        let types = inputs.iter().map(dropped).collect();
        self.by_region(Op::ReduceBy { axis: axis as u8 }, inputs, types, yields)
    }
    /// The same for all elements up to each one, or with `reverse` from each one on.
    pub fn scan_by(&mut self, inputs: &[Tensor], axis: usize, reverse: bool, yields: &[Tensor]) -> Eval<Vec<Tensor>> {
        let types = inputs.iter().map(|input| input.ty.clone()).collect();
        self.by_region(Op::ScanBy { axis: axis as u8, reverse }, inputs, types, yields)
    }
    pub fn scan(&mut self, op: ScanOp, x: &Tensor, axis: usize) -> Eval<Tensor> {
        self.one(Op::Scan { op, axis: axis as u8 }, &[x.value], x.ty.clone())
    }
    pub fn dot(&mut self, a: &Tensor, b: &Tensor, sum: &Tensor, precision: DotPrecision) -> Eval<Tensor> {
        let op = Op::Dot { precision, terms: Terms::Products };
        self.one(op, &[a.value, b.value, sum.value], sum.ty.clone())
    }
    /// `sum + product`, as a dot that adds to `sum`, if `product` is a dot without a sum that was emitted last.
    pub fn dot_added_to(&mut self, product: &Tensor, sum: &Tensor) -> Eval<Option<Tensor>> {
        let last = self.open.last().and_then(|region| region.insts.last().copied());
        let Some(inst) = last.filter(|inst| self.program.inst(*inst).results == [product.value]) else {
            return Ok(None);
        };
        let (Op::Dot { .. }, [_, _, start]) = (&self.program.inst(inst).op, &self.program.inst(inst).args[..]) else {
            return Ok(None);
        };
        let zero = match self.constant_of(*start) {
            Some(Const::Float(value)) => value == 0.0,
            Some(Const::Int(value)) => value == 0,
            _ => false,
        };
        if !zero || product.ty != sum.ty {
            return Ok(None);
        }
        self.program.inst_mut(inst).args[2] = sum.value;
        Ok(Some(product.clone()))
    }
}
