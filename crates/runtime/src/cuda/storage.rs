//! Memory of a GPU for one tensor, which the host reads and writes between runs.
//!
//! Takes: bytes of the host. Gives: an address on the device. Reading and writing wait for all work of the device, so
//! that runs on any stream are ordered with them.
use super::{
    CudaDevice,
    raw::{Memory, StreamHandle, download, text, upload},
};
use crate::{RuntimeError, memory::ALIGN};
use cudarc::driver::result::DriverError;

pub(crate) struct CudaStorage {
    device: CudaDevice,
    memory: Memory,
}

impl CudaStorage {
    pub fn new(device: &CudaDevice, bytes: usize, what: &str) -> Result<CudaStorage, RuntimeError> {
        let _current = device.check(|| format!("allocating {what}"), device.inner.context.enter())?;
        Ok(CudaStorage { device: device.clone(), memory: device.allocate(bytes, what)? })
    }
    /// Address of the first byte, a multiple of [`crate::CUDA_ALIGN`].
    pub fn address(&self) -> u64 {
        self.memory.address
    }
    /// Copies to the host. `to` has as many bytes as were asked for.
    pub fn read(&self, to: &mut [u8]) -> Result<(), RuntimeError> {
        // SAFETY: the memory has as many bytes; `alone` waits before it returns.
        self.alone("copying from memory of the device", |stream| unsafe { download(to, self.memory.address, stream) })
    }
    /// Copies from the host. `from` has as many bytes as were asked for.
    pub fn write(&mut self, from: &[u8]) -> Result<(), RuntimeError> {
        // SAFETY: as above.
        self.alone("copying to memory of the device", |stream| unsafe { upload(self.memory.address, from, stream) })
    }
    /// Copies on the default stream after all work of the device, and waits for the copy.
    fn alone(
        &self,
        doing: &str,
        copy: impl FnOnce(StreamHandle) -> Result<(), DriverError>,
    ) -> Result<(), RuntimeError> {
        let context = &self.device.inner.context;
        let done = || {
            let _current = context.enter()?;
            context.synchronize()?;
            // SAFETY: 0 is the driver's default stream.
            let copied = copy(unsafe { StreamHandle::of_caller(0) });
            // Also after an error: a copy may have begun.
            context.synchronize().and(copied)
        };
        self.device.check(|| doing.into(), done())
    }
}
impl Drop for CudaStorage {
    fn drop(&mut self) {
        // Memory must not be freed while kernels use it. A failure leaves nothing to do.
        let _current = self.device.inner.context.enter();
        let _ = self.device.inner.context.synchronize();
    }
}

impl CudaDevice {
    /// Allocates, rounded up to the alignment: kernels may read up to the next multiple of 16 bytes. The context is
    /// current.
    pub(super) fn allocate(&self, bytes: usize, what: &str) -> Result<Memory, RuntimeError> {
        let bytes = bytes.next_multiple_of(ALIGN);
        let context = &self.inner.context;
        let memory = match &self.allocator {
            Some(allocator) if bytes > 0 => allocator.allocate(bytes).map(|m| Memory::of(context, bytes, m)),
            _ => Memory::new(context, bytes).map_err(text),
        };
        memory.map_err(|why| RuntimeError::Memory {
            bytes,
            what: format!("{what} on {} ({})", self.name(), self.info().name),
            why,
        })
    }
}
