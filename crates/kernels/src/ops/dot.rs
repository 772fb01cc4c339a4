//! Matmuls of blocks.
use super::convert::cast_number;
use super::shape::full;
use crate::emit::{Emitter, retyped};
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::types::{Number, TensorType};
use crate::value::{Tensor, Value};
use kiln_block::{Const, DotPrecision};

/// What a call says beside its operands.
pub struct DotOptions {
    pub precision: DotPrecision,
    pub out: Option<Number>,
}

/// By name; f32 is multiplied as tf32 where nothing is said.
pub fn precision(name: Option<&str>, allow_tf32: Option<bool>) -> Eval<DotPrecision> {
    match (name.map(str::to_lowercase).as_deref(), allow_tf32) {
        (Some(_), Some(_)) => Err(value_error(
            "both `input_precision` and `allow_tf32` are given",
            "give `input_precision` alone; `allow_tf32` is its old name",
        )),
        (None, None | Some(true)) | (Some("tf32"), None) => Ok(DotPrecision::Tf32),
        (None, Some(false)) | (Some("ieee"), None) => Ok(DotPrecision::Exact),
        // Sums of bf16 products have forms that are at least as exact.
        (Some("tf32x3" | "bf16x3"), None) => Ok(DotPrecision::Tf32x3),
        (Some("bf16x6"), None) => Ok(DotPrecision::Exact),
        (Some(other), None) => Err(unsupported(
            format!("input_precision '{other}' is not supported"),
            "'tf32', 'tf32x3', 'bf16x3', 'bf16x6' and 'ieee' are",
        )),
    }
}

/// `a @ b`, added to a block if one is given. Axes ahead of the last two are those of a batch.
pub fn dot(emit: &mut Emitter, a: &Tensor, b: &Tensor, sum: Option<&Tensor>, options: &DotOptions) -> Eval<Tensor> {
    let (batch_a, batch_b) = (batch(&a.ty.shape), batch(&b.ty.shape));
    if batch_a.is_empty() && batch_b.is_empty() {
        return dot_of_matrices(emit, a, b, sum, options);
    }
    if batch_a != batch_b || sum.is_some_and(|sum| batch(&sum.ty.shape) != batch_a) {
        return Err(type_error(
            format!("dot of {} and {}: the batches {batch_a:?} and {batch_b:?} differ", a.ty, b.ty),
            "axes ahead of the last two are equal",
        ));
    }
    let count = batch_a.iter().product();
    let mut products = vec![];
    for at in 0..count {
        let sum = sum.map(|sum| matrix_of_batch(emit, sum, count, at)).transpose()?;
        let (a, b) = (matrix_of_batch(emit, a, count, at)?, matrix_of_batch(emit, b, count, at)?);
        products.push(dot_of_matrices(emit, &a, &b, sum.as_ref(), options)?);
    }
    let (rows, columns) = (a.ty.shape[a.ty.shape.len() - 2], b.ty.shape[b.ty.shape.len() - 1]);
    for product in &mut products {
        *product = emit.reshape(product, &[1, rows, columns])?;
    }
    // Those that are missing to a power of two are the batch's pad.
    let last = products[count - 1].clone();
    products.resize(count.next_power_of_two(), last);
    while products.len() > 1 {
        products = products.chunks(2).map(|pair| emit.concatenate(&pair[0], &pair[1], 0)).collect::<Eval<_>>()?;
    }
    let all = retyped(&products[0], &[count, rows, columns]);
    emit.reshape(&all, &[batch_a, &[rows, columns]].concat())
}

fn batch(shape: &[usize]) -> &[usize] {
    &shape[..shape.len().saturating_sub(2)]
}

fn matrix_of_batch(emit: &mut Emitter, x: &Tensor, count: usize, at: usize) -> Eval<Tensor> {
    let matrix = x.ty.shape[x.ty.shape.len() - 2..].to_vec();
    let flat = emit.reshape(x, &[&[count], &matrix[..]].concat())?;
    let part = emit.part(&flat, 0, at, 1)?;
    emit.reshape(&part, &matrix)
}

