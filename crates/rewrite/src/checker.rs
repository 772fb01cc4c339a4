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
    /// The key at hand.
    key: Vec<u32>,
    /// By value of a program: the last region it was met in, and its number there.
    met: Vec<(usize, u32)>,
}

impl<'a> Checker<'a> {
    pub fn new(machine: &'a Machine) -> Checker<'a> {
        let (kinds, known) = (FxHashMap::default(), FxHashMap::default());
        Checker { machine, kinds, known, asked: 0, key: vec![], met: vec![] }
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
        self.write_key(dag, kinds, members, outs);
        if let Some(r) = self.known.get(&self.key[..]) {
            return *r;
        }
        let r = check(dag, members, outs, self.machine);
        self.known.insert(self.key.clone(), r);
        r
    }
    /// The region with its values numbered in order of appearance; the tags keep the sequence unambiguous.
    fn write_key(&mut self, dag: &Dag, kinds: &[u32], members: &[usize], outs: &[usize]) {
        const OUTSIDE: u32 = 1 << 30;
        const MEMBER: u32 = 1 << 31;
        if self.met.len() < kinds.len() {
            self.met.resize(kinds.len(), (0, 0));
        }
        self.key.clear();
        let (region, mut next) = (self.asked, 0);
        for &m in members {
            for &a in dag.args(m) {
                match self.met[a] {
                    (last, i) if last == region => self.key.push(i),
                    _ => {
                        self.met[a] = (region, next);
                        self.key.extend([next | OUTSIDE, kinds[a]]);
                        next += 1;
                    }
                }
            }
            self.met[m] = (region, next);
            next += 1;
            self.key.extend([kinds[m] | MEMBER, u32::from(outs.contains(&m))]);
        }
    }
}
