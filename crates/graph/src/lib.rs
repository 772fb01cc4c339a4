//! The tensor dataflow graph: what a model computes, and nothing about how.
//!
//! Takes: nodes added by hand ([`Graph::add`]), by the importer, or by [`text::parse`]. Gives: typed values in
//! topological order, a text form that parses back to an equal graph, and serde forms. Knows nothing of kernels,
//! devices, costs or files. Only [`memory`] asks the operating system how much memory is free.
#![warn(missing_docs)]

mod build;
mod count;
pub mod decompose;
pub mod dtype;
pub mod error;
pub mod fallback;
pub mod family;
pub mod graph;
pub mod id;
pub mod infer;
mod json;
pub mod launch;
pub mod memory;
pub mod op;
pub mod ops;
pub mod pairwise;
pub mod params;
mod rebuild;
pub mod scalar;
mod score;
pub mod tensor;
pub mod text;
pub mod verify;

pub use count::{count, plural};
pub use dtype::DType;
pub use error::GraphError;
pub use family::{BinaryOp, CompareOp, ReduceOp, ScanOp, UnaryOp};
pub use graph::{Graph, Init, Node, ParamInfo, Source};
pub use id::{ParamId, ValueId};
pub use kiln_number::{Format, Kind, Random, random};
pub use launch::LaunchOp;
pub use op::{FallbackOp, FullyMasked, Op, PoolKind, ScatterMode};
pub use params::{random_params, random_tensor};
pub use scalar::Scalar;
pub use score::ScoreStep;
pub use tensor::{Tensor, Type};
