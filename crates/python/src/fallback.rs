//! Operators that Kiln does not compile, run by `torch.ops` on Kiln's buffers.
//!
//! Takes: an operator, and addresses of its operands and results. The operator runs on torch's current stream, as Kiln's kernels do, so
//! nothing waits for the device.
use crate::exchange::{CPU, CUDA, DLDevice, Exchange};
use kiln::{
    Graph, Tensor, Type,
    compile::{Callbacks, DeviceTensor, FallbackOp, Reference, Refused},
};
use pyo3::{intern, prelude::*, types::*};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

/// Callbacks that go to torch.
pub struct Torch;

/// An operator that is ready to be called.
struct Prepared {
    /// `torch.ops.NAMESPACE.NAME.OVERLOAD`.
    operator: Py<PyAny>,
    args: Vec<Value>,
    /// Names of the arguments that torch takes by name alone; they are the last ones.
    by_name: Vec<String>,
}

/// By name, overload and arguments.
type Known = Mutex<HashMap<(String, String, String), Arc<Prepared>>>;

fn prepared(py: Python<'_>, op: &FallbackOp) -> PyResult<Arc<Prepared>> {
    static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);
    let key = (op.name.clone(), op.overload.clone(), op.args.clone());
    // What the lock guards is changed by single insertions.
    if let Some(found) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Ok(found.clone());
    }
    let (namespace, name) = op.name.split_once("::").unwrap_or(("aten", &op.name));
    let overload = if op.overload.is_empty() { "default" } else { &op.overload };
    let operator = py.import("torch")?.getattr("ops")?.getattr(namespace)?.getattr(name)?.getattr(overload)?;
    let mut by_name = vec![];
    for argument in operator.getattr("_schema")?.getattr("arguments")?.try_iter()? {
        let argument = argument?;
        if argument.getattr("kwarg_only")?.extract()? {
            by_name.push(argument.getattr("name")?.extract()?);
        }
    }
    let unread = |e| crate::errors::KilnError::new_err(format!("arguments of {}: {e}", op.name));
    let args = serde_json::from_str(&op.args).map_err(unread)?;
    let made = Arc::new(Prepared { operator: operator.unbind(), args, by_name });
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(key, made.clone());
    Ok(made)
}

/// An argument; `operands` are the tensors that it may name.
fn argument<'py>(py: Python<'py>, value: &Value, operands: &[Bound<'py, PyAny>]) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(b) => PyBool::new(py, *b).to_owned().into_any(),
        Value::Number(n) => match n.as_i64() {
            Some(n) => n.into_pyobject(py)?.into_any(),
            None => n.as_f64().unwrap_or(f64::NAN).into_pyobject(py)?.into_any(),
        },
        Value::String(s) => s.into_pyobject(py)?.into_any(),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|v| argument(py, v, operands)).collect::<PyResult<_>>()?;
            PyList::new(py, items)?.into_any()
        }
        Value::Object(o) => {
            if let Some(i) = o.get("tensor").and_then(Value::as_u64) {
                let found = operands.get(i as usize).cloned();
                return found.ok_or_else(|| crate::errors::KilnError::new_err("an operator has too few operands"));
            }
            if let Some(x) = o.get("float").and_then(Value::as_str) {
                return Ok(x.parse().unwrap_or(f64::NAN).into_pyobject(py)?.into_any());
            }
            let device = o.get("device").and_then(Value::as_str).unwrap_or("cpu");
            py.import(intern!(py, "torch"))?.call_method1(intern!(py, "device"), (device,))?
        }
    })
}

/// Runs an operator and copies its results; those with the address 0 are not wanted.
fn run(
    py: Python<'_>,
    op: &FallbackOp,
    args: &[DeviceTensor],
    results: &[DeviceTensor],
    device: DLDevice,
) -> PyResult<()> {
    let exchange = Exchange::of(py)?;
    let prepared = prepared(py, op)?;
    // SAFETY: the buffers stay in place until the run has ended, in stream order; nothing keeps the tensors.
    let view = |t: &DeviceTensor| unsafe { exchange.view(py, &t.ty, t.address, device) }.map(|t| t.into_bound(py));
    let operands: Vec<Bound<'_, PyAny>> = args.iter().map(view).collect::<PyResult<_>>()?;
    let values: Vec<_> = prepared.args.iter().map(|v| argument(py, v, &operands)).collect::<PyResult<_>>()?;
    let (by_position, by_name) = values.split_at(values.len().saturating_sub(prepared.by_name.len()));
    let kwargs = PyDict::new(py);
    for (name, value) in prepared.by_name.iter().zip(by_name) {
        kwargs.set_item(name, value)?;
    }
    // None of the operands wants a gradient, so none of the results does.
    let given = prepared.operator.bind(py).call(PyTuple::new(py, by_position)?, Some(&kwargs))?;
    let given: Vec<Bound<'_, PyAny>> = match given.is_instance_of::<PyTuple>() || given.is_instance_of::<PyList>() {
        true => given.try_iter()?.collect::<PyResult<_>>()?,
        false => vec![given],
    };
    for (t, value) in results.iter().zip(given).filter(|(t, _)| t.address != 0 && t.ty.count() > 0) {
        let shape: Vec<usize> = value.getattr(intern!(py, "shape"))?.extract()?;
        if shape != t.ty.shape {
            let what = format!("{} gave the shape {shape:?} where {} was traced", op.name, t.ty);
            return Err(crate::errors::InputError::new_err(what));
        }
        view(t)?.call_method1(intern!(py, "copy_"), (value,))?;
    }
    Ok(())
}

impl Callbacks for Torch {
    fn fallback(&self, op: &FallbackOp, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        let mut results: Vec<Tensor> = op.results.iter().map(|ty| Tensor::zeros(ty.clone())).collect();
        let place = |ty: &Type, at: *const u8| DeviceTensor { ty: ty.clone(), address: at as u64 };
        let operands: Vec<DeviceTensor> = args.iter().map(|t| place(&t.ty, t.bytes().as_ptr())).collect();
        let outs: Vec<DeviceTensor> =
            results.iter_mut().map(|t| place(&t.ty.clone(), t.bytes_mut().as_mut_ptr())).collect();
        let done = Python::attach(|py| run(py, op, &operands, &outs, DLDevice { kind: CPU, id: 0 }));
        done.map(|()| results).map_err(|e| Refused::Op(format!("{}: {e}", op.name)))
    }
    fn interpret(&self, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        Reference.interpret(body, args)
    }
    fn fallback_in_place(
        &self,
        op: &FallbackOp,
        args: &[DeviceTensor],
        results: &[DeviceTensor],
        cuda: Option<usize>,
    ) -> Option<()> {
        let device = match cuda {
            Some(index) => DLDevice { kind: CUDA, id: i32::try_from(index).ok()? },
            None => DLDevice { kind: CPU, id: 0 },
        };
        // On failure the session calls `fallback`, which tells why.
        Python::attach(|py| run(py, op, args, results, device)).ok()
    }
    fn in_order(&self) -> bool {
        true
    }
}
