//! Graph interpreter: implements every op in the plainest way that has PyTorch's semantics.
//!
//! Takes a verified graph with its inputs and parameters as host tensors; gives the outputs. It is the oracle of the
//! differential tests, the f64 reference of error measurements, and the fallback for kernels that cannot be compiled.
//! Never panics on a verified graph: bad data (an index out of range, division by zero) is an error that names the op
//! and its source location in the model. Never reorders or fuses: runs one op at a time, in the graph's order.
mod composite;
mod demand;
mod launch;
mod matmul;
mod movement;
mod partial;
mod pointwise;
mod reduce;
mod region;
mod sampled;
mod value;
mod walk;
mod window;

pub use demand::Demand;
pub use launch::run_launch;
pub use region::{Positions, Region, part, whole};

use kiln_graph::{DType, FallbackOp, Graph, Op, Scalar, Tensor, Type, ValueId, count};
use std::collections::HashMap;
use value::{Data, Value};

/// The precision in which floats are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// Each op computes in its dtype's `compute()` type and rounds once to its dtype, as PyTorch does. Long sums
    /// accumulate in f64, so they are at least as exact as PyTorch's blocked sums.
    Native,
    /// Every float op computes in f64 without rounding: the reference. Float outputs have dtype f64.
    F64,
    /// As `Native`, with a random perturbation at every rounding. How far results move estimates the error that
    /// rounding can cause.
    Sampled {
        /// Seed of the perturbations.
        seed: u64,
        /// Operands of f32 convolutions are rounded to tf32, as PyTorch lets cuDNN do.
        tf32_convs: bool,
    },
}

/// Why a graph could not be interpreted.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InterpError {
    /// Wrong number of inputs.
    #[error("{} given, the graph takes {wanted}", count(*.given, "input"))]
    InputCount { given: usize, wanted: usize },
    /// Wrong number of parameters.
    #[error("{} given, the graph has {wanted}", count(*.given, "parameter"))]
    ParamCount { given: usize, wanted: usize },
    /// An input of the wrong type.
    #[error("input {index} is {given}, the graph takes {wanted}")]
    Input { index: usize, given: Type, wanted: Type },
    /// A parameter of the wrong type.
    #[error("parameter @{index} is {given}, the graph takes {wanted}")]
    Param { index: usize, given: Type, wanted: Type },
    /// An op failed; `place` is its source location in the model.
    #[error("{value} = {op}{place}: {what}")]
    Op { value: ValueId, op: &'static str, place: String, what: String },
}

/// Callback that runs a fallback op: takes the op and its operands, returns all its results.
pub type Fallback<'a> = dyn FnMut(&FallbackOp, &[Tensor]) -> Result<Vec<Tensor>, String> + 'a;

/// A [`Fallback`] for graphs without fallback ops: always an error.
pub fn no_fallback(op: &FallbackOp, _: &[Tensor]) -> Result<Vec<Tensor>, String> {
    Err(format!("{} needs libtorch, which is not available here", op.name))
}

/// Runs the graph in [`Precision::Native`]; outputs have the graph's dtypes.
pub fn run(
    g: &Graph,
    inputs: &[Tensor],
    params: &[Tensor],
    fallback: &mut Fallback,
) -> Result<Vec<Tensor>, InterpError> {
    run_with(g, inputs, params, Precision::Native, fallback)
}

/// Runs the graph in `precision`. With [`Precision::F64`] float outputs are f64 tensors, and float inputs and
/// parameters may be given as f64 instead of their dtype. Ops that no output depends on are skipped.
pub fn run_with(
    g: &Graph,
    inputs: &[Tensor],
    params: &[Tensor],
    precision: Precision,
    fallback: &mut Fallback,
) -> Result<Vec<Tensor>, InterpError> {
    check_arguments(g, inputs, params, precision)?;
    interpret(g, inputs, params, precision, fallback, None)
}

/// Runs the graph in [`Precision::F64`], only as far as the demanded parts of the outputs depend on it; gives these
/// parts. A fault of the data that lies elsewhere is not found.
pub fn run_parts(
    g: &Graph,
    inputs: &[Tensor],
    params: &[Tensor],
    demand: &Demand,
    fallback: &mut Fallback,
) -> Result<Vec<Tensor>, InterpError> {
    check_arguments(g, inputs, params, Precision::F64)?;
    interpret(g, inputs, params, Precision::F64, fallback, Some(demand))
}

