//! `kiln._native.Engine`: one program, its weights, and its specialisations by sizes.
mod call;
mod padded;

use crate::{
    errors::{InputError, ShapeError, UnsupportedError, UsageError, compiling, raised},
    exchange::{Borrowed, CPU, CUDA, DLDevice, Exchange, New},
    fallback::Torch,
    options::Options,
};
use call::{Given, Ready, Target};
use kiln::{
    Binding, CompileOptions, DeviceKind, Feed, Param, Program, Report, Tensor, Type,
    compile::is_collective,
    engine,
    program::{InputKind, Sizes},
};
use pyo3::{intern, prelude::*, types::*};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// One program with its weights, and its specialisations by sizes.
#[pyclass(frozen, module = "kiln._native")]
pub struct Engine {
    pub(crate) engine: Arc<engine::Engine>,
    torch: Arc<Torch>,
    options: CompileOptions,
    pub(crate) device: DLDevice,
    refuses_fallbacks: bool,
    /// New bindings are compiled on another thread.
    in_background: bool,
    /// The program's JSON, if it came as such.
    text: Option<String>,
    /// Tensors of the program's parameters, by their order: all of a traced program, else those that are state.
    pub(crate) tensors: Mutex<Vec<Option<Py<PyAny>>>>,
    /// The tensors of a traced program's parameters as they were given, whose versions say whether they have changed.
    originals: Vec<Py<PyAny>>,
    /// Parameters of which the engine has a copy, since their memory is in another order or on another device.
    copied: Vec<usize>,
    /// Versions of parameters when they were folded or packed.
    versions: Mutex<BTreeMap<usize, i64>>,
    /// Versions of all parameters before any was folded or packed.
    versions_before: Mutex<BTreeMap<usize, i64>>,
    /// What calls were last prepared for; the first is the last one used.
    ready: Mutex<Vec<Arc<Ready>>>,
}

impl Engine {
    fn build(
        program: Program,
        options: Options,
        text: Option<String>,
        tensors: Vec<Option<Py<PyAny>>>,
        (originals, copied): (Vec<Py<PyAny>>, Vec<usize>),
    ) -> PyResult<Engine> {
        let device = dl_device(options.kind);
        let compile = options.compile.clone();
        let torch = Arc::new(Torch::default());
        let mut engine = engine::Engine::new(program, options.device, options.compile, options.limits, torch.clone());
        if !options.buckets.is_empty() {
            engine = engine.with_buckets(options.buckets).map_err(compiling)?;
        }
        Ok(Engine {
            engine: Arc::new(engine),
            torch,
            options: compile,
            device,
            refuses_fallbacks: options.refuses_fallbacks,
            in_background: options.in_background,
            text,
            tensors: Mutex::new(tensors),
            originals,
            copied,
            versions: Mutex::default(),
            versions_before: Mutex::default(),
            ready: Mutex::default(),
        })
    }

    /// An engine of a file.
    pub fn open(py: Python<'_>, path: &str, options: &Bound<'_, PyDict>) -> PyResult<Engine> {
        Exchange::of(py)?;
        let program = py.detach(|| Program::open(Path::new(path))).map_err(raised)?;
        // An artifact keeps what it was compiled with.
        let options = Options::read(options, program.options())?;
        let tensors = program.params().iter().map(|_| None).collect();
        Engine::build(program, options, None, tensors, (vec![], vec![]))
    }

