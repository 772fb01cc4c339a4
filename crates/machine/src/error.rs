//! What can be wrong with a description.
use crate::Arch;

#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error("it is no machine description: {0}")]
    Json(#[from] serde_json::Error),
    /// Written before a description had a target.
    #[error("it was written by an earlier version of Kiln, and lacks what plans are made with now")]
    Old,
    #[error("{0} is not positive")]
    NotPositive(String),
    #[error("it is of {arch}, and says nothing of {section}")]
    Missing { arch: Arch, section: &'static str },
}
