//! Code generation: block IR to LLVM, and from there to PTX or to host machine code. The only user of LLVM.
//!
//! Takes: verified block programs. Gives: PTX text with its launch shape ([`nvptx`]), or functions in memory
//! ([`host`]). Never: tensors, plans, devices; nothing is launched here.
pub mod host;
pub mod nvptx;

/// What went wrong while generating code.
#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    #[error("kernel {kernel}: {what} is not supported on {target}")]
    Unsupported { kernel: String, target: String, what: String },
    #[error("kernel {kernel}: {what}")]
    Defect { kernel: String, what: String },
    #[error("kernel {kernel}: LLVM: {what}")]
    Llvm { kernel: String, what: String },
}
