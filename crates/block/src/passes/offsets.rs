//! Pointers that a loop moves become where they start plus an offset: the loop carries the offset, one number, in place
//! of a pointer for each element, and each use computes its addresses in its own layout.
//!
//! The elements keep one base, whose contiguity and alignment the analyses see, whatever number the pointers move by.
//! The canonical pass is for programs with values of the launch, since lowering writes its own with offsets; and for
//! steps that are values, since the analyses follow constant ones. Pipelines need offsets for all of them
//! ([`moved_blocks`]), so that addresses of later iterations are a sum.
use crate::analysis::without_hint;
use crate::{BinaryOp, BlockProgram, Builder, Const, Elem, Inst, Op, Type, Value};
use std::collections::HashMap;

pub fn run(k: &mut BlockProgram) {
    if !k.has_launch_values() || k.values.iter().any(|v| v.layout.is_some()) {
        return;
    }
    *k = with_offsets(std::mem::take(k), |_, m| matches!(m.by, Step::Value(_)));
}

/// The same program without pointer blocks that a loop carries and moves by one number for all elements.
pub fn moved_blocks(k: &BlockProgram) -> BlockProgram {
    with_offsets(k.clone(), |k, m| !k.ty(m.pointer).is_scalar())
}

/// A pointer that a loop carries: its number among what the loop carries, and how far it moves.
struct Moved {
    number: usize,
    pointer: Value,
    by: Step,
}
enum Step {
    Constant(i64),
    Value(Value),
}

/// The elements that offsets count.
const OFFSET: Elem = Elem::I64;

fn with_offsets(k: BlockProgram, wanted: impl Fn(&BlockProgram, &Moved) -> bool) -> BlockProgram {
    Builder::rewrite(k, |b, i| {
        let k = b.program();
        let mut moved = if k.inst(i).op == Op::For { moved(k, i) } else { vec![] };
        moved.retain(|m| wanted(k, m));
        match moved.is_empty() {
            true => b.keep(i),
            false => carry_offsets(b, i, &moved),
        }
    })
}

/// The loop, with what comes before and after it.
fn carry_offsets(b: &mut Builder, i: Inst, moved: &[Moved]) {
    let mut data = b.program().inst(i).clone();
    let mut body = std::mem::take(&mut data.regions[0]);
    let zero = b.constant(Type::scalar(OFFSET), Const::Int(0));
    let [now, last] = [0, 1].map(|_| moved.iter().map(|_| b.new_value(Type::scalar(OFFSET))).collect::<Vec<_>>());
    let starts: Vec<Value> = moved.iter().map(|m| data.args[3 + m.number]).collect();
    let end = body.insts.pop();
    b.open_list();
    for (n, m) in moved.iter().enumerate() {
        place(b, m.pointer, starts[n], now[n]);
    }
    b.append(std::mem::take(&mut body.insts));
    for (m, offset) in moved.iter().zip(&now) {
        let by = match m.by {
            Step::Constant(by) => b.constant(Type::scalar(OFFSET), Const::Int(by)),
            Step::Value(by) => b.cast(by, OFFSET),
        };
        let next = b.binary(BinaryOp::Add, *offset, by);
        end.into_iter().for_each(|end| b.program_mut().inst_mut(end).args[m.number] = next);
    }
    end.into_iter().for_each(|end| b.keep(end));
    body.insts = b.close_list();
    let results = data.results.clone();
    for (n, m) in moved.iter().enumerate() {
        (body.params[1 + m.number], data.args[3 + m.number], data.results[m.number]) = (now[n], zero, last[n]);
    }
    data.regions[0] = body;
    *b.program_mut().inst_mut(i) = data;
    b.keep(i);
    for (n, m) in moved.iter().enumerate() {
        place(b, results[m.number], starts[n], last[n]);
    }
}

/// Makes `pointer` of where it starts and a number of elements.
fn place(b: &mut Builder, pointer: Value, start: Value, offset: Value) {
    let offset = b.splat(offset, &b.shape(pointer));
    b.define(&[pointer], Op::PtrAdd, &[start, offset], vec![]);
}

/// The pointers that a loop moves by one number in each iteration.
fn moved(k: &BlockProgram, i: Inst) -> Vec<Moved> {
    let Some(region) = k.inst(i).regions.first() else { return vec![] };
    let Some(end) = region.insts.last().map(|i| k.inst(*i)).filter(|d| d.op == Op::Yield) else { return vec![] };
    // Of all instructions: the regions around the loop are not closed yet.
    let all = (0..).map(Inst).zip(&k.insts);
    let made: HashMap<Value, Inst> = all.flat_map(|(i, d)| d.results.iter().map(move |v| (*v, i))).collect();
    let one = |(number, next): (usize, &Value)| {
        let pointer = *region.params.get(1 + number)?;
        let d = made.get(next).map(|i| k.inst(*i)).filter(|d| d.op == Op::PtrAdd)?;
        if without_hint(k, &made, d.args[0]) != pointer {
            return None;
        }
        Some(Moved { number, pointer, by: step(k, &made, d.args[1])? })
    };
    end.args.iter().enumerate().filter_map(one).collect()
}

/// The number that all elements of a block of offsets are.
fn step(k: &BlockProgram, made: &HashMap<Value, Inst>, mut v: Value) -> Option<Step> {
    while !k.ty(v).is_scalar() {
        let d = k.inst(*made.get(&v)?);
        match d.op {
            Op::Const(Const::Int(n)) => return Some(Step::Constant(n)),
            Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape => v = d.args[0],
            _ => return None,
        }
    }
    Some(Step::Value(v))
}
