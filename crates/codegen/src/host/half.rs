//! Rounding of constants to short floats.
use kiln_block::{Elem, Format};

/// The nearest value of `e`, ties to even; `None` if it is out of range for a float without infinities.
pub(super) fn round(e: Elem, v: f64) -> Option<f64> {
    match e.format() {
        Some(Format::F64) | None => Some(v),
        Some(Format::F32) => Some(v as f32 as f64),
        Some(format) => Some(nearest(v, format)).filter(|v| format.infinities || v.is_finite()),
    }
}

/// Rounds once from f64; infinite beyond the largest number.
fn nearest(v: f64, format: Format) -> f64 {
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let exponent = ((v.to_bits() >> 52 & 0x7ff) as i32 - Format::F64.bias()).max(format.least_exponent());
    // A power of two: scaling by it is exact.
    let ulp = 2f64.powi(exponent - format.fraction as i32);
    let r = (v / ulp).round_ties_even() * ulp;
    if r.abs() > format.largest() { f64::INFINITY.copysign(v) } else { r }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn rounds_to_nearest_even() {
        assert_eq!(round(Elem::Bf16, 1.00390625), Some(1.0));
        assert_eq!(round(Elem::Bf16, 3.0e38), Some(226.0 * 2f64.powi(120)));
        assert_eq!(round(Elem::F16, 65520.0), Some(f64::INFINITY));
        assert_eq!(round(Elem::F16, 1e-8), Some(0.0));
        assert_eq!(round(Elem::F16, 0.1), Some(0.0999755859375));
        assert_eq!([464.0, 465.0].map(|v| round(Elem::F8e4m3, v)), [Some(448.0), None]);
        assert_eq!([61439.0, 61440.0].map(|v| round(Elem::F8e5m2, v)), [Some(57344.0), Some(f64::INFINITY)]);
    }
}
