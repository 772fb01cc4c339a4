//! Owning wrappers of the driver's handles, which free them when dropped.
//!
//! Everything but `Context` requires a current context on the calling thread.
use super::allocator::DeviceMemory;
use cudarc::driver::{
    result::{self, DriverError},
    sys,
};
use std::{
    any::Any,
    ffi::{CString, c_void},
    sync::Arc,
};

/// The driver's text for an error, as `an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS)`.
pub fn text(e: DriverError) -> String {
    match e.error_string() {
        Ok(s) => format!("{} ({:?})", s.to_string_lossy(), e.0),
        Err(_) => format!("{:?}", e.0),
    }
}

/// The primary context of a device; libraries such as libtorch use it too.
pub struct Context {
    device: sys::CUdevice,
    ctx: sys::CUcontext,
}
// SAFETY: contexts may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
impl Context {
    pub fn new(index: usize) -> Result<Context, DriverError> {
        let device = result::device::get(index as i32)?;
        // SAFETY: the device comes from the driver.
        let ctx = unsafe { result::primary_ctx::retain(device) }?;
        Ok(Context { device, ctx })
    }
    /// Makes it current on this thread until the value is dropped, which makes the one from before current again.
    /// Callers of the session may be at work on another device.
    pub fn enter(&self) -> Result<Entered, DriverError> {
        let mut before = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { sys::cuCtxGetCurrent(&mut before) }.result()?;
        if before != self.ctx {
            self.bind()?;
        }
        Ok(Entered { before, changed: before != self.ctx })
    }
    /// Waits for all work of the context, which must be current.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        result::ctx::synchronize()
    }
    /// Makes it current on this thread.
    pub fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: retained by `new`.
        unsafe { result::ctx::set_current(self.ctx) }
    }
}
/// Until it is dropped, a context is current on this thread ([`Context::enter`]).
pub struct Entered {
    before: sys::CUcontext,
    changed: bool,
}
impl Drop for Entered {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: this context was current before. A failure leaves nothing to do.
            let _ = unsafe { result::ctx::set_current(self.before) };
        }
    }
}
impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// A stream of the session or of its caller, by the driver's handle.
#[derive(Clone, Copy)]
pub struct StreamHandle {
    pub raw: sys::CUstream,
}
// SAFETY: streams may be used from any thread.
unsafe impl Send for StreamHandle {}
// SAFETY: as above.
unsafe impl Sync for StreamHandle {}
impl StreamHandle {
    /// The caller's stream.
    ///
    /// # Safety
    /// It is a stream of the current context or one of the driver's special handles, and lives while this is used.
    pub unsafe fn of_caller(stream: u64) -> StreamHandle {
        StreamHandle { raw: std::ptr::with_exposed_provenance_mut(stream as usize) }
    }
    pub fn synchronize(self) -> Result<(), DriverError> {
        // SAFETY: the stream lives, by the contracts of both ways to make a handle.
        unsafe { result::stream::synchronize(self.raw) }
    }
    /// A number that no other stream of the process has or will have, unlike the handle.
    pub fn id(self) -> Result<u64, DriverError> {
        let mut id = 0;
        // SAFETY: as above; writes one number.
        unsafe { sys::cuStreamGetId(self.raw, &mut id) }.result().map(|()| id)
    }
    pub fn is_capturing(self) -> Result<bool, DriverError> {
        // SAFETY: as above.
        let status = unsafe { result::stream::is_capturing(self.raw) }?;
        Ok(status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
    }
    /// Makes later work on this stream wait for the last record of an event; nothing if it was never recorded.
    pub fn wait(self, event: &Event) -> Result<(), DriverError> {
        // SAFETY: both live.
        unsafe { result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
    }
}

/// A stream of the session's own.
pub struct Stream {
    context: Arc<Context>,
    pub handle: StreamHandle,
}
impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, DriverError> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Stream { context: context.clone(), handle: StreamHandle { raw } })
    }
    /// Captures the launches of `f` in a graph instead of running them.
    pub fn capture<E: From<DriverError>>(&self, f: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: created by `new`; capture ends below on every path.
        unsafe { result::stream::begin_capture(self.handle.raw, mode) }?;
        let done = f();
        // SAFETY: capture was begun above.
        let source = unsafe { result::stream::end_capture(self.handle.raw) };
        done?;
        let source = source?;
        // SAFETY: the graph was just captured.
        match unsafe { result::graph::instantiate(source, sys::CUgraphInstantiate_flags(0)) } {
            Ok(exec) => Ok(Graph { context: self.context.clone(), source, exec }),
            Err(e) => {
                // SAFETY: as above; nothing else refers to it.
                let _ = unsafe { result::graph::destroy(source) };
                Err(e.into())
            }
        }
    }
    /// During a capture: the node of the launch that was captured last. `None` if there is none, or several.
    pub fn last_node(&self) -> Result<Option<Node>, DriverError> {
        let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut graph) = (0, std::ptr::null_mut());
        let (mut nodes, mut edges, mut count) = (std::ptr::null(), std::ptr::null(), 0usize);
        // SAFETY: the stream lives, and each pointer is to a value of its own. The list of nodes is the driver's, and
        // stays as it is until the stream is used again, which this function's caller does not do before it returns.
        unsafe {
            sys::cuStreamGetCaptureInfo_v3(
                self.handle.raw,
                &mut status,
                &mut id,
                &mut graph,
                &mut nodes,
                &mut edges,
                &mut count,
            )
            .result()?;
            let active = status == sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
            Ok((active && count == 1 && !nodes.is_null()).then(|| Node(*nodes)))
        }
    }
}
impl Drop for Stream {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: created by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::stream::destroy(self.handle.raw) };
    }
}

