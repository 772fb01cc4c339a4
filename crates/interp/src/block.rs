//! Interpreter of block programs: runs the program instances one after the other, element by element, over plain bytes.
//!
//! Takes: a kernel, which it verifies, and one buffer per parameter. Gives: the buffers as the kernel leaves them, or
//! its first error. Never optimises, and never gives an out-of-bounds access a meaning.
//!
//! Floats: each op is computed in f64 and rounded to f32 (f64 ops stay in f64), then to its own type; a reduction is
//! rounded once, at its end. So results are as exact as the types allow, and generated code is compared with them
//! within a tolerance.
//!
//! Low-level ops are simulated per instance: an asynchronous copy becomes visible at its wait, shared memory starts as
//! NaN, and warp roles run in turn, each until it blocks on a barrier. The blocks of a cluster are simulated one at a
//! time: since all blocks send the same, what a block would receive from the others is what it sends itself.
mod checks;
mod machine;
mod memory;
mod scalar;
mod shape;
mod value;

pub use checks::{Checks, Finding, FindingKind, UNWRITTEN};
pub use memory::Buffer;

use kiln_block::{BlockError, BlockProgram, Inst};
use machine::Watch;
use value::Position;

/// Why a program could not be run to its end.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InterpError {
    /// The verifier rejects the program.
    #[error("the program is not valid: {0}")]
    Invalid(#[from] BlockError),
    /// The buffers do not fit the parameters.
    #[error("kernel {kernel}: {what}")]
    Buffers { kernel: String, what: String },
    /// An op failed at run time, such as an access out of bounds.
    #[error("kernel {kernel}, instance {instance:?}, `{op}`: {what}")]
    Op { kernel: String, instance: [usize; 3], op: String, what: String },
    /// No role can continue.
    #[error(
        "kernel {kernel}, instance {instance:?}: deadlock, every role waits for a barrier: {waits}; check phases and \
         arrivals"
    )]
    Deadlock { kernel: String, instance: [usize; 3], waits: String },
}

/// Runs all program instances of a kernel whose grid is a constant, axis 0 fastest. `buffers`: one per parameter, in
/// order, of one element for a scalar; the kernel's writes land in them.
pub fn run(kernel: &BlockProgram, buffers: &mut [Buffer]) -> Result<(), InterpError> {
    let grid = kernel.grid.constant().ok_or_else(|| InterpError::Buffers {
        kernel: kernel.name.clone(),
        what: "its grid is of the launch; give one with `run_grid`".into(),
    })?;
    run_grid(kernel, grid, buffers)
}

/// [`run`], with the grid of the launch. A constant grid must be the same.
pub fn run_grid(kernel: &BlockProgram, grid: [usize; 3], buffers: &mut [Buffer]) -> Result<(), InterpError> {
    kiln_block::verify::verify(kernel)?;
    let wrong = |what: String| InterpError::Buffers { kernel: kernel.name.clone(), what };
    if kernel.grid.constant().is_some_and(|own| own != grid) {
        return Err(wrong(format!("its grid is {}, not {grid:?}", kernel.grid)));
    }
    kiln_block::verify::grid(grid.into()).map_err(wrong)?;
    memory::check(kernel, buffers).map_err(wrong)?;
    for_each_instance(grid, |position| machine::run_instance(kernel, position, buffers, Watch::default()))
}

/// Who watches a run.
pub trait Observer {
    /// The whole block of a `print`, if it has one, in an instance.
    ///
    /// # Errors
    /// To end the run.
    fn print(&mut self, inst: Inst, instance: [usize; 3], text: &str, value: Option<&Buffer>) -> Result<(), String>;
}

/// Memory and numbers of a run whose pointers may share buffers.
pub struct Launch<'b> {
    pub grid: [usize; 3],
    /// One for each parameter; a pointer's buffer counts where `starts` says so.
    pub buffers: &'b mut [Buffer],
    /// Of each parameter the buffer that it points to, and the byte in it.
    pub starts: &'b [(usize, usize)],
    /// The address of each buffer's first byte, which tables of pointers in memory hold; 0 where there is none.
    pub origins: &'b [u64],
}

/// [`run_grid`] that goes on after accesses that are wrong, which it records.
///
/// # Errors
/// As [`run_grid`]; what the observer says.
pub fn run_checked(
    kernel: &BlockProgram,
    launch: Launch,
    checks: &mut Checks,
    observer: &mut dyn Observer,
) -> Result<(), InterpError> {
    let Launch { grid, buffers, starts, origins } = launch;
    kiln_block::verify::verify(kernel)?;
    let wrong = |what: String| InterpError::Buffers { kernel: kernel.name.clone(), what };
    kiln_block::verify::grid(grid.into()).map_err(wrong)?;
    memory::check(kernel, buffers).map_err(wrong)?;
    for_each_instance(grid, |position| {
        let watch = Watch {
            checks: Some(&mut *checks),
            observer: Some(&mut *observer),
            starts: Some(starts),
            origins: Some(origins),
        };
        machine::run_instance(kernel, position, buffers, watch)
    })
}

/// Axis 0 is fastest.
fn for_each_instance(
    grid: [usize; 3],
    mut run: impl FnMut(Position) -> Result<(), InterpError>,
) -> Result<(), InterpError> {
    let [nx, ny, nz] = grid;
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                run(Position { grid, at: [x, y, z] })?;
            }
        }
    }
    Ok(())
}
