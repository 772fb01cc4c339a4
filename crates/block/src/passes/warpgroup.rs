//! From a plain matmul, `for k { load; load; dot }`, to one by warpgroups, in steps that each give a program of its own:
//! - [`maps`]: tiles read and written by pointers become tiles of descriptors, where the pointers walk strided arrays;
//! - [`persistent`]: blocks stay and walk over tiles, two of a cluster one below the other;
//! - [`roles`]: a producer copies tiles into a ring of stages, consumers multiply and finish the elements.
//!
//! Each step takes a verified program of the upper level and refuses with a reason what it does not fit. Nothing is
//! rearranged: sums are of the same matmuls in the same order of K, in the accuracy of the instruction.
mod copy;
pub mod form;
pub mod maps;
pub mod persistent;
mod ring;
pub mod roles;
pub mod slice;
mod uniform;

use crate::Kernel;
use kiln_machine::Machine;
pub use persistent::Launch;
pub use roles::Crew;

/// Bytes of shared memory that barriers take.
const BARRIERS: usize = 1024;
/// Bytes of shared memory that a block has for tiles.
pub fn memory(m: &Machine) -> usize {
    m.limits.shared_per_block.saturating_sub(BARRIERS)
}

/// Why a program stays as it is.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// All steps, for a GPU that has warpgroups.
pub fn run(k: &Kernel, m: &Machine) -> Result<Kernel, Refusal> {
    let mapped = maps::run(k)?;
    let walking = persistent::run(&mapped, Launch::of(&mapped, m.units.multiprocessors))?;
    roles::run(&walking, None, m)
}
