//! Pointers that a loop moves become where they start plus an offset: the loop carries the offset, one number, in place
//! of a pointer for each element.
//!
//! The elements keep one base, whose contiguity and alignment the analyses see, whatever number the pointers move by.
//! For programs with values of the launch; lowering writes its own with offsets.
use crate::{BinaryOp, BlockProgram, Const, Elem, Inst, InstData, Op, Region, Type, Value};
use std::collections::HashMap;

pub fn run(k: &mut BlockProgram) {
    if !k.has_launch_values() || k.values.iter().any(|v| v.layout.is_some()) {
        return;
    }
    let mut body = std::mem::take(&mut k.body);
    region(k, &mut body);
    k.body = body;
}

fn region(k: &mut BlockProgram, r: &mut Region) {
    for i in std::mem::take(&mut r.insts) {
        let mut regions = std::mem::take(&mut k.inst_mut(i).regions);
        regions.iter_mut().for_each(|inner| region(k, inner));
        k.inst_mut(i).regions = regions;
        match k.inst(i).op {
            Op::For => rewrite(k, i, &mut r.insts),
            _ => r.insts.push(i),
        }
    }
}

/// A carried pointer: its number among what the loop carries, and the scalar that it moves by.
struct Moved {
    n: usize,
    by: Value,
}

/// The loop, with what comes before and after it.
fn rewrite(k: &mut BlockProgram, i: Inst, out: &mut Vec<Inst>) {
    let moved = moved(k, i);
    let mut data = k.inst(i).clone();
    let mut after = vec![];
    for Moved { n, by } in moved {
        let (init, pointer, result) = (data.args[3 + n], data.regions[0].params[1 + n], data.results[n]);
        let wide = Type::scalar(Elem::I64);
        let zero = one(k, Op::Const(Const::Int(0)), &[], wide.clone(), out);
        let (offset, last) = (k.new_value(wide.clone()), k.new_value(wide.clone()));
        let mut start = vec![];
        plus(k, init, offset, pointer, &mut start);
        plus(k, init, last, result, &mut after);
        let body = &mut data.regions[0];
        let Some(end) = body.insts.pop() else { continue };
        let by = match k.ty(by).elem() {
            Some(Elem::I64) => by,
            _ => one(k, Op::Cast(Elem::I64), &[by], wide.clone(), &mut body.insts),
        };
        let next = one(k, Op::Binary(BinaryOp::Add), &[offset, by], wide, &mut body.insts);
        k.inst_mut(end).args[n] = next;
        body.insts.push(end);
        body.insts.splice(0..0, start);
        (body.params[1 + n], data.args[3 + n], data.results[n]) = (offset, zero, last);
    }
    *k.inst_mut(i) = data;
    out.push(i);
    out.append(&mut after);
}

/// The pointers that a loop moves by a number in each iteration.
fn moved(k: &BlockProgram, i: Inst) -> Vec<Moved> {
    let data = k.inst(i);
    let Some(region) = data.regions.first() else { return vec![] };
    let Some(end) = region.insts.last().map(|i| k.inst(*i)).filter(|d| d.op == Op::Yield) else { return vec![] };
    let made: HashMap<Value, &InstData> = k.insts.iter().flat_map(|d| d.results.iter().map(move |v| (*v, d))).collect();
    let one = |(n, next): (usize, &Value)| {
        let pointer = *region.params.get(1 + n)?;
        let d = made.get(next).filter(|d| d.op == Op::PtrAdd && d.args[0] == pointer)?;
        Some(Moved { n, by: scalar_of(k, &made, d.args[1])? })
    };
    end.args.iter().enumerate().filter_map(one).collect()
}

/// The scalar that all elements of a block are.
fn scalar_of(k: &BlockProgram, made: &HashMap<Value, &InstData>, mut v: Value) -> Option<Value> {
    while !k.ty(v).is_scalar() {
        let d = made.get(&v)?;
        match d.op {
            Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape => v = d.args[0],
            _ => return None,
        }
    }
    Some(v)
}

/// Makes `result` of a pointer (block) and a scalar offset.
fn plus(k: &mut BlockProgram, pointer: Value, offset: Value, result: Value, out: &mut Vec<Inst>) {
    let shape = k.ty(pointer).shape().to_vec();
    let offset = match shape.is_empty() {
        true => offset,
        false => one(k, Op::Splat, &[offset], Type::block(Elem::I64, shape), out),
    };
    let data = InstData { op: Op::PtrAdd, args: vec![pointer, offset], results: vec![result], regions: vec![] };
    out.push(k.new_inst(data));
}

fn one(k: &mut BlockProgram, op: Op, args: &[Value], ty: Type, out: &mut Vec<Inst>) -> Value {
    let v = k.new_value(ty);
    out.push(k.new_inst(InstData { op, args: args.to_vec(), results: vec![v], regions: vec![] }));
    v
}
