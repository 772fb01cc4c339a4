//! A loaded model: code, parameters and memory on one device, ready to run any number of times.
//!
//! Takes: an executable, parameters and callbacks, then the inputs of each run. Gives: the outputs. Never: runs two
//! calls at once.
use crate::{
    Callbacks, Device, Executable, KernelCode, Param, RuntimeError,
    cuda::session::CudaSession,
    error::Mismatch,
    host::session::HostSession,
    memory::{self, MemoryPlan},
    shared::{Names, Pool, Shared},
};
use kiln_graph::{Tensor, Type};
use kiln_plan::{BufferKind, exec::GemmCall};
use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A loaded model on one device. Threads may share it: calls wait for each other.
pub struct Session {
    exe: Arc<Executable>,
    memory: Arc<MemoryPlan>,
    shared: Arc<Shared>,
    /// Whether no other session has anything of `shared`.
    alone: bool,
    backend: Mutex<Backend>,
}

/// Threads share sessions.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Session>()
};

pub(crate) enum Backend {
    Host(Box<HostSession>),
    Cuda(Box<CudaSession>),
}

impl Session {
    /// Checks the executable, places its buffers and runs its load-time kernels. `params`: the parameters of the graph,
    /// in its order.
    ///
    /// # Errors
    /// If the executable is inconsistent or is not code for this device, parameters are missing or of other types,
    /// memory is short, or a load-time kernel fails.
    pub fn new(
        device: &Device,
        exe: impl Into<Arc<Executable>>,
        params: Vec<Tensor>,
        callbacks: Arc<dyn Callbacks>,
    ) -> Result<Session, RuntimeError> {
        Session::with_params(device, exe, params.into_iter().map(Param::Host).collect(), callbacks)
    }

    /// As [`Session::new`], with parameters that may lie in memory of the session's GPU. Such a parameter is neither
    /// copied nor uploaded: kernels read it where it is, those that run at load time too.
    ///
    /// # Errors
    /// Those of [`Session::new`], and if a parameter lies in memory of a GPU and the session runs on the host.
    pub fn with_params(
        device: &Device,
        exe: impl Into<Arc<Executable>>,
        params: Vec<Param>,
        callbacks: Arc<dyn Callbacks>,
    ) -> Result<Session, RuntimeError> {
        let exe = exe.into();
        let names = Names::alone(&exe, params.len());
        let session = Session::sharing(&Shared::new(device)?, exe, params, &names, callbacks)?;
        Ok(Session { alone: true, ..session })
    }

    /// As [`Session::with_params`], with what other sessions of `shared` have as well: values that were computed of its
    /// parameters, and memory for intermediate results. `names` tell which values are equal.
    ///
    /// # Errors
    /// Those of [`Session::with_params`].
    pub fn sharing(
        shared: &Arc<Shared>,
        exe: impl Into<Arc<Executable>>,
        params: Vec<Param>,
        names: &Names,
        callbacks: Arc<dyn Callbacks>,
    ) -> Result<Session, RuntimeError> {
        let mut exe: Arc<Executable> = exe.into();
        let has_alternative = |k: &KernelCode| k.steps.otherwise.is_some();
        if exe.kernels.iter().any(has_alternative) {
            let workspace =
                |k: &KernelCode, g: &GemmCall| g.workspace.and_then(|s| exe.slot_type(k, s)).map_or(0, Type::bytes);
            let takes =
                |k: &KernelCode, g: &GemmCall| matches!(&shared.pool, Pool::Cuda(d, _) if d.takes(g, workspace(k, g)));
            exe = Arc::new(exe.without_library(takes));
        }
        exe.check()?;
        check_params(&exe, &params)?;
        let memory = Arc::new(memory::plan(&exe));
        let common = (shared.clone(), shared.constants(&exe, &memory.buffers, names, &params));
        let (e, m) = (exe.clone(), memory.clone());
        let backend = match &shared.pool {
            Pool::Cuda(d, pool) => {
                Backend::Cuda(Box::new(CudaSession::new((d, pool), e, m, params, common, callbacks)?))
            }
            Pool::Host(d, pool) => {
                Backend::Host(Box::new(HostSession::new((d, pool), e, m, params, common, callbacks)?))
            }
        };
        Ok(Session { exe, memory, shared: shared.clone(), alone: false, backend: Mutex::new(backend) })
    }

