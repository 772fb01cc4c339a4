//! Attention by the host's library: the call, and what its operands are.
use super::{Matrix, Slot};
use kiln_graph::{DType, FullyMasked};
use serde::{Deserialize, Serialize};

/// `out = softmax(scale · q × kᵀ + mask) × v` per batch, without the scores in memory, where a softmax's sum may have
/// one more term. Queries of the heads that share the keys are rows of one matrix: the row of query i of head g of the
/// group is `g · queries + i`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AttentionCall {
    /// Of q, k and v. Sums are in f32, of f64 in f64; probabilities may be rounded to this type.
    pub dtype: DType,
    /// Element type of the result: that of the operands, or the type of the sums.
    pub out_dtype: DType,
    /// The order of sums must not depend on the number of queries and the batch.
    #[serde(default)]
    pub batch_invariant: bool,
    /// Sizes of the batch axes, outermost first; the last are the heads of keys.
    pub batch: Vec<usize>,
    /// Heads of queries for each head of keys.
    pub group: usize,
    /// Queries of a head.
    pub queries: usize,
    /// Keys of a head, at least one.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub depth: usize,
    /// Elements of a value and of a result.
    pub width: usize,
    /// Factor of the scores.
    pub scale: f64,
    /// Whether query i attends only to keys 0 to i.
    pub causal: bool,
    /// The result of a query that attends to no key and has no sink.
    pub fully_masked: FullyMasked,
    /// Queries: `group · queries` rows of `depth`.
    pub q: Matrix,
    /// Keys: `keys` rows of `depth`, each side on one axis.
    pub k: Matrix,
    /// Values: `keys` rows of `width`, each side on one axis.
    pub v: Matrix,
    /// The result: `group · queries` rows of `width`.
    pub out: Matrix,
    /// `group · queries` rows of `keys`: what is added to scores, in the operands' type, or, as bool, which of them
    /// count.
    #[serde(default)]
    pub mask: Option<Mask>,
    /// An i64 for each of the `group · queries` rows: keys from there on do not count and are not read. A single
    /// column.
    #[serde(default)]
    pub ends: Option<Matrix>,
    /// A score for each of the `group · queries` rows, neither scaled nor masked, whose value is zero. A single column.
    #[serde(default)]
    pub sink: Option<Sink>,
}

/// The mask of an attention in memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mask {
    /// Bool, or the operands' type.
    pub dtype: DType,
    /// Its place; strides are 0 along axes on which it is the same.
    pub matrix: Matrix,
}

/// The sinks of an attention in memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sink {
    /// The operands' type, or the type of the sums.
    pub dtype: DType,
    /// Their place; strides are 0 along axes on which they are the same.
    pub matrix: Matrix,
}

impl AttentionCall {
    /// Rows of q and of the result.
    pub fn rows(&self) -> usize {
        self.group * self.queries
    }
    /// The buffers of q, k, v and the result, then those of the mask, the ends and the sinks.
    pub fn slots(&self) -> Vec<Slot> {
        let more = self.mask.iter().map(|m| m.matrix.slot).chain(self.ends.iter().map(|m| m.slot));
        let more = more.chain(self.sink.iter().map(|s| s.matrix.slot));
        [&self.q, &self.k, &self.v, &self.out].map(|m| m.slot).into_iter().chain(more).collect()
    }
}
