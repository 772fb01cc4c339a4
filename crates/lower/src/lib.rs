//! Lowers kernels of a plan to block programs.
//!
//! Takes: a kernel of a plan. Gives: its steps, which are block programs and library calls.
//! Never decides which kernels exist (the plan does), nor layouts of registers and threads (code generation does).
//!
//! The folders are what happens to a kernel, in order; each uses only those before it:
//!
//! - [`scalar`]: its body becomes a scalar program over a space;
//! - [`nest`]: what is iterated, accessed and reduced;
//! - [`schedule`]: steps of schedules, and when they fit;
//! - [`emit`]: block programs of nests;
//! - [`matmul`], [`attention`]: block programs of what multiplies;
//! - [`handwritten`]: launches of programs that people wrote, with elementwise ops around them;
//! - [`dispatch`]: the family of programs that computes a kernel by its schedule;
//! - [`cost`]: prices of schedules; [`select`]: the one that a kernel gets.
mod attention;
mod cost;
mod dispatch;
mod emit;
mod error;
mod handwritten;
mod matmul;
mod nest;
mod scalar;
mod schedule;
mod select;
mod steps;

pub use cost::{features as facts, price, tile_layout};
pub use error::LowerError;
pub use handwritten::{bound, launch_access};
pub use select::candidates::{
    Chosen, PROGRAMS, Scheduled, chosen, chosen_among, fits, price_among, priced, scheduled, schedules,
};
pub use select::forms::{Epilogue, PricedForm, forms};
pub use select::neighbours::{neighbours, relaunched};

use kiln_machine::{Arch, Machine};
use kiln_plan::Kernel;
use kiln_plan::exec::Steps;

/// Lowers one kernel for the default machine of a target.
pub fn lower(kernel: &Kernel, arch: Arch) -> Result<Steps<kiln_block::BlockProgram>, LowerError> {
    lower_at(kernel, arch.machine())
}

/// Lowers one kernel. On the host: loops over blocks that fit the L1 cache, and library matmuls. On a GPU: block
/// programs whose sizes follow from the machine. Steps that call a GPU's library come with alternative steps without it
/// (`otherwise`).
pub fn lower_at(kernel: &Kernel, machine: &Machine) -> Result<Steps<kiln_block::BlockProgram>, LowerError> {
    select::candidates::lowered(kernel, machine).map(|found| found.steps)
}
