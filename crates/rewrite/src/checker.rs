//! `region::check` with a memory: regions that look alike (repeated layers, a region met again) are checked once.
use crate::class::Class;
use crate::cost::Price;
use crate::dag::Dag;
use crate::region::{Reject, check};
use kiln_graph::{Op, Type};
use kiln_plan::Machine;
use rustc_hash::FxHashMap;

/// What legality and cost can tell a value apart by, its operands aside.
type Kind = (Option<Op>, Type, Class);

pub struct Checker<'a> {
    pub machine: &'a Machine,
    kinds: FxHashMap<Kind, u32>,
    known: FxHashMap<Vec<u32>, Result<Price, Reject>>,
    /// Regions asked about.
    pub asked: usize,
}

impl<'a> Checker<'a> {
    pub fn new(machine: &'a Machine) -> Checker<'a> {
        Checker { machine, kinds: FxHashMap::default(), known: FxHashMap::default(), asked: 0 }
    }
    /// Regions that differ.
    pub fn distinct(&self) -> usize {
        self.known.len()
    }
    /// A number per value of the program; alike values share it.
    pub fn kinds(&mut self, dag: &Dag) -> Vec<u32> {
        let mut kinds = vec![u32::MAX; dag.nodes.len()];
        for &v in &dag.live {
            let op = (dag.class[v] != Class::Leaf).then(|| dag.op(v).clone());
            let next = self.kinds.len() as u32;
            kinds[v] = *self.kinds.entry((op, dag.ty(v).clone(), dag.class[v])).or_insert(next);
        }
        kinds
    }
    pub fn price(&mut self, dag: &Dag, kinds: &[u32], members: &[usize], outs: &[usize]) -> Result<Price, Reject> {
        self.asked += 1;
        // The region with its values numbered in order of appearance; the tags keep the sequence unambiguous.
        const OUTSIDE: u32 = 1 << 30;
        const MEMBER: u32 = 1 << 31;
        let (mut local, mut key) = (FxHashMap::<usize, u32>::default(), vec![]);
        for &m in members {
            for &a in dag.args(m) {
                let next = local.len() as u32;
                match local.get(&a) {
                    Some(&i) => key.push(i),
                    None => {
                        local.insert(a, next);
                        key.extend([next | OUTSIDE, kinds[a]]);
                    }
                }
            }
            let next = local.len() as u32;
            local.insert(m, next);
            key.extend([kinds[m] | MEMBER, u32::from(outs.contains(&m))]);
        }
        if let Some(r) = self.known.get(&key) {
            return *r;
        }
        let r = check(dag, members, outs, self.machine);
        self.known.insert(key, r);
        r
    }
}
