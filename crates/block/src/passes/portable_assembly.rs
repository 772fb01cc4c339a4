//! Inline assembly as ops, for processors and the interpreter.
//!
//! Takes: texts of PTX without branches and memory, whose executions take one element each. Gives: the ops that mean
//! the same ([`instructions`]). Approximate instructions become exact functions, and subnormal numbers are kept. Texts
//! with anything else stay as they are ([`unknown`]).
mod instructions;

use crate::types::{Elem, Type};
use crate::{Assembly, BinaryOp, BlockProgram, Const, Inst, InstData, Op, Region, UnaryOp, Value};
use std::collections::HashMap;

/// Replaces each text whose meaning is known. Other instructions keep their numbers.
pub fn run(k: &mut BlockProgram) {
    let mut body = std::mem::take(&mut k.body);
    region(k, &mut body);
    k.body = body;
}

/// The program after [`run`].
pub fn portable(k: &BlockProgram) -> BlockProgram {
    let mut k = k.clone();
    run(&mut k);
    k
}

/// The first text that is left.
pub fn unknown(k: &BlockProgram) -> Option<(Inst, &Assembly)> {
    let mut found = None;
    k.walk(&mut |inst, data| {
        if matches!(data.op, Op::Asm(_)) {
            found.get_or_insert(inst);
        }
    });
    match &k.inst(found?).op {
        Op::Asm(assembly) => found.zip(Some(&**assembly)),
        _ => None,
    }
}

fn region(k: &mut BlockProgram, r: &mut Region) {
    for inst in std::mem::take(&mut r.insts) {
        let mut data = k.inst(inst).clone();
        data.regions.iter_mut().for_each(|inner| region(k, inner));
        k.inst_mut(inst).regions = std::mem::take(&mut data.regions);
        match &data.op {
            Op::Asm(assembly) => match translated(k, &data, assembly) {
                Some(insts) => r.insts.extend(insts),
                None => r.insts.push(inst),
            },
            _ => r.insts.push(inst),
        }
    }
}

/// The instructions in place of a text.
fn translated(k: &mut BlockProgram, data: &InstData, assembly: &Assembly) -> Option<Vec<Inst>> {
    if assembly.pack != 1 {
        return None;
    }
    let shape = k.ty(*data.results.first()?).shape().to_vec();
    let operands = data.args.iter().enumerate().map(|(n, v)| (format!("${}", data.results.len() + n), *v)).collect();
    let mut t = Translation { k, shape, registers: operands, out: vec![] };
    for line in instructions::lines(&assembly.text) {
        t.instruction(&line)?;
    }
    for (n, result) in data.results.iter().enumerate() {
        let Type::Block { elem, .. } = *t.k.ty(*result) else { return None };
        let value = match t.registers.get(&format!("${n}")) {
            Some(value) => t.in_type(*value, elem)?,
            None => t.constant(elem, Const::Int(0)),
        };
        t.named(value, *result);
    }
    Some(t.out)
}

/// A text on its way to ops: what its registers hold.
struct Translation<'k> {
    k: &'k mut BlockProgram,
    shape: Vec<usize>,
    registers: HashMap<String, Value>,
    out: Vec<Inst>,
}

impl Translation<'_> {
    fn emit(&mut self, op: Op, args: &[Value], elem: Elem) -> Value {
        let result = self.k.new_value(Type::block(elem, self.shape.clone()));
        self.push(op, args, result);
        result
    }
    fn push(&mut self, op: Op, args: &[Value], result: Value) {
        let data = InstData { op, args: args.to_vec(), results: vec![result], regions: vec![] };
        self.out.push(self.k.new_inst(data));
    }
    fn elem(&self, v: Value) -> Elem {
        self.k.ty(v).elem().unwrap_or(Elem::I32)
    }
    fn unary(&mut self, op: UnaryOp, x: Value) -> Value {
        let elem = self.elem(x);
        self.emit(Op::Unary(op), &[x], elem)
    }
    fn binary(&mut self, op: BinaryOp, a: Value, b: Value) -> Value {
        let elem = self.elem(a);
        self.emit(Op::Binary(op), &[a, b], elem)
    }
    fn constant(&mut self, elem: Elem, value: Const) -> Value {
        let value = match value {
            Const::Int(value) if elem.is_float() => Const::Float(value as f64),
            Const::Int(value) if elem == Elem::Bool => Const::Bool(value != 0),
            Const::Int(value) => Const::Int(elem.wrapped(value)),
            other => other,
        };
        self.emit(Op::Const(value), &[], elem)
    }
    /// The value under the name of a result.
    fn named(&mut self, value: Value, result: Value) {
        match self.out.iter().position(|inst| self.k.inst(*inst).results == [value]) {
            // No other instruction reads it under its own name if it is the last one.
            Some(at) if at + 1 == self.out.len() => self.k.inst_mut(self.out[at]).results = vec![result],
            _ => self.push(Op::Bitcast, &[value], result),
        }
    }
    /// The bits of a value as an element: cut, or extended by its sign.
    fn in_type(&mut self, v: Value, to: Elem) -> Option<Value> {
        let from = match self.k.ty(v) {
            Type::Block { elem, .. } => *elem,
            _ => return None,
        };
        if from == to {
            return Some(v);
        }
        if from == Elem::Bool || to == Elem::Bool {
            return None;
        }
        if from.bytes() == to.bytes() {
            return Some(self.emit(Op::Bitcast, &[v], to));
        }
        let bits = if from.is_float() { self.emit(Op::Bitcast, &[v], unsigned(from)) } else { v };
        let sized = self.emit(Op::Cast(unsigned(to)), &[bits], unsigned(to));
        Some(if unsigned(to) == to { sized } else { self.emit(Op::Bitcast, &[sized], to) })
    }
}

/// The unsigned integer of an element's width.
fn unsigned(elem: Elem) -> Elem {
    match elem.bytes() {
        1 => Elem::U8,
        2 => Elem::U16,
        4 => Elem::U32,
        _ => Elem::U64,
    }
}
