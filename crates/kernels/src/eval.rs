//! The abstract interpreter: walks a function's tree once, computes what is known at compile time, and emits the rest.
//!
//! Helpers are walked where they are called. A statement gives a [`Flow`]: an early return under a run-time condition
//! takes the rest of the function into the branches, so that no jump is needed.
mod attributes;
mod branches;
mod builtins;
mod calls;
mod constants;
mod expressions;
mod format;
mod loops;
mod merge;
mod names;
mod parameters;
mod scope;
mod statements;
mod subscripts;

use crate::emit::{Emitter, Finished};
use crate::error::{Eval, KernelError, Place, internal, unsupported, value_error};
use crate::library::Library;
use crate::source;
use crate::syntax::{FunctionTree, Span};
use crate::unit::{Compiled, Function, Options, Signature, Site, Unit};
use crate::value::{FunctionId, Value};
use scope::Scope;
use std::sync::Arc;

/// Nesting of calls, statements and expressions together: each level takes stack.
const MAX_DEPTH: usize = 1500;
/// Nesting of calls.
const MAX_CALLS: usize = 100;
/// Statements and expressions that are walked, in all: some seconds.
const MAX_STEPS: usize = 1 << 25;

pub struct Evaluator<'u> {
    unit: &'u Unit,
    options: &'u Options,
    library: &'static Library,
    /// Trees of the unit's functions, parsed when they are first called.
    trees: Vec<Option<Arc<FunctionTree>>>,
    emit: Emitter,
    /// Calls in flight, innermost last.
    frames: Vec<Frame>,
    depth: usize,
    steps: usize,
    /// The call of the primitive that is in flight.
    call_span: Span,
    printed: Vec<String>,
}

/// A function that is walked.
struct Frame {
    function: FunctionId,
    scope: Scope,
    /// Its variables stay constants.
    compile_time: bool,
    /// Run-time loops around the statement.
    loops: usize,
}

/// What follows a statement.
enum Flow {
    Next,
    /// The function has ended, with a value.
    Returned(Value),
}

/// The program of a kernel for a launch's arguments.
pub fn evaluate(unit: &Unit, signature: &Signature, options: &Options) -> Eval<Compiled> {
    let entry = unit.functions.get(unit.entry).ok_or_else(|| {
        value_error(format!("the unit holds {} functions", unit.functions.len()), "its entry is one of them")
    })?;
    let mut evaluator = Evaluator {
        unit,
        options,
        library: Library::get()?,
        trees: vec![None; unit.functions.len()],
        emit: Emitter::new(&entry.name, options.warps),
        frames: vec![],
        depth: 0,
        steps: 0,
        call_span: Span::default(),
        printed: vec![],
    };
    let parameters = evaluator.kernel(signature)?;
    let Finished { program, sites, shown, unmasked } = evaluator.emit.finish();
    Ok(Compiled { program, parameters, printed: evaluator.printed, sites, shown, unmasked })
}

impl<'u> Evaluator<'u> {
    fn function(&self, id: FunctionId) -> Eval<&Function> {
        let function = match id {
            FunctionId::User(index) => self.unit.functions.get(index),
            FunctionId::Library(index) => self.library.function(index),
        };
        function.ok_or_else(|| internal("a name is bound to a function that the unit does not hold"))
    }
    fn tree(&mut self, id: FunctionId) -> Eval<Arc<FunctionTree>> {
        let index = match id {
            FunctionId::Library(index) => return self.library.tree(index),
            FunctionId::User(index) => index,
        };
        if let Some(Some(tree)) = self.trees.get(index) {
            return Ok(tree.clone());
        }
        let tree = source::parse(self.function(id)?)?;
        self.trees[index] = Some(tree.clone());
        Ok(tree)
    }
    fn frame(&self) -> Eval<&Frame> {
        self.frames.last().ok_or_else(|| internal("no function is walked"))
    }
    fn frame_mut(&mut self) -> Eval<&mut Frame> {
        self.frames.last_mut().ok_or_else(|| internal("no function is walked"))
    }
    fn place(&self, span: Span) -> Place {
        let function = self.frames.last().and_then(|frame| self.function(frame.function).ok());
        function.map_or_else(Place::default, |function| source::place(function, span))
    }
    /// Puts an error at a span of the function that is walked, unless it has a place.
    fn located(&self, error: Box<KernelError>, span: Span) -> Box<KernelError> {
        error.at(|| self.place(span))
    }
    /// Walks one level deeper, and puts errors at a span.
    fn deeper<T>(&mut self, span: Span, walk: impl FnOnce(&mut Self) -> Eval<T>) -> Eval<T> {
        if self.depth >= MAX_DEPTH {
            let error =
                unsupported("the kernel is nested too deeply", "split it into helpers, or write shorter chains");
            return Err(self.located(error, span));
        }
        if self.steps >= MAX_STEPS {
            let error = unsupported(
                "compiling the kernel takes too many steps",
                "use `range` in place of `static_range`, or smaller bounds",
            );
            return Err(self.located(error, span));
        }
        self.steps += 1;
        self.depth += 1;
        let outer = self.emit.site;
        if let Some(Frame { function: FunctionId::User(function), .. }) = self.frames.last() {
            self.emit.site = Site { function: *function as u32, span };
        }
        let result = walk(self).map_err(|error| self.located(error, span));
        self.emit.site = outer;
        self.depth -= 1;
        result
    }
}
