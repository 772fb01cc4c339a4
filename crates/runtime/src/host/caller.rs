//! Runs on the host over the caller's memory: kernels read inputs and write outputs where the caller has them.
//!
//! Takes: addresses of dense row-major tensors. Copies only what no kernel writes (outputs that are inputs, parameters, frozen or repeated)
//! and tensors whose address is not a multiple of their element's size, which host code assumes. Never: allocates in warm calls, unless a
//! step copies its operands.
use super::{Parallel, session::Inner};
use crate::{
    Executable, RuntimeError,
    boundary::{Bound, Boundary, End},
    host_align,
    memory::MemoryPlan,
};
use kiln_graph::memory::{Memory, require};
use kiln_plan::Stage;

/// The caller's tensors, and memory for those that are not aligned.
pub(super) struct Callers {
    bound: Vec<(Bound, Option<Memory>)>,
    copied: Vec<(usize, usize)>,
}

impl Callers {
    pub fn new(exe: &Executable, memory: &MemoryPlan) -> Callers {
        let Boundary { bound, copied } = Boundary::new(exe, memory);
        Callers { bound: bound.into_iter().map(|b| (b, None)).collect(), copied }
    }
    /// Bytes of the memory for tensors that are not aligned.
    pub fn bytes(&self) -> usize {
        self.bound.iter().filter_map(|b| b.1.as_ref()).map(Memory::len).sum()
    }
}

fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
fn is_aligned(b: &Bound, given: u64) -> bool {
    given.is_multiple_of(host_align(b.dtype) as u64)
}

/// Memory of the session's own in place of a tensor that is not aligned. It holds an input's values.
///
/// # Safety
/// An input has its bytes at `given`.
unsafe fn staged(b: &Bound, memory: &mut Option<Memory>, given: u64) -> Result<*mut u8, RuntimeError> {
    let what = "an aligned copy of an input or output";
    if memory.is_none() {
        require(b.bytes, what)?;
        *memory = Memory::zeroed(b.bytes);
    }
    let none = || RuntimeError::Memory { bytes: b.bytes, what: what.into(), why: "out of memory".into() };
    let at = memory.as_ref().ok_or_else(none)?.as_ptr();
    if matches!(b.end, End::Input(_)) {
        // SAFETY: this function's contract; the session's memory has as many bytes.
        unsafe { at.copy_from_nonoverlapping(pointer(given), b.bytes) };
    }
    Ok(at)
}

impl Inner {
    /// One run over the caller's memory.
    ///
    /// # Safety
    /// As [`crate::Session::run_on`]; there is an address for each input and output of the executable.
    pub unsafe fn run_on(&mut self, p: Parallel, inputs: &[u64], outputs: &[u64]) -> Result<(), RuntimeError> {
        for (b, memory) in &mut self.callers.bound {
            let given = b.given(inputs, outputs);
            self.addresses[b.buffer] = match is_aligned(b, given) {
                true => pointer(given),
                // SAFETY: this function's contract.
                false => unsafe { staged(b, memory, given) }?,
            };
        }
        self.kernels(p, Stage::Run, &[])?;
        for (b, _) in &self.callers.bound {
            let given = b.given(inputs, outputs);
            if matches!(b.end, End::Output(_)) && !is_aligned(b, given) {
                // SAFETY: this function's contract; a kernel has written the session's memory for this output.
                unsafe { pointer(given).copy_from_nonoverlapping(self.addresses[b.buffer], b.bytes) };
            }
        }
        for (o, b) in &self.callers.copied {
            // SAFETY: this function's contract; the buffer has the output's type, and is an input, a parameter, frozen or written above
            // (`Executable::check`).
            unsafe { pointer(outputs[*o]).copy_from(self.addresses[*b], self.exe.buffers[*b].ty.bytes()) };
        }
        Ok(())
    }
}
