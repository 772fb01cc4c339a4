//! The plugin's C ABI: JSON, raw memory and `repr(C)` structs, nothing with Rust's own layout. `kiln-torch-host` is the
//! other side.
//!
//! Every function that can fail catches panics. A failure leaves a JSON text `{"errors": [{message, source, module,
//! help}]}` in `*error`, which the caller frees with `kiln_torch_free_text`. Strings are UTF-8 with a length, not
//! NUL-terminated.
use crate::{
    Imported, Session,
    execute::{self, Memory},
    import,
};
use kiln_aten::{ImportErrors, Problem};
use kiln_graph::{DType, Tensor, Type};
use serde_json::json;
use std::{
    any::Any,
    ffi::{c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    ptr::null_mut,
    sync::atomic::{AtomicUsize, Ordering},
};

/// Bumped with every change of this ABI; the host refuses other versions.
pub const ABI_VERSION: u32 = 2;

/// A text owned by the caller; free it with `kiln_torch_free_text`.
#[repr(C)]
pub struct Text {
    ptr: *mut u8,
    len: usize,
}

/// A borrowed text: the caller's during a call, or one that lives as long as the object it came from.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    ptr: *const u8,
    len: usize,
}

/// A dense tensor in memory owned elsewhere. `dtype` is an index into `DType::ALL`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dense {
    ptr: *mut c_void,
    dtype: u32,
    rank: u32,
    sizes: *const usize,
}

/// An imported model: its JSON and its parameters' data.
pub struct ImportedModel {
    json: String,
    params: Vec<Tensor>,
}

/// A loaded module, and host copies of its last outputs.
pub struct RunningModule {
    session: Session,
    outputs: Vec<Tensor>,
}

type Outcome<T> = Result<T, ImportErrors>;

impl Str {
    /// # Safety
    /// The bytes must live during the call.
    unsafe fn get(&self) -> Outcome<&str> {
        if self.len == 0 {
            return Ok("");
        }
        // SAFETY: this function's contract.
        let bytes = unsafe { std::slice::from_raw_parts(self.ptr, self.len) };
        std::str::from_utf8(bytes).map_err(|_| Problem::new("a name or path is not UTF-8").into())
    }
}

impl Dense {
    /// # Safety
    /// `sizes` points at `rank` numbers.
    unsafe fn ty(&self) -> Outcome<Type> {
        let dtype = DType::ALL
            .get(self.dtype as usize)
            .ok_or_else(|| Problem::new(format!("element type number {} is unknown", self.dtype)))?;
        // SAFETY: this function's contract.
        let sizes = unsafe { list(self.sizes, self.rank as usize) };
        Ok(Type::new(*dtype, sizes))
    }
    /// # Safety
    /// As `ty`, and `ptr` holds a tensor of that type in host memory.
    unsafe fn host(&self) -> Outcome<Tensor> {
        // SAFETY: this function's contract.
        let ty = unsafe { self.ty() }?;
        let bytes = match ty.bytes() {
            0 => &[],
            // SAFETY: this function's contract: `ptr` holds a tensor of `n` bytes.
            n => unsafe { std::slice::from_raw_parts(self.ptr.cast::<u8>(), n) },
        };
        Tensor::from_bytes(ty, bytes).ok_or_else(|| Problem::new("a tensor's bytes do not fit its type").into())
    }
    /// # Safety
    /// As `ty`.
    unsafe fn memory(&self) -> Outcome<Memory> {
        // SAFETY: this function's contract.
        Ok(Memory { ptr: self.ptr, ty: unsafe { self.ty() }? })
    }
}

/// # Safety
/// `ptr` points at `n` items, or n is 0.
unsafe fn list<'a, T>(ptr: *const T, n: usize) -> &'a [T] {
    // SAFETY: this function's contract.
    if n == 0 { &[] } else { unsafe { std::slice::from_raw_parts(ptr, n) } }
}

