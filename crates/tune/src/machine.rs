//! The machine that a measurement is of.
use serde::{Deserialize, Serialize};

/// A machine: the device name that its driver reports, and the target of its code.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Machine {
    pub device: String,
    pub target: String,
}
