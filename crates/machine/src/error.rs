//! Errors of machine descriptions.
use crate::Arch;

/// What is wrong with a machine description.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("not a machine description: {0}")]
    Json(#[from] serde_json::Error),
    /// The format before descriptions had a target (`arch`).
    #[error("the description was written by an earlier version of Kiln and lacks fields that planning needs now")]
    Old,
    #[error("{0} is not positive")]
    NotPositive(String),
    #[error("the description is for {arch} but lacks {section}")]
    Missing { arch: Arch, section: &'static str },
}
