//! The addresses of inputs and outputs, and the launches that refer to them.
//!
//! Runs of the session's own have them in memory that is allocated for the first such run and then stays. Runs over the
//! caller's memory have them wherever the caller does; launches get new arguments only where an address differs from
//! that of the run before.
use crate::cuda::{
    library::Places,
    raw::Memory,
    session::{CudaSession, Step},
};
use crate::{
    CUDA_ALIGN, Code, KernelCode, RuntimeError,
    boundary::{Bound, Boundary},
    memory::{ALIGN, Place},
};
use kiln_plan::{
    Stage,
    exec::{GemmCall, Slot, Work},
};

/// Inputs and outputs of a session on a GPU.
pub(in crate::cuda) struct Ends {
    pub bound: Vec<Bound>,
    /// Outputs that no kernel writes: their number and the buffer to copy.
    pub copied: Vec<(usize, usize)>,
    /// Address of each that launches refer to now; `NOWHERE` if it is not known.
    at: Vec<u64>,
    /// Offset of each in the session's memory.
    offsets: Vec<usize>,
    /// Size of that memory.
    bytes: usize,
    /// Memory for runs of the session's own, and for tensors of the caller that are not aligned.
    pub own: Option<Memory>,
}
/// No address of a tensor: it is not aligned.
const NOWHERE: u64 = u64::MAX;

impl Ends {
    pub fn new(b: Boundary) -> Ends {
        let mut bytes = 0;
        let mut next = |b: &Bound| {
            let at = bytes;
            bytes += b.bytes.next_multiple_of(ALIGN);
            at
        };
        let offsets = b.bound.iter().map(&mut next).collect();
        Ends { at: vec![NOWHERE; b.bound.len()], offsets, bytes, own: None, bound: b.bound, copied: b.copied }
    }
    /// Address of the n-th in the session's memory, if that is allocated.
    pub fn own_address(&self, n: usize) -> Option<u64> {
        self.own.as_ref().map(|m| m.address + self.offsets[n] as u64)
    }
    /// Forgets where launches refer to, so that the next run binds them all.
    pub fn forget(&mut self) {
        self.at.fill(NOWHERE);
    }
}

/// Whether kernels can use a tensor at this address.
pub(in crate::cuda) fn is_aligned(address: u64) -> bool {
    address.is_multiple_of(CUDA_ALIGN as u64)
}

impl CudaSession {
    /// Allocates the session's memory for inputs and outputs, if it is not yet.
    pub(in crate::cuda) fn allocate_ends(&mut self) -> Result<(), RuntimeError> {
        if self.ends.own.is_none() {
            self.ends.own = Some(self.allocate(self.ends.bytes, "inputs and outputs")?);
        }
        Ok(())
    }
    /// Binds inputs and outputs to the session's memory.
    pub(in crate::cuda) fn bind_own(&mut self) -> Result<(), RuntimeError> {
        self.allocate_ends()?;
        // Invariant: allocated above.
        self.bind(|ends, n| ends.own_address(n).unwrap_or(NOWHERE))
    }
    /// Binds inputs and outputs, the n-th to the address that `at` gives.
    pub(in crate::cuda) fn bind(&mut self, at: impl Fn(&Ends, usize) -> u64) -> Result<(), RuntimeError> {
        let mut moved = false;
        for n in 0..self.ends.bound.len() {
            let address = at(&self.ends, n);
            if self.ends.at[n] != address {
                self.ends.at[n] = address;
                self.addresses[self.ends.bound[n].buffer] = address;
                moved = true;
            }
        }
        if !moved {
            return Ok(());
        }
        self.version += 1;
        let bound = self.rebind();
        if bound.is_err() {
            self.ends.forget();
        }
        bound
    }

    /// The steps of runs whose operands include inputs or outputs: kernel and step.
    pub(in crate::cuda) fn find_touching(&self) -> Vec<(usize, usize)> {
        let moves = |kernel: &KernelCode, s: &Slot| {
            let b = match *s {
                Slot::Input(i) => kernel.inputs[i as usize],
                Slot::Output(i) => kernel.outputs[i as usize],
                Slot::Scratch(_) | Slot::Faults | Slot::Counter => return false,
            };
            matches!(self.memory.buffers[b.0 as usize], Place::Input(_) | Place::Output(_))
        };
        let mut all = vec![];
        for k in self.kernels(Stage::Run) {
            let kernel = &self.exe.kernels[k];
            for (s, work) in kernel.steps.steps.iter().enumerate() {
                let found = match work {
                    Work::Block { args, .. } => args.iter().any(|a| moves(kernel, a)),
                    Work::Gemm(g) => g.slots().iter().any(|a| moves(kernel, a)),
                    Work::Attention(_) | Work::Fallback(_) | Work::Interpret { .. } => false,
                };
                all.extend(found.then_some((k, s)));
            }
        }
        all
    }

    /// Gives launches the addresses of now.
    fn rebind(&mut self) -> Result<(), RuntimeError> {
        let exe = self.exe.clone();
        for t in 0..self.touching.len() {
            let (k, s) = self.touching[t];
            let kernel = &exe.kernels[k];
            let mut step = self.launches[k][s].take();
            let done = self.rebind_step(k, kernel, &kernel.steps.steps[s], step.as_mut());
            self.launches[k][s] = step;
            done?;
        }
        Ok(())
    }
    fn rebind_step(
        &self,
        k: usize,
        kernel: &KernelCode,
        work: &Work<Code>,
        step: Option<&mut Step>,
    ) -> Result<(), RuntimeError> {
        match (step, work) {
            (Some(Step::Launch(launch)), Work::Block { args, .. }) => {
                for (i, slot) in args.iter().enumerate() {
                    let set = launch.set(i, self.address(k, kernel, *slot), self.version);
                    self.device.check(|| format!("preparing kernel `{}`", kernel.name), set)?;
                }
                Ok(())
            }
            (Some(Step::Matmul(matmul)), Work::Gemm(g)) => {
                let Some(places) = self.places(k, kernel, g) else { return Ok(()) };
                if !matmul.set(g, places) {
                    // The tensors of this run are less aligned: another algorithm.
                    *matmul = self.matmul(k, kernel, g).ok_or_else(|| RuntimeError::Driver {
                        device: self.device.name(),
                        doing: format!("preparing kernel `{}`", kernel.name),
                        what: "cuBLASLt has no algorithm for the addresses of the inputs and outputs".into(),
                        remedy: "pass tensors whose addresses are multiples of 256, as those of new tensors are".into(),
                    })?;
                }
                Ok(())
            }
            // The host reads the table of addresses.
            _ => Ok(()),
        }
    }
    /// Where the operands of a matmul are; `None` without a workspace.
    pub(in crate::cuda) fn places(&self, k: usize, kernel: &KernelCode, g: &GemmCall) -> Option<Places> {
        let at = |slot| self.address(k, kernel, slot);
        let space = g.workspace?;
        let workspace = (at(space), self.exe.slot_type(kernel, space)?.bytes());
        let residual = g.epilogue.residual.as_ref().map(|r| at(r.0.slot));
        let bias = g.epilogue.bias.map(|b| at(b.0));
        Some(Places { a: at(g.a.slot), b: at(g.b.slot), c: at(g.c.slot), residual, bias, workspace })
    }
}
