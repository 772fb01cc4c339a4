//! Block-program interpreter: every instance in order, element by element, over plain bytes.
//!
//! Takes: a verified kernel and one buffer a parameter. Gives: the buffers as the kernel leaves them, or what it did wrong.
//! Floats: each op is computed in f64 and rounded to f32 (f64 stays), then to its own type; sums and products of a reduction
//! are rounded once. So the result is as good as the types allow, and other ways of running come close to it.
//! Lower-level ops have their meaning in one instance: an asynchronous copy arrives at its wait, shared memory starts as
//! NaN, roles run in turn, each until it waits for a barrier. Of a cluster every block is run by itself: what the others send
//! is what it sends, as all do the same.
//! Never: optimises, guesses what an access outside a buffer could mean.
mod machine;
mod memory;
mod scalar;
mod shape;
mod value;

pub use memory::Buffer;

use kiln_block::{BlockError, Kernel};

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InterpError {
    #[error("the program is not valid: {0}")]
    Invalid(#[from] BlockError),
    #[error("kernel {kernel}: {what}")]
    Buffers { kernel: String, what: String },
    #[error("kernel {kernel}, instance {instance:?}, `{op}`: {what}")]
    Op { kernel: String, instance: [usize; 3], op: String, what: String },
    #[error(
        "kernel {kernel}, instance {instance:?}: every role waits for a barrier: {waits}; check phases and arrivals"
    )]
    Deadlock { kernel: String, instance: [usize; 3], waits: String },
}

/// Runs all instances, axis 0 fastest. `buffers`: one a parameter, in order.
pub fn run(kernel: &Kernel, buffers: &mut [Buffer]) -> Result<(), InterpError> {
    kiln_block::verify::verify(kernel)?;
    memory::check(kernel, buffers).map_err(|what| InterpError::Buffers { kernel: kernel.name.clone(), what })?;
    let [nx, ny, nz] = kernel.grid;
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                machine::run_instance(kernel, [x, y, z], buffers)?;
            }
        }
    }
    Ok(())
}
