//! What every call does at the border: catches panics, turns errors into statuses and messages, and reads what C passes.
use crate::{kiln_dtype, kiln_status, kiln_type};
use kiln::{DType, Error, RuntimeError, Type};
use std::{
    any::Any,
    ffi::{CStr, CString, c_char},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::null_mut,
};

/// Does the work of a call. A panic becomes [`kiln_status::KILN_DEFECT`]. The message of a failure goes to `error`, which is set to null
/// otherwise; it may be null itself.
///
/// # Safety
/// `error` is null or may be written.
pub unsafe fn guarded(error: *mut *mut c_char, work: impl FnOnce() -> Result<(), Error>) -> kiln_status {
    // What a panic leaves behind is behind locks that the library recovers, or in a handle that only may be closed.
    let (status, message) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => (kiln_status::KILN_OK, null_mut()),
        Ok(Err(e)) => (status(&e), told(e.sentence())),
        Err(panic) => (kiln_status::KILN_DEFECT, told(defect(&*panic))),
    };
    match error.is_null() {
        // SAFETY: made by `told`, and nobody else has it; null is allowed.
        true => unsafe { crate::kiln_string_free(message) },
        // SAFETY: this function's contract.
        false => unsafe { error.write(message) },
    }
    status
}

fn status(e: &Error) -> kiln_status {
    use RuntimeError as R;
    match e {
        Error::Usage { .. } | Error::Runtime(R::InputCount { .. } | R::OutputCount { .. }) => kiln_status::KILN_USAGE,
        Error::Inputs { .. } | Error::Runtime(R::InputType { .. } | R::Index { .. }) => kiln_status::KILN_INPUTS,
        Error::Model { .. } => kiln_status::KILN_UNSUPPORTED,
        Error::Runtime(R::Device { .. } | R::Driver { .. } | R::Memory { .. } | R::HostMemory(_)) => {
            kiln_status::KILN_DEVICE
        }
        Error::Failed { .. } | Error::Runtime(_) => kiln_status::KILN_FAILED,
    }
}

fn defect(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("a defect of Kiln: {}; please report it with the model", said.unwrap_or("no message"))
}

/// Text that C owns.
fn told(text: String) -> *mut c_char {
    // A zero byte would end the text.
    CString::new(text.replace('\0', " ")).map_or(null_mut(), CString::into_raw)
}

/// The text at an address.
///
/// # Safety
/// `text` is null, or a text with a zero byte at its end that nobody writes.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Error> {
    if text.is_null() {
        return Err(missing(what));
    }
    // SAFETY: this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Error::usage(format!("{what} is not UTF-8"), "pass UTF-8 text"))
}

/// What a handle points to.
///
/// # Safety
/// `handle` is null, or points to a live `T`.
pub unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Error> {
    // SAFETY: this function's contract.
    unsafe { handle.as_ref() }.ok_or_else(|| missing(what))
}

/// An array of C.
///
/// # Safety
/// `at` is null, or points to `count` values that nobody writes.
pub unsafe fn array<'a, T>(at: *const T, count: usize, what: &str) -> Result<&'a [T], Error> {
    match (at.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(missing(what)),
        // SAFETY: this function's contract.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(at, count) }),
    }
}

/// The error for a null pointer.
pub fn missing(what: &str) -> Error {
    Error::usage(format!("{what} is NULL"), "pass its address")
}

/// Kiln's type of a tensor.
///
/// # Safety
/// The shape of `ty` is null, or points to its numbers.
pub unsafe fn read_type(ty: &kiln_type, what: &str) -> Result<Type, Error> {
    // SAFETY: this function's contract.
    let shape = unsafe { array(ty.shape, ty.rank, &format!("the shape of {what}")) }?;
    let negative = |n: &i64| Error::usage(format!("{what} has a size of {n}"), "give the size that the tensor has");
    let shape: Vec<usize> =
        shape.iter().map(|n| usize::try_from(*n).map_err(|_| negative(n))).collect::<Result<_, _>>()?;
    let unknown = || Error::usage(format!("{what} has the unknown dtype {}", ty.dtype), "give one of kiln.h");
    let dtype = dtype(ty.dtype).ok_or_else(unknown)?;
    let fits = shape.iter().try_fold(dtype.bytes(), |n, d| n.checked_mul(*d)).is_some_and(|n| n < 1 << 47);
    match fits {
        true => Ok(Type::new(dtype, shape)),
        false => Err(Error::usage(format!("{what} is larger than any memory"), "check its sizes")),
    }
}

