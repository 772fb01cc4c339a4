//! What can be wrong with a graph.
use crate::ValueId;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// An op's operands do not fit it.
    #[error("{value}: {op}: {what}")]
    Operand { value: ValueId, op: String, what: String },
    #[error("line {line}, column {column}: {what}")]
    Parse { line: usize, column: usize, what: String },
    #[error("{value}: {what}")]
    Invalid { value: ValueId, what: String },
    #[error("output {index}: {what}")]
    Output { index: usize, what: String },
}
