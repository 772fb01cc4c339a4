//! The op set, small enough to reason about. Every op has one result; its doc gives the order of its operands.
//!
//! Conventions: pointwise operands broadcast as in numpy (missing leading axes, size-1 axes); axes count from 0;
//! reductions and scans keep their axes (a reduced axis has size 1); integer lists are compile-time constants. The
//! properties of an op that compiler stages use are in its row of the registry, [`crate::ops`].
use crate::{BinaryOp, CompareOp, DType, LaunchOp, ReduceOp, Scalar, ScanOp, ScoreStep, Type, UnaryOp};
use serde::{Deserialize, Serialize};

/// The reduction of a pooling window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolKind {
    /// The maximum. Padding counts as minus infinity.
    Max,
    /// The mean of a window.
    Avg {
        /// Whether padding counts: divide by the window size, else by the number of elements inside the input.
        count_pad: bool,
    },
}

/// How a scatter combines the source with existing elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScatterMode {
    /// Overwrites. If an index repeats, the last write wins, in ascending order along the scatter axis.
    Replace,
    /// Adds. Not defined on bool and f8.
    Add,
}

/// What attention gives for a query all of whose scores, and its sink if it has one, are minus infinity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FullyMasked {
    /// Zero, as PyTorch's `scaled_dot_product_attention`.
    #[default]
    Zero,
    /// NaN, as a softmax of such a row gives.
    Nan,
}
impl FullyMasked {
    /// Whether this is the default, which texts leave out.
    pub fn is_default(&self) -> bool {
        *self == FullyMasked::default()
    }
}

/// A call that libtorch runs: everything needed to repeat it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct FallbackOp {
    /// Schema name, such as `aten::topk`.
    pub name: String,
    /// Overload name in the schema; empty for the default overload.
    pub overload: String,
    /// JSON of the argument list; `{"tensor": i}` stands for operand i of the node.
    pub args: String,
    /// Types of all results; the node's own value is the first.
    pub results: Vec<Type>,
    /// Why the operator is not compiled.
    pub why: String,
    /// Whether the process that made the graph runs the operator itself, and vouches that it does nothing but compute
    /// its results from its operands: the operator then need not be on the list ([`mod@crate::fallback`]). No form that
    /// leaves the process has it, so no file can claim it.
    #[serde(skip)]
    pub vouched: bool,
}

