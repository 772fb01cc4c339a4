//! The op set: small enough to reason about. Every op has one result; its operands' order is in its doc.
//!
//! Conventions: pointwise operands broadcast as numpy does (missing leading axes, size-1 axes); axes are counted from 0;
//! reductions and scans keep their axes (a reduced axis has size 1); integer lists are compile-time constants.
//! What stages know of an op is its row in [`crate::ops`].
use crate::{BinaryOp, CompareOp, DType, ReduceOp, ScanOp, Type, UnaryOp};
use serde::{Deserialize, Serialize};

/// A compile-time scalar. Equality and hash go by bits, so NaN equals itself.
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
    /// The same number in the kind of `dtype`, where nothing is lost; else unchanged.
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
    /// `count_pad`: divide by the window size, else by the elements inside the input.
    Avg { count_pad: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScatterMode {
    /// Later index wins where indices repeat (along the scatter axis, ascending).
    Replace,
    Add,
}

/// An op that libtorch runs: the whole call, so that it can be made again.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct FallbackOp {
    /// Schema name, as `aten::topk`.
    pub name: String,
    pub overload: String,
    /// JSON of the argument list; `{"tensor": i}` stands for operand i of the node.
    pub args: String,
    /// Types of all results; the node's own value is the first.
    pub results: Vec<Type>,
    /// Why this op is not compiled.
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
    /// Result bool.
    Compare(CompareOp),
    /// `cond` (bool), `if true`, `if false`.
    Select,
    Cast(DType),
    /// `log(exp(a) + exp(b))` without overflow.
    Logaddexp,
    // Views and data movement.
    Reshape(Vec<usize>),
    /// Result axis i is operand axis `perm[i]`.
    Permute(Vec<usize>),
    /// To the full result shape; operand axes of size 1 or missing in front are repeated.
    Broadcast(Vec<usize>),
    /// `len` elements from `start`, every `step`-th (step ≥ 1), along `axis`.
    Slice {
        axis: usize,
        start: usize,
        len: usize,
        step: usize,
    },
    Flip(Vec<usize>),
    /// Operand, value (rank 0). `lo` and `hi` elements added before and after each axis; negative crops.
    Pad {
        lo: Vec<i64>,
        hi: Vec<i64>,
    },
    /// Any number of operands.
    Concat {
        axis: usize,
    },
    /// Operand, index (integer, operand's rank): `out[.., i, ..] = x[.., index[.., i, ..], ..]` (`torch.gather`). An
    /// index outside of the axis, also a negative one, is an error.
    Gather {
        axis: usize,
    },
    /// Table, index (any rank): the table's `axis` is replaced by the index's shape (`index_select`, embedding).
    /// Indices as for `Gather`.
    Take {
        axis: usize,
    },
    /// Operand, index, source (index's shape): `x` with `x[.., index, ..] op= source` (`torch.scatter`).
    /// Indices as for `Gather`.
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
    // Matmuls.
    /// `[…, M, K] × […, K, N]`, leading axes broadcast. Accumulates in `compute()`; result dtype is the operands'.
    Dot,
    /// Input `[N, C, spatial…]`, weight `[O, C/groups, window…]`, optional bias `[O]`. `transposed`: weight `[C, O/groups, window…]`.
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
    // Composites: whole here, with a decomposition in `decompose`.
    Softmax {
        axis: usize,
    },
    LogSoftmax {
        axis: usize,
    },
    /// Operand, then gain and bias if `affine` (shape of the last `axes` axes); `eps`. Normalises over the last `axes` axes.
    LayerNorm {
        axes: usize,
        affine: bool,
        eps: Scalar,
    },
    /// Operand, gain: `x * rsqrt(mean(x², last axis) + eps) * gain`.
    RmsNorm {
        eps: Scalar,
    },
    /// Operand `[N, C, …]`, then gain and bias `[C]` if `affine`.
    GroupNorm {
        groups: usize,
        affine: bool,
        eps: Scalar,
    },
    /// Inference: operand `[N, C, …]`, gain, bias, running mean, running variance (all `[C]`).
    BatchNorm {
        eps: Scalar,
    },
    /// `x [.., K]`, weight `[N, K]`, optional bias `[N]`.
    Linear,
    /// q `[B.., Hq, S, D]`, k `[B.., Hk, T, D]`, v `[B.., Hk, T, E]` (Hq a multiple of Hk), optional mask broadcast to `[B.., Hq, S, T]`
    /// (bool: true takes part; float: added). Result `[B.., Hq, S, E]`. `causal`: query i sees keys ≤ i.
    Attention {
        scale: Scalar,
        causal: bool,
    },
    // The rest.
    Fallback(Box<FallbackOp>),
    /// Result `i` (≥ 1) of a fallback node.
    Result(u32),
}
