//! Software pipelines of loops that multiply: what an iteration multiplies is copied into shared memory while earlier
//! iterations compute, and warpgroups multiply from there.
//!
//! Takes a program of the upper level of any form, with dots anywhere in it; gives one whose dots are `wgmma`s. Where
//! [`super::warpgroup::roles`] applies, a warp of its own copies, and dots need fewer registers and barriers; this pass
//! is for all other programs: operands that are computed or read through indices, several dots in a loop, sums that are
//! rescaled.
//! 1. [`offsets`] makes pointers that a loop moves numbers, so that addresses of later iterations are a sum.
//! 2. [`plan`] says which operands lie in shared tiles and which in registers, and which loads are copied ahead.
//! 3. [`writer`] rewrites the program, and [`stages`] its loops. A loop of `S` stages becomes
//! ```text
//! copies of the first D iterations, a group each
//! for i { wait for the group of i;  barrier;  copies of iteration i + D;  body, which reads stage i mod S }
//! ```
//! The barrier also says that all warps are done with the iteration before, whose stage the copies write next. Where a
//! loop carries sums from dot to dot, those of an iteration are in flight while the next one begins, and `D` is `S - 2`.
//! So operands that are computed and stored overlap dots ([`plan::Reuse`]); then copies start behind the barrier of the first
//! stored operand, and `D` is `S - 1`.
//!
//! 4. [`prefetch`] loads what is left, and small, an iteration ahead into registers.
//!
//! Sums are of the same products in the same order of K, in the accuracy of the instruction.
mod addresses;
mod plan;
mod prefetch;
mod stages;
mod writer;

use super::offsets;
use super::warpgroup::Refusal;
use crate::BlockProgram;
use kiln_machine::Machine;

/// The program with warpgroup dots and copies ahead.
///
/// # Errors
/// Why no dot of it is for warpgroups.
pub fn run(k: &BlockProgram, m: &Machine) -> Result<BlockProgram, Refusal> {
    if !m.arch.is_gpu() {
        return Err(Refusal(format!("{} has no shared memory", m.name)));
    }
    let k = offsets::moved_blocks(k);
    let plan = plan::Plan::of(&k, m)?;
    Ok(prefetch::loads_ahead(&writer::write(&k, &plan)))
}