/// A node of a graph that was captured. It lives as long as the graph.
#[derive(Clone, Copy)]
pub struct Node(pub sys::CUgraphNode);
// SAFETY: one thread uses it at a time, because one thread uses its owner at a time.
unsafe impl Send for Node {}

/// An executable CUDA graph: launches that are replayed together.
pub struct Graph {
    context: Arc<Context>,
    /// What was captured: its nodes name those of `exec`.
    source: sys::CUgraph,
    pub exec: sys::CUgraphExec,
}
// SAFETY: one thread uses it at a time, because one thread uses its owner at a time.
unsafe impl Send for Graph {}
impl Graph {
    pub fn launch(&self, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: both live.
        unsafe { result::graph::launch(self.exec, stream.raw) }
    }
}
impl Drop for Graph {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: both made by `Stream::capture`. A failure leaves nothing to do.
        unsafe {
            let _ = result::graph::exec_destroy(self.exec);
            let _ = result::graph::destroy(self.source);
        }
    }
}

pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}
// SAFETY: events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}
impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Event, DriverError> {
        Ok(Event { context: context.clone(), raw: result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)? })
    }
    /// An event that only orders: cheaper to record and to wait for.
    pub fn untimed(context: &Arc<Context>) -> Result<Event, DriverError> {
        let raw = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
        Ok(Event { context: context.clone(), raw })
    }
    /// Whether the device has reached the last record; true if there is none.
    pub fn is_reached(&self) -> Result<bool, DriverError> {
        // SAFETY: created by `new` or `untimed`.
        match unsafe { result::event::query(self.raw) } {
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            reached => reached.map(|()| true),
        }
    }
    /// Waits until the device has reached the last record.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: as above.
        unsafe { result::event::synchronize(self.raw) }
    }
    pub fn record(&self, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: both live.
        unsafe { result::event::record(self.raw, stream.raw) }
    }
    /// During a capture: adds the event to the graph, which then records it each time it runs.
    pub fn record_in_graph(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let external = sys::CUevent_record_flags_enum::CU_EVENT_RECORD_EXTERNAL as u32;
        // SAFETY: both live.
        unsafe { sys::cuEventRecordWithFlags(self.raw, stream.raw, external) }.result()
    }
    /// Microseconds from `start` to this event; the device must have reached both.
    pub fn us_since(&self, start: &Event) -> Result<f64, DriverError> {
        // SAFETY: both live, recorded on the same stream.
        unsafe { result::event::elapsed(start.raw, self.raw) }.map(|ms| f64::from(ms) * 1e3)
    }
}
impl Drop for Event {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: created by `new` or `untimed`. A failure leaves nothing to do.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

/// Memory on a device that the session allocated.
pub struct Memory {
    context: Arc<Context>,
    /// 0 if the allocation is empty.
    pub address: u64,
    pub bytes: usize,
    /// Frees the memory, if it is not the driver's.
    owner: Option<Box<dyn Any + Send + Sync>>,
}
impl Memory {
    /// Memory of the driver.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Memory, DriverError> {
        // SAFETY: the size is not zero; callers write before they read.
        let address = if bytes == 0 { 0 } else { unsafe { result::malloc_sync(bytes) }? };
        Ok(Memory { context: context.clone(), address, bytes, owner: None })
    }
    /// Memory of an allocator.
    pub fn of(context: &Arc<Context>, bytes: usize, memory: DeviceMemory) -> Memory {
        Memory { context: context.clone(), address: memory.address, bytes, owner: Some(memory.owner) }
    }
}
impl Drop for Memory {
    fn drop(&mut self) {
        let _current = self.context.enter();
        match self.owner.take() {
            Some(owner) => drop(owner),
            // SAFETY: allocated by `new`; the session that owns it waits for its runs first.
            None if self.address != 0 => drop(unsafe { result::free_sync(self.address) }),
            None => {}
        }
    }
}

