//! Types of block values.
use kiln_number::{Format, Kind};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element of a block. `Bool` is one byte in memory: 0 or 1, where it is read 0 or not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Elem {
    F64,
    F32,
    F16,
    Bf16,
    F8e4m3,
    F8e5m2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
}

/// Elements with their names and numbers, in the order of the enum.
static TABLE: [(Elem, &str, Kind); 15] = [
    (Elem::F64, "f64", Kind::Float(Format::F64)),
    (Elem::F32, "f32", Kind::Float(Format::F32)),
    (Elem::F16, "f16", Kind::Float(Format::F16)),
    (Elem::Bf16, "bf16", Kind::Float(Format::BF16)),
    (Elem::F8e4m3, "f8e4m3", Kind::Float(Format::F8E4M3)),
    (Elem::F8e5m2, "f8e5m2", Kind::Float(Format::F8E5M2)),
    (Elem::I64, "i64", Kind::I64),
    (Elem::I32, "i32", Kind::I32),
    (Elem::I16, "i16", Kind::I16),
    (Elem::I8, "i8", Kind::I8),
    (Elem::U64, "u64", Kind::U64),
    (Elem::U32, "u32", Kind::U32),
    (Elem::U16, "u16", Kind::U16),
    (Elem::U8, "u8", Kind::U8),
    (Elem::Bool, "bool", Kind::Bool),
];

impl Elem {
    pub const ALL: [Elem; TABLE.len()] = {
        let mut all = [Elem::F64; TABLE.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = TABLE[i].0;
            i += 1;
        }
        all
    };

    pub fn name(self) -> &'static str {
        TABLE[self as usize].1
    }
    /// The kind of numbers it holds.
    pub fn kind(self) -> Kind {
        TABLE[self as usize].2
    }
    pub fn bytes(self) -> usize {
        self.kind().bits() as usize / 8
    }
    pub fn is_float(self) -> bool {
        self.format().is_some()
    }
    /// The format of a float.
    pub fn format(self) -> Option<Format> {
        self.kind().format()
    }
    /// The format of an 8-bit float. These are moved, converted and multiplied by `dot`; there is no other arithmetic
    /// on them.
    pub fn f8(self) -> Option<Format> {
        self.kind().f8()
    }
    pub fn is_f8(self) -> bool {
        self.f8().is_some()
    }
    /// f16 and bf16.
    pub fn is_half(self) -> bool {
        self.format().is_some_and(|f| f.bits() == 16)
    }
    pub fn is_int(self) -> bool {
        self.int_range().is_some()
    }
    /// Whether arithmetic and comparisons are two's complement; other integers count from 0.
    pub fn is_signed(self) -> bool {
        !matches!(self.kind(), Kind::Int { least: 0, .. } | Kind::Bool)
    }
    /// Least and largest value of an integer element. U64 is kept in an i64 of the same bits: its larger numbers are
    /// negative there.
    pub fn int_range(self) -> Option<(i64, i64)> {
        self.kind().int_range()
    }
    /// An i64 that is ordered as the integer is which is kept in `x`.
    pub fn ordered(self, x: i64) -> i64 {
        if self == Elem::U64 { x ^ i64::MIN } else { x }
    }
    /// A number as the element holds it: wrapped to its width; for `Bool`, whether it is not 0.
    pub fn wrapped(self, x: i64) -> i64 {
        self.kind().wrapped(x)
    }
    /// Element in which a host computes arithmetic on this one: f32 for shorter floats, else itself.
    pub fn compute(self) -> Elem {
        if self.format().is_some_and(|f| f.bits() < 32) { Elem::F32 } else { self }
    }
}
impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How rows of a shared tile are permuted against bank conflicts: XOR of 16-byte chunks within 32, 64 or 128 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Swizzle {
    #[default]
    None,
    B32,
    B64,
    B128,
}

impl Swizzle {
    /// Bytes of a row of a panel; `None` without swizzle.
    pub fn span(self) -> Option<usize> {
        match self {
            Swizzle::None => None,
            Swizzle::B32 => Some(32),
            Swizzle::B64 => Some(64),
            Swizzle::B128 => Some(128),
        }
    }
    /// Bytes of a row of so many elements, in whole panels.
    pub fn row_bytes(self, elem: Elem, columns: usize) -> usize {
        (columns * elem.bytes()).next_multiple_of(self.span().unwrap_or(1))
    }
    /// The widest that rows of this many elements fill.
    pub fn widest(elem: Elem, columns: usize) -> Swizzle {
        match columns * elem.bytes() {
            128.. => Swizzle::B128,
            64.. => Swizzle::B64,
            32.. => Swizzle::B32,
            _ => Swizzle::None,
        }
    }
}

