//! Floating-point formats, and conversion between f32/f64 and the narrower ones (f16, bf16, f8).
//!
//! Takes and gives plain numbers and their bit patterns. Rounds to nearest, ties to even; overflow follows PyTorch.
use half::{bf16, f16};

/// A binary floating-point format: sign, exponent, fraction with an implied leading 1, and subnormals (IEEE 754; for
/// eight bits the OCP 8-bit floating point specification, v1.0).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Exponent bits. The bias is `2^(exponent - 1) - 1`.
    pub exponent: u32,
    /// Stored fraction bits, without the implied 1.
    pub fraction: u32,
    /// Whether the largest exponent is reserved for infinities and NaN. If not, there are no infinities, and NaN is the
    /// pattern with all exponent and fraction bits set.
    pub infinities: bool,
}

impl Format {
    /// IEEE 754 binary64.
    pub const F64: Format = Format { exponent: 11, fraction: 52, infinities: true };
    /// IEEE 754 binary32.
    pub const F32: Format = Format { exponent: 8, fraction: 23, infinities: true };
    /// IEEE 754 binary16.
    pub const F16: Format = Format { exponent: 5, fraction: 10, infinities: true };
    /// bfloat16: the upper half of an f32.
    pub const BF16: Format = Format { exponent: 8, fraction: 7, infinities: true };
    /// PyTorch's `float8_e4m3fn`: exponents from -6 to 8, the largest number is 448.
    pub const F8E4M3: Format = Format { exponent: 4, fraction: 3, infinities: false };
    /// PyTorch's `float8_e5m2`: exponents from -14 to 15, the largest number is 57344.
    pub const F8E5M2: Format = Format { exponent: 5, fraction: 2, infinities: true };

