//! A cache for `region::check`: regions of the same structure (repeated layers, or the same region again) are checked
//! once.
use crate::Work;
use crate::body::{forms, kernel};
use crate::cost::Price;
use crate::dag::Dag;
use crate::prices::{Candidate, Launches, Priced, Prices, TargetInfo};
use crate::region::{self, MAX_MEMBERS, Reject, check};
use crate::regions::Region;
use kiln_graph::launch::LaunchOp;
use kiln_graph::ops::Class;
use kiln_graph::{Op, Type};
use kiln_plan::{Form, Hardware, LaunchAccess, Stage};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

/// Most words of a key that is stored unhashed.
const LONG: usize = 256;

/// Everything about a value, apart from its operands, that legality and cost depend on.
type Kind = (Option<Op>, Type, Class, Vec<Form>);

pub struct Checker<'a> {
    pub machine: &'a Hardware<'a>,
    prices: Option<&'a dyn Prices>,
    launches: Option<&'a dyn Launches>,
    /// Of launches with their types of operands.
    accesses: FxHashMap<(LaunchOp, Vec<Type>), Rc<LaunchAccess>>,
    /// By the key of a region.
    priced: FxHashMap<Vec<u32>, Option<Priced>>,
    kinds: FxHashMap<Kind, u32>,
    known: FxHashMap<Vec<u32>, Result<Price, Reject>>,
    pub work: Work,
    /// The key under construction.
    key: Vec<u32>,
    /// For each value of a program: the last region in which it occurred, and its number there.
    met: Vec<(usize, u32)>,
}

/// A region as what prices are asked for.
fn candidate(dag: &Dag, region: &Region, machine: &Hardware) -> Candidate {
    let frozen = region.members.iter().all(|&m| dag.frozen(m));
    let stage = if frozen { Stage::Load } else { dag.stage };
    Candidate { kernel: kernel(dag, region, "kernel", stage, machine).0, forms: forms(dag, region) }
}

impl<'a> Checker<'a> {
    pub fn new(machine: &'a Hardware<'a>) -> Checker<'a> {
        let (kinds, known, priced) = (FxHashMap::default(), FxHashMap::default(), FxHashMap::default());
        let (accesses, work) = (FxHashMap::default(), Work::default());
        let (prices, launches) = (None, None);
        Checker { machine, prices, launches, accesses, priced, kinds, known, work, key: vec![], met: vec![] }
    }
    /// The same, which asks for prices and accesses.
    pub fn with_target(self, target: TargetInfo<'a>) -> Checker<'a> {
        Checker { prices: target.prices, launches: target.launches, ..self }
    }
    /// What is known of the launch among these values, if there is one.
    fn access(&mut self, dag: &Dag, members: &[usize]) -> Option<Rc<LaunchAccess>> {
        let launches = self.launches?;
        members.iter().find_map(|v| {
            let Op::Launch(launch) = dag.op(*v) else { return None };
            let types: Vec<Type> = dag.args(*v).iter().map(|a| dag.ty(*a).clone()).collect();
            let found = self.accesses.entry((LaunchOp::clone(launch), types.clone()));
            let operands: Vec<&Type> = types.iter().collect();
            Some(found.or_insert_with(|| Rc::new(launches.access(launch, &operands))).clone())
        })
    }
    /// Price of one op that reads its operands and writes its result.
    pub fn alone(&mut self, dag: &Dag, v: usize) -> Price {
        let access = if dag.class[v] == Class::Launch { self.access(dag, &[v]) } else { None };
        region::alone(dag, v, self.machine, access.as_deref())
    }
    /// Whether it can ask for prices.
    pub fn has_prices(&self) -> bool {
        self.prices.is_some()
    }
    /// What these regions take by their cheapest schedules; `None` where there is no price.
    pub fn priced(&mut self, dag: &Dag, kinds: &[u32], regions: &[&Region]) -> Vec<Option<Priced>> {
        let Some(prices) = self.prices else { return vec![None; regions.len()] };
        let keys: Vec<Vec<u32>> = regions.iter().map(|r| self.key(dag, kinds, r)).collect();
        let mut asked: BTreeMap<&[u32], Candidate> = BTreeMap::new();
        for (key, region) in keys.iter().zip(regions).filter(|k| !self.priced.contains_key(k.0)) {
            asked.entry(key).or_insert_with(|| candidate(dag, region, self.machine));
        }
        let (new, candidates): (Vec<&[u32]>, Vec<Candidate>) = asked.into_iter().unzip();
        let new = new.into_iter().map(<[u32]>::to_vec).zip(prices.price(&candidates));
        self.priced.extend(new.collect::<Vec<_>>());
        keys.iter().map(|key| self.priced.get(key).copied().flatten()).collect()
    }
    /// The cheapest of these forms of each region that multiplies.
    pub fn chosen_forms(&self, dag: &Dag, regions: &[&Region], allowed: Vec<Vec<Form>>) -> Vec<Option<Form>> {
        let Some(prices) = self.prices else { return vec![None; regions.len()] };
        let candidate =
            |(region, forms): (&&Region, Vec<Form>)| Candidate { forms, ..candidate(dag, region, self.machine) };
        prices.choose(&regions.iter().zip(allowed).map(candidate).collect::<Vec<_>>())
    }
    /// Regions of equal keys have equal bodies and prices.
    pub fn key(&mut self, dag: &Dag, kinds: &[u32], region: &Region) -> Vec<u32> {
        self.work.regions += 1;
        self.write_key(dag, kinds, &region.members, &region.outs);
        self.shorten_key();
        self.key.clone()
    }
    /// Number of distinct regions checked.
    pub fn distinct(&self) -> usize {
        self.known.len()
    }
    /// A number for each value of the program; values that legality and cost cannot distinguish share it.
    pub fn kinds(&mut self, dag: &Dag) -> Vec<u32> {
        let mut kinds = vec![u32::MAX; dag.nodes.len()];
        for &v in &dag.live {
            let op = (dag.class[v] != Class::Leaf).then(|| dag.op(v).clone());
            let next = self.kinds.len() as u32;
            let forms = dag.nodes[v].value.forms.clone();
            kinds[v] = *self.kinds.entry((op, dag.ty(v).clone(), dag.class[v], forms)).or_insert(next);
        }
        kinds
    }
    pub fn price(&mut self, dag: &Dag, kinds: &[u32], members: &[usize], outs: &[usize]) -> Result<Price, Reject> {
        self.work.regions += 1;
        if members.len() > MAX_MEMBERS {
            // Refused at once: not worth a key.
            return check(dag, members, outs, self.machine, None);
        }
        self.write_key(dag, kinds, members, outs);
        self.work.values += self.key.len();
        self.shorten_key();
        if let Some(r) = self.known.get(&self.key[..]) {
            return *r;
        }
        let has_launch = members.iter().any(|v| dag.class[*v] == Class::Launch);
        let access = if has_launch { self.access(dag, members) } else { None };
        let r = check(dag, members, outs, self.machine, access.as_deref());
        self.known.insert(self.key.clone(), r);
        r
    }
    /// Writes the region with its values numbered in order of appearance; the tags keep the sequence unambiguous.
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
    /// Replaces a long key by a hash, since keys of large regions would take too much memory. With 128 bits, the
    /// probability of a collision among a billion regions is below 10^-20.
    fn shorten_key(&mut self) {
        // No unhashed key begins with this word: its first word is a kind or a number with only some of the upper bits
        // set.
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
