//! Static analysis of a kernel's integers, pointers and masks.
//!
//! [`analyse`] walks a verified kernel once. [`affine`] gives affine forms over block coordinates (`base + 64*i + j`),
//! from which code generation derives strides, uniform base addresses and tail masks; [`axis`] gives contiguity and
//! divisibility along each axis, which hold through gathers and remainders and decide the width of memory accesses;
//! [`groups`] finds pointers that are contiguous across two axes. Never changes a kernel, and knows nothing of threads.
mod accesses;
pub mod affine;
pub mod axis;
pub(crate) mod bounds;
mod ends;
pub mod footprint;
mod groups;
mod loops;
mod multiples;
mod readers;
mod relevance;
mod run;
pub mod strided;
pub(crate) mod unwrapped;
mod values;
mod writes;

pub use accesses::Accesses;
pub use affine::Affine;
pub use ends::loop_ends;
pub use footprint::{Coverage, Footprints, Unfollowed};
pub use groups::APART;
pub(crate) use loops::without_hint;
pub(crate) use readers::Readers;
pub use relevance::{Relevance, drop_irrelevant, relevance};
pub use run::Axis;
pub use strided::{Polynomial, Strided, StridedForms};
pub use unwrapped::unwrapped;
pub use values::{Analysis, Bounds, Def, analyse};
pub use writes::Writes;
