//! Types of run-time values, and how operands of different types meet.
//!
//! The rules are Triton's (`promoted`), as a table of cases: a Python literal takes part only if its kind (bool, int,
//! float) is above the other operand's; everything else promotes by rank.
use crate::error::{Eval, type_error, unsupported, value_error};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An element type of the language.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Number {
    Int1,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float8E4M3,
    Float8E5M2,
    Float8E4B15,
    Float8E4B8,
    Float8E5B16,
    Float16,
    BFloat16,
    Float32,
    Float64,
}

/// bool < int < float.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    Bool,
    Int,
    Float,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Bool,
    Signed,
    Unsigned,
    Float { mantissa: u32 },
}

struct Row {
    number: Number,
    /// The name of the dtype object.
    name: &'static str,
    /// The name that `str` of a dtype gives in Triton.
    short: &'static str,
    bits: u32,
    class: Class,
}

const fn row(number: Number, name: &'static str, short: &'static str, bits: u32, class: Class) -> Row {
    Row { number, name, short, bits, class }
}

static TABLE: [Row; 18] = [
    row(Number::Int1, "int1", "i1", 1, Class::Bool),
    row(Number::Int8, "int8", "i8", 8, Class::Signed),
    row(Number::Int16, "int16", "i16", 16, Class::Signed),
    row(Number::Int32, "int32", "i32", 32, Class::Signed),
    row(Number::Int64, "int64", "i64", 64, Class::Signed),
    row(Number::UInt8, "uint8", "u8", 8, Class::Unsigned),
    row(Number::UInt16, "uint16", "u16", 16, Class::Unsigned),
    row(Number::UInt32, "uint32", "u32", 32, Class::Unsigned),
    row(Number::UInt64, "uint64", "u64", 64, Class::Unsigned),
    row(Number::Float8E4M3, "float8e4nv", "fp8e4nv", 8, Class::Float { mantissa: 3 }),
    row(Number::Float8E5M2, "float8e5", "fp8e5", 8, Class::Float { mantissa: 2 }),
    row(Number::Float8E4B15, "float8e4b15", "fp8e4b15", 8, Class::Float { mantissa: 3 }),
    row(Number::Float8E4B8, "float8e4b8", "fp8e4b8", 8, Class::Float { mantissa: 3 }),
    row(Number::Float8E5B16, "float8e5b16", "fp8e5b16", 8, Class::Float { mantissa: 2 }),
    row(Number::Float16, "float16", "fp16", 16, Class::Float { mantissa: 10 }),
    row(Number::BFloat16, "bfloat16", "bf16", 16, Class::Float { mantissa: 7 }),
    row(Number::Float32, "float32", "fp32", 32, Class::Float { mantissa: 23 }),
    row(Number::Float64, "float64", "fp64", 64, Class::Float { mantissa: 52 }),
];

/// Further names of types: those of torch, and of Triton's signatures.
static ALIASES: [(&str, Number); 10] = [
    ("bool", Number::Int1),
    ("u1", Number::Int1),
    ("f16", Number::Float16),
    ("f32", Number::Float32),
    ("f64", Number::Float64),
    ("half", Number::Float16),
    ("float8_e4m3fn", Number::Float8E4M3),
    ("float8_e5m2", Number::Float8E5M2),
    ("fp8e4m3", Number::Float8E4M3),
    ("fp8e5m2", Number::Float8E5M2),
];

