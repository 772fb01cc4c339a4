//! Runs on a GPU over the caller's memory and on the caller's stream.
//!
//! Takes: addresses and a stream. Gives: work in stream order. Runs of a session share its arena, so each waits on the
//! device for the one before if that was on another stream. Never: waits on the host, unless a step needs the host;
//! allocates in warm calls.
use super::{
    raw::{Memory, StreamHandle, copy},
    session::{CudaSession, bind::is_aligned, graph::Whose},
};
use crate::{RuntimeError, boundary::End, shared::lock};
use cudarc::driver::result::DriverError;

impl CudaSession {
    /// Enqueues a run over the caller's memory.
    ///
    /// # Safety
    /// As [`crate::Session::run_on`]; there is an address for each input and output of the executable.
    pub unsafe fn run_on(&mut self, inputs: &[u64], outputs: &[u64], stream: u64) -> Result<(), RuntimeError> {
        let context = self.device.inner.context.clone();
        let _current = self.device.check(|| self.running(), context.enter())?;
        // SAFETY: this function's contract.
        let stream = unsafe { StreamHandle::of_caller(stream) };
        let captured = self.device.check(|| self.running(), stream.is_capturing())?;
        let whose = if captured { Whose::Captured } else { Whose::Caller };
        self.meet_arena()?;
        if captured && self.pinned.is_none() {
            self.pinned = self.shared.arena();
        }
        if !captured {
            self.raise_found()?;
            self.follow(stream)?;
            if self.stale {
                self.clear_records(stream)?;
            }
        }
        let done = self.enqueue_bound(whose, inputs, outputs, stream);
        if !captured {
            // Also after an error: a part of the run may have been enqueued.
            let copied = self.copy_records(stream);
            let recorded = self.device.check(|| self.running(), self.found.copied.record(stream));
            lock(&self.shared.order).event = Some(self.found.copied.clone());
            return done.and(copied).and(recorded);
        }
        done
    }

    fn running(&self) -> String {
        format!("running `{}`", self.exe.name)
    }

    /// Binds the caller's tensors, and enqueues a run and the copies around it.
    fn enqueue_bound(
        &mut self,
        whose: Whose,
        inputs: &[u64],
        outputs: &[u64],
        stream: StreamHandle,
    ) -> Result<(), RuntimeError> {
        let staged = self.ends.bound.iter().any(|b| !is_aligned(b.given(inputs, outputs)));
        if staged && self.ends.own.is_none() {
            if whose == Whose::Captured {
                return Err(RuntimeError::Device {
                    device: self.device.name(),
                    what: format!("capturing `{}`, an input or output needs an aligned copy", self.exe.name),
                    remedy: format!("pass tensors whose addresses are multiples of {}", crate::CUDA_ALIGN),
                });
            }
            self.allocate_ends()?;
        }
        self.bind(|ends, n| match ends.bound[n].given(inputs, outputs) {
            at if is_aligned(at) => at,
            // Invariant: allocated above.
            at => ends.own_address(n).unwrap_or(at),
        })?;
        if staged {
            self.copy_staged(inputs, outputs, stream, true)?;
        }
        self.enqueue(whose, stream)?;
        if staged {
            self.copy_staged(inputs, outputs, stream, false)?;
        }
        for &(o, b) in &self.ends.copied {
            let bytes = self.exe.buffers[b].ty.bytes();
            if self.addresses[b] != outputs[o] {
                // SAFETY: by the contract of `run_on` the output has the buffer's type and overlaps nothing else; the
                // buffer is an input, a parameter, frozen or written above (`Executable::check`).
                let copied = unsafe { copy(outputs[o], self.addresses[b], bytes, stream) };
                self.device.check(|| format!("copying output {o} of `{}`", self.exe.name), copied)?;
            }
        }
        Ok(())
    }

    /// Copies inputs that are not aligned to the session's memory, or outputs from there.
    fn copy_staged(
        &self,
        inputs: &[u64],
        outputs: &[u64],
        stream: StreamHandle,
        into: bool,
    ) -> Result<(), RuntimeError> {
        for b in &self.ends.bound {
            let (given, own) = (b.given(inputs, outputs), self.addresses[b.buffer]);
            if is_aligned(given) || matches!(b.end, End::Input(_)) != into {
                continue;
            }
            let [to, from] = if into { [own, given] } else { [given, own] };
            // SAFETY: the caller's tensor by the contract of `run_on`, the session's memory by its size.
            let copied = unsafe { copy(to, from, b.bytes, stream) };
            self.device.check(|| format!("copying an input or output of `{}`", self.exe.name), copied)?;
        }
        Ok(())
    }

    /// Copies behind the run that was enqueued last, on its stream: to, from and bytes of each.
    ///
    /// # Safety
    /// Tensors on the device of so many bytes, which do not overlap and live until the copies are done; the stream is
    /// that of the run.
    pub unsafe fn copy_behind(
        &mut self,
        mut copies: impl Iterator<Item = (u64, u64, usize)>,
        stream: u64,
    ) -> Result<(), RuntimeError> {
        let context = self.device.inner.context.clone();
        let doing = || format!("copying outputs of `{}` to inputs", self.exe.name);
        let mut done = || {
            let _current = context.enter()?;
            // SAFETY: this function's contract.
            let stream = unsafe { StreamHandle::of_caller(stream) };
            // SAFETY: as above.
            let copied = copies.try_for_each(|(to, from, bytes)| unsafe { copy(to, from, bytes, stream) });
            // Work on other streams waits for the copies too.
            match stream.is_capturing()? {
                true => copied,
                false => {
                    let recorded = self.found.copied.record(stream);
                    lock(&self.shared.order).event = Some(self.found.copied.clone());
                    copied.and(recorded)
                }
            }
        };
        self.device.check(doing, done())
    }

    /// Makes work on this stream wait for earlier runs on other streams, also those of sessions that share with this
    /// one.
    pub(super) fn follow(&mut self, stream: StreamHandle) -> Result<(), RuntimeError> {
        let id = self.device.check(|| self.running(), stream.id())?;
        let mut order = lock(&self.shared.order);
        if id == order.stream {
            return Ok(());
        }
        let own = self.shared.stream.handle;
        let follow = || -> Result<(), DriverError> {
            // Behind each run over the caller's memory the event is recorded already, while its stream surely lives.
            if own.id()? == order.stream {
                self.found.copied.record(own)?;
                return stream.wait(&self.found.copied);
            }
            order.event.as_ref().map_or(Ok(()), |last| stream.wait(last))
        };
        self.device.check(|| self.running(), follow())?;
        order.stream = id;
        Ok(())
    }

    /// Waits for all runs, and fails if one has found an index out of range.
    pub fn check_runs(&mut self) -> Result<(), RuntimeError> {
        let context = self.device.inner.context.clone();
        let _current = self.device.check(|| self.running(), context.enter())?;
        self.follow(self.shared.stream.handle)?;
        if self.stale {
            // What is in the records was raised already, or comes from timing.
            self.clear_records(self.shared.stream.handle)?;
        }
        self.indices("running")
    }

    /// Bytes of device memory that the session alone holds, and those of what others may have as well.
    pub fn bytes_held(&self) -> [usize; 2] {
        let own: usize = self.owned.iter().chain(&self.ends.own).map(|m: &Memory| m.bytes).sum();
        let values: usize = self.copies.iter().chain(&self.frozen).flatten().map(|v| v.data.bytes).sum();
        [own, values + self.memory.run.bytes]
    }
}
