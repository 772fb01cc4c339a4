//! The C ABI of the shim in `cpp/`, and thin RAII owners of its handles.
//!
//! Every function that can fail takes `error`: on failure it receives a JSON text, `{"errors": […]}`, which the caller
//! must free.
use kiln_aten::{ImportErrors, Problem};
use kiln_graph::{DType, Tensor, Type};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr::{NonNull, null_mut},
};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident),*) => { $($(#[$doc])* #[repr(C)] pub struct $name { _private: [u8; 0] })* };
}
opaque!(RawArchive, RawSession, RawTensor, RawValue);

unsafe extern "C" {
    pub fn kt_open(path: *const c_char, error: *mut *mut c_char) -> *mut RawArchive;
    pub fn kt_close(archive: *mut RawArchive);
    pub fn kt_arguments(archive: *mut RawArchive, error: *mut *mut c_char) -> *const c_char;
    pub fn kt_specialise(
        archive: *mut RawArchive,
        tensors: *const *mut RawTensor,
        n: c_int,
        error: *mut *mut c_char,
    ) -> *const c_char;
    pub fn kt_value(archive: *mut RawArchive, id: c_int, error: *mut *mut c_char) -> *mut RawTensor;
    pub fn kt_free_text(text: *mut c_char);

    pub fn kt_session(
        path: *const c_char,
        device: c_int,
        tensors: *const *mut RawTensor,
        n: c_int,
        error: *mut *mut c_char,
    ) -> *mut RawSession;
    pub fn kt_session_close(session: *mut RawSession);
    pub fn kt_session_run(session: *mut RawSession, error: *mut *mut c_char) -> c_int;
    pub fn kt_session_output(session: *mut RawSession, i: c_int, error: *mut *mut c_char) -> *mut RawTensor;
    pub fn kt_set_threads(n: c_int);

    pub fn kt_call(
        name: *const c_char,
        overload: *const c_char,
        ins: *const *mut RawValue,
        n: c_int,
        into: *const *mut RawTensor,
        n_into: c_int,
        device: c_int,
        outs: *mut *mut RawTensor,
        most: c_int,
        error: *mut *mut c_char,
    ) -> c_int;
    pub fn kt_tensor(
        data: *mut c_void,
        dtype: c_int,
        sizes: *const i64,
        rank: c_int,
        device: c_int,
        error: *mut *mut c_char,
    ) -> *mut RawTensor;
    pub fn kt_tensor_type(t: *const RawTensor, sizes: *mut i64) -> c_int;
    pub fn kt_tensor_copy(dst: *mut RawTensor, src: *const RawTensor, error: *mut *mut c_char) -> c_int;
    pub fn kt_tensor_data(t: *const RawTensor) -> *const c_void;
    pub fn kt_tensor_free(t: *mut RawTensor);

    pub fn kt_iv_tensor(t: *const RawTensor) -> *mut RawValue;
    pub fn kt_iv_none() -> *mut RawValue;
    pub fn kt_iv_int(v: i64) -> *mut RawValue;
    pub fn kt_iv_float(v: f64) -> *mut RawValue;
    pub fn kt_iv_bool(v: c_int) -> *mut RawValue;
    pub fn kt_iv_str(v: *const c_char) -> *mut RawValue;
    pub fn kt_iv_device() -> *mut RawValue;
    pub fn kt_iv_list(items: *const *mut RawValue, n: c_int) -> *mut RawValue;
    pub fn kt_iv_free(v: *mut RawValue);
}

/// Parses and frees the JSON text that the shim left in `error`.
///
/// # Safety
/// `error` is null or a text from the shim that was not freed.
pub unsafe fn take_error(error: *mut c_char) -> ImportErrors {
    if error.is_null() {
        return Problem::new("libtorch failed without a message").into();
    }
    // SAFETY: a NUL-terminated text of the shim, freed once, here.
    let text = unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        kt_free_text(error);
        text
    };
    serde_json::from_str(&text).unwrap_or_else(|_| Problem::new(text).into())
}

/// Calls a shim function that reports through `error`; a null result is a failure.
pub fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> *mut T) -> Result<NonNull<T>, ImportErrors> {
    let mut error = null_mut();
    let result = call(&mut error);
    // SAFETY: `error` was null and only the shim wrote it.
    NonNull::new(result).ok_or_else(|| unsafe { take_error(error) })
}

