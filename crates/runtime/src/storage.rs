//! Tensors in memory of a device, for what stays there between runs: state, and the inputs and outputs of runs that
//! change it.
//!
//! Takes: a device and values of the host. Gives: an address for [`crate::Session::run_on`], and the values again.
//! Never: moves them.
use crate::{Device, Mismatch, RuntimeError, cuda::storage::CudaStorage};
use kiln_graph::{Tensor, Type};

/// A dense row-major tensor in memory of a device, which nothing else shares.
pub struct Storage {
    ty: Type,
    place: Place,
}
enum Place {
    Host(Tensor),
    Cuda(CudaStorage),
}

impl Storage {
    /// Memory for a tensor of this type, whose values are not set. `what` names it in the message of an error.
    ///
    /// # Errors
    /// If memory is short.
    pub fn new(device: &Device, ty: Type, what: &str) -> Result<Storage, RuntimeError> {
        let place = match device {
            Device::Host(_) => Place::Host(Tensor::try_zeros(ty.clone(), what)?),
            Device::Cuda(d) => Place::Cuda(CudaStorage::new(d, ty.bytes(), what)?),
        };
        Ok(Storage { ty, place })
    }
    /// The same, with these values.
    ///
    /// # Errors
    /// If memory is short, or the device fails.
    pub fn of(device: &Device, value: &Tensor, what: &str) -> Result<Storage, RuntimeError> {
        let mut storage = Storage::new(device, value.ty.clone(), what)?;
        storage.write(value)?;
        Ok(storage)
    }

    /// Dtype and shape.
    pub fn ty(&self) -> &Type {
        &self.ty
    }
    /// Address of the first byte, where kernels may write; any address if the type has no elements.
    pub fn address(&mut self) -> u64 {
        match &mut self.place {
            Place::Host(t) => t.bytes_mut().as_mut_ptr().expose_provenance() as u64,
            Place::Cuda(memory) => memory.address(),
        }
    }
    /// A copy of the values, once all work of the device is done.
    ///
    /// # Errors
    /// If memory is short, or the device fails.
    pub fn read(&self) -> Result<Tensor, RuntimeError> {
        let mut copy = Tensor::try_zeros(self.ty.clone(), "a copy of a tensor")?;
        match &self.place {
            Place::Host(t) => copy.bytes_mut().copy_from_slice(t.bytes()),
            Place::Cuda(memory) => memory.read(copy.bytes_mut())?,
        }
        Ok(copy)
    }
    /// Sets the values, once all work of the device is done.
    ///
    /// # Errors
    /// [`RuntimeError::StorageType`] if the value is of another type; if the device fails.
    pub fn write(&mut self, value: &Tensor) -> Result<(), RuntimeError> {
        if value.ty != self.ty {
            let types = Mismatch { got: value.ty.clone(), want: self.ty.clone() };
            return Err(RuntimeError::StorageType(Box::new(types)));
        }
        match &mut self.place {
            Place::Host(t) => t.bytes_mut().copy_from_slice(value.bytes()),
            Place::Cuda(memory) => memory.write(value.bytes())?,
        }
        Ok(())
    }
}
