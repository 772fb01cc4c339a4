//! Programs written in Rust, with operators over blocks: they read as the model does, and are the same IR.
//!
//! ```
//! use kiln_block::{Elem, write};
//! let add = write("add", |k| {
//!     let [x, y, out] = ["x", "y", "out"].map(|name| k.pointer(name, Elem::F32));
//!     let n = k.scalar("n", Elem::I32);
//!     let i = k.program_id(0) * 1024 + k.arange(1024);
//!     let inside = i.lt(n);
//!     let sum = (x + i).masked(inside).load() + (y + i).masked(inside).load();
//!     (out + i).masked(inside).store(sum);
//! });
//! assert_eq!(add?.params.len(), 4);
//! # Ok::<(), kiln_block::write::WriteError>(())
//! ```
//!
//! Takes: a closure that computes with [`Block`]s. Gives: a verified program whose grid is of the launch, or all that
//! is wrong, each with its place in the Rust source. Types and shapes follow the language of kernels: operands are
//! promoted and broadcast, literals take the type of what they meet; integers are divided as Rust divides them.
//! Never: panics; after a mistake the rest is still checked.
mod control;
mod handle;
mod memory;
mod operators;
mod promote;
mod shapes;

pub use control::Range;
pub use handle::{Block, Operand};
pub use memory::Access;

use crate::{BlockProgram, Builder, Const, Elem, Facts, Grid, Type, Value, verify};
use std::cell::RefCell;
use std::fmt;
use std::panic::Location;

/// Warps of an instance on a GPU, where a program does not say otherwise.
const WARPS: usize = 4;

/// Writes a program; see the [module](mod@crate::write).
///
/// # Errors
/// All that is wrong with it.
pub fn write(name: &str, body: impl FnOnce(&Writer)) -> Result<BlockProgram, WriteError> {
    let writer =
        Writer { state: RefCell::new(State { builder: Builder::new(name, Grid::Launch, WARPS), faults: vec![] }) };
    body(&writer);
    let State { builder, faults } = writer.state.into_inner();
    if !faults.is_empty() {
        return Err(WriteError { kernel: name.into(), faults });
    }
    let program = builder.finish();
    match verify::verify(&program) {
        Ok(()) => Ok(program.compacted()),
        Err(e) => Err(WriteError { kernel: name.into(), faults: vec![Fault { what: e.to_string(), place: None }] }),
    }
}

/// Writes a program: what blocks are made from, and what they flow through.
pub struct Writer {
    state: RefCell<State>,
}

struct State {
    builder: Builder,
    faults: Vec<Fault>,
}

/// All that is wrong with a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct WriteError {
    pub kernel: String,
    pub faults: Vec<Fault>,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel `{}`", self.kernel)?;
        self.faults.iter().try_for_each(|fault| match &fault.place {
            Some(place) => write!(f, "\n{place}: {}", fault.what),
            None => write!(f, "\n{}", fault.what),
        })
    }
}

/// Something that is wrong with a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// A sentence that ends with what to do.
    pub what: String,
    /// Where it is in the Rust source.
    pub place: Option<&'static Location<'static>>,
}

/// Why an operation has no value.
enum Trouble {
    /// It is wrong.
    Wrong(String),
    /// An operand has no value, which was said before.
    Operand,
}
type Built<T> = Result<T, Trouble>;

fn wrong<T>(what: impl Into<String>) -> Built<T> {
    Err(Trouble::Wrong(what.into()))
}

impl Writer {
    /// A pointer to elements of memory.
    pub fn pointer(&self, name: &str, elem: Elem) -> Block<'_> {
        self.block(|b| b.param(name, elem, false))
    }
    /// A number of each launch.
    pub fn scalar(&self, name: &str, elem: Elem) -> Block<'_> {
        self.scalar_with(name, elem, Facts::default())
    }
    /// A number of each launch, of which something is known.
    pub fn scalar_with(&self, name: &str, elem: Elem, facts: Facts) -> Block<'_> {
        self.block(|b| b.scalar(name, elem, facts))
    }
    /// Warps of an instance on a GPU.
    pub fn warps(&self, warps: usize) {
        self.state.borrow_mut().builder.set_warps(warps);
    }
    /// This instance's position along an axis of the grid.
    pub fn program_id(&self, axis: u8) -> Block<'_> {
        self.block(|b| b.program_id(axis))
    }
    /// Instances along an axis of the grid.
    pub fn num_programs(&self, axis: u8) -> Block<'_> {
        self.block(|b| b.num_programs(axis))
    }
    /// `0, 1, …, n - 1`; n is a power of two.
    pub fn arange(&self, n: usize) -> Block<'_> {
        self.block(|b| b.iota(n))
    }
    /// A block with the same number in each element.
    #[track_caller]
    pub fn full<'k>(&'k self, shape: &[usize], elem: Elem, number: impl Into<Operand<'k>>) -> Block<'k> {
        let number = number.into();
        self.told(self.typed_value(&number, elem).map(|v| self.with(|b| b.broadcast_to(v, shape))))
    }
    /// A block of zeros.
    pub fn zeros(&self, shape: &[usize], elem: Elem) -> Block<'_> {
        let ty = Type::block(elem, shape);
        let zero = if elem.is_float() { Const::Float(0.0) } else { Const::Int(0) };
        let zero = if elem == Elem::Bool { Const::Bool(false) } else { zero };
        self.block(|b| b.constant(ty, zero))
    }

    fn with<T>(&self, f: impl FnOnce(&mut Builder) -> T) -> T {
        f(&mut self.state.borrow_mut().builder)
    }
    fn block(&self, f: impl FnOnce(&mut Builder) -> Value) -> Block<'_> {
        self.handle(self.with(f))
    }
    fn handle(&self, value: Value) -> Block<'_> {
        Block { writer: self, value: Some(value) }
    }
    fn nothing(&self) -> Block<'_> {
        Block { writer: self, value: None }
    }
    fn ty(&self, value: Value) -> Type {
        self.with(|b| b.ty(value).clone())
    }
    /// The block of a value; notes with the caller's place why there is none.
    #[track_caller]
    fn told(&self, built: Built<Value>) -> Block<'_> {
        match self.noted(built) {
            Some(value) => self.handle(value),
            None => self.nothing(),
        }
    }
    #[track_caller]
    fn noted<T>(&self, built: Built<T>) -> Option<T> {
        match built {
            Ok(value) => Some(value),
            Err(Trouble::Operand) => None,
            Err(Trouble::Wrong(what)) => {
                self.state.borrow_mut().faults.push(Fault { what, place: Some(Location::caller()) });
                None
            }
        }
    }
}
