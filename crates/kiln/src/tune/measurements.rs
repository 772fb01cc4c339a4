//! Measurements that plans take templates from.
use kiln_tune::Store;
use std::sync::Arc;

/// A store as plans use it.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// All measurements, of all machines.
    pub store: Arc<Store>,
    /// The GPU whose entries count, as its driver calls it; `None`: the one that the target's machine description is of, or else the
    /// store's own.
    pub device: Option<String>,
}
