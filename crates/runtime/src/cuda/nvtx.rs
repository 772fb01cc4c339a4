//! NVTX ranges for NVIDIA's profilers. Where the NVTX library is not found, nothing happens, at no cost.
use libloading::Library;
use std::{
    ffi::{CString, c_char, c_int},
    sync::OnceLock,
};

/// File names of the library: in CUDA 12 and older, then in CUDA 13.
const NAMES: [&str; 4] = ["libnvToolsExt.so.1", "libnvToolsExt.so", "libnvtx3interop.so.1", "libnvtx3interop.so"];

struct Functions {
    push: unsafe extern "C" fn(*const c_char) -> c_int,
    pop: unsafe extern "C" fn() -> c_int,
    _library: Library,
}

fn functions() -> Option<&'static Functions> {
    static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
    FOUND.get_or_init(|| NAMES.iter().find_map(|name| load(name))).as_ref()
}

fn load(name: &str) -> Option<Functions> {
    // SAFETY: NVIDIA's library, which is never unloaded; these are the types of its functions.
    unsafe {
        let library = Library::new(name).ok()?;
        let push = *library.get(b"nvtxRangePushA\0").ok()?;
        let pop = *library.get(b"nvtxRangePop\0").ok()?;
        Some(Functions { push, pop, _library: library })
    }
}

/// Whether a profiler is attached. A session then launches kernels one by one, each in a range of its name, and not as
/// a CUDA graph.
pub fn watched() -> bool {
    std::env::var_os("NVTX_INJECTION64_PATH").is_some() && functions().is_some()
}

/// A range that ends when it is dropped.
pub struct RangeGuard(&'static Functions);
impl Drop for RangeGuard {
    fn drop(&mut self) {
        // SAFETY: ends the range that `range` began on this thread.
        unsafe { (self.0.pop)() };
    }
}

/// Begins a range of this name on the calling thread.
pub fn range(name: &str) -> Option<RangeGuard> {
    let f = functions()?;
    let name = CString::new(name).ok()?;
    // SAFETY: the text ends with a zero, and the library copies it.
    unsafe { (f.push)(name.as_ptr()) };
    Some(RangeGuard(f))
}
