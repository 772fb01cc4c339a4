//! What is known about a kernel's integers, pointers and masks without running it.
//!
//! [`analyse`] walks a verified kernel once. [`affine`] has forms over block coordinates (`base + 64*i + j`), from which code
//! generation sees strides, uniform base addresses and masked tails; [`axis`] has contiguity and divisibility along each
//! axis, which survive gathers and remainders, and decide the width of accesses.
//! Never: changes a kernel, knows about threads.
pub mod affine;
pub mod axis;
mod loops;
mod run;
mod values;

pub use affine::Affine;
pub use run::Axis;
pub use values::{Analysis, Bounds, Def, analyse};
