//! Collectives: operators of torch.distributed that exchange tensors with other processes.
//!
//! Takes: an operator, its arguments, and the tensors that want its results. Gives: the results, complete as the
//! current stream sees them. torch.distributed starts a collective behind what the current stream has so far, and runs
//! it on a stream of its own; waiting for it makes the current stream wait, and the host only where there is no stream.
//! Never: changes the order of two collectives.
use crate::exchange::tensors;
use kiln::compile::FallbackOp;
use pyo3::{intern, prelude::*, types::*};

/// Operators with a form that writes where it is told, which saves a copy.
const IN_PLACE: [(&str, &str, Form); 4] = [
    ("_c10d_functional::all_gather_into_tensor", "all_gather_into_tensor_out", Form::Out),
    ("_c10d_functional::all_reduce", "all_reduce_", Form::OnOperand),
    ("_c10d_functional::broadcast", "broadcast_", Form::OnOperand),
    ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter_tensor_out", Form::Out),
];

/// How an operator writes in place.
#[derive(Clone, Copy)]
enum Form {
    /// It replaces its first operand.
    OnOperand,
    /// It has an argument `out`.
    Out,
}

/// Runs a collective. A result may be the tensor that wanted it.
pub fn run<'py>(
    functional: &Bound<'py, PyAny>,
    op: &FallbackOp,
    args: &[Bound<'py, PyAny>],
    wanted: &[Option<Bound<'py, PyAny>>],
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let py = functional.py();
    let namespace = py.import(intern!(py, "torch"))?.getattr(intern!(py, "ops"))?.getattr("_c10d_functional")?;
    let form = IN_PLACE.iter().find(|(name, ..)| *name == op.name);
    // Older releases of torch lack some of these forms.
    let form = form.and_then(|(_, name, form)| Some((namespace.getattr(*name).ok()?, *form)));
    let given = match (&form, wanted) {
        (Some((write, Form::OnOperand)), [Some(out)]) => {
            out.call_method1(intern!(py, "copy_"), (&args[0],))?;
            let args: Vec<_> = std::iter::once(out).chain(&args[1..]).collect();
            write.call1(PyTuple::new(py, args)?)?
        }
        (Some((write, Form::Out)), [Some(out)]) => {
            let kwargs = PyDict::new(py);
            kwargs.set_item(intern!(py, "out"), out)?;
            write.call(PyTuple::new(py, args)?, Some(&kwargs))?
        }
        _ => functional.call1(PyTuple::new(py, args)?)?,
    };
    let wait = namespace.getattr(intern!(py, "wait_tensor"))?;
    let waited: Vec<Bound<'py, PyAny>> =
        tensors(&given)?.into_iter().map(|t| wait.call1((t,))).collect::<PyResult<_>>()?;
    match (form.is_some(), wanted) {
        // The result is in its place.
        (true, [Some(out)]) => Ok(vec![out.clone()]),
        _ => Ok(waited),
    }
}