/// A type as C reads it: its numbers live as long as this.
pub struct Shown {
    dtype: kiln_dtype,
    shape: Vec<i64>,
}
impl Shown {
    /// `None` is a size that varies.
    pub fn new(dtype: Option<DType>, shape: impl IntoIterator<Item = Option<usize>>) -> Shown {
        let number = dtype.and_then(|d| DTYPES.iter().find(|row| row.1 == d)).map_or(0, |row| row.0);
        let size = |n: Option<usize>| n.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1);
        Shown { dtype: number, shape: shape.into_iter().map(size).collect() }
    }
    /// The type of a tensor.
    pub fn of(ty: &Type) -> Shown {
        Shown::new(Some(ty.dtype), ty.shape.iter().map(|n| Some(*n)))
    }
    /// Borrows the numbers.
    pub fn view(&self) -> kiln_type {
        kiln_type { dtype: self.dtype, rank: self.shape.len(), shape: self.shape.as_ptr() }
    }
    /// In the place of a type that does not exist.
    pub fn nothing() -> kiln_type {
        kiln_type { dtype: 0, rank: 0, shape: std::ptr::null() }
    }
}

/// Numbers of dtypes.
const DTYPES: [(kiln_dtype, DType); 12] = [
    (crate::KILN_F64, DType::F64),
    (crate::KILN_F32, DType::F32),
    (crate::KILN_F16, DType::F16),
    (crate::KILN_BF16, DType::Bf16),
    (crate::KILN_F8E4M3, DType::F8e4m3),
    (crate::KILN_F8E5M2, DType::F8e5m2),
    (crate::KILN_I64, DType::I64),
    (crate::KILN_I32, DType::I32),
    (crate::KILN_I16, DType::I16),
    (crate::KILN_I8, DType::I8),
    (crate::KILN_U8, DType::U8),
    (crate::KILN_BOOL, DType::Bool),
];
const _: () = assert!(DTYPES.len() == DType::ALL.len());

/// The dtype of a number.
pub fn dtype(number: kiln_dtype) -> Option<DType> {
    DTYPES.iter().find(|row| row.0 == number).map(|row| row.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(work: impl FnOnce() -> Result<(), Error>) -> (kiln_status, Option<String>) {
        let mut error = std::ptr::without_provenance_mut(1);
        // SAFETY: the address of a pointer.
        let status = unsafe { guarded(&mut error, work) };
        if error.is_null() {
            return (status, None);
        }
        // SAFETY: a message that `guarded` has set, freed once.
        let text = unsafe { CStr::from_ptr(error) }.to_str().expect("UTF-8").to_string();
        // SAFETY: as above.
        unsafe { crate::kiln_string_free(error) };
        (status, Some(text))
    }

    #[test]
    fn panics_end_at_the_border() {
        let (status, said) = call(|| panic!("row {} is missing", 7));
        assert_eq!(status, kiln_status::KILN_DEFECT);
        assert_eq!(said.expect("a message"), "a defect of Kiln: row 7 is missing; please report it with the model");
        // SAFETY: null is allowed.
        assert_eq!(unsafe { guarded(null_mut(), || panic!("unheard")) }, kiln_status::KILN_DEFECT);
    }

    #[test]
    fn messages_have_the_remedy_and_no_zero_byte() {
        assert_eq!(call(|| Ok(())), (kiln_status::KILN_OK, None));
        let said = call(|| Err(Error::usage("no\0thing", "do more")));
        assert_eq!(said, (kiln_status::KILN_USAGE, Some("no thing; do more".into())));
    }

    #[test]
    fn every_dtype_has_a_number_of_its_own() {
        for d in DType::ALL {
            let shown = Shown::of(&Type::new(d, [2])).view();
            assert_eq!(dtype(shown.dtype), Some(d));
        }
        assert_eq!(dtype(0), None);
    }
}
