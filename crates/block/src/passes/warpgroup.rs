//! From a plain product, `for k { load; load; dot }`, to one by warpgroups, in steps that each give a program of its own:
//! - [`maps`]: tiles read and written by pointers become tiles of descriptors, where the pointers walk strided arrays;
//! - [`persistent`]: blocks stay and walk over tiles, two of a cluster one below the other;
//! - [`roles`]: a producer copies tiles into a ring of stages, consumers multiply and finish the elements.
//!
//! Each step takes a verified program of the upper level and refuses with a reason what it does not fit. Nothing is
//! rearranged: sums are of the same products in the same order of K, in the accuracy of the instruction.
mod copy;
pub mod form;
pub mod maps;
pub mod persistent;
mod ring;
pub mod roles;
pub mod slice;
mod uniform;

use crate::Kernel;
pub use persistent::Launch;
pub use roles::Crew;

/// Multiprocessors that share the tiles: an H100 or H200's.
pub const PROCESSORS: usize = 132;
/// Shared memory of a block, less what barriers take.
pub const MEMORY: usize = (227 << 10) - 1024;

/// Why a program stays as it is.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// All steps, for a GPU of `sm_90a`.
pub fn run(k: &Kernel) -> Result<Kernel, Refusal> {
    let mapped = maps::run(k)?;
    let walking = persistent::run(&mapped, Launch::of(&mapped, PROCESSORS))?;
    roles::run(&walking, None)
}
