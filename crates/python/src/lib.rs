//! The native module of the Python package `kiln`: `kiln._native`.
//!
//! Takes: programs as JSON with torch's tensors, and torch's tensors for every call. Gives: an [`engine::Engine`] that
//! runs them in torch's memory, with its allocator and on its current stream. Never: links libtorch. Tensors come
//! through DLPack's C table ([`exchange`]), and operators that Kiln does not compile run through `torch.ops`
//! ([`fallback`]).
mod collective;
mod engine;
mod errors;
mod exchange;
mod fallback;
mod kernel;
mod options;

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};

/// Opens a `.pt2` program, an artifact or a text graph.
#[pyfunction]
fn open(py: Python<'_>, path: &str, options: &Bound<'_, PyDict>) -> PyResult<engine::Engine> {
    engine::Engine::open(py, path, options)
}

/// Waits for bindings that are being compiled on other threads, and lets go of those that wait; before the interpreter
/// ends.
#[pyfunction]
fn finish(py: Python<'_>) {
    py.detach(|| {
        kiln::kernels::finish();
        kiln::engine::finish_all();
    });
}

/// The calls of a program that Kiln refuses at the sizes of tracing: the ids of the results of each, why, and what to
/// do.
#[pyfunction]
fn refusals(py: Python<'_>, program: &str) -> PyResult<Vec<(Vec<usize>, String, String)>> {
    let found = py.detach(|| kiln::program::refusals(program)).map_err(errors::compiling)?;
    Ok(found.into_iter().map(|r| (r.outs, r.problem.message, r.problem.help)).collect())
}

/// What `kiln doctor` prints.
#[pyfunction]
fn doctor() -> String {
    kiln::doctor::text(&kiln::doctor::findings())
}

/// Which objects are at these positions, and where the memory of those that are tensors is: a key that is equal only if
/// both are.
#[pyfunction]
fn addresses<'py>(
    py: Python<'py>,
    items: &Bound<'py, PyList>,
    positions: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyBytes>> {
    let exchange = exchange::Exchange::of(py)?;
    let mut key: Vec<u8> = Vec::with_capacity(16 * positions.len());
    for position in positions {
        let item = items.get_item(position.extract()?)?;
        key.extend((item.as_ptr() as u64).to_ne_bytes());
        key.extend(exchange.address(&item)?.to_ne_bytes());
    }
    Ok(PyBytes::new(py, &key))
}

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<engine::Engine>()?;
    m.add_class::<kernel::Kernel>()?;
    m.add_class::<kernel::Launched>()?;
    m.add_class::<kernel::Launcher>()?;
    m.add_class::<kernel::NodeProgram>()?;
    m.add_function(wrap_pyfunction!(kernel::kernel_names, m)?)?;
    m.add_function(wrap_pyfunction!(kernel::launch_program, m)?)?;
    m.add_function(wrap_pyfunction!(kernel::find_kernel_times, m)?)?;
    m.add_function(wrap_pyfunction!(kernel::add_kernel_times, m)?)?;
    m.add_function(wrap_pyfunction!(open, m)?)?;
    m.add_function(wrap_pyfunction!(doctor, m)?)?;
    m.add_function(wrap_pyfunction!(refusals, m)?)?;
    m.add_function(wrap_pyfunction!(addresses, m)?)?;
    let finish = wrap_pyfunction!(finish, m)?;
    m.py().import("atexit")?.call_method1("register", (&finish,))?;
    m.add_function(finish)?;
    errors::add(m)
}
