//! Element types.
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Element type of a tensor. `Display` is the text syntax (`f32`, `bf16`, …).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    F64,
    F32,
    F16,
    Bf16,
    /// Torch's `float8_e4m3fn`: stored, moved, cast and multiplied as matrices ([`crate::f8`]).
    F8e4m3,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl DType {
    pub const ALL: [DType; 11] = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::Bf16,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U8,
        DType::Bool,
        DType::F8e4m3,
    ];

    /// All of them, for messages.
    pub const NAMES: &str = "f64 f32 f16 bf16 f8e4m3 i64 i32 i16 i8 u8 bool";

    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::Bf16 | DType::I16 => 2,
            DType::F8e4m3 | DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }
    pub fn is_float(self) -> bool {
        matches!(self, DType::F64 | DType::F32 | DType::F16 | DType::Bf16 | DType::F8e4m3)
    }
    pub fn is_int(self) -> bool {
        self.int_range().is_some()
    }
    /// Least and largest value of an integer type.
    pub fn int_range(self) -> Option<(i64, i64)> {
        Some(match self {
            DType::I64 => (i64::MIN, i64::MAX),
            DType::I32 => (i32::MIN.into(), i32::MAX.into()),
            DType::I16 => (i16::MIN.into(), i16::MAX.into()),
            DType::I8 => (i8::MIN.into(), i8::MAX.into()),
            DType::U8 => (0, u8::MAX.into()),
            _ => return None,
        })
    }
    /// Type of a matrix product of operands of this type.
    pub fn product(self) -> DType {
        if self == DType::F8e4m3 { DType::F32 } else { self }
    }
    /// Type in which arithmetic on this type is done and reductions accumulate: f32 for shorter floats, else itself.
    pub fn compute(self) -> DType {
        match self {
            DType::F16 | DType::Bf16 | DType::F8e4m3 => DType::F32,
            other => other,
        }
    }
    /// PyTorch's number of the type (`c10/core/ScalarType.h`), as operators take it among their arguments.
    pub fn torch_number(self) -> u8 {
        match self {
            DType::U8 => 0,
            DType::I8 => 1,
            DType::I16 => 2,
            DType::I32 => 3,
            DType::I64 => 4,
            DType::F16 => 5,
            DType::F32 => 6,
            DType::F64 => 7,
            DType::Bool => 11,
            DType::Bf16 => 15,
            DType::F8e4m3 => 24,
        }
    }
    /// The type behind PyTorch's number; `None` for one that graphs do not have.
    pub fn of_torch_number(number: i64) -> Option<DType> {
        DType::ALL.into_iter().find(|d| i64::from(d.torch_number()) == number)
    }
    pub fn name(self) -> &'static str {
        match self {
            DType::F64 => "f64",
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F8e4m3 => "f8e4m3",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(s: &str) -> Result<DType, String> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == s)
            .ok_or_else(|| format!("unknown element type `{s}`; known: {}", DType::NAMES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_pytorch_name_one_type_each() {
        for d in DType::ALL {
            assert_eq!(DType::of_torch_number(d.torch_number().into()), Some(d));
        }
        for none in [-1, 8, 12, 23, 256] {
            assert_eq!(DType::of_torch_number(none), None);
        }
    }
}
