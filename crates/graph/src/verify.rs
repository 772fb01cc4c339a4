//! The verifier: checks the invariants of every graph, however it was built. Later stages rely on them and do not check
//! again.
//!
//! Invariants:
//! - operands come before their users, and operand positions are 0, 1, 2, … without gaps or repeats;
//! - every node's type is the one [`crate::infer::infer`] gives, within [`crate::infer::check_type`]'s limits;
//! - `Input(i)` is the value `inputs[i]`, and every entry of `inputs` is such a node (so inputs are dense and unique);
//! - `Param(p)` names an entry of `params` and has its type (several nodes may read one parameter, and none need to);
//! - a constant has rank 0 and a scalar of its dtype's kind (float, integer in range, bool);
//! - `Iota` counts along an existing axis, in an integer or float dtype;
//! - a fallback calls an operator of the allowlist with arguments that fit its schema ([`crate::fallback`]);
//! - a collective has the one before it among its operands ([`crate::fallback::collective`]);
//! - a launch has an operand for each tensor that it reads, and equal names of programs have equal texts
//!   ([`crate::launch`]);
//! - `Result(i)`, with `i` ≥ 1, reads a fallback or a launch of more than `i` results, and has that result's type;
//! - a parameter's literal data has as many elements as its type, and its random scale is finite (floats: at least 0,
//!   integers: at least 1);
//! - outputs are existing values; repeats and zero outputs are allowed.
use crate::launch::ProgramText;
use crate::{
    DType, Graph, GraphError, Init, Op, ParamInfo, Scalar, Type, ValueId, count, fallback,
    infer::{check_type, infer},
};
use std::collections::HashMap;

impl Graph {
    /// Checks all invariants listed in [`mod@crate::verify`]; the first violation is the error.
    pub fn verify(&self) -> Result<(), GraphError> {
        verify(self)
    }
}

/// Checks all invariants in the module's doc; the first violation is the error.
pub fn verify(g: &Graph) -> Result<(), GraphError> {
    for (i, p) in g.params.iter().enumerate() {
        check_param(p).map_err(|what| {
            let value = g.values().find(|v| *g.op(*v) == Op::Param(crate::ParamId(i as u32)));
            let what = format!("parameter @{i} {:?}: {what}", p.name);
            GraphError::Invalid { value: value.unwrap_or(ValueId(g.len() as u32)), what }
        })?;
    }
    for v in g.values() {
        check_node(g, v)?;
    }
    fallback::collective::check_order(g)?;
    check_programs(g)?;
    for (i, v) in g.inputs.iter().enumerate() {
        let found = (v.0 as usize) < g.len() && *g.op(*v) == Op::Input(i as u32);
        if !found {
            let what = format!("listed as input {i}, but it is not `input {i}`");
            return Err(GraphError::Invalid { value: *v, what });
        }
    }
    for (index, v) in g.outputs.iter().enumerate() {
        if v.0 as usize >= g.len() {
            return Err(GraphError::Output { index, what: format!("{v} does not exist") });
        }
    }
    Ok(())
}

fn check_node(g: &Graph, v: ValueId) -> Result<(), GraphError> {
    let invalid = |what: String| GraphError::Invalid { value: v, what };
    let mut positions: Vec<u32> = Vec::new();
    for edge in g.dag().edges_directed((v.0).into(), petgraph::Direction::Incoming) {
        use petgraph::visit::EdgeRef;
        positions.push(*edge.weight());
        if edge.source().index() >= v.0 as usize {
            return Err(invalid(format!("operand %{} does not come before it", edge.source().index())));
        }
    }
    positions.sort_unstable();
    if !positions.iter().copied().eq(0..positions.len() as u32) {
        return Err(invalid(format!("operand positions are {positions:?}, but they must be 0, 1, 2, …")));
    }
    let (op, ty) = (g.op(v), g.ty(v));
    check_type(ty).map_err(invalid)?;
    let args = g.args(v);
    let (least, most) = op.arity();
    if args.len() < least || args.len() > most {
        return Err(invalid(format!("{} cannot have {}", op.name(), count(args.len(), "operand"))));
    }
    let expected = match op {
        Op::Input(i) => match g.inputs.get(*i as usize) {
            Some(listed) if *listed == v => ty.clone(),
            _ => return Err(invalid(format!("`input {i}` is not listed as the graph's input {i}"))),
        },
        Op::Param(p) => match g.params.get(p.0 as usize) {
            Some(info) => info.ty.clone(),
            None => return Err(invalid(format!("parameter {p} does not exist"))),
        },
        Op::Const(s) => {
            check_const(*s, ty).map_err(invalid)?;
            ty.clone()
        }
        Op::Iota { axis } => {
            if *axis >= ty.rank() || ty.dtype == DType::Bool {
                return Err(invalid(format!("iota along axis {axis} of {ty} is not defined")));
            }
            ty.clone()
        }
        Op::Result(i) => further_result(g, args[0], *i).map_err(invalid)?,
        Op::Fallback(f) if f.results.iter().any(|t| check_type(t).is_err()) => {
            return Err(invalid(format!("a result of {} is too large", f.name)));
        }
        Op::Fallback(f) => {
            let types: Vec<&Type> = args.iter().map(|a| g.ty(*a)).collect();
            fallback::check(f, &types).map_err(invalid)?;
            infer(op, &types).map_err(invalid)?
        }
        _ => {
            let types: Vec<&Type> = args.iter().map(|a| g.ty(*a)).collect();
            infer(op, &types).map_err(|what| GraphError::Operand { value: v, op: op.name().to_string(), what })?
        }
    };
    if *ty == expected { Ok(()) } else { Err(invalid(format!("has type {ty}, but {} gives {expected}", op.name()))) }
}

