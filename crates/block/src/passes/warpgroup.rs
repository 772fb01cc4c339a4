//! Lowers a plain matmul, `for k { load; load; dot }`, to a warp-specialised one by warpgroups, in passes that each
//! give a program of their own:
//! - [`maps`] (pass `tensor_maps`): tiles accessed by pointers become tiles of tensor-map descriptors, where the
//!   pointers address strided arrays;
//! - [`persistent`] (passes `persistent` and `clusters`): a persistent kernel loops over tiles; the two blocks of a
//!   cluster take tiles one below the other;
//! - [`roles`] (pass `roles`): a producer copies tiles into a ring of stages, consumers multiply and compute the
//!   epilogue.
//!
//! Each pass takes a verified program of the upper level and gives one that can be verified, printed and interpreted,
//! or refuses with a reason. Lowering writes descriptors itself and runs the other passes. Nothing is reordered: sums
//! are of the same matmuls in the same order of K, in the accuracy of the instruction.
pub mod back_to_back_dots;
mod copy;
pub mod form;
mod longest_first;
pub mod maps;
pub mod persistent;
mod ring;
pub mod roles;
mod scaled_differences;
pub mod slice;
mod uniform;

use super::split;
use crate::{BlockProgram, Inst};
use kiln_machine::{Machine, isa};
pub use persistent::Launch;
pub use roles::WarpRoles;

/// Bytes of shared memory reserved for barriers.
const BARRIERS: usize = 1024;
/// Bytes of shared memory that a block has for tiles.
pub fn memory(m: &Machine) -> usize {
    m.limits.shared_per_block.saturating_sub(BARRIERS)
}
/// The same, where two blocks share a multiprocessor.
pub fn memory_of_two(m: &Machine) -> usize {
    (m.limits.shared_per_multiprocessor / 2).saturating_sub(isa::SHARED_RESERVED + BARRIERS)
}

/// Sums that a thread has room for: half of its registers.
pub fn max_sums(m: &Machine) -> usize {
    m.limits.registers_per_thread.div_ceil(2)
}

/// Why a pass does not apply to a program.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// Roles for a program of tiles as a person writes it. Of chained matmuls one loop becomes several where its masks
/// leave whole iterations as they are, and instances with many iterations start first.
pub fn in_roles(k: &BlockProgram, m: &Machine) -> Result<BlockProgram, Refusal> {
    if !back_to_back_dots::has_back_to_back_dots(k) {
        return roles::run(k, None, m);
    }
    let loops: Vec<Inst> = back_to_back_dots::recognise(k)?.passes.iter().map(|p| p.inst).collect();
    let ordered = scaled_differences::run(&longest_first::run(k, &loops));
    match loops.len() {
        1 => roles::back_to_back_dots::run(&split::run(&ordered), None, m),
        _ => roles::back_to_back_dots::run(&ordered, None, m),
    }
}

/// All passes, for a GPU that has warpgroups.
pub fn run(k: &BlockProgram, m: &Machine) -> Result<BlockProgram, Refusal> {
    let mapped = maps::run(k)?;
    let walking = persistent::run(&mapped, Launch::of(&mapped, m.units.multiprocessors))?;
    if back_to_back_dots::has_back_to_back_dots(&walking) {
        roles::back_to_back_dots::run(&walking, None, m)
    } else {
        roles::run(&walking, None, m)
    }
}
