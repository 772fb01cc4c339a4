//! f8e4m3, torch's `float8_e4m3fn`: three bits after the point, exponents from -6 to 8, no infinity; the largest number is 448.

/// What rounds to more than this is NaN.
const LAST: f32 = 464.0;
/// The least number with all its digits, and the distance of smaller ones.
const NORMAL: f32 = 1.0 / 64.0;
const STEP: f32 = 1.0 / 512.0;
const NAN: u8 = 0x7f;

/// The nearest number, of two the even one; beyond the largest: NaN, as PyTorch converts.
pub fn from_f32(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    let size = x.abs();
    let bits = if size.is_nan() || size > LAST {
        NAN
    } else if size < NORMAL {
        (size / STEP).round_ties_even() as u8
    } else {
        let bits = size.to_bits();
        let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
        ((rounded >> 20) - (120 << 3)) as u8
    };
    sign | bits
}

pub fn to_f32(bits: u8) -> f32 {
    let size = match bits & 0x7f {
        NAN => f32::NAN,
        small @ 0..8 => f32::from(small) * STEP,
        other => f32::from_bits((u32::from(other) << 20) + (120 << 23)),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// What a conversion there and back leaves.
pub fn round(x: f32) -> f32 {
    to_f32(from_f32(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number comes back, and what lies between two goes to the nearest.
    #[test]
    fn numbers_and_their_neighbours() {
        for bits in 0..=0xff {
            let x = to_f32(bits);
            assert!(x.is_nan() || from_f32(x) == bits, "{bits:#x} {x}");
        }
        for bits in 0..0x7e {
            let (a, b) = (to_f32(bits), to_f32(bits + 1));
            let half = (a + b) / 2.0;
            let even = bits + (bits & 1);
            assert_eq!([from_f32(half.next_down()), from_f32(half), from_f32(half.next_up())], [bits, even, bits + 1]);
            assert_eq!(from_f32(-half), even | 0x80);
        }
        for x in [464.1, 480.0, 1e30, f32::INFINITY, f32::NAN] {
            assert_eq!(from_f32(x), NAN);
        }
        assert_eq!([from_f32(464.0), from_f32(448.0), from_f32(-0.0)], [0x7e, 0x7e, 0x80]);
    }
}
