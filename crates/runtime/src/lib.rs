//! Runs compiled models on a device: memory plan, launches, CUDA graphs, timing and traces.
//!
//! Takes: an [`Executable`] (what the plan says of buffers and kernels, with machine code for each kernel) and the
//! model's parameters. Gives: a [`Session`] that runs it on a [`Device`], over tensors of its own ([`Session::run`]) or
//! over memory, parameters and a stream that belong to its caller ([`Session::run_on`], [`Param`],
//! [`cuda::Allocator`]). Never: plans, lowers or generates code. libtorch and the graph interpreter are called only
//! through [`Callbacks`].
#![warn(missing_docs)]

mod boundary;
pub mod callbacks;
pub mod cuda;
pub mod device;
pub mod error;
pub mod executable;
pub mod host;
mod in_place;
mod launch;
mod layout;
pub mod memory;
pub mod param;
pub mod profile;
pub mod session;
pub mod shared;
mod steps;
mod storage;
pub mod trace;

pub use callbacks::{Callbacks, DeviceTensor, NoCallbacks, Refused};
pub use cuda::{CudaDevice, CudaProgram};
pub use device::Device;
pub use error::{Mismatch, RuntimeError};
pub use executable::{
    Code, Cubin, Executable, Extent, HostFn, InputSpec, KernelCode, LaunchMap, Passed, Ptx, TensorMap,
};
pub use host::{HostDevice, MAX_THREADS, Pace};
pub use launch::Argument;
pub use param::{CUDA_ALIGN, DeviceParam, HOST_ALIGN, Param, host_align};
pub use profile::{KernelTime, KernelTimer, Spread, TimeOptions, Timing};
pub use session::Session;
pub use shared::{Names, Shared};
pub use steps::Feed;
pub use storage::Storage;
pub use trace::{HostSpan, RunTrace, Span};
