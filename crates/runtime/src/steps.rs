//! Runs that follow each other without the host: each reads what the one before has left.
//!
//! Takes: the caller's memory, how often to run, and which outputs become inputs. Gives: all of it enqueued. What runs
//! write in place ([`Executable::write_in_place`]) needs no copy; all else is copied on the device. Never: waits on a
//! GPU, unless a step needs the host.
use crate::{Executable, RuntimeError, Session, session::Backend};
use kiln_graph::Type;

/// An input that holds an output after each run: their numbers in the executable.
pub type Feed = (usize, usize);

impl Session {
    /// [`Session::run_on`] `count` times over the same memory. After each run, the last one too, the inputs that
    /// `feeds` name hold the outputs that it names: state that is not written in place, or a token that is the next
    /// step's. Without a stream, on the default stream, as [`Session::run_on`].
    ///
    /// # Errors
    /// Those of [`Session::run_on`]; [`RuntimeError::Feed`] if a feed's input and output do not exist or are of
    /// different types.
    ///
    /// # Safety
    /// As [`Session::run_on`]; the inputs that feeds name may be written, and overlap no other.
    pub unsafe fn steps_on(
        &self,
        count: usize,
        inputs: &[u64],
        outputs: &[u64],
        feeds: &[Feed],
        stream: Option<u64>,
    ) -> Result<(), RuntimeError> {
        let sizes = sizes(self.executable(), feeds)?;
        let all = feeds.iter().zip(sizes);
        for _ in 0..count {
            // SAFETY: this function's contract.
            unsafe { self.run_on(inputs, outputs, stream) }?;
            if feeds.is_empty() {
                continue;
            }
            // Invariant: `run_on` has checked the numbers of addresses, and `sizes` those of inputs and outputs.
            let copies = all.clone().map(|((input, output), bytes)| (inputs[*input], outputs[*output], bytes));
            match &mut *self.backend() {
                Backend::Host(_) => copies.for_each(|(to, from, bytes)| {
                    let at = |address: u64| std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
                    // SAFETY: tensors of the caller of this size, apart from each other (this function's contract).
                    unsafe { at(to).copy_from_nonoverlapping(at(from), bytes) };
                }),
                // SAFETY: as above.
                Backend::Cuda(s) => unsafe { s.copy_behind(copies, stream.unwrap_or(0)) }?,
            }
        }
        Ok(())
    }
}

/// Bytes of each feed.
fn sizes(exe: &Executable, feeds: &[Feed]) -> Result<Vec<usize>, RuntimeError> {
    let size = |&(input, output): &Feed| {
        let (to, from) = (exe.inputs.get(input).map(|i| &i.ty), exe.outputs.get(output).map(|b| exe.ty(*b)));
        match (to, from) {
            (Some(to), Some(from)) if to == from => Ok(to.bytes()),
            _ => {
                let shown = |ty: Option<&Type>| ty.map_or("nothing".into(), ToString::to_string);
                let name = exe.input_name(input);
                let what =
                    format!("{name} is {}, and was to take output {output}, which is {}", shown(to), shown(from));
                Err(RuntimeError::Feed { model: exe.name.clone(), what })
            }
        }
    };
    feeds.iter().map(size).collect()
}
