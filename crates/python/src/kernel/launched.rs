//! What a launch gives: the variant that ran, at every stage.
use super::arguments::Bound as Argument;
use super::{Kernel, Launcher};
use crate::errors;
use kiln::kernels::{self, LaunchValues};
use kiln::stages::Stage;
use pyo3::{prelude::*, types::PyDict};
use std::sync::{Arc, OnceLock};

/// The variant of a kernel that a launch took, and the launch's numbers.
pub struct Launch {
    pub kernel: Arc<kernels::Kernel>,
    pub values: LaunchValues,
}

/// What a launch is repeated with: its kernel, and what `warmup` passed by name.
pub struct Repeat {
    pub kernel: Py<Kernel>,
    pub kwargs: Option<Py<PyDict>>,
}

/// What a launch gives.
#[pyclass(frozen)]
pub struct Launched {
    kernel: Arc<kernels::Kernel>,
    values: LaunchValues,
    repeat: Repeat,
    /// Which configuration of a tuned kernel it was, and why.
    configuration: OnceLock<String>,
}

impl Launched {
    pub fn new(launch: Launch, repeat: Repeat) -> Launched {
        Launched { kernel: launch.kernel, values: launch.values, repeat, configuration: OnceLock::new() }
    }
    /// The numbers of a launch: integers, and the bytes of tensors.
    pub fn values(kernel: &kernels::Kernel, arguments: &[Argument<'_>], grid: [usize; 3]) -> LaunchValues {
        let known = kernel.stages().parameters();
        let mut parameters = Vec::with_capacity(known.len());
        for path in known {
            parameters.push(path.split_first().and_then(|(first, rest)| arguments.get(*first)?.number(rest)));
        }
        LaunchValues { grid, parameters }
    }
    fn text(&self, py: Python<'_>, stage: Stage) -> PyResult<String> {
        py.detach(|| self.kernel.stages().text(stage)).map_err(errors::raised)
    }
    fn known(&self) -> Option<&LaunchValues> {
        (!self.values.grid.contains(&0)).then_some(&self.values)
    }
}

#[pymethods]
impl Launched {
    /// The block program.
    #[getter]
    fn block(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, Stage::Block)
    }
    /// LLVM IR, before LLVM's own passes.
    #[getter]
    fn llvm(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, Stage::Llvm)
    }
    /// The PTX, of a kernel on a GPU.
    #[getter]
    fn ptx(&self) -> Option<&str> {
        self.kernel.stages().ptx()
    }
    /// The assembly as text: of this processor, or of the GPU by nvdisasm.
    fn assembly(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, Stage::Asm)
    }
    /// The assembly, and the stages by the names that Triton gives them.
    #[getter]
    fn asm(this: Py<Launched>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        made(py, "Assembly", (this,))
    }
    /// The program as it was written, then after each pass with what it changed.
    fn passes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all = py.detach(|| self.kernel.stages().passes()).map_err(errors::raised)?;
        let all: Vec<_> = all.into_iter().map(|pass| (pass.name, pass.text, pass.diff)).collect();
        made(py, "Passes", (all,))
    }
    /// Registers, spills, shared memory, occupancy, accesses, and the launch's predicted time.
    #[getter]
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let facts = self.facts_of(py)?;
        let json = serde_json::to_string(&facts)
            .map_err(|e| errors::KilnError::new_err(format!("the facts are not JSON: {e}; please report it")))?;
        made(py, "Facts", (json, facts.text()))
    }
    /// Registers of a thread, on a GPU.
    #[getter]
    fn n_regs(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        match self.kernel.registers() {
            Some((registers, _)) => Ok(Some(registers)),
            None => Ok(self.facts_of(py)?.code.and_then(|code| code.assembled).map(|a| a.registers)),
        }
    }
    /// Bytes of a thread that are kept in memory, on a GPU.
    #[getter]
    fn n_spills(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        match self.kernel.registers() {
            Some((_, spills)) => Ok(Some(spills)),
            None => Ok(self.facts_of(py)?.code.and_then(|code| code.assembled).map(|a| a.spill_stores)),
        }
    }
    /// Shared memory and warps, by the names that Triton gives them.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stages = self.kernel.stages();
        let values = PyDict::new(py);
        values.set_item("name", &stages.program().name)?;
        values.set_item("shared", stages.shared())?;
        values.set_item("num_warps", stages.program().warps)?;
        py.import("types")?.getattr("SimpleNamespace")?.call((), Some(&values))
    }
    /// The kernel with another grid, and what `warmup` passed by name: for ports, which launch what they compiled
    /// ahead. The variant is that of the arguments.
    fn __getitem__(&self, py: Python<'_>, grid: Py<PyAny>) -> Launcher {
        let earlier = self.repeat.kwargs.as_ref().map(|kwargs| kwargs.clone_ref(py));
        Launcher { kernel: self.repeat.kernel.clone_ref(py), grid, earlier }
    }
    /// Notes which configuration of a tuned kernel it was; the first note stays.
    #[pyo3(name = "_note_configuration")]
    fn note_configuration(&self, text: String) {
        let _ = self.configuration.set(text);
    }
    /// For ports: a variant is loaded when it is made.
    #[pyo3(name = "_init_handles")]
    fn init_handles(&self) {}
    /// All of this as one HTML page that loads nothing.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        let configuration = self.configuration.get().map(String::as_str);
        py.detach(|| self.kernel.stages().html(self.known(), configuration)).map_err(errors::raised)
    }
}

impl Launched {
    fn facts_of(&self, py: Python<'_>) -> PyResult<kernels::KernelFacts> {
        let facts = py.detach(|| self.kernel.stages().facts(self.known())).map_err(errors::raised)?;
        Ok(kernels::KernelFacts { configuration: self.configuration.get().cloned(), ..facts })
    }
}

/// An object of a class that Python has for its readers.
fn made<'py, A: pyo3::call::PyCallArgs<'py>>(
    py: Python<'py>,
    class: &str,
    arguments: A,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("kiln.kernels.handle")?.getattr(class)?.call1(arguments)
}
