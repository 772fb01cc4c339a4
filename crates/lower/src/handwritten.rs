//! Launches of block programs that people wrote: the program as it is, with the numbers and tensors of the launch, and
//! with the elementwise ops of the kernel in its loads and stores ([`neighbours`]).
//!
//! Takes: a kernel with one launch. Gives: a copy for each result that starts as a copy of an operand, then the
//! program. Never: another order or tile than the program says; what is wrong with a launch is a sentence.
mod access;
mod neighbours;
mod point;
mod warpgroups;

pub use access::launch_access;

use crate::error::LowerError;
use crate::scalar::types::stored;
use kiln_block::bind::{BoundArgument, BoundProgram, BoundTensor, BoundValue, TensorAccess, bind_text};
use kiln_block::{BinaryOp, BlockProgram, Builder, CmpOp, Const, Elem, Type as BlockType, passes};
use kiln_graph::launch::{ArgumentValue, LaunchOp};
use kiln_graph::{Graph, Op, Scalar, Type, ValueId};
use kiln_machine::Machine;
use kiln_plan::Kernel;
use kiln_plan::exec::{Slot, Steps, Work};

/// Elements that an instance of a copy moves, and its warps.
const COPIED: usize = 1024;
const COPY_WARPS: usize = 4;

/// Binds the program of a launch to its numbers, and to operands of these types. `equal`: whether two operands are one
/// tensor.
///
/// # Errors
/// A sentence that says what is wrong with the program or with an argument, and what to do.
pub fn bound(
    launch: &LaunchOp,
    operands: &[&Type],
    equal: impl Fn(usize, usize) -> bool,
) -> Result<BoundProgram, String> {
    let mut next = 0;
    let arguments: Vec<BoundArgument> = launch
        .arguments
        .iter()
        .map(|a| {
            let operand = next;
            next += usize::from(a.value.takes_operand());
            let tensor = |ty: &Type, access, is_alone| {
                let (kind, elements) = (ty.dtype.kind(), ty.count());
                BoundValue::Tensor(BoundTensor { kind, elements, access, is_alone })
            };
            let value = match &a.value {
                ArgumentValue::Operand => {
                    let is_alone = (0..operands.len()).all(|other| other == operand || !equal(operand, other));
                    operands.get(operand).map(|ty| tensor(ty, TensorAccess::Read, is_alone))
                }
                ArgumentValue::Copy(ty) => Some(tensor(ty, TensorAccess::Updated, true)),
                ArgumentValue::New(ty) => Some(tensor(ty, TensorAccess::New, true)),
                ArgumentValue::Number(n) => Some(BoundValue::Number(number(*n))),
            };
            let value = value.ok_or_else(|| "the launch has fewer operands than tensors to read".to_string())?;
            Ok(BoundArgument { parameter: &a.parameter, value })
        })
        .collect::<Result<_, String>>()?;
    bind_text(&launch.program.name, &launch.program.text, &launch.grid, &arguments)
}

fn number(n: Scalar) -> Const {
    match n {
        Scalar::Int(n) => Const::Int(n),
        Scalar::Float(x) => Const::Float(x),
        Scalar::Bool(b) => Const::Bool(b),
    }
}

/// The steps of a kernel with a launch.
pub fn lower(kernel: &Kernel, machine: &Machine) -> Result<Steps<BlockProgram>, LowerError> {
    let (name, body) = (kernel.name.as_str(), &kernel.body);
    let refuse = |why: String| LowerError::Unsupported { kernel: name.to_string(), why };
    let found = body.values().find_map(|v| match body.op(v) {
        Op::Launch(launch) => Some((v, &**launch)),
        _ => None,
    });
    let (node, launch) = found.ok_or_else(|| refuse("a launch kernel without a launch".into()))?;
    let operands = body.args(node);
    let types: Vec<&Type> = operands.iter().map(|v| body.ty(*v)).collect();
    let BoundProgram { mut program, arguments } = bound(launch, &types, |a, b| operands[a] == operands[b])
        .map_err(|why| refuse(format!("program `{}`: {why}", launch.program.name)))?;
    passes::canonicalise(&mut program)
        .map_err(|e| LowerError::Invariant { kernel: name.into(), what: e.to_string() })?;
    let places =
        Places::of(body, node, launch).ok_or_else(|| refuse("it reads what is no input of the kernel".into()))?;
    let mut steps = vec![];
    for (from, to, ty) in &places.copies {
        steps.extend(copy(name, ty).map(|code| Work::Block { code, args: vec![*from, *to] }));
    }
    if program.instances() != Some(0) {
        let of_parameters = arguments.iter().map(|n| places.tensors[*n]).collect::<Option<Vec<Place>>>();
        let of_parameters = of_parameters.ok_or_else(|| refuse("a pointer without a tensor".into()))?;
        let kernel = neighbours::Kernel { name, body, rounding: kernel.rounding };
        let fused = warpgroups::placed(neighbours::fused(&kernel, program, &of_parameters)?, body, machine);
        let code = BlockProgram { name: format!("{name}_{}", fused.program.name), ..fused.program };
        steps.push(Work::Block { code, args: fused.args });
    }
    // The copy may take the operand's memory if nothing reads the operand after it.
    let reads =
        |slot: &Slot| steps.iter().skip(1).any(|step| matches!(step, Work::Block { args, .. } if args.contains(slot)));
    let copied = match &places.copies[..] {
        [(from @ Slot::Input(input), Slot::Output(0), ty)] if ty.count() > 0 && !reads(from) => Some(*input),
        _ => None,
    };
    Ok(Steps { scratch: places.scratch, steps, otherwise: None, copied })
}

