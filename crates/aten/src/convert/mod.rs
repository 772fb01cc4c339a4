//! Converts TorchScript operators to Kiln's ops: one small function per operator, in tables by family.
//!
//! Takes the specialised calls ([`Raw`]); gives a [`Graph`]. A conversion is used only if its result has the type of
//! the example run. A call without a conversion becomes a fallback, which libtorch runs; if libtorch cannot run it for
//! Kiln either (for example, its dtype has no name in Kiln), it is a [`Problem`]. So is a call that draws random
//! numbers ([`random`]).
#![warn(clippy::indexing_slicing)]
mod attention;
mod collective;
mod complex;
#[expect(clippy::indexing_slicing, reason = "ids are valid: Raw::check")]
pub(crate) mod context;
mod conv;
mod creation;
mod fallback;
mod index;
pub mod launch;
mod linear;
pub(crate) mod names;
mod norm;
mod pointwise;
mod pool;
#[expect(clippy::indexing_slicing, reason = "the values of one graph")]
mod prune;
mod random;
mod recurrent;
mod reduce;
mod resample;
pub(crate) mod scalars;
mod views;

pub use context::ParamData;

use crate::{
    error::{ImportErrors, Problem},
    raw::{Arg, Call, Raw},
};
use context::{Ctx, Res};
use kiln_graph::{DType, Graph, Source, Type, UnaryOp, ValueId, fallback::collective::is_collective};
use std::collections::HashMap;

/// Converts one call; returns the values of its results in order. Trailing results that nothing uses may be omitted.
type Handler = fn(&mut Ctx, &Call) -> Res<Vec<ValueId>>;
type Table = &'static [(&'static str, Handler)];

const TABLES: [Table; 14] = [
    pointwise::TABLE,
    views::TABLE,
    reduce::TABLE,
    linear::TABLE,
    norm::TABLE,
    conv::TABLE,
    pool::TABLE,
    index::TABLE,
    attention::TABLE,
    creation::TABLE,
    recurrent::TABLE,
    resample::TABLE,
    collective::TABLE,
    launch::TABLE,
];

/// The conversions of all tables by the name of their operator.
fn handlers() -> HashMap<&'static str, Handler> {
    TABLES.iter().copied().flatten().copied().collect()
}

/// The names of the operators that the tables convert, in alphabetical order; functions of one operand and second names
/// are left out.
pub fn operators() -> Vec<&'static str> {
    let mut names: Vec<&str> = handlers().into_keys().collect();
    names.sort_unstable();
    names
}

/// Whether an operator computes each element of its result from the elements of its tensors there, broadcast to one
/// shape.
pub(crate) fn is_pointwise(name: &str) -> bool {
    let listed = pointwise::TABLE.iter().any(|(listed, _)| *listed == name);
    let function = name.strip_prefix("aten::").is_some_and(|n| UnaryOp::of_torch(n).is_some());
    let other = ["aten::glu", "aten::prelu", "aten::_prelu_kernel", "aten::to", "aten::type_as"].contains(&name);
    (listed || function) && !other
}

/// A converted graph and the sources of its parameters' data.
#[derive(Debug)]
pub struct Converted {
    /// The graph, without dead nodes. If it has collectives and the last one is none of the outputs, it is one more
    /// output at the end.
    pub graph: Graph,
    /// In the order of `graph.params`.
    pub params: Vec<ParamData>,
}

/// A call that cannot be in a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The ids of its results.
    pub outs: Vec<usize>,
    /// Why not.
    pub problem: Problem,
}

/// Converts specialised calls to a graph called `name`. The error lists all problems found, but not those that follow
/// from others; or it is that of [`Raw::check`].
pub fn convert(raw: &Raw, name: &str) -> Result<Converted, ImportErrors> {
    raw.check()?;
    let (ctx, problems, refused) = walk(raw, name);
    let errors: Vec<Problem> = problems.into_iter().chain(refused.into_iter().map(|r| r.problem)).collect();
    if !errors.is_empty() {
        return Err(ImportErrors { errors });
    }
    Ok(prune::prune(ctx.graph, ctx.params))
}

/// The calls that [`convert`] refuses.
///
/// # Errors
/// Problems that are not of one call, as of an input.
pub fn refusals(raw: &Raw) -> Result<Vec<Refusal>, ImportErrors> {
    raw.check()?;
    let (_, errors, refused) = walk(raw, "refusals");
    if errors.is_empty() { Ok(refused) } else { Err(ImportErrors { errors }) }
}

