//! Tolerances: how near a result must be to a reference.
use kiln::{DType, Tensor};
use kiln_graph::Format;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Near {
    /// The same bits; all NaNs are equal.
    Bits,
    /// The same numbers: zeros of either sign are equal. For maxima and minima, where PyTorch's sign of zero depends on
    /// the element's position in the tensor.
    Numbers,
    /// As `Bits`, but in f32 and f64 an adjacent number is accepted as well.
    AlmostBits,
    /// On half types within one unit in the last place of PyTorch's result in f64; else as `Bits`.
    BitsInF64,
    /// Within `ulps` units in the last place of the reference, or of `scale` if that is larger, plus twice PyTorch's
    /// own error.
    Ulps { ulps: f64, scale: f64 },
    /// For functions that are computed in f64: narrower types within two units in the last place, f64 within four units
    /// of `terms`, the size of the terms that cancel.
    Wide { terms: f64 },
}

/// The reference for an output.
#[derive(Clone)]
pub struct Wanted {
    /// PyTorch's result in the graph's own type.
    pub torch: Tensor,
    /// Its result with all floats in f64.
    pub precise: Tensor,
}

/// Below this, GPU code may give zero for an elementary function on bf16: the hardware instructions for powers of two
/// and reciprocals flush subnormal f32 numbers to zero, and `x * sigmoid(x)` multiplies them by up to 89.
pub const FLUSHED: f64 = 7.6e-37;

/// Fails with the first element that is not near enough. `flushes`: on bf16, zero is accepted for numbers below
/// [`FLUSHED`].
pub fn check(near: Near, got: &Tensor, want: &Wanted, flushes: bool) -> Result<(), String> {
    if got.ty != want.torch.ty {
        return Err(format!("the result is {}, should be {}", got.ty, want.torch.ty));
    }
    let d = got.ty.dtype;
    for i in 0..got.ty.count() {
        let (g, t, p) = (got.get_f64(i), want.torch.get_f64(i), want.precise.get_f64(i));
        let whole = !d.is_float() && got.get_i64(i) == want.torch.get_i64(i);
        let fits = match near {
            _ if !d.is_float() => whole,
            _ if g.is_nan() && t.is_nan() => true,
            Near::AlmostBits if matches!(d, DType::F32 | DType::F64) => g == t || (g - t).abs() <= ulp(d, t.abs()),
            Near::BitsInF64 if d.bytes() == 2 => g == round(d, p) || (g - p).abs() <= ulp(d, p.abs()),
            Near::Bits | Near::AlmostBits | Near::BitsInF64 => g.to_bits() == t.to_bits(),
            Near::Numbers => g == t,
            Near::Ulps { .. } | Near::Wide { .. } => {
                let (ulps, scale) = match near {
                    Near::Ulps { ulps, scale } => (ulps, scale),
                    Near::Wide { terms } if d == DType::F64 => (4.0, terms),
                    _ => (2.0, 0.0),
                };
                let error = if t.is_finite() && p.is_finite() { 2.0 * (t - p).abs() } else { 0.0 };
                let allowed = ulps * ulp(d, p.abs().max(scale)) + error;
                let rounded = round(d, p);
                let flushed = flushes && d == DType::Bf16 && g == 0.0 && p.abs() < FLUSHED;
                flushed || g == t || g == rounded || (g.is_nan() && p.is_nan()) || (g - p).abs() <= allowed || {
                    // Near the end of the range, rounding to infinity is accepted.
                    g.is_infinite() && g.signum() == p.signum() && p.abs() + allowed >= largest(d)
                }
            }
        };
        if !fits {
            let count = got.ty.count();
            return Err(format!(
                "element {i} of {count}: {g:e}, should be {t:e} by PyTorch in {d}, {p:e} by PyTorch in f64"
            ));
        }
    }
    Ok(())
}

fn format(d: DType) -> Format {
    d.format().unwrap_or(Format::F64)
}
/// The largest number of a type.
pub fn largest(d: DType) -> f64 {
    format(d).largest()
}
/// The unit in the last place of numbers of this size.
fn ulp(d: DType, size: f64) -> f64 {
    let format = format(d);
    let size = if size.is_finite() { size.min(format.largest()) } else { return 0.0 };
    let least = format.least_exponent();
    let exponent = if size > 0.0 { size.log2().floor() as i32 } else { least };
    let exponent = exponent.max(least) - format.fraction as i32;
    // Computed as two factors, since a single power may be out of range.
    2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2)
}
/// The nearest number of a type.
pub fn round(d: DType, v: f64) -> f64 {
    let mut t = Tensor::zeros(kiln::Type::new(d, [1]));
    t.set_f64(0, v);
    t.get_f64(0)
}
