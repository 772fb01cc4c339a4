//! Front end of block kernels written by hand in Python: source text → types → [`kiln_block::BlockProgram`].
//!
//! The language has Triton's surface and meaning. `syntax` parses a function, `eval` walks it once: what is known at
//! compile time is computed, the rest is typed (`types`, `ops`) and emitted (`emit`, the only module that writes the
//! IR). `primitives` is the table of functions that the compiler knows; the rest of the language is source text in the
//! language itself (`library`).
//! Takes: a [`Unit`] of functions with what their names are bound to, and a [`Signature`], the types and facts of a
//! launch's arguments. Gives: a program, or a [`KernelError`] with the user's line.
//! Never: runs Python, opens files, tensors, devices.
mod emit;
mod error;
mod eval;
mod files;
mod library;
mod names;
mod ops;
mod primitives;
mod source;
mod syntax;
mod types;
mod unit;
mod value;

pub use error::{ErrorKind, KernelError, Place};
pub use files::{FindModule, Parameter, SourceFile, parameters, unit_of_file};
pub use names::free_names;
pub use types::Number;
pub use unit::{
    Argument, ArgumentFacts, ArrayArgument, Binding, Compiled, DescriptorArgument, Function, Literal, Options,
    Signature, Site, Unit,
};

/// Stack of the thread that walks a kernel: enough for the deepest nesting that is accepted.
const STACK_BYTES: usize = 256 << 20;

/// The program of a kernel for a launch's arguments.
pub fn compile(unit: &Unit, signature: &Signature, options: &Options) -> Result<Compiled, Box<KernelError>> {
    std::thread::scope(|scope| {
        let walk = || eval::evaluate(unit, signature, options);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, walk);
        match thread.map(|thread| thread.join()) {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(error::internal("the compiler of kernels stopped")),
            Err(error) => Err(error::internal(format!("no thread for the compiler of kernels: {error}"))),
        }
    })
}
