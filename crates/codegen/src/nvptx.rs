//! NVIDIA GPUs: a block program with layouts as PTX.
use crate::CodegenError;
use kiln_block::Kernel;
use serde::{Deserialize, Serialize};

/// Architectures by name: `sm_80`, `sm_90a`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Arch {
    #[serde(rename = "sm_80")]
    Sm80,
    #[serde(rename = "sm_90a")]
    Sm90a,
}

/// A kernel's PTX and how it is launched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Ptx {
    /// Entry point.
    pub name: String,
    pub text: String,
    pub grid: [usize; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Dynamic shared memory in bytes.
    pub shared: usize,
    pub cluster: usize,
}

/// Runs the layout passes on a copy of the kernel and generates PTX.
pub fn compile(kernel: &Kernel, arch: Arch) -> Result<Ptx, CodegenError> {
    let _ = arch;
    Err(CodegenError::Unsupported { kernel: kernel.name.clone(), target: "PTX".into(), what: "everything".into() })
}
