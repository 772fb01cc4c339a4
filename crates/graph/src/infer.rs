//! Shape and dtype inference: the result type of an op on operands of given types, or what is wrong with them.
use crate::{Op, Type};

/// Result type of `op`. The error is a clause for the user: what was given and what is wanted.
pub fn infer(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let _ = (op, args);
    Err("no inference yet".into())
}
