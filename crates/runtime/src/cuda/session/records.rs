//! Records of out-of-range indices: the session's own runs read them when they wait, runs over the caller's memory find
//! them later.
//!
//! Kernels write a record and never clear one, so a copy that a later run enqueues still has what an earlier run found.
//! Never: waits during a run over the caller's memory.
use crate::cuda::{
    raw::{Context, Event, Pinned, StreamHandle, clear, download},
    session::CudaSession,
};
use crate::{RuntimeError, layout::Layout, memory::RECORD};
use cudarc::driver::result::DriverError;
use std::sync::Arc;

/// The copy of the records that runs over the caller's memory leave on the host.
pub(in crate::cuda) struct Found {
    /// `None` if no kernel checks indices.
    copy: Option<Pinned>,
    /// Recorded behind the last copy.
    pub copied: Arc<Event>,
    /// Whether a copy was enqueued that has not been read.
    pending: bool,
}

impl Found {
    pub fn new(context: &Arc<Context>, layout: &Layout) -> Result<Found, DriverError> {
        let bytes = layout.checked.len() * RECORD;
        let copy = (bytes > 0).then(|| Pinned::new(context, bytes)).transpose()?;
        Ok(Found { copy, copied: Arc::new(Event::untimed(context)?), pending: false })
    }
}

impl CudaSession {
    /// Waits for the session's stream. Fails if a kernel found an index out of range since the records were cleared.
    pub(in crate::cuda) fn indices(&mut self, doing: &str) -> Result<(), RuntimeError> {
        // The records themselves are read here.
        self.found.pending = false;
        let mut records = vec![0u8; self.layout.checked.len() * RECORD];
        if records.is_empty() {
            return self.wait(doing);
        }
        let from = self.addresses[self.layout.record(0)];
        // SAFETY: this many bytes were allocated for records; `wait` follows before they are read.
        let copied = unsafe { download(&mut records, from, self.shared.stream.handle) };
        let copied = self.device.check(|| format!("{doing} `{}`", self.exe.name), copied);
        self.wait(doing).and(copied)?;
        match self.first_error(&records) {
            Some(e) => self.clear_records(self.shared.stream.handle).and(Err(e)),
            None => Ok(()),
        }
    }
    /// The error of the first kernel whose record is set.
    fn first_error(&self, records: &[u8]) -> Option<RuntimeError> {
        let numbers = records.chunks_exact(RECORD).map(|r| i64::from_ne_bytes(r[..8].try_into().unwrap_or_default()));
        self.layout.checked.iter().zip(numbers).find_map(|(k, found)| self.exe.index_error(*k, found))
    }
    /// Clears the records, in order of a stream. Kernels that are timed may run on any data.
    pub(in crate::cuda) fn clear_records(&mut self, stream: StreamHandle) -> Result<(), RuntimeError> {
        self.stale = false;
        if self.layout.checked.is_empty() {
            return Ok(());
        }
        let at = self.addresses[self.layout.record(0)];
        // SAFETY: this many bytes were allocated for records.
        let cleared = unsafe { clear(at, self.layout.checked.len() * RECORD, stream) };
        self.device.check(|| format!("clearing the records of `{}`", self.exe.name), cleared)
    }

    /// Enqueues a copy of the records behind a run over the caller's memory.
    pub(in crate::cuda) fn copy_records(&mut self, stream: StreamHandle) -> Result<(), RuntimeError> {
        let Some(copy) = &self.found.copy else { return Ok(()) };
        // SAFETY: this many bytes were allocated for records, and as many for the copy.
        let copied = unsafe { copy.fill(self.addresses[self.layout.record(0)], stream) };
        self.device.check(|| format!("running `{}`", self.exe.name), copied)?;
        self.found.pending = true;
        Ok(())
    }
    /// The error that an earlier run over the caller's memory recorded, if the last copy of the records is complete.
    pub(in crate::cuda) fn raise_found(&mut self) -> Result<(), RuntimeError> {
        if !self.found.pending {
            return Ok(());
        }
        let Some(copy) = &self.found.copy else { return Ok(()) };
        if !self.device.check(|| format!("running `{}`", self.exe.name), self.found.copied.is_reached())? {
            return Ok(());
        }
        // SAFETY: the event behind the last copy was reached, and none was enqueued since.
        let error = self.first_error(unsafe { copy.bytes() });
        self.found.pending = false;
        match error {
            Some(e) => {
                // The next run clears them, on its stream.
                self.stale = true;
                Err(e)
            }
            None => Ok(()),
        }
    }
}