/// An op with its attributes.
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
        /// The axis along which the values count.
        axis: usize,
    },
    // Pointwise.
    /// One operand; see [`UnaryOp`].
    Unary(UnaryOp),
    /// Two operands of one dtype, which broadcast; see [`BinaryOp`].
    Binary(BinaryOp),
    /// Two operands of one dtype; the result is bool.
    Compare(CompareOp),
    /// Operands: condition (bool), value if true, value if false.
    Select,
    /// Converts to this dtype. Floats truncate to integers; nonzero is true.
    Cast(DType),
    /// `log(exp(a) + exp(b))` without overflow.
    Logaddexp,
    // Views and data movement.
    /// The same elements in row-major order with this shape, which has as many elements.
    Reshape(Vec<usize>),
    /// Result axis i is operand axis `perm[i]`.
    Permute(Vec<usize>),
    /// Broadcasts to the full result shape; operand axes of size 1 and missing leading axes are repeated.
    Broadcast(Vec<usize>),
    /// Every `step`-th element (step ≥ 1) along `axis`, `len` of them, from `start`.
    Slice {
        /// The sliced axis.
        axis: usize,
        /// Index of the first element.
        start: usize,
        /// Size of the axis in the result.
        len: usize,
        /// Distance between elements, at least 1.
        step: usize,
    },
    /// Reverses these axes.
    Flip(Vec<usize>),
    /// Operands: input, padding value (rank 0). Adds `lo` and `hi` elements before and after each axis; negative
    /// numbers crop.
    Pad {
        /// Elements before each axis.
        lo: Vec<i64>,
        /// Elements after each axis.
        hi: Vec<i64>,
    },
    /// Concatenates any number of operands, at least one.
    Concat {
        /// The concatenated axis; all other sizes are equal.
        axis: usize,
    },
    /// Operands: x, index (integer, rank of x): `out[.., i, ..] = x[.., index[.., i, ..], ..]` (`torch.gather`). An
    /// index out of range, including a negative one, is a runtime error.
    Gather {
        /// The indexed axis of x.
        axis: usize,
    },
    /// Operands: table, index (integer, any rank). The table's `axis` is replaced by the index's shape (`index_select`,
    /// embedding). Range of indices as for `Gather`.
    Take {
        /// The indexed axis of the table.
        axis: usize,
    },
    /// Operands: x, index, source (shape of the index). The result is x after `x[.., index, ..] op= source`
    /// (`torch.scatter`). Range of indices as for `Gather`.
    Scatter {
        /// The indexed axis of x.
        axis: usize,
        /// How source elements are written.
        mode: ScatterMode,
    },
    // Reductions.
    /// Reduces axes, which keep size 1.
    Reduce {
        /// The reduction.
        op: ReduceOp,
        /// The reduced axes, without repeats.
        axes: Vec<usize>,
    },
    /// Inclusive scan along an axis; the operand's shape. Not defined on bool and f8.
    Scan {
        /// The scan.
        op: ScanOp,
        /// The scanned axis.
        axis: usize,
    },
    // Matmuls and windows.
    /// `[…, M, K] × […, K, N]`; leading axes broadcast. Accumulates in [`DType::compute`]; the result dtype is
    /// [`DType::matmul`].
    Dot,
    /// Operands: input `[N, C, spatial…]`, weight `[O, C/groups, window…]` (`[C, O/groups, window…]` if transposed),
    /// optional bias `[O]`.
    Conv {
        /// Stride per spatial axis, at least 1.
        stride: Vec<usize>,
        /// Zeros on both sides of each spatial axis of the input; a transposed convolution crops its result by them
        /// instead.
        padding: Vec<usize>,
        /// Distance between window elements per spatial axis, at least 1.
        dilation: Vec<usize>,
        /// Groups of channels, which are convolved independently.
        groups: usize,
        /// Whether it is a transposed convolution.
        transposed: bool,
        /// Elements added at the end of each spatial axis of a transposed convolution's result; empty or zeros
        /// otherwise.
        output_padding: Vec<usize>,
    },
    /// Windowed reduction over the trailing `window.len()` axes.
    Pool {
        /// Maximum or average.
        kind: PoolKind,
        /// Window size per pooled axis.
        window: Vec<usize>,
        /// Stride per pooled axis, at least 1.
        stride: Vec<usize>,
        /// Padding on both sides of each pooled axis, at most half of the dilated window.
        padding: Vec<usize>,
        /// Distance between window elements per pooled axis; 1 for averages.
        dilation: Vec<usize>,
        /// Whether a last partial window counts (`ceil_mode`).
        ceil: bool,
    },
    // Composites: one op each, with a decomposition in `decompose`.
    /// `aten::softmax` of a float operand.
    Softmax {
        /// The normalised axis.
        axis: usize,
    },
    /// `aten::log_softmax` of a float operand.
    LogSoftmax {
        /// The normalised axis.
        axis: usize,
    },
    /// Normalises over the last `axes` axes. Operands: input, then gain and bias (with the shape of these axes) if
    /// `affine`.
    LayerNorm {
        /// Number of normalised axes, counted from the last.
        axes: usize,
        /// Whether there are gain and bias operands.
        affine: bool,
        /// Added to the variance.
        eps: Scalar,
    },
    /// Operands: x, gain. `x * rsqrt(mean(x², last axis) + eps) * gain`.
    RmsNorm {
        /// Added to the mean square.
        eps: Scalar,
    },
    /// Normalises over groups of channels. Operands: input `[N, C, …]`, then gain and bias `[C]` if `affine`.
    GroupNorm {
        /// Number of groups, a divisor of C.
        groups: usize,
        /// Whether there are gain and bias operands.
        affine: bool,
        /// Added to the variance.
        eps: Scalar,
    },
    /// Batch norm in evaluation mode. Operands: input `[N, C, …]`, gain, bias, running mean, running variance (all
    /// `[C]`).
    BatchNorm {
        /// Added to the running variance.
        eps: Scalar,
    },
    /// `x · weightᵀ + bias`. Operands: x `[.., K]`, weight `[N, K]`, optional bias `[N]`.
    Linear,
    /// Scaled dot-product attention. Operands: q `[B.., Hq, S, D]`, k `[B.., Hk, T, D]`, v `[B.., Hk, T, E]` (Hq is a
    /// multiple of Hk), those of the steps of `score`, the sink if there is one, and an optional mask (bool: false
    /// masks out; float: added to the scores); what is added to scores or taken by their steps is q's type or the type
    /// that q's is computed in; steps' operands and mask broadcast to `[B.., Hq, S, T]`, the sink to `[B.., Hq, S, 1]`.
    /// Result `[B.., Hq, S, E]`, or `[B.., Hq, S, 1]` with `lse`.
    Attention {
        /// Factor of the scores `q · kᵀ`.
        scale: Scalar,
        /// Whether query i attends only to keys 0 to i.
        causal: bool,
        /// The result for a query that attends to no key.
        #[serde(default, skip_serializing_if = "FullyMasked::is_default")]
        fully_masked: FullyMasked,
        /// What is made of the scaled scores before they are masked.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        score: Vec<ScoreStep>,
        /// Whether there is a sink: one more score of each query, neither scaled nor masked, whose key has the value
        /// zero. It is q's type, or the type that q's is computed in.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sink: bool,
        /// Whether the result is not the values' mean but the logarithm of the sum that its weights were divided by: of
        /// the exponentials of a query's scores, and of its sink. In the type that q's is computed in; minus infinity
        /// for a query that attends to no key.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        lse: bool,
    },
    // Calls into libtorch.
    /// A call that libtorch runs. Its value is the first result.
    Fallback(Box<FallbackOp>),
    // Programs written by hand.
    /// A launch of a block program. Operands: the tensors that it reads, in the order of its arguments. Its value is
    /// the first result.
    Launch(Box<LaunchOp>),
    // Of ops with several results.
    /// Result `i` (≥ 1) of its operand, a fallback or a launch.
    Result(u32),
}
