//! Operators that create tensors: constants, `arange`, `eye`, fills and copies.
use super::{
    Table,
    context::{Ctx, Res},
    pointwise::operand,
    scalars::as_value,
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, CompareOp, DType, Scalar, Type, ValueId};

pub const TABLE: Table = &[
    ("aten::zeros", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::zeros_like", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::new_zeros", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::zero", |c, call| constant(c, call, Scalar::Int(0))),
    // Uninitialised memory: any value is correct, so zero.
    ("aten::empty", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::empty_like", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::new_empty", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::ones", |c, call| constant(c, call, Scalar::Int(1))),
    ("aten::ones_like", |c, call| constant(c, call, Scalar::Int(1))),
    ("aten::new_ones", |c, call| constant(c, call, Scalar::Int(1))),
    ("aten::full", |c, call| given(c, call, 1)),
    ("aten::full_like", |c, call| given(c, call, 1)),
    ("aten::new_full", |c, call| given(c, call, 2)),
    ("aten::fill", |c, call| given(c, call, 1)),
    ("aten::scalar_tensor", |c, call| given(c, call, 0)),
    ("aten::copy", copy),
    ("aten::arange", arange),
    ("aten::eye", eye),
];

fn constant(c: &mut Ctx, call: &Call, value: Scalar) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    Ok(vec![c.full(&ty, value)?])
}

/// A tensor filled with argument `i`, a number or a rank-0 tensor.
fn given(c: &mut Ctx, call: &Call, i: usize) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let value = operand(c, call, i)?;
    let value = as_value(c, value, ty.dtype)?;
    Ok(vec![c.broadcast(value, &ty.shape)?])
}

/// `(x, source)`: the source, cast to x's dtype and broadcast to its shape.
fn copy(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (src, ty) = (c.tensor(call, 1)?, c.out(call, 0)?);
    let src = c.cast(src, ty.dtype)?;
    Ok(vec![c.broadcast(src, &ty.shape)?])
}

/// `start + i * step`, computed in f64 for float dtypes, as in torch.
fn arange(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let numbers = call.args.iter().map_while(super::context::scalar_of).collect::<Vec<_>>();
    let (start, step) = match (call.overload.as_str(), &numbers[..]) {
        ("start_step", [start, _, step, ..]) => (*start, *step),
        ("start", [start, ..]) => (*start, Scalar::Int(1)),
        ("", _) => (Scalar::Int(0), Scalar::Int(1)),
        (other, _) => return Err(format!("arange.{other}")),
    };
    let work = if ty.dtype.is_float() { DType::F64 } else { DType::I64 };
    let plain = start.as_f64() == 0.0 && step.as_f64() == 1.0;
    let mut v = c.iota(Type::new(if plain { ty.dtype } else { work }, ty.shape.clone()), 0);
    if !plain {
        let (start, step) = (c.constant(work, start), c.constant(work, step));
        v = c.binary(BinaryOp::Mul, v, step)?;
        v = c.binary(BinaryOp::Add, v, start)?;
    }
    Ok(vec![c.cast(v, ty.dtype)?])
}

fn eye(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let [rows, columns] = ty.shape[..] else { return Err("eye with other than two axes".into()) };
    let row = c.iota(Type::new(DType::I64, [rows, 1]), 0);
    let column = c.iota(Type::new(DType::I64, [1, columns]), 1);
    let on = c.compare(CompareOp::Eq, row, column)?;
    Ok(vec![c.cast(on, ty.dtype)?])
}
