//! Errors in graphs and in their text and JSON forms.
use crate::ValueId;

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// The operands do not fit the op.
    #[error("{value}: {op}: {what}")]
    Operand { value: ValueId, op: String, what: String },
    #[error("line {line}, column {column}: {what}")]
    Parse { line: usize, column: usize, what: String },
    #[error("{value}: {what}")]
    Invalid { value: ValueId, what: String },
    #[error("output {index}: {what}")]
    Output { index: usize, what: String },
}
