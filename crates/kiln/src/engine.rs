//! A program that is compiled for the sizes it is called with, as they come.
//!
//! Takes: a [`Program`], a device and options. Gives: a [`Binding`] for each binding of its symbols: the program
//! specialised to these sizes, compiled and loaded. Bindings are kept, the least recently used go first. They share
//! weights, also folded and packed ones (`names`), state, code, and memory for intermediate results. A new binding may
//! be compiled on another thread ([`Engine::compile_in_background`]), and serve smaller batches ([`Engine::rounded`]).
//! Never: runs a kernel for sizes it was not compiled for.
mod background;
mod buckets;
mod names;
mod rows;
mod run;

pub use background::finish_all;
pub use buckets::Rounded;

use crate::{
    CompileOptions, Compiled, DeviceKind, Error, Program,
    compile::{CodeCache, Reference, open_device},
    model::Written,
    program::{InputKind, Output, Sizes, Specialised},
};
use kiln_aten::raw::Arg;
use kiln_graph::Type;
use kiln_plan::Contract;
use kiln_runtime::{Callbacks, Device, Param, Session, Shared};
use std::{
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// How many bindings an engine keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The most bindings.
    pub bindings: usize,
    /// The most bytes that sessions hold ([`Engine::bytes`]); one binding is kept whatever it takes.
    pub bytes: usize,
}
impl Default for Limits {
    fn default() -> Limits {
        Limits { bindings: 64, bytes: usize::MAX }
    }
}

/// How a file is opened. The default runs on the CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Where it runs.
    pub device: DeviceKind,
    /// Threads on the CPU; `None`: as many as it has cores.
    pub threads: Option<usize>,
    /// How results may differ from the program as written; `None`: what an artifact was compiled with, else the
    /// default.
    pub contract: Option<Contract>,
    /// Whether machine code in an artifact is trusted ([`CompileOptions::machine_code`]).
    pub machine_code: bool,
    /// How many bindings are kept.
    pub limits: Limits,
}

/// A program, its weights, and what was compiled from it.
pub struct Engine {
    program: Program,
    device: Device,
    options: CompileOptions,
    callbacks: Arc<dyn Callbacks>,
    limits: Limits,
    /// Least recently used first.
    bindings: Mutex<Vec<Arc<Binding>>>,
    /// Held while a binding is compiled, so that threads that want the same one compile it once.
    compiling: Mutex<()>,
    codes: CodeCache,
    /// What sessions have in common; made with the first one.
    shared: OnceLock<Arc<Shared>>,
    queue: background::Queue,
    buckets: buckets::Buckets,
    /// State of [`Engine::run`].
    state: Mutex<run::Kept>,
    /// The program's parameters that are state, once they were asked for by name.
    names: OnceLock<Vec<usize>>,
}

/// A program at given sizes, compiled and loaded.
pub struct Binding {
    /// The sizes of the symbols.
    pub sizes: Sizes,
    /// Types of the tensors that a caller passes, in order.
    pub inputs: Vec<Type>,
    /// The program's parameters that are state; they follow the caller's inputs in a run.
    pub states: Vec<usize>,
    /// The program's parameters whose values were folded or packed when it was loaded; [`Engine::refresh`] does that
    /// again. All others are read in place.
    pub frozen: Vec<usize>,
    /// Outputs of the session that the caller copies to inputs or state after a run. All other changes are made in
    /// place.
    pub copies: Vec<Written>,
    /// All that a run changes: inputs and outputs of the model as they were before changes were made in place.
    pub writes: Vec<Written>,
    /// What a run gives, in order.
    pub results: Vec<Result>,
    /// The plan and its code; weights are left out.
    pub compiled: Compiled,
    /// What runs it.
    pub session: Session,
    /// Seconds from the program to the loaded session.
    pub seconds: f64,
    hits: AtomicU64,
    calls_before: AtomicU64,
    padded: AtomicU64,
}
impl Binding {
    /// How often it was asked for.
    pub fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
    /// How many calls of [`Engine::compile_in_background`] came before it was ready.
    pub fn calls_before(&self) -> u64 {
        self.calls_before.load(Ordering::Relaxed)
    }
    /// How many of its uses were calls of smaller sizes ([`Engine::rounded`]), as far as they were counted.
    pub fn padded(&self) -> u64 {
        self.padded.load(Ordering::Relaxed)
    }
    /// Counts a call of smaller sizes.
    pub fn pad(&self) {
        self.padded.fetch_add(1, Ordering::Relaxed);
    }
    fn count_before(&self, calls: u64) {
        self.calls_before.fetch_add(calls, Ordering::Relaxed);
    }
    /// Counts a use that did not go through [`Engine::bind`].
    pub fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
    }
}

