//! Errors of reading and verifying a plan.
use crate::BufferId;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error("plan text, line {line}: {what}")]
    Parse { line: usize, what: String },
    #[error("kernel `{kernel}`: {what}")]
    Kernel { kernel: String, what: String },
    #[error("{buffer}: {what}")]
    Buffer { buffer: BufferId, what: String },
    #[error("output {index}: {what}")]
    Output { index: usize, what: String },
}
