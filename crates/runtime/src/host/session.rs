//! A session on the host: a table of addresses, and kernels that run one after the other.
//!
//! Takes: an executable whose code is [`Code::Host`]. Gives: outputs that belong to the caller. The record of out-of-range indices of a
//! kernel is read right after the kernel.
use super::{
    HostDevice, Parallel, Tally,
    caller::{self, Callers},
    gemm, run_grid, weights,
};
use crate::{
    Callbacks, Code, DeviceTensor, Executable, KernelCode, Param, RuntimeError,
    boundary::End,
    callbacks::{call, call_in_place},
    layout::Layout,
    memory::{MemoryPlan, Place, RECORD},
    param::Kept,
};
use kiln_graph::{
    Tensor, Type,
    memory::{Memory, require},
};
use kiln_plan::{
    BufferId, Stage,
    exec::{Epilogue, LibraryCall, Work},
};
use std::{
    collections::{HashMap, VecDeque},
    ptr::null_mut,
    sync::Arc,
    time::Instant,
};

pub(crate) struct HostSession {
    device: HostDevice,
    inner: Inner,
}

/// Everything of a session but the device.
pub(super) struct Inner {
    pub(super) exe: Arc<Executable>,
    layout: Layout,
    memory: Arc<MemoryPlan>,
    callbacks: Arc<dyn Callbacks>,
    /// By index; `None` after loading if no run reads it and refreshing does not either.
    params: Vec<Option<Tensor>>,
    kept: Kept,
    /// By buffer; `None` for buffers that are not frozen, or that only packed matmuls read.
    frozen: Vec<Option<Tensor>>,
    arena: Memory,
    /// Records of out-of-range indices.
    records: Memory,
    spare: Spare,
    /// By number of the layout. Each run sets the addresses of inputs and outputs.
    pub(super) addresses: Vec<*mut u8>,
    pub(super) callers: Callers,
    /// Arguments of the current step.
    args: Vec<*mut u8>,
    tallies: Vec<Tally>,
    /// Packed operands, per step of the executable.
    weights: Vec<gemm::Weights>,
    /// Start and end of each kernel; only in a profiled run.
    clock: Option<Vec<[Instant; 2]>>,
}
// SAFETY: the addresses point into memory that `Inner` owns or that a run borrows for its whole length.
unsafe impl Send for Inner {}

impl HostSession {
    pub fn new(
        device: &HostDevice,
        exe: Arc<Executable>,
        memory: Arc<MemoryPlan>,
        params: Vec<Param>,
        callbacks: Arc<dyn Callbacks>,
    ) -> Result<HostSession, RuntimeError> {
        check_code(&exe)?;
        let layout = Layout::new(&exe);
        let kept = Kept::new(&exe, &params);
        let on_host = |(param, p): (usize, Param)| match p {
            Param::Host(t) => Ok(Some(t)),
            Param::Device(_) => Err(RuntimeError::ParamPlace { model: exe.name.clone(), param }),
        };
        let params = params.into_iter().enumerate().map(on_host).collect::<Result<Vec<_>, _>>()?;
        let outputs = exe.outputs.iter().map(|b| exe.ty(*b).bytes());
        let own = [memory.frozen, memory.run.bytes, memory.load.bytes].into_iter().chain(outputs);
        let bytes = own.fold(0, usize::saturating_add);
        require(bytes, &format!("intermediate and final results of {}", exe.name))?;
        let mut inner = Inner {
            frozen: vec![None; memory.buffers.len()],
            arena: arena(memory.run.bytes)?,
            records: arena(layout.checked.len() * RECORD)?,
            spare: Spare::new(exe.outputs.len()),
            addresses: vec![null_mut(); layout.len()],
            args: Vec::with_capacity(layout.max_args),
            tallies: (0..layout.steps).map(|_| Tally::default()).collect(),
            params,
            kept,
            callers: Callers::new(&exe, &memory),
            weights: (0..layout.steps).map(|_| gemm::Weights::default()).collect(),
            clock: None,
            layout,
            exe,
            callbacks,
            memory,
        };
        inner.load(device.parallel())?;
        Ok(HostSession { device: device.clone(), inner })
    }

