//! What a launch gives: the variant that ran, at every stage.
use super::arguments::Bound as Argument;
use crate::errors;
use kiln::kernels::{self, LaunchValues};
use kiln::stages::Stage;
use pyo3::prelude::*;
use std::sync::Arc;

/// The variant of a kernel that a launch took, and the launch's numbers.
#[pyclass(frozen)]
pub struct Launched {
    kernel: Arc<kernels::Kernel>,
    values: LaunchValues,
}

impl Launched {
    pub fn new(kernel: Arc<kernels::Kernel>, values: LaunchValues) -> Launched {
        Launched { kernel, values }
    }
    /// The numbers of a launch: integers, and the bytes of tensors.
    pub fn values(kernel: &kernels::Kernel, arguments: &[Argument<'_>], grid: [usize; 3]) -> LaunchValues {
        let value = |path: &Vec<usize>| {
            let [first, rest @ ..] = &path[..] else { return None };
            arguments.get(*first)?.number(rest)
        };
        LaunchValues { grid, parameters: kernel.stages().parameters().iter().map(value).collect() }
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
    /// Registers of a thread, if ptxas is found.
    #[getter]
    fn n_regs(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.facts_of(py)?.code.and_then(|code| code.assembled).map(|a| a.registers))
    }
    /// Bytes of a thread that are kept in memory for want of registers, if ptxas is found.
    #[getter]
    fn n_spills(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        Ok(self.facts_of(py)?.code.and_then(|code| code.assembled).map(|a| a.spill_stores))
    }
    /// All of this as one HTML page that loads nothing.
    fn html(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.kernel.stages().html(self.known())).map_err(errors::raised)
    }
}

impl Launched {
    fn facts_of(&self, py: Python<'_>) -> PyResult<kernels::KernelFacts> {
        py.detach(|| self.kernel.stages().facts(self.known())).map_err(errors::raised)
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
