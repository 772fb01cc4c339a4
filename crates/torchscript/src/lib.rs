//! Imports TorchScript archives as graphs, and executes modules and operators with libtorch.
//!
//! The only part of Kiln that links libtorch, and therefore a plugin: `kiln` loads libtorch, then this crate's shared
//! library (`libkiln_torchscript.so`), at run time through [`plugin`]'s C ABI, and works without both.
//! `kiln-torch-host` is the other side.
//!
//! Takes: a TorchScript archive and example inputs. Gives: a [`kiln_graph::Graph`] in which every value is typed, and
//! the parameters' data; or all problems of the model at once, each with its line in the model's source. Never bakes in
//! a number read from input data, never drops a mutation, never lets an exception or panic cross the C ABI.
//!
//! Import runs the archive once on the example inputs, operator by operator (`cpp/specialise.cpp`), and converts the
//! recorded calls ([`kiln_aten::convert`]). Graph values have no strides; the run sees the strides that PyTorch has and
//! resolves what depends on them:
//! - `as_strided` becomes a view of all elements in memory order (`cpp/views.cpp`).
//! - An in-place change becomes a new value of the changed view and of its base; other views are recomputed at their
//!   next use (`cpp/mutation.cpp`).
//! - `split`, `chunk` and `unbind` become one slice per part, so that each part can be changed by itself.
//! - Anything else that depends on memory is refused with its source line.
pub mod execute;
pub mod ffi;
pub mod import;
pub mod plugin;

pub use execute::{Memory, Session, call};
pub use import::{Argument, Guard, Imported, arguments, import};
pub use kiln_aten::{ImportErrors, Problem};

/// Links torch-sys, whose build script finds libtorch. This crate itself calls only the shim.
use tch as _;