/// Converts calls as far as possible: the graph, problems that are not of one call, and refused calls. If there are any
/// of these, the graph is of no use. The ids are valid ([`Raw::check`]).
fn walk<'a>(raw: &'a Raw, name: &str) -> (Ctx<'a>, Vec<Problem>, Vec<Refusal>) {
    let handlers = handlers();
    let live = liveness(raw);
    let mut ctx = Ctx::new(raw, name, live.clone());
    let (mut problems, mut refused) = (vec![], vec![]);
    for input in &raw.inputs {
        match input_type(raw, input) {
            Ok(ty) => {
                let v = ctx.graph.input(ty);
                if let Some(id) = input.value {
                    match complex::input(&mut ctx, id, v) {
                        Ok(true) => {}
                        Ok(false) => ctx.bind(id, v),
                        Err(why) => problems.push(Problem::new(format!("input `{}`: {why}", input.name))),
                    }
                }
            }
            Err(p) => problems.push(p),
        }
    }
    for call in raw.calls.iter().filter(|c| is_needed(c, &live)) {
        ctx.set_source(Source { module: call.module.clone(), line: call.source.clone() });
        if let Err(problem) = convert_call(&mut ctx, &handlers, call) {
            refused.push(Refusal { outs: call.outs.clone(), problem });
            // In place of the results, so that what reads them is no problem of its own.
            for id in &call.outs {
                if let Ok(ty) = ctx.raw_type(*id) {
                    let v = ctx.graph.input(ty);
                    ctx.bind(*id, v);
                } else {
                    complex::stand_in(&mut ctx, *id);
                }
            }
        }
    }
    if problems.is_empty() && refused.is_empty() {
        for id in &raw.outputs {
            let value = if complex::is_complex(&ctx, *id) { complex::joined(&mut ctx, *id) } else { ctx.value(*id) };
            match value {
                Ok(v) => ctx.graph.outputs.push(v),
                Err(why) => problems.push(Problem::new(format!("an output cannot be compiled: {why}"))),
            }
        }
        // An output that nobody asked for, so that no collective is ever unused: the last one depends on all others.
        let last = ctx.last_collective.filter(|v| !ctx.graph.outputs.contains(v));
        ctx.graph.outputs.extend(last);
    }
    (ctx, problems, refused)
}

/// Whether a call has to be in the graph: it has a live result, or other processes wait for it.
#[expect(clippy::indexing_slicing, reason = "ids are valid: Raw::check")]
fn is_needed(call: &Call, live: &[bool]) -> bool {
    is_collective(&call.name) || call.outs.iter().any(|id| live[*id])
}

/// For each raw value, whether an output or a collective depends on it.
#[expect(clippy::indexing_slicing, reason = "ids are valid: Raw::check")]
fn liveness(raw: &Raw) -> Vec<bool> {
    let mut live = vec![false; raw.values.len()];
    raw.outputs.iter().for_each(|id| live[*id] = true);
    for call in raw.calls.iter().rev() {
        if is_needed(call, &live) {
            let mut used = vec![];
            call.args.iter().for_each(|a| a.values(&mut used));
            used.into_iter().for_each(|id| live[id] = true);
        }
    }
    live
}

#[expect(clippy::indexing_slicing, reason = "ids are valid: Raw::check")]
fn input_type(raw: &Raw, input: &crate::raw::RawInput) -> Result<Type, Problem> {
    match (input.value, &input.scalar) {
        (Some(id), _) => {
            let info = &raw.values[id];
            if let Some(ty) = complex::pair_type(&info.dtype, &info.shape) {
                return Ok(ty);
            }
            let dtype: DType = info.dtype.parse().map_err(|_| {
                Problem::new(format!("input `{}` is {}, a dtype that Kiln does not have", input.name, info.dtype))
                    .help(format!("Kiln's dtypes are {}; convert the input", DType::names()))
            })?;
            Ok(Type::new(dtype, info.shape.clone()))
        }
        (None, Some(Arg::Int(_))) => Ok(Type::new(DType::I64, [])),
        (None, Some(Arg::Bool(_))) => Ok(Type::new(DType::Bool, [])),
        // Float scalars are f32, as torch.tensor(0.5) is.
        _ => Ok(Type::new(DType::F32, [])),
    }
}

fn convert_call(ctx: &mut Ctx, handlers: &HashMap<&str, Handler>, call: &Call) -> Result<(), Problem> {
    // A folded value of one element becomes a constant.
    if let [out] = call.outs[..]
        && !is_collective(&call.name)
        && ctx.info(out).folded
        && let Some(s) = ctx.info(out).scalar.as_ref().and_then(context::scalar_of)
        && let Ok(ty) = ctx.raw_type(out)
        && let Ok(v) = ctx.full(&ty, s)
    {
        ctx.bind(out, v);
        return Ok(());
    }
    random::refuse(call)?;
    match complex::convert(ctx, handlers, call) {
        Some(Ok(())) => return Ok(()),
        Some(Err(why)) => return fallback::fall_back(ctx, call, why),
        None => {}
    }
    if is_collective(&call.name) {
        return fallback::fall_back(ctx, call, "torch.distributed runs it with the other processes".into());
    }
    let name = names::canonical(&call.name);
    let own = handlers.get(name).map(|handler| handler(ctx, call));
    let converted = match own.or_else(|| pointwise::function(ctx, call, name)) {
        Some(converted) => converted.and_then(|vs| check(ctx, call, &vs).map(|()| vs)),
        None => Err("Kiln has no conversion for this operator yet".into()),
    };
    match converted {
        Ok(values) => {
            for (id, v) in call.outs.iter().zip(values) {
                ctx.bind(*id, v);
            }
            Ok(())
        }
        Err(why) => fallback::fall_back(ctx, call, why),
    }
}

/// Checks that the converted values have the types of the example run.
fn check(ctx: &Ctx, call: &Call, values: &[ValueId]) -> Res<()> {
    ctx.only_results(call, values.len())?;
    for (i, v) in values.iter().enumerate() {
        let (want, got) = (ctx.out(call, i)?, ctx.ty(*v));
        if want != *got {
            return Err(format!("the conversion gives {got} where torch gives {want}"));
        }
    }
    Ok(())
}
