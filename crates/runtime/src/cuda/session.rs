//! A session on a GPU.
//!
//! Temporaries lie at fixed addresses in one allocation, and so do inputs and outputs of the session's own runs, so
//! launches are prepared once. From the second run on, sequences of launches are replayed as CUDA graphs (`graph`).
//! Steps that only the host can run copy their operands there and back (`host_step`). Records of out-of-range indices
//! are read once, after the whole run (`records`).
pub(super) mod bind;
pub(super) mod graph;
pub(super) mod records;

use super::{
    CudaDevice,
    launch::Launch,
    library::Matmul,
    nvtx,
    raw::{Memory, StreamHandle, download, upload},
    shared::CudaShared,
};
use crate::{
    Callbacks, Code, Executable, HostDevice, KernelCode, Param, RuntimeError,
    boundary::{Boundary, End},
    layout::Layout,
    memory::{MemoryPlan, Place},
    param::Kept,
    shared::{Constants, Shared, Value},
};
use bind::Ends;
use graph::{Runs, Whose};
use kiln_graph::Tensor;
use kiln_plan::{
    BufferId, Stage,
    exec::{Slot, Work},
};
use records::Found;
use std::{collections::BTreeMap, sync::Arc};

pub(crate) struct CudaSession {
    pub(super) device: CudaDevice,
    pub(super) all: Arc<Shared>,
    pub(super) shared: Arc<CudaShared>,
    pub(super) constants: Constants,
    /// The generation of the values that were loaded last.
    pub(super) generation: u64,
    pub(super) exe: Arc<Executable>,
    pub(super) layout: Layout,
    pub(super) memory: Arc<MemoryPlan>,
    pub(super) callbacks: Arc<dyn Callbacks>,
    /// For steps that only the host can run.
    pub(super) host: Option<HostDevice>,
    /// By index; `None` after loading if it is not an output, no device memory of another owner, and refreshing does
    /// not read it.
    pub(super) params: Vec<Option<Param>>,
    pub(super) kept: Kept,
    /// Copies of parameters on the device, by index.
    pub(super) copies: Vec<Option<Arc<Value<Memory>>>>,
    /// Precomputed values, by buffer.
    pub(super) frozen: Vec<Option<Arc<Value<Memory>>>>,
    /// Device memory that lives as long as the session.
    pub(super) owned: Vec<Memory>,
    /// The arena that launches refer to.
    pub(super) arena: u64,
    /// The arena that stays the session's, because a graph that was captured refers to it.
    pub(super) pinned: Option<Arc<Memory>>,
    /// Device addresses, by number of the layout.
    pub(super) addresses: Vec<u64>,
    /// Per kernel and step; `None` if the host runs the step. None for load-time kernels once they have run.
    pub(super) launches: Vec<Vec<Option<Step>>>,
    pub(super) ends: Ends,
    /// Steps of runs whose operands include inputs or outputs: kernel and step.
    pub(super) touching: Vec<(usize, usize)>,
    /// Counts the changes of addresses of inputs and outputs.
    pub(super) version: u64,
    /// Runs over the session's memory, then those over the caller's.
    pub(super) runs: [Runs; 2],
    pub(super) found: Found,
    /// The records mean nothing, and the next run clears them: kernels were timed, possibly on uninitialised memory, or
    /// what the records hold was raised.
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
    pub(super) unsafe fn enqueue(
        &self,
        session: &CudaSession,
        kernel: &str,
        stream: StreamHandle,
    ) -> Result<(), RuntimeError> {
        let doing = || format!("running kernel `{kernel}`");
        match self {
            // SAFETY: this function's contract.
            Step::Launch(l) => session.device.check(doing, unsafe { l.enqueue(stream) }),
            // SAFETY: as above.
            Step::Matmul(p) => unsafe { p.enqueue(stream) }.map_err(|e| RuntimeError::Driver {
                device: session.device.name(),
                doing: doing(),
                what: format!("cuBLASLt fails to launch the matmul ({e})"),
                remedy: "tune it, or constrain it to a schedule other than `call library`".into(),
            }),
        }
    }
}

impl Drop for CudaSession {
    fn drop(&mut self) {
        // Memory must not be freed while kernels use it, and nothing may wait for the stream while another session
        // captures on it. A failure leaves nothing to do.
        let shared = self.shared.clone();
        let _turn = shared.turn();
        let _current = self.device.inner.context.enter();
        let _ = self.shared.stream.handle.synchronize();
        let _ = self.found.copied.synchronize();
    }
}