/// One thing that a run gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Result {
    /// An output of the session: its index and type.
    Tensor(usize, Type),
    /// A number that follows from sizes.
    Number(i64),
    /// A number or text of the program.
    Constant(Arg),
    /// Nothing.
    None,
}

impl Engine {
    /// An engine without bindings. `callbacks` run what Kiln does not compile.
    pub fn new(
        program: Program,
        device: Device,
        options: CompileOptions,
        limits: Limits,
        callbacks: Arc<dyn Callbacks>,
    ) -> Engine {
        // Machine code that is trusted is loaded in place of PTX.
        let codes = if options.machine_code { CodeCache::default() } else { CodeCache::on(&device) };
        Engine {
            program,
            device,
            options,
            callbacks,
            limits,
            bindings: Mutex::default(),
            compiling: Mutex::default(),
            codes,
            shared: OnceLock::new(),
            queue: background::Queue::default(),
            buckets: buckets::Buckets::default(),
            state: Mutex::default(),
            names: OnceLock::new(),
        }
    }
    /// Opens a `.pt2` archive, an artifact, which keeps its plan, or a text graph. libtorch runs what Kiln does not
    /// compile, if it is here.
    ///
    /// # Errors
    /// As [`Program::open`], and if the device cannot be used.
    pub fn open(path: &Path, settings: &Settings) -> std::result::Result<Engine, Error> {
        let program = Program::open(path)?;
        let mut options = program.options().on(settings.device)?;
        options.contract = settings.contract.unwrap_or(options.contract);
        options.machine_code = settings.machine_code;
        let device = open_device(settings.device, settings.threads)?;
        Ok(Engine::new(program, device, options, settings.limits, Arc::new(Reference)))
    }

    /// What is compiled.
    pub fn program(&self) -> &Program {
        &self.program
    }
    /// Where it runs.
    pub fn device(&self) -> &Device {
        &self.device
    }
    /// Most recently used last.
    pub fn bindings(&self) -> Vec<Arc<Binding>> {
        lock(&self.bindings).clone()
    }
    /// The most recently used binding.
    pub fn last(&self) -> Option<Arc<Binding>> {
        lock(&self.bindings).last().cloned()
    }

    /// The binding for tensors of these types, and the inputs that are numbers, in order; compiles it if it is new.
    ///
    /// # Errors
    /// [`Error::Inputs`] if the inputs do not fit the program; others if it cannot be compiled for these sizes.
    pub fn bind(&self, inputs: &[Type], numbers: &[i64]) -> std::result::Result<Arc<Binding>, Error> {
        self.at(&self.program.bind(inputs, numbers)?)
    }

    /// The binding for these sizes of all symbols; compiles it if it is new.
    ///
    /// # Errors
    /// If the program cannot be compiled for these sizes, or the device fails.
    pub fn at(&self, sizes: &Sizes) -> std::result::Result<Arc<Binding>, Error> {
        if let Some(known) = self.known(sizes) {
            return Ok(known);
        }
        self.made(sizes).inspect(|made| made.hit())
    }
    /// As [`Engine::at`], without counting a use.
    fn made(&self, sizes: &Sizes) -> std::result::Result<Arc<Binding>, Error> {
        let _alone = lock(&self.compiling);
        let known = lock(&self.bindings).iter().find(|b| b.sizes == *sizes).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let made = Arc::new(self.make(sizes)?);
        lock(&self.bindings).push(made.clone());
        // Weights may have changed meanwhile.
        made.session.refresh()?;
        while let Some(first) = self.over() {
            lock(&self.bindings).retain(|b| !Arc::ptr_eq(b, &first));
        }
        Ok(made)
    }
    /// The binding to let go, if there are too many. Not under the lock of bindings: sessions tell their bytes between
    /// runs.
    fn over(&self) -> Option<Arc<Binding>> {
        let all = self.bindings();
        let too_many = all.len() > self.limits.bindings.max(1);
        let too_large = || self.limits.bytes < usize::MAX && self.bytes() > self.limits.bytes;
        (all.len() > 1 && (too_many || too_large())).then(|| all[0].clone())
    }
    /// Bytes on the device that sessions hold: what they have in common once, and what each has of its own. The
    /// program's parameters are not among them, where runs read them in place.
    pub fn bytes(&self) -> usize {
        let own = |b: &Arc<Binding>| b.session.bytes()[0];
        let own = self.bindings().iter().map(own).fold(0, usize::saturating_add);
        own.saturating_add(self.shared.get().map_or(0, |s| s.bytes()))
    }

