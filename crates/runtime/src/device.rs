//! The devices that sessions run on.
//!
//! Takes: a name. Gives: a device. Never: falls back from one device to another.
use crate::{CudaDevice, HostDevice, RuntimeError};

/// A device that runs code. Cheap to clone.
#[derive(Clone)]
pub enum Device {
    /// The processor.
    Host(HostDevice),
    /// An NVIDIA GPU.
    Cuda(CudaDevice),
}
impl Device {
    /// Opens a device by name: `cpu` (one thread per core), `cpu:4` (four threads), `cuda` (the first GPU), `cuda:1`.
    ///
    /// # Errors
    /// [`RuntimeError::Device`] if the name is unknown or the device cannot be used, [`RuntimeError::Level`] if
    /// `KILN_CPU` is wrong.
    pub fn open(name: &str) -> Result<Device, RuntimeError> {
        let (kind, number) = name.split_once(':').unwrap_or((name, "0"));
        match (kind, number.parse()) {
            ("cpu", Ok(threads)) => HostDevice::new(threads).map(Device::Host),
            ("cuda", Ok(index)) => CudaDevice::open(index).map(Device::Cuda),
            _ => Err(RuntimeError::Device {
                device: format!("`{name}`"),
                what: "there is no such device".into(),
                remedy: "write cpu or cuda:0".into(),
            }),
        }
    }
}