    /// Width in bits.
    pub fn bits(self) -> u32 {
        1 + self.exponent + self.fraction
    }
    /// What is added to an exponent to store it.
    pub fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }
    /// Exponent of the smallest normal number.
    pub fn least_exponent(self) -> i32 {
        1 - self.bias()
    }
    /// The smallest positive normal number.
    pub fn least_normal(self) -> f64 {
        2f64.powi(self.least_exponent())
    }
    /// The smallest positive subnormal number.
    pub fn least(self) -> f64 {
        // Two factors, since for f64 the result itself is below the normal range.
        self.least_normal() * self.epsilon()
    }
    /// The distance from 1 to the next number.
    pub fn epsilon(self) -> f64 {
        2f64.powi(-(self.fraction as i32))
    }
    /// The largest finite number.
    pub fn largest(self) -> f64 {
        // Without infinities the largest exponent also encodes finite numbers, except for the NaN pattern.
        let (above, missing) = if self.infinities { (0, 1.0) } else { (1, 2.0) };
        (2.0 - missing * self.epsilon()) * 2f64.powi(self.bias() + above)
    }
    /// Whether every number of `other` is representable in this format.
    pub fn holds(self, other: Format) -> bool {
        self.exponent >= other.exponent
            && self.fraction >= other.fraction
            && self.largest() >= other.largest()
            && (self.infinities || !other.infinities)
    }

    /// Bits of positive infinity, if the format has one.
    pub fn infinity(self) -> Option<u32> {
        self.infinities.then(|| (1 << (self.exponent + self.fraction)) - (1 << self.fraction))
    }
    /// Bits of NaN: all exponent and fraction bits set, as PyTorch's conversions produce it.
    pub fn nan(self) -> u32 {
        (1 << (self.exponent + self.fraction)) - 1
    }
    /// Bits that overflow gives: infinity, or NaN if there is none.
    pub fn beyond(self) -> u32 {
        self.infinity().unwrap_or(self.nan())
    }
    /// The largest f32 that rounds to a finite number of this format (which is narrower than f32) and does not
    /// overflow.
    pub fn last(self) -> f32 {
        let between = (self.largest() + self.epsilon() * 2f64.powi(self.largest().log2().floor() as i32) / 2.0) as f32;
        // A tie rounds to the even bit pattern.
        if self.beyond().is_multiple_of(2) { between.next_down() } else { between }
    }

    /// Bits of the nearest number of a format narrower than f32, ties to even. Overflow gives infinity, or NaN if the
    /// format has no infinity, as in PyTorch.
    pub fn encode(self, x: f32) -> u32 {
        let sign = x.to_bits() >> 31 << (self.bits() - 1);
        let (size, dropped) = (x.abs(), 23 - self.fraction);
        if size.is_nan() {
            return sign | self.nan();
        }
        let bits = if size < self.least_normal() as f32 {
            (f64::from(size) / self.least()).round_ties_even() as u32
        } else {
            let bits = size.to_bits();
            let rounded = bits + (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
            (rounded >> dropped) - (self.bias_below_f32() << self.fraction)
        };
        sign | bits.min(self.beyond())
    }
    /// The number with these bits, for a format narrower than f32.
    pub fn decode(self, bits: u32) -> f32 {
        let size = bits & self.nan();
        let dropped = 23 - self.fraction;
        let value = if size < 1 << self.fraction {
            (f64::from(size) * self.least()) as f32
        } else if self.infinity().is_some_and(|infinity| size >= infinity) {
            f32::from_bits(size << dropped | f32::INFINITY.to_bits())
        } else if size == self.nan() {
            f32::NAN
        } else {
            f32::from_bits((size << dropped) + (self.bias_below_f32() << 23))
        };
        if bits >> (self.bits() - 1) & 1 == 0 { value } else { -value }
    }
    /// Difference of the exponent biases: added to a stored exponent, it gives the f32 exponent.
    pub fn bias_below_f32(self) -> u32 {
        (Format::F32.bias() - self.bias()) as u32
    }
    /// Decoding table of an 8-bit format, indexed by the byte.
    pub fn table(self) -> [f32; 256] {
        std::array::from_fn(|byte| self.decode(byte as u32))
    }

    /// The nearest number, ties to even. 8-bit formats round through f32, as in PyTorch.
    pub fn round(self, x: f64) -> f64 {
        match self {
            Format::F64 => x,
            Format::F32 => f64::from(x as f32),
            Format::F16 => f16::from_f64(x).to_f64(),
            Format::BF16 => bf16::from_f64(x).to_f64(),
            short => f64::from(short.decode(short.encode(x as f32))),
        }
    }
    /// The nearest number of a format no wider than f32, ties to even.
    pub fn round_f32(self, x: f32) -> f32 {
        match self {
            Format::F64 | Format::F32 => x,
            Format::F16 => f16::from_f32(x).to_f32(),
            Format::BF16 => bf16::from_f32(x).to_f32(),
            short => short.decode(short.encode(x)),
        }
    }
    /// Bits of the number that [`Format::round`] gives.
    pub fn to_bits(self, x: f64) -> u64 {
        match self {
            Format::F64 => x.to_bits(),
            Format::F32 => (x as f32).to_bits().into(),
            Format::F16 => f16::from_f64(x).to_bits().into(),
            Format::BF16 => bf16::from_f64(x).to_bits().into(),
            short => short.encode(x as f32).into(),
        }
    }
    /// The number with these bits; bits above the format's width are ignored.
    pub fn from_bits(self, bits: u64) -> f64 {
        match self {
            Format::F64 => f64::from_bits(bits),
            Format::F32 => f64::from(f32::from_bits(bits as u32)),
            Format::F16 => f16::from_bits(bits as u16).to_f64(),
            Format::BF16 => bf16::from_bits(bits as u16).to_f64(),
            short => f64::from(short.decode(bits as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: [Format; 4] = [Format::F16, Format::BF16, Format::F8E4M3, Format::F8E5M2];

    /// Every number survives a round trip, and a value between two numbers rounds to the nearest.
    #[test]
    fn numbers_and_their_neighbours() {
        for f in SHORT {
            let sign = 1 << (f.bits() - 1);
            for bits in 0..2 * sign {
                let x = f.decode(bits);
                assert!(x.is_nan() || f.encode(x) == bits, "{f:?}: {bits:#x} {x}");
            }
            let largest = f.encode(f.largest() as f32);
            assert_eq!((f.decode(largest), largest + 1), (f.largest() as f32, f.beyond()), "{f:?}");
            for bits in 0..largest {
                let (a, b) = (f.decode(bits), f.decode(bits + 1));
                let half = ((f64::from(a) + f64::from(b)) / 2.0) as f32;
                let even = bits + (bits & 1);
                let near = [half.next_down(), half, half.next_up()].map(|x| f.encode(x));
                assert_eq!(near, [bits, even, bits + 1], "{f:?}: {a} and {b}");
                assert_eq!(f.encode(-half), even | sign);
            }
            assert_eq!([f.last(), -f.last()].map(|x| f.encode(x)), [largest, largest | sign], "{f:?}");
            for x in [f.last().next_up(), f32::MAX, f32::INFINITY] {
                assert_eq!([f.encode(x), f.encode(-x)], [f.beyond(), f.beyond() | sign], "{f:?}: {x}");
            }
            assert_eq!([f.encode(0.0), f.encode(-0.0), f.encode(f32::NAN)], [0, sign, f.nan()]);
            assert_eq!([f.decode(1), f.decode(1 << f.fraction)].map(f64::from), [f.least(), f.least_normal()]);
        }
    }

    /// Extreme values, from the tables of the OCP specification.
    #[test]
    fn ends_of_the_formats_of_eight_bits() {
        let (a, b) = (Format::F8E4M3, Format::F8E5M2);
        assert_eq!([a.largest(), a.least_normal(), a.least()], [448.0, 2f64.powi(-6), 2f64.powi(-9)]);
        assert_eq!([b.largest(), b.least_normal(), b.least()], [57344.0, 2f64.powi(-14), 2f64.powi(-16)]);
        assert_eq!([a.nan(), a.beyond(), b.nan(), b.beyond()], [0x7f, 0x7f, 0x7f, 0x7c]);
        assert_eq!([a.last(), b.last()], [464.0, 61440f32.next_down()]);
        assert!((0x7c..0x80).all(|bits| b.decode(bits).is_infinite() == (bits == 0x7c)));
    }

    /// An e5m2 byte is the upper byte of an f16.
    #[test]
    fn e5m2_is_half_of_f16() {
        for byte in 0..=0xff {
            let (x, y) = (Format::F8E5M2.decode(byte), f16::from_bits((byte << 8) as u16).to_f32());
            assert!(x.to_bits() == y.to_bits() || x.is_nan() && y.is_nan(), "{byte:#x}: {x} {y}");
        }
    }

    #[test]
    fn formats_within_others() {
        for f in SHORT {
            assert!(f.holds(f) && Format::F32.holds(f) && Format::F64.holds(f) && !f.holds(Format::F32));
        }
        assert!(Format::F16.holds(Format::F8E5M2) && Format::BF16.holds(Format::F8E5M2));
        assert!(Format::F16.holds(Format::F8E4M3) && Format::BF16.holds(Format::F8E4M3));
        assert!(!Format::F8E5M2.holds(Format::F8E4M3) && !Format::F8E4M3.holds(Format::F8E5M2));
        assert!(!Format::F16.holds(Format::BF16) && !Format::BF16.holds(Format::F16));
    }

    #[test]
    fn formats_of_the_standard_are_rust_s() {
        let (f, d) = (Format::F32, Format::F64);
        assert_eq!([f.largest(), f.least_normal()], [f64::from(f32::MAX), f64::from(f32::MIN_POSITIVE)]);
        assert_eq!([f.epsilon(), f.least()], [f64::from(f32::EPSILON), f64::from(f32::from_bits(1))]);
        assert_eq!([d.largest(), d.least_normal(), d.least()], [f64::MAX, f64::MIN_POSITIVE, f64::from_bits(1)]);
        assert_eq!([Format::F16.largest(), Format::BF16.largest()], [65504.0, f64::from(f32::from_bits(0x7f7f_0000))]);
    }
}
