//! Kernels for launches in graphs: their programs as text, and launches of such a text where no graph is compiled.
//!
//! While a model is traced, a launch becomes a call of an operator (`kiln/kernels/node.py`) that has the program as
//! text. PyTorch runs the operator by [`launch_program`], and Kiln makes a node of a graph of it.
use super::{Kernel, call_error, exception, failed, launch, parameters, place, signature, variants::without_numbers};
use crate::errors;
use crate::exchange::{CPU, DLDevice, Exchange};
use kiln::DeviceKind;
use kiln::kernels::node::{self, NodeKind};
use kiln::kernels::{self, BlockProgram, Elem, PointerPlace, PointerStart, PointerUse, Type};
use pyo3::{prelude::*, types::*};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A kernel's program for launches with arguments of some types.
#[pyclass(frozen)]
pub struct NodeProgram(node::NodeProgram);

impl Kernel {
    pub(super) fn program_for_graphs<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        device: &str,
    ) -> PyResult<NodeProgram> {
        let (values, options) = self.parameters.bind(args, Some(kwargs))?;
        let exchange = Exchange::of(py)?;
        let arguments = self.parameters.classify(exchange, &values, &mut None)?;
        let constants = PyList::empty(py);
        for argument in &arguments {
            argument.constants(&mut |object| constants.append(object))?;
        }
        let described = self.described(py, &constants)?;
        let signature = without_numbers(signature(&arguments, &described.literals));
        let kind = if device == "cpu" { DeviceKind::Cpu } else { DeviceKind::Cuda(0) };
        let made = py.detach(|| node::NodeProgram::new(&described.unit, &signature, &options, kind));
        Ok(NodeProgram(made.map_err(failed)?))
    }
}

/// A program for a graph: its name and text, and the names of its parameters that are tensors, integers and floats.
type Placed = (String, String, Vec<String>, Vec<String>, Vec<String>);

#[pymethods]
impl NodeProgram {
    /// For each parameter of the program the argument that it is, with the place in it, and whether it is `read`,
    /// `written`, `updated`, an `integer` or a `float`.
    #[getter]
    fn parameters(&self) -> Vec<(Vec<usize>, &'static str)> {
        let word = |kind| match kind {
            NodeKind::Tensor(PointerUse::Read) => "read",
            NodeKind::Tensor(PointerUse::Written) => "written",
            NodeKind::Tensor(PointerUse::Updated) => "updated",
            NodeKind::Integer => "integer",
            NodeKind::Float => "float",
        };
        self.0.parameters().iter().map(|p| (p.path.clone(), word(p.kind))).collect()
    }
    /// The program with its pointers in memories: for each pointer the number of its memory, and whether an argument
    /// says where in it the pointer starts.
    fn placed(&self, places: Vec<(usize, bool)>) -> PyResult<Placed> {
        let start = |shifted| if shifted { PointerStart::Argument } else { PointerStart::Beginning };
        let places: Vec<PointerPlace> =
            places.into_iter().map(|(memory, shifted)| PointerPlace { memory, start: start(shifted) }).collect();
        let placed = self.0.placed(&places).map_err(|why| exception("KernelUnsupported", why))?;
        Ok((placed.text.name, placed.text.text, placed.pointers, placed.integers, placed.floats))
    }
}

/// Launches a program of this text over a grid, with a tensor or a number for each parameter by its name.
#[pyfunction]
pub fn launch_program<'py>(
    py: Python<'py>,
    text: &str,
    grid: &Bound<'py, PyAny>,
    arguments: &Bound<'py, PyDict>,
) -> PyResult<()> {
    let exchange = Exchange::of(py)?;
    let program =
        kernels::parse(text).map_err(|e| errors::KilnError::new_err(format!("the text of a program: {e}")))?;
    let mut device = None;
    let mut passed = Vec::with_capacity(program.params.len());
    for param in &program.params {
        let value = arguments
            .get_item(&param.name)?
            .ok_or_else(|| call_error(format!("{} lacks the argument `{}`", program.name, param.name)))?;
        passed.push(match program.ty(param.value) {
            Type::Ptr { .. } => {
                let pointed = exchange.pointer(&value)?;
                device = device.or(Some(pointed.device));
                kernels::Argument::Address(pointed.address)
            }
            ty => number(ty.elem().unwrap_or(Elem::I32), &value)?,
        });
    }
    let device = device.unwrap_or(DLDevice { kind: CPU, id: 0 });
    let kernel = compiled(py, text, &program, device)?;
    let sizes = parameters::grid(grid, || Ok(PyDict::new(py)))?;
    let stream = exchange.stream(py, device)?.unwrap_or(0);
    if sizes.contains(&0) { Ok(()) } else { launch(py, &kernel, &passed, sizes, stream) }
}

/// A number as code takes it.
fn number(elem: Elem, value: &Bound<'_, PyAny>) -> PyResult<kernels::Argument> {
    if elem.is_float() {
        let x: f64 = value.extract()?;
        return Ok(if elem == Elem::F64 { kernels::Argument::from(x) } else { kernels::Argument::from(x as f32) });
    }
    let n: i64 = value.extract()?;
    Ok(match (elem, elem.bytes()) {
        (Elem::Bool, _) => kernels::Argument::from(n != 0),
        (_, 1) => kernels::Argument::from(n as u8),
        (_, 2) => kernels::Argument::from(n as u16),
        (_, 4) => kernels::Argument::from(n as u32),
        _ => kernels::Argument::from(n as u64),
    })
}

/// Code for a device, by the text of its program.
type Compiled = HashMap<(String, i32, i32), Arc<kernels::Kernel>>;

/// The code of a program on a device, compiled once.
fn compiled(py: Python<'_>, text: &str, program: &BlockProgram, device: DLDevice) -> PyResult<Arc<kernels::Kernel>> {
    static COMPILED: OnceLock<Mutex<Compiled>> = OnceLock::new();
    let known = || COMPILED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key = (text.to_string(), device.kind, device.id);
    if let Some(kernel) = known().get(&key) {
        return Ok(kernel.clone());
    }
    let place = place(device)?;
    let kernel = Arc::new(py.detach(|| kernels::Kernel::of_program(program, place)).map_err(failed)?);
    known().insert(key, kernel.clone());
    Ok(kernel)
}
