//! `region::check` with a memory: regions that look alike (repeated layers, a region met again) are checked once.
use crate::Work;
use crate::cost::Price;
use crate::dag::Dag;
use crate::region::{MAX_MEMBERS, Reject, check};
use kiln_graph::ops::Class;
use kiln_graph::{Op, Type};
use kiln_plan::Hardware;
use rustc_hash::FxHashMap;
use std::hash::{DefaultHasher, Hasher};

/// Words of a key that is kept as it is.
const LONG: usize = 256;

/// What legality and cost can tell a value apart by, its operands aside.
type Kind = (Option<Op>, Type, Class);

pub struct Checker<'a> {
    pub machine: &'a Hardware<'a>,
    kinds: FxHashMap<Kind, u32>,
    known: FxHashMap<Vec<u32>, Result<Price, Reject>>,
    pub work: Work,
    /// The key at hand.
    key: Vec<u32>,
    /// By value of a program: the last region it was met in, and its number there.
    met: Vec<(usize, u32)>,
}

impl<'a> Checker<'a> {
    pub fn new(machine: &'a Hardware<'a>) -> Checker<'a> {
        let (kinds, known) = (FxHashMap::default(), FxHashMap::default());
        Checker { machine, kinds, known, work: Work::default(), key: vec![], met: vec![] }
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
        self.work.regions += 1;
        if members.len() > MAX_MEMBERS {
            // Refused at a glance.
            return check(dag, members, outs, self.machine);
        }
        self.write_key(dag, kinds, members, outs);
        self.work.values += self.key.len();
        self.shorten_key();
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
        let (region, mut next) = (self.work.regions, 0);
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
            self.key.extend([kinds[m] | MEMBER, u32::from(outs.binary_search(&m).is_ok())]);
        }
    }
    /// A long key by its fingerprint, as regions of many values would fill the memory. With 128 bits no two of a billion regions are alike
    /// but by a chance of one in 10^20.
    fn shorten_key(&mut self) {
        // No key begins so: its first word is a kind of value or a place, which have the uppermost bits only in part.
        const SHORT: u32 = u32::MAX;
        if self.key.len() <= LONG {
            return;
        }
        let half = |seed: u32| {
            let mut h = DefaultHasher::new();
            h.write_u32(seed);
            self.key.iter().for_each(|&w| h.write_u32(w));
            let h = h.finish();
            [h as u32, (h >> 32) as u32]
        };
        let ([a, b], [c, d]) = (half(1), half(2));
        self.key.clear();
        self.key.extend([SHORT, a, b, c, d]);
    }
}