    /// Runs the model on its inputs and returns its outputs, both in the order of the graph. Concurrent calls wait for
    /// each other.
    ///
    /// # Errors
    /// If the inputs are not of the number and types that the model was compiled for, an index is out of range, a
    /// callback refuses, or the device fails. The session can be used again, unless the device failed.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, RuntimeError> {
        check_inputs(&self.exe, inputs)?;
        if let Some(written) = self.exe.written.first() {
            return Err(RuntimeError::Invalid {
                model: self.exe.name.clone(),
                at: self.exe.input_name(*written as usize),
                what: "is written in place, so runs need the caller's memory (`run_on`)".into(),
            });
        }
        match &mut *self.backend() {
            Backend::Host(s) => s.run(inputs),
            Backend::Cuda(s) => s.run(inputs),
        }
    }

    /// Runs the model on the caller's memory: reads its inputs and writes its outputs at these addresses, one for each,
    /// in the order of the graph. Every output is written, also one that is an input, a parameter, or another output
    /// again.
    ///
    /// On the host the run is over when this returns, and `stream` is ignored. On a GPU everything is enqueued on
    /// `stream` (a `CUstream`; `None` and 0 are the default stream), and this returns without waiting, unless a step
    /// needs the host. Calls may come on different streams: their work is ordered by the calls, because all runs of a
    /// session, and of those that share with it, use the same memory.
    ///
    /// While `stream` is being captured, kernels are captured one by one, and nothing waits. The session then cannot
    /// order the captured work: the caller orders a launch of the captured graph after other runs of this session and
    /// of those that share memory with it, and keeps the session alive.
    ///
    /// Addresses that are not multiples of [`crate::host_align`] or [`crate::CUDA_ALIGN`] are served through a copy;
    /// inputs that the run writes ([`Executable::write_in_place`]) have to be multiples of the latter.
    ///
    /// An index out of range is an error of this call on the host. On a GPU it is found later, as failing assertions of
    /// a device are: the error is that of the first later call that finds the run complete, which then does not run, or
    /// of [`Session::check`].
    ///
    /// # Errors
    /// Those of [`Session::run`], and during a capture if a step needs the host. Outputs may then be written in part.
    ///
    /// # Safety
    /// Each address is that of a dense row-major tensor on the session's device, of the type of the executable's input
    /// or output (any address if the type has no elements). No output overlaps an input or another output. On a GPU,
    /// `stream` is a stream of the primary context of the session's device, or 0, 1 or 2 for the driver's own; all of
    /// the memory stays allocated until the work is done, in stream order.
    pub unsafe fn run_on(&self, inputs: &[u64], outputs: &[u64], stream: Option<u64>) -> Result<(), RuntimeError> {
        check_input_count(&self.exe, inputs.len())?;
        if outputs.len() != self.exe.outputs.len() {
            let (model, want) = (self.exe.name.clone(), self.exe.outputs.len());
            return Err(RuntimeError::OutputCount { model, got: outputs.len(), want });
        }
        let aligned = |i: &u32| inputs[*i as usize].is_multiple_of(crate::CUDA_ALIGN as u64);
        if let Some(i) = self.exe.written.iter().find(|i| !aligned(i)) {
            return Err(RuntimeError::Invalid {
                model: self.exe.name.clone(),
                at: self.exe.input_name(*i as usize),
                what: format!("is written in place, so its address has to be a multiple of {}", crate::CUDA_ALIGN),
            });
        }
        match &mut *self.backend() {
            // SAFETY: this function's contract; the numbers of addresses were checked.
            Backend::Host(s) => unsafe { s.run_on(inputs, outputs) },
            // SAFETY: as above.
            Backend::Cuda(s) => unsafe { s.run_on(inputs, outputs, stream.unwrap_or(0)) },
        }
    }

    /// Waits for all runs. Fails if a run since the last error found an index out of range, or the device failed.
    ///
    /// # Errors
    /// As described.
    pub fn check(&self) -> Result<(), RuntimeError> {
        match &mut *self.backend() {
            Backend::Host(_) => Ok(()),
            Backend::Cuda(s) => s.check_runs(),
        }
    }

    /// Bytes of memory on its device that the session holds: intermediate and precomputed values, packed weights, and
    /// its own copies of parameters, inputs and outputs. Memory of other owners does not count. On the host, parameters
    /// that were passed as tensors count, though the caller may share them.
    pub fn bytes_held(&self) -> usize {
        let [own, shared] = self.bytes();
        own + shared
    }
    /// Of [`Session::bytes_held`] those that no other session can have, and those that sessions of one [`Shared`] may
    /// have in common: parameters, precomputed values, packed weights, and memory for intermediate results, as much as
    /// this session needs.
    pub fn bytes(&self) -> [usize; 2] {
        match &*lock(&self.backend) {
            Backend::Host(s) => s.bytes_held(),
            Backend::Cuda(s) => s.bytes_held(),
        }
    }

    /// Reads parameters that another owner holds again, after their values have changed: runs the load-time kernels
    /// again, and packs or copies again what was packed or copied. Does nothing if the session owns all of its
    /// parameters, or shares values and no change was announced since ([`Shared::renew`]). Waits for runs that are in
    /// progress, and until it is done. Values that runs read in place need no refresh.
    ///
    /// # Errors
    /// If memory is short, a load-time kernel fails, or the device does. Runs may then use old and new values together:
    /// refresh again.
    pub fn refresh(&self) -> Result<(), RuntimeError> {
        if self.alone {
            self.shared.renew();
        }
        match &mut *self.backend() {
            Backend::Host(s) => s.refresh(),
            Backend::Cuda(s) => s.refresh(),
        }
    }

    /// What this session runs. Kernels may use their steps without a library ([`Executable::without_library`]).
    pub fn executable(&self) -> &Executable {
        &self.exe
    }
    /// The place of every buffer, and the sizes of the arenas.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }
    /// What runs the session, for this thread alone. On a GPU no other session that shares with this one enqueues work
    /// meanwhile.
    pub(crate) fn backend(&self) -> Turn<'_> {
        let backend = lock(&self.backend);
        let turn = if let Pool::Cuda(_, pool) = &self.shared.pool { Some(pool.turn()) } else { None };
        Turn { _turn: turn, backend }
    }
}

