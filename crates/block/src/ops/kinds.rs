//! What distinguishes ops of one family: their operators, orders, precisions and roles.
use crate::types::Elem;
use serde::{Deserialize, Serialize};

/// A constant's value; equality by bits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Const {
    Float(f64),
    Int(i64),
    Bool(bool),
}
impl PartialEq for Const {
    fn eq(&self, o: &Const) -> bool {
        match (self, o) {
            (Const::Float(a), Const::Float(b)) => a.to_bits() == b.to_bits(),
            (Const::Int(a), Const::Int(b)) => a == b,
            (Const::Bool(a), Const::Bool(b)) => a == b,
            _ => false,
        }
    }
}
impl Eq for Const {}

/// Pointwise, one operand; the result has the operand's type except for `IsNan` and `IsInf` (bool). On floats unless
/// noted. f16 and bf16 operands are computed in f32 and rounded once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryOp {
    /// Floats and integers.
    Neg,
    Abs,
    /// Bitwise for integers, logical for bool.
    Not,
    Exp,
    Exp2,
    /// 2^x of f32 within 2^-20 of it, by the machine's own instruction where it has one; zero where that is subnormal.
    Exp2Approx,
    Expm1,
    Log,
    Log2,
    Log10,
    Log1p,
    Sqrt,
    /// Rounded to nearest whatever the program's arithmetic; f32 and f64.
    SqrtRn,
    Rsqrt,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Tanh,
    /// The hyperbolic tangent of f32 within 2^-10 of it, by the machine's own instruction where it has one.
    TanhApprox,
    Erf,
    /// x Φ(x), with the distribution function of the standard normal distribution; f32 only.
    Gelu,
    Floor,
    Ceil,
    /// Ties to even.
    Round,
    Trunc,
    /// f32 only: the nearest tf32 number (10 fraction bits), ties away from zero. Beyond the largest f32: infinity.
    Tf32,
    IsNan,
    IsInf,
}

/// Pointwise, two operands of one type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Floats: IEEE. Integers: truncating; division by zero gives 0.
    Div,
    /// Truncated remainder (sign of the dividend); integers by zero give 0.
    Rem,
    /// Rounded to nearest whatever the program's arithmetic; f32 and f64.
    DivRn,
    /// NaN if either is NaN.
    Max,
    Min,
    /// Of a number and NaN the number; floats.
    MaxNum,
    MinNum,
    /// The upper half of the product of twice the width; integers of 32 and 64 bits.
    MulHi,
    Pow,
    Atan2,
    /// Bitwise (integers), logical (bool).
    And,
    Or,
    Xor,
    Shl,
    /// Arithmetic for signed, logical for unsigned.
    Shr,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CmpOp {
    Eq,
    /// True if either is NaN; the others are false then.
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    Sum,
    Prod,
    /// NaN if any is NaN.
    Max,
    Min,
    /// The largest number of floats; NaN only if all are NaN.
    MaxNum,
    MinNum,
    /// Bool and integers.
    And,
    Or,
    /// Index (i32) of the first of the largest; NaN counts as largest.
    ArgMax,
    ArgMin,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanOp {
    Sum,
    Prod,
    Max,
}

/// How a thread reads elements that are neighbours in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMode {
    /// In vectors; in an unaligned one as the two aligned ones that contain it, and a shift.
    Vectors,
    /// In aligned vectors or one by one: where most threads read nothing, as in the parts of a concatenation.
    Apart,
    /// In aligned vectors that other loads of the buffer read as well, or one by one: for windows. The layout pass
    /// finds them.
    Window,
}

/// How long the caches keep what an access reads or writes. Only a hint: values never depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    #[default]
    Normal,
    /// Replaced before other lines: what is accessed once.
    EvictFirst,
    /// Replaced after other lines: what is accessed again.
    EvictLast,
    /// Kept in the L2 cache only.
    L2Only,
}

/// How an atomic update combines an element of memory with a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtomicOp {
    /// Floats but 8-bit ones, and integers of 32 and 64 bits, which wrap around.
    Add,
    /// Integers of 32 and 64 bits, by their sign.
    Max,
    Min,
    And,
    Or,
    Xor,
    /// The value replaces the element: of 32 or 64 bits.
    Exchange,
}
impl AtomicOp {
    /// Whether elements of this type can be updated so.
    pub fn takes(self, elem: Elem) -> bool {
        let integer = elem.is_int() && elem.bytes() >= 4;
        match self {
            AtomicOp::Add => integer || elem.is_float() && !elem.is_f8(),
            AtomicOp::Exchange => integer || matches!(elem, Elem::F32 | Elem::F64),
            // Of a half and NaN the half; wider floats are ordered by their bits.
            AtomicOp::Max | AtomicOp::Min => integer || elem.is_half(),
            AtomicOp::And | AtomicOp::Or | AtomicOp::Xor => integer,
        }
    }
}

/// What an atomic access orders besides itself: with `Acquire` accesses of the instance behind it are behind it for
/// others too, with `Release` those before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryOrder {
    #[default]
    Relaxed,
    Acquire,
    Release,
    AcquireRelease,
}
impl MemoryOrder {
    pub fn acquires(self) -> bool {
        matches!(self, MemoryOrder::Acquire | MemoryOrder::AcquireRelease)
    }
    pub fn releases(self) -> bool {
        matches!(self, MemoryOrder::Release | MemoryOrder::AcquireRelease)
    }
}

/// For whom an atomic access is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The threads of a block.
    Block,
    #[default]
    Device,
    /// Other devices, too.
    System,
}

/// An atomic access: its order, and for whom it is one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Atomicity {
    pub order: MemoryOrder,
    pub scope: Scope,
}

/// Precision of f32 matmuls (others are exact to their type, accumulating in f32, or f64 for f64).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DotPrecision {
    #[default]
    Exact,
    Tf32,
    Tf32x3,
}

/// What a `dot` sums over K, for an element of each side. Terms other than products are for exact f32 only.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Terms {
    #[default]
    Products,
    /// `(a - b)²`.
    Squares,
    /// `|a - b|`.
    Distances,
}

/// A group of warps with a program of its own, in `roles`. With `copies` above 1 that many groups run the same program,
/// each with its own warps; the region then has one parameter, the number of the copy (i32).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Role {
    /// For example `producer` or `consumer`.
    pub name: String,
    /// Warps of one copy.
    pub warps: usize,
    pub copies: usize,
    /// Registers per thread (`setmaxnreg`); 0 leaves them.
    pub registers: usize,
}
