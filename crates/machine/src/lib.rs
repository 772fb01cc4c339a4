//! Hardware facts as plain data: compilation targets ([`Arch`]), one description per machine ([`Machine`]), constants
//! of all NVIDIA GPUs ([`isa`]), and the host's cache blocking ([`Caches`]).
//!
//! Takes: machine descriptions as JSON. Gives: figures with units and sources; `machines/*.json` are built in.
//! Never: quantities derived from the figures, which each stage computes itself.
//!
//! All hardware figures are in `machines/*.json`, with their sources, and nowhere else: `kiln-xtask tests` searches the
//! other crates for such figures, and the cost models of lowering for fitted numbers. Stages take them from the
//! `Machine` that is passed to them, and express thresholds as multiples of its number of multiprocessors. Tuned
//! figures (weights of cost models) are sections of the description too, since they were measured on one GPU. Those of
//! the assembler are in a file for its version ([`ptxas()`]).
//!
//! To add a machine: a file in `machines/` and its line in `machines.rs`; it is selected at run time by the device name
//! that the driver reports. A device without a description of its own gets the one of its target, with the properties
//! that the driver reports. To add a target: a variant of [`Arch`] with its features, and a machine for it.
mod arch;
mod caches;
mod error;
pub mod isa;
mod machine;
mod machines;
mod model;
mod ptxas;

pub use arch::{Arch, NoSuchArch};
pub use caches::Caches;
pub use error::MachineError;
pub use machine::{Clusters, Limits, Machine, Rates, Templates, Units};
pub use machines::{machine, machines, names, of_device};
pub use model::{
    Attention, Beside, Engines, Gemm, Handwritten, Large, Library, Nests, Pipelines, Rows, Simt, Tiles,
    WarpgroupAttention, Warpgroups,
};
pub use ptxas::{InstructionCounts, LoopRegisters, Ptxas, RegisterFit, Registers, ptxas};
