//! A session on the host: a table of addresses, and kernels that run one after the other.
//!
//! Takes: an executable whose code is [`Code::Host`]. Gives: outputs that belong to the caller. The record of
//! out-of-range indices of a kernel is read right after the kernel.
use super::{
    HostDevice, Parallel, Tally, attention,
    caller::{self, Callers},
    gemm, run_grid,
    shared::{HostShared, Lent, Need, arena},
    weights,
};
use crate::{
    Callbacks, Code, DeviceTensor, Executable, KernelCode, Param, RuntimeError,
    boundary::End,
    callbacks::{call, call_in_place},
    layout::Layout,
    memory::{MemoryPlan, Place, RECORD},
    param::Kept,
    shared::{Constants, Shared, Value, kernels_for},
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
    collections::{HashMap, HashSet, VecDeque},
    ptr::null_mut,
    sync::Arc,
    time::Instant,
};

pub(crate) struct HostSession {
    device: HostDevice,
    /// Whether runs alternate with operators of libtorch, on its threads.
    beside_libtorch: bool,
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
    shared: Arc<Shared>,
    pool: Arc<HostShared>,
    constants: Constants,
    /// The generation of the values that were loaded last.
    generation: u64,
    /// By buffer; `None` for buffers that are not frozen, or that only packed matmuls read.
    frozen: Vec<Option<Arc<Value<Tensor>>>>,
    need: Need,
    /// Where the arena of the last run was.
    arena: *mut u8,
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
        (device, pool): (&HostDevice, &Arc<HostShared>),
        exe: Arc<Executable>,
        memory: Arc<MemoryPlan>,
        params: Vec<Param>,
        (shared, constants): (Arc<Shared>, Constants),
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
            need: Need::new(&pool.arenas, memory.run.bytes)?,
            arena: null_mut(),
            generation: 0,
            pool: pool.clone(),
            shared,
            constants,
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
        let runs = inner.exe.kernels.iter().filter(|k| k.stage == Stage::Run).flat_map(|k| &k.steps.steps);
        let beside_libtorch =
            inner.callbacks.on_calling_thread() && runs.into_iter().any(|w| matches!(w, Work::Fallback(_)));
        Ok(HostSession { device: device.clone(), beside_libtorch, inner })
    }

    /// The threads of a run.
    fn parallel(device: &HostDevice, beside_libtorch: bool) -> Parallel<'_> {
        if beside_libtorch { device.parallel_beside_libtorch() } else { device.parallel() }
    }

    /// Loads again, if values of parameters have changed since.
    pub fn refresh(&mut self) -> Result<(), RuntimeError> {
        if !self.inner.kept.changes || self.inner.generation == self.inner.shared.generation() {
            return Ok(());
        }
        let m = &self.inner.memory;
        require(m.frozen.saturating_add(m.load.bytes), &format!("refreshing {}", self.inner.exe.name))?;
        self.inner.load(self.device.parallel())
    }

    /// One run. `inputs` have been checked against the executable.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        self.inner.run(Self::parallel(&self.device, self.beside_libtorch), inputs)
    }

    /// One run over the caller's memory.
    ///
    /// # Safety
    /// As [`crate::Session::run_on`]; there is an address for each input and output of the executable.
    pub unsafe fn run_on(&mut self, inputs: &[u64], outputs: &[u64]) -> Result<(), RuntimeError> {
        // SAFETY: this function's contract.
        unsafe { self.inner.run_on(Self::parallel(&self.device, self.beside_libtorch), inputs, outputs) }
    }

    /// Bytes that the session alone holds, and those of what others may have as well, without foreign parameters.
    pub fn bytes_held(&self) -> [usize; 2] {
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
        let _arena = self.borrow_arena()?;
        for (b, memory) in &mut self.callers.bound {
            let given = b.given(inputs, outputs);
            self.addresses[b.buffer] = match caller::is_aligned(b, given) {
                true => caller::pointer(given),
                // SAFETY: this function's contract.
                false => unsafe { caller::staged(b, memory, given) }?,
            };
        }
        self.kernels(p, &[])?;
        for (b, _) in &self.callers.bound {
            let given = b.given(inputs, outputs);
            if matches!(b.end, End::Output(_)) && !caller::is_aligned(b, given) {
                // SAFETY: this function's contract; a kernel has written the session's memory for this output.
                unsafe { caller::pointer(given).copy_from_nonoverlapping(self.addresses[b.buffer], b.bytes) };
            }
        }
        for (o, b) in &self.callers.copied {
            // SAFETY: this function's contract; the buffer has the output's type, and is an input, a parameter, frozen
            // or written above (`Executable::check`).
            unsafe { caller::pointer(outputs[*o]).copy_from(self.addresses[*b], self.exe.buffers[*b].ty.bytes()) };
        }
        Ok(())
    }

    /// Takes the folded and packed weights that other sessions have, computes and packs those that are missing, and
    /// drops what runs do not read, unless refreshing needs it.
    fn load(&mut self, p: Parallel) -> Result<(), RuntimeError> {
        let exe = self.exe.clone();
        let generation = self.shared.generation();
        let operands = weights::operands(&exe, &self.layout, &self.memory.buffers);
        let read = weights::read(&exe, &self.layout, &operands);
        let mut packed: Vec<gemm::Weights> = (0..self.layout.steps).map(|_| gemm::Weights::default()).collect();
        let missing: Vec<&weights::Operand> = operands
            .iter()
            .filter(|o| {
                let found = self.packed_id(o).and_then(|(id, least)| self.pool.packed.get_of(id, least));
                let is_missing = found.is_none();
                *operand(&mut packed, o) = found;
                is_missing
            })
            .collect();
        let folded = self.fold(p, &read, &missing.iter().map(|o| o.buffer).collect(), generation);
        let mut frozen = match folded {
            Ok(frozen) => frozen,
            Err(e) => {
                self.place(null_mut(), &[]);
                return Err(e);
            }
        };
        for o in missing {
            // An earlier step may have packed the same.
            let known = self.packed_id(o).and_then(|(id, least)| self.pool.packed.get_of(id, least));
            *operand(&mut packed, o) = known.or_else(|| {
                // SAFETY: the address is that of the operand's buffer, which has its value, and nothing writes it.
                let panels = unsafe { gemm::prepack(p, o.call, o.role, self.addresses[o.buffer]) }?;
                let panels = Value::new(panels, generation);
                self.packed_id(o).inspect(|(id, _)| self.pool.packed.put(*id, &panels));
                Some(panels)
            });
        }
        self.weights = packed;
        let unread = |b: usize| !read.contains(&BufferId(b as u32));
        frozen.iter_mut().enumerate().filter(|(b, _)| unread(*b)).for_each(|(_, value)| *value = None);
        self.frozen = frozen;
        self.drop_params(unread);
        self.place(null_mut(), &[]);
        self.generation = generation;
        Ok(())
    }
    /// The number of an operand's packed value, and the oldest generation of it that is right.
    fn packed_id(&self, o: &weights::Operand) -> Option<(u64, u64)> {
        let c = self.constants.of(o.buffer)?;
        Some((self.shared.id(format!("{} packed {}", c.id, o.form)), c.least(self.shared.generation())))
    }

    /// The values of frozen buffers that runs read or that are packed, and of those that others have. Addresses are
    /// those of these values from now on.
    fn fold(
        &mut self,
        p: Parallel,
        read: &HashSet<BufferId>,
        packed: &HashSet<usize>,
        generation: u64,
    ) -> Result<Vec<Option<Arc<Value<Tensor>>>>, RuntimeError> {
        let exe = self.exe.clone();
        let is_frozen = |b: usize| self.memory.buffers[b] == Place::Frozen && exe.buffers[b].ty.bytes() > 0;
        let known = |b: usize| {
            let c = self.constants.of(b).filter(|_| is_frozen(b))?;
            self.pool.folded.get_of(c.id, c.least(generation))
        };
        let mut frozen: Vec<Option<Arc<Value<Tensor>>>> = (0..exe.buffers.len()).map(known).collect();
        let wanted = |b: usize| {
            is_frozen(b) && frozen[b].is_none() && (read.contains(&BufferId(b as u32)) || packed.contains(&b))
        };
        let wanted: Vec<bool> = (0..exe.buffers.len()).map(wanted).collect();
        let kernels = kernels_for(&exe, &wanted, |b| frozen[b.0 as usize].is_some());
        // What other sessions read is not written again.
        let mut fresh: Vec<Option<Tensor>> = vec![None; exe.buffers.len()];
        for b in kernels.iter().flat_map(|k| &exe.kernels[*k].outputs).map(|b| b.0 as usize).filter(|b| is_frozen(*b)) {
            fresh[b] = Some(Tensor::zeros(exe.buffers[b].ty.clone()));
            frozen[b] = None;
        }
        let arena = if kernels.is_empty() { None } else { Some(arena(self.memory.load.bytes)?) };
        let at = |b: usize| match (&mut fresh[b], &frozen[b]) {
            (Some(t), _) => t.bytes_mut().as_mut_ptr(),
            // Invariant: kernels only read what they do not compute.
            (None, Some(v)) => v.data.bytes().as_ptr().cast_mut(),
            (None, None) => EMPTY,
        };
        let at: Vec<*mut u8> = (0..exe.buffers.len()).map(at).collect();
        self.place(arena.as_ref().map_or(null_mut(), Memory::as_ptr), &at);
        kernels.iter().try_for_each(|k| self.timed_kernel(p, *k, &exe.kernels[*k], &[]))?;
        for (b, t) in fresh.into_iter().enumerate() {
            let (Some(t), Some(c)) = (t, self.constants.of(b)) else { continue };
            let value = Value::new(t, generation);
            self.pool.folded.put(c.id, &value);
            frozen[b] = Some(value);
        }
        Ok(frozen)
    }

    /// Drops parameters that runs do not read, unless refreshing needs them.
    fn drop_params(&mut self, unread: impl Fn(usize) -> bool) {
        for p in 0..self.params.len() {
            // A parameter may have several buffers, or none.
            let is_read = |(b, place): (usize, &Place)| *place == Place::Param(p) && !unread(b);
            let used = self.memory.buffers.contains(&Place::Param(p));
            if used && !self.kept.params[p] && !self.memory.buffers.iter().enumerate().any(is_read) {
                self.params[p] = None;
            }
        }
    }

    /// Sets the addresses that stay the same over all runs. `load`: the arena of load-time kernels; `folded`: where
    /// frozen buffers are meanwhile, if not where runs have them.
    fn place(&mut self, load: *mut u8, folded: &[*mut u8]) {
        for (b, place) in self.memory.buffers.iter().enumerate() {
            let value = |t: Option<&Tensor>| t.map_or(EMPTY, |t| t.bytes().as_ptr().cast_mut());
            self.addresses[b] = match place {
                _ if self.exe.buffers[b].ty.bytes() == 0 => EMPTY,
                Place::Param(p) => value(self.params[*p].as_ref()),
                Place::Frozen => match folded.get(b) {
                    Some(at) => *at,
                    None => value(self.frozen[b].as_deref().map(|v| &v.data)),
                },
                Place::LoadArena(at) => load.wrapping_add(*at),
                Place::Arena(_) | Place::Input(_) | Place::Output(_) | Place::Nowhere => EMPTY,
            };
        }
        for n in 0..self.layout.checked.len() {
            self.addresses[self.layout.record(n)] = self.records.as_ptr().wrapping_add(n * RECORD);
        }
        self.place_scratch(Stage::Load, load);
        self.place_arena(self.arena);
    }
    /// Sets the addresses in the arena of runs.
    fn place_arena(&mut self, arena: *mut u8) {
        for (b, place) in self.memory.buffers.iter().enumerate() {
            if let Place::Arena(at) = place
                && self.exe.buffers[b].ty.bytes() > 0
            {
                self.addresses[b] = arena.wrapping_add(*at);
            }
        }
        self.place_scratch(Stage::Run, arena);
        self.arena = arena;
    }
    fn place_scratch(&mut self, stage: Stage, arena: *mut u8) {
        for (k, offsets) in self.memory.scratch.iter().enumerate().filter(|(k, _)| self.exe.kernels[*k].stage == stage)
        {
            for (s, at) in offsets.iter().enumerate() {
                let empty = self.exe.kernels[k].steps.scratch[s].bytes() == 0;
                self.addresses[self.layout.scratch(k, s)] = if empty { EMPTY } else { arena.wrapping_add(*at) };
            }
        }
    }
    /// An arena for one run.
    fn borrow_arena(&mut self) -> Result<Option<Lent>, RuntimeError> {
        if self.need.bytes == 0 {
            return Ok(None);
        }
        let arena = self.need.borrow()?;
        if arena.at() != self.arena {
            self.place_arena(arena.at());
        }
        Ok(Some(arena))
    }

    fn run(&mut self, p: Parallel, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        let exe = self.exe.clone();
        let _arena = self.borrow_arena()?;
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
        self.kernels(p, inputs)?;
        self.spare.keep(&outputs);
        let value = |b: &BufferId| match self.memory.buffers[b.0 as usize] {
            Place::Output(o) => outputs[o].clone(),
            _ => self.tensor(b.0 as usize, inputs),
        };
        // Invariant: every output is written by a kernel, an input, a parameter or empty (`Executable::check`).
        Ok(exe.outputs.iter().map(|b| value(b).unwrap_or_else(|| Tensor::zeros(exe.ty(*b).clone()))).collect())
    }

    fn bytes_held(&self) -> [usize; 2] {
        let bytes = |t: &Tensor| t.bytes().len();
        let params: usize = self.params.iter().flatten().filter(|t| !t.is_foreign()).map(bytes).sum();
        let spare: usize = self.spare.0.iter().flatten().map(bytes).sum();
        let frozen: usize = self.frozen.iter().flatten().map(|v| bytes(&v.data)).sum();
        // Steps may share panels.
        let panels = self.weights.iter().flat_map(|w| [&w.a, &w.b]).flatten();
        let panels: HashMap<_, _> = panels.map(|p| (Arc::as_ptr(p), p.data.bytes())).collect();
        let panels: usize = panels.values().sum();
        [spare + self.records.len() + self.callers.bytes(), params + frozen + panels + self.need.bytes]
    }

    /// The tensor that holds a buffer; `None` if the buffer lies in an arena.
    fn tensor(&self, b: usize, inputs: &[Tensor]) -> Option<Tensor> {
        match self.memory.buffers[b] {
            Place::Input(i) => inputs.get(i).cloned(),
            Place::Param(p) => self.params[p].clone(),
            Place::Frozen => self.frozen[b].as_ref().map(|v| v.data.clone()),
            _ => None,
        }
    }

    pub(super) fn kernels(&mut self, p: Parallel, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        let exe = self.exe.clone();
        let mut all = exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == Stage::Run);
        all.try_for_each(|(k, kernel)| self.timed_kernel(p, k, kernel, inputs))
    }
    fn timed_kernel(
        &mut self,
        p: Parallel,
        k: usize,
        kernel: &KernelCode,
        inputs: &[Tensor],
    ) -> Result<(), RuntimeError> {
        let start = self.clock.is_some().then(Instant::now);
        self.kernel(p, k, kernel, inputs)?;
        self.indices(k)?;
        if let (Some(start), Some(clock)) = (start, &mut self.clock) {
            clock.push([start, Instant::now()]);
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
                    let x = gemm::Operands { a: at(g.a.slot), b: at(g.b.slot), c: at(g.c.slot) };
                    let weights = &self.weights.get(self.layout.first_step(k) + s).unwrap_or(&UNPACKED);
                    // SAFETY: `Executable::check` has checked the extents; the memory plan keeps `c` apart from the
                    // other buffers.
                    unsafe { gemm::gemm(p, g, x, weights) };
                }
                Work::Attention(a) => {
                    let x = attention::Operands::new(a, |slot| self.addresses[self.layout.slot(k, kernel, slot)]);
                    // SAFETY: `Executable::check` has checked the extents; the memory plan keeps the result apart from
                    // the other buffers.
                    unsafe { attention::attention(p, a, x) };
                }
                Work::Fallback(call) if self.call_in_place(kernel, call) => {}
                Work::Fallback(_) | Work::Interpret { .. } => {
                    let args: Vec<Tensor> = kernel.inputs.iter().map(|b| self.copy(b.0 as usize, inputs)).collect();
                    let outputs: Vec<_> = kernel.outputs.iter().map(|b| self.exe.ty(*b)).collect();
                    let results = call(&*self.callbacks, [&self.exe.name, &kernel.name], work, &args, &outputs)?;
                    for (b, t) in kernel.outputs.iter().zip(&results) {
                        // SAFETY: `call` has checked that the result has the buffer's type; nothing else uses the
                        // buffer now.
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

/// Where the packed value of an operand belongs.
fn operand<'a>(all: &'a mut [gemm::Weights], o: &weights::Operand) -> &'a mut Option<gemm::Packed> {
    let w = &mut all[o.step];
    if o.role == gemm::Role::A { &mut w.a } else { &mut w.b }
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
