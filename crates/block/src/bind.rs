//! Binds a program to one launch: numbers become constants, the grid a constant, and what is known of tensors facts.
//!
//! Takes: a program as text or as data, and an argument for each parameter by name. Gives: a program whose parameters
//! are pointers alone, as those that compilers emit, or a sentence that says what does not fit and what to do.
//! Never: tensors themselves, addresses.
use crate::analysis::Writes;
use crate::{BlockProgram, Const, Elem, Facts, Grid, InstData, Kind, Op, Param, Type, passes, text, verify};

/// An argument of a launch.
#[derive(Clone, PartialEq, Debug)]
pub struct BoundArgument<'a> {
    /// The parameter's name.
    pub parameter: &'a str,
    pub value: BoundValue,
}

/// What a parameter is given.
#[derive(Clone, PartialEq, Debug)]
pub enum BoundValue {
    Tensor(BoundTensor),
    Number(Const),
}

/// A tensor of a launch: dense, its address a multiple of 16 bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct BoundTensor {
    /// Numbers that its elements are.
    pub kind: Kind,
    pub elements: usize,
    pub access: TensorAccess,
    /// No other argument has its memory.
    pub is_alone: bool,
}

/// What a launch allows a program to do with a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorAccess {
    Read,
    /// It is written, and what was there before has no meaning.
    New,
    /// It is read and written.
    Updated,
}

/// A program of one launch.
#[derive(Clone, PartialEq, Debug)]
pub struct BoundProgram {
    /// Its grid is a constant, its parameters are pointers.
    pub program: BlockProgram,
    /// For each parameter the number of its argument.
    pub arguments: Vec<usize>,
}

/// Elements from which offsets need 64 bits.
const FAR: usize = 1 << 31;

/// Parses and verifies a program, and binds it ([`bind`]). `name`: the program's.
///
/// # Errors
/// What is wrong with the text, with its line, or with the launch.
pub fn bind_text(
    name: &str,
    source: &str,
    grid: &[usize],
    arguments: &[BoundArgument],
) -> Result<BoundProgram, String> {
    let program = text::parse(source).map_err(|e| format!("{e}; correct the text of the program"))?;
    if program.name != name {
        return Err(format!("the text is that of `{}`; launch it by this name", program.name));
    }
    verify::verify(&program).map_err(|e| format!("{e}; correct the text of the program"))?;
    bind(&program, grid, arguments)
}

/// Binds a verified program to a grid and arguments. An empty grid: the program's own.
///
/// # Errors
/// A sentence that says what does not fit, and what to do.
pub fn bind(program: &BlockProgram, grid: &[usize], arguments: &[BoundArgument]) -> Result<BoundProgram, String> {
    let mut program = program.clone();
    program.grid = Grid::Constant(bound_grid(&program, grid)?);
    verify::grid(program.grid).map_err(|why| format!("{why}; launch fewer instances"))?;
    known_parameters(&program, arguments)?;
    let writes = Writes::of(&program);
    if writes.anywhere() {
        return Err("it makes pointers out of numbers, so what it reads and writes is unknown; give it a pointer \
                    parameter for each tensor"
            .into());
    }
    let (mut order, mut numbers) = (vec![], vec![]);
    for n in 0..program.params.len() {
        let param = program.params[n].clone();
        let (at, argument) = arguments
            .iter()
            .enumerate()
            .find(|(_, a)| a.parameter == param.name)
            .ok_or_else(|| missing(&program, &param))?;
        match (program.ty(param.value).clone(), &argument.value) {
            (Type::Ptr { elem, shape }, BoundValue::Tensor(tensor)) if shape.is_empty() => {
                tensor_fits(&param, elem, tensor, &writes)?;
                state_facts(&mut program.params[n], tensor);
                order.push(at);
            }
            (Type::Block { elem, shape }, BoundValue::Number(number)) if shape.is_empty() => {
                numbers.push((param.value, constant(&param, elem, *number)?));
            }
            (ty, given) => return Err(wrong_kind(&param, &ty, given)),
        }
    }
    // Offsets are widened while the program has values of the launch: without these Kiln's own offsets are expected.
    if arguments.iter().any(|a| matches!(&a.value, BoundValue::Tensor(t) if t.elements >= FAR)) {
        program.grid = Grid::Launch;
        passes::widen_offsets(&mut program);
        program.grid = Grid::Constant(bound_grid(&program, grid)?);
    }
    let mut constants = vec![];
    for (value, number) in numbers {
        program.params.retain(|p| p.value != value);
        let data = InstData { op: Op::Const(number), args: vec![], results: vec![value], regions: vec![] };
        constants.push(program.new_inst(data));
    }
    program.body.insts.splice(0..0, constants);
    Ok(BoundProgram { program: program.compacted(), arguments: order })
}