/// Where a tensor of a launch is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Slot(Slot),
    /// An operand that the kernel computes where it is loaded.
    Computed(ValueId),
    /// A result from which the kernel computes another one; it is stored itself only if it has a slot.
    Result {
        value: ValueId,
        slot: Option<Slot>,
    },
}

impl Place {
    /// Where it is in memory, if it is.
    pub fn slot(&self) -> Option<Slot> {
        match self {
            Place::Slot(slot) => Some(*slot),
            Place::Computed(_) => None,
            Place::Result { slot, .. } => *slot,
        }
    }
}

/// Where the tensors of a launch are.
struct Places {
    /// Of each argument; none for numbers.
    tensors: Vec<Option<Place>>,
    /// Results that nothing reads.
    scratch: Vec<Type>,
    /// What is copied into results before the program runs.
    copies: Vec<(Slot, Slot, Type)>,
}

impl Places {
    fn of(body: &Graph, node: ValueId, launch: &LaunchOp) -> Option<Places> {
        let mut places = Places { tensors: vec![], scratch: vec![], copies: vec![] };
        let (operands, mut next, mut result) = (body.args(node), 0, 0);
        let input = |v: ValueId| body.inputs.iter().position(|i| *i == v).map(|n| Slot::Input(n as u32));
        for a in &launch.arguments {
            let operand = a.value.takes_operand().then(|| operands[next]);
            next += usize::from(operand.is_some());
            let Some(ty) = a.value.result() else {
                let place = operand.map(|v| input(v).map_or(Place::Computed(v), Place::Slot));
                places.tensors.push(place);
                continue;
            };
            let place = places.result(body, node, result, ty);
            result += 1;
            if let Some(from) = operand {
                places.copies.push((input(from)?, place.slot()?, ty.clone()));
            }
            places.tensors.push(Some(place));
        }
        Some(places)
    }
    /// Where result `number` of a launch goes.
    fn result(&mut self, body: &Graph, node: ValueId, number: u32, ty: &Type) -> Place {
        let is_it = |v: &ValueId| match body.op(*v) {
            _ if *v == node => number == 0,
            Op::Result(i) => *i == number,
            _ => false,
        };
        let value = body.values().find(is_it);
        let slot = body.outputs.iter().position(is_it).map(|output| Slot::Output(output as u32));
        let is_after = |user: &ValueId| !matches!(body.op(*user), Op::Result(_));
        match (value, slot) {
            (Some(value), slot) if body.users(value).iter().any(is_after) => Place::Result { value, slot },
            (_, Some(slot)) => Place::Slot(slot),
            (_, None) => {
                self.scratch.push(ty.clone());
                Place::Slot(Slot::Scratch(self.scratch.len() as u32 - 1))
            }
        }
    }
}

/// A program that copies a tensor of this type; none for an empty one.
fn copy(kernel: &str, ty: &Type) -> Option<BlockProgram> {
    let count = ty.count();
    if count == 0 {
        return None;
    }
    let elem = stored(ty.dtype);
    let mut b = Builder::new(format!("{kernel}_copy"), [count.div_ceil(COPIED), 1, 1], COPY_WARPS);
    let (from, to) = (b.param("from", elem, true), b.param("to", elem, false));
    let index = if count + COPIED < 1 << 31 { Elem::I32 } else { Elem::I64 };
    let constant = |b: &mut Builder, n: usize| b.constant(BlockType::scalar(index), Const::Int(n as i64));
    let (id, lane, step) = (b.program_id(0), b.iota(COPIED), constant(&mut b, COPIED));
    let (id, lane) = (b.cast(id, index), b.cast(lane, index));
    let start = b.binary(BinaryOp::Mul, id, step);
    let at = b.binary(BinaryOp::Add, start, lane);
    let end = constant(&mut b, count);
    let inside = b.cmp(CmpOp::Lt, at, end);
    let (from, to) = (b.ptr_add(from, at), b.ptr_add(to, at));
    let value = b.load(from, Some(inside), None);
    b.store(to, value, Some(inside));
    Some(b.finish())
}
