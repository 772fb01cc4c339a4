//! Pointers that loops carry, as what they start from plus a carried number of elements.
//!
//! `a += step` in a loop gives every thread as many addresses to carry as it has elements, in one layout for all uses.
//! A number is one register, and each use computes its addresses in its own layout.
use crate::{BinaryOp, BlockProgram, Const, Elem, Inst, InstData, Op, Region, Type, Value};
use std::collections::HashMap;

/// The same program without pointer blocks that a loop carries and moves by one number for all elements.
pub fn without_pointers(k: &BlockProgram) -> BlockProgram {
    let mut definitions = HashMap::new();
    k.walk(&mut |i, d| d.results.iter().for_each(|v| _ = definitions.insert(*v, i)));
    let mut c = Carried { k, new: k.clone(), definitions, open: vec![] };
    c.new.body = c.region(&k.body, vec![]);
    c.new
}

struct Carried<'k> {
    k: &'k BlockProgram,
    new: BlockProgram,
    definitions: HashMap<Value, Inst>,
    /// Instructions of the open regions, innermost last.
    open: Vec<Vec<Inst>>,
}

/// A pointer that a loop carries, and by how much it moves.
struct Moved {
    number: usize,
    by: Step,
}
enum Step {
    Constant(i64),
    Scalar(Value),
}

const OFFSET: Elem = Elem::I64;

impl Carried<'_> {
    fn emit(&mut self, op: Op, args: Vec<Value>, result: Value) -> Value {
        let i = self.new.new_inst(InstData { op, args, results: vec![result], regions: vec![] });
        self.open.last_mut().into_iter().for_each(|insts| insts.push(i));
        result
    }
    fn scalar(&mut self, op: Op, args: Vec<Value>) -> Value {
        let result = self.new.new_value(Type::scalar(OFFSET));
        self.emit(op, args, result)
    }
    /// `pointer`: `start` plus a number of elements.
    fn place(&mut self, pointer: Value, start: Value, offset: Value) {
        let ty = Type::block(OFFSET, self.k.ty(pointer).shape().to_vec());
        let all = self.new.new_value(ty);
        self.emit(Op::Splat, vec![offset], all);
        self.emit(Op::PtrAdd, vec![start, all], pointer);
    }
    fn region(&mut self, region: &Region, first: Vec<[Value; 3]>) -> Region {
        self.open.push(vec![]);
        for [pointer, start, offset] in first {
            self.place(pointer, start, offset);
        }
        for &i in &region.insts {
            match self.k.inst(i).op {
                Op::For => self.for_loop(i),
                _ => {
                    let data = self.k.inst(i);
                    let regions = data.regions.iter().map(|r| self.region(r, vec![])).collect();
                    self.new.inst_mut(i).regions = regions;
                    self.open.last_mut().into_iter().for_each(|insts| insts.push(i));
                }
            }
        }
        Region { params: region.params.clone(), insts: self.open.pop().unwrap_or_default() }
    }
    fn for_loop(&mut self, i: Inst) {
        let data = self.k.inst(i);
        let Some(region) = data.regions.first() else { return };
        let moved = self.moved(data, region);
        let zero = if moved.is_empty() { None } else { Some(self.scalar(Op::Const(Const::Int(0)), vec![])) };
        let (mut args, mut results, mut params) = (data.args.clone(), data.results.clone(), region.params.clone());
        let mut places = vec![];
        for (m, zero) in moved.iter().zip(std::iter::repeat(zero).flatten()) {
            let offset = self.new.new_value(Type::scalar(OFFSET));
            places.push([params[m.number + 1], args[m.number + 3], offset]);
            (params[m.number + 1], args[m.number + 3]) = (offset, zero);
            results[m.number] = self.new.new_value(Type::scalar(OFFSET));
        }
        let mut inner = self.region(region, places.clone());
        if let Some(end) = inner.insts.pop() {
            self.open.push(std::mem::take(&mut inner.insts));
            for (m, [_, _, offset]) in moved.iter().zip(&places) {
                let by = match m.by {
                    Step::Constant(n) => self.scalar(Op::Const(Const::Int(n)), vec![]),
                    Step::Scalar(v) if self.k.ty(v).elem() == Some(OFFSET) => v,
                    Step::Scalar(v) => self.scalar(Op::Cast(OFFSET), vec![v]),
                };
                let next = self.scalar(Op::Binary(BinaryOp::Add), vec![*offset, by]);
                self.new.inst_mut(end).args[m.number] = next;
            }
            inner.insts = self.open.pop().unwrap_or_default();
            inner.insts.push(end);
        }
        inner.params = params;
        let made = self.new.inst_mut(i);
        (made.args, made.results, made.regions) = (args, results.clone(), vec![inner]);
        self.open.last_mut().into_iter().for_each(|insts| insts.push(i));
        for (m, [_, start, _]) in moved.iter().zip(places) {
            self.place(data.results[m.number], start, results[m.number]);
        }
    }
    fn moved(&self, data: &InstData, region: &Region) -> Vec<Moved> {
        let next = region.insts.last().map_or(&[][..], |i| &self.k.inst(*i).args[..]);
        let carried = region.params.iter().skip(1).zip(next).take(data.results.len()).enumerate();
        let blocks =
            carried.filter(|(_, (p, _))| matches!(self.k.ty(**p), Type::Ptr { .. }) && !self.k.ty(**p).is_scalar());
        blocks.filter_map(|(number, (p, next))| Some(Moved { number, by: self.step(*p, *next)? })).collect()
    }
    /// The pointer of which `multiple_of` says something.
    fn without_hint(&self, mut pointer: Value) -> Value {
        while let Some(data) = self.definitions.get(&pointer).map(|i| self.k.inst(*i)) {
            match data.op {
                Op::MultipleOf(_) => pointer = data.args[0],
                _ => break,
            }
        }
        pointer
    }
    /// By how much `next` is past a pointer, if that is one number for all elements.
    fn step(&self, pointer: Value, next: Value) -> Option<Step> {
        let data = self.k.inst(*self.definitions.get(&next)?);
        let by = match (&data.op, &data.args[..]) {
            (Op::PtrAdd, [from, by]) if self.without_hint(*from) == pointer => *by,
            _ => return None,
        };
        let mut at = by;
        loop {
            let data = self.k.inst(*self.definitions.get(&at)?);
            match &data.op {
                Op::Const(Const::Int(n)) => return Some(Step::Constant(*n)),
                Op::Splat => return Some(Step::Scalar(data.args[0])),
                Op::Broadcast | Op::ExpandDims(_) | Op::Reshape => at = data.args[0],
                _ => return None,
            }
        }
    }
}
