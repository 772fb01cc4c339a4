//! `kiln doctor`: what Kiln can use on this machine, what is missing, and how to install it.
use crate::{assembler, ptxas::find_ptxas};
use kiln_cpu::{Level, VARIABLE};
use kiln_runtime::cuda;
use serde::Serialize;
use std::process::Command;

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
            "optional: put CUDA's or PyTorch's libcublasLt.so on the library path; without it, Kiln's own kernels run \
             all matmuls",
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
    let level = Level::chosen().map_err(|e| e.to_string())?;
    let all: Vec<&str> = Level::here().iter().map(|l| l.name()).collect();
    let why = if level == Level::best() { String::new() } else { format!(" ({VARIABLE})") };
    Ok(format!("{}; instruction sets {}; uses {level}{why}", processor_name(), all.join(", ")))
}

/// The processor's name, and how many threads of it there are.
pub(crate) fn processor_name() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")).and_then(|l| l.split_once(':'));
    format!("{} threads, {}", crate::cores::cores(), name.map_or("unknown", |n| n.1.trim()))
}

fn ptxas() -> Result<String, String> {
    let path = find_ptxas().ok_or("not found")?;
    let out = Command::new(&path).arg("--version").output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let version = text.lines().find(|l| l.contains("release")).unwrap_or("unknown version").trim();
    Ok(format!("{} ({version})", path.display()))
}