    /// The sizes asked for, else those last used, else those of tracing.
    fn sizes(&self, sizes: Option<Sizes>) -> PyResult<Sizes> {
        match (sizes, self.engine.last()) {
            (Some(wanted), _) => self.engine.program().sizes(&wanted, &[]).map_err(raised),
            (None, Some(last)) => Ok(last.sizes.clone()),
            (None, None) => self.engine.program().sizes(&Sizes::new(), &[]).map_err(raised),
        }
    }
    fn binding(&self, py: Python<'_>, sizes: Option<Sizes>) -> PyResult<Arc<Binding>> {
        let sizes = self.sizes(sizes)?;
        self.compiled(py, &sizes)
    }
    /// The binding for these sizes, unless the options refuse it.
    fn compiled(&self, py: Python<'_>, sizes: &Sizes) -> PyResult<Arc<Binding>> {
        self.note_versions(py)?;
        let binding = self.accept(py.detach(|| self.engine.at(sizes)).map_err(compiling)?)?;
        self.note_folded(py, &binding)?;
        Ok(binding)
    }
    /// Takes down of which versions of the weights values were folded and packed, whether a call follows or not; again
    /// if they were written to meanwhile.
    fn note_folded(&self, py: Python<'_>, binding: &Binding) -> PyResult<()> {
        let mut stale = false;
        for index in binding.frozen.iter().chain(&self.copied) {
            let Some(t) = self.originals.get(*index) else { continue };
            if let Entry::Vacant(unknown) = lock(&self.versions).entry(*index) {
                let now = version(t.bind(py))?;
                let before = *unknown.insert(lock(&self.versions_before).get(index).copied().unwrap_or(now));
                stale |= before != now;
            }
        }
        if stale { self.refresh(py) } else { Ok(()) }
    }
    /// Refuses a binding with operators that torch would run, if the options say so.
    fn accept(&self, binding: Arc<Binding>) -> PyResult<Arc<Binding>> {
        let mut fallbacks = if self.refuses_fallbacks { Report::new(&binding.compiled).fallback } else { vec![] };
        // There is no other way to run these.
        fallbacks.retain(|name| !is_collective(name));
        match fallbacks.is_empty() {
            true => Ok(binding),
            false => Err(UnsupportedError::new_err(format!(
                "Kiln does not compile {}; leave out fallback='error' to let torch run it",
                fallbacks.join(", ")
            ))),
        }
    }

    /// The sizes of the symbols for these arguments, and the arguments that are numbers.
    fn sizes_of(&self, exchange: &Exchange, args: &Bound<'_, PyList>) -> PyResult<(Sizes, Vec<i64>)> {
        let mut types = vec![];
        let mut numbers = vec![];
        let inputs = self.engine.program().inputs();
        if args.len() != inputs.len() {
            let names: Vec<&str> = inputs.iter().map(|i| i.name.as_str()).collect();
            return Err(InputError::new_err(format!(
                "{} inputs were given, but the program takes {}; give ({})",
                args.len(),
                inputs.len(),
                names.join(", ")
            )));
        }
        for (input, given) in inputs.iter().zip(args.iter()) {
            match &input.kind {
                InputKind::Value(_) => types.push(self.tensor(exchange, &input.name, &given)?),
                InputKind::Size(_) => numbers.push(given.extract().map_err(|_| {
                    InputError::new_err(format!("input `{}` is {given}, but the program takes a number", input.name))
                })?),
                InputKind::Constant(_) => {}
            }
        }
        let sizes = self.engine.program().bind(&types, &numbers).map_err(raised)?;
        Ok((sizes, numbers))
    }

    /// What calls with these sizes and numbers need: of an earlier call, or new. `None` while another thread compiles
    /// it.
    fn prepare(
        &self,
        py: Python<'_>,
        exchange: &Exchange,
        (sizes, numbers): &(Sizes, Vec<i64>),
    ) -> PyResult<Option<Arc<Ready>>> {
        let binding = match self.in_background {
            false => self.compiled(py, sizes)?,
            true => {
                self.note_versions(py)?;
                let Some(binding) = py.detach(|| self.engine.compile_in_background(sizes)).map_err(compiling)? else {
                    return Ok(None);
                };
                let binding = self.accept(binding)?;
                self.note_folded(py, &binding)?;
                binding
            }
        };
        let mut all = lock(&self.ready);
        let known = all.iter().position(|r| Arc::ptr_eq(&r.binding, &binding));
        let ready = match known {
            Some(at) => all.remove(at),
            None => Arc::new(self.make_ready(py, exchange, &binding, numbers)?),
        };
        // Bindings that the engine let go have no use here either.
        let kept = self.engine.bindings();
        let (known, gone): (Vec<_>, Vec<_>) =
            all.drain(..).partition(|r| kept.iter().any(|b| Arc::ptr_eq(b, &r.binding)));
        *all = known;
        all.insert(0, ready.clone());
        drop(all);
        // On a GPU a session waits for the runs of others, which may need the interpreter.
        py.detach(|| drop(gone));
        Ok(Some(ready))
    }

