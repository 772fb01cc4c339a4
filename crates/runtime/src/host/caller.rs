//! Runs on the host over the caller's memory: kernels read inputs and write outputs where the caller has them.
//!
//! Takes: addresses of dense row-major tensors. Copies only what no kernel writes (outputs that are inputs, parameters,
//! frozen or repeated) and tensors whose address is not a multiple of their element's size, which host code assumes.
//! Never: allocates in warm calls, unless a step copies its operands.
use crate::{
    Executable, RuntimeError,
    boundary::{Bound, Boundary, End},
    host_align,
    memory::MemoryPlan,
};
use kiln_graph::memory::{Memory, require};

/// The caller's tensors, and memory for those that are not aligned.
pub(super) struct Callers {
    pub bound: Vec<(Bound, Option<Memory>)>,
    pub copied: Vec<(usize, usize)>,
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

pub(super) fn pointer(address: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
pub(super) fn is_aligned(b: &Bound, given: u64) -> bool {
    given.is_multiple_of(host_align(b.dtype) as u64)
}

/// Memory of the session's own in place of a tensor that is not aligned. It holds an input's values.
///
/// # Safety
/// An input has its bytes at `given`.
pub(super) unsafe fn staged(b: &Bound, memory: &mut Option<Memory>, given: u64) -> Result<*mut u8, RuntimeError> {
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