    /// A binding that was made before; it becomes the most recently used.
    fn known(&self, sizes: &Sizes) -> Option<Arc<Binding>> {
        let mut bindings = lock(&self.bindings);
        let at = bindings.iter().position(|b| b.sizes == *sizes)?;
        let found = bindings.remove(at);
        found.hit();
        bindings.push(found.clone());
        Some(found)
    }

    fn make(&self, sizes: &Sizes) -> std::result::Result<Binding, Error> {
        let start = std::time::Instant::now();
        let Specialised { model, params, origins, states } = self.program.specialise(sizes)?;
        let mut compiled = self.program.compile_model(&model, &self.options, &self.codes)?;
        let mut executable = compiled.executable();
        let writes: Vec<(usize, usize)> = model.writes.iter().map(|w| (w.input, w.output)).collect();
        let left = executable.write_in_place(&writes);
        let frozen = executable.frozen_params().into_iter().filter_map(|p| *origins.get(p)?).collect();
        let shared = match self.shared.get() {
            Some(shared) => shared,
            None => {
                let new = Shared::new(&self.device)?;
                self.shared.get_or_init(|| new)
            }
        };
        let names = names::names(&compiled, &params, &origins);
        let compiled_s = start.elapsed();
        let session = Session::sharing(shared, executable, params, &names, self.callbacks.clone())?;
        compiled.timings.load_s = (start.elapsed() - compiled_s).as_secs_f64();
        let given = model.graph.inputs.len() - states.len();
        let inputs = model.graph.inputs[..given].iter().map(|v| model.graph.ty(*v).clone()).collect();
        let mut outputs = model.graph.outputs.iter().map(|v| model.graph.ty(*v).clone()).enumerate();
        let mut result = |o: &Output| match o {
            Output::Value(_) => outputs.next().map_or(Result::None, |(i, ty)| Result::Tensor(i, ty)),
            // Invariant: specialising has computed all sizes of the program.
            Output::Size(e) => e.value(sizes).map_or(Result::None, Result::Number),
            Output::Constant(a) => Result::Constant(a.clone()),
            Output::None => Result::None,
        };
        Ok(Binding {
            sizes: sizes.clone(),
            inputs,
            results: self.program.outputs().iter().map(&mut result).collect(),
            states,
            frozen,
            copies: left.into_iter().map(|(input, output)| Written { input, output }).collect(),
            writes: model.writes,
            compiled,
            session,
            seconds: start.elapsed().as_secs_f64(),
            hits: AtomicU64::new(0),
            calls_before: AtomicU64::new(0),
            padded: AtomicU64::new(0),
        })
    }

    /// Folds and packs weights again, each once, after their values have changed.
    ///
    /// # Errors
    /// If memory is short or the device fails.
    pub fn refresh(&self) -> std::result::Result<(), Error> {
        if let Some(shared) = self.shared.get() {
            shared.renew();
        }
        self.bindings().iter().try_for_each(|b| b.session.refresh()).map_err(Error::from)
    }
    /// The parameters of the program that some binding changes.
    pub fn states(&self) -> Vec<usize> {
        let mut all: Vec<usize> = self.bindings().iter().flat_map(|b| b.states.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
    /// The weights and state, in the order of the program's parameters.
    pub fn params(&self) -> &[Param] {
        self.program.params()
    }
    /// Positions of the inputs that are tensors.
    pub fn tensor_positions(&self) -> Vec<usize> {
        let is = |k: &InputKind| matches!(k, InputKind::Value(_));
        self.program.inputs().iter().enumerate().filter(|(_, i)| is(&i.kind)).map(|(at, _)| at).collect()
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the lock guards is changed by single operations that do not panic.
    m.lock().unwrap_or_else(PoisonError::into_inner)
}