/// Type of a block value. Block dimensions are powers of two; an empty shape is a scalar.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    /// `f32[128,64]`, `i32`.
    Block { elem: Elem, shape: Vec<usize> },
    /// Pointers to global memory, in elements: `ptr<f32>[128]`, `ptr<f32>`.
    Ptr { elem: Elem, shape: Vec<usize> },
    /// A tile in shared memory, `stages` of them in a ring: `shared<bf16[128,64], 4, b128>`.
    Shared { elem: Elem, shape: Vec<usize>, stages: usize, swizzle: Swizzle },
    /// A tensor-map descriptor of an array of 1 to 5 axes, read and written in tiles of `shape`: `desc<bf16[128,64]>`.
    Desc { elem: Elem, shape: Vec<usize>, swizzle: Swizzle },
    /// `count` barriers in shared memory, each completed by `arrivals`: `barrier<4, 1>`.
    Barrier { count: usize, arrivals: usize },
    /// An asynchronous matmul in flight, standing for its accumulator: readable only after its wait.
    /// `token<f32[64,256]>`.
    Token { elem: Elem, shape: Vec<usize> },
}
impl Type {
    pub fn scalar(elem: Elem) -> Type {
        Type::Block { elem, shape: vec![] }
    }
    pub fn block(elem: Elem, shape: impl Into<Vec<usize>>) -> Type {
        Type::Block { elem, shape: shape.into() }
    }
    pub fn ptr(elem: Elem, shape: impl Into<Vec<usize>>) -> Type {
        Type::Ptr { elem, shape: shape.into() }
    }
    /// Shape of a block, pointer block, tile or token; empty for scalars and barriers.
    pub fn shape(&self) -> &[usize] {
        match self {
            Type::Block { shape, .. }
            | Type::Ptr { shape, .. }
            | Type::Shared { shape, .. }
            | Type::Desc { shape, .. }
            | Type::Token { shape, .. } => shape,
            Type::Barrier { .. } => &[],
        }
    }
    /// Element of a block; what a pointer, tile or token is of. `None` for barriers.
    pub fn elem(&self) -> Option<Elem> {
        match self {
            Type::Block { elem, .. }
            | Type::Ptr { elem, .. }
            | Type::Shared { elem, .. }
            | Type::Desc { elem, .. }
            | Type::Token { elem, .. } => Some(*elem),
            Type::Barrier { .. } => None,
        }
    }
    /// What pointers lead to; other types as they are.
    pub fn pointee(&self) -> Type {
        match self {
            Type::Ptr { elem, shape } => Type::block(*elem, shape.clone()),
            other => other.clone(),
        }
    }
    pub fn count(&self) -> usize {
        self.shape().iter().product()
    }
    pub fn is_scalar(&self) -> bool {
        self.shape().is_empty()
    }
    /// The same kind of value with another shape (blocks and pointers; others unchanged).
    pub fn with_shape(&self, shape: impl Into<Vec<usize>>) -> Type {
        match self {
            Type::Block { elem, .. } => Type::block(*elem, shape),
            Type::Ptr { elem, .. } => Type::ptr(*elem, shape),
            other => other.clone(),
        }
    }
}

/// `[128,64]`, nothing for scalars.
fn dims(f: &mut fmt::Formatter<'_>, shape: &[usize]) -> fmt::Result {
    if shape.is_empty() {
        return Ok(());
    }
    let text: Vec<String> = shape.iter().map(usize::to_string).collect();
    write!(f, "[{}]", text.join(","))
}
impl fmt::Display for Swizzle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Swizzle::None => "plain",
            Swizzle::B32 => "b32",
            Swizzle::B64 => "b64",
            Swizzle::B128 => "b128",
        })
    }
}
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Type::Block { elem, shape } => {
                write!(f, "{elem}")?;
                dims(f, shape)
            }
            Type::Ptr { elem, shape } => {
                write!(f, "ptr<{elem}>")?;
                dims(f, shape)
            }
            Type::Shared { elem, shape, stages, swizzle } => {
                write!(f, "shared<{elem}")?;
                dims(f, shape)?;
                write!(f, ", {stages}, {swizzle}>")
            }
            Type::Desc { elem, shape, swizzle } => {
                write!(f, "desc<{elem}")?;
                dims(f, shape)?;
                write!(f, ", {swizzle}>")
            }
            Type::Barrier { count, arrivals } => write!(f, "barrier<{count}, {arrivals}>"),
            Type::Token { elem, shape } => {
                write!(f, "token<{elem}")?;
                dims(f, shape)?;
                f.write_str(">")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_enum() {
        for (i, e) in Elem::ALL.into_iter().enumerate() {
            assert_eq!(e as usize, i, "{e}");
        }
    }
}
