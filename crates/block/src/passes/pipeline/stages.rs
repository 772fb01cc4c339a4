//! Loops that copy ahead into the stages of shared tiles.
use super::plan::{CarriedSums, CopyTime, Pipeline};
use super::writer::{Flight, Writer};
use crate::builder::rewrite::{Names, renamed};
use crate::{BinaryOp, CmpOp, Const, Inst, InstData, Op, Region, Type, Value};

/// A loop and its plan.
struct Loop<'k> {
    data: &'k InstData,
    region: &'k Region,
    plan: &'k Pipeline,
    /// Stored tiles of two stages.
    alternating: Vec<Value>,
    /// Type of its index.
    index: Type,
}
impl Loop<'_> {
    fn hi(&self) -> Value {
        self.data.args[1]
    }
    fn step(&self) -> Value {
        self.data.args[2]
    }
    /// Stages of what is copied, for reads and for writes, and of what is stored.
    fn turns(&self) -> Vec<usize> {
        let mut turns = vec![self.plan.stages; 2];
        turns.extend((!self.alternating.is_empty()).then_some(2));
        turns
    }
}

/// The iteration that is copied: its index, the stage that it goes to, and the carried values of its addresses.
struct Ahead {
    index: Value,
    stage: Value,
    carried: Vec<Value>,
}

