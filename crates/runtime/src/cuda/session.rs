//! A session on a GPU.
//!
//! Inputs, outputs and temporaries lie at fixed addresses in one allocation, so launches are prepared once. From the second run on,
//! sequences of launches are replayed as CUDA graphs. Steps that only the host can run copy their operands there and back.
//! Records of out-of-range indices are read once, after the whole run.
use super::{
    CudaDevice,
    launch::Launch,
    library::Matmul,
    nvtx,
    raw::{Graph, Memory, Stream, download, text, upload},
};
use crate::{
    Callbacks, Code, DeviceTensor, Executable, HostDevice, KernelCode, Param, RuntimeError,
    callbacks::{call, call_in_place},
    host::{Tally, gemm, run_grid},
    layout::Layout,
    memory::{MemoryPlan, Place, RECORD},
    param::Kept,
};
use cudarc::driver::result::DriverError;
use kiln_graph::Tensor;
use kiln_plan::{
    BufferId, Stage,
    exec::{Slot, Work},
};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

pub(crate) struct CudaSession {
    pub(super) device: CudaDevice,
    pub(super) stream: Stream,
    pub(super) exe: Arc<Executable>,
    pub(super) layout: Layout,
    pub(super) memory: Arc<MemoryPlan>,
    callbacks: Arc<dyn Callbacks>,
    /// For steps that only the host can run.
    pub(super) host: Option<HostDevice>,
    /// By index; `None` after loading if it is not an output, no device memory of another owner, and refreshing does not read it.
    pub(super) params: Vec<Option<Param>>,
    pub(super) kept: Kept,
    /// The session's copies of parameters on the device, by index.
    pub(super) copies: Vec<Option<Memory>>,
    /// Device memory that lives as long as the session.
    pub(super) owned: Vec<Memory>,
    /// Device addresses, by number of the layout.
    pub(super) addresses: Vec<u64>,
    /// Per kernel and step; `None` if the host runs the step. None for load-time kernels once they have run.
    pub(super) launches: Vec<Vec<Option<Step>>>,
    pub(super) segments: Vec<Segment>,
    /// Whether a run has completed. Launches are captured only then, so that errors of the first run name their kernel.
    warm: bool,
    /// Kernels were timed since the records were cleared, possibly on uninitialised memory, so the records mean nothing.
    pub(super) stale: bool,
}

/// A step that runs on the device.
pub(super) enum Step {
    Launch(Launch),
    Matmul(Matmul),
}
impl Step {
    /// # Safety
    /// The buffers have the types that the step was made for, and live.
    pub(super) unsafe fn enqueue(&self, session: &CudaSession, kernel: &str) -> Result<(), RuntimeError> {
        let doing = || format!("running kernel `{kernel}`");
        match self {
            // SAFETY: this function's contract.
            Step::Launch(l) => session.device.check(doing, unsafe { l.enqueue(&session.stream) }),
            // SAFETY: as above.
            Step::Matmul(p) => unsafe { p.enqueue(&session.stream) }.map_err(|e| RuntimeError::Driver {
                device: session.device.name(),
                doing: doing(),
                what: format!("cuBLASLt fails to launch the matmul ({e})"),
                remedy: "tune it, or constrain it to a template other than `library`".into(),
            }),
        }
    }
}

/// Consecutive kernels that can be captured in one CUDA graph, or one kernel that needs the host.
pub(super) struct Segment {
    pub kernels: Range<usize>,
    pub mode: Mode,
}
pub(super) enum Mode {
    /// Enqueued kernel by kernel: it needs the host, is a single kernel, could not be captured, or a profiler is attached.
    Plain,
    /// To be captured after the first run.
    Fresh,
    /// Replayed as a CUDA graph.
    Recorded(Graph),
}

/// An error during a capture.
pub(super) enum Fault {
    Driver(DriverError),
    Runtime(RuntimeError),
}
impl From<DriverError> for Fault {
    fn from(e: DriverError) -> Fault {
        Fault::Driver(e)
    }
}
impl From<RuntimeError> for Fault {
    fn from(e: RuntimeError) -> Fault {
        Fault::Runtime(e)
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        // Memory must not be freed while kernels use it. A failure leaves nothing to do.
        let _ = self.device.inner.context.bind();
        let _ = self.stream.synchronize();
    }
}

