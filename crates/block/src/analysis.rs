//! What is known about a kernel's integers, pointers and masks without running it.
//!
//! [`analyse`] walks a verified kernel once. [`affine`] has forms over block coordinates (`base + 64*i + j`), from which code
//! generation sees strides, uniform base addresses and masked tails.
//! Never: changes a kernel, knows about threads.
pub mod affine;

pub use affine::{Affine, Analysis, Bounds, analyse};
