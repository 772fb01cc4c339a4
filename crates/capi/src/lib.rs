//! Kiln's C interface, `libkiln.so`: models run in the memory of a C program. `include/kiln.h` is made from these files and documents it.
//!
//! Takes: handles, addresses and text of a C caller. Gives: a status, and a message that the caller owns. Never: lets a panic reach the
//! caller ([`call`]), or keeps an address after the call that it was passed to.
//!
//! Names are those of C, so that the header and the source read alike. What a caller has to keep to is in the words of the header, so no
//! function has a section of its own for it.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]
mod call;
mod model;
mod session;
mod state;

pub use model::*;
pub use session::*;
pub use state::*;

use std::ffi::{CString, c_char};

/// What a call came to.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum kiln_status {
    /// It is done.
    KILN_OK = 0,
    /// The work failed: a file cannot be read, or a run went wrong.
    KILN_FAILED = 1,
    /// The call itself is wrong.
    KILN_USAGE = 2,
    /// The inputs do not fit the model: their number, element types or sizes.
    KILN_INPUTS = 3,
    /// The model has a part that Kiln does not compile.
    KILN_UNSUPPORTED = 4,
    /// A device is missing, out of memory, or fails.
    KILN_DEVICE = 5,
    /// A defect of Kiln. Please report it with the message. The handle must only be closed.
    KILN_DEFECT = 6,
}

/// Element types: one of the KILN_ constants below. 0 is none of them.
pub type kiln_dtype = i32;
/// 64-bit float.
pub const KILN_F64: kiln_dtype = 1;
/// 32-bit float.
pub const KILN_F32: kiln_dtype = 2;
/// 16-bit float of IEEE 754.
pub const KILN_F16: kiln_dtype = 3;
/// 16-bit float with the exponent of a 32-bit float.
pub const KILN_BF16: kiln_dtype = 4;
/// 8-bit float, PyTorch's float8_e4m3fn.
pub const KILN_F8E4M3: kiln_dtype = 5;
/// 8-bit float, PyTorch's float8_e5m2.
pub const KILN_F8E5M2: kiln_dtype = 6;
/// 64-bit signed integer.
pub const KILN_I64: kiln_dtype = 7;
/// 32-bit signed integer.
pub const KILN_I32: kiln_dtype = 8;
/// 16-bit signed integer.
pub const KILN_I16: kiln_dtype = 9;
/// 8-bit signed integer.
pub const KILN_I8: kiln_dtype = 10;
/// 8-bit unsigned integer.
pub const KILN_U8: kiln_dtype = 11;
/// One byte that is 0 or 1.
pub const KILN_BOOL: kiln_dtype = 12;

/// The type of a tensor, which is dense and row-major.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kiln_type {
    /// Type of the elements.
    pub dtype: kiln_dtype,
    /// Number of dimensions; 0 for one element.
    pub rank: usize,
    /// The sizes of its dimensions in elements, outermost first: `rank` numbers. In a type that a function gives they belong to the handle
    /// that was asked and live as long as it. -1 is a size that varies from call to call.
    pub shape: *const i64,
}

/// The version of this library, as "0.1.0". Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Bytes of an element; 0 if there is no such type.
#[unsafe(no_mangle)]
pub extern "C" fn kiln_dtype_size(dtype: kiln_dtype) -> usize {
    call::dtype(dtype).map_or(0, kiln::DType::bytes)
}

/// Frees a message that a call set. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kiln_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: made by `CString::into_raw` (`call::told`), and freed once, as the header asks.
        drop(unsafe { CString::from_raw(text) });
    }
}
