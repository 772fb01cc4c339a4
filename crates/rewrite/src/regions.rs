//! Kernels of a program: regions with their prices, and their order of launch.
use crate::cost::Price;
use crate::dag::Dag;
use std::collections::{BTreeMap, BTreeSet};

/// A kernel: a legal region of the program with its price.
#[derive(Clone, Debug)]
pub struct Region {
    /// Ascending; each is needed for some output.
    pub members: Vec<usize>,
    /// Members that it stores, ascending.
    pub outs: Vec<usize>,
    /// Values that the members read from outside of the kernel, ascending.
    pub reads: Vec<usize>,
    pub price: Price,
}
impl Region {
    pub fn new(dag: &Dag, members: Vec<usize>, outs: Vec<usize>, price: Price) -> Region {
        Region { reads: inputs(dag, &members), members, outs, price }
    }
}

#[derive(Clone, Default, Debug)]
pub struct Regions {
    pub by_id: BTreeMap<usize, Region>,
}
impl Regions {
    pub fn seconds(&self) -> f64 {
        self.by_id.values().map(|k| k.price.seconds).sum()
    }
    /// Region ids in launch order: each after those whose results it reads, otherwise in the order of the program.
    /// `None` if there is a cycle (never: merges check for it).
    pub fn launches(&self) -> Option<Vec<usize>> {
        let mut home: BTreeMap<usize, usize> = BTreeMap::new();
        for (&id, k) in &self.by_id {
            home.extend(k.outs.iter().map(|&o| (o, id)));
        }
        let mut waits: BTreeMap<usize, usize> = BTreeMap::new();
        let mut feeds: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (&id, k) in &self.by_id {
            let before: BTreeSet<usize> = k.reads.iter().filter_map(|i| home.get(i).copied()).collect();
            waits.insert(id, before.len());
            for b in before {
                feeds.entry(b).or_default().push(id);
            }
        }
        let key = |id: usize| (self.by_id[&id].outs.first().copied().unwrap_or(0), id);
        let mut ready: BTreeSet<(usize, usize)> = waits.iter().filter(|w| *w.1 == 0).map(|w| key(*w.0)).collect();
        let mut order = vec![];
        while let Some((_, id)) = ready.pop_first() {
            order.push(id);
            for &n in feeds.get(&id).map_or(&[][..], Vec::as_slice) {
                if let Some(w) = waits.get_mut(&n) {
                    *w -= 1;
                    if *w == 0 {
                        ready.insert(key(n));
                    }
                }
            }
        }
        (order.len() == self.by_id.len()).then_some(order)
    }
}

pub fn sorted(i: impl IntoIterator<Item = usize>) -> Vec<usize> {
    let mut v: Vec<usize> = i.into_iter().collect();
    v.sort_unstable();
    v.dedup();
    v
}

/// What a region reads, ascending.
pub fn inputs(dag: &Dag, members: &[usize]) -> Vec<usize> {
    let args = members.iter().flat_map(|&m| dag.args(m)).copied();
    sorted(args.filter(|a| members.binary_search(a).is_err()))
}
