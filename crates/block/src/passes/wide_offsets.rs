//! 64 bits for offsets and masks that may exceed 32, as these are meant over the integers.
//!
//! For programs with values of the launch. What reaches a pointer whose tensor may have 2^31 elements or more, or
//! decides whether it is accessed, is computed a second time in i64; `dce` removes what nothing needs any more. Only
//! what may wrap is computed again: the rest is extended where it is used. The 32-bit integers stay as they are where
//! they are data.
//!
//! [`crate::analysis::unwrapped`] says how far the rule reaches: never through quotients, remainders and bit
//! operations.
use crate::analysis::bounds::typed_bounds;
use crate::analysis::unwrapped::{Origins, Reach, unwrapped_at};
use crate::{BlockProgram, Elem, Inst, InstData, Op, Region, Type, Value};
use std::collections::{HashMap, HashSet};

pub fn run(k: &mut BlockProgram) {
    if !k.has_launch_values() || k.values.iter().any(|v| v.layout.is_some()) {
        return;
    }
    let pointers = far_pointers(k);
    if pointers.is_empty() {
        return;
    }
    let wraps = wrapping(k, &pointers);
    if wraps.is_empty() {
        return;
    }
    let mut body = std::mem::take(&mut k.body);
    Widening { k, wraps, wide: HashMap::new() }.region(&mut body);
    k.body = body;
}

/// Pointers to memory that may have 2^31 elements or more.
fn far_pointers(k: &BlockProgram) -> HashSet<Value> {
    let is_pointer = |v: &Value| matches!(k.ty(*v), Type::Ptr { .. });
    let params = k.params.iter().filter(|p| is_pointer(&p.value) && !p.facts.span32);
    let mut far: HashSet<Value> = params.map(|p| p.value).collect();
    loop {
        let before = far.len();
        k.walk(&mut |_, d| {
            let ends = d.regions.iter().filter_map(|r| r.insts.last()).flat_map(|i| &k.inst(*i).args);
            let mut operands = d.args.iter().chain(ends);
            if d.op == Op::Bitcast && !keeps_span(k, d) || operands.any(|v| far.contains(v)) {
                let params = d.regions.iter().flat_map(|r| &r.params);
                far.extend(d.results.iter().chain(params).copied().filter(is_pointer));
            }
        });
        if far.len() == before {
            return far;
        }
    }
}

/// Whether the bits of a pointer are one to elements that are no smaller.
fn keeps_span(k: &BlockProgram, d: &InstData) -> bool {
    match (k.ty(d.args[0]), d.results.first().map(|v| k.ty(*v))) {
        (Type::Ptr { elem, .. }, Some(Type::Ptr { elem: to, .. })) => to.bytes() >= elem.bytes(),
        _ => false,
    }
}

/// Integers and masks that reach accesses through these pointers and that differ from their values over the integers,
/// or may.
fn wrapping(k: &BlockProgram, pointers: &HashSet<Value>) -> HashSet<Value> {
    let origins = Origins::of(k);
    let reached = unwrapped_at(k, &origins, pointers);
    let mut users: HashMap<Value, Vec<Value>> = HashMap::new();
    for user in &reached {
        for source in origins.sources(*user, Reach::Conditions) {
            users.entry(source).or_default().push(*user);
        }
    }
    let bounds = typed_bounds(k);
    let mut open = vec![];
    k.walk(&mut |_, d| {
        let narrow = |v: &&Value| reached.contains(v) && k.ty(**v).elem() == Some(Elem::I32);
        open.extend(d.results.iter().filter(narrow).filter(|_| bounds.may_wrap(k, d)));
    });
    let mut found = HashSet::new();
    while let Some(v) = open.pop() {
        if found.insert(v) {
            open.extend(users.get(&v).into_iter().flatten());
        }
    }
    found
}

struct Widening<'a> {
    k: &'a mut BlockProgram,
    wraps: HashSet<Value>,
    /// Values over the integers.
    wide: HashMap<Value, Value>,
}

