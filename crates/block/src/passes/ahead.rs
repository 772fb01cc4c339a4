//! Instances that stay: each walks over what were instances of their own, with the loads of the next one under way while it
//! computes.
//!
//! Takes a straight program over one axis of the grid, gives one with a loop around it. What is read for each instance goes
//! to shared memory asynchronously, and from there into registers when its turn comes; what is the same for all is copied to
//! shared memory once, in front of the loop. No value changes.
use super::is_pure;
use super::warpgroup::Refusal;
use crate::analysis::{self, Analysis};
use crate::{BinaryOp as B, Builder, CmpOp, Const, Elem, Inst, Kernel, Op, Swizzle, Type, Value};
use std::collections::{HashMap, HashSet};

/// Bytes of one asynchronous copy.
const VECTOR: usize = 16;

/// Warps of a block that stays: with its tiles in shared memory it has a processor to itself, and all registers.
pub const WARPS: usize = 16;

/// Clusters of so many blocks that an H100 or H200 has at once, one block a processor: those of a cluster lie in one of its
/// parts, of which seven have 16 processors or more.
pub fn clusters(blocks: usize) -> usize {
    match blocks {
        16 => 7,
        n => 120 / n.max(1),
    }
}

/// Whether a program is one of instances that stay.
pub fn stays(k: &Kernel) -> bool {
    k.body.insts.iter().any(|i| k.inst(*i).op == Op::AsyncCommit)
}

/// The program with so many instances.
pub fn run(k: &Kernel, stay: usize) -> Result<Kernel, Refusal> {
    let count = k.grid[0];
    if k.grid[1..] != [1, 1] || k.cluster != 1 || stay == 0 || count < stay || count + stay >= 1 << 30 {
        return Err(Refusal(format!("{stay} instances that stay for a grid of {:?}", k.grid)));
    }
    if !k.body.insts.iter().all(|i| is_straight(&k.inst(*i).op)) {
        return Err(Refusal("loops, branches or ops of the lower level stand in the program".into()));
    }
    let facts = analysis::analyse(k);
    let copied: Vec<Inst> = k.body.insts.iter().copied().filter(|i| is_copied(k, &facts, *i)).collect();
    let moving = moving(k);
    let (ahead, once): (Vec<Inst>, Vec<Inst>) = copied.into_iter().partition(|i| moving.contains(&k.inst(*i).args[0]));
    if ahead.is_empty() {
        return Err(Refusal("nothing is read in whole vectors for each instance".into()));
    }
    let mut b = Builder::new(&k.name, [stay, 1, 1], k.warps);
    let mut w = Writer { k, names: HashMap::new() };
    for p in &k.params {
        let v = b.param_like(p, k.ty(p.value).clone());
        w.names.insert(p.value, v);
    }
    w.write(&mut b, [&ahead, &once], [count, stay]);
    Ok(b.finish())
}

fn is_straight(op: &Op) -> bool {
    is_pure(op) && !matches!(op, Op::ConvertLayout | Op::Dot { .. } | Op::Scan { .. })
        || matches!(op, Op::Load | Op::Store | Op::Prefetch { .. })
}

/// Values that differ between instances.
fn moving(k: &Kernel) -> HashSet<Value> {
    let mut moving = HashSet::new();
    k.walk(&mut |_, d| {
        if matches!(d.op, Op::ProgramId(0)) || d.args.iter().any(|a| moving.contains(a)) {
            moving.extend(&d.results);
        }
    });
    moving
}

/// A load of whole vectors, at least one a thread, from where indices alone say.
fn is_copied(k: &Kernel, facts: &Analysis, i: Inst) -> bool {
    let (Op::Load, [ptr]) = (&k.inst(i).op, &k.inst(i).args[..]) else { return false };
    let (ty, bytes) = (k.ty(*ptr), k.ty(*ptr).elem().map_or(1, Elem::bytes));
    let Some(last) = ty.shape().len().checked_sub(1) else { return false };
    let (run, align) = facts.alignment(*ptr, last);
    let root = facts.affine(*ptr).and_then(|f| f.root);
    let readonly = k.params.iter().any(|p| p.readonly && Some(p.value) == root);
    let vectors = run * bytes >= VECTOR && align >= VECTOR && ty.count() * bytes >= 32 * k.warps * VECTOR;
    vectors && readonly && slice(k, &[*ptr]).is_some()
}

