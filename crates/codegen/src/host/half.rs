//! Rounding of constants to half types.
use kiln_block::Elem;

/// The nearest value of `e`, ties to even; `None` if f8e4m3 has none.
pub(super) fn round(e: Elem, v: f64) -> Option<f64> {
    match e {
        Elem::F32 => Some(v as f32 as f64),
        Elem::Bf16 => Some(nearest(v, 8, -126, f64::from_bits(0x47EF_E000_0000_0000))),
        Elem::F16 => Some(nearest(v, 11, -14, 65504.0)),
        // Out of range is NaN.
        Elem::F8e4m3 => Some(nearest(v, 4, -6, 448.0)).filter(|v| v.is_finite()),
        _ => Some(v),
    }
}

/// With `precision` significant bits, least normal exponent `min`, greatest finite value `max`.
fn nearest(v: f64, precision: i32, min: i32, max: f64) -> f64 {
    if v == 0.0 || !v.is_finite() {
        return v;
    }
    let exponent = ((v.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(min);
    // A power of two: scaling by it is exact.
    let ulp = 2f64.powi(exponent - precision + 1);
    let r = (v / ulp).round_ties_even() * ulp;
    if r.abs() > max { f64::INFINITY.copysign(v) } else { r }
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
    }
}
