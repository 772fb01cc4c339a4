//! Locates libtorch and the plugin on disk. Loads nothing.
use crate::error::TorchError;
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

const PLUGIN: &str = "libkiln_torchscript.so";

/// The folder that contains libtorch's `lib`. Tries in order: the environment variable `LIBTORCH`; `.deps/libtorch` in
/// the current folder, the executable's folder and all their parents; the torch package of `python3`.
pub fn find_libtorch() -> Result<PathBuf, TorchError> {
    let mut looked_at = vec![];
    let mut good = |p: PathBuf, origin: &str| {
        let found = p.join("lib/libtorch_cpu.so").is_file();
        looked_at.push(format!("{origin}{}", p.display()));
        found.then_some(p)
    };
    if let Some(p) = env::var_os("LIBTORCH").and_then(|p| good(p.into(), "LIBTORCH=")) {
        return Ok(p);
    }
    for start in starts() {
        for folder in start.ancestors() {
            let p = folder.join(".deps/libtorch");
            if p.exists()
                && let Some(p) = good(p, "")
            {
                return Ok(p);
            }
        }
    }
    if let Some(p) = python_torch().and_then(|p| good(p, "python3's ")) {
        return Ok(p);
    }
    looked_at.push(".deps/libtorch in the current folder and above".into());
    looked_at.push("python3 -c 'import torch'".into());
    Err(TorchError::NoLibtorch { looked_at })
}

/// The plugin's file. Tries in order: the environment variable `KILN_TORCHSCRIPT_PLUGIN`; the executable's folder, its
/// parent (for test binaries) and the parent's `lib`; the target folder of Cargo, then of a checkout that contains the
/// current folder.
pub fn find_plugin() -> Result<PathBuf, TorchError> {
    let mut candidates: Vec<PathBuf> = env::var_os("KILN_TORCHSCRIPT_PLUGIN").map(PathBuf::from).into_iter().collect();
    if let Some(exe) = executable() {
        candidates.extend(exe.ancestors().skip(1).take(2).map(|f| f.join(PLUGIN)));
        candidates.extend(exe.ancestors().nth(2).map(|f| f.join("lib").join(PLUGIN)));
    }
    if let Some(target) = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from) {
        candidates.extend(["release", "debug"].map(|p| target.join(p).join(PLUGIN)));
    }
    for start in env::current_dir().into_iter() {
        for folder in start.ancestors().filter(|f| f.join("Cargo.toml").is_file()) {
            candidates.extend(["release", "debug"].map(|p| folder.join("target").join(p).join(PLUGIN)));
        }
    }
    let found = candidates.iter().find(|p| p.is_file()).cloned();
    found
        .ok_or_else(|| TorchError::NoPlugin { looked_at: candidates.iter().map(|p| p.display().to_string()).collect() })
}

fn executable() -> Option<PathBuf> {
    env::current_exe().ok().map(|p| p.canonicalize().unwrap_or(p))
}

fn starts() -> Vec<PathBuf> {
    env::current_dir().into_iter().chain(executable()).collect()
}

/// The folder from which `python3` would import torch, found without importing it.
fn python_torch() -> Option<PathBuf> {
    let script = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])";
    let run = Command::new("python3").args(["-c", script]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(run.stdout).ok()?;
    let path = Path::new(text.trim());
    (run.status.success() && !text.trim().is_empty()).then(|| path.to_path_buf())
}