fn give_text(s: String) -> Text {
    let bytes = s.into_bytes().into_boxed_slice();
    let len = bytes.len();
    Text { ptr: Box::into_raw(bytes).cast(), len }
}

fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text =
        payload.downcast_ref::<String>().cloned().or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
    text.unwrap_or_else(|| "unknown".into())
}

static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Counts the calling thread, once per thread.
fn note_thread() {
    thread_local! {
        static NOTED: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NOTED.with(|_| ());
}

/// Number of threads that have called this plugin. OpenMP keeps a thread pool for each of them.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_torch_threads() -> usize {
    THREADS.load(Ordering::Relaxed)
}

/// Runs `body`; errors and panics end up in `*error`.
///
/// # Safety
/// `error` can be written.
unsafe fn guarded<T>(error: *mut Text, otherwise: T, body: impl FnOnce() -> Outcome<T>) -> T {
    note_thread();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(v)) => return v,
        Ok(Err(e)) => e,
        Err(p) => Problem::new(format!("the TorchScript plugin panicked: {}", panic_text(p)))
            .help("this is a bug of Kiln; please report it with the model")
            .into(),
    };
    let text = serde_json::to_string(&failure).unwrap_or_else(|_| r#"{"errors":[]}"#.into());
    // SAFETY: this function's contract.
    unsafe { error.write(give_text(text)) };
    otherwise
}

/// The ABI version of this plugin. The host checks it before it resolves the other functions.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_torch_abi_version() -> u32 {
    ABI_VERSION
}

/// # Safety
/// `text` came from this plugin and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_free_text(text: Text) {
    if !text.ptr.is_null() {
        // SAFETY: made by `give_text`.
        drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(text.ptr, text.len)) });
    }
}

/// Writes a JSON list of forward's arguments to `out`: `[{name, type, optional}]`. Returns 0 on success.
///
/// # Safety
/// The pointers are valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_arguments(path: Str, out: *mut Text, error: *mut Text) -> c_int {
    // SAFETY: this function's contract. The pointers are read and written during the call alone.
    unsafe {
        guarded(error, 1, || {
            let arguments = import::arguments(Path::new(path.get()?))?;
            out.write(give_text(json!(arguments).to_string()));
            Ok(0)
        })
    }
}

/// Imports an archive on `n` example inputs in host memory. Returns null on failure.
///
/// # Safety
/// The pointers are valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_import(
    path: Str,
    inputs: *const Dense,
    n: usize,
    error: *mut Text,
) -> *mut ImportedModel {
    // SAFETY: this function's contract. The pointers are read and written during the call alone.
    unsafe {
        guarded(error, null_mut(), || {
            let inputs = list(inputs, n).iter().map(|d| d.host()).collect::<Outcome<Vec<_>>>()?;
            let Imported { graph, params, guards, structure } = import::import(Path::new(path.get()?), &inputs)?;
            let graph =
                graph.to_json().map_err(|e| Problem::new(format!("the graph cannot be written as JSON: {e}")))?;
            let rest = json!({ "guards": guards, "structure": structure }).to_string();
            let json = format!(r#"{{"graph":{graph},{}"#, &rest[1..]);
            Ok(Box::into_raw(Box::new(ImportedModel { json, params })))
        })
    }
}

/// The model as JSON, `{"graph": …, "guards": […], "structure": …}`. The text lives as long as the model.
///
/// # Safety
/// `model` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_imported_json(model: *const ImportedModel) -> Str {
    // SAFETY: this function's contract.
    let json = unsafe { &(*model).json };
    Str { ptr: json.as_ptr(), len: json.len() }
}

/// Returns the number of parameters. If `bytes` is not null, writes the data of parameter `i`, whose type is in the
/// graph.
///
/// # Safety
/// `model` is alive; `bytes` is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_imported_param(model: *const ImportedModel, i: usize, bytes: *mut Str) -> usize {
    // SAFETY: this function's contract.
    let params = unsafe { &(*model).params };
    if let (Some(t), false) = (params.get(i), bytes.is_null()) {
        // SAFETY: not null, so it can be written.
        unsafe { bytes.write(Str { ptr: t.bytes().as_ptr(), len: t.bytes().len() }) };
    }
    params.len()
}

