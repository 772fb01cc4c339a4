//! `kiln doctor`: what Kiln can use on this machine, what is missing, and how to install it.
use crate::assembler;
use kiln_cpu::{Level, VARIABLE};
use kiln_runtime::cuda;
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// One thing that Kiln needs or can use.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub what: String,
    /// Whether it was found.
    pub found: bool,
    /// Version or path; or why it is missing.
    pub detail: String,
    /// How to get it; empty if found.
    pub remedy: String,
}

fn finding(what: &str, r: Result<String, String>, remedy: &str) -> Finding {
    let found = r.is_ok();
    let remedy = if found { String::new() } else { remedy.into() };
    Finding { what: what.into(), found, detail: r.unwrap_or_else(|e| e), remedy }
}

/// Findings as `kiln doctor` prints them: a line each, and what to do about what is missing.
pub fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for f in findings {
        text += &format!("{} {:12} {}\n", if f.found { "ok     " } else { "missing" }, f.what, f.detail);
        if !f.remedy.is_empty() {
            text += &format!("                     {}\n", f.remedy);
        }
    }
    text
}

/// Looks for everything Kiln can use.
pub fn findings() -> Vec<Finding> {
    vec![
        finding("processor", processor(), "unset KILN_CPU; Kiln then uses the best instruction set of this processor"),
        finding("LLVM", Ok("22, built in (X86, NVPTX)".into()), ""),
        finding(
            "CUDA device",
            cuda::driver().map_err(|e| e.to_string()).and_then(|d| {
                let list: Vec<String> = d
                    .devices
                    .iter()
                    .map(|g| format!("{} ({}, {} SMs, {} GiB)", g.name, g.arch(), g.multiprocessors, g.memory >> 30))
                    .collect();
                if list.is_empty() {
                    Err("the driver finds no GPU".into())
                } else {
                    Ok(format!("driver {}: {}", d.version, list.join("; ")))
                }
            }),
            "on a machine with an NVIDIA GPU, install driver 580 or later; without a GPU, Kiln runs on the CPU",
        ),
        finding(
            "cuBLASLt",
            cuda::library_version().ok_or("not found".into()),
            "optional: put CUDA's or PyTorch's libcublasLt.so on the library path; without it, Kiln's own kernels run all matmuls",
        ),
        finding(
            "libtorch",
            crate::torch::torch()
                .map(|t| format!("{} (plugin {})", t.libtorch().display(), t.plugin().display()))
                .map_err(|e| e.to_string()),
            "run scripts/setup, or set LIBTORCH to a libtorch 2.11 folder; needed only for .pt archives and fallbacks",
        ),
        finding("ptxas", ptxas(), "run scripts/setup; needed only for register and spill facts"),
        finding("PTX assembler", Ok(assembler::finding()), ""),
    ]
}

/// The processor's name, its instruction sets that Kiln has code for, and which of them Kiln uses.
fn processor() -> Result<String, String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split_once(':'));
    let level = Level::chosen().map_err(|e| e.to_string())?;
    let all: Vec<&str> = Level::here().iter().map(|l| l.name()).collect();
    let why = if level == Level::best() { String::new() } else { format!(" ({VARIABLE})") };
    let cores = crate::cores::cores();
    let name = name.map_or("unknown", |n| n.1.trim());
    Ok(format!("{cores} threads, {name}; instruction sets {}; uses {level}{why}", all.join(", ")))
}

/// The ptxas in `.deps` of a parent folder of the current folder, or one that [`installed_ptxas`] finds.
pub fn find_ptxas() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    let local = here.ancestors().map(|f| f.join(PTXAS)).find(|p| p.is_file());
    local.or_else(installed_ptxas)
}

/// Where `scripts/setup` puts ptxas, in the root of the source tree.
const PTXAS: &str = ".deps/ptxas/bin/ptxas";

/// The ptxas in `.deps` of a parent folder of the program, in the Triton that is beside this process's PyTorch, or on the PATH. None is looked
/// for near the current folder: compiling runs this one unasked, and that folder may be anybody's.
pub(crate) fn installed_ptxas() -> Option<PathBuf> {
    let exe = std::env::current_exe().ok();
    let local = exe.iter().flat_map(|e| e.ancestors()).map(|f| f.join(PTXAS));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> =
        std::env::split_paths(&path).filter(|f| f.is_absolute()).map(|f| f.join("ptxas")).collect();
    let mapped = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    local.chain(beside_torch(&mapped)).chain(path).find(|p| p.is_file())
}

/// Triton's ptxas in the folder of Python packages that has the libtorch of this list of mapped files.
fn beside_torch(mapped: &str) -> Option<PathBuf> {
    let torch = mapped.lines().find_map(|l| Some(l[l.find('/')?..].split_once("/torch/lib/libtorch")?.0))?;
    Some(Path::new(torch).join("triton/backends/nvidia/bin/ptxas"))
}

fn ptxas() -> Result<String, String> {
    let path = find_ptxas().ok_or("not found")?;
    let out = Command::new(&path).arg("--version").output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let version = text.lines().find(|l| l.contains("release")).unwrap_or("unknown version").trim();
    Ok(format!("{} ({version})", path.display()))
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
