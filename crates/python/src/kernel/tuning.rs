//! What the autotuner asks for: the quote of a configuration, and times that are stored on disk.
use super::{Kernel, failed, parameters, place, signature};
use crate::errors;
use crate::exchange::{CPU, DLDevice, Exchange};
use kiln::kernels::tunings::{ConfigurationTime, KernelEntry, KernelKey, Tunings, compiler};
use kiln::kernels::{LaunchValues, Quote};
use pyo3::{prelude::*, types::*};
use serde::Serialize;

impl Kernel {
    /// Prices a launch, says which program it runs and which arguments its runs change. Other threads run meanwhile.
    pub(super) fn quoted<'py>(
        &self,
        py: Python<'py>,
        grid: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<String> {
        let (values, options) = self.parameters.bind(args, Some(kwargs))?;
        let exchange = Exchange::of(py)?;
        let mut device = None;
        let arguments = self.parameters.classify(exchange, &values, &mut device)?;
        let place = place(device.unwrap_or(DLDevice { kind: CPU, id: 0 }))?;
        let source = self.source(py, &arguments, options, place)?;
        let signature = signature(&arguments, &source.literals);
        let grid = parameters::grid(grid, || self.parameters.named(py, &values))?;
        let front = py.detach(|| Quote::front(&source.unit, &signature, &source.options, place)).map_err(failed)?;
        let number = |path: &Vec<usize>| {
            let (first, rest) = path.split_first()?;
            arguments.get(*first)?.number(rest)
        };
        let launch = LaunchValues { grid, parameters: front.parameters().iter().map(number).collect() };
        let quote = py.detach(|| front.quote(&launch, place));
        to_json(&quote)
    }
}

fn to_json(value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value)
        .map_err(|e| errors::KilnError::new_err(format!("what tuning asks for is not JSON: {e}; please report it")))
}

/// Where times are stored: the kernel's name, the digest of its text, the values of its key, and the device.
#[derive(FromPyObject)]
pub struct StoredKey {
    name: String,
    digest: String,
    arguments: String,
    on_gpu: bool,
    device: i32,
}

impl StoredKey {
    fn key(self) -> PyResult<KernelKey> {
        let kind = if self.on_gpu { crate::exchange::CUDA } else { CPU };
        let machine = place(DLDevice { kind, id: self.device })?.tuned_machine();
        let StoredKey { name: kernel, digest, arguments, .. } = self;
        Ok(KernelKey { kernel, digest, arguments, machine, compiler: compiler() })
    }
}

/// The times that are stored for a key, as JSON; `None`: none, or there is no cache.
#[pyfunction]
pub fn find_kernel_times(key: StoredKey) -> PyResult<Option<String>> {
    let Some(tunings) = Tunings::standard() else { return Ok(None) };
    tunings.find(&key.key()?).map(|entry| to_json(&entry)).transpose()
}

/// Stores times of configurations, given as JSON. Without a cache nothing is stored.
#[pyfunction]
pub fn add_kernel_times(py: Python<'_>, key: StoredKey, times: &str) -> PyResult<()> {
    let Some(tunings) = Tunings::standard() else { return Ok(()) };
    let times: Vec<ConfigurationTime> = serde_json::from_str(times).map_err(|e| {
        errors::KilnError::new_err(format!("times of configurations cannot be read: {e}; please report it"))
    })?;
    let mut entry = KernelEntry::new(key.key()?);
    times.into_iter().for_each(|time| entry.put(time));
    py.detach(|| tunings.add(entry)).map_err(errors::raised)
}
