//! Errors of the installation (libtorch or plugin missing, wrong version) and of the model.
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

pub use kiln_aten::{ImportErrors, Problem};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum TorchError {
    #[error(
        "a TorchScript archive needs libtorch, which was not found (looked at: {}); run scripts/setup, or set LIBTORCH \
         to the `torch` folder of a Python environment with torch 2.11",
        looked_at.join(", ")
    )]
    NoLibtorch { looked_at: Vec<String> },
    #[error(
        "a TorchScript archive needs the plugin libkiln_torchscript.so, which was not found (looked at: {}); build it \
         with `cargo build --release`, which puts it next to `kiln`, or set KILN_TORCHSCRIPT_PLUGIN to its path",
        looked_at.join(", ")
    )]
    NoPlugin { looked_at: Vec<String> },
    #[error("cannot open {}: {what}; check that libtorch and the plugin are both built for torch 2.11", path.display())]
    Open { path: PathBuf, what: String },
    #[error(
        "the plugin {} has ABI version {found}, but {wanted} is needed; rebuild it with `cargo build --release`",
        path.display()
    )]
    Version { path: PathBuf, found: u32, wanted: u32 },
    #[error("the TorchScript plugin sent an invalid reply ({0}); rebuild it with `cargo build --release`")]
    Plugin(String),
    #[error(
        "cannot pass the path {} to libtorch: it is not UTF-8; rename the file, or link to it under another name",
        path.display()
    )]
    Path { path: PathBuf },
    #[error("{0}")]
    Memory(#[from] kiln_graph::memory::NoMemory),
    #[error(
        "importing {} took more than {seconds} s; a TorchScript archive is a program, and importing runs it: if you \
         trust it, allow more with --import-seconds", path.display()
    )]
    TooLong { path: PathBuf, seconds: f64 },
    #[error(
        "importing {} took more than {:.1} GiB of memory; if you trust the archive, allow more with --import-memory",
        path.display(), *bytes as f64 / (1u64 << 30) as f64
    )]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error(
        "the process that imports {} failed: {what}; export the model again, or report this with it",
        path.display()
    )]
    Child { path: PathBuf, what: String },
    /// The model or its inputs.
    #[error("{0}")]
    Model(ImportErrors),
}

/// The path as UTF-8, which libtorch requires.
pub(crate) fn utf8(path: &Path) -> Result<&str, TorchError> {
    path.to_str().ok_or_else(|| TorchError::Path { path: path.into() })
}
