//! Bindings that are compiled on another thread while the caller does something else, as running the model eagerly.
//!
//! Takes: sizes that are new. Gives: nothing until their binding is ready, then the binding, or why there is none.
//! Never: waits. One thread compiles, what was asked for first comes first; it ends when nothing is left to do.
use super::{Binding, Engine, lock};
use crate::{Error, program::Sizes};
use std::{
    collections::{BTreeMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, Weak},
    thread::JoinHandle,
};

/// What an engine compiles on another thread.
#[derive(Default)]
pub(super) struct Queue(Mutex<State>);
#[derive(Default)]
struct State {
    waiting: VecDeque<Sizes>,
    /// Calls that were made meanwhile, by sizes that are waiting or being compiled.
    calls: BTreeMap<Sizes, u64>,
    /// Sizes that cannot be compiled.
    failed: BTreeMap<Sizes, Arc<Error>>,
    /// Whether a thread compiles.
    working: bool,
}

/// Threads that compile, with their engines.
#[derive(Default)]
struct Workers {
    all: Vec<(Weak<Engine>, JoinHandle<()>)>,
    /// Whether the process is about to end.
    over: bool,
}
static WORKERS: Mutex<Workers> = Mutex::new(Workers { all: vec![], over: false });

/// Lets go of all bindings that wait to be compiled, in all engines, and waits for those that are being compiled:
/// before a process ends. From now on nothing is compiled on other threads.
pub fn finish_all() {
    let all = {
        let mut workers = lock(&WORKERS);
        workers.over = true;
        std::mem::take(&mut workers.all)
    };
    for (engine, worker) in all {
        if let Some(engine) = engine.upgrade() {
            lock(&engine.queue.0).waiting.clear();
        }
        // A worker passes no panic on.
        let _ = worker.join();
    }
}

impl Engine {
    /// The binding for these sizes if it was compiled before; `None` if not, and then another thread compiles it. Each
    /// call until it is ready counts as one that was served otherwise ([`Binding::calls_before`]).
    ///
    /// # Errors
    /// Why the sizes cannot be compiled, at every call from when that is known.
    pub fn compile_in_background(self: &Arc<Engine>, sizes: &Sizes) -> Result<Option<Arc<Binding>>, Arc<Error>> {
        if let Some(known) = self.known(sizes) {
            return Ok(Some(known));
        }
        let mut state = lock(&self.queue.0);
        if let Some(error) = state.failed.get(sizes) {
            return Err(error.clone());
        }
        let is_new = !state.calls.contains_key(sizes);
        *state.calls.entry(sizes.clone()).or_default() += 1;
        if is_new {
            state.waiting.push_back(sizes.clone());
        }
        let mut workers = lock(&WORKERS);
        if !state.working && !workers.over {
            let engine = self.clone();
            match std::thread::Builder::new().name("kiln-compile".into()).spawn(move || engine.work()) {
                Ok(worker) => {
                    state.working = true;
                    workers.all.retain(|(_, w)| !w.is_finished());
                    workers.all.push((Arc::downgrade(self), worker));
                }
                Err(e) => {
                    state.waiting.clear();
                    state.calls.clear();
                    let what = format!("no thread could be started to compile {}: {e}", self.program().name());
                    return Err(Arc::new(Error::failed(what, "raise the limit of processes (ulimit -u)")));
                }
            }
        }
        Ok(None)
    }

    /// Compiles what waits, until nothing does.
    fn work(self: Arc<Engine>) {
        loop {
            let sizes = {
                let mut state = lock(&self.queue.0);
                let Some(sizes) = state.waiting.pop_front() else {
                    state.working = false;
                    return;
                };
                sizes
            };
            let made = catch_unwind(AssertUnwindSafe(|| self.made(&sizes))).unwrap_or_else(|_| {
                let what = format!("compiling {} panicked; this is a defect of Kiln", self.program().name());
                Err(Error::failed(what, "report it with the model"))
            });
            let mut state = lock(&self.queue.0);
            let calls = state.calls.remove(&sizes).unwrap_or_default();
            match made {
                Ok(binding) => binding.count_before(calls),
                Err(e) => drop(state.failed.insert(sizes, Arc::new(e))),
            }
        }
    }
}
