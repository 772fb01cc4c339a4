//! What a program takes that is launched by itself, outside of a session: a grid, addresses of its caller's memory, and
//! numbers.

/// An argument of a program, one per parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// The address of memory of the caller, on the program's device.
    Address(u64),
    /// The bytes of a number of at most 8 bytes, the lowest first; a bool is one byte, 0 or 1.
    Scalar([u8; 8]),
}

impl Argument {
    /// Where the driver, or host code, reads the argument's bytes.
    pub fn bits(self) -> u64 {
        match self {
            Argument::Address(address) => address,
            Argument::Scalar(bytes) => u64::from_le_bytes(bytes),
        }
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl From<$number> for Argument {
            fn from(n: $number) -> Argument {
                let mut bytes = [0; 8];
                bytes[..size_of::<$number>()].copy_from_slice(&n.to_le_bytes());
                Argument::Scalar(bytes)
            }
        })*
    };
}
numbers!(u8, i8, i16, u16, i32, u32, i64, u64, f32, f64);

impl From<bool> for Argument {
    fn from(b: bool) -> Argument {
        Argument::from(u8::from(b))
    }
}