impl Number {
    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }
    /// By any of its names.
    pub fn named(name: &str) -> Option<Number> {
        let alias = || ALIASES.iter().find(|alias| alias.0 == name).map(|alias| alias.1);
        TABLE.iter().find(|row| row.name == name || row.short == name).map(|row| row.number).or_else(alias)
    }
    pub fn name(self) -> &'static str {
        self.row().name
    }
    /// `fp32` where the name is `float32`; integers have one name.
    pub fn short_name(self) -> &'static str {
        if self.is_float() { self.row().short } else { self.row().name }
    }
    pub fn bits(self) -> u32 {
        self.row().bits
    }
    pub fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }
    pub fn mantissa(self) -> Option<u32> {
        match self.row().class {
            Class::Float { mantissa } => Some(mantissa),
            Class::Bool | Class::Signed | Class::Unsigned => None,
        }
    }
    /// What is added to the exponent of a float in its bits.
    pub fn exponent_bias(self) -> Option<i32> {
        match self {
            Number::Float8E4M3 => Some(7),
            Number::Float8E4B8 => Some(8),
            Number::Float8E4B15 | Number::Float8E5M2 | Number::Float16 => Some(15),
            Number::Float8E5B16 => Some(16),
            Number::BFloat16 | Number::Float32 => Some(127),
            Number::Float64 => Some(1023),
            _ => None,
        }
    }
    pub fn is_float(self) -> bool {
        self.mantissa().is_some()
    }
    pub fn is_f8(self) -> bool {
        self.is_float() && self.bits() == 8
    }
    pub fn is_half(self) -> bool {
        matches!(self, Number::Float16 | Number::BFloat16)
    }
    /// Bools count as integers, as in Triton.
    pub fn is_int(self) -> bool {
        !self.is_float()
    }
    pub fn is_signed(self) -> bool {
        self.row().class == Class::Signed
    }
    /// Bools too.
    pub fn is_unsigned(self) -> bool {
        matches!(self.row().class, Class::Unsigned | Class::Bool)
    }
    pub fn kind(self) -> Kind {
        match self.row().class {
            Class::Bool => Kind::Bool,
            Class::Signed | Class::Unsigned => Kind::Int,
            Class::Float { .. } => Kind::Float,
        }
    }
    /// Least and largest value of an integer.
    pub fn range(self) -> Option<(i128, i128)> {
        match self.row().class {
            Class::Bool => Some((0, 1)),
            Class::Signed => Some((-(1i128 << (self.bits() - 1)), (1i128 << (self.bits() - 1)) - 1)),
            Class::Unsigned => Some((0, (1i128 << self.bits()) - 1)),
            Class::Float { .. } => None,
        }
    }
    /// An integer of this width.
    pub fn int_of(bits: u32, signed: bool) -> Option<Number> {
        let class = match (bits, signed) {
            (1, _) => Class::Bool,
            (_, true) => Class::Signed,
            (_, false) => Class::Unsigned,
        };
        TABLE.iter().find(|row| row.bits == bits && row.class == class).map(|row| row.number)
    }
    /// The type of a literal integer that stands alone.
    pub fn of_int(value: i128) -> Option<Number> {
        [Number::Int32, Number::UInt32, Number::Int64, Number::UInt64]
            .into_iter()
            .find(|n| n.range().is_some_and(|(least, most)| (least..=most).contains(&value)))
    }
    /// The type of a literal float that stands alone: f64 outside of the normal range of f32.
    pub fn of_float(value: f64) -> Number {
        let size = value.abs();
        let normal = (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&size);
        if normal || size == 0.0 || !size.is_finite() { Number::Float32 } else { Number::Float64 }
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Number {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        let name = String::deserialize(deserializer)?;
        Number::named(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("`{name}` is no element type; float32 is one")))
    }
}

/// What each element of a run-time value is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scalar {
    Number(Number),
    /// A pointer to elements in memory.
    Pointer(Number),
    /// A pointer that is only read through: a parameter annotated `tl.const`.
    ConstPointer(Number),
}

impl Scalar {
    pub fn number(self) -> Option<Number> {
        match self {
            Scalar::Number(number) => Some(number),
            Scalar::Pointer(_) | Scalar::ConstPointer(_) => None,
        }
    }
    /// What a pointer points to.
    pub fn pointee(self) -> Option<Number> {
        match self {
            Scalar::Number(_) => None,
            Scalar::Pointer(elem) | Scalar::ConstPointer(elem) => Some(elem),
        }
    }
    pub fn is_pointer(self) -> bool {
        self.number().is_none()
    }
    pub fn bits(self) -> u32 {
        self.number().map_or(64, Number::bits)
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Number(number) => write!(f, "{number}"),
            Scalar::Pointer(elem) => write!(f, "pointer<{elem}>"),
            Scalar::ConstPointer(elem) => write!(f, "const_pointer<{elem}>"),
        }
    }
}

/// Type of a run-time value. Without axes it is a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    pub scalar: Scalar,
    pub shape: Vec<usize>,
}

impl TensorType {
    pub fn scalar(number: Number) -> TensorType {
        TensorType { scalar: Scalar::Number(number), shape: vec![] }
    }
    pub fn block(number: Number, shape: impl Into<Vec<usize>>) -> TensorType {
        TensorType { scalar: Scalar::Number(number), shape: shape.into() }
    }
    pub fn is_block(&self) -> bool {
        !self.shape.is_empty()
    }
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
    /// Whether a size is no power of two, so that elements which do not count are computed beside.
    pub fn has_pads(&self) -> bool {
        self.shape.iter().any(|size| !size.is_power_of_two())
    }
    pub fn with_scalar(&self, scalar: Scalar) -> TensorType {
        TensorType { scalar, shape: self.shape.clone() }
    }
    pub fn with_number(&self, number: Number) -> TensorType {
        self.with_scalar(Scalar::Number(number))
    }
    pub fn with_shape(&self, shape: impl Into<Vec<usize>>) -> TensorType {
        TensorType { scalar: self.scalar, shape: shape.into() }
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scalar)?;
        if self.is_block() {
            let sizes: Vec<String> = self.shape.iter().map(usize::to_string).collect();
            write!(f, "[{}]", sizes.join(", "))?;
        }
        Ok(())
    }
}