    /// Loads again, if the value of a parameter may have changed.
    pub fn refresh(&mut self) -> Result<(), RuntimeError> {
        if !self.inner.kept.changes {
            return Ok(());
        }
        let m = &self.inner.memory;
        require(m.frozen.saturating_add(m.load.bytes), &format!("refreshing {}", self.inner.exe.name))?;
        self.inner.load(self.device.parallel())
    }

    /// One run. `inputs` have been checked against the executable.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        self.inner.run(self.device.parallel(), inputs)
    }

    /// One run over the caller's memory.
    ///
    /// # Safety
    /// As [`crate::Session::run_on`]; there is an address for each input and output of the executable.
    pub unsafe fn run_on(&mut self, inputs: &[u64], outputs: &[u64]) -> Result<(), RuntimeError> {
        // SAFETY: this function's contract.
        unsafe { self.inner.run_on(self.device.parallel(), inputs, outputs) }
    }

    /// Bytes that the session holds, without foreign parameters.
    pub fn bytes_held(&self) -> usize {
        self.inner.bytes_held()
    }

    /// One run. Returns start and end of each run-time kernel.
    pub fn run_profiled(&mut self, inputs: &[Tensor]) -> Result<Vec<[Instant; 2]>, RuntimeError> {
        self.inner.clock = Some(Vec::with_capacity(self.inner.exe.kernels.len()));
        let result = self.run(inputs);
        let times = self.inner.clock.take().unwrap_or_default();
        result.map(|_| times)
    }
}

fn check_code(exe: &Executable) -> Result<(), RuntimeError> {
    for k in &exe.kernels {
        if k.steps.steps.iter().any(|w| matches!(w, Work::Block { code: Code::Ptx(_), .. })) {
            return Err(RuntimeError::Unsupported {
                kernel: k.name.clone(),
                device: "cpu".into(),
                what: "its code is for an NVIDIA GPU".into(),
                remedy: "compile with --target cpu, or run with --device cuda:0".into(),
            });
        }
        if k.steps.steps.iter().any(|w| matches!(w, Work::Gemm(g) if *g.epilogue != Epilogue::default())) {
            return Err(RuntimeError::Unsupported {
                kernel: k.name.clone(),
                device: "cpu".into(),
                what: "its matmul has an epilogue, which only a GPU's library applies".into(),
                remedy: "compile with --target cpu, or run with --device cuda:0".into(),
            });
        }
    }
    Ok(())
}

impl Inner {
    /// One run over the caller's memory.
    ///
    /// # Safety
    /// As [`crate::Session::run_on`]; there is an address for each input and output of the executable.
    pub unsafe fn run_on(&mut self, p: Parallel, inputs: &[u64], outputs: &[u64]) -> Result<(), RuntimeError> {
        for (b, memory) in &mut self.callers.bound {
            let given = b.given(inputs, outputs);
            self.addresses[b.buffer] = match caller::is_aligned(b, given) {
                true => caller::pointer(given),
                // SAFETY: this function's contract.
                false => unsafe { caller::staged(b, memory, given) }?,
            };
        }
        self.kernels(p, Stage::Run, &[])?;
        for (b, _) in &self.callers.bound {
            let given = b.given(inputs, outputs);
            if matches!(b.end, End::Output(_)) && !caller::is_aligned(b, given) {
                // SAFETY: this function's contract; a kernel has written the session's memory for this output.
                unsafe { caller::pointer(given).copy_from_nonoverlapping(self.addresses[b.buffer], b.bytes) };
            }
        }
        for (o, b) in &self.callers.copied {
            // SAFETY: this function's contract; the buffer has the output's type, and is an input, a parameter, frozen or written above
            // (`Executable::check`).
            unsafe { caller::pointer(outputs[*o]).copy_from(self.addresses[*b], self.exe.buffers[*b].ty.bytes()) };
        }
        Ok(())
    }

