//! What any stage asks of hardware, as plain data: what code is generated for ([`Arch`]), one description a machine ([`Machine`]), what
//! every GPU of NVIDIA has ([`isa`]), and the host's caches ([`Caches`]).
//!
//! Takes: nothing but JSON. Gives: figures with units and sources; `machines/*.json` come with Kiln.
//! Never: what is computed from them, which is each stage's own; a second place for any of these figures (`kiln-xtask tests` looks).
//!
//! To add a machine: a file in `machines/`, a line in `machines.rs`. To add a target: [`Arch`], with what it can do, and a machine for it.
mod arch;
mod caches;
mod error;
pub mod isa;
mod machine;
mod machines;
mod model;

pub use arch::{Arch, NoSuchArch};
pub use caches::Caches;
pub use error::MachineError;
pub use machine::{Clusters, Limits, Machine, Rates, Templates, Units};
pub use machines::{machine, machines, names, of_device};
pub use model::{Attention, Engines, Gemm, Large, Library, Rows, Simt, Warpgroups};
