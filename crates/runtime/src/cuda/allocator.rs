//! Memory of a GPU from an allocator of the caller.
//!
//! A process with a caching allocator gives its sessions memory from there, so that both share what is free and what is
//! reported.
use std::{any::Any, sync::Arc};

/// Allocates memory of one GPU ([`crate::CudaDevice::with_allocator`]).
///
/// # Safety
/// What [`Allocator::allocate`] returns fulfils its contract.
pub unsafe trait Allocator: Send + Sync {
    /// At least `bytes` bytes of the device, or why there are none. The address is a multiple of 256. The memory stays
    /// in place and belongs to nobody else until its owner is dropped, which happens on any thread, once the device has
    /// no use of it any more. Its contents do not matter. `bytes` is not 0, and the device's primary context is
    /// current.
    fn allocate(&self, bytes: usize) -> Result<DeviceMemory, String>;
}

/// Memory that an [`Allocator`] gave.
pub struct DeviceMemory {
    /// The first byte.
    pub address: u64,
    /// Frees the memory when it is dropped.
    pub owner: Box<dyn Any + Send + Sync>,
}

/// The allocator of a device; `None` for the driver's.
pub(super) type Chosen = Option<Arc<dyn Allocator>>;
