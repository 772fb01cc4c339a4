//! Why a kernel has no program: it is unsupported, or an invariant is broken.

#[derive(Clone, Debug, thiserror::Error)]
pub enum LowerError {
    /// The kernel is valid, but there is no program for it, or none by its schedule; the caller runs it with the
    /// interpreter.
    #[error("kernel {kernel} cannot be lowered: {why}")]
    Unsupported { kernel: String, why: String },
    /// An invariant of lowering is broken.
    #[error("lowering kernel {kernel} hit a defect of Kiln: {what}; please report it with the model")]
    Invariant { kernel: String, what: String },
}

impl LowerError {
    /// The reason alone, without the kernel's name.
    pub fn why(self) -> String {
        match self {
            LowerError::Unsupported { why, .. } => why,
            LowerError::Invariant { what, .. } => format!("a defect of Kiln: {what}; please report it"),
        }
    }
}

/// The result of a lowering, `None` where the kernel is unsupported. Broken invariants are passed on.
pub fn unsupported_as_none<T>(result: Result<T, LowerError>) -> Result<Option<T>, LowerError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(LowerError::Unsupported { .. }) => Ok(None),
        Err(defect @ LowerError::Invariant { .. }) => Err(defect),
    }
}
