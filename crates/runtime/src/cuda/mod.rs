//! NVIDIA GPUs through the CUDA driver. The driver is loaded at run time: without it this module compiles, and returns
//! errors.
//!
//! Takes: an executable whose code is [`crate::Code::Ptx`]. Gives: a device, and sessions on it. Never: generates code.
//! No other module calls the driver.
mod allocator;
mod caller;
mod host_step;
mod launch;
mod launch_maps;
mod library;
mod load;
mod map;
mod nvtx;
mod program;
mod raw;
pub(crate) mod session;
pub(crate) mod shared;
pub(crate) mod storage;
pub(crate) mod time;
mod trace;

pub use allocator::{Allocator, DeviceMemory};

use crate::{Cubin, Ptx, RuntimeError, memory};
use cudarc::driver::{
    result::{self, DriverError},
    sys,
};
use kiln_machine::isa;
use kiln_plan::exec::GemmCall;
use library::Library;
pub use library::version as library_version;
pub use program::CudaProgram;
use raw::{Context, Module, text};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Oldest CUDA driver version that accepts the PTX that Kiln writes, in the driver's encoding (1000·major + 10·minor).
pub const MIN_DRIVER: i32 = 12080;

/// The CUDA driver of this machine and its GPUs.
#[derive(Clone, PartialEq, Debug)]
pub struct Driver {
    /// For example `13.0`.
    pub version: String,
    /// The GPUs that the driver lists, by index.
    pub devices: Vec<DeviceInfo>,
}
/// What the driver says of a GPU.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceInfo {
    /// The driver's number of the device: 0 for `cuda:0`.
    pub index: usize,
    /// The product name.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Global memory in bytes.
    pub memory: usize,
    /// Number of multiprocessors.
    pub multiprocessors: usize,
    /// Largest dynamic shared memory that a block may request, in bytes.
    pub shared: usize,
    /// Shared memory of a multiprocessor, in bytes.
    pub shared_per_multiprocessor: usize,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multiprocessor: usize,
    /// Most resident warps of a multiprocessor.
    pub warps_per_multiprocessor: usize,
    /// Most resident blocks of a multiprocessor.
    pub blocks_per_multiprocessor: usize,
    /// Size of the L2 cache in bytes.
    pub l2: usize,
}
impl DeviceInfo {
    /// The architecture to compile for, as `sm_90`.
    pub fn arch(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }
}

fn unusable(device: &str, what: impl Into<String>, remedy: &str) -> RuntimeError {
    RuntimeError::Device { device: device.into(), what: what.into(), remedy: remedy.into() }
}
fn version_text(v: i32) -> String {
    format!("{}.{}", v / 1000, v % 1000 / 10)
}

/// Loads and initialises the driver. Returns its version.
fn init(device: &str) -> Result<i32, RuntimeError> {
    const INSTALL: &str = "install the NVIDIA driver, or run with --device cpu";
    // SAFETY: loading the driver's library runs only its own initialisation.
    if !unsafe { sys::is_culib_present() } {
        return Err(unusable(device, "no NVIDIA driver found (libcuda.so.1 is not on the library path)", INSTALL));
    }
    let mut version = 0;
    // SAFETY: writes one integer; may be called before initialisation.
    let asked = unsafe { sys::cuDriverGetVersion(&mut version) }.result();
    if asked.is_ok() && version < MIN_DRIVER {
        let what = format!("CUDA driver {} found, Kiln needs {}", version_text(version), version_text(MIN_DRIVER));
        return Err(unusable(device, what, "update the NVIDIA driver to 570 or newer, or run with --device cpu"));
    }
    asked.and_then(|()| result::init()).map_err(|e| match e.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => unusable(
            device,
            "the NVIDIA driver finds no GPU",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or run with --device cpu",
        ),
        _ => unusable(device, format!("the NVIDIA driver does not start: {}", text(e)), INSTALL),
    })?;
    Ok(version)
}

/// Queries the driver and its devices.
///
/// # Errors
/// [`RuntimeError::Device`] if there is no driver, it is older than [`MIN_DRIVER`], or it finds no GPU.
pub fn driver() -> Result<Driver, RuntimeError> {
    let version = init("cuda")?;
    let fail = |e: DriverError| unusable("cuda", text(e), "check that nvidia-smi works");
    let count = result::device::get_count().map_err(fail)?;
    let devices = (0..count).map(|i| info(i).map_err(fail)).collect::<Result<_, _>>()?;
    Ok(Driver { version: version_text(version), devices })
}

fn info(index: i32) -> Result<DeviceInfo, DriverError> {
    use sys::CUdevice_attribute as A;
    let device = result::device::get(index)?;
    // SAFETY: the device comes from the driver.
    let attribute = |a| unsafe { result::device::get_attribute(device, a) }.map(|v| v.max(0) as usize);
    Ok(DeviceInfo {
        index: index as usize,
        name: result::device::get_name(device)?,
        capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ),
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }?,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        shared_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
        registers_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        warps_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)? / isa::WARP,
        blocks_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
        l2: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
    })
}