fn interpret(
    g: &Graph,
    inputs: &[Tensor],
    params: &[Tensor],
    precision: Precision,
    fallback: &mut Fallback,
    demand: Option<&Demand>,
) -> Result<Vec<Tensor>, InterpError> {
    let mut values: Vec<Option<Value>> = vec![None; g.len()];
    let mut results: HashMap<ValueId, Vec<Value>> = HashMap::new();
    let mut uses = use_counts(g);
    for v in g.values() {
        if uses[v.0 as usize] == 0 {
            continue;
        }
        let region = demand.and_then(|d| d.of(v));
        let computed = region.map(|r| Type::new(g.dtype(v), region::shape(r)));
        let (args, ty) = (g.args(v), computed.as_ref().unwrap_or(g.ty(v)));
        kiln_graph::memory::require(carried(ty, precision), &format!("{v} ({ty})"))
            .map_err(|e| at(g, v, e.to_string()))?;
        let mut operands: Vec<&Value> = args.iter().filter_map(|a| values[a.0 as usize].as_ref()).collect();
        let needs = region.map_or(vec![], |r| demand::needs(g, v, r));
        let narrow: Result<Vec<Value>, String> = demand.map_or(Ok(vec![]), |d| {
            let held = args.iter().filter_map(|a| d.of(*a));
            let all = operands.iter().zip(held).zip(&needs);
            all.map(|((x, held), need)| region::narrowed(x, held, need)).collect()
        });
        let narrow = narrow.map_err(|what| at(g, v, what))?;
        if demand.is_some() {
            operands = narrow.iter().collect();
        }
        let leaf = |t: &Tensor| {
            let of = region.map_or_else(|| Some(t.clone()), |r| part(t, r));
            of.map(|t| Value::from_tensor(&t, ty.dtype, precision)).ok_or_else(|| "is of another shape".to_string())
        };
        let value = match g.op(v) {
            Op::Input(i) => leaf(&inputs[*i as usize]),
            Op::Param(p) => leaf(&params[p.0 as usize]),
            op @ (Op::Fallback(_) | Op::Launch(_)) => match op {
                Op::Launch(launch) => launch::launched(launch, &operands, precision),
                Op::Fallback(f) => call(f, &operands, precision, fallback),
                _ => Ok(vec![]),
            }
            .and_then(|all| {
                let first = all.first().cloned().ok_or_else(|| format!("{} gave nothing", op.name()));
                results.insert(v, all);
                first
            }),
            Op::Result(i) => {
                let of = results.get(&args[0]).and_then(|all| all.get(*i as usize));
                of.cloned().ok_or_else(|| format!("{} has no result {i}", args[0]))
            }
            op => match precision {
                _ if let Some(region) = region => partial::eval_part(g, v, region, &operands, &needs, precision),
                Precision::Sampled { seed, tf32_convs } => sampled::sample(op, ty, &operands, (seed, tf32_convs)),
                _ => eval(op, ty, &operands, precision),
            },
        };
        values[v.0 as usize] = Some(value.map_err(|what| at(g, v, what))?);
        for a in args {
            uses[a.0 as usize] -= 1;
            if uses[a.0 as usize] == 0 {
                values[a.0 as usize] = None;
                results.remove(&a);
            }
        }
    }
    let output = |(i, v): (usize, &ValueId)| {
        let value = values[v.0 as usize].as_ref().ok_or_else(|| at(g, *v, "was not computed".into()))?;
        let Some((demand, held)) = demand.and_then(|d| Some((d, d.of(*v)?))) else { return Ok(value.to_tensor()) };
        let wanted = region::narrowed(value, held, &demand.outputs()[i]).map_err(|what| at(g, *v, what))?;
        Ok(wanted.to_tensor())
    };
    g.outputs.iter().enumerate().map(output).collect()
}

fn check_arguments(g: &Graph, inputs: &[Tensor], params: &[Tensor], precision: Precision) -> Result<(), InterpError> {
    let fits = |given: &Type, wanted: &Type| {
        let widened = precision == Precision::F64 && wanted.dtype.is_float() && given.dtype == DType::F64;
        given == wanted || widened && given.shape == wanted.shape
    };
    if inputs.len() != g.inputs.len() {
        return Err(InterpError::InputCount { given: inputs.len(), wanted: g.inputs.len() });
    }
    if params.len() != g.params.len() {
        return Err(InterpError::ParamCount { given: params.len(), wanted: g.params.len() });
    }
    for (index, (t, v)) in inputs.iter().zip(&g.inputs).enumerate() {
        if !fits(&t.ty, g.ty(*v)) {
            return Err(InterpError::Input { index, given: t.ty.clone(), wanted: g.ty(*v).clone() });
        }
    }
    for (index, (t, p)) in params.iter().zip(&g.params).enumerate() {
        if !fits(&t.ty, &p.ty) {
            return Err(InterpError::Param { index, given: t.ty.clone(), wanted: p.ty.clone() });
        }
    }
    Ok(())
}

/// Number of uses of each value by live values and outputs; 0 for dead values.
fn use_counts(g: &Graph) -> Vec<u32> {
    let mut uses = vec![0; g.len()];
    for v in &g.outputs {
        uses[v.0 as usize] += 1;
    }
    for v in g.values().rev().collect::<Vec<_>>() {
        if uses[v.0 as usize] > 0 {
            for a in g.args(v) {
                uses[a.0 as usize] += 1;
            }
        }
    }
    uses
}