/// Calls a shim function that reports through `error`; a negative result is a failure.
pub fn checked_count(call: impl FnOnce(*mut *mut c_char) -> c_int) -> Result<usize, ImportErrors> {
    let mut error = null_mut();
    let result = call(&mut error);
    // SAFETY: `error` was null and only the shim wrote it.
    usize::try_from(result).map_err(|_| unsafe { take_error(error) })
}

pub fn c_string(text: &str) -> Result<CString, ImportErrors> {
    CString::new(text).map_err(|_| Problem::new(format!("`{}` contains a NUL byte", text.escape_debug())).into())
}

/// A libtorch tensor. It may borrow the caller's memory: see [`TorchTensor::over`].
pub struct TorchTensor(NonNull<RawTensor>);

impl Drop for TorchTensor {
    fn drop(&mut self) {
        // SAFETY: owned, freed once.
        unsafe { kt_tensor_free(self.0.as_ptr()) }
    }
}

impl TorchTensor {
    /// # Safety
    /// `raw` is a tensor from the shim that nothing else frees.
    pub unsafe fn from_raw(raw: NonNull<RawTensor>) -> TorchTensor {
        TorchTensor(raw)
    }

    /// A non-owning tensor over the caller's memory; `device` -1 is the host.
    ///
    /// # Safety
    /// `data` holds a dense tensor of type `ty` on that device and outlives the result and all views of it.
    pub unsafe fn over(data: *mut c_void, ty: &Type, device: c_int) -> Result<TorchTensor, ImportErrors> {
        let sizes: Vec<i64> = ty.shape.iter().map(|d| *d as i64).collect();
        let rank = sizes.len() as c_int;
        // SAFETY: this function's contract; as many sizes as the rank; `e` can be written.
        checked(|e| unsafe { kt_tensor(data, c_int::from(ty.dtype.torch_number()), sizes.as_ptr(), rank, device, e) })
            .map(TorchTensor)
    }

    pub fn as_ptr(&self) -> *mut RawTensor {
        self.0.as_ptr()
    }

    pub fn ty(&self) -> Result<Type, ImportErrors> {
        let mut sizes = [0i64; 16];
        // SAFETY: room for 16 sizes, as the shim asks.
        let packed = unsafe { kt_tensor_type(self.as_ptr(), sizes.as_mut_ptr()) };
        let (number, rank) = (i64::from(packed / 100), (packed % 100) as usize);
        let dtype = DType::of_torch_number(number)
            .ok_or_else(|| Problem::new(format!("libtorch gave a tensor of element type number {number}")))?;
        let sizes = sizes.get(..rank).ok_or_else(|| Problem::new(format!("libtorch gave a tensor of rank {rank}")))?;
        Ok(Type::new(dtype, sizes.iter().map(|d| *d as usize).collect::<Vec<_>>()))
    }

    /// A dense host copy.
    pub fn to_host(&self) -> Result<Tensor, ImportErrors> {
        let ty = self.ty()?;
        let what = format!("a copy of libtorch's {ty}");
        let mut host = Tensor::try_zeros(ty.clone(), &what).map_err(|e| Problem::new(e.to_string()))?;
        if ty.count() > 0 {
            // SAFETY: the buffer is dense, of this type, and outlives `over`.
            let over = unsafe { TorchTensor::over(host.bytes_mut().as_mut_ptr().cast(), &ty, -1) }?;
            over.copy_from(self)?;
        }
        Ok(host)
    }

    pub fn copy_from(&self, src: &TorchTensor) -> Result<(), ImportErrors> {
        // SAFETY: two live tensors; `e` can be written.
        checked_count(|e| unsafe { kt_tensor_copy(self.as_ptr(), src.as_ptr(), e) }).map(|_| ())
    }

    pub fn data(&self) -> *const c_void {
        // SAFETY: a live tensor.
        unsafe { kt_tensor_data(self.as_ptr()) }
    }
}
