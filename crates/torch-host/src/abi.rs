//! The plugin's C ABI as seen from the host: mirrors the `repr(C)` types and functions of
//! `crates/torchscript/src/plugin.rs`.
//!
//! Resolves the plugin's symbols after checking its ABI version, and turns its JSON errors into [`TorchError`].
use crate::error::{ImportErrors, Problem, TorchError};
use kiln_graph::{DType, Tensor, Type};
use libloading::os::unix::Library;
use std::{
    ffi::{c_int, c_void},
    marker::PhantomData,
    path::Path,
    ptr::{null, null_mut},
};

/// Bumped with every change of the ABI; both sides must agree.
pub const ABI_VERSION: u32 = 2;

/// A text allocated by the plugin; freed by [`Symbols::take`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Text {
    ptr: *mut u8,
    len: usize,
}

impl Text {
    pub const EMPTY: Text = Text { ptr: null_mut(), len: 0 };
}

/// A borrowed text: lent to the plugin for one call, or owned by the plugin object it came from.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Str {
    ptr: *const u8,
    len: usize,
}

impl Str {
    pub const EMPTY: Str = Str { ptr: null(), len: 0 };
    pub fn new(s: &str) -> Str {
        Str { ptr: s.as_ptr(), len: s.len() }
    }
    /// # Safety
    /// The bytes must live for `'a`.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: this function's contract.
        if self.len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.ptr, self.len) } }
    }
}

/// A dense tensor in memory owned elsewhere; borrows the sizes of its [`Type`].
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dense<'a> {
    ptr: *mut c_void,
    dtype: u32,
    rank: u32,
    sizes: *const usize,
    borrows: PhantomData<&'a Type>,
}

impl<'a> Dense<'a> {
    pub fn new(ptr: *mut c_void, ty: &'a Type) -> Dense<'a> {
        let dtype = DType::ALL.iter().position(|d| *d == ty.dtype).unwrap_or_default() as u32;
        Dense { ptr, dtype, rank: ty.rank() as u32, sizes: ty.shape.as_ptr(), borrows: PhantomData }
    }
    pub fn host(t: &'a Tensor) -> Dense<'a> {
        Dense::new(t.bytes().as_ptr().cast_mut().cast(), &t.ty)
    }
}

/// Opaque handle of an imported model.
#[repr(C)]
pub struct RawModel {
    _private: [u8; 0],
}
/// Opaque handle of a module loaded for execution.
#[repr(C)]
pub struct RawModule {
    _private: [u8; 0],
}

type Inputs<'a> = *const Dense<'a>;

/// The plugin's functions, each documented in `crates/torchscript/src/plugin.rs`.
pub struct Symbols {
    pub arguments: unsafe extern "C" fn(Str, *mut Text, *mut Text) -> c_int,
    pub import: unsafe extern "C" fn(Str, Inputs, usize, *mut Text) -> *mut RawModel,
    pub imported_json: unsafe extern "C" fn(*const RawModel) -> Str,
    pub imported_param: unsafe extern "C" fn(*const RawModel, usize, *mut Str) -> usize,
    pub imported_free: unsafe extern "C" fn(*mut RawModel),
    pub session: unsafe extern "C" fn(Str, Inputs, usize, c_int, usize, *mut Text) -> *mut RawModule,
    pub session_run: unsafe extern "C" fn(*mut RawModule, *mut Text) -> c_int,
    pub session_outputs: unsafe extern "C" fn(*mut RawModule, *mut Text, *mut Text) -> c_int,
    pub session_output: unsafe extern "C" fn(*const RawModule, usize) -> Str,
    pub session_free: unsafe extern "C" fn(*mut RawModule),
    pub call: unsafe extern "C" fn(Str, Str, Str, Inputs, usize, Inputs, usize, c_int, *mut Text) -> c_int,
    pub threads: unsafe extern "C" fn() -> usize,
    free_text: unsafe extern "C" fn(Text),
}

impl Symbols {
    /// Resolves all functions. The library is never closed.
    pub fn resolve(library: Library, path: &Path) -> Result<Symbols, TorchError> {
        // SAFETY: `T` is the type that this ABI version gives the function.
        unsafe fn get<T: Copy>(library: &Library, path: &Path, name: &str) -> Result<T, TorchError> {
            // SAFETY: this function's contract.
            let symbol = unsafe { library.get::<T>(name.as_bytes()) };
            symbol.map(|s| *s).map_err(|e| TorchError::Open { path: path.into(), what: e.to_string() })
        }
        // SAFETY: as above, for each line; the version is checked first.
        let symbols = unsafe {
            let version: extern "C" fn() -> u32 = get(&library, path, "kiln_torch_abi_version")?;
            if version() != ABI_VERSION {
                return Err(TorchError::Version { path: path.into(), found: version(), wanted: ABI_VERSION });
            }
            Symbols {
                arguments: get(&library, path, "kiln_torch_arguments")?,
                import: get(&library, path, "kiln_torch_import")?,
                imported_json: get(&library, path, "kiln_torch_imported_json")?,
                imported_param: get(&library, path, "kiln_torch_imported_param")?,
                imported_free: get(&library, path, "kiln_torch_imported_free")?,
                session: get(&library, path, "kiln_torch_session")?,
                session_run: get(&library, path, "kiln_torch_session_run")?,
                session_outputs: get(&library, path, "kiln_torch_session_outputs")?,
                session_output: get(&library, path, "kiln_torch_session_output")?,
                session_free: get(&library, path, "kiln_torch_session_free")?,
                call: get(&library, path, "kiln_torch_call")?,
                threads: get(&library, path, "kiln_torch_threads")?,
                free_text: get(&library, path, "kiln_torch_free_text")?,
            }
        };
        std::mem::forget(library);
        Ok(symbols)
    }

    /// Copies a text of the plugin, then frees the original.
    fn take(&self, text: Text) -> String {
        if text.ptr.is_null() {
            return String::new();
        }
        // SAFETY: the plugin allocated the text; it is freed exactly once.
        unsafe {
            let copy = String::from_utf8_lossy(std::slice::from_raw_parts(text.ptr, text.len)).into_owned();
            (self.free_text)(text);
            copy
        }
    }

    /// Gives the error of a failed call, and frees its text either way.
    pub fn checked(&self, worked: bool, error: Text) -> Result<(), TorchError> {
        let text = self.take(error);
        if worked {
            return Ok(());
        }
        let errors = serde_json::from_str::<ImportErrors>(&text)
            .unwrap_or_else(|_| ImportErrors { errors: vec![Problem { message: text, ..Problem::default() }] });
        Err(TorchError::Model(errors))
    }

    pub fn json<T: serde::de::DeserializeOwned>(&self, text: Text) -> Result<T, TorchError> {
        parse(&self.take(text))
    }
}

pub fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, TorchError> {
    serde_json::from_str(text).map_err(|e| TorchError::Plugin(e.to_string()))
}
