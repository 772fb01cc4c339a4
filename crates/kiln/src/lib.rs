//! Kiln as a library: load a model, compile it, run it, explain it, time it.
//!
//! ```no_run
//! use kiln::{CompileOptions, Model, compile};
//! # fn main() -> Result<(), kiln::Error> {
//! let model = Model::open("graphs/softmax.kiln".as_ref(), &[])?;
//! let compiled = compile(&model, &CompileOptions::default())?;
//! let session = compiled.session()?;
//! let outputs = session.run(&model.example_inputs(1))?;
//! # Ok(()) }
//! ```
//!
//! Each stage is a crate of its own; this one calls them in order and turns their results into reports. It also has artifacts,
//! constraints and measuring ([`mod@bench`], [`tune`]). Modules that only the `kiln` command and tests use are left out of this
//! documentation and may change.
#![warn(missing_docs)]
pub mod accuracy;
pub mod artifact;
pub mod bench;
pub mod calibrate;
pub mod compile;
pub mod constraints;
mod cores;
pub mod diff;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod explain;
#[doc(hidden)]
pub mod facts;
#[doc(hidden)]
pub mod html;
pub mod io;
pub mod model;
mod open;
#[doc(hidden)]
pub mod parts;
#[doc(hidden)]
pub mod plot;
pub mod program;
mod recognise;
#[doc(hidden)]
pub mod select;
pub mod snapshot;
pub mod stages;
pub mod sweep;
mod torch;
pub mod trace;
#[doc(hidden)]
pub mod trial;
pub mod tune;
pub mod why;

pub use compile::{CompileOptions, Compiled, DeviceKind, Target, compile};
pub use engine::{Binding, Engine};
pub use error::Error;
pub use explain::Report;
pub use kiln_graph::{DType, Graph, Tensor, Type};
pub use kiln_machine::Machine;
pub use kiln_plan::{Contract, Numerics, Plan};
pub use kiln_runtime::{CUDA_ALIGN, Device, MAX_THREADS, Param, RuntimeError, Session};
pub use kiln_torch_host::{Limits, Torch, child::serve as serve_import};
pub use model::Model;
pub use program::Program;
pub use torch::import_in_child;
