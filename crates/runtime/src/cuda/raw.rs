//! Owning wrappers of the driver's handles, which free them when dropped.
//!
//! Everything but `Context` requires a current context on the calling thread.
use cudarc::driver::{
    result::{self, DriverError},
    sys,
};
use std::{
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
    /// Makes it current on this thread.
    pub fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: retained by `new`.
        unsafe { result::ctx::set_current(self.ctx) }
    }
}
impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

pub struct Stream {
    context: Arc<Context>,
    pub raw: sys::CUstream,
}
// SAFETY: streams may be used from any thread.
unsafe impl Send for Stream {}
impl Stream {
    pub fn new(context: &Arc<Context>) -> Result<Stream, DriverError> {
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Stream { context: context.clone(), raw })
    }
    pub fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: created by `new`.
        unsafe { result::stream::synchronize(self.raw) }
    }
    /// Captures the launches of `f` in a graph instead of running them.
    pub fn capture<E: From<DriverError>>(&self, f: impl FnOnce() -> Result<(), E>) -> Result<Graph, E> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: created by `new`; capture ends below on every path.
        unsafe { result::stream::begin_capture(self.raw, mode) }?;
        let done = f();
        // SAFETY: capture was begun above.
        let graph = unsafe { result::stream::end_capture(self.raw) };
        done?;
        let graph = graph?;
        // SAFETY: the graph was just captured; its executable form does not refer to it.
        let exec = unsafe {
            let exec = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            let _ = result::graph::destroy(graph);
            exec
        };
        Ok(Graph { context: self.context.clone(), exec: exec? })
    }
}
impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: created by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

/// An executable CUDA graph: launches that are replayed together.
pub struct Graph {
    context: Arc<Context>,
    exec: sys::CUgraphExec,
}
// SAFETY: one thread uses it at a time, because one thread uses its owner at a time.
unsafe impl Send for Graph {}
impl Graph {
    pub fn launch(&self, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: both live.
        unsafe { result::graph::launch(self.exec, stream.raw) }
    }
}
impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: instantiated by `Stream::capture`. A failure leaves nothing to do.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
    }
}

pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}
impl Event {
    pub fn new(context: &Arc<Context>) -> Result<Event, DriverError> {
        Ok(Event { context: context.clone(), raw: result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT)? })
    }
    pub fn record(&self, stream: &Stream) -> Result<(), DriverError> {
        // SAFETY: both live.
        unsafe { result::event::record(self.raw, stream.raw) }
    }
    /// During a capture: adds the event to the graph, which then records it each time it runs.
    pub fn record_in_graph(&self, stream: &Stream) -> Result<(), DriverError> {
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
        let _ = self.context.bind();
        // SAFETY: created by `new`. A failure leaves nothing to do.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

/// An allocation on a device.
pub struct Memory {
    context: Arc<Context>,
    /// 0 if the allocation is empty.
    pub address: u64,
}
impl Memory {
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Memory, DriverError> {
        // SAFETY: the size is not zero; callers write before they read.
        let address = if bytes == 0 { 0 } else { unsafe { result::malloc_sync(bytes) }? };
        Ok(Memory { context: context.clone(), address })
    }
}
impl Drop for Memory {
    fn drop(&mut self) {
        let _ = self.context.bind();
        if self.address != 0 {
            // SAFETY: allocated by `new`; the session that owns it waits for its stream first.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}

/// Copies to the device, in stream order. The host memory is pageable, so `from` may be reused on return.
///
/// # Safety
/// `to` is the device address of at least `from.len()` bytes.
pub unsafe fn upload(to: u64, from: &[u8], stream: &Stream) -> Result<(), DriverError> {
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
pub unsafe fn download(to: &mut [u8], from: u64, stream: &Stream) -> Result<(), DriverError> {
    match to.len() {
        0 => Ok(()),
        // SAFETY: this function's contract.
        _ => unsafe { result::memcpy_dtoh_async(to, from, stream.raw) },
    }
}
/// Copies within the device, in stream order.
///
/// # Safety
/// `to` and `from` are device addresses of at least `bytes` bytes each, which do not overlap and live until the copy is done.
pub unsafe fn copy(to: u64, from: u64, bytes: usize, stream: &Stream) -> Result<(), DriverError> {
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
    pub fn function(&self, name: &str) -> Result<sys::CUfunction, DriverError> {
        let name = CString::new(name).map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND))?;
        // SAFETY: the module lives.
        unsafe { result::module::get_function(self.raw, name) }
    }
}
impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.bind();
        // SAFETY: loaded by `load`; every user of its functions keeps the module alive. A failure leaves nothing to do.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}