/// Type of result `i` (≥ 1) of `of`, a fallback or a launch, or why there is none.
pub(crate) fn further_result(g: &Graph, of: ValueId, i: u32) -> Result<Type, String> {
    let (name, results): (&str, Vec<&Type>) = match g.op(of) {
        Op::Fallback(f) => (&f.name, f.results.iter().collect()),
        Op::Launch(launch) => (&launch.program.name, launch.results().collect()),
        _ => return Err(format!("{of} is neither a fallback nor a launch, so it has one result; use it directly")),
    };
    match results.get(i as usize) {
        Some(ty) if i > 0 => Ok((*ty).clone()),
        Some(_) => Err(format!("result 0 of {of} is {of} itself; use it directly")),
        None => Err(format!("{of} ({name}) has {}, there is no result {i}", count(results.len(), "result"))),
    }
}

fn check_const(s: Scalar, ty: &Type) -> Result<(), String> {
    if ty.rank() != 0 {
        return Err(format!("a constant has rank 0, not {ty}; broadcast it"));
    }
    check_scalar(s, ty.dtype)
}

/// Checks that a scalar has the dtype's kind and, for integers, is in range.
fn check_scalar(s: Scalar, dtype: DType) -> Result<(), String> {
    let ok = match s {
        Scalar::Float(_) => dtype.is_float(),
        Scalar::Bool(_) => dtype == DType::Bool,
        Scalar::Int(v) => dtype.int_range().is_some_and(|(lo, hi)| (lo..=hi).contains(&v)),
    };
    if ok { Ok(()) } else { Err(format!("{s:?} is not a value of {dtype}")) }
}

fn check_param(p: &ParamInfo) -> Result<(), String> {
    check_type(&p.ty)?;
    match &p.init {
        Init::External => Ok(()),
        Init::Fill(s) => check_scalar(*s, p.ty.dtype),
        Init::Random { scale, .. } => {
            let scale = scale.as_f64();
            let least = if p.ty.dtype.is_float() { 0.0 } else { 1.0 };
            let ok = scale.is_finite() && (scale >= least || p.ty.dtype == DType::Bool);
            if ok { Ok(()) } else { Err(format!("a random scale of {scale} does not suit {}", p.ty.dtype)) }
        }
        Init::Data(data) if data.len() != p.ty.count() => {
            Err(format!("{} given, {} has {}", count(data.len(), "element"), p.ty, p.ty.count()))
        }
        Init::Data(data) => data.iter().try_for_each(|s| check_scalar(*s, p.ty.dtype)),
    }
}

/// Checks that launches which name the same program have the same text.
fn check_programs(g: &Graph) -> Result<(), GraphError> {
    let mut known: HashMap<&str, &str> = HashMap::new();
    for value in g.values() {
        let Op::Launch(launch) = g.op(value) else { continue };
        let ProgramText { name, text } = &launch.program;
        if *known.entry(name).or_insert(text) != text {
            let what = format!("there are two programs `{name}` in one graph; rename one");
            return Err(GraphError::Invalid { value, what });
        }
    }
    Ok(())
}
