//! Fusion: decides which values are stored and which kernels compute them, by local search on the program.
//!
//! There are four moves: merge two kernels, recompute a value in its readers instead of storing it, store a value that
//! several kernels compute in one of them, and shift part of a kernel to one that feeds it. Every value satisfies `x =
//! load(store x)`; this module decides where that identity is used. A kernel may store several values, and a value may
//! be computed in several kernels instead of being stored. Ties are broken by number, so the same program gives the
//! same kernels.
use crate::checker::Checker;
use crate::compare;
use crate::dag::Dag;
use crate::region::{Reject, kind};
use crate::regions::sorted;
pub use crate::regions::{Region, Regions, inputs};
pub use boundaries::{Apart, best_cut, boundaries};
use kernel_order::KernelOrder;
use kiln_graph::ops::Class;
use kiln_plan::{KernelKind, Stage};
pub use limits::{Limits, Pin, fused_under};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

mod boundaries;
mod kernel_order;
mod limits;

type Set = BTreeSet<usize>;

/// A kernel may be merged with this many siblings (readers of the same value) created before it, and as many created
/// after it. Readers of a graph input are siblings only if there are no more than this.
const NEAR: usize = 16;
/// Readers of a kernel that are considered at once.
const FEW: usize = 32;

/// Seconds saved.
#[derive(PartialEq)]
struct Gain(f64);
impl Eq for Gain {}
impl Ord for Gain {
    fn cmp(&self, other: &Gain) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}
impl PartialOrd for Gain {
    fn partial_cmp(&self, other: &Gain) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
/// The union of two ascending lists, ascending.
fn joined(a: &[usize], b: &[usize]) -> Vec<usize> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a, b);
    while let (Some(&x), Some(&y)) = (a.first(), b.first()) {
        out.push(x.min(y));
        a = &a[usize::from(x <= y)..];
        b = &b[usize::from(y <= x)..];
    }
    out.extend_from_slice(a);
    out.extend_from_slice(b);
    out
}

struct Planner<'a, 'm> {
    dag: &'a Dag,
    check: &'a mut Checker<'m>,
    kinds: Vec<u32>,
    plan: Regions,
    /// By value: the kernels that read it from memory.
    readers: Vec<Set>,
    /// By value: the kernel that stores it.
    home: Vec<Option<usize>>,
    next: usize,
    order: KernelOrder,
    limits: Option<&'a Limits>,
    /// Pinned kernels, which no move may change.
    locked: Set,
}

/// One kernel per op, as a framework runs the program; views are read through where they can be.
pub fn unfused(dag: &Dag, check: &mut Checker) -> Regions {
    let mut p = Planner::new(dag, check);
    p.one_kernel_per_op(p.ops());
    p.plan
}

/// Merges the best pair until no merge saves time, then recomputes and shifts values; repeats until nothing changes.
pub fn fused(dag: &Dag, check: &mut Checker) -> Regions {
    let mut p = Planner::new(dag, check);
    p.one_kernel_per_op(p.ops());
    p.improve();
    p.plan
}

impl<'a, 'm> Planner<'a, 'm> {
    fn new(dag: &'a Dag, check: &'a mut Checker<'m>) -> Planner<'a, 'm> {
        let (n, kinds) = (dag.nodes.len(), check.kinds(dag));
        let plan = Regions::default();
        let (readers, home) = (vec![Set::new(); n], vec![None; n]);
        Planner {
            dag,
            check,
            kinds,
            plan,
            readers,
            home,
            next: 0,
            order: KernelOrder::default(),
            limits: None,
            locked: Set::new(),
        }
    }
    fn price(&mut self, members: Vec<usize>, outs: Vec<usize>) -> Result<Region, Reject> {
        if self.limits.is_some_and(|l| !l.allows(&members)) {
            return Err(Reject::KeptApart);
        }
        let mut price = self.check.price(self.dag, &self.kinds, &members, &outs)?;
        if self.dag.stage == Stage::Run && members.iter().all(|&m| self.dag.frozen(m)) {
            price.seconds = 0.;
        }
        Ok(Region::new(self.dag, members, outs, price))
    }
    /// Predicted seconds of a kernel. Invariant: the plan has a kernel of this id.
    fn seconds(&self, id: usize) -> f64 {
        self.plan.by_id[&id].price.seconds
    }
    fn install(&mut self, k: Region) -> usize {
        let id = self.next;
        self.next += 1;
        for &i in &k.reads {
            self.readers[i].insert(id);
        }
        for &o in &k.outs {
            self.home[o] = Some(id);
        }
        self.plan.by_id.insert(id, k);
        self.order.forget();
        id
    }
    fn remove(&mut self, id: usize) {
        let Some(k) = self.plan.by_id.remove(&id) else { return };
        self.order.forget();
        for i in &k.reads {
            self.readers[*i].remove(&id);
        }
        for &o in &k.outs {
            if self.home[o] == Some(id) {
                self.home[o] = None;
            }
        }
    }

