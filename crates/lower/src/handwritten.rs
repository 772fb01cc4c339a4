//! Launches of block programs that people wrote: the program as it is, with the numbers and tensors of the launch.
//!
//! Takes: a kernel whose body is one launch. Gives: a copy for each result that starts as a copy of an operand, then
//! the program. Never: another order, tile or layout than the program says; what is wrong with a launch is a sentence.
use crate::error::LowerError;
use crate::scalar::types::stored;
use kiln_block::bind::{BoundArgument, BoundProgram, BoundTensor, BoundValue, TensorAccess, bind_text};
use kiln_block::{BinaryOp, BlockProgram, Builder, CmpOp, Const, Elem, Type as BlockType};
use kiln_graph::launch::{ArgumentValue, LaunchOp};
use kiln_graph::{Graph, Op, Scalar, Type, ValueId};
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

/// The steps of a kernel whose body is a launch.
pub fn lower(name: &str, body: &Graph) -> Result<Steps<BlockProgram>, LowerError> {
    let refuse = |why: String| LowerError::Unsupported { kernel: name.to_string(), why };
    let found = body.values().find_map(|v| match body.op(v) {
        Op::Launch(launch) => Some((v, &**launch)),
        _ => None,
    });
    let (node, launch) = found.ok_or_else(|| refuse("a launch kernel without a launch".into()))?;
    let operands = body.args(node);
    let types: Vec<&Type> = operands.iter().map(|v| body.ty(*v)).collect();
    let bound = bound(launch, &types, |a, b| operands[a] == operands[b])
        .map_err(|why| refuse(format!("program `{}`: {why}", launch.program.name)))?;
    let slots =
        Slots::of(body, node, launch).ok_or_else(|| refuse("it reads what is no input of the kernel".into()))?;
    let mut steps = vec![];
    for (from, to, ty) in &slots.copies {
        steps.extend(copy(name, ty).map(|code| Work::Block { code, args: vec![*from, *to] }));
    }
    let copied = match &slots.copies[..] {
        [(Slot::Input(from), Slot::Output(0), _)] if !steps.is_empty() && slots.reads_once(*from) => Some(*from),
        _ => None,
    };
    if bound.program.instances() != Some(0) {
        let args = bound.arguments.iter().map(|n| slots.tensors[*n]).collect::<Option<Vec<Slot>>>();
        let args = args.ok_or_else(|| refuse("a pointer without a tensor".into()))?;
        let code = BlockProgram { name: format!("{name}_{}", bound.program.name), ..bound.program };
        steps.push(Work::Block { code, args });
    }
    Ok(Steps { scratch: slots.scratch, steps, otherwise: None, copied })
}

/// Where the tensors of a launch are.
struct Slots {
    /// Of each argument; none for numbers.
    tensors: Vec<Option<Slot>>,
    /// Results that nothing reads.
    scratch: Vec<Type>,
    /// What is copied into results before the program runs.
    copies: Vec<(Slot, Slot, Type)>,
}

impl Slots {
    fn of(body: &Graph, node: ValueId, launch: &LaunchOp) -> Option<Slots> {
        let mut slots = Slots { tensors: vec![], scratch: vec![], copies: vec![] };
        let (operands, mut next, mut result) = (body.args(node), 0, 0);
        for a in &launch.arguments {
            let mut operand = None;
            if a.value.takes_operand() {
                operand = Some(Slot::Input(body.inputs.iter().position(|v| *v == operands[next])? as u32));
                next += 1;
            }
            let Some(ty) = a.value.result() else {
                slots.tensors.push(operand);
                continue;
            };
            let place = slots.result(body, node, result, ty);
            result += 1;
            slots.copies.extend(operand.map(|from| (from, place, ty.clone())));
            slots.tensors.push(Some(place));
        }
        Some(slots)
    }
    /// Where result `number` of a launch goes.
    fn result(&mut self, body: &Graph, node: ValueId, number: u32, ty: &Type) -> Slot {
        let is_it = |v: &ValueId| match body.op(*v) {
            _ if *v == node => number == 0,
            Op::Result(i) => *i == number,
            _ => false,
        };
        match body.outputs.iter().position(is_it) {
            Some(output) => Slot::Output(output as u32),
            None => {
                self.scratch.push(ty.clone());
                Slot::Scratch(self.scratch.len() as u32 - 1)
            }
        }
    }
    /// Whether the program itself does not read an input that is copied.
    fn reads_once(&self, input: u32) -> bool {
        !self.tensors.contains(&Some(Slot::Input(input)))
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