fn bound_grid(program: &BlockProgram, given: &[usize]) -> Result<[usize; 3], String> {
    let mut grid = [1; 3];
    if given.len() > grid.len() {
        return Err(format!("a grid of {} axes is given; give one to three sizes", given.len()));
    }
    grid[..given.len()].copy_from_slice(given);
    match (program.grid, given) {
        (Grid::Constant(fixed), []) => Ok(fixed),
        (Grid::Constant(fixed), _) if fixed != grid => {
            Err(format!("its grid is {fixed:?}, and it is launched over {grid:?}; leave the grid of the launch out"))
        }
        (Grid::Launch, []) => Err("its grid is of the launch, which gives none; give one, as grid=[8]".into()),
        _ => Ok(grid),
    }
}

fn names(program: &BlockProgram) -> String {
    let all: Vec<String> = program.params.iter().map(|p| format!("`{}`", p.name)).collect();
    if all.is_empty() { "none".into() } else { all.join(", ") }
}

fn known_parameters(program: &BlockProgram, arguments: &[BoundArgument]) -> Result<(), String> {
    for a in arguments {
        if !program.params.iter().any(|p| p.name == a.parameter) {
            return Err(format!("it has no parameter `{}`; its parameters are {}", a.parameter, names(program)));
        }
    }
    Ok(())
}

fn missing(program: &BlockProgram, param: &Param) -> String {
    let name = &param.name;
    let give = match program.ty(param.value) {
        Type::Ptr { elem, .. } => format!("a tensor, as `{name}=%x` to read or `{name}=new {elem}[8]` to write"),
        _ => format!("a number, as `{name}=1`"),
    };
    format!("its parameter `{name}` is not given; give {give}")
}

fn wrong_kind(param: &Param, ty: &Type, given: &BoundValue) -> String {
    let name = &param.name;
    match (ty, given) {
        (Type::Ptr { elem, .. }, BoundValue::Number(_)) => {
            format!("`{name}` is a pointer, and a number is given; give a tensor of {elem}")
        }
        (Type::Block { elem, .. }, BoundValue::Tensor(_)) => {
            format!("`{name}` is a number of {elem}, and a tensor is given; give a number, as `{name}=1`")
        }
        _ => format!("`{name}` is {ty}, which a graph has no argument for; make it a pointer or a number"),
    }
}

fn tensor_fits(param: &Param, elem: Elem, tensor: &BoundTensor, writes: &Writes) -> Result<(), String> {
    let name = &param.name;
    if elem.kind() != tensor.kind {
        let given = Elem::ALL.into_iter().find(|e| e.kind() == tensor.kind);
        let given = given.map_or("another type".to_string(), |e| e.to_string());
        return Err(format!("`{name}` points to {elem}, and a tensor of {given} is given; cast it to {elem}"));
    }
    let writes_it = writes.through(param.value);
    match tensor.access {
        TensorAccess::Read if writes_it => Err(format!(
            "it writes `{name}`, which is given as a tensor to read; give `new` memory, or a `copy` if it reads it too"
        )),
        TensorAccess::New | TensorAccess::Updated if !writes_it => {
            Err(format!("it never writes `{name}`, which is given as a result; give the tensor that it reads"))
        }
        TensorAccess::New if writes.updates(param.value) => Err(format!(
            "it updates elements of `{name}`, which is given as new memory; give a copy of what it starts from"
        )),
        _ => Ok(()),
    }
}

/// What a launch knows of a tensor.
fn state_facts(param: &mut Param, tensor: &BoundTensor) {
    param.facts = Facts { span32: tensor.elements < FAR, noalias: tensor.is_alone, ..Facts::default() };
    param.readonly = tensor.access == TensorAccess::Read;
    param.align = param.align.max(16);
}

/// A number as a constant of a parameter's type.
fn constant(param: &Param, elem: Elem, number: Const) -> Result<Const, String> {
    let name = &param.name;
    let refuse = |what: String, help: String| Err(format!("`{name}` is {elem}, and {what} is given; {help}"));
    let shown = match number {
        Const::Int(n) => n.to_string(),
        Const::Float(x) => format!("{x:?}"),
        Const::Bool(b) => b.to_string(),
    };
    let value = match (number, elem) {
        (Const::Float(x), elem) if elem.is_float() => Const::Float(x),
        (Const::Int(n), elem) if elem.is_float() => Const::Float(n as f64),
        (Const::Bool(b), Elem::Bool) => Const::Bool(b),
        (Const::Int(n @ (0 | 1)), Elem::Bool) => Const::Bool(n == 1),
        (_, Elem::Bool) => return refuse(shown, "give true or false".into()),
        (Const::Int(n), elem) => match elem.int_range() {
            // Numbers of 64 bits without a sign are kept in an i64 of the same bits.
            Some((least, most)) if elem == Elem::U64 && n < 0 || !(least..=most).contains(&n) && elem != Elem::U64 => {
                return refuse(shown, format!("give one from {least} to {most}"));
            }
            _ => Const::Int(n),
        },
        _ => return refuse(shown, "give an integer".into()),
    };
    match value {
        Const::Int(n) if !param.facts.allow(n) => refuse(shown, "give one that the parameter's facts allow".into()),
        value => Ok(value),
    }
}
