//! Kiln as a library: load a model, compile it, run it, explain it, time it.
//!
//! ```
//! use kiln::{Engine, Settings, Tensor, Type};
//! # fn main() -> Result<(), kiln::Error> {
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../graphs/softmax.kiln");
//! // A `.pt2` of torch.export, an artifact of `kiln compile`, or a text graph.
//! let engine = Engine::open(path.as_ref(), &Settings::default())?;
//! let dims = &engine.program().input_dims()[0];
//! let shape: Vec<usize> = dims.shape.iter().map(|n| n.unwrap_or(4)).collect();
//! // Compiled at the first run with inputs of these sizes.
//! let outputs = engine.run(&[Tensor::zeros(Type::new(kiln::DType::F32, shape))])?;
//! assert!(outputs[0].get_f64(0) > 0.0);
//! # Ok(()) }
//! ```
//!
//! [`Model`] and [`compile()`] are the same step by step: the graph, its plan, and a session.
//!
//! Each stage is a crate of its own; this one calls them in order and turns their results into reports. It also has
//! artifacts, constraints and measuring ([`mod@bench`], [`tune`]). Modules that only the `kiln` command and tests use
//! are left out of this documentation and may change.
#![warn(missing_docs)]
pub mod accuracy;
pub mod artifact;
mod assembler;
pub mod bench;
mod bounds;
pub mod cache;
pub mod calibrate;
pub mod compile;
pub mod constraints;
mod cores;
pub mod cubin;
pub mod diff;
mod digest;
pub mod doctor;
#[doc(hidden)]
pub mod eager;
pub mod engine;
pub mod error;
pub mod explain;
#[doc(hidden)]
pub mod facts;
#[doc(hidden)]
pub mod html;
pub mod io;
pub mod kernels;
pub mod launches;
mod measurements;
pub mod model;
mod op_names;
mod open;
#[doc(hidden)]
pub mod parts;
#[doc(hidden)]
pub mod plot;
pub mod program;
pub mod proof;
pub mod ptxas;
mod recognise;
#[doc(hidden)]
pub mod select;
pub mod snapshot;
pub mod stages;
pub mod sweep;
mod torch;
pub mod trace;
pub mod tune;
pub mod why;
pub mod why_form;
pub mod why_schedule;
mod workers;
mod wrap;

pub use compile::{CompileOptions, Compiled, DeviceKind, Target, compile};
pub use engine::{Binding, Engine, Settings};
pub use error::Error;
pub use explain::Report;
pub use kiln_graph::{DType, Graph, Tensor, Type};
pub use kiln_machine::Machine;
pub use kiln_plan::{Contract, Numerics, Plan};
pub use kiln_runtime::{CUDA_ALIGN, Device, Feed, MAX_THREADS, Param, RuntimeError, Session, Storage};
pub use kiln_torch_host::{Limits, Torch, child::serve as serve_import};
pub use model::Model;
pub use open::input_names;
pub use program::Program;
pub use torch::import_in_child;
