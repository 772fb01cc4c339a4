//! Loads of the next iteration before an iteration computes, in registers: of what is too small for shared memory, as
//! scales, or is no operand of a dot.
use super::copies::{Address, Readers};
use crate::analysis::Writes;
use crate::{BinaryOp, BlockProgram, CmpOp, Const, Elem, Inst, InstData, Op, Region, Type, Value};
use std::collections::HashMap;

/// Bytes of a load, at most: threads hold parts of it several times, and now those of two iterations. More where each
/// element is for a row of a matmul, of which a thread has few, while it has many of the columns.
const MOST: usize = 256;
const MOST_OF_ROWS: usize = 1 << 10;

/// The same program with loads ahead in its innermost loops.
pub fn loads_ahead(k: &BlockProgram) -> BlockProgram {
    let mut p = Prefetch { k, new: k.clone(), writes: Writes::of(k), readers: Readers::of(k), open: vec![] };
    p.new.body = p.region(&k.body);
    p.new
}

struct Prefetch<'k> {
    k: &'k BlockProgram,
    new: BlockProgram,
    writes: Writes,
    readers: Readers,
    /// Instructions of the open regions, innermost last.
    open: Vec<Vec<Inst>>,
}

/// New names of values in another iteration.
type Names = HashMap<Value, Value>;