/// One GPU. Cheap to clone; clones share the context and the loaded modules.
#[derive(Clone)]
pub struct CudaDevice {
    inner: Arc<Inner>,
    allocator: allocator::Chosen,
}
struct Inner {
    info: DeviceInfo,
    context: Arc<Context>,
    /// Loaded modules; equal kernels share one. The key is the code itself: a hash collision cannot swap kernels, and
    /// code that was compiled here is never that of a cubin from elsewhere.
    modules: Mutex<HashMap<Image, Arc<Module>>>,
    /// cuBLASLt, loaded on first use; `None` inside if it cannot be loaded.
    library: OnceLock<Option<Arc<Library>>>,
}

/// What the driver loads for a kernel.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Image {
    /// Text, which the driver compiles.
    Ptx(Arc<str>),
    /// Machine code for this device.
    Cubin(Arc<[u8]>),
}
impl Image {
    /// Machine code is for one compute capability.
    fn of(ptx: &Ptx, capability: (u32, u32)) -> Image {
        match &ptx.cubin {
            Some(c) if c.capability == capability => Image::Cubin(c.bytes.clone()),
            _ => Image::Ptx(ptx.text.clone()),
        }
    }
    /// An error carries the assembler's log.
    fn load(&self, context: &Arc<Context>) -> Result<Module, (DriverError, String)> {
        match self {
            Image::Ptx(text) => Module::load(context, text),
            // SAFETY: whoever set the cubin trusts it, as its type says.
            Image::Cubin(bytes) => unsafe { Module::of_cubin(context, bytes) }.map_err(|e| (e, String::new())),
        }
    }
}

impl CudaDevice {
    /// Opens the GPU with this number and retains its primary context.
    ///
    /// # Errors
    /// [`RuntimeError::Device`] if there is no usable driver or no such GPU, or the driver refuses a context.
    pub fn open(index: usize) -> Result<CudaDevice, RuntimeError> {
        let name = format!("cuda:{index}");
        init(&name)?;
        let refused = |e: DriverError| {
            unusable(&name, text(e), "check nvidia-smi: the GPU may be in use exclusively, or need a reset")
        };
        let count = result::device::get_count().map_err(refused)?;
        if index >= count.max(0) as usize {
            let what = format!("the machine has {count} GPUs, numbered from 0");
            return Err(unusable(&name, what, "choose one that `kiln doctor` lists, or check CUDA_VISIBLE_DEVICES"));
        }
        let info = info(index as i32).map_err(refused)?;
        let context = Arc::new(Context::new(index).map_err(refused)?);
        let inner = Inner { info, context, modules: Mutex::default(), library: OnceLock::new() };
        Ok(CudaDevice { inner: Arc::new(inner), allocator: None })
    }
    /// The same device, whose sessions allocate their memory from `allocator`. It shares the context and the loaded
    /// modules.
    pub fn with_allocator(&self, allocator: Arc<dyn Allocator>) -> CudaDevice {
        CudaDevice { inner: self.inner.clone(), allocator: Some(allocator) }
    }
    /// What the driver says of this GPU.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }
    /// The name of the device as `--device` expects it, for example `cuda:0`.
    pub fn name(&self) -> String {
        format!("cuda:{}", self.inner.info.index)
    }

    /// Whether cuBLASLt could be loaded.
    pub fn has_library(&self) -> bool {
        self.library().is_some()
    }
    /// Whether cuBLASLt has an algorithm for this matmul within `workspace` bytes of workspace.
    pub fn takes(&self, call: &GemmCall, workspace: usize) -> bool {
        // The choice of an algorithm depends on the alignment of the addresses, not on their values.
        let at = memory::ALIGN as u64;
        let (residual, bias) = (call.epilogue.residual.as_ref().map(|_| at), call.epilogue.bias.map(|_| at));
        let places = library::Places { a: at, b: at, c: at, residual, bias, workspace: (at, workspace) };
        let Ok(_current) = self.inner.context.enter() else { return false };
        self.library().is_some_and(|library| library::Matmul::new(&library, call, places).is_some())
    }
    fn library(&self) -> Option<Arc<Library>> {
        let load = || {
            let _current = self.inner.context.enter().ok()?;
            Library::new(&self.inner.context).map(Arc::new)
        };
        self.inner.library.get_or_init(load).clone()
    }

    /// The module of this code. The driver compiles PTX on first use. The context must be current.
    fn module(&self, kernel: &str, ptx: &Ptx) -> Result<Arc<Module>, RuntimeError> {
        let image = Image::of(ptx, self.info().capability);
        self.load(&image).map_err(|(e, log)| {
            let log = log.trim();
            let what = if log.is_empty() { text(e) } else { format!("{}: {log}", text(e)) };
            match &image {
                Image::Ptx(_) => self.refused(format!("loading kernel `{kernel}`"), what, e),
                Image::Cubin(..) => RuntimeError::Driver {
                    device: format!("{} ({})", self.name(), self.info().name),
                    doing: format!("loading machine code of kernel `{kernel}`"),
                    what,
                    remedy: "write the artifact again, or load it without trusting its machine code".into(),
                },
            }
        })
    }