    fn improve(&mut self) {
        let dag = self.dag;
        // Every round saves time, so there are few rounds; the limit bounds the work for pathological programs.
        for _ in 0..16 {
            self.merge_all();
            let mut moved = false;
            for v in dag.live.iter().copied() {
                moved |= self.recompute(v);
            }
            for (v, homes) in self.computed_often() {
                moved |= self.share(v, &homes);
            }
            for b in self.plan.by_id.keys().copied().collect::<Vec<_>>() {
                let members = self.plan.by_id.get(&b).map(|k| k.members.clone()).unwrap_or_default();
                moved |= members.into_iter().any(|m| !dag.is_free(m) && self.shift(b, m));
            }
            if !moved {
                break;
            }
        }
    }
    /// Values that need a kernel: all ops except those that are computed inline, and of these all that must be stored.
    fn ops(&self) -> Vec<usize> {
        let dag = self.dag;
        let computes = |v: &usize| !matches!(dag.class[*v], Class::Leaf | Class::Result);
        dag.live.iter().copied().filter(|v| computes(v) && (!dag.is_free(*v) || dag.is_root(*v))).collect()
    }
    /// Views and what is computed from indices belong to the kernels that read them. Those that such a kernel cannot
    /// follow are stored too; libtorch and programs written by hand follow none.
    fn one_kernel_per_op(&mut self, mut todo: Vec<usize>) {
        let dag = self.dag;
        let mut stored: Set = todo.iter().copied().collect();
        let users = self.users_of_opaque();
        let free = |a: &usize| dag.is_free(*a);
        while let Some(v) = todo.pop() {
            if dag.class[v].is_opaque() {
                todo.extend(dag.args(v).iter().copied().filter(free).filter(|&a| stored.insert(a)));
                let k = self.opaque(v, users.get(&v).map_or(&[][..], Vec::as_slice));
                self.install(k);
                continue;
            }
            let (mut members, mut open) = (Set::from([v]), vec![v]);
            while let Some(x) = open.pop() {
                let through = |a: &usize| dag.is_free(*a) && !stored.contains(a);
                open.extend(dag.args(x).iter().copied().filter(through).filter(|&a| members.insert(a)));
            }
            match self.price(sorted(members), vec![v]) {
                Ok(k) => {
                    self.install(k);
                }
                Err(_) => {
                    let views: Vec<usize> =
                        dag.args(v).iter().copied().filter(free).filter(|&a| stored.insert(a)).collect();
                    if views.is_empty() {
                        // A single op on stored operands is always legal.
                        let price = self.check.alone(dag, v);
                        self.install(Region::new(dag, vec![v], vec![v], price));
                        continue;
                    }
                    todo.push(v);
                    todo.extend(views);
                }
            }
        }
    }
    /// The users of each fallback and launch.
    fn users_of_opaque(&self) -> FxHashMap<usize, Vec<usize>> {
        let (dag, mut out) = (self.dag, FxHashMap::<usize, Vec<usize>>::default());
        for &u in &dag.live {
            for &a in dag.args(u).iter().filter(|a| dag.class[**a].is_opaque()) {
                out.entry(a).or_default().push(u);
            }
        }
        out
    }
    /// The kernel of a fallback or a launch and those of its results that are used; `users` read it.
    fn opaque(&mut self, v: usize, users: &[usize]) -> Region {
        let dag = self.dag;
        let is_result = |u: &usize| dag.class[*u] == Class::Result;
        let members = sorted(users.iter().copied().filter(is_result).chain([v]));
        let own = dag.is_root(v) || users.iter().any(|u| !is_result(u));
        let outs = members.iter().copied().filter(|&m| m != v || own).collect();
        Region::new(dag, members, outs, self.check.alone(dag, v))
    }

