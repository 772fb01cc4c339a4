//! Rebuilds the program with every use in the layout it needs.
use super::anchors::{access, default_layout, left_operand, roles, takes_any_layout, tensor_matmul, tile, warp_bits};
use super::groups::{Groups, Kind, shares};
use super::spread::staged;
use crate::analysis::Analysis;
use crate::layout::{Flat, axis_bits};
use crate::{BlockProgram, Inst, InstData, Op, Region, Type, Value};
use std::collections::HashMap;

pub(super) fn rebuild(k: &BlockProgram, facts: &Analysis, groups: &Groups, natural: Vec<Option<Flat>>) -> BlockProgram {
    let mut defs = vec![None; k.values.len()];
    k.walk(&mut |i, data| data.results.iter().for_each(|r| defs[r.0 as usize] = Some(i)));
    let mut r = Rebuild {
        old: k,
        new: k.clone(),
        facts,
        groups,
        natural,
        defs,
        depth: vec![0; k.values.len()],
        out: vec![],
        made: vec![],
    };
    let warps = warp_bits(k);
    for v in 0..k.values.len() as u32 {
        if matches!(k.ty(Value(v)), Type::Shared { .. } | Type::Desc { .. } | Type::Barrier { .. }) {
            continue;
        }
        if k.ty(Value(v)).is_scalar() {
            r.natural[v as usize] = Some(Flat::scalar(warps));
        }
        if groups.is_heavy(Value(v)) || k.ty(Value(v)).is_scalar() {
            let flat = r.home(Value(v));
            r.place(Value(v), &flat);
        }
    }
    r.new.body = r.region(&k.body);
    r.new
}

struct Rebuild<'k> {
    old: &'k BlockProgram,
    new: BlockProgram,
    facts: &'k Analysis,
    groups: &'k Groups,
    natural: Vec<Option<Flat>>,
    defs: Vec<Option<Inst>>,
    /// Region depth at which each value is defined.
    depth: Vec<usize>,
    /// Instructions of the open regions, outermost first.
    out: Vec<Vec<Inst>>,
    /// Values made for uses, by open region: (value, layout) to the value in that layout.
    made: Vec<HashMap<(Value, Flat), Value>>,
}

