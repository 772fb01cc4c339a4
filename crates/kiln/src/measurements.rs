//! A store of measurements, and the device whose entries a plan uses.
use kiln_tune::Store;
use std::sync::Arc;

/// A store of measurements for use by plans.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// All measurements, of all machines.
    pub store: Arc<Store>,
    /// The GPU whose entries are used, by its driver's name; `None`: the device of the target's default machine
    /// description, or else the first device in the store.
    pub device: Option<String>,
}
