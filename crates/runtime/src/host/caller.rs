//! Runs on the host over the caller's memory: kernels read inputs and write outputs where the caller has them.
//!
//! Takes: addresses of dense row-major tensors. Copies only what no kernel writes (outputs that are inputs, parameters, frozen or repeated)
//! and tensors whose address is not a multiple of their element's size, which host code assumes. Never: allocates in warm calls, unless a
//! step copies its operands.
use super::{Parallel, session::Inner};
use crate::{Executable, RuntimeError, host_align, memory::MemoryPlan, memory::Place};
use kiln_graph::memory::{Memory, require};
use kiln_plan::Stage;

/// What a run over the caller's memory does beside kernels. Buffers without elements are left out.
pub(super) struct Boundary {
    /// Inputs that kernels read or that are outputs, and outputs that kernels write.
    bound: Vec<Bound>,
    /// Outputs that no kernel writes in place: their number and the buffer to copy.
    copied: Vec<(usize, usize)>,
}
struct Bound {
    buffer: usize,
    end: End,
    bytes: usize,
    align: usize,
    /// Aligned memory, made when the caller's is not.
    staged: Option<Memory>,
}
/// Which of the caller's tensors.
#[derive(Clone, Copy)]
enum End {
    Input(usize),
    Output(usize),
}

impl Boundary {
    pub fn new(exe: &Executable, memory: &MemoryPlan) -> Boundary {
        let bound = |(b, place): (usize, &Place)| {
            let end = match *place {
                Place::Input(i) => End::Input(i),
                Place::Output(o) => End::Output(o),
                _ => return None,
            };
            let ty = &exe.buffers[b].ty;
            let bytes = ty.bytes();
            (bytes > 0).then(|| Bound { buffer: b, end, bytes, align: host_align(ty.dtype), staged: None })
        };
        let outputs = exe.outputs.iter().map(|b| b.0 as usize).enumerate();
        let copied = outputs.filter(|(o, b)| exe.buffers[*b].ty.bytes() > 0 && memory.buffers[*b] != Place::Output(*o));
        Boundary { bound: memory.buffers.iter().enumerate().filter_map(bound).collect(), copied: copied.collect() }
    }
    /// Bytes of the memory for tensors that are not aligned.
    pub fn bytes(&self) -> usize {
        self.bound.iter().filter_map(|b| b.staged.as_ref()).map(Memory::len).sum()
    }
}

impl Bound {
    /// The caller's address.
    fn given(&self, inputs: &[u64], outputs: &[u64]) -> *mut u8 {
        let address = match self.end {
            End::Input(i) => inputs[i],
            End::Output(o) => outputs[o],
        };
        std::ptr::with_exposed_provenance_mut(address as usize)
    }
    fn is_staged(&self, given: *mut u8) -> bool {
        !given.addr().is_multiple_of(self.align)
    }
    /// The address that kernels use.
    ///
    /// # Safety
    /// An input has its bytes at `given`.
    unsafe fn place(&mut self, given: *mut u8) -> Result<*mut u8, RuntimeError> {
        if !self.is_staged(given) {
            return Ok(given);
        }
        let what = "an aligned copy of an input or output";
        if self.staged.is_none() {
            require(self.bytes, what)?;
            self.staged = Memory::zeroed(self.bytes);
        }
        let no_memory = || RuntimeError::Memory { bytes: self.bytes, what: what.into(), why: "out of memory".into() };
        let staged = self.staged.as_ref().ok_or_else(no_memory)?.as_ptr();
        if matches!(self.end, End::Input(_)) {
            // SAFETY: this function's contract; `staged` has as many bytes, and is the session's own.
            unsafe { staged.copy_from_nonoverlapping(given, self.bytes) };
        }
        Ok(staged)
    }
}

impl Inner {
    /// One run over the caller's memory.
    ///
    /// # Safety
    /// As [`crate::Session::run_on`]; there is an address for each input and output of the executable.
    pub unsafe fn run_on(&mut self, p: Parallel, inputs: &[u64], outputs: &[u64]) -> Result<(), RuntimeError> {
        for bound in &mut self.boundary.bound {
            let given = bound.given(inputs, outputs);
            // SAFETY: this function's contract.
            self.addresses[bound.buffer] = unsafe { bound.place(given) }?;
        }
        self.kernels(p, Stage::Run, &[])?;
        for bound in &self.boundary.bound {
            let given = bound.given(inputs, outputs);
            if matches!(bound.end, End::Output(_)) && bound.is_staged(given) {
                // SAFETY: this function's contract; a kernel has written the staged output.
                unsafe { given.copy_from_nonoverlapping(self.addresses[bound.buffer], bound.bytes) };
            }
        }
        for (o, b) in &self.boundary.copied {
            let to: *mut u8 = std::ptr::with_exposed_provenance_mut(outputs[*o] as usize);
            // SAFETY: this function's contract; the buffer has the output's type, and is an input, a parameter, frozen or written above
            // (`Executable::check`).
            unsafe { to.copy_from(self.addresses[*b], self.exe.buffers[*b].ty.bytes()) };
        }
        Ok(())
    }
}
