//! Kernels that people write, called from Python: arguments are bound to parameters, the variant for their types and
//! facts is looked up or compiled, and its code is launched.
//!
//! Python gives a kernel's source and what its names are bound to only when a variant is compiled
//! (`kiln/kernels/source.py`).
mod arguments;
mod interpret;
mod key;
mod launch_key;
mod launched;
mod node;
mod parameters;
mod tuning;
mod variants;

pub use launched::Launched;
pub use node::{NodeProgram, launch_program};
pub use tuning::{add_kernel_times, find_kernel_times};

use crate::errors;
use crate::exchange::{CPU, DLDevice, Exchange};
use arguments::Bound as Argument;
use key::Key;
use kiln::DeviceKind;
use kiln::kernels::{self, Failure, Options, Place, Signature, Unit};
use launch_key::LaunchKey;
use parameters::Parameters;
use pyo3::{exceptions::PyTypeError, intern, prelude::*, types::*};
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use variants::{Found, Keys, Source, Variants};

/// The dotted names of a kernel's text that it does not define.
#[pyfunction]
pub fn kernel_names(source: &str) -> Vec<String> {
    // A source that cannot be read has no names, and the launch says why.
    kernels::free_names(source).unwrap_or_default()
}

/// A kernel with its parameters and compiled variants.
#[pyclass(frozen)]
pub struct Kernel {
    parameters: Parameters,
    /// Gives the source: a function of a list of constants to JSON, a [`Described`].
    describe: Py<PyAny>,
    variants: Mutex<Variants>,
}

/// What Python says of a kernel: its functions, and constants of the launch as the compiler takes them.
#[derive(Deserialize)]
struct Described {
    unit: Unit,
    literals: Vec<kernels::Literal>,
}

/// A kernel with a grid: what `kernel[grid]` gives.
#[pyclass(frozen)]
pub struct Launcher {
    kernel: Py<Kernel>,
    grid: Py<PyAny>,
    /// What `warmup` passed by name, where the call passes nothing else.
    earlier: Option<Py<PyDict>>,
}

#[pymethods]
impl Launcher {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Launched> {
        let (mut warmup, mut options) = (false, None);
        let earlier = self.with_earlier(py, args, kwargs)?;
        let kwargs = earlier.as_ref().or(kwargs);
        if let Some(kwargs) = kwargs
            && let Some(value) = kwargs.get_item(intern!(py, "warmup"))?
        {
            warmup = value.is_truthy()?;
            let without = kwargs.copy()?;
            without.del_item(intern!(py, "warmup"))?;
            options = Some(without);
        }
        let kwargs = options.as_ref().or(kwargs);
        let found = self.kernel.get().launch(py, self.grid.bind(py), args, kwargs, warmup)?;
        // A launch's tensors are not kept alive by what it gives.
        let kwargs = kwargs.filter(|_| warmup).map(|kwargs| kwargs.clone().unbind());
        Ok(Launched::new(found, launched::Repeat { kernel: self.kernel.clone_ref(py), kwargs }))
    }
}

impl Launcher {
    /// What a call passes by name, and what `warmup` did that the call does not pass.
    fn with_earlier<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(earlier) = &self.earlier else { return Ok(None) };
        let all = PyDict::new(py);
        for (name, value) in earlier.bind(py).iter() {
            let place = self.kernel.get().parameters.place(name.cast::<PyString>()?.to_str()?);
            if place.is_none_or(|place| place >= args.len()) {
                all.set_item(name, value)?;
            }
        }
        if let Some(kwargs) = kwargs {
            all.update(kwargs.as_mapping())?;
        }
        Ok(Some(all))
    }
}

#[pymethods]
impl Kernel {
    /// Parameters are tuples of name, whether it is a constant, the type that its annotation says, whether facts about
    /// its value are used, and its default (a tuple of one) or `None`.
    #[new]
    fn new(parameters: &Bound<'_, PyList>, describe: Py<PyAny>) -> PyResult<Kernel> {
        Ok(Kernel { parameters: Parameters::new(parameters)?, describe, variants: Mutex::default() })
    }
    /// Forgets what was compiled: the source is another.
    fn clear(&self) {
        *self.known() = Variants::default();
    }
    /// Runs the kernel by the interpreter on CPU tensors: `show` is called with what it prints. Gives the findings of
    /// the checks.
    fn interpret<'py>(
        &self,
        py: Python<'py>,
        grid: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        show: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.run_interpreted(py, grid, args, Some(kwargs), show)
    }
    /// The program for launches in graphs, with arguments of these types on a device (`cpu` or `cuda`).
    fn node_program<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
        device: &str,
    ) -> PyResult<NodeProgram> {
        self.program_for_graphs(py, args, kwargs, device)
    }
    /// What tuning asks of a launch before anything is generated for the device, as JSON.
    fn quote<'py>(
        &self,
        py: Python<'py>,
        grid: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<String> {
        self.quoted(py, grid, args, kwargs)
    }
    /// The kernel with a grid: sizes, or a function of the arguments by name.
    fn at(this: Py<Kernel>, grid: Py<PyAny>) -> Launcher {
        Launcher { kernel: this, grid, earlier: None }
    }
}

