//! Finds ptxas, NVIDIA's assembler for PTX.
//!
//! Takes: the folders of this process and the PATH. Gives: the program's path. Never: runs it.
use std::path::{Path, PathBuf};

/// The ptxas in `.deps` of a parent folder of the current folder, or one that [`installed_ptxas`] finds.
pub fn find_ptxas() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    let local = here.ancestors().map(|f| f.join(PTXAS)).find(|p| p.is_file());
    local.or_else(installed_ptxas)
}

/// Where `scripts/setup` puts ptxas, in the root of the source tree.
const PTXAS: &str = ".deps/ptxas/bin/ptxas";

/// The ptxas in `.deps` of a parent folder of the program, in the Triton that is beside this process's PyTorch, or on
/// the PATH. None is looked for near the current folder: compiling runs this one unasked, and that folder may be
/// anybody's.
pub(crate) fn installed_ptxas() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok();
    let local = exe.iter().flat_map(|e| e.ancestors()).map(|f| f.join(PTXAS));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> =
        std::env::split_paths(&path).filter(|f| f.is_absolute()).map(|f| f.join("ptxas")).collect();
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    local.chain(beside_torch(&mapped)).chain(path).find(|p| p.is_file())
}

/// NVIDIA's disassembler beside a ptxas, in the Triton that is beside this process's PyTorch, or on the PATH.
pub(crate) fn find_nvdisasm(ptxas: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = std::env::split_paths(&path).map(|f| f.join("nvdisasm")).collect();
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let beside = [Some(ptxas.to_path_buf()), beside_torch(&mapped)].into_iter().flatten();
    beside.map(|p| p.with_file_name("nvdisasm")).chain(path).find(|p| p.is_file())
}

/// Triton's ptxas in the folder of Python packages that has the libtorch of this list of mapped files.
fn beside_torch(mapped: &str) -> Option<PathBuf> {
    let torch = mapped.lines().find_map(|l| Some(l[l.find('/')?..].split_once("/torch/lib/libtorch")?.0))?;
    Some(Path::new(torch).join("triton/backends/nvidia/bin/ptxas"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptxas_of_triton_is_beside_the_loaded_torch() {
        let mapped = "7f00-7f01 r--p 00000000 08:01 12   /usr/lib/libc.so.6\n\
                      7f02-7f03 r-xp 00000000 08:01 13   /env/site-packages/torch/lib/libtorch_cpu.so\n";
        let found = beside_torch(mapped);
        assert_eq!(found.as_deref(), Some(Path::new("/env/site-packages/triton/backends/nvidia/bin/ptxas")));
        assert_eq!(beside_torch("7f00-7f01 r--p 00000000 00:00 0\n"), None);
    }
}
