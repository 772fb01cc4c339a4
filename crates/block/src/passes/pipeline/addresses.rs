//! Addresses of later iterations: what computes them, from the loop's index and from carried values that follow from
//! the index alone.
use crate::{BlockProgram, Inst, Op, Region, Value};
use std::collections::{BTreeSet, HashMap, HashSet};

/// What computes the addresses of copies in a loop's body.
#[derive(Clone, Debug, Default)]
pub struct Address {
    /// Instructions that compute the addresses, and those that compute the next carried values, in order.
    pub now: Vec<Inst>,
    pub next: Vec<Inst>,
    /// Carried values that addresses depend on, by their numbers.
    pub carried: Vec<usize>,
}

impl Address {
    /// Of these values of a loop's body. `None` if one cannot be computed ahead of its iteration: it depends on other
    /// results of the iteration before, or on memory that may change.
    pub fn of(k: &BlockProgram, parent: Inst, values: &[Value], readonly: &dyn Fn(Value) -> bool) -> Option<Address> {
        let region = k.inst(parent).regions.first()?;
        let next = &k.inst(*region.insts.last()?).args;
        let slice = Slice { k, region, body: k.definitions_in(region) };
        let now = slice.computing(values, readonly)?;
        let mut carried = now.carried.clone();
        loop {
            let yielded: Vec<Value> = carried.iter().filter_map(|n| next.get(*n).copied()).collect();
            // A load of the next carried values would read past the last iteration's.
            let later = slice.computing(&yielded, &|_| false)?;
            let all: BTreeSet<usize> = carried.union(&later.carried).copied().collect();
            if all.len() == carried.len() {
                let carried = carried.into_iter().collect();
                return Some(Address { now: now.insts, next: later.insts, carried });
            }
            carried = all;
        }
    }
}

struct Found {
    insts: Vec<Inst>,
    carried: BTreeSet<usize>,
}

struct Slice<'k> {
    k: &'k BlockProgram,
    region: &'k Region,
    /// Instructions of the body, by what they give.
    body: HashMap<Value, Inst>,
}
impl Slice<'_> {
    /// What computes these values, with loads through pointers that are `readonly` at most.
    fn computing(&self, values: &[Value], readonly: &dyn Fn(Value) -> bool) -> Option<Found> {
        let (mut wanted, mut open) = (HashSet::new(), values.to_vec());
        let mut carried = BTreeSet::new();
        while let Some(v) = open.pop() {
            if let Some(n) = self.region.params.iter().position(|p| *p == v) {
                carried.extend(n.checked_sub(1));
                continue;
            }
            let Some(i) = self.body.get(&v) else { continue };
            let d = self.k.inst(*i);
            let read = matches!(d.op, Op::Load(..)) && readonly(d.args[0]);
            if !(d.regions.is_empty() && (d.op.is_pure() || read)) || matches!(d.op, Op::Dot { .. }) {
                return None;
            }
            if wanted.insert(*i) {
                open.extend(&d.args);
            }
        }
        let insts = self.region.insts.iter().copied().filter(|i| wanted.contains(i)).collect();
        Some(Found { insts, carried })
    }
}
