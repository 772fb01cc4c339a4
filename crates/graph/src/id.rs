//! Names of values and parameters: indices into a graph, whose `Display` is the text syntax.
use serde::{Deserialize, Serialize};
use std::fmt;

/// A value, identified by its node: every op has one result. `Display` is the text syntax (`%3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ValueId(pub u32);
impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// A weight or buffer of the model. `Display` is the text syntax (`@3`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct ParamId(pub u32);
impl fmt::Display for ParamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}