    /// The module of an image, which is loaded once. Threads load several images at once, because the driver's compiler
    /// is slow.
    fn load(&self, image: &Image) -> Result<Arc<Module>, (DriverError, String)> {
        let modules = || self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(m) = modules().get(image) {
            return Ok(m.clone());
        }
        let module = Arc::new(image.load(&self.inner.context)?);
        // Another thread may have loaded the same image meanwhile.
        Ok(modules().entry(image.clone()).or_insert(module).clone())
    }

    /// Loads the code of a kernel, so that sessions on this device and its clones find it loaded. The driver assembles
    /// PTX here: threads may call this for several kernels at once, and while code of others is generated. What the
    /// driver refuses, it refuses again when a session needs it, which reports the kernel's name.
    pub fn assemble(&self, ptx: &Ptx) {
        if let Ok(_current) = self.inner.context.enter() {
            let _ = self.load(&Image::of(ptx, self.info().capability));
        }
    }

    /// Loads machine code that was made of this PTX just now: sessions on this device and its clones that need the PTX
    /// find it loaded. False if it is for another capability, or the driver refuses it, as when the assembler is of a
    /// newer CUDA.
    pub fn load_assembled(&self, ptx: &Ptx, cubin: &Cubin) -> bool {
        let Ok(_current) = self.inner.context.enter() else { return false };
        if cubin.capability != self.info().capability {
            return false;
        }
        let Ok(module) = Image::Cubin(cubin.bytes.clone()).load(&self.inner.context) else { return false };
        let mut modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
        modules.entry(Image::Ptx(ptx.text.clone())).or_insert_with(|| Arc::new(module));
        true
    }

    /// Loads modules on as many threads as there are cores. A module that fails here fails again in
    /// [`CudaDevice::module`].
    fn preload<'a>(&self, all: impl Iterator<Item = &'a Ptx>) {
        let mut missing: Vec<Image> = {
            let modules = self.inner.modules.lock().unwrap_or_else(PoisonError::into_inner);
            let images = all.map(|p| Image::of(p, self.info().capability));
            images.filter(|i| !modules.contains_key(i)).collect()
        };
        missing.sort_unstable();
        missing.dedup();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(missing.len());
        let next = AtomicUsize::new(0);
        let work = || {
            if self.inner.context.bind().is_err() {
                return;
            }
            while let Some(image) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let _ = self.load(image);
            }
        };
        std::thread::scope(|s| (0..threads).for_each(|_| drop(s.spawn(work))));
    }

    fn refused(&self, doing: String, what: String, e: DriverError) -> RuntimeError {
        RuntimeError::Driver {
            device: format!("{} ({})", self.name(), self.info().name),
            doing,
            what,
            remedy: remedy(e).into(),
        }
    }
    /// Turns a driver error into one that says what was being done.
    fn check<T>(&self, doing: impl FnOnce() -> String, r: Result<T, DriverError>) -> Result<T, RuntimeError> {
        r.map_err(|e| self.refused(doing(), text(e), e))
    }
}

fn remedy(e: DriverError) -> &'static str {
    use sys::CUresult as R;
    match e.0 {
        R::CUDA_ERROR_OUT_OF_MEMORY => {
            "use a smaller batch, or free memory on the GPU (nvidia-smi shows which processes hold it)"
        }
        R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => "update the NVIDIA driver",
        R::CUDA_ERROR_INVALID_PTX | R::CUDA_ERROR_NO_BINARY_FOR_GPU | R::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
            "compile for this GPU's architecture (kiln doctor names it), or report the model"
        }
        R::CUDA_ERROR_ILLEGAL_ADDRESS
        | R::CUDA_ERROR_LAUNCH_FAILED
        | R::CUDA_ERROR_MISALIGNED_ADDRESS
        | R::CUDA_ERROR_ILLEGAL_INSTRUCTION => {
            "this is a bug in the kernel: report the model, and run with --unfused or --device cpu until it is fixed"
        }
        R::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES => {
            "compile for this GPU's architecture: the kernel needs more resources than it has"
        }
        _ => "check nvidia-smi, and restart the process",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of another capability compiles the PTX.
    #[test]
    fn machine_code_is_loaded_on_its_own_architecture_alone() {
        let bytes: Arc<[u8]> = [1, 2, 3].into();
        let cubin = Some(Cubin { capability: (9, 0), bytes: bytes.clone() });
        let (entry, grid, passed) = (String::from("k"), [1; 3], vec![]);
        let ptx = Ptx { entry, text: "text".into(), cubin, grid, threads: 32, shared: 0, cluster: 1, passed };
        assert_eq!(Image::of(&ptx, (9, 0)), Image::Cubin(bytes));
        assert_eq!(Image::of(&ptx, (10, 0)), Image::Ptx("text".into()));
        assert_eq!(Image::of(&Ptx { cubin: None, ..ptx }, (9, 0)), Image::Ptx("text".into()));
    }
}
