//! How a kernel can hold an op: all that legality and cost need to know about it.
use kiln_graph::{Op, ReduceOp};

/// What an op is to the kernel that holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Class {
    /// In memory before this stage begins: an input, a parameter, a value frozen at load time.
    Leaf,
    /// Made from nothing wherever it is needed: constants, iota.
    Generator,
    /// Renames elements; read through by whoever uses it.
    View,
    Pointwise,
    /// Pointwise over its result, with computed places in its operands: pad, concat, gather, take.
    Movement,
    Reduce,
    /// A reduction that gives a place.
    ArgReduce,
    /// Reads and writes whole rows: softmax, norms.
    Row,
    Scan,
    Product,
    Attention,
    Conv,
    Pool,
    Scatter,
    Fallback,
    /// A further result of a fallback.
    Result,
}

impl Class {
    pub fn of(op: &Op) -> Class {
        match op {
            Op::Input(_) | Op::Param(_) => Class::Leaf,
            Op::Const(_) | Op::Iota { .. } => Class::Generator,
            Op::Reshape(_) | Op::Permute(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Flip(_) => Class::View,
            Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select | Op::Cast(_) | Op::BatchNorm { .. } => {
                Class::Pointwise
            }
            Op::Pad { .. } | Op::Concat { .. } | Op::Gather { .. } | Op::Take { .. } => Class::Movement,
            Op::Reduce { op: ReduceOp::ArgMax | ReduceOp::ArgMin, .. } => Class::ArgReduce,
            Op::Reduce { .. } => Class::Reduce,
            Op::Softmax { .. }
            | Op::LogSoftmax { .. }
            | Op::LayerNorm { .. }
            | Op::RmsNorm { .. }
            | Op::GroupNorm { .. } => Class::Row,
            Op::Scan { .. } => Class::Scan,
            Op::Dot | Op::Linear => Class::Product,
            Op::Attention { .. } => Class::Attention,
            Op::Conv { .. } => Class::Conv,
            Op::Pool { .. } => Class::Pool,
            Op::Scatter { .. } => Class::Scatter,
            Op::Fallback(_) => Class::Fallback,
            Op::Result(_) => Class::Result,
        }
    }
    /// At most one of these is in a kernel, and its whole result is computed there once.
    pub fn is_anchor(self) -> bool {
        matches!(self, Class::Product | Class::Attention | Class::Conv | Class::Pool | Class::Scatter | Class::Scan)
    }
    /// Costs no kernel of its own when its reader can follow it.
    pub fn is_free(self) -> bool {
        matches!(self, Class::View | Class::Generator)
    }
}