    /// Runs the load-time kernels and packs weights; then drops what runs do not read, unless refreshing needs it.
    fn load(&mut self, p: Parallel) -> Result<(), RuntimeError> {
        for (b, place) in self.memory.buffers.iter().enumerate() {
            if *place == Place::Frozen && self.frozen[b].is_none() {
                self.frozen[b] = Some(Tensor::zeros(self.exe.buffers[b].ty.clone()));
            }
        }
        let load_arena = arena(self.memory.load.bytes)?;
        self.fill_addresses(&load_arena);
        self.kernels(p, Stage::Load, &[])?;
        for &param in &self.memory.load_only_params {
            if !self.kept.params[param] {
                self.params[param] = None;
            }
        }
        self.pack_weights(p);
        Ok(())
    }

    /// Sets the addresses that stay the same over all runs.
    fn fill_addresses(&mut self, load: &Memory) {
        for (b, place) in self.memory.buffers.iter().enumerate() {
            self.addresses[b] = match place {
                _ if self.exe.buffers[b].ty.bytes() == 0 => EMPTY,
                Place::Param(p) => self.params[*p].as_ref().map_or(EMPTY, |t| t.bytes().as_ptr().cast_mut()),
                Place::Frozen => self.frozen[b].as_mut().map_or(EMPTY, |t| t.bytes_mut().as_mut_ptr()),
                Place::LoadArena(at) => load.as_ptr().wrapping_add(*at),
                Place::Arena(at) => self.arena.as_ptr().wrapping_add(*at),
                Place::Input(_) | Place::Output(_) | Place::Nowhere => EMPTY,
            };
        }
        for n in 0..self.layout.checked.len() {
            self.addresses[self.layout.record(n)] = self.records.as_ptr().wrapping_add(n * RECORD);
        }
        for (k, offsets) in self.memory.scratch.iter().enumerate() {
            let arena = if self.exe.kernels[k].stage == Stage::Load { load } else { &self.arena };
            for (s, at) in offsets.iter().enumerate() {
                let empty = self.exe.kernels[k].steps.scratch[s].bytes() == 0;
                self.addresses[self.layout.scratch(k, s)] =
                    if empty { EMPTY } else { arena.as_ptr().wrapping_add(*at) };
            }
        }
    }

    /// Packs the weights of matmuls and frees the originals that nothing else reads. Weights that are packed and cannot have changed since
    /// stay as they are: their originals may be gone.
    fn pack_weights(&mut self, p: Parallel) {
        let (exe, layout, places) = (&self.exe, &self.layout, &self.memory.buffers);
        let changed = |b: BufferId| match places[b.0 as usize] {
            Place::Param(p) => self.params[p].as_ref().is_some_and(Tensor::is_foreign),
            _ => true,
        };
        let packed = std::mem::take(&mut self.weights);
        // SAFETY: the addresses and values of frozen buffers are set, and those of parameters but for packed ones that were dropped.
        self.weights = unsafe { weights::pack(p, exe, layout, places, &self.addresses, packed, changed) };
        let read = weights::read(exe, layout, &self.weights);
        let unread = |b: &usize| !read.contains(&BufferId(*b as u32));
        for b in (0..places.len()).filter(unread) {
            match places[b] {
                Place::Frozen => self.frozen[b] = None,
                // A parameter may have several buffers.
                Place::Param(p) if (0..places.len()).all(|o| places[o] != places[b] || unread(&o)) => {
                    if self.kept.params[p] {
                        continue;
                    }
                    self.params[p] = None;
                }
                _ => continue,
            }
            self.addresses[b] = EMPTY;
        }
    }