/// Bytes of a value in the interpreter's carrier type.
fn carried(ty: &Type, precision: Precision) -> usize {
    let each = match ty.dtype {
        DType::Bool => 1,
        dtype if dtype.is_float() && dtype != DType::F64 && precision != Precision::F64 => 4,
        _ => 8,
    };
    ty.count().saturating_mul(each)
}

fn at(g: &Graph, value: ValueId, what: String) -> InterpError {
    let place = g.source(value).place();
    let place = if place.is_empty() { place } else { format!(" ({place})") };
    InterpError::Op { value, op: g.op(value).name(), place, what }
}

fn call(f: &FallbackOp, args: &[&Value], precision: Precision, run: &mut Fallback) -> Result<Vec<Value>, String> {
    let tensors: Vec<Tensor> = args.iter().map(|a| a.to_own_tensor()).collect();
    let results = run(f, &tensors)?;
    if results.is_empty() || !results.iter().map(|t| &t.ty).eq(&f.results) {
        let given: Vec<String> = results.iter().map(|t| t.ty.to_string()).collect();
        let wanted: Vec<String> = f.results.iter().map(Type::to_string).collect();
        return Err(format!("{} gave [{}], the graph declares [{}]", f.name, given.join(", "), wanted.join(", ")));
    }
    Ok(results.iter().map(|t| Value::from_tensor(t, t.ty.dtype, precision)).collect())
}

fn eval(op: &Op, ty: &Type, args: &[&Value], precision: Precision) -> Result<Value, String> {
    let value = |data: Data| Value { ty: ty.clone(), data };
    let rounded = |data: Data| value(data.rounded(ty.dtype, precision));
    Ok(match op {
        Op::Const(s) => value(Data::full(ty.dtype, *s, 1, precision)),
        Op::Iota { axis } => rounded(movement::iota(ty, *axis, precision)),
        Op::Cast(_) => value(args[0].data.cast(args[0].ty.dtype, ty.dtype, precision)),
        Op::Unary(op) => rounded(pointwise::unary(*op, args[0])?),
        Op::Binary(op) => rounded(pointwise::binary(*op, args[0], args[1], &ty.shape)?),
        Op::Compare(op) => value(pointwise::compare(*op, args[0], args[1], &ty.shape)?),
        Op::Select => value(pointwise::select(args[0], args[1], args[2], &ty.shape)?),
        Op::Reshape(_) => value(args[0].data.clone()),
        Op::Permute(perm) => value(movement::permute(args[0], perm)),
        Op::Broadcast(shape) => value(movement::broadcast(args[0], shape)),
        Op::Slice { axis, start, len: _, step } => value(movement::slice(args[0], &ty.shape, *axis, *start, *step)),
        Op::Flip(axes) => value(movement::flip(args[0], axes)),
        Op::Pad { lo, .. } => value(movement::pad(args[0], args[1], lo, &ty.shape)?),
        Op::Concat { axis } => value(movement::concat(args, *axis, &ty.shape)?),
        Op::Gather { axis } => value(movement::gather(args[0], args[1], *axis)?),
        Op::Take { axis } => value(movement::take(args[0], args[1], *axis)?),
        Op::Scatter { axis, mode } => rounded(movement::scatter([args[0], args[1], args[2]], *axis, *mode, precision)?),
        Op::Reduce { op, axes } => rounded(reduce::reduce(*op, args[0], axes)?),
        Op::Scan { op, axis } => rounded(reduce::scan(*op, args[0], *axis, precision)?),
        Op::Dot => rounded(matmul::dot(args[0], args[1], &ty.shape)?),
        Op::Linear => rounded(matmul::linear(args[0], args[1], args.get(2).copied())?),
        Op::Conv { stride, padding, dilation, groups, transposed, .. } => {
            let steps = window::Steps { stride, padding, dilation };
            let (bias, all) = (args.get(2).copied(), [&whole(&args[0].ty.shape)[..], &whole(&ty.shape)]);
            rounded(matmul::conv(args[0], args[1], bias, &steps, *groups, *transposed, all)?)
        }
        Op::Pool { kind, window, stride, padding, dilation, .. } => {
            let steps = window::Steps { stride, padding, dilation };
            let (from, to) = (whole(&args[0].ty.shape), whole(&ty.shape));
            rounded(window::pool(args[0], *kind, window, &steps, &from, &to)?)
        }
        Op::Input(_) | Op::Param(_) | Op::Fallback(_) | Op::Launch(_) | Op::Result(_) => {
            return Err(format!("{} has no value of its own", op.name()));
        }
        _ => rounded(composite::composite(op, args, &ty.shape)?),
    })
}

/// A scalar as an integer, as an integer tensor stores it.
fn scalar_int(s: Scalar) -> i64 {
    match s {
        Scalar::Int(v) => v,
        Scalar::Bool(v) => i64::from(v),
        Scalar::Float(v) => v as i64,
    }
}
