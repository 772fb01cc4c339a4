//! Converts calls of ATen operators to graphs. Every door of PyTorch goes through it: whoever reads an archive or a
//! traced program writes it down as a flat list of operator calls on typed values ([`raw`]), and gets a verified
//! [`kiln_graph::Graph`].
//!
//! Takes: [`raw::Raw`], or a program with symbolic sizes ([`program::Program`]), which gives one for each binding of
//! its symbols. Gives: a graph in which every value is typed, and where its parameters come from; or all problems of
//! the model at once ([`ImportErrors`]), each with its line in the model's source ([`source`]). In-place operators are
//! rewritten first ([`mutation`]), since values of a graph never change. Never: libtorch. What has no conversion
//! becomes a fallback, which names an operator for libtorch to run.
mod arguments;
pub mod convert;
pub mod error;
pub mod extent;
pub mod guard;
pub mod mutation;
pub mod program;
pub mod raw;
mod retype;
pub mod source;
pub mod specialise;

pub use convert::{ParamData, Refusal};
pub use error::{ImportErrors, Problem};
pub use program::Program;
pub use raw::Raw;
pub use specialise::{Specialised, Written};
