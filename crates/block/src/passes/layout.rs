//! Gives every block value a layout, and inserts `convert_layout` where two uses disagree.
//!
//! Takes an upper-level kernel, gives the same program with [`crate::ValueData::layout`] set on everything that threads
//! hold.
//! 1. Values that must share a layout (pointwise operands, carried values, accumulators) form groups ([`groups`]).
//! 2. Each group takes the layout of its heaviest anchor: a matmul, else its largest memory access ([`anchors`],
//!    [`crate::layout::choose()`]).
//!    Layouts propagate through reshapes, permutations, reductions and broadcasts to groups without a stronger
//!    preference ([`spread`]).
//! 3. The program is rebuilt ([`rebuild`]): what depends on thread numbers alone (indices, masks, pointers, constants)
//!    is rematerialised in whatever layout a use needs; the rest is converted.
//! 4. Loads of windows are marked as such ([`windows`]).
//!
//! Never fails on a verified kernel; ops of the lower level pass through unchanged.
pub mod anchors;
mod groups;
mod rebuild;
mod spread;
mod windows;

pub use crate::layout::choose::SMALL;
pub use windows::WINDOW;

use crate::BlockProgram;
use crate::analysis::analyse;

/// The kernel with layouts.
pub fn assign(kernel: &BlockProgram) -> BlockProgram {
    let facts = analyse(kernel);
    let groups = groups::Groups::of(kernel);
    let natural = spread::natural(kernel, &facts, &groups);
    let mut placed = rebuild::rebuild(kernel, &facts, &groups, natural);
    windows::mark(&mut placed);
    placed
}

#[cfg(test)]
mod tests;
