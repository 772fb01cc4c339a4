//! What a call needs of a binding, and whether its arguments are the binding's.
use super::{Engine, device_name, lock, of_input};
use crate::{
    errors::{InputError, UsageError},
    exchange::{CPU, CUDA, DLDevice, Exchange, Match, Wanted, dl_dtype, shape_of},
};
use kiln::{
    Binding, Feed, Param, Type, engine,
    program::{Arg, InputKind},
};
use pyo3::{prelude::*, types::*};
use std::sync::Arc;

/// All that a call needs of a binding.
pub struct Ready {
    pub binding: Arc<Binding>,
    inputs: Vec<Slot>,
    /// Addresses of state.
    states: Vec<u64>,
    /// The state's tensors.
    pub states_kept: Vec<Py<PyAny>>,
    pub outputs: Vec<Wanted>,
    /// For each output of the session, what it is left in, if anything.
    pub written: Vec<Option<Target>>,
    /// The same as inputs and outputs of the session, for runs that follow each other.
    pub feeds: Vec<Feed>,
    pub results: Vec<Given>,
}

/// What a call passes.
pub enum Slot {
    Tensor(Wanted),
    Number(i64),
    Constant(Arg),
}

/// Where a run leaves a value.
#[derive(Clone, Copy)]
pub enum Target {
    /// In the argument at this position.
    Input(usize),
    /// In a state of the binding.
    State(usize),
}

/// What a call gets.
pub enum Given {
    Output(usize),
    Object(Py<PyAny>),
}

impl Engine {
    /// What calls need of a binding; `numbers` are the inputs that are sizes.
    pub(crate) fn make_ready(
        &self,
        py: Python<'_>,
        exchange: &Exchange,
        binding: &Arc<Binding>,
        numbers: &[i64],
    ) -> PyResult<Ready> {
        let wanted = |ty: &Type| Wanted { dtype: dl_dtype(ty.dtype), shape: shape_of(ty), device: self.device };
        let (mut tensors, mut numbers) = (binding.inputs.iter(), numbers.iter());
        let slot = |input: &kiln::program::Input| match &input.kind {
            InputKind::Value(_) => tensors.next().map(|ty| Slot::Tensor(wanted(ty))),
            InputKind::Size(_) => numbers.next().map(|n| Slot::Number(*n)),
            InputKind::Constant(a) => Some(Slot::Constant(a.clone())),
        };
        let inputs = self.engine.program().inputs().iter().filter_map(slot).collect();
        let states: Vec<Py<PyAny>> =
            binding.states.iter().map(|s| self.state_tensor(py, exchange, *s)).collect::<PyResult<_>>()?;
        let address = |t: &Py<PyAny>| exchange.borrow(t.bind(py)).map(|b| b.address);
        let addresses = states.iter().map(address).collect::<PyResult<_>>()?;
        let executable = binding.session.executable();
        let mut written = vec![None; executable.outputs.len()];
        let positions = self.engine.tensor_positions();
        for w in &binding.copies {
            written[w.output] = Some(match positions.get(w.input) {
                Some(position) => Target::Input(*position),
                None => Target::State(w.input - positions.len()),
            });
        }
        let result = |r: &engine::Result| {
            Ok(match r {
                engine::Result::Tensor(i, _) => Given::Output(*i),
                engine::Result::Number(n) => Given::Object(n.into_pyobject(py)?.into_any().unbind()),
                engine::Result::Constant(a) => Given::Object(object(py, a)?),
                engine::Result::None => Given::Object(py.None()),
            })
        };
        Ok(Ready {
            binding: binding.clone(),
            inputs,
            states: addresses,
            states_kept: states,
            outputs: executable.outputs.iter().map(|b| wanted(executable.ty(*b))).collect(),
            written,
            feeds: binding.copies.iter().map(|w| (w.input, w.output)).collect(),
            results: binding.results.iter().map(result).collect::<PyResult<_>>()?,
        })
    }