    fn followers(&self, id: usize) -> Set {
        let Some(k) = self.plan.by_id.get(&id) else { return Set::new() };
        k.outs.iter().flat_map(|&o| self.readers[o].iter().copied()).filter(|&k| k != id).collect()
    }
    /// `a` and `b` as one kernel, with the seconds saved, if that is legal and saves time. Values that only these two
    /// read are no longer stored.
    fn merged(&mut self, a: usize, b: usize) -> Option<(f64, Region)> {
        if self.locked.contains(&a) || self.locked.contains(&b) {
            return None;
        }
        let k = self.union(a, b)?.ok()?;
        let gain = self.seconds(a) + self.seconds(b) - k.price.seconds;
        let saves = gain > 1e-12 && !self.detour(a, b) && !self.detour(b, a) && self.prologue_pays(&[a, b], &[&k]);
        saves.then_some((gain, k))
    }
    /// Where `new` kernels compute operands of matmuls: whether their prices say that they save time.
    fn prologue_pays(&mut self, gone: &[usize], new: &[&Region]) -> bool {
        let computes_operands =
            |r: &&Region| r.price.needs.computes_operands() && kind(self.dag, &r.members) == KernelKind::Gemm;
        let gone: Vec<&Region> = gone.iter().filter_map(|id| self.plan.by_id.get(id)).collect();
        !new.iter().any(computes_operands) || compare::prologue_pays(self.dag, &self.kinds, &gone, new, self.check)
    }
    fn union(&mut self, a: usize, b: usize) -> Option<Result<Region, Reject>> {
        let (ka, kb) = (self.plan.by_id.get(&a)?, self.plan.by_id.get(&b)?);
        let read_elsewhere = |o: &usize| self.dag.is_root(*o) || self.readers[*o].iter().any(|&r| r != a && r != b);
        let outs = sorted(ka.outs.iter().chain(&kb.outs).copied().filter(read_elsewhere));
        let members = self.cone(&joined(&ka.members, &kb.members), &outs);
        Some(self.price(members, outs))
    }
    /// The next readers of `id` after kernel `last`, at most [`FEW`].
    fn readers_behind(&self, id: usize, last: Option<usize>) -> Vec<usize> {
        let Some(k) = self.plan.by_id.get(&id) else { return vec![] };
        let from = last.map_or(0, |l| l + 1);
        let next = |&o: &usize| self.readers[o].range(from..).copied().filter(|&r| r != id).take(FEW);
        let mut readers = sorted(k.outs.iter().flat_map(next));
        readers.truncate(FEW);
        readers
    }
    /// Candidates for merging: `id` with the kernels it reads from, and with siblings that read the same computed
    /// value. Of many siblings, only those created just before and after it: otherwise a value with n readers would
    /// have n² pairs.
    fn pairs_of(&self, id: usize, out: &mut BTreeSet<(usize, usize)>) {
        let Some(k) = self.plan.by_id.get(&id) else { return };
        for &i in &k.reads {
            let before = self.readers[i].range(..id).rev().take(NEAR).map(|&r| (r, id));
            let siblings = before.chain(self.readers[i].range(id + 1..).take(NEAR).map(|&r| (id, r)));
            match self.home[i].filter(|&h| h != id) {
                Some(h) => {
                    out.insert((h, id));
                    out.extend(siblings);
                }
                // Readers of a parameter usually have nothing else in common.
                None if !self.dag.frozen(i) && self.readers[i].len() <= NEAR => out.extend(siblings),
                None => {}
            }
        }
    }
    fn merge_all(&mut self) {
        let mut asked: FxHashSet<(usize, usize)> = FxHashSet::default();
        // The best first; of equally good ones, those with the lowest numbers.
        let mut best: BinaryHeap<(Gain, Reverse<(usize, usize)>)> = BinaryHeap::new();
        let mut fresh: Vec<usize> = self.plan.by_id.keys().copied().collect();
        // Regions with more readers than were considered, and the last one considered. They are deferred until no other
        // merge saves time: otherwise each growth step of a kernel with n readers would consider all of them.
        let mut later: VecDeque<(usize, usize)> = VecDeque::new();
        loop {
            let (mut pairs, mut readers_of) = (BTreeSet::new(), vec![]);
            for id in fresh.drain(..) {
                self.pairs_of(id, &mut pairs);
                readers_of.push((id, None));
            }
            if readers_of.is_empty() && best.is_empty() {
                let Some((id, last)) = later.pop_front() else { return };
                readers_of.push((id, Some(last)));
            }
            for (id, last) in readers_of {
                let readers = self.readers_behind(id, last);
                if let (Some(&last), FEW) = (readers.last(), readers.len()) {
                    later.push_back((id, last));
                }
                pairs.extend(readers.into_iter().map(|r| (id, r)));
            }
            for p in pairs {
                if asked.insert(p)
                    && let Some((gain, _)) = self.merged(p.0, p.1)
                {
                    best.push((Gain(gain), Reverse(p)));
                }
            }
            // Since this pair was priced, another merge may have removed one of the two or created a path between them.
            if let Some((_, Reverse((a, b)))) = best.pop()
                && let Some((_, k)) = self.merged(a, b)
            {
                fresh.push(self.exchange(a, b, k));
            }
        }
    }
    fn cone(&self, members: &[usize], outs: &[usize]) -> Vec<usize> {
        cone(self.dag, members, outs, &[])
    }
    /// Does replacing `gone` by `new` save time, and do the constraints allow it?
    fn gains(&mut self, gone: &[usize], new: &[Region]) -> bool {
        let before: f64 = gone.iter().map(|&k| self.seconds(k)).sum();
        new.iter().map(|k| k.price.seconds).sum::<f64>() < before - 1e-12
            && self.keeps_together(gone, new)
            && self.prologue_pays(gone, &new.iter().collect::<Vec<_>>())
    }
    /// Stops storing `v`: every reader recomputes it. True if that is legal everywhere and saves time.
    fn recompute(&mut self, v: usize) -> bool {
        if self.dag.is_root(v) || self.dag.class[v].is_anchor() {
            return false;
        }
        let Some(k) = self.home[v].and_then(|h| self.plan.by_id.get(&h)).cloned() else { return false };
        let again = self.cone(&k.members, &[v]);
        // A program runs once.
        if again.iter().any(|m| self.dag.class[*m].is_opaque()) {
            return false;
        }
        let outs: Vec<usize> = k.outs.iter().copied().filter(|&o| o != v).collect();
        let readers: Vec<usize> = self.readers[v].iter().copied().collect();
        let mut regions: Vec<(Vec<usize>, Vec<usize>)> = vec![];
        for r in &readers {
            let Some(r) = self.plan.by_id.get(r) else { return false };
            regions.push((joined(&r.members, &again), r.outs.clone()));
        }
        if !outs.is_empty() {
            regions.push((self.cone(&k.members, &outs), outs));
        }
        let new: Result<Vec<Region>, Reject> = regions.into_iter().map(|(m, o)| self.price(m, o)).collect();
        let gone: Vec<usize> = readers.into_iter().chain(self.home[v]).collect();
        match new {
            // Readers read what the kernel that stored `v` read, so there is no cycle.
            Ok(new) if self.gains(&gone, &new) => {
                self.swap(&gone, new);
                true
            }
            _ => false,
        }
    }
    /// Values that two to [`FEW`] kernels compute, with these kernels.
    fn computed_often(&self) -> Vec<(usize, Vec<usize>)> {
        let mut homes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (&id, k) in &self.plan.by_id {
            k.members.iter().filter(|&&m| !self.dag.is_free(m)).for_each(|&m| homes.entry(m).or_default().push(id));
        }
        homes.into_iter().filter(|h| (2..=FEW).contains(&h.1.len())).collect()
    }
    /// Stores `v` in one of the kernels that compute it, for all others to read. True if that is legal and saves time.
    fn share(&mut self, v: usize, homes: &[usize]) -> bool {
        // An earlier move may have changed these kernels.
        let computes = |id: &usize| self.plan.by_id.get(id).is_some_and(|k| k.members.binary_search(&v).is_ok());
        if !homes.iter().all(|id| computes(id) && !self.locked.contains(id)) {
            return false;
        }
        for &a in homes {
            let others: Vec<usize> = homes.iter().copied().filter(|&b| b != a).collect();
            let mut regions: Vec<(Vec<usize>, Vec<usize>)> = vec![];
            let outs = sorted(self.plan.by_id[&a].outs.iter().copied().chain([v]));
            regions.push((self.plan.by_id[&a].members.clone(), outs));
            for b in &others {
                let k = &self.plan.by_id[b];
                let outs: Vec<usize> = k.outs.iter().copied().filter(|&o| o != v).collect();
                if !outs.is_empty() {
                    regions.push((cone(self.dag, &k.members, &outs, &[v]), outs));
                }
            }
            let new: Result<Vec<Region>, Reject> = regions.into_iter().map(|(m, o)| self.price(m, o)).collect();
            let gone: Vec<usize> = [a].into_iter().chain(others.iter().copied()).collect();
            let Ok(new) = new else { continue };
            if self.gains(&gone, &new) && !others.iter().any(|&b| self.leads_to(b, a)) {
                // The order may change.
                self.order.forget();
                self.swap(&gone, new);
                return true;
            }
        }
        false
    }
    /// Whether `a` needs a result of `b`, by any number of kernels in between.
    fn leads_to(&self, b: usize, a: usize) -> bool {
        let (mut seen, mut todo) = (Set::new(), vec![b]);
        while let Some(id) = todo.pop() {
            if id == a {
                return true;
            }
            todo.extend(self.followers(id).into_iter().filter(|&n| seen.insert(n)));
        }
        false
    }
    /// Moves the part of kernel `b` that computes `m` to a kernel that feeds `b`. True if that saves time.
    fn shift(&mut self, b: usize, m: usize) -> bool {
        let Some(kb) = self.plan.by_id.get(&b).cloned() else { return false };
        if kb.outs.contains(&m) {
            return false;
        }
        let part = self.cone(&kb.members, &[m]);
        let homes: Set = inputs(self.dag, &part).iter().filter_map(|&i| self.home[i]).filter(|&h| h != b).collect();
        if homes.is_empty() {
            return false;
        }
        let kept: Vec<usize> = kb.members.iter().copied().filter(|&x| x != m).collect();
        let Ok(tail) = self.price(self.cone(&kept, &kb.outs), kb.outs) else { return false };
        homes.into_iter().any(|a| {
            let Some(ka) = self.plan.by_id.get(&a) else { return false };
            let needed = |o: &usize| {
                self.dag.is_root(*o) || tail.reads.contains(o) || self.readers[*o].iter().any(|&r| r != a && r != b)
            };
            let outs = sorted(ka.outs.iter().copied().filter(needed).chain([m]));
            let members = joined(&ka.members, &part);
            let Ok(head) = self.price(members, outs) else { return false };
            let new = [head, tail.clone()];
            let gains = self.gains(&[a, b], &new) && !self.detour(a, b);
            if gains {
                self.share_anew(a, b, new);
            }
            gains
        })
    }
}

/// The members that `outs` depend on, without `stored` values and what only those depend on.
fn cone(dag: &Dag, members: &[usize], outs: &[usize], stored: &[usize]) -> Vec<usize> {
    // Users come after what they use.
    let mut needed = vec![false; members.len()];
    let need = |x: usize, below: usize, needed: &mut [bool]| {
        if let Ok(i) = members[..below].binary_search(&x) {
            needed[i] = !stored.contains(&x);
        }
    };
    outs.iter().for_each(|&o| need(o, members.len(), &mut needed));
    for i in (0..members.len()).rev() {
        if needed[i] {
            dag.args(members[i]).iter().for_each(|&a| need(a, i, &mut needed));
        }
    }
    members.iter().zip(needed).filter(|(_, needed)| *needed).map(|(&m, _)| m).collect()
}
