//! Passes: functions on kernels, each giving a program that computes the same.
//!
//! The first four keep the level and are good for every target; `layout` takes an upper-level program toward the GPU.
//! Floats are never rearranged. Verified programs stay verified: debug builds check it after every pass.
mod cse;
mod dce;
mod fold;
pub mod layout;
mod licm;
mod numbers;

use crate::{BlockError, Kernel, Op, verify::verify};

/// A pass with its name.
pub type Pass = (&'static str, fn(&mut Kernel));

/// Every pass, in the order in which they are best run.
pub const PASSES: &[Pass] =
    &[("fold", fold::run), ("cse", cse::run), ("licm", licm::run), ("dce", dce::run), ("layout", assign_layouts)];

/// The passes that every program goes through.
pub const CANONICAL: &[&str] = &["fold", "cse", "licm", "dce"];

fn assign_layouts(k: &mut Kernel) {
    *k = layout::assign(k);
}

/// Runs passes by name, in the order given, on a verified kernel; values are numbered anew at the end.
pub fn run(names: &[&str], kernel: &mut Kernel) -> Result<(), BlockError> {
    for name in names {
        let Some((_, pass)) = PASSES.iter().find(|p| p.0 == *name) else {
            let known: Vec<&str> = PASSES.iter().map(|p| p.0).collect();
            let what = format!("there is no pass `{name}`; known: {}", known.join(", "));
            return Err(BlockError::Kernel { kernel: kernel.name.clone(), what });
        };
        pass(kernel);
        if cfg!(debug_assertions) {
            verify(kernel).map_err(|e| BlockError::Kernel {
                kernel: kernel.name.clone(),
                what: format!("pass `{name}` broke the program: {e}"),
            })?;
        }
    }
    *kernel = kernel.compacted();
    Ok(())
}

/// [`CANONICAL`], on a verified kernel.
pub fn canonicalise(kernel: &mut Kernel) -> Result<(), BlockError> {
    run(CANONICAL, kernel)
}

/// The result follows from the operands alone, on any operands.
fn is_pure(op: &Op) -> bool {
    matches!(
        op,
        Op::Const(_)
            | Op::ProgramId(_)
            | Op::NumPrograms(_)
            | Op::Iota
            | Op::Splat
            | Op::Broadcast
            | Op::ExpandDims(_)
            | Op::Reshape
            | Op::Permute(_)
            | Op::Part { .. }
            | Op::Unpack { .. }
            | Op::Pack { .. }
            | Op::Unary(_)
            | Op::Binary(_)
            | Op::Cmp(_)
            | Op::Select
            | Op::Cast(_)
            | Op::PtrAdd
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::Dot { .. }
            | Op::ConvertLayout
    )
}