    fn run(&mut self, p: Parallel, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        let exe = self.exe.clone();
        // One tensor per computed output; repeated outputs share it.
        let mut outputs: Vec<Option<Tensor>> = vec![None; exe.outputs.len()];
        for (b, place) in self.memory.buffers.iter().enumerate() {
            let empty = exe.buffers[b].ty.bytes() == 0;
            match *place {
                Place::Input(i) if !empty => self.addresses[b] = inputs[i].bytes().as_ptr().cast_mut(),
                Place::Output(o) => {
                    let t = outputs[o].insert(self.spare.take(o, &exe.buffers[b].ty));
                    if !empty {
                        self.addresses[b] = t.bytes_mut().as_mut_ptr();
                    }
                }
                _ => {}
            }
        }
        self.kernels(p, Stage::Run, inputs)?;
        self.spare.keep(&outputs);
        let value = |b: &BufferId| match self.memory.buffers[b.0 as usize] {
            Place::Output(o) => outputs[o].clone(),
            _ => self.tensor(b.0 as usize, inputs),
        };
        // Invariant: every output is written by a kernel, an input, a parameter or empty (`Executable::check`).
        Ok(exe.outputs.iter().map(|b| value(b).unwrap_or_else(|| Tensor::zeros(exe.ty(*b).clone()))).collect())
    }

    fn bytes_held(&self) -> usize {
        let own = self.params.iter().chain(&self.frozen).flatten().filter(|t| !t.is_foreign());
        let spare = self.spare.0.iter().flatten();
        let tensors: usize = own.chain(spare).map(|t| t.bytes().len()).sum();
        // Steps may share panels.
        let panels = self.weights.iter().flat_map(|w| [&w.a, &w.b]).flatten();
        let panels: HashMap<_, _> = panels.map(|p| (Arc::as_ptr(p), p.bytes())).collect();
        tensors + panels.values().sum::<usize>() + self.arena.len() + self.records.len() + self.callers.bytes()
    }

    /// The tensor that holds a buffer; `None` if the buffer lies in an arena.
    fn tensor(&self, b: usize, inputs: &[Tensor]) -> Option<Tensor> {
        match self.memory.buffers[b] {
            Place::Input(i) => inputs.get(i).cloned(),
            Place::Param(p) => self.params[p].clone(),
            Place::Frozen => self.frozen[b].clone(),
            _ => None,
        }
    }

