//! The numeric kinds of elements: floats of a [`Format`], integers of a range, or bool. Graphs and block programs share
//! them.
//!
//! Takes and gives plain numbers and bit patterns. [`Random`] draws numbers. Knows nothing of tensors, type names or
//! memory.
mod format;
pub mod random;

pub use format::Format;
pub use random::Random;

/// The numeric kind of an element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A floating-point number.
    Float(Format),
    /// An integer from `least` to `most`. Arithmetic wraps; a negative `least` means two's complement.
    Int {
        /// Smallest value.
        least: i64,
        /// Largest value.
        most: i64,
    },
    /// One byte, 0 or 1.
    Bool,
}

impl Kind {
    /// Signed 64-bit integers.
    pub const I64: Kind = Kind::Int { least: i64::MIN, most: i64::MAX };
    /// Signed 32-bit integers.
    pub const I32: Kind = Kind::Int { least: i32::MIN as i64, most: i32::MAX as i64 };
    /// Signed 16-bit integers.
    pub const I16: Kind = Kind::Int { least: i16::MIN as i64, most: i16::MAX as i64 };
    /// Signed 8-bit integers.
    pub const I8: Kind = Kind::Int { least: i8::MIN as i64, most: i8::MAX as i64 };
    /// Unsigned 8-bit integers.
    pub const U8: Kind = Kind::Int { least: 0, most: u8::MAX as i64 };
    /// Unsigned 16-bit integers.
    pub const U16: Kind = Kind::Int { least: 0, most: u16::MAX as i64 };
    /// Unsigned 32-bit integers.
    pub const U32: Kind = Kind::Int { least: 0, most: u32::MAX as i64 };
    /// Unsigned 64-bit integers. Those above `most` are kept as the negative numbers of the same bits.
    pub const U64: Kind = Kind::Int { least: 0, most: i64::MAX };

    /// The float format; `None` for integers and bool.
    pub fn format(self) -> Option<Format> {
        if let Kind::Float(format) = self { Some(format) } else { None }
    }
    /// Smallest and largest value of an integer; `None` for floats and bool.
    pub fn int_range(self) -> Option<(i64, i64)> {
        if let Kind::Int { least, most } = self { Some((least, most)) } else { None }
    }
    /// Width of an element in memory, in bits.
    pub fn bits(self) -> u32 {
        match self {
            Kind::Float(format) => format.bits(),
            Kind::Int { most: i64::MAX, .. } => i64::BITS,
            Kind::Int { least, most } => i64::BITS - most.leading_zeros() + u32::from(least < 0),
            Kind::Bool => 8,
        }
    }
    /// The format of an 8-bit float; `None` for all other kinds. f8 elements are stored, moved, cast and used as GEMM
    /// operands; no other arithmetic is defined on them.
    pub fn f8(self) -> Option<Format> {
        self.format().filter(|f| f.bits() == 8)
    }
    /// `x` as the element stores it: integers wrap to their width, bool is 1 unless `x` is 0. For floats, `x`
    /// unchanged.
    pub fn wrapped(self, x: i64) -> i64 {
        match self {
            Kind::Float(_) => x,
            Kind::Int { least, .. } => {
                let unused = i64::BITS - self.bits();
                if least < 0 { x << unused >> unused } else { ((x as u64) << unused >> unused) as i64 }
            }
            Kind::Bool => i64::from(x != 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_wrap_to_their_width() {
        assert_eq!(
            [Kind::I64, Kind::I32, Kind::I16, Kind::I8, Kind::U8, Kind::Bool].map(Kind::bits),
            [64, 32, 16, 8, 8, 8]
        );
        assert_eq!([Kind::U64, Kind::U32, Kind::U16].map(Kind::bits), [64, 32, 16]);
        for x in [0, 1, -1, 127, 128, 255, 256, -128, -129, 1 << 15, 1 << 31, (1 << 31) - 1, i64::MIN, i64::MAX] {
            assert_eq!(Kind::I64.wrapped(x), x);
            assert_eq!(Kind::I32.wrapped(x), i64::from(x as i32));
            assert_eq!(Kind::I16.wrapped(x), i64::from(x as i16));
            assert_eq!(Kind::I8.wrapped(x), i64::from(x as i8));
            assert_eq!(Kind::U8.wrapped(x), i64::from(x as u8));
            assert_eq!(Kind::U16.wrapped(x), i64::from(x as u16));
            assert_eq!(Kind::U32.wrapped(x), i64::from(x as u32));
            assert_eq!(Kind::U64.wrapped(x), x);
            assert_eq!(Kind::Bool.wrapped(x), i64::from(x != 0));
        }
    }
}
