//! Operators that Kiln does not compile, run by `torch.ops` on Kiln's buffers.
//!
//! Takes: an operator, and addresses of its operands and results. The operator runs on torch's current stream, as
//! Kiln's kernels do, so nothing waits for the device. Collectives run by torch.distributed on a stream of its own, for
//! which the current one then waits.
use crate::{
    collective,
    exchange::{CPU, CUDA, DLDevice, Exchange, tensors},
};
use kiln::{
    Graph, Tensor, Type,
    compile::{Callbacks, DeviceTensor, FallbackOp, Refused, interpret, is_collective},
};
use pyo3::{intern, prelude::*, types::*};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

/// Callbacks that go to torch.
#[derive(Default)]
pub struct Torch {
    /// Why a collective failed.
    failed: Mutex<Option<PyErr>>,
}

impl Torch {
    /// The exception of a collective that failed since the last time, to be raised as it is.
    pub fn take_failure(&self) -> Option<PyErr> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Runs an operator. A collective that fails is not tried again: other processes have gone on, or wait for the next
    /// one.
    fn attempt(
        &self,
        op: &FallbackOp,
        args: &[DeviceTensor],
        results: &[DeviceTensor],
        device: DLDevice,
    ) -> Result<(), Refused> {
        // The lock is never held while a thread waits for the interpreter.
        let failed = || self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if is_collective(&op.name) && failed().is_some() {
            return Err(Refused::Op(format!("{} has failed", op.name)));
        }
        Python::attach(|py| run(py, op, args, results, device)).map_err(|e| {
            let why = Refused::Op(format!("{}: {e}", op.name));
            if is_collective(&op.name) {
                *failed() = Some(e);
            }
            why
        })
    }
}

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

fn unread(value: &Value) -> PyErr {
    crate::errors::KilnError::new_err(format!("an operator's argument {value} cannot be read; please report it"))
}

/// An argument; `operands` are the tensors that it may name.
fn argument<'py>(py: Python<'py>, value: &Value, operands: &[Bound<'py, PyAny>]) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Bool(b) => PyBool::new(py, *b).to_owned().into_any(),
        Value::Number(n) => match n.as_i64() {
            Some(n) => n.into_pyobject(py)?.into_any(),
            None => n.as_f64().ok_or_else(|| unread(value))?.into_pyobject(py)?.into_any(),
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
                let x: f64 = x.parse().map_err(|_| unread(value))?;
                return Ok(x.into_pyobject(py)?.into_any());
            }
            let device = o.get("device").and_then(Value::as_str).ok_or_else(|| unread(value))?;
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
    let wanted: Vec<Option<Bound<'_, PyAny>>> = results
        .iter()
        .map(|t| Some(t).filter(|t| t.address != 0 && t.ty.count() > 0).map(&view).transpose())
        .collect::<PyResult<_>>()?;
    let called = prepared.operator.bind(py);
    // None of the operands wants a gradient, so none of the results does.
    let given = match is_collective(&op.name) {
        true => collective::run(called, op, &values, &wanted)?,
        false => {
            let (by_position, by_name) = values.split_at(values.len().saturating_sub(prepared.by_name.len()));
            let kwargs = PyDict::new(py);
            for (name, value) in prepared.by_name.iter().zip(by_name) {
                kwargs.set_item(name, value)?;
            }
            tensors(&called.call(PyTuple::new(py, by_position)?, Some(&kwargs))?)?
        }
    };
    for (want, value) in wanted.iter().zip(given) {
        let Some(want) = want.as_ref().filter(|want| !want.is(&value)) else { continue };
        let shape = |t: &Bound<'_, PyAny>| t.getattr(intern!(py, "shape"))?.extract::<Vec<usize>>();
        let (given, traced) = (shape(&value)?, shape(want)?);
        if given != traced {
            let what = format!("{} gave the shape {given:?} where {traced:?} was traced", op.name);
            return Err(crate::errors::InputError::new_err(what));
        }
        want.call_method1(intern!(py, "copy_"), (value,))?;
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
        self.attempt(op, &operands, &outs, DLDevice { kind: CPU, id: 0 }).map(|()| results)
    }
    fn interpret(&self, body: &Graph, args: &[Tensor]) -> Result<Vec<Tensor>, Refused> {
        interpret(self, body, args)
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
        self.attempt(op, args, results, device).ok()
    }
    fn in_order(&self) -> bool {
        true
    }
    fn on_calling_thread(&self) -> bool {
        true
    }
}
