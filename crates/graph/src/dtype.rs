//! Element types: one table row per dtype, which answers all questions about it.
//!
//! f8 is a storage and GEMM-operand format only. `f8e4m3` and `f8e5m2` tensors can be cast, moved, and multiplied as
//! matrices, both operands of one f8 dtype; no other arithmetic is defined on them. The GEMM's result is f32, and
//! scales, bias and the cast of the result are its epilogue (`aten::_scaled_mm`). Along K, accumulators are
//! zero-initialised every 128 elements and the partial sums are added in f32, as with 3xTF32, because tensor cores
//! truncate as they accumulate. A cast of a number beyond the largest one gives NaN, or infinity if the dtype has one,
//! as in PyTorch. The host multiplies in f32; GPUs multiply in f16 if `wgmma` does not apply.
use kiln_number::{Format, Kind};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Element type of a tensor. `Display` is the text syntax (`f32`, `bf16`, …).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// `torch.float64`.
    F64,
    /// `torch.float32`.
    F32,
    /// `torch.float16`.
    F16,
    /// `torch.bfloat16`.
    Bf16,
    /// PyTorch's `float8_e4m3fn` ([`Format::F8E4M3`]).
    F8e4m3,
    /// PyTorch's `float8_e5m2` ([`Format::F8E5M2`]).
    F8e5m2,
    /// `torch.int64`.
    I64,
    /// `torch.int32`.
    I32,
    /// `torch.int16`.
    I16,
    /// `torch.int8`.
    I8,
    /// `torch.uint8`.
    U8,
    /// `torch.bool`, one byte.
    Bool,
}

/// The properties of a dtype.
struct Row {
    dtype: DType,
    name: &'static str,
    kind: Kind,
    /// Dtype in which arithmetic on this dtype is done and reductions accumulate.
    compute: DType,
    /// Result dtype of a matmul with operands of this dtype.
    matmul: DType,
    /// PyTorch's number of the dtype (`c10/core/ScalarType.h`).
    torch: u8,
    /// Name in safetensors files.
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

/// One row per variant, in the order of the enum.
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
    /// All dtypes, in the order of the enum.
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
    /// The names of all dtypes, separated by spaces, for messages.
    pub fn names() -> String {
        DType::ALL.map(DType::name).join(" ")
    }
    /// Name in the text form, such as `f32`.
    pub fn name(self) -> &'static str {
        self.row().name
    }
    /// Numeric kind: float format, integer range, or bool.
    pub fn kind(self) -> Kind {
        self.row().kind
    }
    /// Size of one element in bytes.
    pub fn bytes(self) -> usize {
        self.kind().bits() as usize / 8
    }
    /// Whether it is a float dtype, including f8.
    pub fn is_float(self) -> bool {
        self.format().is_some()
    }
    /// The float format; `None` for integers and bool.
    pub fn format(self) -> Option<Format> {
        self.kind().format()
    }
    /// Whether it is an 8-bit float, which can be stored, moved, cast and used as a GEMM operand, but has no other
    /// arithmetic.
    pub fn is_f8(self) -> bool {
        self.kind().f8().is_some()
    }
    /// Whether it is an integer dtype. Bool is not.
    pub fn is_int(self) -> bool {
        self.int_range().is_some()
    }
    /// Smallest and largest value of an integer dtype; `None` for others.
    pub fn int_range(self) -> Option<(i64, i64)> {
        self.kind().int_range()
    }
    /// The nearest number of a float dtype ([`Format::round`]); `x` unchanged for other dtypes.
    pub fn round(self, x: f64) -> f64 {
        self.format().map_or(x, |f| f.round(x))
    }
    /// Result dtype of a matmul with operands of this dtype: f32 for f8, else the same.
    pub fn matmul(self) -> DType {
        self.row().matmul
    }
    /// A number below this masks a score of the dtype: added to a usual score it stays about what it is, and its weight
    /// in a softmax is zero beside any of these. The least number of each float dtype that attention has is one.
    pub fn mask_limit(self) -> f64 {
        if self == DType::F16 { -6e4 } else { -1e30 }
    }
    /// Dtype in which arithmetic on this dtype is done and reductions accumulate: f32 for narrower floats, else the
    /// same.
    pub fn compute(self) -> DType {
        self.row().compute
    }
    /// PyTorch's number of the dtype (`c10/core/ScalarType.h`), as in arguments of operators.
    pub fn torch_number(self) -> u8 {
        self.row().torch
    }
    /// The dtype with this PyTorch number; `None` if graphs do not have it.
    pub fn of_torch_number(number: i64) -> Option<DType> {
        DType::ALL.into_iter().find(|d| i64::from(d.torch_number()) == number)
    }
    /// Name in safetensors files.
    pub fn safetensors_name(self) -> &'static str {
        self.row().safetensors
    }
    /// The dtype with this name in safetensors files; `None` if graphs do not have it.
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
