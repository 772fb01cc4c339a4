//! Launches of block programs in graphs: checked before anything is planned, with the line of the text they are from.
//!
//! Takes: a verified graph. Gives: the first launch whose program is wrong, does not take its arguments, or accesses
//! memory that its tensors do not have whatever they hold. Never: runs anything.
use crate::Error;
use crate::bounds::{self, LaunchValues};
use kiln_block::{BlockError, BlockProgram, text};
pub use kiln_graph::launch::{ArgumentValue, LaunchArgument, LaunchOp, ProgramText};
use kiln_graph::{Graph, Op, Type, ValueId};

/// The text of a program, for a graph that launches it.
pub fn program_text(program: &BlockProgram) -> ProgramText {
    ProgramText { name: program.name.clone(), text: text::print(program).trim_end().to_string() }
}

/// How the line of a program begins that says where its kernel is defined.
const DEFINED: &str = "# defined at ";

/// The program with a line that says where its kernel is defined, as `file.py:12`.
pub fn defined_at(program: ProgramText, place: &str) -> ProgramText {
    match program.text.split_once('\n') {
        Some((head, body)) => ProgramText { text: format!("{head}\n  {DEFINED}{place}\n{body}"), name: program.name },
        None => program,
    }
}

/// Where a program says that its kernel is defined.
pub fn definition(program: &ProgramText) -> Option<&str> {
    program.text.lines().nth(1)?.trim_start().strip_prefix(DEFINED)
}

/// What is wrong with a launch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The launch.
    pub value: ValueId,
    /// Name of the program.
    pub program: String,
    /// A sentence that ends with what to do.
    pub what: String,
    /// Line in the program's text, from 1, if its text is wrong.
    pub line: Option<usize>,
}

impl Problem {
    fn error(&self, place: &str) -> Error {
        let Problem { value, program, what, .. } = self;
        Error::failed(
            format!("{place}program `{program}`, launched as {value}: {what}"),
            "correct the program or its launch",
        )
    }
}

/// Checks all launches of a graph.
///
/// # Errors
/// The first that is wrong.
pub fn check(graph: &Graph) -> Result<(), Error> {
    problem(graph).map_or(Ok(()), |problem| Err(problem.error("")))
}

/// The same for a graph of this text, whose line the error names.
///
/// # Errors
/// As [`check`].
pub fn check_text(graph: &Graph, source: &str) -> Result<(), Error> {
    let Some(problem) = problem(graph) else { return Ok(()) };
    let line = match problem.line {
        Some(line) => declaration(source, &problem.program).map(|first| first + line - 1),
        None => line_of_launch(graph, source, &problem),
    };
    Err(problem.error(&line.map_or(String::new(), |line| format!("line {line}: "))))
}

/// The first launch that is wrong.
pub fn problem(graph: &Graph) -> Option<Problem> {
    graph.values().find_map(|value| match graph.op(value) {
        Op::Launch(launch) => problem_of(graph, value, launch),
        _ => None,
    })
}

fn problem_of(graph: &Graph, value: ValueId, launch: &LaunchOp) -> Option<Problem> {
    let program = launch.program.name.clone();
    if let Err(e) = text::parse(&launch.program.text) {
        let line = if let BlockError::Parse { line, .. } = e { Some(line) } else { None };
        let what = match &e {
            BlockError::Parse { what, column, .. } => format!("column {column}: {what}"),
            e => e.to_string(),
        };
        return Some(Problem { value, program, what, line });
    }
    let operands = graph.args(value);
    let types: Vec<&Type> = operands.iter().map(|v| graph.ty(*v)).collect();
    match kiln_lower::bound(launch, &types, |a, b| operands[a] == operands[b]) {
        Err(what) => Some(Problem { value, program, what, line: None }),
        Ok(bound) => {
            let tensors = tensors(launch, &types);
            let bytes = |n: &usize| tensors[*n].and_then(|ty| i64::try_from(ty.bytes()).ok());
            let grid = bound.program.grid.constant().unwrap_or_default();
            let values = LaunchValues { grid, parameters: bound.arguments.iter().map(bytes).collect() };
            let outside = bounds::outside(&bound.program, &values).into_iter().next()?;
            let what = told(&bound.program, &outside);
            Some(Problem { value, program, what, line: None })
        }
    }
}

/// The type of each argument that is a tensor.
fn tensors<'a>(launch: &'a LaunchOp, operands: &[&'a Type]) -> Vec<Option<&'a Type>> {
    let mut operands = operands.iter().copied();
    let one = |value: &'a ArgumentValue| match value {
        ArgumentValue::Operand => operands.next(),
        ArgumentValue::Copy(ty) => operands.next().map(|_| ty),
        ArgumentValue::New(ty) => Some(ty),
        ArgumentValue::Number(_) => None,
    };
    launch.arguments.iter().map(|a| &a.value).map(one).collect()
}

fn told(program: &BlockProgram, outside: &bounds::Outside) -> String {
    let name = &program.params[outside.parameter].name;
    let done = if outside.writes { "written" } else { "read" };
    let access = text::print_inst(program, outside.inst);
    format!(
        "`{name}` is {done} at element {}, and has {}: `{}` has no mask; give it one, such as offsets below the number \
         of elements",
        outside.element,
        outside.elements,
        access.trim()
    )
}

/// The line on which a text declares a program.
fn declaration(source: &str, program: &str) -> Option<usize> {
    let is_it = |line: &str| {
        let name = line.trim_start().strip_prefix("kernel").and_then(|rest| rest.trim_start().strip_prefix('@'));
        name.is_some_and(|rest| rest.trim_start_matches('"').starts_with(program) && !rest.contains(" from "))
    };
    source.lines().position(is_it).map(|n| n + 1)
}

/// The line of a launch: the launches of a program are in the order of their values.
fn line_of_launch(graph: &Graph, source: &str, problem: &Problem) -> Option<usize> {
    let is_of = |v: &ValueId| matches!(graph.op(*v), Op::Launch(l) if l.program.name == problem.program);
    let before = graph.values().take_while(|v| *v < problem.value).filter(is_of).count();
    let launches = |line: &str| {
        let code = line.split(['#', ';']).next().unwrap_or(line);
        let named = code.split_once("launch ").map(|(_, rest)| rest.trim_start().trim_start_matches('"'));
        named.is_some_and(|rest| rest.starts_with(&problem.program))
    };
    source.lines().enumerate().filter(|(_, line)| launches(line)).nth(before).map(|(n, _)| n + 1)
}