    /// The tensor of a parameter that is state: torch's own, or one that is made from the file's contents.
    pub(crate) fn state_tensor(&self, py: Python<'_>, exchange: &Exchange, index: usize) -> PyResult<Py<PyAny>> {
        if let Some(t) = &lock(&self.tensors)[index] {
            return Ok(t.clone_ref(py));
        }
        let Param::Host(initial) = &self.engine.params()[index] else {
            return Err(UsageError::new_err("state lies in memory of a GPU that Python does not own"));
        };
        let cpu = Wanted {
            dtype: dl_dtype(initial.ty.dtype),
            shape: shape_of(&initial.ty),
            device: DLDevice { kind: CPU, id: 0 },
        };
        let (address, new) = exchange.allocate(py, &cpu)?;
        // SAFETY: torch has just allocated a dense tensor of this type.
        unsafe {
            let to = std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
            to.copy_from_nonoverlapping(initial.bytes().as_ptr(), initial.bytes().len());
        }
        let t = exchange.finish(py, new)?;
        let t = t.bind(py).call_method1("to", (device_name(self.device),))?.unbind();
        lock(&self.tensors)[index] = Some(t.clone_ref(py));
        Ok(t)
    }

    /// Addresses of a call's tensors; `None` if this binding is not the one for the call. Copies of tensors that are
    /// not dense go to `copies`, with the number of their address and the position of their argument.
    pub(crate) fn addresses(
        &self,
        exchange: &Exchange,
        ready: &Ready,
        args: &Bound<'_, PyList>,
        copies: &mut Vec<(usize, usize, Py<PyAny>)>,
    ) -> PyResult<Option<Vec<u64>>> {
        if args.len() != ready.inputs.len() {
            return Ok(None);
        }
        let mut all = Vec::with_capacity(ready.inputs.len() + ready.states.len());
        for (position, (slot, given)) in ready.inputs.iter().zip(args.iter()).enumerate() {
            match slot {
                Slot::Number(n) => {
                    if given.extract::<i64>().ok() != Some(*n) {
                        return Ok(None);
                    }
                }
                Slot::Constant(want) => same_constant(&self.engine.program().inputs()[position].name, want, &given)?,
                Slot::Tensor(want) => {
                    if !exchange.is_tensor(&given) {
                        return Ok(None);
                    }
                    let name = &self.engine.program().inputs()[position].name;
                    match exchange.compare(&given, want).map_err(|e| of_input(given.py(), name, &e))? {
                        Match::Other => return Ok(None),
                        Match::At(address) if self.is_aligned(address) => all.push(address),
                        // A copy is dense, and aligned as torch's allocator aligns.
                        Match::At(_) | Match::Strided => {
                            let contiguous = given.call_method0("resolve_neg")?.call_method0("detach")?;
                            let format = given.py().import("torch")?.getattr("contiguous_format")?;
                            let kwargs = PyDict::new(given.py());
                            kwargs.set_item("memory_format", format)?;
                            let copy = contiguous.call_method("clone", (), Some(&kwargs))?;
                            let Match::At(address) = exchange.compare(&copy, want)? else { return Ok(None) };
                            copies.push((all.len(), position, copy.unbind()));
                            all.push(address);
                        }
                    }
                }
            }
        }
        all.extend(&ready.states);
        Ok(Some(all))
    }
    /// Whether the device's code may read a tensor at this address.
    fn is_aligned(&self, address: u64) -> bool {
        self.device.kind != CUDA || address.is_multiple_of(kiln::CUDA_ALIGN as u64)
    }
}

/// A constant of the program as Python's object.
fn object(py: Python<'_>, a: &Arg) -> PyResult<Py<PyAny>> {
    Ok(match a {
        Arg::Int(n) => n.into_pyobject(py)?.into_any().unbind(),
        Arg::Float(x) => x.into_pyobject(py)?.into_any().unbind(),
        Arg::Bool(b) => PyBool::new(py, *b).to_owned().into_any().unbind(),
        Arg::Str(s) => s.into_pyobject(py)?.into_any().unbind(),
        _ => py.None(),
    })
}

/// Fails unless an argument is the one that the program was traced with.
fn same_constant(name: &str, want: &Arg, given: &Bound<'_, PyAny>) -> PyResult<()> {
    let same = match want {
        Arg::Int(_) | Arg::Float(_) | Arg::Bool(_) | Arg::Str(_) => {
            given.eq(object(given.py(), want)?.bind(given.py()))?
        }
        Arg::None => given.is_none(),
        _ => true,
    };
    if same {
        return Ok(());
    }
    let want = object(given.py(), want)?;
    let what =
        format!("input `{name}` is {given}, but the program was compiled for {want}; compile it again with this value");
    Err(InputError::new_err(what))
}
