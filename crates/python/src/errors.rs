//! Exceptions. Each kind of failure has a class of its own, below `kiln.KilnError`.
use kiln::{Error, RuntimeError};
use pyo3::{create_exception, exceptions::PyRuntimeError, prelude::*};
use std::borrow::Borrow;

create_exception!(kiln, KilnError, PyRuntimeError, "Kiln cannot do what was asked.");
create_exception!(kiln, UnsupportedError, KilnError, "The program has a part that Kiln does not compile.");
create_exception!(kiln, ShapeError, KilnError, "An input has another dtype, rank or size than the program takes.");
create_exception!(kiln, InputError, KilnError, "An argument is not what the program takes.");
create_exception!(kiln, DeviceError, KilnError, "A device is missing, out of memory, or fails.");
create_exception!(kiln, UsageError, KilnError, "A call of Kiln's own functions is wrong.");

/// Adds the classes to the module.
pub fn add(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    m.add("KilnError", py.get_type::<KilnError>())?;
    m.add("UnsupportedError", py.get_type::<UnsupportedError>())?;
    m.add("ShapeError", py.get_type::<ShapeError>())?;
    m.add("InputError", py.get_type::<InputError>())?;
    m.add("DeviceError", py.get_type::<DeviceError>())?;
    m.add("UsageError", py.get_type::<UsageError>())
}

/// The exception for an error of the library.
pub fn raised(e: impl Borrow<Error>) -> PyErr {
    let text = e.borrow().sentence();
    match e.borrow() {
        Error::Usage { .. } => UsageError::new_err(text),
        Error::Inputs { .. } => ShapeError::new_err(text),
        Error::Model { .. } => UnsupportedError::new_err(text),
        Error::Runtime(RuntimeError::Index { .. }) => InputError::new_err(text),
        Error::Runtime(RuntimeError::Device { .. } | RuntimeError::Driver { .. } | RuntimeError::Memory { .. }) => {
            DeviceError::new_err(text)
        }
        Error::Failed { .. } | Error::Runtime(_) => KilnError::new_err(text),
    }
}

/// The exception for an error while a program is compiled: what Kiln cannot compile is unsupported.
pub fn compiling(e: impl Borrow<Error>) -> PyErr {
    match e.borrow() {
        Error::Failed { .. } => UnsupportedError::new_err(e.borrow().sentence()),
        other => raised(other),
    }
}
