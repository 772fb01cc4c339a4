//! Instances that stay: each walks over what were instances of their own, with the loads of the next one in flight while it
//! computes.
//!
//! Takes a straight program over one axis of the grid, gives one with a loop around it. What is read for each instance goes
//! to shared memory asynchronously, and from there into registers when its turn comes; what is the same for all that one
//! walks over is copied to shared memory once, in front of the loop. No value changes.
use super::is_pure;
use super::warpgroup::Refusal;
use crate::analysis::{self, Analysis};
use crate::{BinaryOp as B, Builder, CmpOp, Const, Elem, Inst, Kernel, Op, Swizzle, Type, Value};
use std::collections::{HashMap, HashSet};

/// Bytes of one asynchronous copy.
const VECTOR: usize = 16;

/// Warps of a block that stays: with its tiles in shared memory it has a processor to itself, and all registers.
pub const WARPS: usize = 16;

/// Whether a program is one of instances that stay.
pub fn is_persistent(k: &Kernel) -> bool {
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
    let growth = growth(k, &facts, stay);
    let moves = |i: &Inst| k.inst(*i).args.iter().any(|v| growth.get(v) != Some(&0));
    let copied: Vec<Inst> = k.body.insts.iter().copied().filter(|i| is_copied(k, &facts, *i, moves(i))).collect();
    let (ahead, once): (Vec<Inst>, Vec<Inst>) = copied.into_iter().partition(moves);
    if ahead.is_empty() {
        return Err(Refusal("nothing is read in whole vectors for each instance".into()));
    }
    let mut b = Builder::new(&k.name, [stay, 1, 1], k.warps);
    b.set_arithmetic(k.arithmetic);
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
        || matches!(op, Op::Load | Op::Store | Op::Check { .. } | Op::Prefetch { .. })
}

/// By how much values grow from one instance to the next that the same one walks over, `stay` further on; for those that do
/// not grow evenly nothing. Where rows of an odd length start between two vectors comes again after some rows.
fn growth(k: &Kernel, facts: &Analysis, stay: usize) -> HashMap<Value, i64> {
    let mut known: HashMap<Value, i64> = k.params.iter().map(|p| (p.value, 0)).collect();
    k.walk(&mut |_, d| {
        let of = |n: usize| d.args.get(n).and_then(|v| known.get(v)).copied();
        let constant = |n: usize| d.args.get(n).and_then(|v| facts.affine(*v)?.as_constant());
        let by = match d.op {
            Op::ProgramId(0) => Some(stay as i64),
            _ if d.args.iter().all(|v| known.get(v) == Some(&0)) => Some(0),
            Op::Binary(B::Add) | Op::PtrAdd => of(0).zip(of(1)).map(|(a, b)| a + b),
            Op::Binary(B::Sub) => of(0).zip(of(1)).map(|(a, b)| a - b),
            Op::Binary(B::Mul) => of(0).zip(constant(1)).or(of(1).zip(constant(0))).and_then(|(a, b)| a.checked_mul(b)),
            Op::Binary(op @ (B::Div | B::Rem)) => {
                let least = d.args.first().and_then(|v| facts.range(facts.affine(*v)?, k.ty(*v).shape()));
                let whole = of(0).zip(constant(1)).filter(|(a, b)| *b > 0 && a % b == 0);
                let whole = whole.filter(|_| least.is_some_and(|r| r.0 >= 0));
                whole.map(|(a, b)| if op == B::Div { a / b } else { 0 })
            }
            Op::Splat | Op::Broadcast | Op::ExpandDims(_) => of(0),
            Op::Cast(to) if to.is_int() => of(0),
            _ => None,
        };
        known.extend(d.results.iter().filter_map(|v| Some((*v, by?))));
    });
    known
}

