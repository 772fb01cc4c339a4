//! Numbers everything in an executable that has an address: the buffers first, then each kernel's scratch, then the
//! records of out-of-range indices, then counters.
//!
//! Takes: an executable. Gives: positions in a session's table of addresses, and numbers of steps. Never: knows the
//! addresses.
use crate::{Executable, KernelCode};
use kiln_plan::exec::{Slot, Work};

pub(crate) struct Layout {
    /// Number of each kernel's first scratch buffer, and as a last entry the number after all scratch.
    scratch: Vec<usize>,
    /// Kernels that keep a record of out-of-range indices.
    pub checked: Vec<usize>,
    /// Kernels that have a counter.
    pub counting: Vec<usize>,
    /// Number of each kernel's first step.
    first_step: Vec<usize>,
    pub steps: usize,
    /// The largest number of arguments of a block step.
    pub max_args: usize,
}
impl Layout {
    pub fn new(exe: &Executable) -> Layout {
        let those = |are: fn(&KernelCode) -> bool| (0..exe.kernels.len()).filter(|k| are(&exe.kernels[*k])).collect();
        let (checked, counting) = (those(KernelCode::checks_indices), those(KernelCode::counts));
        let scratch = vec![exe.buffers.len()];
        let mut l = Layout { scratch, checked, counting, first_step: vec![], steps: 0, max_args: 0 };
        for k in &exe.kernels {
            l.scratch.push(l.end() + k.steps.scratch.len());
            l.first_step.push(l.steps);
            l.steps += k.steps.steps.len();
            let args = k.steps.steps.iter().map(|w| if let Work::Block { args, .. } = w { args.len() } else { 0 });
            l.max_args = args.fold(l.max_args, usize::max);
        }
        l
    }
    /// How many addresses there are.
    pub fn len(&self) -> usize {
        self.end() + self.checked.len() + self.counting.len()
    }
    fn end(&self) -> usize {
        self.scratch.last().copied().unwrap_or(0)
    }
    /// Number of the n-th record.
    pub fn record(&self, n: usize) -> usize {
        self.end() + n
    }
    /// Number of the n-th counter.
    pub fn counter(&self, n: usize) -> usize {
        self.record(self.checked.len()) + n
    }
    pub fn scratch(&self, kernel: usize, s: usize) -> usize {
        self.scratch[kernel] + s
    }
    pub fn first_step(&self, kernel: usize) -> usize {
        self.first_step[kernel]
    }
    /// Number of a slot of a kernel. Invariant: the slot exists (`Executable::check`).
    pub fn slot(&self, index: usize, kernel: &KernelCode, slot: Slot) -> usize {
        match slot {
            Slot::Input(i) => kernel.inputs[i as usize].0 as usize,
            Slot::Output(i) => kernel.outputs[i as usize].0 as usize,
            Slot::Scratch(i) => self.scratch(index, i as usize),
            // Invariant: a kernel with this slot is among `checked` or `counting`.
            Slot::Faults => self.record(self.checked.partition_point(|k| *k < index)),
            Slot::Counter => self.counter(self.counting.partition_point(|k| *k < index)),
        }
    }
}