/// Whether an operand is a Python literal (or another compile-time value), which is weak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Strength {
    Literal,
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operand {
    pub number: Number,
    pub strength: Strength,
}

/// What the operator does: halves are divided in f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arithmetic {
    Plain,
    /// `/`, `//` and `%`.
    Division,
}

/// The type in which two operands are computed.
pub fn promoted(a: Operand, b: Operand, arithmetic: Arithmetic) -> Eval<Number> {
    let divides = arithmetic == Arithmetic::Division;
    let half = |number: Number| if divides { Number::Float32 } else { number };
    if a.strength != b.strength {
        let (literal, full) = if a.strength == Strength::Literal { (a.number, b.number) } else { (b.number, a.number) };
        if literal.kind() <= full.kind() {
            return Ok(if full.is_half() { half(full) } else { full });
        }
    }
    let either = |number: Number| a.number == number || b.number == number;
    for wide in [Number::Float64, Number::Float32] {
        if either(wide) {
            return Ok(wide);
        }
    }
    if either(Number::Float16) {
        return Ok(half(Number::Float16));
    }
    if either(Number::BFloat16) {
        let both = a.number == b.number;
        return Ok(if both { half(Number::BFloat16) } else { Number::Float32 });
    }
    match (a.number.is_f8(), b.number.is_f8()) {
        (true, true) if a.number == b.number => return Ok(a.number),
        (true, true) => return Ok(Number::Float16),
        (false, false) => {}
        _ => {
            return Err(type_error(
                format!("{} and {} have no common type", a.number, b.number),
                "cast one of them with `.to(...)`",
            ));
        }
    }
    if divides && a.number.is_signed() != b.number.is_signed() {
        return Err(type_error(
            format!("Cannot use {} and {} in a division because they have different signedness", a.number, b.number),
            "cast both to one of the types with `.to(...)`",
        ));
    }
    Ok(promoted_int(a.number, b.number))
}

/// C's rules: the higher rank, and the unsigned one of equal ranks.
pub fn promoted_int(a: Number, b: Number) -> Number {
    match (a.is_signed(), b.is_signed()) {
        (x, y) if x == y => {
            if a.bits() > b.bits() {
                a
            } else {
                b
            }
        }
        (false, _) => {
            if a.bits() >= b.bits() {
                a
            } else {
                b
            }
        }
        (true, _) => {
            if b.bits() >= a.bits() {
                b
            } else {
                a
            }
        }
    }
}

/// The shape to which two are broadcast: leading axes are added, and sizes of 1 are repeated.
pub fn broadcast_shape(a: &[usize], b: &[usize]) -> Eval<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[usize], axis: usize| match (axis + shape.len()).checked_sub(rank) {
        Some(axis) => shape[axis],
        None => 1,
    };
    (0..rank)
        .map(|axis| match (size(a, axis), size(b, axis)) {
            (1, n) | (n, 1) => Ok(n),
            (n, m) if n == m => Ok(n),
            (n, m) => Err(type_error(
                format!("shapes {a:?} and {b:?} do not broadcast: axis {axis} has {n} and {m} elements"),
                "sizes have to be equal or 1; `x[:, None]` and `x[None, :]` add an axis of size 1",
            )),
        })
        .collect()
}

/// Elements of the largest block.
const MAX_ELEMENTS: usize = 1 << 20;

/// The sizes that the program computes with: each the next power of two.
pub fn padded(shape: &[usize]) -> Vec<usize> {
    shape.iter().map(|size| size.next_power_of_two()).collect()
}

/// A block's shape, if it may be one.
pub fn checked_shape(sizes: &[i128]) -> Eval<Vec<usize>> {
    let mut count = 1usize;
    for size in sizes {
        if *size < 1 {
            return Err(value_error(
                format!("a block has an axis of {size} elements"),
                "sizes are at least 1; leave out what has no elements",
            ));
        }
        let power = usize::try_from(*size).ok().and_then(usize::checked_next_power_of_two);
        count = power.and_then(|n| count.checked_mul(n)).unwrap_or(usize::MAX);
    }
    if count > MAX_ELEMENTS {
        return Err(unsupported(
            format!("a block of shape {sizes:?} has more than {MAX_ELEMENTS} elements"),
            "work on smaller blocks in a loop",
        ));
    }
    Ok(sizes.iter().map(|n| *n as usize).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_enum() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.number as usize, i, "{}", row.name);
            assert_eq!(Number::named(row.name), Some(row.number));
            assert_eq!(Number::named(row.short), Some(row.number));
        }
    }
}