/// A session's backend while it is this thread's turn.
pub(crate) struct Turn<'a> {
    /// Ends before the backend is unlocked.
    _turn: Option<MutexGuard<'a, ()>>,
    backend: MutexGuard<'a, Backend>,
}
impl Deref for Turn<'_> {
    type Target = Backend;
    fn deref(&self) -> &Backend {
        &self.backend
    }
}
impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Backend {
        &mut self.backend
    }
}

/// Ignores poisoning: a run that panicked leaves behind only buffers that the next run overwrites.
fn lock(backend: &Mutex<Backend>) -> MutexGuard<'_, Backend> {
    backend.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn check_inputs(exe: &Executable, inputs: &[Tensor]) -> Result<(), RuntimeError> {
    check_input_count(exe, inputs.len())?;
    for (i, (t, spec)) in inputs.iter().zip(&exe.inputs).enumerate() {
        if t.ty != spec.ty {
            let remedy = match t.ty.dtype == spec.ty.dtype {
                true => "pass that shape, or compile again with an example input of this one",
                false => "convert the input, or compile again with an example input of this dtype",
            };
            let types = Box::new(Mismatch { got: t.ty.clone(), want: spec.ty.clone() });
            let (model, input) = (exe.name.clone(), exe.input_name(i));
            return Err(RuntimeError::InputType { model, input, types, remedy });
        }
    }
    Ok(())
}

fn check_input_count(exe: &Executable, got: usize) -> Result<(), RuntimeError> {
    let want = exe.inputs.len();
    if got == want {
        return Ok(());
    }
    let all: Vec<String> = (0..want).map(|i| format!("{}: {}", exe.input_name(i), exe.inputs[i].ty)).collect();
    let (model, inputs) = (exe.name.clone(), if all.is_empty() { "none".into() } else { all.join(", ") });
    Err(RuntimeError::InputCount { model, got, want, inputs })
}

fn check_params(exe: &Executable, params: &[Param]) -> Result<(), RuntimeError> {
    let used = exe.buffers.iter().filter_map(|b| if let BufferKind::Param(p) = b.kind { Some((p, b)) } else { None });
    let want = used.clone().map(|(p, _)| p.0 as usize + 1).max().unwrap_or(0);
    for (p, b) in used {
        let model = exe.name.clone();
        match params.get(p.0 as usize) {
            None => return Err(RuntimeError::ParamCount { model, got: params.len(), want }),
            Some(t) if *t.ty() != b.ty => {
                let types = Box::new(Mismatch { got: t.ty().clone(), want: b.ty.clone() });
                return Err(RuntimeError::ParamType { model, param: p.0, types });
            }
            Some(_) => {}
        }
    }
    Ok(())
}
