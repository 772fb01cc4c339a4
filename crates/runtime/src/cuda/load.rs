//! Loading a session on a GPU: memory, copies of parameters, launches, and the load-time kernels.
//!
//! Takes: a session whose addresses are not set. Gives: one that is ready to run. Refreshing runs the second half
//! again. Never: moves anything that the launches of runs refer to.
use super::{
    launch::Launch,
    library::Matmul,
    raw::{Memory, clear, copy, upload},
    session::{CudaSession, Step, graph::Whose},
};
use crate::{
    Code, HostDevice, KernelCode, Param, RuntimeError,
    memory::{Place, RECORD},
    shared::{Value, kernels_for},
};
use kiln_plan::{
    Stage,
    exec::{GemmCall, Work},
};
use std::sync::atomic::Ordering;

impl CudaSession {
    /// Allocates and fills memory, prepares all launches, and runs the load-time kernels. It is this session's turn.
    pub(super) fn load(&mut self) -> Result<(), RuntimeError> {
        let (exe, memory) = (self.exe.clone(), self.memory.clone());
        self.follow(self.shared.stream.handle)?;
        for (b, place) in memory.buffers.iter().enumerate() {
            let bytes = exe.buffers[b].ty.bytes();
            self.addresses[b] = match *place {
                Place::Frozen if bytes > 0 => {
                    let known = self.constants.of(b).and_then(|c| self.shared.values.get(c.id));
                    let value = match known {
                        Some(known) => known,
                        None => Value::new(self.allocate(bytes, "precomputed parameters")?, 0),
                    };
                    self.frozen[b].insert(value).data.address
                }
                // Set below.
                _ => 0,
            };
        }
        let records = self.allocate(self.layout.checked.len() * RECORD, "records of out-of-range indices")?;
        for n in 0..self.layout.checked.len() {
            self.addresses[self.layout.record(n)] = records.address + (n * RECORD) as u64;
        }
        self.owned.push(records);
        self.clear_records(self.shared.stream.handle)?;
        self.place_counters()?;
        self.bind_own()?;
        self.place_params(|_| true)?;
        let arena = self.shared.arena_of(
            memory.run.bytes,
            || {
                // All work of others is behind what this stream follows.
                self.wait("loading")
            },
            || self.allocate(memory.run.bytes, "intermediate results"),
        )?;
        self.place_arena(arena.address)?;
        self.load_stage()?;
        for p in 0..self.params.len() {
            let is_output = exe.outputs.iter().any(|b| memory.buffers[b.0 as usize] == Place::Param(p));
            if !is_output && !self.kept.params[p] {
                self.params[p] = None;
            }
        }
        self.warm_matmuls()?;
        self.wait("loading")?;
        // Runs over the caller's memory do not need it; the first other run allocates it again.
        self.ends.own = None;
        self.ends.forget();
        Ok(())
    }

    /// Allocates the kernels' counters, which are 0 between launches.
    fn place_counters(&mut self) -> Result<(), RuntimeError> {
        let counting = self.layout.counting.len();
        if counting == 0 {
            return Ok(());
        }
        let counters = self.allocate(counting * RECORD, "counters")?;
        for n in 0..counting {
            self.addresses[self.layout.counter(n)] = counters.address + (n * RECORD) as u64;
        }
        // SAFETY: this many bytes were allocated.
        let cleared = unsafe { clear(counters.address, counting * RECORD, self.shared.stream.handle) };
        self.owned.push(counters);
        self.device.check(|| format!("loading `{}`", self.exe.name), cleared)
    }
    /// Makes the launches of runs refer to the arena of now, if another session has made it grow. Neither waits nor
    /// allocates.
    pub(super) fn meet_arena(&mut self) -> Result<(), RuntimeError> {
        // Invariant: loading has made an arena that is large enough, and it only grows.
        let Some(arena) = self.shared.arena().filter(|a| a.address != self.arena && self.pinned.is_none()) else {
            return Ok(());
        };
        self.place_arena(arena.address)?;
        // What was recorded refers to the old one, and is not running: it was replaced when all work was done.
        self.ends.forget();
        self.runs = [Whose::Own, Whose::Caller].map(|whose| self.split(whose));
        Ok(())
    }
    /// Makes the launches of runs, with their temporaries in this arena.
    fn place_arena(&mut self, arena: u64) -> Result<(), RuntimeError> {
        for (b, place) in self.memory.buffers.iter().enumerate() {
            if let Place::Arena(at) = *place
                && self.exe.buffers[b].ty.bytes() > 0
            {
                self.addresses[b] = arena + at as u64;
            }
        }
        self.prepare_kernels(&self.kernels(Stage::Run), arena)?;
        self.arena = arena;
        Ok(())
    }