impl CudaSession {
    pub fn new(
        device: &CudaDevice,
        exe: Arc<Executable>,
        memory: Arc<MemoryPlan>,
        params: Vec<Param>,
        callbacks: Arc<dyn Callbacks>,
    ) -> Result<CudaSession, RuntimeError> {
        let context = &device.inner.context;
        let doing = || format!("loading `{}`", exe.name);
        device.check(doing, context.bind())?;
        let layout = Layout::new(&exe);
        let on_host = |w: &Work<Code>| match w {
            Work::Block { code, .. } => !matches!(code, Code::Ptx(_)),
            // Whether the library takes a matmul is known when it is prepared.
            Work::Gemm(_) | Work::Fallback(_) => false,
            Work::Interpret { .. } => true,
        };
        let host =
            exe.kernels.iter().any(|k| k.steps.steps.iter().any(on_host)).then(|| HostDevice::new(0)).transpose()?;
        let mut session = CudaSession {
            stream: device.check(doing, Stream::new(context))?,
            device: device.clone(),
            addresses: vec![0; layout.len()],
            kept: Kept::new(&exe, &params),
            copies: params.iter().map(|_| None).collect(),
            params: params.into_iter().map(Some).collect(),
            owned: vec![],
            launches: exe.kernels.iter().map(|_| vec![]).collect(),
            segments: vec![],
            warm: false,
            stale: false,
            host,
            layout,
            callbacks,
            memory,
            exe,
        };
        session.load()?;
        session.segments = session.split();
        Ok(session)
    }

    /// Waits for the stream. Fails if a kernel found an index out of range since the records were cleared.
    pub(super) fn indices(&mut self, doing: &str) -> Result<(), RuntimeError> {
        let mut records = vec![0u8; self.layout.checked.len() * RECORD];
        if records.is_empty() {
            return self.wait(doing);
        }
        let from = self.addresses[self.layout.record(0)];
        // SAFETY: this many bytes were allocated for records; `wait` follows before they are read.
        let copied = unsafe { download(&mut records, from, &self.stream) };
        let copied = self.device.check(|| format!("{doing} `{}`", self.exe.name), copied);
        self.wait(doing).and(copied)?;
        let numbers = records.chunks_exact(RECORD).map(|r| i64::from_ne_bytes(r[..8].try_into().unwrap_or_default()));
        let first = self.layout.checked.iter().zip(numbers).find_map(|(k, found)| self.exe.index_error(*k, found));
        match first {
            Some(e) => self.clear_records().and(Err(e)),
            None => Ok(()),
        }
    }
    /// Clears the records of out-of-range indices. Kernels that are timed may run on any data.
    pub(super) fn clear_records(&mut self) -> Result<(), RuntimeError> {
        let zeros = vec![0u8; self.layout.checked.len() * RECORD];
        self.stale = false;
        if zeros.is_empty() {
            return Ok(());
        }
        // SAFETY: this many bytes were allocated for records; `upload` has copied pageable memory when it returns.
        let copied = unsafe { upload(self.addresses[self.layout.record(0)], &zeros, &self.stream) };
        self.device.check(|| format!("loading `{}`", self.exe.name), copied)
    }

    pub(super) fn address(&self, k: usize, kernel: &KernelCode, slot: Slot) -> u64 {
        self.addresses[self.layout.slot(k, kernel, slot)]
    }

    /// Indices of the kernels of a stage, in launch order.
    pub(super) fn kernels(&self, stage: Stage) -> Vec<usize> {
        (0..self.exe.kernels.len()).filter(|k| self.exe.kernels[*k].stage == stage).collect()
    }
    /// Whether a kernel needs the host, so that it cannot be captured.
    pub(super) fn needs_host(&self, k: usize) -> bool {
        self.launches[k].iter().any(|l| l.is_none())
    }

    /// Divides the run-time kernels into segments.
    fn split(&self) -> Vec<Segment> {
        let mut segments: Vec<Segment> = vec![];
        let profiled = nvtx::watched();
        for k in self.kernels(Stage::Run) {
            let plain = profiled || self.needs_host(k);
            match segments.last_mut() {
                Some(s) if matches!(s.mode, Mode::Fresh) && !plain && s.kernels.end == k => s.kernels.end = k + 1,
                _ => {
                    let mode = if plain { Mode::Plain } else { Mode::Fresh };
                    segments.push(Segment { kernels: k..k + 1, mode });
                }
            }
        }
        segments
    }