impl Widening<'_> {
    fn region(&mut self, r: &mut Region) {
        for i in std::mem::take(&mut r.insts) {
            match self.k.inst(i).op {
                Op::For => self.for_loop(i, &mut r.insts),
                Op::While => self.while_loop(i, &mut r.insts),
                Op::If => self.branch(i, &mut r.insts),
                _ => self.inst(i, &mut r.insts),
            }
        }
    }
    fn wraps(&self, v: Value) -> bool {
        self.wraps.contains(&v)
    }
    /// The value over the integers, in its type if it does not wrap.
    fn meant(&self, v: Value) -> Value {
        self.wide.get(&v).copied().unwrap_or(v)
    }
    /// The value over the integers; of 64 bits if it is of 32.
    fn extended(&mut self, v: Value, out: &mut Vec<Inst>) -> Value {
        let meant = self.meant(v);
        match self.k.ty(meant).elem() {
            Some(Elem::I32) => {
                let ty = wide_type(self.k.ty(meant));
                self.emit(Op::Cast(Elem::I64), vec![meant], ty, out)
            }
            _ => meant,
        }
    }
    fn emit(&mut self, op: Op, args: Vec<Value>, ty: Type, out: &mut Vec<Inst>) -> Value {
        let v = self.k.new_value(ty);
        out.push(self.k.new_inst(InstData { op, args, results: vec![v], regions: vec![] }));
        v
    }
    /// A new value for one over the integers.
    fn widened(&mut self, v: Value) -> Value {
        let wide = self.k.new_value(wide_type(self.k.ty(v)));
        self.wide.insert(v, wide);
        wide
    }
    /// An op without regions, or with regions that compute elements.
    fn inst(&mut self, i: Inst, out: &mut Vec<Inst>) {
        let d = self.k.inst(i).clone();
        let is_pointer = d.results.first().is_some_and(|v| matches!(self.k.ty(*v), Type::Ptr { .. }));
        let guard = match d.op {
            Op::PtrAdd | Op::Load(..) => Some(1),
            Op::Store(_) | Op::Atomic { .. } => Some(2),
            Op::Select if is_pointer => Some(0),
            _ => None,
        };
        if let Some((n, v)) = guard.and_then(|n| Some((n, *d.args.get(n)?))) {
            self.k.inst_mut(i).args[n] = self.meant(v);
        }
        out.push(i);
        let [v] = d.results[..] else { return };
        if !self.wraps(v) {
            return;
        }
        let args: Vec<Value> = d.args.iter().map(|v| self.extended(*v, out)).collect();
        let wide = match d.op {
            Op::Cast(_) => args[0],
            op => {
                let ty = wide_type(self.k.ty(v));
                self.emit(op, args, ty, out)
            }
        };
        self.wide.insert(v, wide);
    }
    /// Of what an op carries, or gives, the numbers of what wraps.
    fn carried(&self, params: &[Value], results: &[Value]) -> Vec<usize> {
        let wraps = |list: &[Value], n: usize| list.get(n).is_some_and(|v| self.wraps(*v));
        (0..params.len().max(results.len())).filter(|n| wraps(params, *n) || wraps(results, *n)).collect()
    }
    fn for_loop(&mut self, i: Inst, out: &mut Vec<Inst>) {
        let mut d = self.k.inst(i).clone();
        let Some(mut body) = d.regions.pop() else { return out.push(i) };
        let carried = self.carried(&body.params[1..], &d.results);
        if d.args[..3].iter().any(|v| self.wraps(*v)) {
            for n in 0..3 {
                d.args[n] = self.extended(d.args[n], out);
            }
            self.wide_index(&mut body);
        }
        for n in &carried {
            let init = self.extended(d.args[3 + n], out);
            d.args.push(init);
            let param = self.widened(body.params[1 + n]);
            body.params.push(param);
        }
        self.region(&mut body);
        self.yield_wide(&mut body, &carried);
        d.results.extend(carried.iter().map(|n| self.widened(d.results[*n])).collect::<Vec<_>>());
        d.regions.push(body);
        *self.k.inst_mut(i) = d;
        out.push(i);
    }
    /// The index of a loop gets 64 bits; its 32-bit value is cast from it.
    fn wide_index(&mut self, body: &mut Region) {
        let index = body.params[0];
        if self.k.ty(index).elem() == Some(Elem::I32) {
            body.params[0] = self.widened(index);
            let (op, args) = (Op::Cast(Elem::I32), vec![body.params[0]]);
            let cast = self.k.new_inst(InstData { op, args, results: vec![index], regions: vec![] });
            body.insts.insert(0, cast);
            self.wraps.remove(&index);
        }
    }
    fn while_loop(&mut self, i: Inst, out: &mut Vec<Inst>) {
        let mut d = self.k.inst(i).clone();
        let Some(mut body) = d.regions.pop() else { return out.push(i) };
        let carried = self.carried(&body.params, &d.results);
        if d.results.is_empty() && !carried.is_empty() {
            d.results = d.args.iter().map(|v| self.k.new_value(self.k.ty(*v).clone())).collect();
        }
        for n in &carried {
            let init = self.extended(d.args[*n], out);
            d.args.push(init);
            let param = self.widened(body.params[*n]);
            body.params.push(param);
        }
        self.region(&mut body);
        let condition = self.last(&body).and_then(|end| Some((end, *self.k.inst(end).args.first()?)));
        if let Some((end, condition)) = condition {
            self.k.inst_mut(end).args[0] = self.meant(condition);
        }
        self.yield_wide(&mut body, &carried.iter().map(|n| n + 1).collect::<Vec<_>>());
        d.results.extend(carried.iter().map(|n| self.widened(d.results[*n])).collect::<Vec<_>>());
        d.regions.push(body);
        *self.k.inst_mut(i) = d;
        out.push(i);
    }
    fn branch(&mut self, i: Inst, out: &mut Vec<Inst>) {
        let mut d = self.k.inst(i).clone();
        d.args[0] = self.meant(d.args[0]);
        let given = self.carried(&[], &d.results);
        for r in &mut d.regions {
            self.region(r);
            self.yield_wide(r, &given);
        }
        d.results.extend(given.iter().map(|n| self.widened(d.results[*n])).collect::<Vec<_>>());
        *self.k.inst_mut(i) = d;
        out.push(i);
    }
    fn last(&self, r: &Region) -> Option<Inst> {
        r.insts.last().copied().filter(|i| self.k.inst(*i).op == Op::Yield)
    }
    /// Adds what a region yields at these places to its end, over the integers.
    fn yield_wide(&mut self, r: &mut Region, places: &[usize]) {
        let Some(end) = self.last(r) else { return };
        r.insts.pop();
        for n in places {
            let Some(v) = self.k.inst(end).args.get(*n).copied() else { continue };
            let wide = self.extended(v, &mut r.insts);
            self.k.inst_mut(end).args.push(wide);
        }
        r.insts.push(end);
    }
}

fn wide_type(ty: &Type) -> Type {
    match ty {
        Type::Block { elem: Elem::I32, shape } => Type::block(Elem::I64, shape.clone()),
        other => other.clone(),
    }
}
