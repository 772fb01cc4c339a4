//! The op set, small enough to reason about. Every op has one result; its doc gives the order of its operands.
//!
//! Conventions: pointwise operands broadcast as in numpy (missing leading axes, size-1 axes); axes count from 0; reductions and scans
//! keep their axes (a reduced axis has size 1); integer lists are compile-time constants.
//! The properties of an op that compiler stages use are in its row of the registry, [`crate::ops`].
use crate::{BinaryOp, CompareOp, DType, ReduceOp, ScanOp, Type, UnaryOp};
use serde::{Deserialize, Serialize};

/// A compile-time scalar. Equality and hash are bitwise, so a NaN equals itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scalar {
    #[serde(with = "crate::graph::float_text")]
    Float(f64),
    Int(i64),
    Bool(bool),
}

impl Scalar {
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(v) => v,
            Scalar::Int(v) => v as f64,
            Scalar::Bool(v) => f64::from(u8::from(v)),
        }
    }
    /// Converts to the kind of `dtype` if that is exact; otherwise `self` unchanged.
    pub fn for_dtype(self, dtype: DType) -> Scalar {
        let value = self.as_f64();
        match self {
            Scalar::Int(_) | Scalar::Bool(_) if dtype.is_float() => Scalar::Float(value),
            Scalar::Bool(v) if dtype.is_int() => Scalar::Int(i64::from(v)),
            Scalar::Float(v) if dtype.is_int() && v.trunc() == v && v.abs() < 9e15 => Scalar::Int(v as i64),
            Scalar::Int(v @ 0..=1) if dtype == DType::Bool => Scalar::Bool(v == 1),
            Scalar::Float(_) if dtype == DType::Bool && (value == 0.0 || value == 1.0) => Scalar::Bool(value == 1.0),
            _ => self,
        }
    }
    fn key(self) -> (u8, u64) {
        match self {
            Scalar::Float(v) => (0, v.to_bits()),
            Scalar::Int(v) => (1, v as u64),
            Scalar::Bool(v) => (2, u64::from(v)),
        }
    }
}
impl PartialEq for Scalar {
    fn eq(&self, o: &Scalar) -> bool {
        self.key() == o.key()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, h: &mut H) {
        self.key().hash(h)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// Padding counts as minus infinity.
    Max,
    /// The mean of a window.
    Avg {
        /// Whether padding counts: divide by the window size, else by the number of elements inside the input.
        count_pad: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScatterMode {
    /// Overwrites. If an index repeats, the last write wins, in ascending order along the scatter axis.
    Replace,
    Add,
}

/// A call that libtorch runs: everything needed to repeat it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct FallbackOp {
    /// Schema name, such as `aten::topk`.
    pub name: String,
    pub overload: String,
    /// JSON of the argument list; `{"tensor": i}` stands for operand i of the node.
    pub args: String,
    /// Types of all results; the node's own value is the first.
    pub results: Vec<Type>,
    /// Why the operator is not compiled.
    pub why: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    // Leaves.
    /// Graph input; the index counts the graph's inputs.
    Input(u32),
    /// Weight or buffer; type and origin in [`crate::Graph::params`].
    Param(crate::ParamId),
    /// A scalar constant of rank 0 (dtype in the node's type).
    Const(Scalar),
    /// `0, 1, 2, …` along `axis`, constant along the others. Type in the node.
    Iota {
        axis: usize,
    },
    // Pointwise.
    Unary(UnaryOp),
    Binary(BinaryOp),
    /// Two operands of one dtype; the result is bool.
    Compare(CompareOp),
    /// Operands: condition (bool), value if true, value if false.
    Select,
    Cast(DType),
    // Views and data movement.
    Reshape(Vec<usize>),
    /// Result axis i is operand axis `perm[i]`.
    Permute(Vec<usize>),
    /// Broadcasts to the full result shape; operand axes of size 1 and missing leading axes are repeated.
    Broadcast(Vec<usize>),
    /// Every `step`-th element (step ≥ 1) along `axis`, `len` of them, from `start`.
    Slice {
        axis: usize,
        start: usize,
        len: usize,
        step: usize,
    },
    Flip(Vec<usize>),
    /// Operands: input, padding value (rank 0). Adds `lo` and `hi` elements before and after each axis; negative numbers crop.
    Pad {
        lo: Vec<i64>,
        hi: Vec<i64>,
    },
    /// Concatenates any number of operands, at least one.
    Concat {
        axis: usize,
    },
    /// Operands: x, index (integer, rank of x): `out[.., i, ..] = x[.., index[.., i, ..], ..]` (`torch.gather`). An index out of range,
    /// including a negative one, is a runtime error.
    Gather {
        axis: usize,
    },
    /// Operands: table, index (integer, any rank). The table's `axis` is replaced by the index's shape (`index_select`, embedding).
    /// Range of indices as for `Gather`.
    Take {
        axis: usize,
    },
    /// Operands: x, index, source (shape of the index). The result is x after `x[.., index, ..] op= source` (`torch.scatter`). Range of
    /// indices as for `Gather`.
    Scatter {
        axis: usize,
        mode: ScatterMode,
    },
    // Reductions.
    Reduce {
        op: ReduceOp,
        axes: Vec<usize>,
    },
    Scan {
        op: ScanOp,
        axis: usize,
    },
    // Matmuls and windows.
    /// `[…, M, K] × […, K, N]`; leading axes broadcast. Accumulates in [`DType::compute`]; the result dtype is [`DType::matmul`].
    Dot,
    /// Operands: input `[N, C, spatial…]`, weight `[O, C/groups, window…]` (`[C, O/groups, window…]` if transposed), optional bias `[O]`.
    Conv {
        stride: Vec<usize>,
        padding: Vec<usize>,
        dilation: Vec<usize>,
        groups: usize,
        transposed: bool,
        output_padding: Vec<usize>,
    },
    /// Windowed reduction over the trailing `window.len()` axes.
    Pool {
        kind: PoolKind,
        window: Vec<usize>,
        stride: Vec<usize>,
        padding: Vec<usize>,
        dilation: Vec<usize>,
        ceil: bool,
    },
    // Composites: one op each, with a decomposition in `decompose`.
    Softmax {
        axis: usize,
    },
    LogSoftmax {
        axis: usize,
    },
    /// Normalises over the last `axes` axes. Operands: input, then gain and bias (with the shape of these axes) if `affine`.
    LayerNorm {
        axes: usize,
        affine: bool,
        eps: Scalar,
    },
    /// Operands: x, gain. `x * rsqrt(mean(x², last axis) + eps) * gain`.
    RmsNorm {
        eps: Scalar,
    },
    /// Normalises over groups of channels. Operands: input `[N, C, …]`, then gain and bias `[C]` if `affine`.
    GroupNorm {
        groups: usize,
        affine: bool,
        eps: Scalar,
    },
    /// Batch norm in evaluation mode. Operands: input `[N, C, …]`, gain, bias, running mean, running variance (all `[C]`).
    BatchNorm {
        eps: Scalar,
    },
    /// `x · weightᵀ + bias`. Operands: x `[.., K]`, weight `[N, K]`, optional bias `[N]`.
    Linear,
    /// Scaled dot-product attention. Operands: q `[B.., Hq, S, D]`, k `[B.., Hk, T, D]`, v `[B.., Hk, T, E]` (Hq is a multiple of Hk),
    /// and an optional mask that broadcasts to `[B.., Hq, S, T]` (bool: false masks out; float: added to the scores). Result
    /// `[B.., Hq, S, E]`.
    Attention {
        scale: Scalar,
        causal: bool,
    },
    // The rest.
    Fallback(Box<FallbackOp>),
    /// Result `i` (≥ 1) of a fallback node.
    Result(u32),
}
