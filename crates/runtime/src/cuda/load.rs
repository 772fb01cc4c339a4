//! Loading a session on a GPU: memory, copies of parameters, launches, and the load-time kernels.
//!
//! Takes: a session whose addresses are not set. Gives: one that is ready to run. Refreshing runs the second half again.
//! Never: moves anything that the launches of runs refer to.
use super::{
    launch::Launch,
    library::Matmul,
    raw::{Memory, copy, upload},
    session::{CudaSession, Step},
};
use crate::{
    Code, HostDevice, KernelCode, Param, RuntimeError,
    memory::{Place, RECORD},
};
use kiln_plan::{
    Stage,
    exec::{GemmCall, Work},
};

impl CudaSession {
    /// Allocates and fills memory, prepares all launches, and runs the load-time kernels.
    pub(super) fn load(&mut self) -> Result<(), RuntimeError> {
        let (exe, memory) = (self.exe.clone(), self.memory.clone());
        let arena = self.allocate(memory.run.bytes, "intermediate results")?;
        for (b, place) in memory.buffers.iter().enumerate() {
            let bytes = exe.buffers[b].ty.bytes();
            self.addresses[b] = match *place {
                _ if bytes == 0 => 0,
                Place::Arena(at) => arena.address + at as u64,
                Place::Frozen => {
                    let m = self.allocate(bytes, "precomputed parameters")?;
                    let at = m.address;
                    self.owned.push(m);
                    at
                }
                // Set below.
                Place::Param(_) | Place::LoadArena(_) | Place::Input(_) | Place::Output(_) | Place::Nowhere => 0,
            };
        }
        let all = exe.kernels.iter().flat_map(|k| &k.steps.steps).filter_map(|w| match w {
            Work::Block { code: Code::Ptx(p), .. } => Some(p),
            _ => None,
        });
        self.device.preload(all);
        let records = self.allocate(self.layout.checked.len() * RECORD, "records of out-of-range indices")?;
        for n in 0..self.layout.checked.len() {
            self.addresses[self.layout.record(n)] = records.address + (n * RECORD) as u64;
        }
        self.owned.push(records);
        self.clear_records(self.stream.handle)?;
        self.bind_own()?;
        self.place_params(|_| true)?;
        self.prepare_stage(Stage::Run, arena.address)?;
        self.owned.push(arena);
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

    /// Reads parameters that may have changed again, and runs the load-time kernels again.
    pub fn refresh(&mut self) -> Result<(), RuntimeError> {
        if !self.kept.changes {
            return Ok(());
        }
        let context = self.device.inner.context.clone();
        let _current = self.device.check(|| format!("refreshing `{}`", self.exe.name), context.enter())?;
        self.follow(self.stream.handle)?;
        if self.stale {
            self.clear_records(self.stream.handle)?;
        }
        self.place_params(Param::is_foreign)?;
        self.load_stage()
    }

    /// Sets the addresses of parameters: where they are, if they are on the device and aligned; else that of a copy. A copy is made if there
    /// is none yet, or the parameter has `changed`.
    fn place_params(&mut self, changed: impl Fn(&Param) -> bool) -> Result<(), RuntimeError> {
        let memory = self.memory.clone();
        let mut done = vec![false; self.params.len()];
        for (b, place) in memory.buffers.iter().enumerate() {
            let (Place::Param(p), bytes) = (*place, self.exe.buffers[b].ty.bytes()) else { continue };
            // A parameter that is not kept has a copy that stays as it is.
            let Some(param) = self.params[p].clone().filter(|_| bytes > 0) else { continue };
            if let Some(at) = param.in_place() {
                self.addresses[b] = at;
                continue;
            }
            let fresh = self.copies[p].is_none();
            let to = match &self.copies[p] {
                Some(m) => m.address,
                None => {
                    let m = self.allocate(bytes, "parameters")?;
                    self.copies[p].insert(m).address
                }
            };
            self.addresses[b] = to;
            if !done[p] && (fresh || changed(&param)) {
                let copied = match &param {
                    // SAFETY: the memory was allocated for this parameter.
                    Param::Host(t) => unsafe { upload(to, t.bytes(), self.stream.handle) },
                    // SAFETY: as above; the parameter is complete and lives, by the contract of `Param::device`.
                    Param::Device(d) => unsafe { copy(to, d.address(), bytes, self.stream.handle) },
                };
                self.device.check(|| format!("copying parameter @{p}"), copied)?;
            }
            done[p] = true;
        }
        Ok(())
    }

    /// Runs the load-time kernels in an arena of their own, waits for them, and frees what only they read.
    fn load_stage(&mut self) -> Result<(), RuntimeError> {
        let memory = self.memory.clone();
        let arena = self.allocate(memory.load.bytes, "intermediate results of loading")?;
        for (b, place) in memory.buffers.iter().enumerate() {
            if let Place::LoadArena(at) = *place {
                self.addresses[b] = if self.exe.buffers[b].ty.bytes() == 0 { 0 } else { arena.address + at as u64 };
            }
        }
        self.prepare_stage(Stage::Load, arena.address)?;
        let kernels = self.kernels(Stage::Load);
        let done = kernels.iter().try_for_each(|k| self.own_kernel(*k));
        // The arena and parameters must not be freed while kernels use them, even if one could not be enqueued.
        let done = done.and(self.indices("loading"));
        if done.is_err() {
            let _ = self.stream.handle.synchronize();
        }
        for k in kernels {
            self.launches[k].clear();
        }
        for &p in &memory.load_only_params {
            self.copies[p] = None;
        }
        done
    }

    /// Sets the addresses of scratch in an arena, and prepares the launches of a stage.
    fn prepare_stage(&mut self, stage: Stage, arena: u64) -> Result<(), RuntimeError> {
        let exe = self.exe.clone();
        for (k, kernel) in exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == stage) {
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
    /// Runs each library matmul once: the library loads a kernel on its first launch, which is not possible during a capture.
    fn warm_matmuls(&self) -> Result<(), RuntimeError> {
        for k in self.kernels(Stage::Run) {
            for step in self.launches[k].iter().flatten().filter(|s| matches!(s, Step::Matmul(_))) {
                // SAFETY: as in `kernel`; every run overwrites the results.
                unsafe { step.enqueue(self, &self.exe.kernels[k].name, self.stream.handle) }?;
            }
        }
        Ok(())
    }
}
