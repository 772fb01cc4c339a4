//! Types of block values.
use serde::{Deserialize, Serialize};
use std::fmt;

/// Element of a block. `U8` is unsigned; the other integers are signed; `Bool` is one byte in memory, 0 or 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Elem {
    F64,
    F32,
    F16,
    Bf16,
    F8e4m3,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}
impl Elem {
    pub const ALL: [Elem; 11] = [
        Elem::F64,
        Elem::F32,
        Elem::F16,
        Elem::Bf16,
        Elem::F8e4m3,
        Elem::I64,
        Elem::I32,
        Elem::I16,
        Elem::I8,
        Elem::U8,
        Elem::Bool,
    ];
    pub fn bytes(self) -> usize {
        match self {
            Elem::F64 | Elem::I64 => 8,
            Elem::F32 | Elem::I32 => 4,
            Elem::F16 | Elem::Bf16 | Elem::I16 => 2,
            Elem::F8e4m3 | Elem::I8 | Elem::U8 | Elem::Bool => 1,
        }
    }
    pub fn is_float(self) -> bool {
        matches!(self, Elem::F64 | Elem::F32 | Elem::F16 | Elem::Bf16 | Elem::F8e4m3)
    }
    pub fn is_int(self) -> bool {
        self.int_range().is_some()
    }
    /// Arithmetic and comparisons of two's complement; the others count from 0.
    pub fn is_signed(self) -> bool {
        !matches!(self, Elem::U8 | Elem::Bool)
    }
    /// Least and largest value of an integer element.
    pub fn int_range(self) -> Option<(i64, i64)> {
        Some(match self {
            Elem::I64 => (i64::MIN, i64::MAX),
            Elem::I32 => (i32::MIN.into(), i32::MAX.into()),
            Elem::I16 => (i16::MIN.into(), i16::MAX.into()),
            Elem::I8 => (i8::MIN.into(), i8::MAX.into()),
            Elem::U8 => (0, u8::MAX.into()),
            _ => return None,
        })
    }
    /// A number as the element holds it: wrapped to its width; for `Bool`, whether it is not 0.
    pub fn wrapped(self, x: i64) -> i64 {
        match self {
            Elem::I32 => i64::from(x as i32),
            Elem::I16 => i64::from(x as i16),
            Elem::I8 => i64::from(x as i8),
            Elem::U8 => i64::from(x as u8),
            Elem::Bool => i64::from(x != 0),
            Elem::I64 | Elem::F64 | Elem::F32 | Elem::F16 | Elem::Bf16 | Elem::F8e4m3 => x,
        }
    }
    pub fn name(self) -> &'static str {
        match self {
            Elem::F64 => "f64",
            Elem::F32 => "f32",
            Elem::F16 => "f16",
            Elem::Bf16 => "bf16",
            Elem::F8e4m3 => "f8e4m3",
            Elem::I64 => "i64",
            Elem::I32 => "i32",
            Elem::I16 => "i16",
            Elem::I8 => "i8",
            Elem::U8 => "u8",
            Elem::Bool => "bool",
        }
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
    /// The widest that rows of so many elements fill.
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
    /// A tensor-map descriptor of a 2-D (to 5-D) array, read and written in tiles of `shape`: `desc<bf16[128,64]>`.
    Desc { elem: Elem, shape: Vec<usize>, swizzle: Swizzle },
    /// `count` barriers in shared memory, each completed by `arrivals`: `barrier<4, 1>`.
    Barrier { count: usize, arrivals: usize },
    /// An asynchronous product in flight, standing for its accumulator: readable only after its wait. `token<f32[64,256]>`.
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