/// What these values follow from, in the program's order, if all of it is pure.
fn slice(k: &Kernel, of: &[Value]) -> Option<Vec<Inst>> {
    let mut wanted: HashSet<Value> = of.iter().copied().collect();
    let mut found = vec![];
    for &i in k.body.insts.iter().rev() {
        let d = k.inst(i);
        if d.results.iter().any(|v| wanted.contains(v)) {
            if !is_pure(&d.op) {
                return None;
            }
            wanted.extend(&d.args);
            found.push(i);
        }
    }
    found.reverse();
    Some(found)
}

/// A load, and the tile it goes through.
type Staged = (Inst, Value);

struct Writer<'k> {
    k: &'k Kernel,
    /// Old values in the new program.
    names: HashMap<Value, Value>,
}

impl Writer<'_> {
    fn write(&mut self, b: &mut Builder, [ahead, once]: [&[Inst]; 2], [count, stay]: [usize; 2]) {
        let [ahead, once] = [ahead, once].map(|all| all.iter().map(|i| (*i, self.tile(b, *i))).collect::<Vec<_>>());
        let (stage, first) = (b.i32(0), b.program_id(0));
        let (last, step) = (b.i32(count as i64), b.i32(stay as i64));
        self.fetch(b, &once, [stage, first], None);
        self.fetch(b, &ahead, [stage, first], None);
        b.inst(Op::AsyncCommit, &[], &[], vec![]);
        b.for_loop([first, last, step], &[], |b, at, _| {
            b.inst(Op::AsyncWait { pending: 0 }, &[], &[], vec![]);
            ahead.iter().for_each(|s| self.read(b, *s, stage));
            let next = b.binary(B::Add, at, step);
            let there = b.cmp(CmpOp::Lt, next, last);
            self.fetch(b, &ahead, [stage, next], Some(there));
            b.inst(Op::AsyncCommit, &[], &[], vec![]);
            for &i in &self.k.body.insts {
                match once.iter().find(|s| s.0 == i) {
                    Some(s) => self.read(b, *s, stage),
                    None if ahead.iter().any(|s| s.0 == i) => {}
                    None => self.copy(b, i, at),
                }
            }
            vec![]
        });
    }
    fn tile(&self, b: &mut Builder, load: Inst) -> Value {
        let ty = self.k.ty(self.k.inst(load).results[0]);
        let (elem, shape) = (ty.elem().unwrap_or(Elem::F32), ty.shape().to_vec());
        let ty = Type::Shared { elem, shape, stages: 1, swizzle: Swizzle::None };
        b.inst(Op::AllocShared, &[], &[ty], vec![])[0]
    }
    fn read(&mut self, b: &mut Builder, (load, tile): Staged, stage: Value) {
        let old = self.k.inst(load).results[0];
        let v = b.inst(Op::SharedLoad, &[tile, stage], &[self.k.ty(old).clone()], vec![])[0];
        self.names.insert(old, v);
    }
    /// What instance `at` reads by these loads, on its way to shared memory; nothing if it is not `there`.
    fn fetch(&mut self, b: &mut Builder, loads: &[Staged], [stage, at]: [Value; 2], there: Option<Value>) {
        let k = self.k;
        let outside = self.names.clone();
        let pointers: Vec<Value> = loads.iter().map(|s| k.inst(s.0).args[0]).collect();
        for i in slice(k, &pointers).unwrap_or_default() {
            self.copy(b, i, at);
        }
        for (ptr, (_, tile)) in pointers.iter().zip(loads) {
            let mut args = vec![*tile, stage, self.names[ptr]];
            args.extend(there.map(|c| b.broadcast_to(c, k.ty(*ptr).shape())));
            b.inst(Op::AsyncCopy, &args, &[], vec![]);
        }
        self.names = outside;
    }
    /// An instruction of instance `at`. Nothing has to be asked for any more.
    fn copy(&mut self, b: &mut Builder, i: Inst, at: Value) {
        let d = self.k.inst(i);
        let op = match d.op {
            Op::Prefetch { .. } => return,
            Op::ProgramId(0) => {
                self.names.insert(d.results[0], at);
                return;
            }
            Op::NumPrograms(axis) => Op::Const(Const::Int(self.k.grid[axis as usize] as i64)),
            ref op => op.clone(),
        };
        let args: Vec<Value> = d.args.iter().map(|v| self.names[v]).collect();
        let types: Vec<Type> = d.results.iter().map(|v| self.k.ty(*v).clone()).collect();
        let made = b.inst(op, &args, &types, vec![]);
        self.names.extend(d.results.iter().copied().zip(made));
    }
}