    /// Takes down the versions that parameters have before the first of them is read: a write from then on shows.
    fn note_versions(&self, py: Python<'_>) -> PyResult<()> {
        let mut before = lock(&self.versions_before);
        if before.is_empty() {
            for (index, t) in self.originals.iter().enumerate() {
                before.insert(index, version(t.bind(py))?);
            }
        }
        Ok(())
    }

    /// The type of an input tensor on the engine's device.
    fn tensor(&self, exchange: &Exchange, name: &str, given: &Bound<'_, PyAny>) -> PyResult<Type> {
        let Borrowed { device, ty, .. } = exchange.borrow(given).map_err(|e| of_input(given.py(), name, &e))?;
        if device != self.device {
            return Err(InputError::new_err(format!(
                "input `{name}` is on {}, but the program was compiled for {}; move it there",
                device_name(device),
                device_name(self.device)
            )));
        }
        Ok(ty)
    }

    /// Runs `count` times, on a GPU without waiting; gives the outputs of the last run. `None` while another thread
    /// compiles the program for these arguments.
    pub(crate) fn call(&self, py: Python<'_>, count: usize, args: &Bound<'_, PyList>) -> PyResult<Option<Py<PyList>>> {
        let exchange = Exchange::of(py)?;
        let mut copies = vec![];
        let last = lock(&self.ready).first().cloned();
        let found = match last {
            Some(ready) => self.addresses(exchange, &ready, args, &mut copies)?.map(|inputs| (ready, inputs)),
            None => None,
        };
        let (ready, inputs) = match found {
            Some((ready, inputs)) => {
                ready.binding.hit();
                (ready, inputs)
            }
            None => {
                copies.clear();
                let wanted = self.sizes_of(exchange, args)?;
                if let Some(rounded) = self.engine.rounded(&wanted.0).map_err(compiling)? {
                    return self.call_padded(py, count, args, &rounded);
                }
                let Some(ready) = self.prepare(py, exchange, &wanted)? else { return Ok(None) };
                let inputs = self.addresses(exchange, &ready, args, &mut copies)?;
                let changed = || ShapeError::new_err("an input was resized during the call; pass another tensor");
                (ready, inputs.ok_or_else(changed)?)
            }
        };
        let mut outputs = Vec::with_capacity(ready.outputs.len());
        let mut new = Vec::with_capacity(ready.outputs.len());
        for want in &ready.outputs {
            let (address, tensor) = exchange.allocate(py, want)?;
            outputs.push(address);
            new.push(tensor);
        }
        let stream = exchange.stream(py, self.device)?;
        let session = &ready.binding.session;
        // Of a single run, torch makes the copies below.
        let feeds: &[Feed] = if count > 1 { &ready.feeds } else { &[] };
        // SAFETY: types were compared with the binding's; the tensors stay in `args`, `copies` and `new`, and torch's
        // allocator keeps memory that is freed on a stream for work that was enqueued on it before.
        let done = py.detach(|| unsafe { session.steps_on(count, &inputs, &outputs, feeds, stream) });
        if let Err(e) = done {
            new.into_iter().try_for_each(|t| exchange.finish(py, t).map(drop))?;
            // What torch.distributed raised is raised as it is, as without Kiln.
            return Err(self.torch.take_failure().unwrap_or_else(|| raised(kiln::Error::from(e))));
        }
        let new: Vec<Py<PyAny>> = new.into_iter().map(|t: New| exchange.finish(py, t)).collect::<PyResult<_>>()?;
        for (value, written) in new.iter().zip(&ready.written) {
            let target = match written {
                Some(Target::Input(position)) => &args.get_item(*position)?.call_method0("detach")?,
                Some(Target::State(state)) if count == 1 => ready.states_kept[*state].bind(py),
                Some(Target::State(_)) | None => continue,
            };
            target.call_method1("copy_", (value,))?;
        }
        // What was written into the copy of an argument belongs into the argument.
        for (input, position, copy) in &copies {
            if session.executable().writes_input(*input) {
                args.get_item(*position)?.call_method0("detach")?.call_method1("copy_", (copy,))?;
            }
        }
        let results = ready.results.iter().map(|r| match r {
            Given::Object(o) => o.clone_ref(py),
            Given::Output(i) => new[*i].clone_ref(py),
        });
        Ok(Some(PyList::new(py, results)?.unbind()))
    }
}