impl Kernel {
    fn known(&self) -> MutexGuard<'_, Variants> {
        self.variants.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Launches the kernel over a grid; only compiles with `warmup`, for all facts of the arguments.
    fn launch<'py>(
        &self,
        py: Python<'py>,
        grid: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        warmup: bool,
    ) -> PyResult<launched::Launch> {
        let (values, options) = self.parameters.bind(args, kwargs)?;
        let exchange = Exchange::of(py)?;
        let mut device = None;
        let arguments = self.parameters.classify(exchange, &values, &mut device)?;
        let device = device.unwrap_or(DLDevice { kind: CPU, id: 0 });
        let launch_key = LaunchKey::new(&arguments, &options, device);
        let stream = exchange.stream(py, device)?.unwrap_or(0);
        let known = self.known().launched(&launch_key);
        let Chosen { kernel, is_new } = match known {
            Some(kernel) => Chosen { kernel, is_new: false },
            None => {
                let keys = Keys { variant: Key::new(&arguments, &options, device), launch: launch_key };
                let at = At { place: place(device)?, stream, waits: warmup };
                self.variant(py, keys, &arguments, options, at)?
            }
        };
        let sizes = parameters::grid(grid, || self.parameters.named(py, &values))?;
        let passed = passed(&kernel, &arguments)?;
        if !warmup && !sizes.contains(&0) {
            launch(py, &kernel, &passed, sizes, stream)?;
        }
        let values = Launched::values(&kernel, &arguments, sizes);
        if is_new && !warmup {
            warn(py, &kernel.stages().outside(&values))?;
        }
        Ok(launched::Launch { kernel, values })
    }
    /// The code for a launch: what was compiled for its facts or for some of them, otherwise it is compiled.
    fn variant(
        &self,
        py: Python<'_>,
        keys: Keys,
        arguments: &[Argument<'_>],
        options: Options,
        at: At,
    ) -> PyResult<Chosen> {
        let mut waits = at.waits;
        loop {
            let describe = |source: &Source| signature(arguments, &source.literals);
            let loads = || !at.place.captures(at.stream);
            let found = self.known().find(&keys, describe, loads);
            match found {
                Found::Weaker(_, pending) if waits && loads() => {
                    py.detach(|| pending.wait());
                    waits = false;
                }
                Found::Weaker(kernel, _) => return Ok(Chosen { kernel, is_new: false }),
                Found::Variant(kernel) => return Ok(Chosen { kernel, is_new: false }),
                Found::Pending(pending) => py.detach(|| pending.wait()),
                Found::Nothing(source) => {
                    let source = match source {
                        Some(source) => source,
                        None => Arc::new(self.source(py, arguments, options, at.place)?),
                    };
                    let kernel = self.compile(py, keys, arguments, source)?;
                    return Ok(Chosen { kernel, is_new: true });
                }
            }
        }
    }
    /// What Python says of the kernel, for a variant.
    fn source(
        &self,
        py: Python<'_>,
        arguments: &[Argument<'_>],
        options: Options,
        place: &'static Place,
    ) -> PyResult<Source> {
        let constants = PyList::empty(py);
        for argument in arguments {
            argument.constants(&mut |object| constants.append(object))?;
        }
        let Described { unit, literals } = self.described(py, &constants)?;
        Ok(Source { unit, literals, options, place, _constants: constants.unbind() })
    }
    /// What Python says of the kernel with these constants.
    fn described<'py>(&self, py: Python<'py>, constants: &Bound<'py, PyList>) -> PyResult<Described> {
        let text: String = self.describe.bind(py).call1((constants,))?.extract()?;
        serde_json::from_str(&text)
            .map_err(|e| errors::KilnError::new_err(format!("a kernel's source cannot be read: {e}; please report it")))
    }
    fn compile(
        &self,
        py: Python<'_>,
        keys: Keys,
        arguments: &[Argument<'_>],
        source: Arc<Source>,
    ) -> PyResult<Arc<kernels::Kernel>> {
        let signature = signature(arguments, &source.literals);
        kernels::postpone();
        let made = py.detach(|| kernels::Kernel::compile(&source.unit, &signature, &source.options, source.place));
        kernels::postpone();
        let kernel = Arc::new(made.map_err(failed)?);
        for line in kernel.printed() {
            py.import("builtins")?.call_method1("print", (line,))?;
        }
        self.known().insert(keys, &kernel, signature, source);
        Ok(kernel)
    }
}

/// The arguments of a variant's code.
fn passed(kernel: &kernels::Kernel, arguments: &[Argument<'_>]) -> PyResult<Vec<kernels::Argument>> {
    let parameters = kernel.stages().parameters();
    let mut all = Vec::with_capacity(parameters.len());
    for path in parameters {
        let Some(passed) = path.split_first().and_then(|(first, rest)| arguments.get(*first)?.passed(rest)) else {
            let what = "a kernel's code takes an argument that the launch has not; please report it";
            return Err(errors::KilnError::new_err(what));
        };
        all.push(passed);
    }
    Ok(all)
}

/// The variant for a launch.
struct Chosen {
    kernel: Arc<kernels::Kernel>,
    /// This launch has compiled it.
    is_new: bool,
}

/// Where a launch runs.
#[derive(Clone, Copy)]
struct At {
    place: &'static Place,
    stream: u64,
    /// It waits for code for all facts of its arguments.
    waits: bool,
}

/// Types and facts of a launch's arguments.
fn signature(arguments: &[Argument<'_>], literals: &[kernels::Literal]) -> Signature {
    let mut literals = literals.iter().cloned();
    Signature { arguments: arguments.iter().map(|a| a.known(&mut literals)).collect() }
}

fn launch(
    py: Python<'_>,
    kernel: &kernels::Kernel,
    passed: &[kernels::Argument],
    grid: [usize; 3],
    stream: u64,
) -> PyResult<()> {
    // SAFETY: arguments have the types of the variant that was looked up by them; tensors live through this call, and
    // torch's allocator keeps their memory in the order of the stream.
    let launch = || unsafe { kernel.launch(grid, passed, stream) };
    // A launch on a GPU takes less than another thread's turn.
    if kernel.is_on_gpu() { launch() } else { py.detach(launch) }.map_err(errors::raised)
}

/// Tells of accesses that are out of bounds for certain, at the user's line.
fn warn(py: Python<'_>, sentences: &[String]) -> PyResult<()> {
    if sentences.is_empty() {
        return Ok(());
    }
    let class = py.import("kiln.kernels.errors")?.getattr("KernelWarning")?;
    sentences.iter().try_for_each(|text| PyErr::warn(py, &class, &CString::new(text.as_str())?, 1))
}

/// The device of a launch, opened once.
fn place(device: DLDevice) -> PyResult<&'static Place> {
    static PLACES: OnceLock<Mutex<HashMap<(i32, i32), &'static Place>>> = OnceLock::new();
    let mut places = PLACES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = places.get(&(device.kind, device.id)) {
        return Ok(known);
    }
    let kind = if device.kind == CPU { DeviceKind::Cpu } else { DeviceKind::Cuda(device.id as usize) };
    // Devices are never closed: as many as the machine has.
    let place: &'static Place = Box::leak(Box::new(Place::open(kind).map_err(errors::raised)?));
    places.insert((device.kind, device.id), place);
    Ok(place)
}

/// The exception for a kernel that does not compile: a class of `kiln.kernels.errors`.
fn failed(failure: Failure) -> PyErr {
    match failure {
        Failure::Kiln(e) => errors::raised(e),
        Failure::NoCode(why) => exception("KernelUnsupported", why),
        Failure::Source(e) if matches!(e.kind, kernels::ErrorKind::Unsupported) => {
            exception("KernelUnsupported", e.to_string())
        }
        Failure::Source(e) => exception("KernelError", e.to_string()),
    }
}

fn exception(class: &str, text: String) -> PyErr {
    Python::attach(|py| {
        let class = py.import("kiln.kernels.errors").and_then(|m| m.getattr(class));
        match class.and_then(|class| class.call1((text,))) {
            Ok(exception) => PyErr::from_value(exception),
            Err(e) => e,
        }
    })
}

/// What is wrong with a call.
fn call_error(text: String) -> PyErr {
    PyTypeError::new_err(text)
}