/// Page-locked memory of the host, which the device writes while the host goes on.
pub struct Pinned {
    context: Arc<Context>,
    at: *mut u8,
    bytes: usize,
}
// SAFETY: owns its memory.
unsafe impl Send for Pinned {}
impl Pinned {
    /// Zeroed. `bytes` is not 0.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Pinned, DriverError> {
        // SAFETY: allocates only; the memory is initialised right away.
        unsafe {
            let at = result::malloc_host(bytes, 0)?.cast::<u8>();
            at.write_bytes(0, bytes);
            Ok(Pinned { context: context.clone(), at, bytes })
        }
    }
    /// The bytes.
    ///
    /// # Safety
    /// No copy to this memory is in progress while the slice is used.
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size and initialised by `new`; not written meanwhile by this function's contract.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }
    /// Copies from the device to all of this memory, in stream order.
    ///
    /// # Safety
    /// `from` is the device address of as many bytes.
    pub unsafe fn fill(&self, from: u64, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: this function's contract; the memory lives, because its owner waits for the copy before it drops it.
        unsafe { sys::cuMemcpyDtoHAsync_v2(self.at.cast(), from, self.bytes, stream.raw) }.result()
    }
}
impl Drop for Pinned {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: allocated by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::free_host(self.at.cast()) };
    }
}

/// Clears memory of the device, in stream order.
///
/// # Safety
/// `to` is the device address of at least `bytes` bytes.
pub unsafe fn clear(to: u64, bytes: usize, stream: StreamHandle) -> Result<(), DriverError> {
    match bytes {
        0 => Ok(()),
        // SAFETY: this function's contract.
        _ => unsafe { result::memset_d8_async(to, 0, bytes, stream.raw) },
    }
}

/// Copies to the device, in stream order. The host memory is pageable, so `from` may be reused on return.
///
/// # Safety
/// `to` is the device address of at least `from.len()` bytes.
pub unsafe fn upload(to: u64, from: &[u8], stream: StreamHandle) -> Result<(), DriverError> {
    match from.len() {
        0 => Ok(()),
        // SAFETY: this function's contract.
        _ => unsafe { result::memcpy_htod_async(to, from, stream.raw) },
    }
}
/// Copies from the device, in stream order. The copy is complete when the stream is synchronised.
///
/// # Safety
/// `from` is the device address of at least `to.len()` bytes; `to` stays in place until the stream is synchronised.
pub unsafe fn download(to: &mut [u8], from: u64, stream: StreamHandle) -> Result<(), DriverError> {
    match to.len() {
        0 => Ok(()),
        // SAFETY: this function's contract.
        _ => unsafe { result::memcpy_dtoh_async(to, from, stream.raw) },
    }
}
/// Copies within the device, in stream order.
///
/// # Safety
/// `to` and `from` are device addresses of at least `bytes` bytes each, which do not overlap and live until the copy is
/// done.
pub unsafe fn copy(to: u64, from: u64, bytes: usize, stream: StreamHandle) -> Result<(), DriverError> {
    match bytes {
        0 => Ok(()),
        // SAFETY: this function's contract.
        _ => unsafe { result::memcpy_dtod_async(to, from, bytes, stream.raw) },
    }
}

pub struct Module {
    context: Arc<Context>,
    raw: sys::CUmodule,
}
// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}
impl Module {
    /// Has the driver compile PTX. An error carries the assembler's log.
    pub fn load(context: &Arc<Context>, ptx: &str) -> Result<Module, (DriverError, String)> {
        let source = CString::new(ptx).map_err(|_| {
            (DriverError(sys::CUresult::CUDA_ERROR_INVALID_PTX), "the text contains a zero byte".into())
        })?;
        let mut log = vec![0u8; 8192];
        use sys::CUjit_option_enum as O;
        let mut options = [O::CU_JIT_ERROR_LOG_BUFFER, O::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(log.len())];
        let mut raw = std::ptr::null_mut();
        // SAFETY: the source is zero-terminated, and options and values have two entries each that outlive the call.
        let loaded = unsafe {
            let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
            sys::cuModuleLoadDataEx(&mut raw, source.as_ptr().cast(), 2, options, values).result()
        };
        match loaded {
            Ok(()) => Ok(Module { context: context.clone(), raw }),
            Err(e) => {
                let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
                Err((e, String::from_utf8_lossy(&log[..end]).into_owned()))
            }
        }
    }
    /// Loads machine code.
    ///
    /// # Safety
    /// `cubin` is a whole file of `ptxas`: the driver finds its size in its header.
    pub unsafe fn of_cubin(context: &Arc<Context>, cubin: &[u8]) -> Result<Module, DriverError> {
        // SAFETY: this function's contract.
        let raw = unsafe { result::module::load_data(cubin.as_ptr().cast()) }?;
        Ok(Module { context: context.clone(), raw })
    }
    pub fn function(&self, name: &str) -> Result<sys::CUfunction, DriverError> {
        let name = CString::new(name).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND))?;
        // SAFETY: the module lives.
        unsafe { result::module::get_function(self.raw, name) }
    }
}
impl Drop for Module {
    fn drop(&mut self) {
        let _current = self.context.enter();
        // SAFETY: loaded by `load` or `of_cubin`; every user of its functions keeps the module alive. A failure leaves
        // nothing to do.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}
