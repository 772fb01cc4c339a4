//! Dead code elimination: removes what no store or other effect depends on; loops and branches lose results that are
//! not used.
use crate::{BlockProgram, Inst, InstData, Op, Region, Value};
use std::collections::{HashMap, HashSet};

pub fn run(k: &mut BlockProgram) {
    let mut d = Dce::default();
    d.collect(k, &k.body);
    let mut work: Vec<Inst> = d.effects.iter().copied().collect();
    let mut values = vec![];
    loop {
        if let Some(i) = work.pop() {
            if d.needed.insert(i) {
                values.extend(d.needs(k, i));
            }
        } else if let Some(v) = values.pop() {
            if d.live.insert(v) {
                d.follow(k, v, &mut work, &mut values);
            }
        } else {
            break;
        }
    }
    let mut body = std::mem::take(&mut k.body);
    d.sweep(k, &mut body);
    k.body = body;
}

/// Where a value comes from: result or carried value `n` of an instruction.
#[derive(Clone, Copy)]
struct Def {
    inst: Inst,
    n: usize,
    carried: bool,
}

#[derive(Default)]
struct Dce {
    defs: HashMap<Value, Def>,
    /// Instructions with effects, and what ends an iteration of a `while`.
    effects: HashSet<Inst>,
    needed: HashSet<Inst>,
    live: HashSet<Value>,
}

/// Whether an op has no effect beyond its results; its regions are examined separately.
fn is_silent(op: &Op) -> bool {
    op.is_pure()
        || matches!(
            op,
            Op::Load(..)
                | Op::TileLoad
                | Op::SharedLoad
                | Op::AllocShared
                | Op::AllocBarriers
                | Op::For
                | Op::If
                | Op::Gather { .. }
                | Op::ReduceBy { .. }
                | Op::ScanBy { .. }
                | Op::Yield
        )
}

fn yielded(k: &BlockProgram, r: &Region, n: usize) -> Option<Value> {
    r.insts.last().and_then(|y| k.inst(*y).args.get(n)).copied()
}

impl Dce {
    /// Records definitions and instructions with effects; true if the region has any of the latter.
    fn collect(&mut self, k: &BlockProgram, r: &Region) -> bool {
        let mut any = false;
        for &inst in &r.insts {
            let data = k.inst(inst);
            for (n, v) in data.results.iter().enumerate() {
                self.defs.insert(*v, Def { inst, n, carried: false });
            }
            let mut effect = !is_silent(&data.op);
            if data.op == Op::While {
                // Another iteration may depend on all that one yields; the loop may not end.
                effect = true;
                self.effects.extend(data.regions.iter().filter_map(|r| r.insts.last()));
            }
            for inner in &data.regions {
                for (n, v) in inner.params.iter().enumerate().skip(1) {
                    self.defs.insert(*v, Def { inst, n: n - 1, carried: true });
                }
                effect |= self.collect(k, inner);
            }
            if effect {
                self.effects.insert(inst);
            }
            any |= effect;
        }
        any
    }
    /// Operands that an instruction needs whichever of its results are used.
    fn needs(&self, k: &BlockProgram, i: Inst) -> Vec<Value> {
        let data = k.inst(i);
        match data.op {
            Op::For => data.args[..3].to_vec(),
            Op::Yield if !self.effects.contains(&i) => vec![],
            _ => data.args.clone(),
        }
    }
    /// Marks what a live value needs.
    fn follow(&self, k: &BlockProgram, v: Value, work: &mut Vec<Inst>, values: &mut Vec<Value>) {
        let Some(def) = self.defs.get(&v) else { return };
        let data = k.inst(def.inst);
        work.push(def.inst);
        match data.op {
            Op::For => {
                values.push(data.args[3 + def.n]);
                values.extend(yielded(k, &data.regions[0], def.n));
            }
            Op::ReduceBy { .. } | Op::ScanBy { .. } => {
                let ends = data.regions.iter().filter_map(|r| r.insts.last());
                values.extend(ends.flat_map(|i| k.inst(*i).args.iter().copied()));
            }
            Op::If if !def.carried => values.extend(data.regions.iter().filter_map(|r| yielded(k, r, def.n))),
            _ => {}
        }
    }
    fn sweep(&self, k: &mut BlockProgram, r: &mut Region) {
        r.insts.retain(|i| self.needed.contains(i) || k.inst(*i).op == Op::Yield);
        for &i in &r.insts {
            let mut data = k.inst(i).clone();
            match data.op {
                Op::For | Op::If => self.narrow(k, &mut data),
                Op::Atomic { .. } => data.results.retain(|v| self.live.contains(v)),
                _ => {}
            }
            for inner in &mut data.regions {
                self.sweep(k, inner);
            }
            *k.inst_mut(i) = data;
        }
    }
    /// Drops unused carried values and results.
    fn narrow(&self, k: &mut BlockProgram, data: &mut InstData) {
        let is_for = data.op == Op::For;
        let keep: Vec<bool> = (0..data.results.len())
            .map(|n| {
                let carried = data.regions[0].params.get(n + 1).filter(|_| is_for);
                self.live.contains(&data.results[n]) || carried.is_some_and(|v| self.live.contains(v))
            })
            .collect();
        let filter = |list: &mut Vec<Value>, from: usize| {
            let mut n = 0;
            list.retain(|_| {
                n += 1;
                n <= from || keep.get(n - 1 - from).copied().unwrap_or(true)
            });
        };
        filter(&mut data.results, 0);
        if is_for {
            filter(&mut data.args, 3);
            filter(&mut data.regions[0].params, 1);
        }
        for r in &data.regions {
            if let Some(y) = r.insts.last() {
                filter(&mut k.inst_mut(*y).args, 0);
            }
        }
    }
}
