//! Plan kernels to block programs, by family.
//!
//! Takes: a kernel of a plan. Gives: steps of block programs (and library products on the host).
//! Never: which kernels exist (the plan's), registers or threads (code generation's).
use kiln_plan::{Kernel, exec::Steps};

/// What the block programs are for; sizes of blocks depend on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Loops over blocks that fit the first-level cache; products by a library.
    Host,
    /// Blocks spread over threads; `arch` is the compute capability times ten (80, 90).
    Gpu { arch: u32 },
}

#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// The kernel is right but no template takes it; the caller runs it by the interpreter.
    #[error("kernel {kernel} cannot be lowered: {why}")]
    Unsupported { kernel: String, why: String },
}

/// The steps of one kernel.
pub fn lower(kernel: &Kernel, target: Target) -> Result<Steps<kiln_block::Kernel>, LowerError> {
    let _ = target;
    Err(LowerError::Unsupported { kernel: kernel.name.clone(), why: "no template yet".into() })
}
