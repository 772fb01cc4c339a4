//! One launch of a kernel: function, grid, and arguments. Only addresses of the caller's memory change between runs.
//!
//! A kernel that begins with `griddepcontrol.wait` is launched before the kernels ahead of it have ended (programmatic
//! dependent launch), which hides the latency of short kernels; which kernels do so is up to the code generator
//! (kiln-codegen, `nvptx/head.rs`).
use super::{
    CudaDevice,
    map::TensorMap,
    raw::{Graph, Module, Node, StreamHandle},
};
use crate::{Passed, Ptx, RuntimeError};
use cudarc::driver::{
    result::{self, DriverError},
    sys,
};
use kiln_machine::isa;
use std::{ffi::c_void, sync::Arc};

pub(super) struct Launch {
    function: sys::CUfunction,
    grid: [u32; 3],
    threads: u32,
    shared: u32,
    cluster: u32,
    /// The code waits for earlier kernels itself (`griddepcontrol.wait`), so it may be launched while they still run.
    waits: bool,
    /// In parameter order.
    args: Vec<Argument>,
    /// The version of the session's bindings that changed an argument last.
    pub changed: u64,
    /// Keeps `function` loaded.
    _module: Arc<Module>,
}
// SAFETY: functions may be launched from any thread; the module lives as long as this.
unsafe impl Send for Launch {}

/// The value of a parameter: a device address, or a tensor map, which the driver requires to be aligned to 64 bytes.
enum Argument {
    Address(u64),
    /// With the address of its buffer.
    Map(Box<TensorMap>, u64),
}
impl Argument {
    fn pointer(&self) -> *mut c_void {
        match self {
            Argument::Address(a) => std::ptr::from_ref(a).cast_mut().cast(),
            Argument::Map(m, _) => std::ptr::from_ref(&**m).cast_mut().cast(),
        }
    }
}

impl Launch {
    /// Loads the code and sets the attributes of its function. The context must be current.
    pub fn new(device: &CudaDevice, kernel: &str, ptx: &Ptx, args: Vec<u64>) -> Result<Launch, RuntimeError> {
        use sys::CUfunction_attribute as A;
        let limit = device.info().shared;
        if ptx.shared > limit {
            return Err(RuntimeError::Unsupported {
                kernel: kernel.into(),
                device: device.name(),
                what: format!("it needs {} bytes of shared memory, {} has {limit}", ptx.shared, device.info().name),
                remedy: format!("compile again for this GPU ({})", device.info().arch()),
            });
        }
        let narrow = |n: usize| {
            u32::try_from(n).map_err(|_| RuntimeError::Unsupported {
                kernel: kernel.into(),
                device: device.name(),
                what: format!("its grid {:?} is too large for a launch", ptx.grid),
                remedy: "use smaller inputs, or report the model".into(),
            })
        };
        let module = device.module(kernel, ptx)?;
        let doing = || format!("preparing kernel `{kernel}`");
        let function = device.check(doing, module.function(&ptx.entry))?;
        let set = |a, v| {
            // SAFETY: the function comes from a live module.
            device.check(doing, unsafe { result::function::set_function_attribute(function, a, v) })
        };
        if ptx.shared > isa::SHARED_UNASKED {
            set(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, ptx.shared as i32)?;
        }
        if ptx.cluster > 8 {
            set(A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)?;
        }
        let mut passed = Vec::with_capacity(args.len());
        for (i, address) in args.into_iter().enumerate() {
            passed.push(match ptx.passed.get(i) {
                Some(Passed::Map(m)) => {
                    Argument::Map(Box::new(device.check(doing, TensorMap::new(m, address))?), address)
                }
                _ => Argument::Address(address),
            });
        }
        Ok(Launch {
            function,
            grid: [narrow(ptx.grid[0])?, narrow(ptx.grid[1])?, narrow(ptx.grid[2])?],
            threads: narrow(ptx.threads)?,
            shared: narrow(ptx.shared)?,
            cluster: narrow(ptx.cluster)?,
            waits: ptx.text.contains("griddepcontrol.wait"),
            args: passed,
            changed: 0,
            _module: module,
        })
    }

