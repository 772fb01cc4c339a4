//! Loads of the next iteration before an iteration computes, in registers: of what is too small for shared memory, as
//! scales, or is no operand of a dot.
use super::addresses::Address;
use crate::analysis::{Readers, Writes};
use crate::builder::rewrite::{Names, renamed};
use crate::{BinaryOp, BlockProgram, Builder, CmpOp, Const, Elem, Inst, Op, Region, Value};

/// Bytes of a load, at most: threads hold parts of it several times, and now those of two iterations. More where each
/// element is for a row of a matmul, of which a thread has few, while it has many of the columns.
const MAX_BYTES: usize = 256;
const MAX_BYTES_OF_ROWS: usize = 1 << 10;

/// The same program with loads ahead in its innermost loops.
pub fn loads_ahead(k: &BlockProgram) -> BlockProgram {
    let p = Prefetch { k, writes: Writes::of(k), readers: Readers::of(k) };
    Builder::rewrite(k.clone(), |b, i| {
        let loads = if k.inst(i).op == Op::For { p.loads(i) } else { vec![] };
        match loads.is_empty() {
            true => b.keep(i),
            false => p.ahead(b, i, &loads),
        }
    })
}

struct Prefetch<'k> {
    k: &'k BlockProgram,
    writes: Writes,
    readers: Readers,
}

impl Prefetch<'_> {
    /// Loads of a loop that can be done an iteration ahead.
    fn loads(&self, i: Inst) -> Vec<(Inst, Address)> {
        let data = self.k.inst(i);
        let Some(region) = data.regions.first() else { return vec![] };
        let nested = region.insts.iter().any(|i| matches!(self.k.inst(*i).op, Op::For | Op::While));
        let all = region.insts.iter().filter(|_| !nested).filter_map(|load| {
            let d = self.k.inst(*load);
            let small = matches!(d.op, Op::Load(..)) && self.bytes(d.results[0]) <= self.max_bytes(d.results[0]);
            if !small || !self.writes.is_unwritten_in(self.k, region, d.args[0]) {
                return None;
            }
            // Without loads in what computes the address, none of these waits for memory.
            Some((*load, Address::of(self.k, i, &d.args, &|_| false)?))
        });
        all.collect()
    }
    /// Bytes of a loaded block, at most.
    fn max_bytes(&self, v: Value) -> usize {
        let readers = self.readers.reading(v);
        let rows = readers.iter().all(|i| self.k.inst(*i).op == Op::ExpandDims(1)) && !readers.is_empty();
        if rows { MAX_BYTES_OF_ROWS } else { MAX_BYTES }
    }
    fn bytes(&self, v: Value) -> usize {
        let ty = self.k.ty(v);
        ty.count() * ty.elem().map_or(1, Elem::bytes)
    }
    fn ahead(&self, b: &mut Builder, i: Inst, loads: &[(Inst, Address)]) {
        let data = self.k.inst(i);
        let [lo, hi, step] = [data.args[0], data.args[1], data.args[2]];
        let (region, index) = (&data.regions[0], self.k.ty(lo).clone());
        // A loop whose step is not positive does not run.
        let none = b.constant(index, Const::Int(0));
        let [there, runs] = [[lo, hi], [none, step]].map(|[small, large]| b.cmp(CmpOp::Lt, small, large));
        let first = b.binary(BinaryOp::And, there, runs);
        let begin: Names = region.params.iter().copied().zip([lo].into_iter().chain(data.args[3..].to_vec())).collect();
        let mut args = data.args.clone();
        for (load, address) in loads {
            args.push(self.load(b, *load, address, begin.clone(), first));
        }
        b.open_list();
        let left = b.binary(BinaryOp::Sub, hi, region.params[0]);
        let there = b.cmp(CmpOp::Lt, step, left);
        let next = b.binary(BinaryOp::Add, region.params[0], step);
        let end = region.insts.last().map_or(&[][..], |i| &self.k.inst(*i).args[..]);
        let mut ahead = vec![];
        for (load, address) in loads {
            // Carried values of the next iteration, from those of this one.
            let mut now = Names::new();
            b.copies(self.k, &address.next, &mut now);
            let mut names = Names::from([(region.params[0], next)]);
            let carried = address.carried.iter().filter_map(|n| Some((region.params[n + 1], *end.get(*n)?)));
            names.extend(carried.map(|(param, v)| (param, renamed(&now, v))));
            ahead.push(self.load(b, *load, address, names, there));
        }
        let mut params = region.params.clone();
        for inst in &region.insts {
            if loads.iter().any(|(load, _)| load == inst) {
                params.extend(&self.k.inst(*inst).results);
            } else {
                b.keep(*inst);
            }
        }
        let insts = b.close_list();
        if let Some(end) = insts.last() {
            b.program_mut().inst_mut(*end).args.extend(&ahead);
        }
        let loaded: Vec<Value> = loads.iter().map(|(load, _)| self.k.inst(*load).results[0]).collect();
        let results = [&data.results[..], &b.like(&loaded)].concat();
        b.define(&results, Op::For, &args, vec![Region { params, insts }]);
    }
    /// A load in another iteration, if there is that.
    fn load(&self, b: &mut Builder, load: Inst, address: &Address, mut names: Names, there: Value) -> Value {
        b.copies(self.k, &address.now, &mut names);
        let d = self.k.inst(load);
        let mut args: Vec<Value> = d.args.iter().map(|v| renamed(&names, *v)).collect();
        let there = b.splat(there, self.k.ty(d.results[0]).shape());
        match args.get(1).copied() {
            Some(inside) => args[1] = b.binary(BinaryOp::And, inside, there),
            None => args.push(there),
        }
        b.inst(d.op.clone(), &args, &[self.k.ty(d.results[0]).clone()], vec![])[0]
    }
}