    /// Reads parameters that may have changed again, and runs the load-time kernels again, unless another session that
    /// shares their results has done so.
    pub fn refresh(&mut self) -> Result<(), RuntimeError> {
        if !self.kept.changes || self.generation == self.all.generation() {
            return Ok(());
        }
        let context = self.device.inner.context.clone();
        let _current = self.device.check(|| format!("refreshing `{}`", self.exe.name), context.enter())?;
        self.follow(self.shared.stream.handle)?;
        if self.stale {
            self.clear_records(self.shared.stream.handle)?;
        }
        self.place_params(Param::is_foreign)?;
        self.load_stage()
    }

    /// Sets the addresses of parameters: where they are, if they are on the device and aligned; else that of a copy. A
    /// copy is made if there is none yet, or the parameter has `changed` since.
    fn place_params(&mut self, changed: impl Fn(&Param) -> bool) -> Result<(), RuntimeError> {
        let memory = self.memory.clone();
        let generation = self.all.generation();
        for (b, place) in memory.buffers.iter().enumerate() {
            let (Place::Param(p), bytes) = (*place, self.exe.buffers[b].ty.bytes()) else { continue };
            // A parameter that is not kept has a copy that stays as it is.
            let Some(param) = self.params[p].clone().filter(|_| bytes > 0) else { continue };
            if let Some(at) = param.in_place() {
                self.addresses[b] = at;
                continue;
            }
            // Invariant: parameters are constants.
            let Some(constant) = self.constants.of(b) else { continue };
            let known = self.copies[p].clone().or_else(|| self.shared.values.get(constant.id));
            let copied = match known {
                Some(known) => known,
                None => Value::new(self.allocate(bytes, "parameters")?, 0),
            };
            let to = copied.data.address;
            self.addresses[b] = to;
            self.copies[p] = Some(copied.clone());
            if !copied.is_of(1) || changed(&param) && !copied.is_of(constant.least(generation)) {
                let done = match &param {
                    // SAFETY: the memory was allocated for this parameter.
                    Param::Host(t) => unsafe { upload(to, t.bytes(), self.shared.stream.handle) },
                    // SAFETY: as above; the parameter is complete and lives, by the contract of `Param::device`.
                    Param::Device(d) => unsafe { copy(to, d.address(), bytes, self.shared.stream.handle) },
                };
                self.device.check(|| format!("copying parameter @{p}"), done)?;
                copied.generation.store(generation, Ordering::Relaxed);
                self.shared.values.put(constant.id, &copied);
            }
        }
        Ok(())
    }

