//! What can be wrong with a block program.

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BlockError {
    #[error("line {line}, column {column}: {what}")]
    Parse { line: usize, column: usize, what: String },
    #[error("{op}: {what}")]
    Op { op: String, what: String },
    #[error("kernel {kernel}: {what}")]
    BlockProgram { kernel: String, what: String },
}