    /// One run. `inputs` have been checked against the executable.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        if self.stale {
            self.clear_records()?;
        }
        self.upload_inputs(inputs)?;
        self.enqueue()?;
        // A computed buffer is copied once, even if it is an output several times.
        let mut fetched: BTreeMap<BufferId, Tensor> = BTreeMap::new();
        for b in &self.exe.outputs {
            let on_device = match self.memory.buffers[b.0 as usize] {
                Place::Output(_) | Place::Frozen => true,
                Place::Param(p) => self.tensor(p).is_none(),
                _ => false,
            };
            if on_device && !fetched.contains_key(b) {
                let mut t = Tensor::zeros(self.exe.ty(*b).clone());
                // SAFETY: the address is that of a buffer of this type; `wait` follows before the tensor is used or dropped.
                let copied = unsafe { download(t.bytes_mut(), self.addresses[b.0 as usize], &self.stream) };
                fetched.insert(*b, t);
                if let Err(e) = self.device.check(|| format!("copying output {b}"), copied) {
                    let _ = self.stream.synchronize();
                    return Err(e);
                }
            }
        }
        self.indices("running")?;
        let value = |b: &BufferId| match self.memory.buffers[b.0 as usize] {
            Place::Input(i) => Some(inputs[i].clone()),
            Place::Param(p) if !fetched.contains_key(b) => self.tensor(p).cloned(),
            _ => fetched.get(b).cloned(),
        };
        // Invariant: every output was fetched, is an input, a parameter on the host, or empty (`Executable::check`).
        let value = |b: &BufferId| value(b).unwrap_or_else(|| Tensor::zeros(self.exe.ty(*b).clone()));
        Ok(self.exe.outputs.iter().map(value).collect())
    }
    /// A parameter that is kept on the host.
    fn tensor(&self, param: usize) -> Option<&Tensor> {
        self.params[param].as_ref().and_then(Param::host)
    }

    /// Copies the inputs to their fixed addresses on the device.
    pub(super) fn upload_inputs(&mut self, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        let doing = || format!("running `{}`", self.exe.name);
        self.device.check(doing, self.device.inner.context.bind())?;
        for (b, place) in self.memory.buffers.iter().enumerate() {
            if let Place::Input(i) = *place {
                // SAFETY: the session has memory for this input at this address; types were checked.
                let copied = unsafe { upload(self.addresses[b], inputs[i].bytes(), &self.stream) };
                self.device.check(|| format!("copying {}", self.exe.input_name(i)), copied)?;
            }
        }
        Ok(())
    }

    /// Waits for the stream. `doing`: a verb for the message of an error, as `running`.
    pub(super) fn wait(&self, doing: &str) -> Result<(), RuntimeError> {
        self.device.check(|| format!("{doing} `{}`", self.exe.name), self.stream.synchronize())
    }

    /// Enqueues a run over the inputs on the device. Returns after the last step of the host, if there is one.
    pub(super) fn enqueue(&mut self) -> Result<(), RuntimeError> {
        for s in 0..self.segments.len() {
            let segment = &self.segments[s];
            if self.warm && matches!(segment.mode, Mode::Fresh) {
                // A graph makes a single launch no cheaper.
                let graph = (segment.kernels.len() > 1).then(|| self.record(segment.kernels.clone(), 1).ok()).flatten();
                self.segments[s].mode = graph.map_or(Mode::Plain, Mode::Recorded);
            }
            match &self.segments[s].mode {
                Mode::Recorded(g) => {
                    self.device.check(|| format!("running `{}`", self.exe.name), g.launch(&self.stream))?
                }
                Mode::Plain | Mode::Fresh => self.segments[s].kernels.clone().try_for_each(|k| self.kernel(k))?,
            }
        }
        self.warm = true;
        Ok(())
    }

    /// Captures the launches of these kernels, each kernel `times` over. None of them may need the host.
    pub(super) fn record(&self, mut kernels: Range<usize>, times: usize) -> Result<Graph, RuntimeError> {
        let captured = self
            .stream
            .capture(|| kernels.try_for_each(|k| (0..times).try_for_each(|_| self.kernel(k))).map_err(Fault::Runtime));
        captured.map_err(|f| match f {
            Fault::Driver(e) => self.device.refused(format!("recording `{}`", self.exe.name), text(e), e),
            Fault::Runtime(e) => e,
        })
    }

    /// Enqueues the launches of a kernel and runs its host steps.
    pub(super) fn kernel(&self, k: usize) -> Result<(), RuntimeError> {
        let kernel = &self.exe.kernels[k];
        let _range = nvtx::range(&kernel.name);
        for (work, launch) in kernel.steps.steps.iter().zip(&self.launches[k]) {
            match launch {
                // SAFETY: the compiler made the code for buffers of these types, in this order; the session owns them.
                Some(step) => unsafe { step.enqueue(self, &kernel.name) }?,
                None => self.host_step(k, kernel, work)?,
            }
        }
        Ok(())
    }

    /// Runs a step on the host: a library call in place if possible, anything else on copies of its operands.
    fn host_step(&self, k: usize, kernel: &KernelCode, work: &Work<Code>) -> Result<(), RuntimeError> {
        if let Work::Fallback(call) = work {
            let on_device =
                |b: &BufferId| DeviceTensor { ty: self.exe.ty(*b).clone(), address: self.addresses[b.0 as usize] };
            let args: Vec<DeviceTensor> = kernel.inputs.iter().map(on_device).collect();
            let outputs: Vec<DeviceTensor> = kernel.outputs.iter().map(on_device).collect();
            self.wait("running")?;
            let done = call_in_place(&*self.callbacks, call, &args, &outputs, Some(self.device.info().index));
            // The library may have made another context current.
            self.device.check(|| format!("running kernel `{}`", kernel.name), self.device.inner.context.bind())?;
            if done {
                return Ok(());
            }
        }
        let slots: Vec<Slot> = match work {
            Work::Block { args, .. } => args.clone(),
            Work::Gemm(g) => g.slots(),
            Work::Fallback(_) | Work::Interpret { .. } => (0..kernel.inputs.len() as u32).map(Slot::Input).collect(),
        };
        let mut tensors = self.fetch(k, kernel, &slots)?;
        match work {
            Work::Fallback(_) | Work::Interpret { .. } => {
                let types: Vec<_> = kernel.outputs.iter().map(|b| self.exe.ty(*b)).collect();
                let results = call(&*self.callbacks, [&self.exe.name, &kernel.name], work, &tensors, &types)?;
                let results: Vec<_> = (0..types.len() as u32).map(Slot::Output).zip(results).collect();
                self.store(k, kernel, &results)
            }
            _ => {
                self.compute(work, &mut tensors);
                if let Work::Gemm(g) = work {
                    gemm::finish(g, &mut tensors);
                }
                let written =
                    slots.into_iter().zip(tensors).filter(|(s, _)| !matches!(s, Slot::Input(_))).collect::<Vec<_>>();
                self.store(k, kernel, &written)
            }
        }
    }

    /// Copies the slots to the host, in order.
    fn fetch(&self, k: usize, kernel: &KernelCode, slots: &[Slot]) -> Result<Vec<Tensor>, RuntimeError> {
        let mut tensors = Vec::with_capacity(slots.len());
        let mut all = Ok(());
        for slot in slots {
            // Invariant: the slot exists (`Executable::check`).
            let Some(ty) = self.exe.slot_type(kernel, *slot) else { continue };
            let mut t = Tensor::zeros(ty.clone());
            // SAFETY: the address is that of a buffer of this type; `wait` follows before the tensors are used or dropped.
            let copied = unsafe { download(t.bytes_mut(), self.address(k, kernel, *slot), &self.stream) };
            tensors.push(t);
            all = all.and(self.device.check(|| format!("copying for kernel `{}`", kernel.name), copied));
        }
        self.wait("running")?;
        all.map(|()| tensors)
    }

    /// Copies values from the host to their slots.
    fn store(&self, k: usize, kernel: &KernelCode, values: &[(Slot, Tensor)]) -> Result<(), RuntimeError> {
        for (slot, t) in values {
            // SAFETY: the tensor has the type of the buffer at this address.
            let copied = unsafe { upload(self.address(k, kernel, *slot), t.bytes(), &self.stream) };
            self.device.check(|| format!("copying for kernel `{}`", kernel.name), copied)?;
        }
        // The caller drops the tensors after this returns.
        self.wait("running")
    }

    /// Runs host code or a matmul on host copies of its arguments.
    fn compute(&self, work: &Work<Code>, tensors: &mut [Tensor]) {
        let Some(host) = &self.host else { return };
        let args: Vec<*mut u8> = tensors.iter_mut().map(|t| t.bytes_mut().as_mut_ptr()).collect();
        let p = host.parallel();
        match work {
            // SAFETY: the compiler made the code for buffers of these types, in this order.
            Work::Block { code: Code::Host { f, instances, .. }, .. } => unsafe {
                run_grid(p, *f, *instances, &args, &Tally::default());
            },
            // SAFETY: `Executable::check` has checked the extents.
            Work::Gemm(g) => unsafe {
                let x = gemm::Operands { a: args[0], b: args[1], c: args[2] };
                gemm::gemm(p, g, x, &gemm::Weights::default());
            },
            _ => {}
        }
    }
}
impl CudaSession {
    /// # Safety
    /// As [`crate::Session::run_on`].
    pub unsafe fn run_on(&mut self, _: &[u64], _: &[u64], _: u64) -> Result<(), RuntimeError> {
        let what = "a run over the caller's memory is only possible on the host";
        let remedy = "use Session::run, or compile for the host";
        Err(RuntimeError::Device { device: self.device.name(), what: what.into(), remedy: remedy.into() })
    }
    pub fn check_runs(&mut self) -> Result<(), RuntimeError> {
        self.indices("checking")
    }
    pub fn bytes_held(&self) -> usize {
        self.memory.frozen + self.memory.params + self.memory.run.bytes
    }
}
