//! Element types: a table with a row for each, of which everything else asks.
use kiln_number::{Format, Kind};
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
    /// Torch's `float8_e4m3fn` ([`Format::F8E4M3`]).
    F8e4m3,
    /// Torch's `float8_e5m2` ([`Format::F8E5M2`]).
    F8e5m2,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

/// What there is to know of a type.
struct Row {
    dtype: DType,
    name: &'static str,
    kind: Kind,
    /// Type in which arithmetic on this type is done and reductions accumulate.
    compute: DType,
    /// Type of a matmul of operands of this type.
    matmul: DType,
    /// PyTorch's number of the type (`c10/core/ScalarType.h`).
    torch: u8,
    /// What safetensors files call it.
    safetensors: &'static str,
}

const fn row(
    dtype: DType,
    name: &'static str,
    kind: Kind,
    [compute, matmul]: [DType; 2],
    torch: u8,
    safetensors: &'static str,
) -> Row {
    Row { dtype, name, kind, compute, matmul, torch, safetensors }
}

/// In the order of the enum.
static TABLE: [Row; 12] = {
    use DType::*;
    use Kind::Float;
    [
        row(F64, "f64", Float(Format::F64), [F64, F64], 7, "F64"),
        row(F32, "f32", Float(Format::F32), [F32, F32], 6, "F32"),
        row(F16, "f16", Float(Format::F16), [F32, F16], 5, "F16"),
        row(Bf16, "bf16", Float(Format::BF16), [F32, Bf16], 15, "BF16"),
        row(F8e4m3, "f8e4m3", Float(Format::F8E4M3), [F32, F32], 24, "F8_E4M3"),
        row(F8e5m2, "f8e5m2", Float(Format::F8E5M2), [F32, F32], 23, "F8_E5M2"),
        row(I64, "i64", Kind::I64, [I64, I64], 4, "I64"),
        row(I32, "i32", Kind::I32, [I32, I32], 3, "I32"),
        row(I16, "i16", Kind::I16, [I16, I16], 2, "I16"),
        row(I8, "i8", Kind::I8, [I8, I8], 1, "I8"),
        row(U8, "u8", Kind::U8, [U8, U8], 0, "U8"),
        row(Bool, "bool", Kind::Bool, [Bool, Bool], 11, "BOOL"),
    ]
};

impl DType {
    pub const ALL: [DType; TABLE.len()] = {
        let mut all = [DType::F64; TABLE.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = TABLE[i].dtype;
            i += 1;
        }
        all
    };

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
    /// Names of all of them, for messages.
    pub fn names() -> String {
        DType::ALL.map(DType::name).join(" ")
    }
    pub fn name(self) -> &'static str {
        self.row().name
    }
    /// What numbers it has.
    pub fn kind(self) -> Kind {
        self.row().kind
    }
    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        self.kind().bits() as usize / 8
    }
    pub fn is_float(self) -> bool {
        self.format().is_some()
    }
    /// Of a float.
    pub fn format(self) -> Option<Format> {
        self.kind().format()
    }
    /// Floats of eight bits: stored, moved, cast and multiplied as matrices; there is no other arithmetic on them.
    pub fn is_f8(self) -> bool {
        self.kind().f8().is_some()
    }
    pub fn is_int(self) -> bool {
        self.int_range().is_some()
    }
    /// Least and largest value of an integer type.
    pub fn int_range(self) -> Option<(i64, i64)> {
        self.kind().int_range()
    }
    /// The nearest number of a float type ([`Format::round`]); others stay as they are.
    pub fn round(self, x: f64) -> f64 {
        self.format().map_or(x, |f| f.round(x))
    }
    /// Type of a matmul of operands of this type.
    pub fn matmul(self) -> DType {
        self.row().matmul
    }
    /// Type in which arithmetic on this type is done and reductions accumulate: f32 for shorter floats, else itself.
    pub fn compute(self) -> DType {
        self.row().compute
    }
    /// PyTorch's number of the type (`c10/core/ScalarType.h`), as operators take it among their arguments.
    pub fn torch_number(self) -> u8 {
        self.row().torch
    }
    /// The type behind PyTorch's number; `None` for one that graphs do not have.
    pub fn of_torch_number(number: i64) -> Option<DType> {
        DType::ALL.into_iter().find(|d| i64::from(d.torch_number()) == number)
    }
    /// What safetensors files call it.
    pub fn safetensors_name(self) -> &'static str {
        self.row().safetensors
    }
    /// The type of this name in safetensors files; `None` for one that graphs do not have.
    pub fn of_safetensors_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.safetensors_name() == name)
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
            .ok_or_else(|| format!("unknown element type `{s}`; known: {}", DType::names()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_enum() {
        for (i, d) in DType::ALL.into_iter().enumerate() {
            assert_eq!((d as usize, d.name().parse()), (i, Ok(d)));
            assert_eq!(serde_json::to_string(&d).expect("a name"), format!("\"{d}\""));
            assert_eq!(DType::of_safetensors_name(d.safetensors_name()), Some(d));
            assert_eq!((d.compute().compute(), d.matmul().matmul()), (d.compute(), d.matmul()));
        }
    }

    #[test]
    fn numbers_of_pytorch_name_one_type_each() {
        for d in DType::ALL {
            assert_eq!(DType::of_torch_number(d.torch_number().into()), Some(d));
        }
        for none in [-1, 8, 12, 25, 256] {
            assert_eq!(DType::of_torch_number(none), None);
        }
    }
}
