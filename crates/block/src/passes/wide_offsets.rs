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
use crate::{BlockProgram, Builder, Elem, Inst, InstData, Op, Region, Type, Value};
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
    let old = std::mem::take(k);
    let mut w = Widening { k: &old, b: Builder::of(old.clone()), wraps, wide: HashMap::new() };
    old.body.insts.iter().for_each(|i| w.inst(*i));
    *k = w.b.finish();
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

struct Widening<'k> {
    k: &'k BlockProgram,
    b: Builder,
    wraps: HashSet<Value>,
    /// Values over the integers.
    wide: HashMap<Value, Value>,
}

impl Widening<'_> {
    fn inst(&mut self, i: Inst) {
        let data = self.k.inst(i);
        match (&data.op, &data.regions[..]) {
            (Op::For, [body]) => self.for_loop(data, body),
            (Op::While, [body]) => self.while_loop(data, body),
            (Op::If, _) => self.branch(data),
            _ => self.plain(i),
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
    fn extended(&mut self, v: Value) -> Value {
        let meant = self.meant(v);
        match self.b.ty(meant) {
            Type::Block { elem: Elem::I32, .. } => {
                let ty = wide_type(self.b.ty(meant));
                self.b.inst(Op::Cast(Elem::I64), &[meant], &[ty], vec![])[0]
            }
            _ => meant,
        }
    }
    /// A new value for one over the integers.
    fn widened(&mut self, v: Value) -> Value {
        let wide = self.b.new_value(wide_type(self.b.ty(v)));
        self.wide.insert(v, wide);
        wide
    }
    /// An op without regions, or with regions that compute elements.
    fn plain(&mut self, i: Inst) {
        let d = self.k.inst(i);
        let is_pointer = d.results.first().is_some_and(|v| matches!(self.k.ty(*v), Type::Ptr { .. }));
        let guard = match d.op {
            Op::PtrAdd | Op::Load(..) => Some(1),
            Op::Store(_) | Op::Atomic { .. } => Some(2),
            Op::Select if is_pointer => Some(0),
            _ => None,
        };
        if let Some((n, v)) = guard.and_then(|n| Some((n, *d.args.get(n)?))) {
            self.b.program_mut().inst_mut(i).args[n] = self.meant(v);
        }
        self.b.keep(i);
        let [v] = d.results[..] else { return };
        if !self.wraps(v) {
            return;
        }
        let args: Vec<Value> = d.args.iter().map(|v| self.extended(*v)).collect();
        let wide = match d.op {
            Op::Cast(_) => args[0],
            ref op => self.b.inst(op.clone(), &args, &[wide_type(self.k.ty(v))], vec![])[0],
        };
        self.wide.insert(v, wide);
    }
    /// Of what an op carries, or gives, the numbers of what wraps.
    fn carried(&self, params: &[Value], results: &[Value]) -> Vec<usize> {
        let wraps = |list: &[Value], n: usize| list.get(n).is_some_and(|v| self.wraps(*v));
        (0..params.len().max(results.len())).filter(|n| wraps(params, *n) || wraps(results, *n)).collect()
    }
    fn for_loop(&mut self, data: &InstData, body: &Region) {
        let (mut args, mut params) = (data.args.clone(), body.params.clone());
        let carried = self.carried(&params[1..], &data.results);
        let is_wide = args[..3].iter().any(|v| self.wraps(*v));
        let mut narrow_index = None;
        if is_wide {
            for bound in &mut args[..3] {
                *bound = self.extended(*bound);
            }
            // The index gets 64 bits; its 32-bit value is cast from it.
            if self.k.ty(params[0]).elem() == Some(Elem::I32) {
                narrow_index = Some(params[0]);
                params[0] = self.widened(params[0]);
            }
        }
        for n in &carried {
            args.push(self.extended(data.args[3 + n]));
            params.push(self.widened(body.params[1 + n]));
        }
        self.b.open_region_of(params.clone());
        if let Some(index) = narrow_index {
            self.b.define(&[index], Op::Cast(Elem::I32), &[params[0]], vec![]);
            self.wraps.remove(&index);
        }
        let region = self.region(body, 0, &carried);
        self.give(data, &args, &carried, vec![region]);
    }
    fn while_loop(&mut self, data: &InstData, body: &Region) {
        let carried = self.carried(&body.params, &data.results);
        let mut data = data.clone();
        if data.results.is_empty() && !carried.is_empty() {
            data.results = self.b.like(&data.args);
        }
        let (mut args, mut params) = (data.args.clone(), body.params.clone());
        for n in &carried {
            args.push(self.extended(data.args[*n]));
            params.push(self.widened(body.params[*n]));
        }
        self.b.open_region_of(params);
        let region = self.region(body, 1, &carried);
        self.give(&data, &args, &carried, vec![region]);
    }
    fn branch(&mut self, data: &InstData) {
        let given = self.carried(&[], &data.results);
        let condition = self.meant(data.args[0]);
        let regions = data.regions.iter().map(|r| {
            self.b.open_region_of(r.params.clone());
            self.region(r, 0, &given)
        });
        let regions = regions.collect();
        self.give(data, &[condition], &given, regions);
    }
    /// Ends an open region with what is in another, which yields these of its values over the integers, too. The first
    /// `conditions` of them say whether a loop goes on.
    fn region(&mut self, r: &Region, conditions: usize, carried: &[usize]) -> Region {
        // Nested regions of a verified program end in a `yield`.
        let Some((end, insts)) = r.insts.split_last() else { return self.b.close_region(&[]) };
        insts.iter().for_each(|i| self.inst(*i));
        let mut yields = self.k.inst(*end).args.clone();
        for condition in yields.iter_mut().take(conditions) {
            *condition = self.meant(*condition);
        }
        for n in carried {
            if let Some(v) = self.k.inst(*end).args.get(conditions + n) {
                yields.push(self.extended(*v));
            }
        }
        self.b.close_region(&yields)
    }
    /// Appends a loop or branch that gives these of its results over the integers, too.
    fn give(&mut self, data: &InstData, args: &[Value], carried: &[usize], regions: Vec<Region>) {
        let wide: Vec<Value> = carried.iter().map(|n| self.widened(data.results[*n])).collect();
        self.b.define(&[&data.results[..], &wide].concat(), data.op.clone(), args, regions);
    }
}

fn wide_type(ty: &Type) -> Type {
    match ty {
        Type::Block { elem: Elem::I32, shape } => Type::block(Elem::I64, shape.clone()),
        other => other.clone(),
    }
}