#[pymethods]
impl Engine {
    #[new]
    fn new(
        py: Python<'_>,
        program: &str,
        params: Vec<Bound<'_, PyAny>>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Engine> {
        let options = Options::read(options, CompileOptions::default())?;
        let exchange = Exchange::of(py)?;
        let device = dl_device(options.kind);
        let mut tensors = vec![];
        let (mut given, mut copied) = (vec![], vec![]);
        for p in &params {
            // An alias keeps the memory, whatever becomes of the parameter.
            let alias = p.call_method0("detach")?;
            let mut borrowed = exchange.borrow(&alias)?;
            // A constant of the program may be on the CPU; each session gets a copy of it.
            if borrowed.device != device && borrowed.device.kind != CPU {
                return Err(InputError::new_err(format!(
                    "a parameter is on {}, but the program is compiled for {}; move the module there",
                    device_name(borrowed.device),
                    device_name(device)
                )));
            }
            let alias = match borrowed.dense {
                true => alias,
                false => {
                    let dense = alias.call_method0("contiguous")?;
                    borrowed = exchange.borrow(&dense)?;
                    dense
                }
            };
            if !p.call_method0("is_contiguous")?.extract()? || borrowed.device != device {
                copied.push(given.len());
            }
            let owner: Arc<dyn std::any::Any + Send + Sync> = Arc::new(alias.clone().unbind());
            given.push(match borrowed.device.kind {
                // SAFETY: the alias keeps the memory; torch writes it only from Python code, which the run does not
                // overlap. Loading on another thread may overlap a write, as any two threads of torch may: the version
                // then differs, and the value is loaded again.
                CPU => Param::Host(unsafe { foreign(borrowed.ty, borrowed.address, owner) }),
                // SAFETY: as above, and torch's allocations end at multiples of 512 bytes.
                _ => unsafe { Param::device(borrowed.ty, borrowed.address, owner) },
            });
            tensors.push(Some(alias.unbind()));
        }
        let program_text = program.to_string();
        let program = Program::from_json(program, given).map_err(compiling)?;
        let originals = params.into_iter().map(Bound::unbind).collect();
        Engine::build(program, options, Some(program_text), tensors, (originals, copied))
    }

    /// Runs the program on flat inputs; gives flat outputs. `None` while another thread compiles it for these inputs,
    /// if the options ask for that.
    fn run(&self, py: Python<'_>, args: &Bound<'_, PyAny>) -> PyResult<Option<Py<PyList>>> {
        match args.cast::<PyList>() {
            Ok(list) => self.call(py, 1, list),
            Err(_) => self.call(py, 1, &PyList::new(py, args.try_iter()?.collect::<PyResult<Vec<_>>>()?)?),
        }
    }
    /// Runs the program so often on the same inputs, each run after the one before; gives the outputs of the last one.
    fn steps(&self, py: Python<'_>, count: usize, args: &Bound<'_, PyList>) -> PyResult<Option<Py<PyList>>> {
        match count {
            0 => Err(UsageError::new_err("0 steps have no outputs; run at least one step")),
            _ => self.call(py, count, args),
        }
    }

