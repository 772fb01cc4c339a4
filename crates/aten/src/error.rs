//! Problems of a model, each with its location in the model's source.
use serde::{Deserialize, Serialize};
use std::fmt;

/// One thing in the model (or the inputs) that cannot be compiled.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Problem {
    pub message: String,
    /// `file:line` in the model's source; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Module path; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub help: String,
}

impl Problem {
    pub fn new(message: impl Into<String>) -> Problem {
        Problem { message: message.into(), ..Problem::default() }
    }
    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = help.into();
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.source.is_empty() {
            write!(f, "\n  at {}", self.source)?;
        }
        if !self.module.is_empty() {
            write!(f, " in {}", self.module)?;
        }
        if !self.help.is_empty() {
            write!(f, "\n  help: {}", self.help)?;
        }
        Ok(())
    }
}

/// All problems found, reported together. Also the JSON form of errors in the plugin's C ABI.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub struct ImportErrors {
    pub errors: Vec<Problem>,
}

impl fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, e) in self.errors.iter().enumerate() {
            write!(f, "{}{e}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

impl From<Problem> for ImportErrors {
    fn from(p: Problem) -> ImportErrors {
        ImportErrors { errors: vec![p] }
    }
}
