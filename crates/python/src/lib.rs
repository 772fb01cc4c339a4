//! The native module of the Python package `kiln`: `kiln._native`.
//!
//! Takes: programs as JSON with torch's tensors, and torch's tensors for every call. Gives: an [`engine::Engine`] that runs them in torch's
//! memory, with its allocator and on its current stream. Never: links libtorch. Tensors come through DLPack's C table ([`exchange`]), and
//! operators that Kiln does not compile run through `torch.ops` ([`fallback`]).
mod collective;
mod engine;
mod errors;
mod exchange;
mod fallback;
mod options;

use pyo3::{prelude::*, types::PyDict};

/// Opens a `.pt2` program, an artifact or a text graph.
#[pyfunction]
fn open(py: Python<'_>, path: &str, options: &Bound<'_, PyDict>) -> PyResult<engine::Engine> {
    engine::Engine::open(py, path, options)
}

/// What `kiln doctor` prints.
#[pyfunction]
fn doctor() -> String {
    kiln::doctor::text(&kiln::doctor::findings())
}

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<engine::Engine>()?;
    m.add_function(wrap_pyfunction!(open, m)?)?;
    m.add_function(wrap_pyfunction!(doctor, m)?)?;
    errors::add(m)
}