impl Rebuild<'_> {
    fn home(&self, v: Value) -> Flat {
        let shape = self.old.ty(v).shape();
        self.natural[v.0 as usize].clone().unwrap_or_else(|| default_layout(self.old, shape))
    }
    fn place(&mut self, v: Value, flat: &Flat) {
        let layout = flat.layout(self.new.ty(v).shape());
        self.new.values[v.0 as usize].layout = Some(layout);
    }
    fn region(&mut self, region: &Region) -> Region {
        self.out.push(vec![]);
        self.made.push(HashMap::new());
        let depth = self.out.len() - 1;
        region.params.iter().for_each(|p| self.depth[p.0 as usize] = depth);
        for &i in &region.insts {
            self.inst(i);
        }
        self.made.pop();
        Region { params: region.params.clone(), insts: self.out.pop().unwrap_or_default() }
    }
    fn inst(&mut self, i: Inst) {
        let old = self.old;
        let data = old.inst(i);
        // Rematerialised at its uses.
        let lazy = |v: &Value| !old.ty(*v).is_scalar() && !self.groups.is_heavy(*v);
        if !data.results.is_empty() && data.results.iter().all(lazy) {
            return;
        }
        let depth = self.out.len() - 1;
        data.results.iter().for_each(|r| self.depth[r.0 as usize] = depth);
        match &data.op {
            Op::Load(..) | Op::Await => self.load(i, data),
            Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. } | Op::Publish => self.store(i, data),
            Op::Check { .. } => {
                // In the index's layout: a check is not worth a conversion.
                let flat = self.home(data.args[2]);
                let args = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
                self.keep(i, args, vec![]);
            }
            Op::Reduce { axis, .. } => self.reduce(i, data, *axis as usize),
            Op::Assert(_) | Op::Print(_) if !data.args.is_empty() => {
                let flat = self.home(data.args[0]);
                let args = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
                self.keep(i, args, vec![]);
            }
            Op::Part { axis, .. } => {
                let (from, to) = (old.ty(data.args[0]).shape(), old.ty(data.results[0]).shape());
                let (arg, flat) = self.as_it_lies(data.args[0]);
                self.keep_in(i, data.results[0], &flat.part(from, to, *axis as usize), vec![arg]);
            }
            Op::Join | Op::Split(_) => self.pairs(i, data),
            Op::Wgmma { .. } | Op::SharedDot { .. } => {
                let flat = self.home(data.results[0]);
                let mut args = data.args.clone();
                if let Some(left) = data.left_in_registers() {
                    args[0] = self.demand(left, &left_operand(old, left));
                }
                if let Some(at) = data.accumulator().and_then(|v| args.iter().rposition(|a| *a == v)) {
                    args[at] = self.demand(args[at], &flat);
                }
                self.keep(i, args, vec![]);
            }
            Op::WgmmaToken => {
                let flat = self.home(data.results[0]);
                let sums = self.demand(data.args[0], &flat);
                self.keep(i, vec![sums], vec![]);
            }
            Op::ReduceBy { .. } | Op::ScanBy { .. } => self.combine_by(i, data),
            Op::Gather { .. } => {
                // Each thread has the positions of its elements.
                let flat = self.home(data.results[0]);
                let args = vec![self.as_it_lies(data.args[0]).0, self.demand(data.args[1], &flat)];
                self.keep(i, args, vec![]);
            }
            Op::AsyncCopy => self.async_copy(i, data),
            Op::Dot { .. } => self.dot(i, data),
            Op::For => self.carry(i, data, 3),
            Op::While if !data.results.is_empty() => self.carry(i, data, 0),
            Op::If => {
                let regions = data.regions.iter().map(|r| self.branch(data, r)).collect();
                self.keep(i, data.args.clone(), regions);
            }
            Op::Yield => self.keep(i, data.args.clone(), vec![]),
            op if shares(op) => {
                let flat = self.home(data.results[0]);
                let args = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
                self.keep(i, args, vec![]);
            }
            // Scalars from blocks of one element, and ops of the lower level.
            Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_) => {
                let flat = Flat::scalar(warp_bits(old));
                let args = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
                self.keep(i, args, vec![]);
            }
            _ => {
                let args = data.args.iter().map(|a| self.as_it_lies(*a).0).collect();
                let regions = data.regions.iter().map(|r| self.region(r)).collect();
                self.keep(i, args, regions);
            }
        }
    }
    /// Appends the instruction with these operands to the open region.
    fn keep(&mut self, i: Inst, args: Vec<Value>, regions: Vec<Region>) {
        let data = self.new.inst_mut(i);
        data.args = args;
        data.regions = regions;
        self.push(i);
    }
    fn push(&mut self, i: Inst) {
        if let Some(out) = self.out.last_mut() {
            out.push(i);
        }
    }
    /// Appends the instruction with a result in `flat`, converted to the result's home layout if that is another.
    fn keep_in(&mut self, i: Inst, result: Value, flat: &Flat, args: Vec<Value>) {
        self.results_in(i, &[result], flat);
        self.keep(i, args, vec![]);
        self.converted_home(i, &[result]);
    }
    /// Gives the instruction new results in `flat` for those whose home is another.
    fn results_in(&mut self, i: Inst, results: &[Value], flat: &Flat) {
        for (n, v) in results.iter().enumerate().filter(|(_, v)| self.home(**v) != *flat).collect::<Vec<_>>() {
            let at = self.value_like(self.old.ty(*v).clone(), flat, self.out.len() - 1);
            self.new.inst_mut(i).results[n] = at;
        }
    }
    /// Converts an instruction's new results to the homes of those that they stand for.
    fn converted_home(&mut self, i: Inst, results: &[Value]) {
        let made = self.new.inst(i).results.clone();
        for (at, v) in made.into_iter().zip(results).filter(|(at, v)| at != *v) {
            let convert = InstData { op: Op::ConvertLayout, args: vec![at], results: vec![*v], regions: vec![] };
            let convert = self.new.new_inst(convert);
            self.push(convert);
        }
    }
    fn value_like(&mut self, ty: crate::Type, flat: &Flat, depth: usize) -> Value {
        let v = self.new.new_value(ty);
        self.depth.push(depth);
        self.place(v, flat);
        v
    }
    /// The value in its home layout, which needs no conversion.
    fn as_it_lies(&mut self, v: Value) -> (Value, Flat) {
        let flat = self.home(v);
        (self.demand(v, &flat), flat)
    }
    /// The value in this layout. Instructions made for it go to the outermost region in which their operands are
    /// available.
    fn demand(&mut self, v: Value, flat: &Flat) -> Value {
        let old = self.old;
        if old.ty(v).is_scalar() || self.groups.is_heavy(v) && self.home(v) == *flat {
            return v;
        }
        let key = (v, flat.clone());
        if let Some(made) = self.made.iter().rev().find_map(|m| m.get(&key)) {
            return *made;
        }
        let (op, args) = match (self.groups.kind(v), self.defs[v.0 as usize]) {
            (Kind::Pure | Kind::View, Some(i)) => {
                let data = old.inst(i);
                let args = data.args.iter().map(|a| {
                    let wish = operand_layout(old, data, *a, flat);
                    self.demand(*a, &wish)
                });
                (data.op.clone(), args.collect())
            }
            (Kind::Shared, Some(i)) => (Op::SharedLoad, old.inst(i).args.clone()),
            _ => (Op::ConvertLayout, vec![v]),
        };
        let depth = args.iter().map(|a| self.depth[a.0 as usize]).max().unwrap_or(0).min(self.out.len() - 1);
        let made = self.value_like(old.ty(v).clone(), flat, depth);
        let inst = self.new.new_inst(InstData { op, args, results: vec![made], regions: vec![] });
        self.out[depth].push(inst);
        self.made[depth].insert(key, made);
        made
    }
    fn load(&mut self, i: Inst, data: &InstData) {
        let (ptr, result) = (data.args[0], data.results[0]);
        let flat = self.access_layout(ptr, self.home(result), true);
        let args = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
        self.keep_in(i, result, &flat, args);
    }
    fn store(&mut self, i: Inst, data: &InstData) {
        let flat = match self.natural[data.args[1].0 as usize].clone() {
            Some(natural) if self.scatters(data.args[0], &natural) => self.preferred(data.args[0]),
            Some(natural) => self.access_layout(data.args[0], natural, false),
            // Of a constant or position: where addresses are computed from what is in registers, as that lies.
            None => match self.natural[data.args[0].0 as usize].clone() {
                Some(natural) => self.access_layout(data.args[0], natural, false),
                None => self.preferred(data.args[0]),
            },
        };
        // The value first: its conversion precedes the addresses, which shortens their live ranges.
        let value = self.demand(data.args[1], &flat);
        let mut args: Vec<Value> = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
        args[1] = value;
        match data.results[..] {
            [before] => self.keep_in(i, before, &flat, args),
            _ => self.keep(i, args, vec![]),
        }
    }
    /// `flat` if it suits the access, else the access's own. Programs with roles have no scratch memory for
    /// conversions.
    fn access_layout(&self, ptr: Value, flat: Flat, load: bool) -> Flat {
        if roles(self.old).is_some() {
            return flat;
        }
        let access = access(self.old, self.facts, ptr);
        if access.suits(&flat, self.old.ty(ptr).shape(), load) { flat } else { self.preferred(ptr) }
    }
    /// Whether what is stored is converted first. Blocks that share an instance exchange no elements.
    fn scatters(&self, ptr: Value, flat: &Flat) -> bool {
        access(self.old, self.facts, ptr).scatters(flat, self.old.ty(ptr).shape())
            && (self.old.blocks == 1 || self.preferred(ptr).warps == flat.warps)
    }
    fn preferred(&self, ptr: Value) -> Flat {
        access(self.old, self.facts, ptr).preferred(&tile(self.old, self.old.ty(ptr).shape()))
    }
    fn reduce(&mut self, i: Inst, data: &InstData, axis: usize) {
        let (arg, flat) = self.as_it_lies(data.args[0]);
        let slice = flat.without(&axis_bits(self.old.ty(data.args[0]).shape(), axis));
        // A scalar is the same in every layout.
        self.keep_in(i, data.results[0], &slice, vec![arg]);
    }
    /// Operands and a scan's results share one layout, which constants among them do not have; a reduction's results
    /// are its slice.
    fn combine_by(&mut self, i: Inst, data: &InstData) {
        let mut joined = data.results.iter().filter(|_| matches!(data.op, Op::ScanBy { .. })).chain(&data.args);
        let flat = self.home(joined.find(|v| self.groups.is_heavy(**v)).copied().unwrap_or(data.args[0]));
        let args = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
        let regions = data.regions.iter().map(|r| self.region(r)).collect();
        if let Op::ReduceBy { axis } = data.op {
            let bits = axis_bits(self.old.ty(data.args[0]).shape(), axis as usize);
            self.results_in(i, &data.results, &flat.without(&bits));
        }
        self.keep(i, args, regions);
        self.converted_home(i, &data.results);
    }
    /// A join or split: each thread has whole pairs, so that nothing is exchanged.
    fn pairs(&mut self, i: Inst, data: &InstData) {
        let (arg, result) = (data.args[0], data.results[0]);
        if data.op == Op::Join {
            let flat = self.home(data.args.iter().find(|v| self.groups.is_heavy(**v)).copied().unwrap_or(arg));
            let args = data.args.iter().map(|a| self.demand(*a, &flat)).collect();
            return self.keep_in(i, result, &flat.joined(), args);
        }
        let lies = self.home(arg);
        let pairs = if lies.halves().is_some() { lies } else { self.home(result).joined() };
        let arg = self.demand(arg, &pairs);
        self.keep_in(i, result, &pairs.without(&(0..1)), vec![arg]);
    }
    /// Copies from pointers in the layout in which the tile is read.
    fn async_copy(&mut self, i: Inst, data: &InstData) {
        let ptr = data.args[2];
        let flat = match staged(self.old).get(&data.args[0]) {
            Some(read) => self.home(*read),
            // Positions that are computed anew are so in any layout.
            None => match self.natural[ptr.0 as usize].clone() {
                Some(natural) if self.groups.kind(ptr) != Kind::Pure => self.access_layout(ptr, natural, true),
                _ if self.groups.is_heavy(ptr) => self.access_layout(ptr, self.home(ptr), true),
                _ => self.preferred(ptr),
            },
        };
        let mut args = data.args.clone();
        args[2..].iter_mut().for_each(|v| *v = self.demand(*v, &flat));
        self.keep(i, args, vec![]);
    }
    fn dot(&mut self, i: Inst, data: &InstData) {
        let [a, b, acc] = data.args[..] else { return };
        let home = self.home(data.results[0]);
        let matmul = tensor_matmul(self.old, data);
        let flat = matmul.map_or_else(|| home.clone(), |(t, _)| t.accumulator());
        let acc = self.demand(acc, &flat);
        let (a, b) = match matmul {
            Some((t, wide)) if !takes_any_layout(data) => {
                (self.demand(a, &t.left(wide)), self.demand(b, &t.right(wide)))
            }
            _ => (self.as_it_lies(a).0, self.as_it_lies(b).0),
        };
        self.keep_in(i, data.results[0], &flat, vec![a, b, acc]);
    }
    /// A loop whose initial values follow `bounds` other operands.
    fn carry(&mut self, i: Inst, data: &InstData, bounds: usize) {
        let mut args: Vec<Value> = data.args.iter().take(bounds).copied().collect();
        for (init, result) in data.args.iter().skip(bounds).zip(&data.results) {
            let flat = self.home(*result);
            args.push(self.demand(*init, &flat));
        }
        let regions = data.regions.iter().map(|r| self.branch(data, r)).collect();
        self.keep(i, args, regions);
    }
    /// A region that yields the results of `data`, each in its home layout.
    fn branch(&mut self, data: &InstData, region: &Region) -> Region {
        let (last, rest) = match region.insts.split_last() {
            Some((last, rest)) if self.old.inst(*last).op == Op::Yield => (*last, rest),
            _ => return self.region(region),
        };
        self.out.push(vec![]);
        self.made.push(HashMap::new());
        let depth = self.out.len() - 1;
        region.params.iter().for_each(|p| self.depth[p.0 as usize] = depth);
        rest.iter().for_each(|i| self.inst(*i));
        let homes: Vec<Flat> = data.results.iter().map(|r| self.home(*r)).collect();
        let values = self.old.inst(last).args.clone();
        // That of a `while` begins with its condition.
        let (before, carried) = values.split_at(values.len() - homes.len());
        let carried = carried.iter().zip(&homes).map(|(v, flat)| self.demand(*v, flat));
        let args = before.iter().copied().chain(carried.collect::<Vec<_>>()).collect();
        self.keep(last, args, vec![]);
        self.made.pop();
        Region { params: region.params.clone(), insts: self.out.pop().unwrap_or_default() }
    }
}

/// The layout in which an operand of a pure op or view is needed for the result to have `flat`.
fn operand_layout(k: &BlockProgram, data: &InstData, arg: Value, flat: &Flat) -> Flat {
    let from = k.ty(arg).shape();
    match &data.op {
        Op::Broadcast => flat.unbroadcast(from, k.ty(data.results[0]).shape()),
        Op::Permute(perm) => flat.unpermuted(from, perm),
        _ => flat.clone(),
    }
}