    /// Compiles for these sizes, or for those of their bucket.
    fn warm(&self, py: Python<'_>, sizes: Sizes) -> PyResult<()> {
        let sizes = self.sizes(Some(sizes))?;
        let rounded = self.engine.rounded(&sizes).map_err(compiling)?;
        self.compiled(py, rounded.as_ref().map_or(&sizes, |r| &r.sizes)).map(drop)
    }
    /// The report as JSON.
    #[pyo3(signature = (sizes = None))]
    fn report(&self, py: Python<'_>, sizes: Option<Sizes>) -> PyResult<String> {
        Report::new(&self.binding(py, sizes)?.compiled).to_json().map_err(raised)
    }
    /// The report as `kiln explain` prints it.
    #[pyo3(signature = (sizes = None))]
    fn text(&self, py: Python<'_>, sizes: Option<Sizes>) -> PyResult<String> {
        let report = Report::new(&self.binding(py, sizes)?.compiled);
        Ok(report.summary(WIDTH))
    }
    /// The report as a page.
    #[pyo3(signature = (sizes = None))]
    fn html(&self, py: Python<'_>, sizes: Option<Sizes>) -> PyResult<String> {
        let binding = self.binding(py, sizes)?;
        Ok(kiln::html::page(&Report::new(&binding.compiled), &binding.compiled, None))
    }
    /// Why two parts share a kernel or do not.
    #[pyo3(signature = (a, b, sizes = None))]
    fn why(&self, py: Python<'_>, a: &str, b: &str, sizes: Option<Sizes>) -> PyResult<String> {
        let sizes = self.sizes(sizes)?;
        let answer = py.detach(|| {
            let model = self.engine.program().without_weights(&sizes)?;
            kiln::why::ask(&model, &self.options, a, b)
        });
        Ok(answer.map_err(compiling)?.text(WIDTH))
    }
    /// The plan as text.
    #[pyo3(signature = (sizes = None))]
    fn plan(&self, py: Python<'_>, sizes: Option<Sizes>) -> PyResult<String> {
        Ok(kiln::snapshot::text(&self.binding(py, sizes)?.compiled.plan))
    }
    /// The bindings, least recently used first.
    fn bindings(&self, py: Python<'_>) -> PyResult<Vec<Py<PyDict>>> {
        // A run that this waits for may need the interpreter.
        let all =
            py.detach(|| -> Vec<_> { self.engine.bindings().into_iter().map(|b| (b.session.bytes(), b)).collect() });
        let one = |([own, shared], b): &([usize; 2], Arc<Binding>)| {
            let d = PyDict::new(py);
            d.set_item("sizes", b.sizes.clone())?;
            d.set_item("hits", b.hits())?;
            d.set_item("eager", b.calls_before())?;
            d.set_item("padded", b.padded())?;
            d.set_item("compile_s", b.seconds)?;
            let t = &b.compiled.timings;
            let stages = [
                ("specialise", t.import_s),
                ("plan", t.rewrite_s),
                ("lower", t.lower_s),
                ("codegen", t.codegen_s),
                ("load", t.load_s),
            ];
            d.set_item("timings", stages.into_py_dict(py)?)?;
            let threads = [("generating", t.generating_s), ("assembling", t.assembling_s)];
            d.set_item("threads", threads.into_py_dict(py)?)?;
            d.set_item("bytes", own)?;
            d.set_item("shared_bytes", shared)?;
            Ok(d.unbind())
        };
        all.iter().map(one).collect()
    }
    /// Bytes of all bindings, what they share counted once.
    fn bytes(&self, py: Python<'_>) -> usize {
        py.detach(|| self.engine.bytes())
    }
    /// Operators that torch runs.
    #[pyo3(signature = (sizes = None))]
    fn fallbacks(&self, py: Python<'_>, sizes: Option<Sizes>) -> PyResult<Vec<String>> {
        Ok(Report::new(&self.binding(py, sizes)?.compiled).fallback)
    }
    /// Folds and packs weights again.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        lock(&self.versions_before).clear();
        self.note_versions(py)?;
        let mut versions = lock(&self.versions).clone();
        for (index, known) in &mut versions {
            *known = version(self.originals[*index].bind(py))?;
        }
        for index in &self.copied {
            // The memory of a copy stays where it is.
            let copy = lock(&self.tensors)[*index].as_ref().map(|t| t.clone_ref(py));
            let original = self.originals[*index].bind(py).call_method0("detach")?;
            if let Some(copy) = copy.filter(|c| !c.bind(py).is(&original)) {
                copy.bind(py).call_method1("copy_", (original,))?;
            }
        }
        py.detach(|| self.engine.refresh()).map_err(raised)?;
        lock(&self.versions).extend(versions);
        Ok(())
    }
    /// Whether a parameter that was folded or packed has been written since.
    fn changed(&self, py: Python<'_>) -> PyResult<bool> {
        for (index, known) in lock(&self.versions).iter() {
            if version(self.originals[*index].bind(py))? != *known {
                return Ok(true);
            }
        }
        Ok(false)
    }
    /// Numbers of the parameters that were folded or packed; the others are read in place.
    fn frozen(&self) -> Vec<usize> {
        lock(&self.versions).keys().copied().collect()
    }
    /// The tensors that runs change, by name.
    fn state(&self, py: Python<'_>) -> PyResult<Py<PyDict>> {
        let exchange = Exchange::of(py)?;
        let all = PyDict::new(py);
        self.binding(py, None)?;
        for index in self.engine.states() {
            let name = self.engine.program().param_names().nth(index).unwrap_or_default().to_string();
            all.set_item(name, self.state_tensor(py, exchange, index)?)?;
        }
        Ok(all.unbind())
    }
    /// Pickling and copying end here.
    fn __reduce__(&self) -> PyResult<()> {
        let what = "an engine cannot be pickled or copied: write an artifact with `save`, and `kiln.load` it";
        Err(UsageError::new_err(what))
    }
    /// Writes an artifact for these sizes.
    #[pyo3(signature = (path, sizes = None))]
    fn save(&self, py: Python<'_>, path: &str, sizes: Option<Sizes>) -> PyResult<()> {
        let binding = self.binding(py, sizes)?;
        let write = |program: &Program| {
            let (model, compiled) = program.compile(&binding.sizes, &self.options)?;
            kiln::artifact::write(Path::new(path), &compiled, &model)
        };
        let Some(text) = self.text.as_ref().filter(|_| self.device.kind != CPU) else {
            return py.detach(|| write(self.engine.program())).map_err(raised);
        };
        let exchange = Exchange::of(py)?;
        let on_host = |t: &Option<Py<PyAny>>| {
            let t = t.as_ref().ok_or_else(|| UsageError::new_err("a parameter is missing; please report it"))?;
            let t = t.bind(py).call_method0("cpu")?.call_method0("contiguous")?;
            let Borrowed { ty, address, .. } = exchange.borrow(&t)?;
            // SAFETY: the owner keeps the memory, which nothing else has.
            PyResult::Ok(Param::Host(unsafe { foreign(ty, address, Arc::new(t.unbind())) }))
        };
        let params = lock(&self.tensors).iter().map(on_host).collect::<PyResult<_>>()?;
        let program = Program::from_json(text, params).map_err(raised)?;
        py.detach(|| write(&program)).map_err(raised)
    }
    fn __repr__(&self) -> String {
        let (name, n) = (self.engine.program().name(), self.engine.bindings().len());
        format!("Engine({name}, {}, {n} bindings)", device_name(self.device))
    }
}