/// A load of at least one vector a thread, from where indices alone say. What `moves` is copied as it lies.
fn is_copied(k: &Kernel, facts: &Analysis, i: Inst, moves: bool) -> bool {
    let (Op::Load, args @ ([ptr] | [ptr, _])) = (&k.inst(i).op, &k.inst(i).args[..]) else { return false };
    let (ty, bytes) = (k.ty(*ptr), k.ty(*ptr).elem().map_or(1, Elem::bytes));
    let Some(last) = ty.shape().len().checked_sub(1) else { return false };
    let (run, align) = facts.alignment(*ptr, last);
    let root = facts.affine(*ptr).and_then(|f| f.root);
    let readonly = k.params.iter().any(|p| p.readonly && Some(p.value) == root);
    let lies = run * bytes >= VECTOR && (align >= VECTOR || !moves);
    lies && ty.count() * bytes >= 32 * k.warps * VECTOR && readonly && slice(k, args).is_some()
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

/// Whether nobody looks at what a load gives outside of its mask, and at what follows from that.
fn is_hidden(k: &Kernel, load: Inst) -> bool {
    let (value, mask) = (k.inst(load).results[0], k.inst(load).args.get(1));
    let mut outside = HashSet::from([value]);
    k.body.insts.iter().map(|i| k.inst(*i)).all(|d| {
        let takes = |n: usize| d.args.get(n).is_some_and(|v| outside.contains(v));
        let inside = |n: usize| mask.is_some() && d.args.get(n) == mask;
        match d.op {
            _ if !d.args.iter().any(|v| outside.contains(v)) => true,
            Op::Store => inside(2) && !takes(0),
            Op::Select if inside(0) && !takes(2) => true,
            Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) | Op::Cast(_) | Op::Select => {
                outside.extend(&d.results);
                true
            }
            _ => false,
        }
    })
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
            let read: Vec<Value> = ahead.iter().map(|s| self.read(b, *s, stage)).collect();
            let next = b.binary(B::Add, at, step);
            let there = b.cmp(CmpOp::Lt, next, last);
            self.fetch(b, &ahead, [stage, next], Some(there));
            b.inst(Op::AsyncCommit, &[], &[], vec![]);
            for &i in &self.k.body.insts {
                let read = ahead.iter().position(|s| s.0 == i).map(|n| read[n]);
                let read = read.or_else(|| once.iter().find(|s| s.0 == i).map(|s| self.read(b, *s, stage)));
                match read {
                    Some(v) => self.name(b, i, v),
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
    fn read(&self, b: &mut Builder, (load, tile): Staged, stage: Value) -> Value {
        let ty = self.k.ty(self.k.inst(load).results[0]).clone();
        b.inst(Op::SharedLoad, &[tile, stage], &[ty], vec![])[0]
    }
    /// What a load gives, from what was copied for it: a copy leaves anything outside of its mask.
    fn name(&mut self, b: &mut Builder, load: Inst, mut read: Value) {
        let d = self.k.inst(load);
        if let Some(mask) = d.args.get(1).filter(|_| !is_hidden(self.k, load)) {
            let ty = b.ty(read).clone();
            let zero = if ty.elem().is_some_and(Elem::is_float) { Const::Float(0.0) } else { Const::Int(0) };
            let zero = b.constant(ty, zero);
            read = b.select(self.names[mask], read, zero);
        }
        self.names.insert(d.results[0], read);
    }
    /// Pointers and masks of these loads in instance `at`.
    fn places(&mut self, b: &mut Builder, loads: &[Staged], at: Value) -> Vec<Vec<Value>> {
        let k = self.k;
        let outside = self.names.clone();
        let args: Vec<Value> = loads.iter().flat_map(|s| k.inst(s.0).args.clone()).collect();
        for i in slice(k, &args).unwrap_or_default() {
            self.copy(b, i, at);
        }
        let places = loads.iter().map(|s| k.inst(s.0).args.iter().map(|v| self.names[v]).collect()).collect();
        self.names = outside;
        places
    }
    /// What instance `at` reads by these loads, on its way to shared memory; nothing if it is not `there`.
    fn fetch(&mut self, b: &mut Builder, loads: &[Staged], [stage, at]: [Value; 2], there: Option<Value>) {
        for (place, (_, tile)) in self.places(b, loads, at).into_iter().zip(loads) {
            let there = there.map(|c| b.broadcast_to(c, &b.shape(place[0])));
            let mask = match (place.get(1), there) {
                (Some(inside), Some(there)) => Some(b.binary(B::And, *inside, there)),
                (inside, there) => inside.copied().or(there),
            };
            let args: Vec<Value> = [*tile, stage, place[0]].into_iter().chain(mask).collect();
            b.inst(Op::AsyncCopy, &args, &[], vec![]);
        }
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
