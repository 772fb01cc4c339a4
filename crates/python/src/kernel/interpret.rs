//! A kernel run by the interpreter, with its findings and what it shows.
use super::arguments::Bound as Argument;
use super::{Kernel, failed, parameters, place, signature};
use crate::errors;
use crate::exchange::{CPU, DLDevice, Exchange};
use kiln::kernels::interpret::{CheckFinding, Interpreted, Operand, Shown};
use kiln::kernels::{self, SourcePlace};
use pyo3::{prelude::*, types::*};

impl Kernel {
    /// Runs all instances by the interpreter on the memory of CPU tensors. `show` is called with what the kernel
    /// prints; gives the findings of the checks as dictionaries.
    pub(super) fn run_interpreted<'py>(
        &self,
        py: Python<'py>,
        grid: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        show: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let (values, options) = self.parameters.bind(args, kwargs)?;
        let exchange = Exchange::of(py)?;
        let mut device = None;
        let arguments = self.parameters.classify(exchange, &values, &mut device)?;
        if device.is_some_and(|device| device.kind != CPU) {
            return Err(errors::KilnError::new_err("the interpreter runs on CPU tensors; please report it"));
        }
        let source = self.source(py, &arguments, options, place(DLDevice { kind: CPU, id: 0 })?)?;
        let signature = signature(&arguments, &source.literals);
        let made = py.detach(|| Interpreted::new(source.unit.clone(), &signature, &source.options));
        let kernel = made.map_err(failed)?;
        for line in kernel.printed() {
            py.import("builtins")?.call_method1("print", (line,))?;
        }
        let sizes = parameters::grid(grid, || self.parameters.named(py, &values))?;
        let operands: Option<Vec<Operand>> = kernel.parameters().iter().map(|path| operand(&arguments, path)).collect();
        let operands = operands.ok_or_else(|| {
            errors::KilnError::new_err("the interpreter needs tensors with memory: a launch is not `warmup`")
        })?;
        let mut raised = None;
        let mut tell = |shown: Shown| {
            show_value(py, show, &shown).map_err(|e| {
                raised = Some(e);
                "the observer ended the run".to_string()
            })
        };
        // SAFETY: arguments have the types of the program that was made for them; tensors live through this call.
        let found = unsafe { kernel.run(sizes, &operands, true, &mut tell) };
        if let Some(raised) = raised {
            return Err(raised);
        }
        let found = found.map_err(|why| errors::KilnError::new_err(format!("the interpreter stopped: {why}")))?;
        PyList::new(py, found.iter().map(|f| finding(py, f)).collect::<PyResult<Vec<_>>>()?)
    }
}

fn operand(arguments: &[Argument<'_>], path: &[usize]) -> Option<Operand> {
    let [first, rest @ ..] = path else { return None };
    let argument = arguments.get(*first)?;
    let passed = argument.passed(rest)?;
    let bytes = match passed {
        kernels::Argument::Address(_) => usize::try_from(argument.number(rest)?).ok()?,
        kernels::Argument::Scalar(_) => 0,
    };
    Some(Operand { argument: passed, bytes })
}

/// Calls the observer with the instance, file and line, the text, the names at a breakpoint, and for each value its
/// type, shape and bytes.
fn show_value(py: Python<'_>, show: &Bound<'_, PyAny>, shown: &Shown) -> PyResult<()> {
    let [x, y, z] = shown.instance;
    let values: Vec<_> = shown
        .values
        .iter()
        .map(|(elem, shape, bytes)| (elem.to_string(), shape.to_vec(), PyBytes::new(py, bytes)))
        .collect();
    let names = shown.names.map(<[String]>::to_vec);
    show.call1(((x, y, z), line(shown.place.as_ref()), shown.text, names, values)).map(|_| ())
}

fn line(place: Option<&SourcePlace>) -> Option<(String, usize)> {
    place.map(|place| (place.file.clone(), place.line))
}

fn finding<'py>(py: Python<'py>, found: &CheckFinding) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    all.set_item("kind", found.kind)?;
    all.set_item("message", found.to_string())?;
    all.set_item("tensor", found.tensor.clone())?;
    let [x, y, z] = found.instance;
    all.set_item("instance", (x, y, z))?;
    all.set_item("place", line(found.place.as_ref()))?;
    all.set_item("other", line(found.other.as_ref()))?;
    Ok(all)
}