/// An error of [`Exchange`] about an input, with the input's name.
pub(crate) fn of_input(py: Python<'_>, name: &str, e: &PyErr) -> PyErr {
    InputError::new_err(e.value(py).to_string().replacen("an input", &format!("input `{name}`"), 1))
}

/// How often a tensor was written in place. Tensors that are made in inference mode have no such number.
fn version(t: &Bound<'_, PyAny>) -> PyResult<i64> {
    match t.getattr(intern!(t.py(), "_version")) {
        Ok(n) => n.extract(),
        Err(_) => Ok(0),
    }
}

/// Columns of reports as text.
const WIDTH: usize = 100;

/// # Safety
/// `owner` keeps a dense tensor of this type at this address.
unsafe fn foreign(ty: Type, address: u64, owner: Arc<dyn std::any::Any + Send + Sync>) -> Tensor {
    // SAFETY: this function's contract.
    unsafe { Tensor::foreign(ty, std::ptr::with_exposed_provenance(address as usize), owner) }
}

fn dl_device(kind: DeviceKind) -> DLDevice {
    match kind {
        DeviceKind::Cpu => DLDevice { kind: CPU, id: 0 },
        DeviceKind::Cuda(index) => DLDevice { kind: CUDA, id: index as i32 },
    }
}
pub(crate) fn device_name(d: DLDevice) -> String {
    if d.kind == CUDA { format!("cuda:{}", d.id) } else { "cpu".into() }
}

pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks guard is changed by single operations that do not panic.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
