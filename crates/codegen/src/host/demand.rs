//! Which block values are kept in scratch memory, and which are computed where they are used.
//!
//! A loop demands a value if it reads the value through lazily computed ones. A value that two loops demand, or that a
//! loop of the program demands from outside of that loop, is kept if recomputing it costs more than reading it. So is a
//! value that one loop reads at several coordinates ([`super::index`]): chains of such values, as in a sort, would
//! otherwise be computed again at each step, and a program's code grow with a power of its length.
//! Operands of matmuls are always kept (they are packed), and so are loads whose memory is overwritten before their
//! last use.
//!
//! Blocks are wider than their contents where an extent is not a power of two. Which elements of a value are never read
//! follows from the masks of stores and from what reductions are fed outside of a mask; loops end before those
//! elements.
use super::index::{IndexMaps, Reading};
use kiln_block::{BinaryOp, BlockProgram, Const, Inst, InstData, Op, ReduceOp, Region, Type, UnaryOp, Value};
use std::collections::{BTreeMap, BTreeSet, HashMap};

#[derive(Default)]
pub(super) struct Demand {
    /// Results to keep, with the loops that demand them; `None`: always kept.
    pub keep: HashMap<Value, Option<BTreeSet<Inst>>>,
    /// Defining instructions.
    pub def: HashMap<Value, Inst>,
    /// Position in program order and the enclosing `for` instructions, outermost first.
    place: HashMap<Inst, (usize, Vec<Inst>)>,
    cost: HashMap<Value, u32>,
    /// As `cost`, without what is computed for fewer elements and repeated.
    dense_cost: HashMap<Value, u32>,
    /// Ops that are evaluated again wherever a value is read again; those of pointers count too.
    weight: HashMap<Value, u32>,
    /// Loops that read a value, and how.
    readings: HashMap<Value, BTreeMap<Inst, Reading>>,
    maps: IndexMaps,
    /// Factors of matmuls.
    pub packed: BTreeSet<Value>,
    /// Integers that become part of addresses by sums, casts and moves alone.
    pub offsets: BTreeSet<Value>,
    /// Masks outside of which no use reads the elements of a value; absent: no uses so far.
    within: HashMap<Value, BTreeSet<Value>>,
    /// The same for each use.
    uses: HashMap<Value, Vec<(Inst, BTreeSet<Value>)>>,
    roots: HashMap<Value, Value>,
    /// Parameters whose memory no other pointer reaches, if that is not so of all.
    separate: Option<BTreeSet<Value>>,
}

/// The root of all pointers that may reach each other's memory.
const ANYWHERE: Value = Value(u32::MAX);

/// A value that costs more vector instructions than this to recompute is kept in a buffer.
const KEEP_COST: u32 = 8;

/// Approximate number of vector instructions of an op.
fn own_cost(op: &Op) -> u32 {
    use kiln_block::BinaryOp as B;
    match op {
        Op::Load(..) => 2,
        Op::Unary(u) => match u {
            UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Exp2Approx => 16,
            UnaryOp::Expm1 | UnaryOp::Tanh | UnaryOp::TanhApprox => 20,
            UnaryOp::Log | UnaryOp::Log2 | UnaryOp::Log10 | UnaryOp::Log1p => 30,
            UnaryOp::Erf | UnaryOp::Gelu => 30,
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => 1,
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc => 1,
            UnaryOp::Sqrt | UnaryOp::Rsqrt => 8,
            _ => 200,
        },
        Op::Binary(B::Div) => 6,
        Op::Binary(B::Rem | B::Pow | B::Atan2) => 200,
        Op::Binary(_) | Op::Cmp(_) | Op::Select | Op::Cast(_) | Op::Bitcast | Op::Fma => 1,
        Op::CastToZero(_) => 4,
        _ => 0,
    }
}

/// Ops of one evaluation of an element, without its operands.
fn op_weight(op: &Op) -> u32 {
    match op {
        Op::Join | Op::Cat { .. } | Op::Gather { .. } | Op::PtrAdd | Op::Reshape => 1,
        other => own_cost(other),
    }
}

/// Ops that compute what they read element after element, or again in each iteration.
fn computes_again(op: &Op) -> bool {
    matches!(
        op,
        Op::For | Op::While | Op::Atomic { .. } | Op::CompareSwap { .. } | Op::ReduceBy { .. } | Op::ScanBy { .. }
    )
}

