//! What can go wrong, as a user reads it: one sentence, where in the model, what to do.
use std::path::Path;

/// An error as a user reads it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The call itself is wrong: exit status 2.
    #[error("{what}")]
    Usage {
        /// In one sentence.
        what: String,
        /// What to do; may be empty.
        help: String,
    },
    /// The work failed: exit status 1.
    #[error("{what}")]
    Failed {
        /// In one sentence.
        what: String,
        /// What to do; may be empty.
        help: String,
    },
    /// Several problems of one model, each with its own line.
    #[error("{what}")]
    Model {
        /// In one sentence.
        what: String,
        /// In the order of the source.
        problems: Vec<Problem>,
    },
    /// A device or a run failed; the sentence has its remedy.
    #[error(transparent)]
    Runtime(#[from] kiln_runtime::RuntimeError),
}

/// One problem in a model's source.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    /// In one sentence.
    pub what: String,
    /// `file:line` in the model's own source, or empty.
    pub line: String,
    /// Module path, or empty.
    pub module: String,
    /// What to do; may be empty.
    pub help: String,
}

impl Error {
    /// The call is wrong; `help` says how to write it.
    pub fn usage(what: impl Into<String>, help: impl Into<String>) -> Error {
        Error::Usage { what: what.into(), help: help.into() }
    }
    /// The work failed; `help` says what to do.
    pub fn failed(what: impl Into<String>, help: impl Into<String>) -> Error {
        Error::Failed { what: what.into(), help: help.into() }
    }
    /// Reading `path` failed.
    pub fn reading(path: &Path, e: &std::io::Error) -> Error {
        let help = match e.kind() {
            std::io::ErrorKind::NotFound => "check the path",
            std::io::ErrorKind::PermissionDenied => "check the file's permissions",
            _ => "check the file and its disk",
        };
        Error::failed(format!("cannot read {}: {}", path.display(), plain(e)), help)
    }
    /// Writing `path` failed.
    pub fn writing(path: &Path, e: &std::io::Error) -> Error {
        Error::failed(
            format!("cannot write {}: {}", path.display(), plain(e)),
            "choose a folder that exists and is writable, on a disk with space left",
        )
    }
    /// There is not enough memory; the sentence has its remedy.
    pub fn memory(e: kiln_graph::memory::NoMemory) -> Error {
        Error::failed(e.to_string(), "")
    }
    /// What to do about it.
    pub fn help(&self) -> &str {
        match self {
            Error::Usage { help, .. } | Error::Failed { help, .. } => help,
            Error::Model { .. } | Error::Runtime(_) => "",
        }
    }
    /// Of the command that ends with it: 2 for wrong usage, else 1.
    pub fn exit_status(&self) -> u8 {
        match self {
            Error::Usage { .. } => 2,
            Error::Failed { .. } | Error::Model { .. } | Error::Runtime(_) => 1,
        }
    }
}

/// An I/O error without the operating system's number.
fn plain(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}
