//! Parameters of a session: tensors on the host, or memory of the session's GPU that another owner holds.
//!
//! Takes: what the caller has. Gives: types, and which parameters a session keeps once it is loaded. Never: copies or
//! frees them.
use crate::{Executable, KernelCode};
use kiln_graph::{DType, Tensor, Type};
use kiln_plan::{BufferKind, Stage};
use std::{any::Any, fmt, sync::Arc};

/// Alignment in bytes that is enough for any argument of host code, which reads and writes whole elements: each
/// argument must be aligned to the size of its element ([`host_align`]), and no element is larger than this. Vectors
/// are loaded and stored unaligned.
pub const HOST_ALIGN: usize = 8;
/// Alignment in bytes that GPU code assumes of its arguments: that of the widest vector access, and of the addresses in
/// tensor maps.
pub const CUDA_ALIGN: usize = 16;

/// Alignment in bytes that host code assumes of a buffer of this dtype: the size of an element.
pub fn host_align(dtype: DType) -> usize {
    dtype.bytes()
}

/// The value of a parameter.
#[derive(Clone, Debug)]
pub enum Param {
    /// A tensor on the host. One that is foreign ([`Tensor::foreign`]) is read again by [`crate::Session::refresh`]. A
    /// GPU gets a copy.
    Host(Tensor),
    /// Memory of the session's GPU ([`Param::device`]).
    Device(DeviceParam),
}

/// A dense row-major tensor in memory of a GPU that another owner holds. Made by [`Param::device`].
#[derive(Clone)]
pub struct DeviceParam {
    ty: Type,
    address: u64,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl Param {
    /// A dense row-major tensor in memory of the session's GPU. Runs read it in place, and the session keeps `owner`.
    /// If the address is not a multiple of [`CUDA_ALIGN`], the session reads a copy of its own, made at load time and
    /// by [`crate::Session::refresh`].
    ///
    /// # Safety
    /// While `owner` lives, the `ty.bytes()` bytes at `address` stay allocated on the device of every session that gets
    /// the parameter, and so does the rest of the last 16 bytes that they reach into (any allocation of a GPU does).
    /// They are initialised when a session is created or refreshed: work that writes them is complete. They may change
    /// later, in stream order with runs; values that were computed from them at load time follow at the next refresh.
    pub unsafe fn device(ty: Type, address: u64, owner: Arc<dyn Any + Send + Sync>) -> Param {
        Param::Device(DeviceParam { ty, address, _owner: owner })
    }
    /// Dtype and shape.
    pub fn ty(&self) -> &Type {
        match self {
            Param::Host(t) => &t.ty,
            Param::Device(d) => &d.ty,
        }
    }
    /// Whether another owner holds the memory, so that its values may change.
    pub fn is_foreign(&self) -> bool {
        match self {
            Param::Host(t) => t.is_foreign(),
            Param::Device(_) => true,
        }
    }
    /// The address on the device, if that is where it lies and device code can read it there.
    pub(crate) fn in_place(&self) -> Option<u64> {
        match self {
            Param::Device(d) => d.address.is_multiple_of(CUDA_ALIGN as u64).then_some(d.address),
            Param::Host(_) => None,
        }
    }
    /// The tensor, if it is on the host.
    pub(crate) fn host(&self) -> Option<&Tensor> {
        match self {
            Param::Host(t) => Some(t),
            Param::Device(_) => None,
        }
    }
}
impl DeviceParam {
    /// Address of the first byte on the device.
    pub fn address(&self) -> u64 {
        self.address
    }
}
impl From<Tensor> for Param {
    fn from(t: Tensor) -> Param {
        Param::Host(t)
    }
}
impl fmt::Debug for DeviceParam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceParam({}, {:#x})", self.ty, self.address)
    }
}

/// What a session must keep of its parameters to be refreshed.
pub(crate) struct Kept {
    /// Whether the value of a parameter may change, so that refreshing does anything.
    pub changes: bool,
    /// By parameter: it may change, or what is computed at load time from one that may change also reads it.
    pub params: Vec<bool>,
}
impl Kept {
    pub fn new(exe: &Executable, params: &[Param]) -> Kept {
        let param = |b: usize| if let BufferKind::Param(p) = exe.buffers[b].kind { Some(p.0 as usize) } else { None };
        let used = |p: usize| (0..exe.buffers.len()).any(|b| param(b) == Some(p));
        let mut kept: Vec<bool> = params.iter().enumerate().map(|(p, x)| x.is_foreign() && used(p)).collect();
        let changes = kept.contains(&true);
        if changes {
            let load = |k: &&KernelCode| k.stage == Stage::Load;
            for b in exe.kernels.iter().filter(load).flat_map(|k| &k.inputs) {
                if let Some(p) = param(b.0 as usize) {
                    kept[p] = true;
                }
            }
        }
        Kept { changes, params: kept }
    }
}
