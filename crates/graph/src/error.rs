//! Errors in graphs and in their text and JSON forms.
use crate::ValueId;

/// Why a graph, or its text or JSON form, is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// The operands do not fit the op.
    #[error("{value}: {op}: {what}")]
    Operand {
        /// The op's value, or the id it would have had.
        value: ValueId,
        /// Name of the op.
        op: String,
        /// What was given and what is expected.
        what: String,
    },
    /// The text or JSON form does not parse.
    #[error("line {line}, column {column}: {what}")]
    Parse {
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// What is wrong there.
        what: String,
    },
    /// A node breaks an invariant of [`crate::verify`].
    #[error("{value}: {what}")]
    Invalid {
        /// The node's value.
        value: ValueId,
        /// The broken invariant.
        what: String,
    },
    /// An output breaks an invariant of [`crate::verify`].
    #[error("output {index}: {what}")]
    Output {
        /// Index in [`crate::Graph::outputs`].
        index: usize,
        /// The broken invariant.
        what: String,
    },
}