    pub(super) fn kernels(&mut self, p: Parallel, stage: Stage, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        let exe = self.exe.clone();
        for (k, kernel) in exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == stage) {
            let start = self.clock.is_some().then(Instant::now);
            self.kernel(p, k, kernel, inputs)?;
            self.indices(k)?;
            if let (Some(start), Some(clock)) = (start, &mut self.clock) {
                clock.push([start, Instant::now()]);
            }
        }
        Ok(())
    }

    fn kernel(&mut self, p: Parallel, k: usize, kernel: &KernelCode, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        for (s, work) in kernel.steps.steps.iter().enumerate() {
            match work {
                Work::Block { code: Code::Host { f, instances, .. }, args } => {
                    self.args.clear();
                    self.args.extend(args.iter().map(|a| self.addresses[self.layout.slot(k, kernel, *a)]));
                    let tally = &self.tallies[self.layout.first_step(k) + s];
                    // SAFETY: the compiler made the code for buffers of these types, in this order.
                    unsafe { run_grid(p, *f, *instances, &self.args, tally) };
                }
                // Refused by `check_code` when the session was made.
                Work::Block { code: Code::Ptx(_), .. } => {}
                Work::Gemm(g) => {
                    let at = |slot| self.addresses[self.layout.slot(k, kernel, slot)];
                    let x = gemm::Operands {
                        a: at(g.a.slot),
                        b: at(g.b.slot),
                        c: at(g.c.slot),
                        limit: g.limit.map(|l| at(l.slot).cast_const()),
                    };
                    let weights = &self.weights.get(self.layout.first_step(k) + s).unwrap_or(&UNPACKED);
                    // SAFETY: `Executable::check` has checked the extents; the memory plan keeps `c` apart from the other buffers.
                    unsafe { gemm::gemm(p, g, x, weights) };
                }
                Work::Fallback(call) if self.call_in_place(kernel, call) => {}
                Work::Fallback(_) | Work::Interpret { .. } => {
                    let args: Vec<Tensor> = kernel.inputs.iter().map(|b| self.copy(b.0 as usize, inputs)).collect();
                    let outputs: Vec<_> = kernel.outputs.iter().map(|b| self.exe.ty(*b)).collect();
                    let results = call(&*self.callbacks, [&self.exe.name, &kernel.name], work, &args, &outputs)?;
                    for (b, t) in kernel.outputs.iter().zip(&results) {
                        // SAFETY: `call` has checked that the result has the buffer's type; nothing else uses the buffer now.
                        unsafe { t.bytes().as_ptr().copy_to(self.addresses[b.0 as usize], t.bytes().len()) };
                    }
                }
            }
        }
        Ok(())
    }

    /// Fails if the kernel found an index out of range; clears its record.
    fn indices(&mut self, k: usize) -> Result<(), RuntimeError> {
        let Ok(n) = self.layout.checked.binary_search(&k) else { return Ok(()) };
        let record = &mut self.records.as_mut_slice()[n * RECORD..][..8];
        let found = i64::from_ne_bytes((&*record).try_into().unwrap_or_default());
        record.fill(0);
        self.exe.index_error(k, found).map_or(Ok(()), Err)
    }

    /// Runs libtorch on the kernel's buffers; false if it cannot.
    fn call_in_place(&self, kernel: &KernelCode, call: &LibraryCall) -> bool {
        let tensor =
            |b: &BufferId| DeviceTensor { ty: self.exe.ty(*b).clone(), address: self.addresses[b.0 as usize] as u64 };
        let inputs: Vec<DeviceTensor> = kernel.inputs.iter().map(tensor).collect();
        let outputs: Vec<DeviceTensor> = kernel.outputs.iter().map(tensor).collect();
        call_in_place(&*self.callbacks, call, &inputs, &outputs, None)
    }

    /// A buffer as a tensor; copied if it lies in an arena.
    fn copy(&self, b: usize, inputs: &[Tensor]) -> Tensor {
        self.tensor(b, inputs).unwrap_or_else(|| {
            let mut t = Tensor::zeros(self.exe.buffers[b].ty.clone());
            let bytes = t.bytes_mut();
            // SAFETY: the address is that of a buffer of this type, written by an earlier kernel.
            unsafe { bytes.as_mut_ptr().copy_from(self.addresses[b], bytes.len()) };
            t
        })
    }
}

/// For the steps that run before weights are packed.
const UNPACKED: gemm::Weights = gemm::Weights { a: None, b: None };

/// Address of buffers without elements: aligned for every type, never read.
const EMPTY: *mut u8 = std::ptr::without_provenance_mut(crate::memory::ALIGN);

fn arena(bytes: usize) -> Result<Memory, RuntimeError> {
    let what = "intermediate results".to_string();
    Memory::zeroed(bytes).ok_or_else(|| RuntimeError::Memory { bytes, what, why: "out of memory".into() })
}

/// Results of earlier runs, kept to reuse their memory: faulting in fresh pages costs more than many kernels.
struct Spare(Vec<VecDeque<Tensor>>);

impl Spare {
    /// Results kept per output: the caller often still holds the last result during the next run.
    const EACH: usize = 2;

    fn new(outputs: usize) -> Spare {
        Spare(vec![VecDeque::new(); outputs])
    }
    /// Memory for output `o`, which a run overwrites completely: that of a result that the caller has dropped, or new.
    fn take(&mut self, o: usize, ty: &Type) -> Tensor {
        let free = self.0[o].iter_mut().position(Tensor::is_unique);
        free.and_then(|i| self.0[o].remove(i)).unwrap_or_else(|| Tensor::zeros(ty.clone()))
    }
    /// Keeps the results of a run, and drops the oldest ones.
    fn keep(&mut self, outputs: &[Option<Tensor>]) {
        for (kept, new) in self.0.iter_mut().zip(outputs) {
            kept.extend(new.clone());
            while kept.len() > Self::EACH {
                kept.pop_front();
            }
        }
    }
}
