//! Rewrites in-place operators into functional form, so that no call changes a value.
//!
//! Takes: a program as it ran, [`Raw`]. Gives: the same program without in-place operators, and which inputs and
//! constants it writes.
//!
//! An in-place operator becomes the operator that returns a new tensor. If the written tensor is a view, the new
//! elements are scattered into its base, and so on up to the root of the memory; other views of that memory are
//! computed again at their next use, unless they share no element with the written one. What shares memory follows from
//! the names of operators ([`mod@views`]).
//!
//! A program has no strides, so it is not always known whether a tensor is a view or a copy (`reshape`, `contiguous`).
//! Such tensors are in the same family, but in other groups: a group has certain views only. A write changes its own
//! group; tensors of other groups that may have changed are lost, and a later use of one is a problem. A value is never
//! guessed.
mod operators;
#[cfg(test)]
mod random;
mod step;
#[cfg(test)]
mod tests;
pub(crate) mod views;
mod write;

pub use operators::functional_form;

use crate::{
    error::{ImportErrors, Problem},
    raw::{Arg, Call, Raw, RawInfo},
};
use operators::{Change, change};
use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
};
use step::Step;
use views::{View, views};

const COPY: &str = "work on a copy (clone()), or save `program.run_decompositions()`, which has no in-place operators";

/// A change that outlives a run: after it the input or constant `target` (a value id) holds `value`, which has the same
/// type. Nothing else need use `value`, so whoever converts the program lists it among the outputs. A constant that is
/// written is state: a run starts with what the last one left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
pub struct Write {
    /// The id of an input's or constant's value.
    pub target: usize,
    /// The id of what it holds then.
    pub value: usize,
}

/// Rewrites in-place operators; a program without any is returned as it is. Value ids keep their meaning, and new ones
/// are added.
///
/// # Errors
/// Every write that cannot be followed, with its line in the model's source; and those of [`Raw::check`].
pub fn functionalise(raw: Raw) -> Result<(Raw, Vec<Write>), ImportErrors> {
    raw.check()?;
    if !raw.calls.iter().any(|c| change(c).is_some()) {
        return Ok((raw, vec![]));
    }
    let given: HashSet<usize> = raw.inputs.iter().filter_map(|i| i.value).collect();
    let mut program = Program {
        tensors: (0..raw.values.len()).map(Tensor::new).collect(),
        names: (0..raw.values.len()).collect(),
        kept: raw.values.iter().enumerate().map(|(id, v)| v.constant || given.contains(&id)).collect(),
        values: raw.values,
        families: HashMap::new(),
        calls: vec![],
        written: vec![],
        problems: vec![],
    };
    for call in raw.calls {
        program.call(call);
    }
    let outputs = raw.outputs.iter().map(|id| program.read(*id)).collect();
    let written = std::mem::take(&mut program.written);
    let writes = written.into_iter().map(|target| Write { target, value: program.read(target) }).collect();
    if !program.problems.is_empty() {
        return Err(ImportErrors { errors: program.problems });
    }
    let (values, calls) = (program.values, program.calls);
    Ok((Raw { inputs: raw.inputs, values, calls, outputs, structure: raw.structure }, writes))
}

/// A tensor of the program: a name for memory.
struct Tensor {
    /// The value that holds its elements; out of date if `stale`.
    value: usize,
    /// Whether its base has changed since.
    stale: bool,
    /// The write after which its elements are not known.
    lost: Option<Rc<Call>>,
    /// What it is a view of; `None` for a root.
    link: Option<Link>,
    /// The root of its memory, through all links: its family.
    root: usize,
    /// The farthest base through certain links: its group.
    group: usize,
}

struct Link {
    base: usize,
    step: Step,
    certain: bool,
    /// The call that made the view, on values.
    made: Rc<Call>,
}

impl Tensor {
    fn new(id: usize) -> Tensor {
        Tensor { value: id, stale: false, lost: None, link: None, root: id, group: id }
    }
}

struct Program {
    values: Vec<RawInfo>,
    /// By the ids of the program as it ran.
    tensors: Vec<Tensor>,
    /// The tensor of each id: the result of an in-place operator is its operand.
    names: Vec<usize>,
    /// Tensors that outlive a run: inputs and constants.
    kept: Vec<bool>,
    /// Tensors by root, in the order of their calls, so that a base comes before its views.
    families: HashMap<usize, Vec<usize>>,
    /// Without in-place operators.
    calls: Vec<Call>,
    /// Inputs and constants that are written, in the order of their first write.
    written: Vec<usize>,
    problems: Vec<Problem>,
}

fn problem(at: &Call, message: String) -> Problem {
    Problem { message, source: at.source.clone(), module: at.module.clone(), help: COPY.into() }
}

impl Program {
    fn call(&mut self, call: Call) {
        match change(&call) {
            None => self.functional(call),
            Some(Change::Functional(name, overload)) => {
                if let Err(p) = self.in_place(&call, name, overload) {
                    self.report(p);
                }
                self.rename(&call);
            }
            Some(Change::None) => self.rename(&call),
            Some(Change::Shape) => {
                self.report(problem(&call, format!("`{}` changes the shape of a tensor in place", call.name)));
                self.rename(&call);
            }
            Some(Change::Others) => {
                let shown = format!("{}.{}", call.name, call.overload);
                self.report(problem(
                    &call,
                    format!("`{}` writes into several tensors or into `out=`", shown.trim_end_matches('.')),
                ));
            }
        }
    }