impl CudaSession {
    pub fn new(
        (device, shared): (&CudaDevice, &Arc<CudaShared>),
        exe: Arc<Executable>,
        memory: Arc<MemoryPlan>,
        params: Vec<Param>,
        (all, constants): (Arc<Shared>, Constants),
        callbacks: Arc<dyn Callbacks>,
    ) -> Result<CudaSession, RuntimeError> {
        let context = &device.inner.context;
        let doing = || format!("loading `{}`", exe.name);
        let _current = device.check(doing, context.enter())?;
        let layout = Layout::new(&exe);
        let on_host = |w: &Work<Code>| match w {
            Work::Block { code, .. } => !matches!(code, Code::Ptx(_)),
            // Whether the library takes a matmul is known when it is prepared.
            Work::Gemm(_) | Work::Fallback(_) => false,
            Work::Attention(_) | Work::Interpret { .. } => true,
        };
        let host =
            exe.kernels.iter().any(|k| k.steps.steps.iter().any(on_host)).then(|| HostDevice::new(0)).transpose()?;
        let ptx = exe.kernels.iter().flat_map(|k| &k.steps.steps).filter_map(|w| match w {
            Work::Block { code: Code::Ptx(p), .. } => Some(p),
            _ => None,
        });
        device.preload(ptx);
        let mut session = CudaSession {
            ends: Ends::new(Boundary::new(&exe, &memory)),
            touching: vec![],
            version: 0,
            runs: Default::default(),
            found: device.check(doing, Found::new(context, &layout))?,
            all,
            shared: shared.clone(),
            constants,
            generation: 0,
            device: device.clone(),
            addresses: vec![0; layout.len()],
            kept: Kept::new(&exe, &params),
            copies: params.iter().map(|_| None).collect(),
            params: params.into_iter().map(Some).collect(),
            frozen: exe.buffers.iter().map(|_| None).collect(),
            owned: vec![],
            arena: 0,
            pinned: None,
            launches: exe.kernels.iter().map(|_| vec![]).collect(),
            stale: false,
            host,
            layout,
            callbacks,
            memory,
            exe,
        };
        let turn = shared.turn();
        let loaded = session.load();
        // A session that is dropped waits for its turn.
        drop(turn);
        loaded?;
        session.touching = session.find_touching();
        session.runs = [Whose::Own, Whose::Caller].map(|whose| session.split(whose));
        Ok(session)
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

    /// One run. `inputs` have been checked against the executable.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        let context = self.device.inner.context.clone();
        let _current = self.device.check(|| format!("running `{}`", self.exe.name), context.enter())?;
        self.upload_inputs(inputs)?;
        if self.stale {
            self.clear_records(self.shared.stream.handle)?;
        }
        self.enqueue(Whose::Own, self.shared.stream.handle)?;
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
                // SAFETY: the address is that of a buffer of this type; `wait` follows before the tensor is used or
                // dropped.
                let copied =
                    unsafe { download(t.bytes_mut(), self.addresses[b.0 as usize], self.shared.stream.handle) };
                fetched.insert(*b, t);
                if let Err(e) = self.device.check(|| format!("copying output {b}"), copied) {
                    let _ = self.shared.stream.handle.synchronize();
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

    /// Begins work over the session's own memory on its stream. The context is current from now on.
    pub(super) fn begin(&mut self) -> Result<(), RuntimeError> {
        self.device.check(|| format!("running `{}`", self.exe.name), self.device.inner.context.bind())?;
        self.follow(self.shared.stream.handle)?;
        self.meet_arena()?;
        self.bind_own()
    }
    /// Begins a run of the session's own: copies the inputs to its memory.
    pub(super) fn upload_inputs(&mut self, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        self.begin()?;
        for bound in &self.ends.bound {
            if let End::Input(i) = bound.end {
                // SAFETY: the session has memory for this input at this address; types were checked.
                let copied =
                    unsafe { upload(self.addresses[bound.buffer], inputs[i].bytes(), self.shared.stream.handle) };
                self.device.check(|| format!("copying {}", self.exe.input_name(i)), copied)?;
            }
        }
        Ok(())
    }

    /// Waits for the session's stream. `doing`: a verb for the message of an error, as `running`.
    pub(super) fn wait(&self, doing: &str) -> Result<(), RuntimeError> {
        self.wait_for(self.shared.stream.handle, doing)
    }
    /// Waits for a stream.
    pub(super) fn wait_for(&self, stream: StreamHandle, doing: &str) -> Result<(), RuntimeError> {
        self.device.check(|| format!("{doing} `{}`", self.exe.name), stream.synchronize())
    }

    /// Enqueues the launches of a kernel and runs its host steps.
    pub(super) fn kernel(&self, k: usize, whose: Whose, stream: StreamHandle) -> Result<(), RuntimeError> {
        let kernel = &self.exe.kernels[k];
        let _range = nvtx::range(&kernel.name);
        for (work, launch) in kernel.steps.steps.iter().zip(&self.launches[k]) {
            match launch {
                // SAFETY: the compiler made the code for buffers of these types, in this order; the session owns them,
                // or the caller of the run vouches for them.
                Some(step) => unsafe { step.enqueue(self, &kernel.name, stream) }?,
                None => self.host_step(k, kernel, work, whose, stream)?,
            }
        }
        Ok(())
    }
    /// A kernel on the session's stream.
    pub(super) fn own_kernel(&self, k: usize) -> Result<(), RuntimeError> {
        self.kernel(k, Whose::Own, self.shared.stream.handle)
    }
}
