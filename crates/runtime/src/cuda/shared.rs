//! What sessions on a GPU have in common: a stream, folded weights, copies of parameters, and one arena for
//! intermediate results.
//!
//! Takes: what sessions compute when they are loaded, and the bytes that their runs need. Gives: the values, and the
//! arena of now. Never: moves a value. The arena is as large as the largest session has ever needed. It moves when it
//! grows, once all runs are over: each session makes its launches anew before its next run, and records them again. A
//! session whose run was captured by its caller keeps the arena that it had, because the captured graph refers to it.
//!
//! All sessions use the one arena, so their work is one after another: one session at a time enqueues, and work on
//! another stream waits for the work before ([`CudaSession::follow`](super::session::CudaSession)).
use super::{
    CudaDevice,
    raw::{Event, Memory, Stream},
};
use crate::{
    RuntimeError,
    shared::{Values, lock},
};
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) struct CudaShared {
    /// Declared before the stream, so that memory is freed first.
    arena: Mutex<Option<Arc<Memory>>>,
    /// Folded weights and copies of parameters.
    pub values: Values<Memory>,
    pub(super) order: Mutex<Order>,
    turn: Mutex<()>,
    /// For what sessions do of their own.
    pub(super) stream: Stream,
}
/// Where work was enqueued last.
pub(super) struct Order {
    /// The driver's number of the stream.
    pub stream: u64,
    /// Recorded behind the last run over a caller's memory.
    pub event: Option<Arc<Event>>,
}

impl CudaShared {
    pub fn new(device: &CudaDevice) -> Result<CudaShared, RuntimeError> {
        let context = &device.inner.context;
        let doing = || "opening a stream".to_string();
        let _current = device.check(doing, context.enter())?;
        let stream = device.check(doing, Stream::new(context))?;
        let order = Order { stream: device.check(doing, stream.handle.id())?, event: None };
        let (arena, order, turn) = (Mutex::default(), Mutex::new(order), Mutex::default());
        Ok(CudaShared { arena, values: Values::default(), order, turn, stream })
    }
    /// Waits until no other session enqueues work, and keeps others from it meanwhile.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }
    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.values.bytes(|m| m.bytes) + lock(&self.arena).as_ref().map_or(0, |m| m.bytes)
    }

    /// The arena of now.
    pub(super) fn arena(&self) -> Option<Arc<Memory>> {
        lock(&self.arena).clone()
    }
    /// The arena, with at least this many bytes. A smaller one is replaced; `quiet` waits for all work that uses it.
    pub(super) fn arena_of(
        &self,
        bytes: usize,
        quiet: impl FnOnce() -> Result<(), RuntimeError>,
        allocate: impl FnOnce() -> Result<Memory, RuntimeError>,
    ) -> Result<Arc<Memory>, RuntimeError> {
        let mut arena = lock(&self.arena);
        if let Some(large) = arena.as_ref().filter(|m| m.bytes >= bytes) {
            return Ok(large.clone());
        }
        let larger = Arc::new(allocate()?);
        quiet()?;
        *arena = Some(larger.clone());
        Ok(larger)
    }
}