/// # Safety
/// `model` came from `kiln_torch_import` and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_imported_free(model: *mut ImportedModel) {
    note_thread();
    // SAFETY: made by `Box::into_raw`, and freed once.
    drop(unsafe { Box::from_raw(model) });
}

/// Loads a module to run on these inputs. `device` -1 is the host; `threads` 0 keeps libtorch's default. Returns null
/// on failure.
///
/// # Safety
/// The pointers are valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_session(
    path: Str,
    inputs: *const Dense,
    n: usize,
    device: c_int,
    threads: usize,
    error: *mut Text,
) -> *mut RunningModule {
    // SAFETY: this function's contract. The pointers are read and written during the call alone.
    unsafe {
        guarded(error, null_mut(), || {
            let inputs = list(inputs, n).iter().map(|d| d.host()).collect::<Outcome<Vec<_>>>()?;
            let session = Session::open(Path::new(path.get()?), &inputs, device, threads)?;
            Ok(Box::into_raw(Box::new(RunningModule { session, outputs: vec![] })))
        })
    }
}

/// Runs forward once and waits for it. Returns 0 on success.
///
/// # Safety
/// `module` is alive and used by one thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_session_run(module: *mut RunningModule, error: *mut Text) -> c_int {
    // SAFETY: this function's contract.
    unsafe { guarded(error, 1, || (*module).session.run().map(|_| 0)) }
}

/// Copies the last run's outputs to the host and writes a JSON list of their types (`["f32[8,16]", …]`). Returns 0 on
/// success.
///
/// # Safety
/// `module` is alive and used by one thread; `types` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_session_outputs(
    module: *mut RunningModule,
    types: *mut Text,
    error: *mut Text,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe {
        guarded(error, 1, || {
            let module = &mut *module;
            module.outputs = module.session.outputs()?;
            let list: Vec<String> = module.outputs.iter().map(|t| t.ty.to_string()).collect();
            types.write(give_text(json!(list).to_string()));
            Ok(0)
        })
    }
}

/// Bytes of output `i`, as last copied by `kiln_torch_session_outputs`.
///
/// # Safety
/// `module` is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_session_output(module: *const RunningModule, i: usize) -> Str {
    // SAFETY: this function's contract.
    let outputs = unsafe { &(*module).outputs };
    let bytes = outputs.get(i).map_or(&[][..], |t| t.bytes());
    Str { ptr: bytes.as_ptr(), len: bytes.len() }
}

/// # Safety
/// `module` came from `kiln_torch_session` and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_session_free(module: *mut RunningModule) {
    note_thread();
    // SAFETY: made by `Box::into_raw`, and freed once.
    drop(unsafe { Box::from_raw(module) });
}

/// Runs one operator with operands `ins` and results `outs`, all dense and on `device` (-1: host). Returns 0 on
/// success.
///
/// # Safety
/// The pointers are valid for the call, and no result overlaps an operand.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_torch_call(
    name: Str,
    overload: Str,
    args: Str,
    ins: *const Dense,
    n_ins: usize,
    outs: *const Dense,
    n_outs: usize,
    device: c_int,
    error: *mut Text,
) -> c_int {
    // SAFETY: this function's contract. The pointers are read and written during the call alone.
    unsafe {
        guarded(error, 1, || {
            let ins = list(ins, n_ins).iter().map(|d| d.memory()).collect::<Outcome<Vec<_>>>()?;
            let outs = list(outs, n_outs).iter().map(|d| d.memory()).collect::<Outcome<Vec<_>>>()?;
            execute::call(name.get()?, overload.get()?, args.get()?, &ins, &outs, device)?;
            Ok(0)
        })
    }
}
