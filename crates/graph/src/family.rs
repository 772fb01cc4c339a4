//! The families of ops: pointwise functions of one operand and of two, comparisons, reductions, scans. What stages ask
//! of each is its row in the registry, [`crate::ops`].
use serde::{Deserialize, Serialize};

/// Pointwise ops of one operand. The result has the operand's dtype, except for `IsNan` and `IsInf` (bool).
/// On f16 and bf16, arithmetic is done in f32 and rounded once per op, as in PyTorch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnaryOp {
    /// `aten::neg`.
    Neg,
    /// `aten::abs`.
    Abs,
    /// -1, 0 or 1; 0 for NaN, as in PyTorch.
    Sign,
    /// `aten::exp`.
    Exp,
    /// `aten::exp2`.
    Exp2,
    /// `aten::expm1`: `exp(x) - 1`.
    Expm1,
    /// `aten::log`: the natural logarithm.
    Log,
    /// `aten::log2`.
    Log2,
    /// `aten::log10`.
    Log10,
    /// `aten::log1p`: `log(1 + x)`.
    Log1p,
    /// `aten::sqrt`.
    Sqrt,
    /// `aten::rsqrt`: `1 / sqrt(x)`.
    Rsqrt,
    /// `aten::reciprocal`: `1 / x`.
    Reciprocal,
    /// `aten::sin`.
    Sin,
    /// `aten::cos`.
    Cos,
    /// `aten::tan`.
    Tan,
    /// `aten::asin`.
    Asin,
    /// `aten::acos`.
    Acos,
    /// `aten::atan`.
    Atan,
    /// `aten::sinh`.
    Sinh,
    /// `aten::cosh`.
    Cosh,
    /// `aten::tanh`.
    Tanh,
    /// `aten::erf`.
    Erf,
    /// `aten::floor`.
    Floor,
    /// `aten::ceil`.
    Ceil,
    /// `aten::round`: to the nearest integer, ties to even.
    Round,
    /// `aten::trunc`: toward zero.
    Trunc,
    /// Logical not (bool) or bitwise not (integers).
    Not,
    /// `aten::isnan`; the result is bool.
    IsNan,
    /// `aten::isinf`; the result is bool.
    IsInf,
    // Composed of other functions, but single ops here, so that plans show and price them as one.
    /// `aten::relu`: `max(x, 0)`.
    Relu,
    /// `aten::sigmoid`: `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `aten::silu`: `x / (1 + exp(-x))`.
    Silu,
    /// `aten::gelu` with `approximate="none"`: `x / 2 (1 + erf(x / sqrt(2)))`.
    GeluErf,
    /// `aten::gelu` with `approximate="tanh"`: `x / 2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// `aten::softplus` with beta 1 and threshold 20: `log(1 + exp(x))`, x above 20.
    Softplus,
    /// `aten::mish`: `x tanh(log(1 + exp(x)))`.
    Mish,
    /// `aten::hardswish`: `x min(max(x + 3, 0), 6) / 6`.
    Hardswish,
    /// `aten::hardsigmoid`: `min(max(x + 3, 0), 6) / 6`.
    Hardsigmoid,
    /// `aten::log_sigmoid`: `log(1 / (1 + exp(-x)))`.
    LogSigmoid,
    /// The inverse of erf.
    Erfinv,
    /// The logarithm of the absolute value of the gamma function.
    Lgamma,
    /// The derivative of `Lgamma`.
    Digamma,
}

/// Pointwise ops with two operands of one dtype. The result has that dtype.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BinaryOp {
    /// `aten::add`.
    Add,
    /// `aten::sub`.
    Sub,
    /// `aten::mul`.
    Mul,
    /// True division (floats); truncating division (integers).
    Div,
    /// Division rounded toward minus infinity.
    FloorDiv,
    /// Remainder with the sign of the divisor (`torch.remainder`).
    Remainder,
    /// Remainder with the sign of the dividend (`torch.fmod`).
    Fmod,
    /// A rank-0 exponent of 0.5 or -0.5 is computed as a root, as `torch.pow` does with a number.
    Pow,
    /// NaN if either is NaN.
    Max,
    /// NaN if either is NaN.
    Min,
    /// `aten::atan2`.
    Atan2,
    /// Logical (bool) or bitwise (integers).
    And,
    /// Logical (bool) or bitwise (integers).
    Or,
    /// Logical (bool) or bitwise (integers).
    Xor,
}

/// Comparisons of two operands of one dtype. The result is bool; with a NaN all but `Ne` are false.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompareOp {
    /// `a == b`.
    Eq,
    /// `a != b`.
    Ne,
    /// `a < b`.
    Lt,
    /// `a <= b`.
    Le,
    /// `a > b`.
    Gt,
    /// `a >= b`.
    Ge,
}

/// Reductions. `Sum` and `Prod` do not take bool (cast to i64 first). `ArgMax` and `ArgMin` give i64, the first of
/// equal elements; NaN wins over all numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReduceOp {
    /// `aten::sum`; 0 over no elements.
    Sum,
    /// `aten::mean`, of floats; NaN over no elements.
    Mean,
    /// `aten::prod`; 1 over no elements.
    Prod,
    /// `aten::amax`: NaN if any element is NaN. Undefined over axes of size 0.
    Max,
    /// `aten::amin`: NaN if any element is NaN. Undefined over axes of size 0.
    Min,
    /// `aten::any`, of bool.
    Any,
    /// `aten::all`, of bool.
    All,
    /// `aten::argmax`, over exactly one axis.
    ArgMax,
    /// `aten::argmin`, over exactly one axis.
    ArgMin,
}

/// Inclusive scans along one axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanOp {
    /// `aten::cumsum`.
    Sum,
    /// `aten::cumprod`.
    Prod,
}