    /// Runs the load-time kernels whose results no session has computed since parameters have changed, in an arena of
    /// their own; waits for them, and frees what only they read.
    fn load_stage(&mut self) -> Result<(), RuntimeError> {
        let (exe, memory) = (self.exe.clone(), self.memory.clone());
        let generation = self.all.generation();
        let is_known = |b: usize| match (&self.frozen[b], self.constants.of(b)) {
            (Some(value), Some(c)) => value.is_of(c.least(generation)),
            _ => false,
        };
        let wanted: Vec<bool> = (0..exe.buffers.len()).map(|b| self.frozen[b].is_some() && !is_known(b)).collect();
        let kernels = kernels_for(&exe, &wanted, |b| is_known(b.0 as usize));
        let bytes = if kernels.is_empty() { 0 } else { memory.load.bytes };
        let arena = self.allocate(bytes, "intermediate results of loading")?;
        for (b, place) in memory.buffers.iter().enumerate() {
            if let Place::LoadArena(at) = *place {
                self.addresses[b] = if exe.buffers[b].ty.bytes() == 0 { 0 } else { arena.address + at as u64 };
            }
        }
        self.prepare_kernels(&kernels, arena.address)?;
        let done = kernels.iter().try_for_each(|k| self.own_kernel(*k));
        // The arena and parameters must not be freed while kernels use them, even if one could not be enqueued.
        let done = done.and(self.indices("loading"));
        if done.is_err() {
            let _ = self.shared.stream.handle.synchronize();
        }
        for k in kernels {
            self.launches[k].clear();
        }
        for &p in &memory.load_only_params {
            self.copies[p] = None;
        }
        done?;
        for b in (0..wanted.len()).filter(|b| wanted[*b]) {
            if let (Some(value), Some(c)) = (&self.frozen[b], self.constants.of(b)) {
                value.generation.store(generation, Ordering::Relaxed);
                self.shared.values.put(c.id, value);
            }
        }
        self.generation = generation;
        Ok(())
    }

    /// Sets the addresses of the kernels' scratch in an arena, and prepares their launches.
    fn prepare_kernels(&mut self, kernels: &[usize], arena: u64) -> Result<(), RuntimeError> {
        let exe = self.exe.clone();
        for &k in kernels {
            let kernel = &exe.kernels[k];
            for (s, at) in self.memory.scratch[k].iter().enumerate() {
                self.addresses[self.layout.scratch(k, s)] = arena + *at as u64;
            }
            let launches: Result<Vec<_>, _> = kernel.steps.steps.iter().map(|w| self.prepare(k, kernel, w)).collect();
            self.launches[k] = launches?;
            let refused = |(w, step): (&Work<Code>, &Option<Step>)| matches!(w, Work::Gemm(_)) && step.is_none();
            if self.host.is_none() && kernel.steps.steps.iter().zip(&self.launches[k]).any(refused) {
                self.host = Some(HostDevice::new(0)?);
            }
        }
        Ok(())
    }

    pub(super) fn allocate(&self, bytes: usize, what: &str) -> Result<Memory, RuntimeError> {
        self.device.allocate(bytes, what)
    }

    /// Prepares a step for the device; `None` if the host runs it.
    fn prepare(&self, k: usize, kernel: &KernelCode, work: &Work<Code>) -> Result<Option<Step>, RuntimeError> {
        match work {
            Work::Block { code: Code::Ptx(ptx), args } => {
                let args = args.iter().map(|a| self.address(k, kernel, *a)).collect();
                Launch::new(&self.device, &kernel.name, ptx, args).map(|l| Some(Step::Launch(l)))
            }
            Work::Gemm(g) => Ok(self.matmul(k, kernel, g).map(Step::Matmul)),
            _ => Ok(None),
        }
    }
    /// `None` if the library does not take the matmul; the host then computes it.
    pub(super) fn matmul(&self, k: usize, kernel: &KernelCode, g: &GemmCall) -> Option<Matmul> {
        let places = self.places(k, kernel, g)?;
        Matmul::new(&self.device.library()?, g, places)
    }
    /// Runs each library matmul once: the library loads a kernel on its first launch, which is not possible during a
    /// capture.
    fn warm_matmuls(&self) -> Result<(), RuntimeError> {
        for k in self.kernels(Stage::Run) {
            for step in self.launches[k].iter().flatten().filter(|s| matches!(s, Step::Matmul(_))) {
                // SAFETY: as in `kernel`; every run overwrites the results.
                unsafe { step.enqueue(self, &self.exe.kernels[k].name, self.shared.stream.handle) }?;
            }
        }
        Ok(())
    }
}