/// Ops that read their block operands in loops.
pub(super) fn forces(op: &Op) -> bool {
    matches!(
        op,
        Op::Store(_)
            | Op::Atomic { .. }
            | Op::CompareSwap { .. }
            | Op::Check { .. }
            | Op::Print(_)
            | Op::Assert(_)
            | Op::Reduce { .. }
            | Op::Scan { .. }
            | Op::ReduceBy { .. }
            | Op::ScanBy { .. }
            | Op::Dot { .. }
            | Op::For
            | Op::While
            | Op::If
            | Op::Yield
    )
}

/// Whether `next` is `carried`, moved.
fn grows(k: &BlockProgram, mut next: Value, carried: Value) -> bool {
    loop {
        if next == carried {
            return true;
        }
        let made = k.insts.iter().find(|d| d.op == Op::PtrAdd && d.results.contains(&next));
        match made.and_then(|d| d.args.first()) {
            Some(from) => next = *from,
            None => return false,
        }
    }
}

impl Demand {
    pub fn of(k: &BlockProgram) -> Demand {
        let mut d = Demand::default();
        // Lowering gives each parameter memory of its own; a caller may pass one tensor twice.
        if k.has_launch_values() {
            let separate = k.params.iter().filter(|p| p.readonly || p.facts.noalias).map(|p| p.value);
            d.separate = Some(separate.collect());
        }
        let mut order = vec![];
        d.number(k, &k.body, &[], &mut order);
        for &i in &order {
            let inst = k.inst(i);
            let sum = |costs: &HashMap<Value, u32>| {
                let costs = inst.args.iter().map(|a| costs.get(a).copied().unwrap_or(0));
                costs.fold(own_cost(&inst.op), u32::saturating_add)
            };
            let (cost, dense) = (sum(&d.cost), if inst.op == Op::Broadcast { 0 } else { sum(&d.dense_cost) });
            for &r in &inst.results {
                d.def.insert(r, i);
                let is_block = matches!(k.ty(r), Type::Block { shape, .. } if !shape.is_empty());
                let lazy = is_block && !forces(&inst.op);
                d.cost.insert(r, if lazy { cost } else { 0 });
                d.dense_cost.insert(r, if lazy { dense } else { 0 });
            }
            d.weigh(k, inst);
            d.trace_root(k, i);
        }
        let overwritten = d.overwritten(k, &order);
        let dots = order.iter().filter(|&&i| matches!(k.inst(i).op, Op::Dot { .. }));
        d.packed = dots.flat_map(|&i| k.inst(i).args.iter().take(2).copied()).collect();
        for &i in order.iter().rev() {
            d.decide(k, i, &overwritten);
            d.confine(k, i);
            d.trace_offsets(k.inst(i));
        }
        d
    }
    /// Which operands of an instruction become parts of addresses; its results are known to do so or not.
    fn trace_offsets(&mut self, inst: &InstData) {
        let sums = matches!(inst.op, Op::Binary(BinaryOp::Add | BinaryOp::Sub) | Op::Cast(_) | Op::MultipleOf(_));
        let moves = matches!(inst.op, Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape | Op::Permute(_));
        if inst.op == Op::PtrAdd {
            self.offsets.extend(inst.args.get(1));
        } else if (sums || moves) && inst.results.iter().any(|r| self.offsets.contains(r)) {
            self.offsets.extend(&inst.args);
        }
    }
    /// Records for the operands of an instruction where it reads them.
    fn confine(&mut self, k: &BlockProgram, i: Inst) {
        let inst = k.inst(i);
        let own = inst.results.first().map_or_else(BTreeSet::new, |&r| self.within(r));
        for (n, &a) in inst.args.iter().enumerate() {
            let here = match &inst.op {
                Op::Store(_) => inst.args.get(2).map_or_else(BTreeSet::new, |&m| self.conjuncts(k, m)),
                Op::Check { .. } => inst.args.get(3).map_or_else(BTreeSet::new, |&m| self.conjuncts(k, m)),
                Op::Reduce { op, .. } => self.reduced(k, *op, a),
                Op::Select if n == 1 => own.union(&self.conjuncts(k, inst.args[0])).copied().collect(),
                Op::Unary(_) | Op::Binary(_) | Op::Cmp(_) | Op::Select | Op::Cast(_) => own.clone(),
                Op::Bitcast | Op::CastToZero(_) | Op::Fma | Op::MultipleOf(_) => own.clone(),
                _ => BTreeSet::new(),
            };
            self.uses.entry(a).or_default().push((i, here.clone()));
            match self.within.get_mut(&a) {
                Some(old) => old.retain(|m| here.contains(m)),
                None => drop(self.within.insert(a, here)),
            }
        }
    }
    /// Masks outside of which no element of `v` is read.
    pub fn within(&self, v: Value) -> BTreeSet<Value> {
        self.within.get(&v).cloned().unwrap_or_default()
    }
    /// The same without the uses by these instructions.
    pub fn within_of_others(&self, v: Value, except: &BTreeSet<Inst>) -> BTreeSet<Value> {
        let uses = self.uses.get(&v).into_iter().flatten().filter(|(user, _)| !except.contains(user));
        let common = uses.map(|(_, masks)| masks.clone()).reduce(|a, b| a.intersection(&b).copied().collect());
        common.unwrap_or_default()
    }
    /// Masks outside of which the operand of a reduction is the reduction's identity.
    pub fn reduced(&self, k: &BlockProgram, op: ReduceOp, operand: Value) -> BTreeSet<Value> {
        let inst = |v: Value| self.def.get(&v).map(|&i| k.inst(i));
        let Some((Op::Select, [mask, _, other])) = inst(operand).map(|i| (&i.op, &i.args[..])) else {
            return BTreeSet::new();
        };
        let neutral = match (op, inst(*other).map(|i| &i.op)) {
            (ReduceOp::Sum, Some(Op::Const(Const::Float(c)))) => *c == 0.0,
            (ReduceOp::Max | ReduceOp::ArgMax, Some(Op::Const(Const::Float(c)))) => *c == f64::NEG_INFINITY,
            (ReduceOp::Min | ReduceOp::ArgMin, Some(Op::Const(Const::Float(c)))) => *c == f64::INFINITY,
            (ReduceOp::Sum, Some(Op::Const(Const::Int(c)))) => *c == 0,
            _ => false,
        };
        if neutral { self.conjuncts(k, *mask) } else { BTreeSet::new() }
    }
    /// The conjuncts of a mask.
    pub fn conjuncts(&self, k: &BlockProgram, mask: Value) -> BTreeSet<Value> {
        let (mut open, mut all) = (vec![mask], BTreeSet::new());
        while let Some(m) = open.pop() {
            all.insert(m);
            if let Some(i) = self.def.get(&m).map(|&i| k.inst(i))
                && matches!(i.op, Op::Binary(BinaryOp::And))
            {
                open.extend(i.args.iter().copied());
            }
        }
        all
    }
    fn number(&mut self, k: &BlockProgram, r: &Region, loops: &[Inst], order: &mut Vec<Inst>) {
        for &i in &r.insts {
            self.place.insert(i, (order.len(), loops.to_vec()));
            order.push(i);
            let mut inner = loops.to_vec();
            inner.push(i);
            for region in &k.inst(i).regions {
                self.number(k, region, &inner, order);
            }
        }
    }
    /// The parameter (or other first pointer) that a pointer comes from.
    fn trace_root(&mut self, k: &BlockProgram, i: Inst) {
        let inst = k.inst(i);
        if let Op::For = inst.op {
            let inner = inst.regions.first().map(|r| r.params.iter().skip(1)).into_iter().flatten();
            let next = inst.regions.first().and_then(|r| r.insts.last()).map_or(&[][..], |y| &k.inst(*y).args);
            for (n, ((p, r), init)) in inner.zip(&inst.results).zip(inst.args.iter().skip(3)).enumerate() {
                if self.separate.is_none() || next.get(n).is_some_and(|next| grows(k, *next, *p)) {
                    let root = self.first(*init);
                    self.roots.insert(*p, root);
                    self.roots.insert(*r, root);
                }
            }
            return;
        }
        let moves = matches!(inst.op, Op::PtrAdd | Op::Splat | Op::Broadcast | Op::ExpandDims(_) | Op::Reshape);
        if self.separate.is_some() && !moves && !matches!(inst.op, Op::Permute(_) | Op::MultipleOf(_)) {
            return;
        }
        if let (Some(&r), Some(&a)) = (inst.results.first(), inst.args.first())
            && matches!(k.ty(r), Type::Ptr { .. })
        {
            self.roots.insert(r, self.first(a));
        }
    }
    /// The parameter, or other first pointer, that a pointer comes from.
    fn first(&self, p: Value) -> Value {
        self.roots.get(&p).copied().unwrap_or(p)
    }
    /// What stands for the memory that a pointer reaches: pointers of different roots reach none of each other's.
    pub fn root(&self, p: Value) -> Value {
        let first = self.first(p);
        if self.separate.as_ref().is_none_or(|s| s.contains(&first)) { first } else { ANYWHERE }
    }
    fn loops(&self, i: Inst) -> &[Inst] {
        self.place.get(&i).map_or(&[], |p| &p.1)
    }
    /// Loads from a buffer that a later store (or an earlier one of the same loop) writes at other addresses than the
    /// load reads.
    fn overwritten(&self, k: &BlockProgram, order: &[Inst]) -> BTreeSet<Value> {
        let at = |i: Inst| self.place.get(&i).map_or(0, |p| p.0);
        let mut found = BTreeSet::new();
        for &l in order.iter().filter(|&&i| matches!(k.inst(i).op, Op::Load(..))) {
            let Some(&p) = k.inst(l).args.first() else { continue };
            let root = self.root(p);
            if k.params.iter().any(|q| q.value == root && q.readonly) {
                continue;
            }
            let clash = order.iter().any(|&s| {
                let store = k.inst(s);
                let Some(&q) = store.args.first() else { return false };
                matches!(store.op, Op::Store(_) | Op::Atomic { .. } | Op::CompareSwap { .. })
                    && self.root(q) == root
                    && (at(s) > at(l) || self.loops(s).iter().any(|f| self.loops(l).contains(f)))
            });
            if clash {
                found.extend(k.inst(l).results.iter());
            }
        }
        found
    }
    fn decide(&mut self, k: &BlockProgram, i: Inst, overwritten: &BTreeSet<Value>) {
        let inst = k.inst(i);
        if forces(&inst.op) {
            for &a in &inst.args {
                self.read(a, i, Reading::identity(k.ty(a).shape()));
            }
            return;
        }
        let Some(&r) = inst.results.first() else { return };
        let readings = self.readings.get(&r).cloned().unwrap_or_default();
        let block = matches!(k.ty(r), Type::Block { shape, .. } if !shape.is_empty());
        let by_hand = self.separate.is_some();
        let deeper = readings
            .keys()
            .any(|&s| self.loops(s).len() > self.loops(i).len() || (by_hand && computes_again(&k.inst(s).op)));
        // What is repeated along an axis is kept before it is.
        let costs = if by_hand { &self.dense_cost } else { &self.cost };
        let dear = costs.get(&r).is_some_and(|c| *c >= KEEP_COST);
        let must = overwritten.contains(&r) || self.packed.contains(&r);
        let repeated = readings.len() > 1 || deeper || self.spread(k, r);
        let scattered = self.weight.get(&r).is_some_and(|w| *w >= KEEP_COST)
            && readings.values().any(|reading| *reading == Reading::Many);
        if (block && (must || (repeated && dear))) || scattered {
            let always = must || deeper || scattered;
            self.keep.insert(r, if always { None } else { Some(readings.keys().copied().collect()) });
            let element = Reading::identity(k.ty(r).shape());
            for (n, &a) in inst.args.iter().enumerate() {
                let reading = self.maps.operand(k, inst, n, &element);
                self.read(a, i, reading);
            }
            return;
        }
        for (sink, reading) in readings {
            for (n, &a) in inst.args.iter().enumerate() {
                let reading = self.maps.operand(k, inst, n, &reading);
                self.read(a, sink, reading);
            }
        }
    }
    /// Notes that a loop reads a value.
    fn read(&mut self, v: Value, sink: Inst, reading: Reading) {
        let readings = self.readings.entry(v).or_default();
        let both = match readings.remove(&sink) {
            Some(other) => reading.joined(&other),
            None => reading,
        };
        readings.insert(sink, both);
    }
    /// Counts what an evaluation of an instruction's results takes. Offsets have weights of their own.
    fn weigh(&mut self, k: &BlockProgram, inst: &InstData) {
        let operands = if matches!(inst.op, Op::PtrAdd) { &inst.args[..1] } else { &inst.args[..] };
        let weights = operands.iter().filter_map(|a| self.weight.get(a).copied());
        let sum = weights.fold(op_weight(&inst.op), u32::saturating_add);
        for &r in &inst.results {
            let stored = forces(&inst.op) || k.ty(r).is_scalar();
            self.weight.insert(r, if stored { 0 } else { sum });
        }
    }
    /// Whether the value is repeated along a leading axis by a broadcast.
    fn spread(&self, k: &BlockProgram, v: Value) -> bool {
        k.insts.iter().any(|u| {
            matches!(u.op, Op::Broadcast)
                && u.args.first() == Some(&v)
                && u.results.first().is_some_and(|&r| {
                    let (from, to) = (k.ty(v).shape(), k.ty(r).shape());
                    let inner = to.iter().rposition(|&n| n > 1).unwrap_or(0);
                    from.iter().zip(to).take(inner).any(|(a, b)| a < b) && from.get(inner).is_some_and(|&n| n > 1)
                })
        })
    }
    /// Whether the next value of a loop's parameter, the n-th of all next values, can be written in the place of the
    /// parameter: each element of it is read once, to compute the element that replaces it. Loops of lowered programs
    /// keep two buffers.
    pub fn replaces(&self, k: &BlockProgram, loop_inst: Inst, p: Value, (all, n): (&[Value], usize)) -> bool {
        let Some(&next) = self.def.get(&all[n]).filter(|_| self.separate.is_some()) else { return false };
        let replacing = matches!(k.inst(next).op, Op::Dot { .. }) || self.keep.contains_key(&all[n]);
        let end = k.inst(loop_inst).regions.first().and_then(|r| r.insts.last());
        let Some(&sink) = (if replacing { Some(&next) } else { end }) else { return false };
        let same = Reading::identity(k.ty(p).shape());
        let once = self.readings.get(&p).is_some_and(|r| r.len() == 1 && r.get(&sink) == Some(&same));
        let others = all.iter().enumerate().filter(|(other, _)| *other != n);
        once && self.loops(next).last() == Some(&loop_inst)
            && (replacing || !forces(&k.inst(next).op))
            && !others.into_iter().any(|(_, v)| self.reaches(k, *v, p))
    }
    /// Whether `p` is read to compute `v` where that is used.
    fn reaches(&self, k: &BlockProgram, v: Value, p: Value) -> bool {
        let (mut open, mut seen) = (vec![v], BTreeSet::new());
        while let Some(v) = open.pop() {
            if v == p {
                return true;
            }
            let made = self.def.get(&v).filter(|_| !self.keep.contains_key(&v)).map(|&i| k.inst(i));
            if let Some(inst) = made.filter(|inst| !forces(&inst.op) && seen.insert(v)) {
                open.extend(&inst.args);
            }
        }
        false
    }
    /// Whether `v` is computed inside the loop.
    pub fn inside(&self, v: Value, loop_inst: Inst) -> bool {
        self.def.get(&v).is_some_and(|i| self.loops(*i).contains(&loop_inst))
    }
    /// Whether `v` has the same value in all iterations of the loop, and can be computed before it.
    pub fn invariant(&self, k: &BlockProgram, v: Value, loop_inst: Inst) -> bool {
        let Some(&i) = self.def.get(&v) else {
            return !k.inst(loop_inst).regions.iter().any(|r| r.params.contains(&v));
        };
        let inst = k.inst(i);
        !self.inside(v, loop_inst)
            || matches!(
                inst.op,
                Op::Const(_)
                    | Op::ProgramId(_)
                    | Op::NumPrograms(_)
                    | Op::Iota
                    | Op::Splat
                    | Op::Broadcast
                    | Op::ExpandDims(_)
            ) && inst.args.iter().all(|a| self.invariant(k, *a, loop_inst))
            || matches!(inst.op, Op::Reshape | Op::Permute(_) | Op::Unary(_) | Op::Binary(_) | Op::Cast(_))
                && !self.keep.contains_key(&v)
                && inst.args.iter().all(|a| self.invariant(k, *a, loop_inst))
    }
    /// Whether several loops read the value, each recomputing it.
    pub fn repeated(&self, v: Value) -> bool {
        !self.keep.contains_key(&v) && self.readings.get(&v).is_some_and(|s| s.len() > 1)
    }
    pub fn cost(&self, v: Value) -> u32 {
        self.cost.get(&v).copied().unwrap_or(0)
    }
}
