//! TorchScript archives to graphs, and execution by libtorch.
//!
//! The only part of Kiln that links libtorch, and so a plugin: the `kiln` binary opens this crate's shared library at run
//! time through [`plugin`]'s C ABI (the other side is `kiln-torch-host`) and works without it.
//!
//! Takes: a TorchScript archive and example inputs. Gives: a [`kiln_graph::Graph`] in which every value is typed, the
//! parameters' data, and for what is wrong with the model all problems at once, each with its line in the model's source.
//! Never: a number read from input data baked in, a mutation dropped, an exception or panic across the boundary.
pub mod convert;
pub mod error;
pub mod execute;
pub mod ffi;
pub mod import;
pub mod plugin;
pub mod raw;
pub mod source;

pub use error::{ImportErrors, Problem};
pub use execute::{Memory, Session, call};
pub use import::{Argument, Guard, Imported, arguments, import};

/// Links torch-sys, whose build finds libtorch; this crate calls the shim alone.
use tch as _;
