//! The boundary of a run: which buffers are the caller's tensors, and which outputs are copies.
//!
//! Takes: an executable and its memory plan. Gives: positions in lists of addresses. Never: knows an address of its
//! own.
use crate::{
    Executable,
    memory::{MemoryPlan, Place},
};
use kiln_graph::DType;

/// Buffers without elements are left out.
pub(crate) struct Boundary {
    /// Buffers of inputs, and those of outputs that kernels write.
    pub bound: Vec<Bound>,
    /// Outputs that no kernel writes in place (inputs, parameters, frozen buffers, repeated ones): their number and the
    /// buffer to copy.
    pub copied: Vec<(usize, usize)>,
}
/// A buffer that is one of the caller's tensors.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub buffer: usize,
    pub end: End,
    pub bytes: usize,
    pub dtype: DType,
}
/// Which of the caller's tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Input(usize),
    Output(usize),
}

impl Boundary {
    pub fn new(exe: &Executable, memory: &MemoryPlan) -> Boundary {
        let bound = |(buffer, place): (usize, &Place)| {
            let end = match *place {
                Place::Input(i) => End::Input(i),
                Place::Output(o) => End::Output(o),
                _ => return None,
            };
            let ty = &exe.buffers[buffer].ty;
            (ty.bytes() > 0).then(|| Bound { buffer, end, bytes: ty.bytes(), dtype: ty.dtype })
        };
        let outputs = exe.outputs.iter().map(|b| b.0 as usize).enumerate();
        let copied = outputs.filter(|(o, b)| exe.buffers[*b].ty.bytes() > 0 && memory.buffers[*b] != Place::Output(*o));
        Boundary { bound: memory.buffers.iter().enumerate().filter_map(bound).collect(), copied: copied.collect() }
    }
}
impl Bound {
    /// The caller's address of the tensor.
    pub fn given(&self, inputs: &[u64], outputs: &[u64]) -> u64 {
        match self.end {
            End::Input(i) => inputs[i],
            End::Output(o) => outputs[o],
        }
    }
}
