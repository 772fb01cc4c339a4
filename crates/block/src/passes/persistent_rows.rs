//! Persistent kernels over rows: a pass that puts a grid-stride loop around a program and prefetches the next
//! iteration's loads to shared memory while the current iteration computes.
//!
//! Takes a straight-line program over one axis of the grid; gives one with fewer instances and a loop around it. Loads
//! that change per iteration go to shared memory asynchronously and are read into registers when their iteration
//! begins; loads that are the same in all iterations of an instance are copied to shared memory once, in front of the
//! loop. Each thread copies exactly what it will read itself, so it waits for its own copies only. No value changes.
//!
//! On `sm_90` an instance may be a cluster of blocks. Lowering uses the pass where a schedule says `persist`.
use super::warpgroup::Refusal;
use crate::analysis::{self, Analysis};
use crate::builder::rewrite::Names;
use crate::{BinaryOp as B, BlockProgram, Builder, CmpOp, Const, Elem, Inst, Op, Swizzle, Type, Value};
use kiln_machine::isa::VECTOR;
use std::collections::{HashMap, HashSet};

/// Warps of a persistent block: with its tiles in shared memory it has a multiprocessor, and all registers, to itself.
pub const WARPS: usize = 16;

/// Whether a program is the result of this pass.
pub fn is_persistent(k: &BlockProgram) -> bool {
    k.body.insts.iter().any(|i| k.inst(*i).op == Op::AsyncCommit)
}

/// The program with that many persistent instances.
pub fn run(k: &BlockProgram, instances: usize) -> Result<BlockProgram, Refusal> {
    let refused = || Refusal(format!("{instances} persistent instances do not fit a grid of {}", k.grid));
    let Some([count, 1, 1]) = k.grid.constant() else { return Err(refused()) };
    if k.cluster != 1 || instances == 0 || count < instances || count + instances >= 1 << 30 {
        return Err(refused());
    }
    if !k.body.insts.iter().all(|i| is_straight(&k.inst(*i).op)) {
        return Err(Refusal("the program has loops, branches or ops of the lower level".into()));
    }
    let facts = analysis::analyse(k);
    let growth = growth(k, &facts, instances);
    let moves = |i: &Inst| k.inst(*i).args.iter().any(|v| growth.get(v) != Some(&0));
    let copied: Vec<Inst> = k.body.insts.iter().copied().filter(|i| is_copied(k, &facts, *i, moves(i))).collect();
    let (changing, once): (Vec<Inst>, Vec<Inst>) = copied.into_iter().partition(moves);
    if changing.is_empty() {
        return Err(Refusal("no load that changes per iteration reads whole aligned vectors".into()));
    }
    let mut b = Builder::new(&k.name, [instances, 1, 1], k.warps);
    b.set_arithmetic(k.arithmetic);
    b.set_blocks(k.blocks);
    b.set_registers(k.registers);
    let mut w = Writer { k, names: Names::new() };
    for p in &k.params {
        let v = b.param_like(p, k.ty(p.value).clone());
        w.names.insert(p.value, v);
    }
    w.write(&mut b, [&changing, &once], [count, instances]);
    Ok(b.finish())
}

fn is_straight(op: &Op) -> bool {
    op.is_pure() && !matches!(op, Op::ConvertLayout | Op::Dot { .. } | Op::Scan { .. } | Op::NumPrograms(_))
        || matches!(op, Op::Load(..) | Op::Store(_) | Op::Check { .. } | Op::Prefetch { .. })
}

