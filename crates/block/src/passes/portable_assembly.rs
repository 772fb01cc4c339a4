//! Inline assembly as ops, for processors and the interpreter.
//!
//! Takes: texts of PTX without branches and memory, whose executions take one element each. Gives: the ops that mean
//! the same ([`instructions`]). Approximate instructions become exact functions, and subnormal numbers are kept. Texts
//! with anything else stay as they are ([`unknown`]).
mod instructions;

use crate::types::{Elem, Type};
use crate::{Assembly, BlockProgram, Builder, Const, Inst, InstData, Op, Value};
use std::collections::HashMap;

/// The program with ops in place of each text whose meaning is known. Other instructions keep their numbers.
pub fn portable(k: &BlockProgram) -> BlockProgram {
    Builder::rewrite(k.clone(), |b, i| {
        let data = k.inst(i);
        let Op::Asm(assembly) = &data.op else { return b.keep(i) };
        b.open_list();
        let known = translate(b, data, assembly);
        let insts = b.close_list();
        match known {
            Some(()) => b.append(insts),
            None => b.keep(i),
        }
    })
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

/// Appends the ops in place of a text; `None` if its meaning is not known.
fn translate(b: &mut Builder, data: &InstData, assembly: &Assembly) -> Option<()> {
    if assembly.pack != 1 {
        return None;
    }
    let shape = b.shape(*data.results.first()?);
    let operands = data.args.iter().enumerate().map(|(n, v)| (format!("${}", data.results.len() + n), *v)).collect();
    let mut t = Translation { b, shape, registers: operands };
    for line in instructions::lines(&assembly.text) {
        t.instruction(&line)?;
    }
    for (n, result) in data.results.iter().enumerate() {
        let Type::Block { elem, .. } = *t.b.ty(*result) else { return None };
        let value = match t.registers.get(&format!("${n}")) {
            Some(value) => t.in_type(*value, elem)?,
            None => t.constant(elem, Const::Int(0)),
        };
        t.named(value, *result);
    }
    Some(())
}

/// A text on its way to ops: what its registers hold.
struct Translation<'b> {
    b: &'b mut Builder,
    shape: Vec<usize>,
    registers: HashMap<String, Value>,
}

impl Translation<'_> {
    fn emit(&mut self, op: Op, args: &[Value], elem: Elem) -> Value {
        let ty = Type::block(elem, self.shape.clone());
        self.b.inst(op, args, &[ty], vec![])[0]
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
        let last = self.b.last();
        let k = self.b.program_mut();
        match last.filter(|inst| k.inst(*inst).results == [value]) {
            // No other instruction reads it under its own name.
            Some(last) => k.inst_mut(last).results = vec![result],
            None => self.b.define(&[result], Op::Bitcast, &[value], vec![]),
        }
    }
    /// The bits of a value as an element: cut, or extended by its sign.
    fn in_type(&mut self, v: Value, to: Elem) -> Option<Value> {
        let from = match self.b.ty(v) {
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