impl Prefetch<'_> {
    fn one(&mut self, op: Op, args: Vec<Value>, ty: Type) -> Value {
        let result = self.new.new_value(ty);
        let i = self.new.new_inst(InstData { op, args, results: vec![result], regions: vec![] });
        self.keep(i);
        result
    }
    fn keep(&mut self, i: Inst) {
        self.open.last_mut().into_iter().for_each(|insts| insts.push(i));
    }
    fn region(&mut self, region: &Region) -> Region {
        self.open.push(vec![]);
        region.insts.iter().for_each(|i| self.inst(*i));
        Region { params: region.params.clone(), insts: self.open.pop().unwrap_or_default() }
    }
    fn inst(&mut self, i: Inst) {
        let data = self.k.inst(i);
        let loads = if data.op == Op::For { self.loads(i) } else { vec![] };
        if !loads.is_empty() {
            return self.ahead(i, &loads);
        }
        let regions = data.regions.iter().map(|r| self.region(r)).collect();
        self.new.inst_mut(i).regions = regions;
        self.keep(i);
    }
    /// Loads of a loop that can be done an iteration ahead.
    fn loads(&self, i: Inst) -> Vec<(Inst, Address)> {
        let data = self.k.inst(i);
        let Some(region) = data.regions.first() else { return vec![] };
        let nested = region.insts.iter().any(|i| matches!(self.k.inst(*i).op, Op::For | Op::While));
        let all = region.insts.iter().filter(|_| !nested).filter_map(|load| {
            let d = self.k.inst(*load);
            let small = matches!(d.op, Op::Load(..)) && self.bytes(d.results[0]) <= self.most(d.results[0]);
            if !small || !self.writes.is_unwritten_in(self.k, region, d.args[0]) {
                return None;
            }
            // Without loads in what computes the address, none of these waits for memory.
            Some((*load, Address::of(self.k, i, &d.args, &|_| false)?))
        });
        all.collect()
    }
    /// Bytes of a loaded block, at most.
    fn most(&self, v: Value) -> usize {
        let readers = self.readers.reading(v);
        let rows = readers.iter().all(|i| self.k.inst(*i).op == Op::ExpandDims(1)) && !readers.is_empty();
        if rows { MOST_OF_ROWS } else { MOST }
    }
    fn bytes(&self, v: Value) -> usize {
        let ty = self.k.ty(v);
        ty.count() * ty.elem().map_or(1, Elem::bytes)
    }
    fn ahead(&mut self, i: Inst, loads: &[(Inst, Address)]) {
        let data = self.k.inst(i);
        let [lo, hi, step] = [data.args[0], data.args[1], data.args[2]];
        let (region, index) = (&data.regions[0], self.k.ty(lo).clone());
        // A loop whose step is not positive does not run.
        let none = self.one(Op::Const(Const::Int(0)), vec![], index.clone());
        let [there, runs] =
            [[lo, hi], [none, step]].map(|ends| self.one(Op::Cmp(CmpOp::Lt), ends.to_vec(), Type::scalar(Elem::Bool)));
        let first = self.one(Op::Binary(BinaryOp::And), vec![there, runs], Type::scalar(Elem::Bool));
        let begin: Names = region.params.iter().copied().zip([lo].into_iter().chain(data.args[3..].to_vec())).collect();
        let mut args = data.args.clone();
        for (load, address) in loads {
            args.push(self.load(*load, address, begin.clone(), first));
        }
        self.open.push(vec![]);
        let left = self.one(Op::Binary(BinaryOp::Sub), vec![hi, region.params[0]], index.clone());
        let there = self.one(Op::Cmp(CmpOp::Lt), vec![step, left], Type::scalar(Elem::Bool));
        let next = self.one(Op::Binary(BinaryOp::Add), vec![region.params[0], step], index);
        let end = region.insts.last().map_or(&[][..], |i| &self.k.inst(*i).args[..]);
        let mut ahead = vec![];
        for (load, address) in loads {
            // Carried values of the next iteration, from those of this one.
            let mut now = Names::new();
            self.computed(&address.next, &mut now);
            let mut names = Names::from([(region.params[0], next)]);
            let carried = address.carried.iter().filter_map(|n| Some((region.params[n + 1], *end.get(*n)?)));
            names.extend(carried.map(|(param, v)| (param, now.get(&v).copied().unwrap_or(v))));
            ahead.push(self.load(*load, address, names, there));
        }
        let mut params = region.params.clone();
        for inst in &region.insts {
            if loads.iter().any(|(load, _)| load == inst) {
                params.extend(&self.k.inst(*inst).results);
            } else {
                self.inst(*inst);
            }
        }
        let insts = self.open.pop().unwrap_or_default();
        if let Some(end) = insts.last() {
            self.new.inst_mut(*end).args.extend(&ahead);
        }
        let more: Vec<Value> = loads
            .iter()
            .map(|(load, _)| self.new.new_value(self.k.ty(self.k.inst(*load).results[0]).clone()))
            .collect();
        let made = self.new.inst_mut(i);
        made.args = args;
        made.results.extend(more);
        made.regions = vec![Region { params, insts }];
        self.keep(i);
    }
    /// Copies of instructions, on other values.
    fn computed(&mut self, insts: &[Inst], names: &mut Names) {
        for d in insts.iter().map(|i| self.k.inst(*i)) {
            let args = d.args.iter().map(|v| names.get(v).copied().unwrap_or(*v)).collect();
            let made = self.one(d.op.clone(), args, self.k.ty(d.results[0]).clone());
            names.insert(d.results[0], made);
        }
    }
    /// A load in another iteration, if there is that.
    fn load(&mut self, load: Inst, address: &Address, mut names: Names, there: Value) -> Value {
        self.computed(&address.now, &mut names);
        let d = self.k.inst(load);
        let mut args: Vec<Value> = d.args.iter().map(|v| names.get(v).copied().unwrap_or(*v)).collect();
        let shape = self.k.ty(d.results[0]).shape().to_vec();
        let mask = Type::block(Elem::Bool, shape.clone());
        let there = if shape.is_empty() { there } else { self.one(Op::Splat, vec![there], mask.clone()) };
        match args.get(1).copied() {
            Some(inside) => args[1] = self.one(Op::Binary(BinaryOp::And), vec![inside, there], mask),
            None => args.push(there),
        }
        self.one(d.op.clone(), args, self.k.ty(d.results[0]).clone())
    }
}
