//! Random perturbation of rounding, to estimate how far rounding can move a result. Error bounds are derived from it.
//!
//! Every rounded result moves by up to a unit in its last place. Operands of a sum move before they are added, as
//! another order of summation would move it. Equal results of one op move alike, so that ties stay ties.
use super::{
    Precision, composite,
    composite::Rows,
    eval,
    value::{Data, Value},
};
use kiln_graph::{DType, Format, Op, Type, ops::Rounding, random::mixed};
use std::sync::Arc;

/// Runs one op with its roundings perturbed by `seed`.
pub(super) fn sample(op: &Op, ty: &Type, args: &[&Value], (seed, tf32_convs): (u64, bool)) -> Result<Value, String> {
    let moved_args: Vec<Value>;
    let mut operands = args.to_vec();
    // The order of summation is not fixed, and an FMA adds a product that was not rounded.
    let rounding = op.row().rounding;
    if rounding == Rounding::Sums {
        let data = |i: usize, a: &Value| match op {
            Op::Unary(_) => nudged(&a.data, a.ty.dtype.compute(), by_value(seed + 1)),
            // Probabilities are rounded to the operands' dtype before the second matmul.
            Op::Attention { .. } => nudged(&a.data, a.ty.dtype, by_place(seed + i as u64)),
            Op::Conv { .. } if tf32_convs && a.ty.dtype == DType::F32 => {
                moved(&a.data, Format::F32, 1.0 / 1024.0, by_place(seed + i as u64))
            }
            _ => nudged(&a.data, a.ty.dtype.compute(), by_place(seed + i as u64)),
        };
        moved_args = args.iter().enumerate().map(|(i, a)| Value { ty: a.ty.clone(), data: data(i, a) }).collect();
        operands = moved_args.iter().collect();
    }
    let mut value = match op {
        // Kernels need not read the values of keys that a mask hides: some runs leave them out.
        Op::Attention { .. } if seed >> 32 & 1 == 1 => {
            let data = composite::attention(op, &operands, &Rows::all(&operands, &ty.shape, false))?;
            Value { ty: ty.clone(), data }
        }
        _ => eval(op, ty, &operands, Precision::Native)?,
    };
    if rounding != Rounding::Exact {
        value.data = nudged(&value.data, ty.dtype, by_value(seed));
    }
    Ok(value)
}

/// Uniform in -1..1.
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}
/// A factor that depends on the element's position.
fn by_place(seed: u64) -> impl Fn(usize, f64) -> f64 {
    move |i, _| unit(mixed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(i as u64)))
}
/// A factor that depends on the element's value: equal elements move alike.
fn by_value(seed: u64) -> impl Fn(usize, f64) -> f64 {
    move |_, x| unit(mixed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ x.to_bits()))
}

/// Perturbs floats by a relative error of up to one epsilon of `dtype` (two for f32 and f64), and rounds f32 carriers
/// to `dtype`.
fn nudged(data: &Data, dtype: DType, by: impl Fn(usize, f64) -> f64) -> Data {
    let format = dtype.format().unwrap_or(Format::F32);
    moved(data, format, format.epsilon() * if format.bits() < 32 { 1.0 } else { 2.0 }, by)
}

/// Perturbs floats by a relative error of up to `step`; rounds f32 carriers to `format`.
fn moved(data: &Data, format: Format, step: f64, by: impl Fn(usize, f64) -> f64) -> Data {
    match data {
        Data::F32(v) => {
            let one = |(i, x): (usize, &f32)| {
                let x = f64::from(*x);
                format.round_f32((x * (1.0 + step * by(i, x))) as f32)
            };
            Data::F32(Arc::new(v.iter().enumerate().map(one).collect()))
        }
        Data::F64(v) => Data::F64(Arc::new(v.iter().enumerate().map(|(i, x)| x * (1.0 + step * by(i, *x))).collect())),
        other => other.clone(),
    }
}
