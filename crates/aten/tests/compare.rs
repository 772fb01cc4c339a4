//! Comparison of results with PyTorch's.
use kiln_graph::{DType, Tensor};

/// Relative and absolute tolerance: a few rounding steps of the dtype.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-11,
        DType::F32 => 2e-5,
        DType::F16 => 4e-3,
        DType::Bf16 => 3e-2,
        _ => 0.0,
    }
}

/// The first difference beyond the tolerance, if any. NaN equals NaN; infinities must be equal. `bounds` are added to
/// the tolerance of a result; those that are left out are 0.
pub fn difference_beyond(got: &[Tensor], want: &[Tensor], bounds: &[f64]) -> Option<String> {
    if got.len() != want.len() {
        return Some(format!("{} results, torch has {}", got.len(), want.len()));
    }
    for (o, (g, w)) in got.iter().zip(want).enumerate() {
        if g.ty != w.ty {
            return Some(format!("result {o} is {}, torch's is {}", g.ty, w.ty));
        }
        let (tolerance, bound) = (tolerance(g.ty.dtype), bounds.get(o).copied().unwrap_or(0.0));
        for (i, (a, b)) in g.to_f64_vec().into_iter().zip(w.to_f64_vec()).enumerate() {
            let same = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs()) + bound;
            if !same {
                return Some(format!("result {o} ({}), element {i}: {a}, torch has {b}", g.ty));
            }
        }
    }
    None
}