    /// Launch attributes: the first n of the array apply.
    fn attributes(&self) -> ([sys::CUlaunchAttribute; 2], u32) {
        use sys::{CUlaunchAttribute, CUlaunchAttributeID as Id, CUlaunchAttributeValue as Value};
        let none = |id| CUlaunchAttribute { id, pad: [0; 4], value: Value { pad: [0; 64] } };
        let (mut cluster, mut dependent) = (
            none(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION),
            none(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION),
        );
        cluster.value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: self.cluster, y: 1, z: 1 };
        dependent.value.programmaticStreamSerializationAllowed = 1;
        match self.cluster > 1 {
            true => ([cluster, dependent], 1 + u32::from(self.waits)),
            false => ([dependent, cluster], u32::from(self.waits)),
        }
    }

    /// Moves an argument to another buffer of the same type; `version` is that of the session's bindings from now on.
    pub fn set(&mut self, arg: usize, address: u64, version: u64) -> Result<(), DriverError> {
        match self.args.get_mut(arg) {
            Some(Argument::Address(a)) if *a != address => *a = address,
            Some(Argument::Map(m, a)) if *a != address => {
                m.shift(address.wrapping_sub(*a))?;
                *a = address;
            }
            _ => return Ok(()),
        }
        self.changed = version;
        Ok(())
    }

    /// Whether it launches anything: an empty grid does not.
    pub fn is_launched(&self) -> bool {
        !self.grid.contains(&0)
    }

    /// Enqueues the launch. An empty grid launches nothing.
    ///
    /// # Safety
    /// The arguments are those that the kernel expects, and each points to live memory.
    pub unsafe fn enqueue(&self, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: one pointer per parameter by this function's contract.
        self.with_pointers(|params| unsafe { self.enqueue_with(self.grid, params, stream) })
    }

    /// Enqueues a launch of this grid with these arguments.
    ///
    /// # Safety
    /// There is a pointer for each parameter of the kernel, to what [`Launch::enqueue`] demands.
    pub unsafe fn enqueue_with(
        &self,
        grid: [u32; 3],
        params: *mut *mut c_void,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        if grid.contains(&0) {
            return Ok(());
        }
        let (mut attributes, count) = self.attributes();
        let config = sys::CUlaunchConfig {
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream.raw,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count,
        };
        // SAFETY: function and stream live; one pointer per parameter by this function's contract.
        unsafe { sys::cuLaunchKernelEx(&config, self.function, params, std::ptr::null_mut()) }.result()
    }

    /// Registers of a thread, and its bytes in local memory. The context is current.
    pub fn registers(&self) -> Result<(u64, u64), DriverError> {
        use sys::CUfunction_attribute_enum as A;
        let read = |attribute| {
            let mut value = 0;
            // SAFETY: writes one number; the function lives.
            unsafe { sys::cuFuncGetAttribute(&mut value, attribute, self.function) }.result()?;
            Ok(u64::try_from(value).unwrap_or(0))
        };
        Ok((read(A::CU_FUNC_ATTRIBUTE_NUM_REGS)?, read(A::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?))
    }

    /// Gives a node of a recorded graph the arguments of now. Launches of the graph from now on use them. Attributes
    /// stay as captured.
    ///
    /// # Safety
    /// The node is that of this launch in this graph. The arguments are as for [`Launch::enqueue`].
    pub unsafe fn update(&self, graph: &Graph, node: Node) -> Result<(), DriverError> {
        self.with_pointers(|params| {
            let node_params = sys::CUDA_KERNEL_NODE_PARAMS_v2_st {
                func: self.function,
                gridDimX: self.grid[0],
                gridDimY: self.grid[1],
                gridDimZ: self.grid[2],
                blockDimX: self.threads,
                blockDimY: 1,
                blockDimZ: 1,
                sharedMemBytes: self.shared,
                kernelParams: params,
                extra: std::ptr::null_mut(),
                kern: std::ptr::null_mut(),
                ctx: std::ptr::null_mut(),
            };
            // SAFETY: graph and node live; the driver copies the arguments before it returns.
            unsafe { sys::cuGraphExecKernelNodeSetParams_v2(graph.exec, node.0, &node_params) }.result()
        })
    }

    /// Calls `f` with the list of pointers to arguments that the driver takes. The driver copies what they point to
    /// before it returns.
    fn with_pointers<R>(&self, f: impl FnOnce(*mut *mut c_void) -> R) -> R {
        let mut small = [std::ptr::null_mut::<c_void>(); 32];
        let mut large = Vec::new();
        let params = match small.get_mut(..self.args.len()) {
            Some(params) => params,
            None => {
                large.resize(self.args.len(), std::ptr::null_mut());
                &mut large[..]
            }
        };
        for (p, a) in params.iter_mut().zip(&self.args) {
            *p = a.pointer();
        }
        f(params.as_mut_ptr())
    }
}