fn dot_of_matrices(
    emit: &mut Emitter,
    a: &Tensor,
    b: &Tensor,
    sum: Option<&Tensor>,
    options: &DotOptions,
) -> Eval<Tensor> {
    let ([m, k], [k_of_b, n]) = (&a.ty.shape[..], &b.ty.shape[..]) else {
        return Err(type_error(
            format!("dot takes two blocks of two axes; these are {} and {}", a.ty, b.ty),
            "add an axis with `x[:, None]`, or use `sum(x * y, axis)`",
        ));
    };
    if k != k_of_b {
        return Err(type_error(
            format!("dot of {} and {}: the inner sizes {k} and {k_of_b} differ", a.ty, b.ty),
            "transpose an operand with `trans`, or load it in the other order",
        ));
    }
    let (left, right) = (a.number()?, b.number()?);
    if left != right && !(left.is_f8() && right.is_f8()) {
        return Err(type_error(
            format!("dot of {} and {}", a.ty, b.ty),
            format!("cast one operand, such as `b.to(tl.{left})`"),
        ));
    }
    let (sum_number, out) = result_numbers(left, sum.map(Tensor::number).transpose()?, options.out)?;
    let ty = TensorType::block(sum_number, [*m, *n]);
    let start = match sum {
        Some(sum) if sum.ty.shape != ty.shape => {
            return Err(type_error(
                format!("the block added to is {}; the product is {ty}", sum.ty),
                "their shapes are equal",
            ));
        }
        Some(sum) => cast_number(emit, sum, sum_number)?,
        None => full(emit, &Value::int(0), &ty)?,
    };
    let precision = if left == Number::Float32 { options.precision } else { DotPrecision::Exact };
    let zero = if left.is_float() { Const::Float(0.0) } else { Const::Int(0) };
    let (a, b) = (emit.filled_pad(a, 1, zero)?, emit.filled_pad(b, 0, zero)?);
    let product = emit.dot(&a, &b, &start, precision)?;
    cast_number(emit, &product, out)
}

/// The type that is summed in, and the type of the result.
fn result_numbers(operand: Number, sum: Option<Number>, out: Option<Number>) -> Eval<(Number, Number)> {
    let natural = match operand {
        Number::Int8 | Number::UInt8 => Number::Int32,
        Number::Float64 => Number::Float64,
        Number::Float16 | Number::BFloat16 | Number::Float32 => Number::Float32,
        number if number.is_f8() => Number::Float32,
        number => {
            return Err(type_error(
                format!("dot takes int8, 8-bit floats, float16, bfloat16, float32 or float64, not {number}"),
                "cast both operands with `.to(...)`",
            ));
        }
    };
    let asked = out.or(sum).unwrap_or(natural);
    if let (Some(sum), Some(out)) = (sum, out)
        && sum != out
    {
        return Err(type_error(
            format!("the block added to is {sum}, and out_dtype is {out}"),
            "they are equal; leave out_dtype out",
        ));
    }
    let halves = natural == Number::Float32 && (operand == Number::Float16 || operand.is_f8());
    match asked {
        asked if asked == natural => Ok((natural, asked)),
        // Sums are taken in f32 and rounded once, which is at least as exact.
        Number::Float16 if halves => Ok((natural, asked)),
        Number::BFloat16 => {
            Err(value_error("dot does not give bfloat16", "leave out_dtype out and cast with `.to(tl.bfloat16)`"))
        }
        asked if sum.is_some() => Err(type_error(
            format!("dot of {operand} adds to {natural}; the block is {asked}"),
            format!("start from `zeros(..., dtype=tl.{natural})`"),
        )),
        _ => Ok((natural, natural)),
    }
}
