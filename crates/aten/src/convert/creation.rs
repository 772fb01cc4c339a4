//! Operators that create tensors: constants, `arange`, `eye`, fills and copies.
use super::{
    Table,
    context::{Ctx, Res, table_fits},
    pointwise::operand,
    scalars::as_value,
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, CompareOp, DType, Scalar, Tensor, Type, ValueId};

pub const TABLE: Table = &[
    ("aten::zeros", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::zeros_like", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::new_zeros", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::zero", |c, call| constant(c, call, Scalar::Int(0))),
    // Uninitialised memory: any value is correct, so zero.
    ("aten::empty", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::empty_like", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::new_empty", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::empty_permuted", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::empty_strided", |c, call| constant(c, call, Scalar::Int(0))),
    ("aten::new_empty_strided", |c, call| constant(c, call, Scalar::Int(0))),
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
    ("aten::linspace", |c, call| spaced(c, call, None)),
    ("aten::logspace", |c, call| spaced(c, call, Some(3))),
    ("aten::tril_indices", |c, call| triangle(c, call, true)),
    ("aten::triu_indices", |c, call| triangle(c, call, false)),
    ("prims::iota", count),
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
    count_from(c, ty, start, step)
}

/// `(length, start, step, …)`.
fn count(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    count_from(c, ty, c.scalar(call, 1)?, c.scalar(call, 2)?)
}

fn count_from(c: &mut Ctx, ty: Type, start: Scalar, step: Scalar) -> Res<Vec<ValueId>> {
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

/// `(start, end, steps, base?, …)`: numbers at equal distances, counted from the nearer end; or powers of the base,
/// with such exponents. torch computes narrower floats with a step that it has rounded, which f64 does not follow; ends
/// that are integers are truncated.
fn spaced(c: &mut Ctx, call: &Call, base_at: Option<usize>) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let (mut start, mut end) = (c.float(call, 0)?, c.float(call, 1)?);
    let (steps, whole) = (ty.count(), ty.dtype.is_int() && base_at.is_none());
    if whole {
        (start, end) = (start.trunc(), end.trunc());
    } else if !matches!(ty.dtype, DType::F32 | DType::F64) {
        return Err(format!("a range of {}, whose step torch rounds", ty.dtype));
    }
    let step = if steps > 1 { (end - start) / (steps - 1) as f64 } else { 0.0 };
    let place = c.iota(Type::new(DType::F64, [steps]), 0);
    let from_start = c.with(BinaryOp::Mul, place, step)?;
    let from_start = c.with(BinaryOp::Add, from_start, start)?;
    let back = c.with(BinaryOp::Sub, place, steps.saturating_sub(1) as f64)?;
    let from_end = c.with(BinaryOp::Mul, back, step)?;
    let from_end = c.with(BinaryOp::Add, from_end, end)?;
    let first_half = c.compare_with(CompareOp::Lt, place, (steps / 2) as f64)?;
    let mut v = if steps > 1 { c.select(first_half, from_start, from_end)? } else { from_start };
    if let Some(at) = base_at {
        let base = c.float_const(DType::F64, c.float(call, at)?);
        v = c.binary(BinaryOp::Pow, base, v)?;
    }
    Ok(vec![c.cast(v, ty.dtype)?])
}

/// `(rows, columns, offset, …)`: rows and columns of the elements of a triangle, as a table.
fn triangle(c: &mut Ctx, call: &Call, lower: bool) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let (rows, columns, offset) = (c.int(call, 0)?, c.int(call, 1)?, c.int(call, 2)?);
    // Each of these rows has an element, so their number is at most that of the results.
    let some = if lower { offset.saturating_neg().max(0)..rows } else { 0..rows.min(columns.saturating_sub(offset)) };
    let mut places = [vec![], vec![]];
    table_fits(ty.shape.last().copied().unwrap_or(0))?;
    let [row_places, column_places] = &mut places;
    for row in some.filter(|_| columns > 0) {
        let diagonal = row.saturating_add(offset);
        let within = if lower { 0..columns.min(diagonal.saturating_add(1)) } else { diagonal.max(0)..columns };
        for column in within {
            if row_places.len() == ty.shape.last().copied().unwrap_or(0) {
                return Err("a triangle of more elements than in the example run".into());
            }
            row_places.push(row as f64);
            column_places.push(column as f64);
        }
    }
    let found = Type::new(ty.dtype, [2, row_places.len()]);
    Ok(vec![c.table("triangle", Tensor::from_f64(found, places.concat()))])
}