impl<'k> Writer<'k> {
    pub fn pipelined(&mut self, i: Inst, plan: &'k Pipeline) {
        let data = self.k.inst(i);
        let index = self.k.ty(data.args[0]).clone();
        let region = &data.regions[0];
        let results = region.insts.iter().flat_map(|i| &self.k.inst(*i).results).copied();
        let alternating = results.filter(|v| self.alternates(*v)).collect();
        let l = Loop { data, region, plan, alternating, index };
        if self.loops > 0 || !plan.readonly {
            // Other warps may still read what the first copies overwrite, or may have written what they read.
            self.effect(Op::Sync, &[]);
        }
        let ahead = self.first_copies(&l);
        let write = self.b.i32((plan.distance % plan.stages) as i64);
        // Carried besides the program's values: addresses of the next copies, the stages that are read and written, and
        // that of stored tiles.
        let mut more = [&ahead[..], &[self.zero, write]].concat();
        if !l.alternating.is_empty() {
            more.push(self.zero);
        }
        let mut args = data.args.clone();
        for sums in &plan.in_flight {
            let start = &mut args[3 + sums.number];
            *start = self.one(Op::WgmmaToken, &[*start], sums.token.clone());
        }
        args.extend(&more);
        self.loops += 1;
        let region = self.iteration(&l, &more);
        self.loops -= 1;
        let mut results = data.results.clone();
        for sums in &plan.in_flight {
            results[sums.number] = self.b.new_value(sums.token.clone());
        }
        results.extend(self.b.like(&more));
        self.b.define(&results, Op::For, &args, vec![region]);
        for CarriedSums { number, .. } in &plan.in_flight {
            self.b.define(&[data.results[*number]], Op::WgmmaWait { pending: 0 }, &[results[*number]], vec![]);
        }
    }
    /// Copies for the first iterations; gives the carried values of the next one's addresses.
    fn first_copies(&mut self, l: &Loop<'k>) -> Vec<Value> {
        let lo = l.data.args[0];
        let left = self.b.binary(BinaryOp::Sub, l.hi(), lo);
        let mut carried: Vec<Value> = l.plan.address.carried.iter().map(|n| l.data.args[3 + n]).collect();
        let mut index = lo;
        // A loop whose step is not positive does not run.
        let none = self.b.constant(l.index.clone(), Const::Int(0));
        let runs = self.b.cmp(CmpOp::Lt, none, l.step());
        for n in 0..l.plan.distance {
            let there = match n {
                0 => self.b.cmp(CmpOp::Lt, lo, l.hi()),
                _ => {
                    let far = self.iterations(l, n);
                    self.b.cmp(CmpOp::Lt, far, left)
                }
            };
            let there = self.b.binary(BinaryOp::And, there, runs);
            let stage = self.b.i32(n as i64);
            carried = self.copy(l, there, Ahead { index, stage, carried });
            index = self.b.binary(BinaryOp::Add, index, l.step());
        }
        carried
    }
    /// By how much the index grows in so many iterations.
    fn iterations(&mut self, l: &Loop<'k>, n: usize) -> Value {
        let n = self.b.constant(l.index.clone(), Const::Int(n as i64));
        self.b.binary(BinaryOp::Mul, n, l.step())
    }
    /// An iteration: waits for its copies, starts later ones, computes.
    fn iteration(&mut self, l: &Loop<'k>, more: &[Value]) -> Region {
        let added = self.b.like(more);
        let (carried, ring) = added.split_at(added.len() - l.turns().len());
        for load in &l.plan.loads {
            self.stages.insert(self.k.inst(*load).results[0], ring[0]);
        }
        for stored in &l.alternating {
            self.stages.insert(*stored, ring[2]);
        }
        let mut params = l.region.params.clone();
        for sums in &l.plan.in_flight {
            params[sums.number + 1] = self.b.new_value(sums.token.clone());
        }
        let tokens = l.plan.in_flight.iter().map(|sums| sums.number + 1);
        let tokens = tokens.map(|n| Flight { result: l.region.params[n], token: params[n] }).collect();
        params.extend(&added);
        self.region(
            l.region,
            params,
            |w| {
                w.flight = tokens;
                w.begin(l, carried, ring)
            },
            |w, mut args, next| {
                w.start_waiting_copies();
                let in_flight = l.plan.in_flight.iter().filter(|sums| w.keep_in_flight(&mut args[sums.number])).count();
                if in_flight > 0 {
                    // Those of the iteration before are done, whose stage is copied into next.
                    w.land_all();
                    w.effect(Op::WgmmaWait { pending: in_flight as u8 }, &[]);
                }
                args.extend(next);
                args
            },
        )
    }
    /// What an iteration does first; gives what it carries on.
    fn begin(&mut self, l: &Loop<'k>, carried: &[Value], ring: &[Value]) -> Vec<Value> {
        self.effect(Op::AsyncWait { pending: (l.plan.distance - 1) as u8 }, &[]);
        self.show();
        self.b.open_list();
        let far = self.iterations(l, l.plan.distance);
        let left = self.b.binary(BinaryOp::Sub, l.hi(), l.region.params[0]);
        let there = self.b.cmp(CmpOp::Lt, far, left);
        let index = self.b.binary(BinaryOp::Add, l.region.params[0], far);
        let mut next = self.copy(l, there, Ahead { index, stage: ring[1], carried: carried.to_vec() });
        self.waiting_copies = self.b.close_list();
        if l.plan.copies == CopyTime::Begin {
            self.start_waiting_copies();
        }
        next.extend(ring.iter().zip(l.turns()).map(|(stage, stages)| self.next_stage(*stage, stages)));
        next
    }
    /// Leaves a dot in flight at the end of an iteration, which then yields its token.
    fn keep_in_flight(&mut self, sums: &mut Value) -> bool {
        let at = self.flight.iter().position(|f| f.result == *sums);
        at.map(|at| *sums = self.flight.remove(at).token).is_some()
    }
    fn next_stage(&mut self, stage: Value, stages: usize) -> Value {
        let (one, all) = (self.b.i32(1), self.b.i32(stages as i64));
        let next = self.b.binary(BinaryOp::Add, stage, one);
        let turned = self.b.cmp(CmpOp::Eq, next, all);
        self.b.select(turned, self.zero, next)
    }
    /// Copies what an iteration reads, if it is `there`, as one group; gives the carried values of the next iteration.
    fn copy(&mut self, l: &Loop<'k>, there: Value, ahead: Ahead) -> Vec<Value> {
        let address = &l.plan.address;
        let mut names = Names::from([(l.region.params[0], ahead.index)]);
        names.extend(address.carried.iter().map(|n| l.region.params[n + 1]).zip(ahead.carried));
        let mut later = names.clone();
        self.b.open_region(&[]);
        self.b.copies(self.k, &address.now, &mut names);
        l.plan.loads.iter().for_each(|load| self.copy_load(*load, &names, ahead.stage));
        let then = self.b.close_region(&[]);
        self.b.open_region(&[]);
        let otherwise = self.b.close_region(&[]);
        self.b.inst(Op::If, &[there], &[], vec![then, otherwise]);
        self.effect(Op::AsyncCommit, &[]);
        self.b.copies(self.k, &address.next, &mut later);
        let end = l.region.insts.last().map(|i| &self.k.inst(*i).args);
        let next = |n: &usize| end.map_or(l.region.params[n + 1], |args| args[*n]);
        address.carried.iter().map(|n| renamed(&later, next(n))).collect()
    }
    fn copy_load(&mut self, load: Inst, names: &Names, stage: Value) {
        let d = self.k.inst(load);
        let source = d.results[0];
        let permuted = self.tile(source).permuted;
        let mut args = vec![self.tiles[&source], stage];
        // Pointers and mask; elements outside of it are zeros in any case.
        for v in d.args.iter().take(2) {
            let v = renamed(names, *v);
            args.push(if permuted { self.b.permute(v, &[1, 0]) } else { v });
        }
        self.effect(Op::AsyncCopy, &args);
    }
}