    fn report(&mut self, p: Problem) {
        if !self.problems.contains(&p) {
            self.problems.push(p);
        }
    }

    /// Makes the result of an in-place operator another name of its operand.
    fn rename(&mut self, call: &Call) {
        if let (Some(Arg::Value(id)), Some(out)) = (call.args.first(), call.outs.first()) {
            self.names[*out] = self.names[*id];
        }
    }

    /// The value that holds the elements of `id`, as a program id, now. An unknown one is reported, once.
    fn read(&mut self, id: usize) -> usize {
        let tensor = self.names[id];
        if let Some(write) = self.tensors[tensor].lost.take() {
            let p = self.unknown(tensor, &write);
            self.report(p);
        }
        let Tensor { stale: true, link: Some(link), .. } = &self.tensors[tensor] else {
            return self.tensors[tensor].value;
        };
        let (base, step, made) = (link.base, link.step.clone(), link.made.clone());
        let from = self.read(base);
        let (info, shape) = (&self.values[tensor], &self.values[base].shape);
        let value = match step.view(from, shape, &info.shape) {
            Some(form) => {
                let (dtype, shape) = (info.dtype.clone(), info.shape.clone());
                self.push(form, dtype, shape, &made)
            }
            None if step == Step::Opaque => {
                let mut call = Call::clone(&made);
                if let Some(first) = call.args.first_mut() {
                    *first = Arg::Value(from);
                }
                let (dtype, shape) = (info.dtype.clone(), info.shape.clone());
                call.outs = vec![self.value(dtype, shape)];
                let value = call.outs[0];
                self.calls.push(call);
                value
            }
            None => from,
        };
        let t = &mut self.tensors[tensor];
        (t.value, t.stale) = (value, false);
        value
    }

    /// Why the elements of `tensor` are not known after `write`.
    fn unknown(&self, tensor: usize, write: &Call) -> Problem {
        let written =
            write.args.first().and_then(|a| if let Arg::Value(id) = a { Some(self.names[*id]) } else { None });
        let either = |t| self.bases(t).find(|l| !l.certain).map(|l| l.made.name.clone());
        let by = either(tensor).or_else(|| written.and_then(either)).unwrap_or_else(|| "a view".into());
        problem(
            write,
            format!(
                "`{}` may change another tensor that is used afterwards: `{by}` gives a view or a copy, depending on \
                 strides",
                write.name
            ),
        )
    }

    /// The links from a tensor to its root.
    fn bases(&self, tensor: usize) -> impl Iterator<Item = &Link> {
        std::iter::successors(self.tensors[tensor].link.as_ref(), |l| self.tensors[l.base].link.as_ref())
    }

    fn value(&mut self, dtype: String, shape: Vec<usize>) -> usize {
        self.values.push(RawInfo { dtype, shape, constant: false, folded: false, scalar: None, name: None });
        self.values.len() - 1
    }

    /// Adds a call with one result, at the source of `at`.
    fn push(
        &mut self,
        (name, overload, args): (&str, &str, Vec<Arg>),
        dtype: String,
        shape: Vec<usize>,
        at: &Call,
    ) -> usize {
        let out = self.value(dtype, shape);
        self.calls.push(Call {
            name: name.into(),
            overload: overload.into(),
            args,
            outs: vec![out],
            source: at.source.clone(),
            module: at.module.clone(),
            vouched: false,
        });
        out
    }

    /// The argument with the values that its tensors hold now.
    fn argument(&mut self, arg: Arg) -> Arg {
        match arg {
            Arg::Value(id) => Arg::Value(self.read(id)),
            Arg::List(items) => Arg::List(items.into_iter().map(|a| self.argument(a)).collect()),
            other => other,
        }
    }

    /// A call that changes nothing. Its results may be views.
    fn functional(&mut self, mut call: Call) {
        let views = views(&call, &self.values);
        call.args = call.args.into_iter().map(|a| self.argument(a)).collect();
        if views.iter().any(Option::is_some) {
            let made = Rc::new(call.clone());
            for (out, view) in call.outs.iter().zip(views) {
                if let Some(view) = view {
                    self.define(*out, view, &made);
                }
            }
        }
        self.calls.push(call);
    }

    fn define(&mut self, out: usize, view: View, made: &Rc<Call>) {
        let operand = self.names[view.base];
        let repeats = matches!(&self.tensors[operand].link, Some(Link { step: Step::Expand, .. }));
        if repeats && made.name == "aten::contiguous" {
            // No memory format has an element several times, so it is a copy.
            return;
        }
        let root = self.tensors[operand].root;
        let base = if view.beyond { root } else { operand };
        // Repeating a call gives all its results.
        let certain = view.certain && (view.step != Step::Opaque || made.outs.len() == 1);
        let group = if certain { self.tensors[base].group } else { out };
        let link = Some(Link { base, step: view.step, certain, made: made.clone() });
        self.tensors[out] = Tensor { link, root, group, ..Tensor::new(out) };
        self.families.entry(root).or_insert_with(|| vec![root]).push(out);
    }
}