/// By how much each value grows per iteration, that is over `instances` positions of the grid; values without constant
/// growth are absent. An unaligned row's offset within a vector (a remainder) does not grow if the stride spans whole
/// periods of it.
fn growth(k: &BlockProgram, facts: &Analysis, instances: usize) -> HashMap<Value, i64> {
    let mut known: HashMap<Value, i64> = k.params.iter().map(|p| (p.value, 0)).collect();
    k.walk(&mut |_, d| {
        let of = |n: usize| d.args.get(n).and_then(|v| known.get(v)).copied();
        let constant = |n: usize| d.args.get(n).and_then(|v| facts.affine(*v)?.as_constant());
        let by = match d.op {
            Op::ProgramId(0) => Some(instances as i64),
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

/// Whether a load takes at least one vector per thread, from addresses that indices alone determine. One that `moves`
/// (changes per iteration) must be aligned, too.
fn is_copied(k: &BlockProgram, facts: &Analysis, i: Inst, moves: bool) -> bool {
    let (Op::Load(..), args @ ([ptr] | [ptr, _])) = (&k.inst(i).op, &k.inst(i).args[..]) else { return false };
    let (ty, bytes) = (k.ty(*ptr), k.ty(*ptr).elem().map_or(1, Elem::bytes));
    let Some(last) = ty.shape().len().checked_sub(1) else { return false };
    let (run, align) = facts.alignment(*ptr, last);
    let root = facts.affine(*ptr).and_then(|f| f.root);
    let readonly = k.params.iter().any(|p| p.readonly && Some(p.value) == root);
    let lies = run * bytes >= VECTOR && (align >= VECTOR || !moves);
    lies && ty.count() * bytes >= 32 * k.warps * VECTOR && readonly && slice(k, args).is_some()
}

/// The instructions that compute these values, in program order; `None` unless all are pure.
fn slice(k: &BlockProgram, of: &[Value]) -> Option<Vec<Inst>> {
    let mut wanted: HashSet<Value> = of.iter().copied().collect();
    let mut found = vec![];
    for &i in k.body.insts.iter().rev() {
        let d = k.inst(i);
        if d.results.iter().any(|v| wanted.contains(v)) {
            if !d.op.is_pure() {
                return None;
            }
            wanted.extend(&d.args);
            found.push(i);
        }
    }
    found.reverse();
    Some(found)
}

/// Whether the elements that a load gives outside of its mask, and what is computed from them, are never used.
fn is_hidden(k: &BlockProgram, load: Inst) -> bool {
    let (value, mask) = (k.inst(load).results[0], k.inst(load).args.get(1));
    let mut outside = HashSet::from([value]);
    k.body.insts.iter().map(|i| k.inst(*i)).all(|d| {
        let takes = |n: usize| d.args.get(n).is_some_and(|v| outside.contains(v));
        let inside = |n: usize| mask.is_some() && d.args.get(n) == mask;
        match d.op {
            _ if !d.args.iter().any(|v| outside.contains(v)) => true,
            Op::Store(_) => inside(2) && !takes(0),
            Op::Select if inside(0) && !takes(2) => true,
            Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) | Op::Cast(_) | Op::Select => {
                outside.extend(&d.results);
                true
            }
            _ => false,
        }
    })
}

/// A load, and the shared tile it is staged in.
type Staged = (Inst, Value);

struct Writer<'k> {
    k: &'k BlockProgram,
    /// Values of the new program, by old value.
    names: Names,
}

impl Writer<'_> {
    fn write(&mut self, b: &mut Builder, [changing, once]: [&[Inst]; 2], [count, instances]: [usize; 2]) {
        let [changing, once] =
            [changing, once].map(|all| all.iter().filter_map(|i| Some((*i, self.tile(b, *i)?))).collect::<Vec<_>>());
        let (stage, first) = (b.i32(0), b.program_id(0));
        let (last, step) = (b.i32(count as i64), b.i32(instances as i64));
        self.fetch(b, &once, [stage, first], None);
        self.fetch(b, &changing, [stage, first], None);
        b.inst(Op::AsyncCommit, &[], &[], vec![]);
        b.for_loop([first, last, step], &[], |b, at, _| {
            b.inst(Op::AsyncWait { pending: 0 }, &[], &[], vec![]);
            let read: Vec<Value> = changing.iter().map(|s| self.read(b, *s, stage)).collect();
            let next = b.binary(B::Add, at, step);
            let there = b.cmp(CmpOp::Lt, next, last);
            self.fetch(b, &changing, [stage, next], Some(there));
            b.inst(Op::AsyncCommit, &[], &[], vec![]);
            for &i in &self.k.body.insts {
                let read = changing.iter().position(|s| s.0 == i).map(|n| read[n]);
                let read = read.or_else(|| once.iter().find(|s| s.0 == i).map(|s| self.read(b, *s, stage)));
                match read {
                    Some(v) => self.name(b, i, v),
                    None => self.copy(b, i, at),
                }
            }
            vec![]
        });
    }
    fn tile(&self, b: &mut Builder, load: Inst) -> Option<Value> {
        let Type::Block { elem, shape } = self.k.ty(self.k.inst(load).results[0]).clone() else { return None };
        let ty = Type::Shared { elem, shape, stages: 1, swizzle: Swizzle::None };
        Some(b.inst(Op::AllocShared, &[], &[ty], vec![])[0])
    }
    fn read(&self, b: &mut Builder, (load, tile): Staged, stage: Value) -> Value {
        let ty = self.k.ty(self.k.inst(load).results[0]).clone();
        b.inst(Op::SharedLoad, &[tile, stage], &[ty], vec![])[0]
    }
    /// Binds the result of a load to what was staged for it; a copy leaves elements outside of its mask unspecified.
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
    /// Starts the asynchronous copies of what instance `at` loads; none where `there` is false.
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
    /// Copies an instruction for instance `at`. Prefetch hints are dropped: the loop prefetches itself.
    fn copy(&mut self, b: &mut Builder, i: Inst, at: Value) {
        let d = self.k.inst(i);
        match d.op {
            Op::Prefetch { .. } => {}
            Op::ProgramId(0) => _ = self.names.insert(d.results[0], at),
            _ => b.copies(self.k, &[i], &mut self.names),
        }
    }
}
