//! What numbers elements are: floats of a [`Format`], integers of a range, or bool. Graphs and block programs share it.
//!
//! Takes and gives plain numbers and bits. Never: tensors, names of types, memory.
mod format;

pub use format::Format;

/// The numbers of an element type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Float(Format),
    /// From the least to the largest. Arithmetic wraps; where the least is negative, it is that of two's complement.
    Int {
        least: i64,
        most: i64,
    },
    /// One byte, 0 or 1.
    Bool,
}

impl Kind {
    pub const I64: Kind = Kind::Int { least: i64::MIN, most: i64::MAX };
    pub const I32: Kind = Kind::Int { least: i32::MIN as i64, most: i32::MAX as i64 };
    pub const I16: Kind = Kind::Int { least: i16::MIN as i64, most: i16::MAX as i64 };
    pub const I8: Kind = Kind::Int { least: i8::MIN as i64, most: i8::MAX as i64 };
    pub const U8: Kind = Kind::Int { least: 0, most: u8::MAX as i64 };

    /// The format of a float.
    pub fn format(self) -> Option<Format> {
        if let Kind::Float(format) = self { Some(format) } else { None }
    }
    /// Least and largest value of an integer.
    pub fn int_range(self) -> Option<(i64, i64)> {
        if let Kind::Int { least, most } = self { Some((least, most)) } else { None }
    }
    /// Bits of an element in memory.
    pub fn bits(self) -> u32 {
        match self {
            Kind::Float(format) => format.bits(),
            Kind::Int { least, most } => i64::BITS - most.leading_zeros() + u32::from(least < 0),
            Kind::Bool => 8,
        }
    }
    /// The format of a float of eight bits. These are stored, moved, cast and multiplied as matrices; there is no other arithmetic.
    pub fn f8(self) -> Option<Format> {
        self.format().filter(|f| f.bits() == 8)
    }
    /// A number as the element holds it: wrapped to its width; for bool, whether it is not 0. Floats stay as they are.
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
        for x in [0, 1, -1, 127, 128, 255, 256, -128, -129, 1 << 15, 1 << 31, (1 << 31) - 1, i64::MIN, i64::MAX] {
            assert_eq!(Kind::I64.wrapped(x), x);
            assert_eq!(Kind::I32.wrapped(x), i64::from(x as i32));
            assert_eq!(Kind::I16.wrapped(x), i64::from(x as i16));
            assert_eq!(Kind::I8.wrapped(x), i64::from(x as i8));
            assert_eq!(Kind::U8.wrapped(x), i64::from(x as u8));
            assert_eq!(Kind::Bool.wrapped(x), i64::from(x != 0));
        }
    }
}
