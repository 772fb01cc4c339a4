//! Runs that leave an output in an input: state, such as a cache.
//!
//! Takes: an executable and which outputs belong into which inputs. Gives: the executable whose kernels write these
//! inputs where that is right; the caller copies the other outputs. A kernel that changes a few elements of an input
//! ([`Steps::copied`]) then writes only these.
use crate::{Executable, KernelCode};
use kiln_plan::{BufferId, BufferKind, Stage};

impl Executable {
    /// Lets kernels write outputs into inputs. `writes`: pairs of an input and an output of its type, which is left in
    /// the input after a run; the outputs are the last ones. An output that is written in place is an output no more.
    /// Gives the pairs that are left, with the numbers of their outputs: the caller copies them.
    ///
    /// An output is written in place if nothing reads the input's old value in or behind the kernel that computes the
    /// output, but for that kernel's own copy of it.
    pub fn write_in_place(&mut self, writes: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let mut left = vec![];
        let mut gone = vec![];
        for &(input, output) in writes {
            match self.place_for(input, output) {
                Some((kernel, from, into)) => {
                    self.replace(kernel, from, into);
                    self.written.push(input as u32);
                    gone.push(output);
                }
                None => left.push((input, output)),
            }
        }
        gone.sort_unstable();
        for output in gone.iter().rev() {
            self.outputs.remove(*output);
        }
        let before = |output: usize| gone.iter().filter(|g| **g < output).count();
        left.into_iter().map(|(input, output)| (input, output - before(output))).collect()
    }

    /// The kernel that computes an output, the output's buffer and the input's, if the kernel may write there.
    fn place_for(&self, input: usize, output: usize) -> Option<(usize, BufferId, BufferId)> {
        let from = *self.outputs.get(output)?;
        let into = self.buffers.iter().position(|b| b.kind == BufferKind::Input(input as u32));
        let into = BufferId(into? as u32);
        let inner = matches!(self.buffers[from.0 as usize].kind, BufferKind::Temp | BufferKind::Frozen);
        if !inner || self.ty(from) != self.ty(into) || self.written.contains(&(input as u32)) {
            return None;
        }
        let writer = self.kernels.iter().position(|k| k.outputs.contains(&from))?;
        let k = &self.kernels[writer];
        let reads = |k: &KernelCode| k.inputs.iter().filter(|b| **b == into).count();
        let later = self.kernels[writer + 1..].iter().any(|k| reads(k) > 0);
        let copies = k.steps.copied.is_some_and(|s| k.inputs.get(s as usize) == Some(&into)) && k.outputs == [from];
        // What a run gives must not change when a later run writes the input: the output's own buffer is one of the
        // caller's.
        let given_twice = self.outputs.iter().filter(|b| **b == from || **b == into).count() > 1;
        let safe = k.stage == Stage::Run
            && !later
            && !given_twice
            && match reads(k) {
                0 => true,
                1 => copies,
                _ => false,
            };
        safe.then_some((writer, from, into))
    }

    /// Makes `into` the place of `from`, which the kernel computes.
    fn replace(&mut self, writer: usize, from: BufferId, into: BufferId) {
        let k = &mut self.kernels[writer];
        if k.inputs.contains(&into) {
            // The copy is the first step: it would copy the input to itself.
            k.steps.steps.remove(0);
            k.steps.copied = None;
        }
        for k in &mut self.kernels {
            k.inputs.iter_mut().chain(&mut k.outputs).filter(|b| **b == from).for_each(|b| *b = into);
        }
    }

    /// Whether kernels write the n-th input.
    pub fn writes_input(&self, input: usize) -> bool {
        self.written.contains(&(input as u32))
    }
}
