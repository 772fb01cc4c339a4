//! Errors of reading and verifying a plan.
use crate::BufferId;

/// What is wrong with a plan or its text.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The text is not that of a plan.
    #[error("plan text, line {line}: {what}")]
    Parse {
        /// From 1.
        line: usize,
        /// A clause for the user.
        what: String,
    },
    /// A kernel violates an invariant.
    #[error("kernel `{kernel}`: {what}")]
    Kernel {
        /// The kernel's name.
        kernel: String,
        /// A clause for the user.
        what: String,
    },
    /// A buffer violates an invariant.
    #[error("{buffer}: {what}")]
    Buffer {
        /// The buffer.
        buffer: BufferId,
        /// A clause for the user.
        what: String,
    },
    /// An output of the plan violates an invariant.
    #[error("output {index}: {what}")]
    Output {
        /// Position in [`Plan::outputs`](crate::Plan::outputs).
        index: usize,
        /// A clause for the user.
        what: String,
    },
}
