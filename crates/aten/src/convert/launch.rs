//! Launches of kernels written by hand: calls of `kiln::launch`, which has the kernel's program as text.
//!
//! The operator takes memories as tensors, and gives those that the program writes as new ones: whoever traces the call
//! writes them back. A memory that nothing has written before the launch is new memory in the graph.
use super::{
    Table,
    context::{Ctx, Res},
};
use crate::raw::{Arg, Call, Raw};
use kiln_graph::launch::{ArgumentValue, LaunchArgument, LaunchOp, ProgramText};
use kiln_graph::{Op, Scalar, Type, ValueId};

/// The operator's name.
pub const LAUNCH: &str = "kiln::launch";

/// The operator's parameters, in order. `parameters` has names of the program's parameters, separated by commas:
/// tensors, integers, floats. `written` has the positions of the tensors that the program writes, `updated` of those
/// whose elements it combines with what is there.
pub const PARAMETERS: [&str; 9] =
    ["name", "program", "parameters", "tensors", "written", "updated", "integers", "floats", "grid"];

pub const TABLE: Table = &[(LAUNCH, launch)];

fn launch(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let names: Vec<&str> = c.str(call, 2)?.split(',').filter(|name| !name.is_empty()).collect();
    let operands = c.tensors(call, 3)?;
    let (written, updated) = (c.sizes(call, 4)?, c.sizes(call, 5)?);
    let numbers = c.ints(call, 6)?.into_iter().map(Scalar::Int).chain(floats(c, call, 7)?);
    let mut values = vec![];
    for (position, operand) in operands.iter().enumerate() {
        let ty = c.ty(*operand).clone();
        values.push(match (written.contains(&position), updated.contains(&position)) {
            (false, _) => ArgumentValue::Operand,
            (true, false) if is_unspecified(c.raw, tensor_id(call, position)?) => ArgumentValue::New(ty),
            (true, _) => ArgumentValue::Copy(ty),
        });
    }
    let given: Vec<ValueId> =
        operands.iter().zip(&values).filter(|(_, value)| value.takes_operand()).map(|(v, _)| *v).collect();
    values.extend(numbers.map(ArgumentValue::Number));
    if names.len() != values.len() {
        return Err(format!("{} names are given for {} arguments of a program", names.len(), values.len()));
    }
    let named = names.iter().zip(values);
    let arguments = named.map(|(name, value)| LaunchArgument { parameter: (*name).to_string(), value }).collect();
    let program = named_once(c, ProgramText { name: c.str(call, 0)?.into(), text: c.str(call, 1)?.into() });
    let launch = LaunchOp { program, grid: c.sizes(call, 8)?, arguments };
    let results: Vec<Type> = launch.results().cloned().collect();
    let node = c.node(Op::Launch(Box::new(launch)), &given)?;
    let others = results.into_iter().enumerate().skip(1);
    let others = others.map(|(n, ty)| c.typed(Op::Result(n as u32), ty, &[node]));
    Ok(std::iter::once(node).chain(others).collect())
}

/// A list of floats.
fn floats(c: &Ctx, call: &Call, i: usize) -> Res<Vec<Scalar>> {
    let one = |arg: &Arg| match arg {
        Arg::Float(x) => Ok(Scalar::Float(*x)),
        Arg::Int(n) => Ok(Scalar::Float(*n as f64)),
        other => Err(format!("argument {i} holds {other:?}, which is no number")),
    };
    match c.arg(call, i) {
        Arg::List(items) => items.iter().map(one).collect(),
        Arg::Ints(items) => Ok(items.iter().map(|n| Scalar::Float(*n as f64)).collect()),
        other => Err(format!("argument {i} is {other:?}, not a list of numbers")),
    }
}

/// The id of the tensor at a position of the list of tensors.
fn tensor_id(call: &Call, position: usize) -> Res<usize> {
    match call.args.get(3) {
        Some(Arg::List(items)) => match items.get(position) {
            Some(Arg::Value(id)) => Ok(*id),
            _ => Err(format!("tensor {position} of a launch is missing")),
        },
        _ => Err("a launch has no tensors".into()),
    }
}

/// Whether a value is memory that nothing has written, or a view of all of it.
fn is_unspecified(raw: &Raw, mut id: usize) -> bool {
    // Operands come first, so that this ends.
    for call in raw.calls.iter().rev() {
        if !call.outs.contains(&id) {
            continue;
        }
        let name = call.name.strip_prefix("aten::").unwrap_or_default();
        if name.starts_with("empty") || name.starts_with("new_empty") {
            return true;
        }
        match (VIEWS_OF_ALL.contains(&name), call.args.first()) {
            (true, Some(Arg::Value(base))) => id = *base,
            _ => return false,
        }
    }
    false
}

/// Operators that show all elements of their operand.
const VIEWS_OF_ALL: [&str; 12] = [
    "view",
    "reshape",
    "_unsafe_view",
    "permute",
    "transpose",
    "t",
    "unsqueeze",
    "squeeze",
    "flatten",
    "alias",
    "detach",
    "clone",
];

/// The program under a name that no other program of the graph has.
fn named_once(c: &Ctx, program: ProgramText) -> ProgramText {
    let head = format!("kernel @{}(", program.name);
    let Some(rest) = program.text.strip_prefix(&head) else { return program };
    let body = |other: &ProgramText| other.text.strip_prefix(&format!("kernel @{}(", other.name)) == Some(rest);
    let known: Vec<&ProgramText> = c
        .graph
        .values()
        .filter_map(|v| if let Op::Launch(launch) = c.graph.op(v) { Some(&launch.program) } else { None })
        .collect();
    let is_variant = |name: &str| name == program.name || name.strip_prefix(&format!("{}_", program.name)).is_some();
    if let Some(same) = known.iter().find(|other| is_variant(&other.name) && body(other)) {
        return (*same).clone();
    }
    let names = (2..).map(|n| format!("{}_{n}", program.name));
    let free = std::iter::once(program.name.clone()).chain(names).find(|name| known.iter().all(|p| p.name != *name));
    let name = free.unwrap_or_else(|| program.name.clone());
    ProgramText { text: format!("kernel @{name}({rest}"), name }
}
