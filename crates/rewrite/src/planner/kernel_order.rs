//! The dependency order of kernels: updated incrementally, and used to detect merges that would create a cycle.
use super::{Planner, Region, Set};

/// A topological order of the kernels, and the readers of each; by kernel id.
#[derive(Default)]
pub(super) struct KernelOrder {
    /// Regions in that order, with gaps; empty if the order has to be recomputed.
    line: Vec<usize>,
    /// Position of each kernel in `line`.
    place: Vec<usize>,
    /// Regions that read from each kernel.
    after: Vec<Vec<usize>>,
    /// For each kernel, the last search that visited it from above (`met`) and from below (`met_up`).
    met: Vec<usize>,
    met_up: Vec<usize>,
    searches: usize,
    /// Regions visited since the count was last collected.
    steps: usize,
}
const GAP: usize = usize::MAX;

impl KernelOrder {
    pub(super) fn forget(&mut self) {
        self.line.clear();
    }
    /// Moves `a` towards `b`, behind all kernels between the two that do not depend on it.
    fn delay(&mut self, a: usize, b: usize) {
        let (from, to) = (self.place[a], self.place[b]);
        self.searches += 1;
        self.steps += to - from;
        self.met[a] = self.searches;
        let (mut before, mut behind) = (vec![], vec![]);
        for &k in self.line[from..to].iter().filter(|&&k| k != GAP) {
            if self.met[k] == self.searches {
                self.after[k].iter().for_each(|&r| self.met[r] = self.searches);
                behind.push(k);
            } else {
                before.push(k);
            }
        }
        let segment = before.into_iter().chain(behind).chain(std::iter::repeat(GAP));
        for (place, k) in (from..to).zip(segment) {
            self.line[place] = k;
            if k != GAP {
                self.place[k] = place;
            }
        }
    }
}

impl Planner<'_, '_> {
    /// Is there a path from `a` to `b` other than the direct edge? Then the merged kernel would depend on itself.
    ///
    /// Bidirectional search, the cheaper step first, until one side is exhausted: a value may have thousands of
    /// readers, and a kernel may read thousands of values, but rarely both.
    pub(super) fn detour(&mut self, a: usize, b: usize) -> bool {
        self.sort();
        let mut order = std::mem::take(&mut self.order);
        let found = self.search(&mut order, a, b);
        self.check.work.steps += std::mem::take(&mut order.steps);
        self.order = order;
        found
    }
    fn search(&self, order: &mut KernelOrder, a: usize, b: usize) -> bool {
        let first = order.place[a];
        if first >= order.place[b] || order.after[a] == [b] {
            return false;
        }
        let others = self.feeds(b).filter(|&h| h != a).map(|h| order.place[h]);
        let Some(last) = others.filter(|&p| p > first).max() else { return false };
        order.searches += 1;
        let now = order.searches;
        let (mut down, mut up) = (vec![a], vec![b]);
        let (mut spent_down, mut spent_up) = (0, 0);
        while let (Some(&d), Some(&u)) = (down.last(), up.last()) {
            let (cost_down, cost_up) = (order.after[d].len(), self.feeds(u).count());
            if spent_down + cost_down <= spent_up + cost_up {
                spent_down += cost_down;
                order.steps += cost_down;
                down.pop();
                for &r in &order.after[d] {
                    if r == b {
                        if d != a {
                            return true;
                        }
                    } else if order.place[r] <= last && std::mem::replace(&mut order.met[r], now) != now {
                        down.push(r);
                    }
                }
            } else {
                spent_up += cost_up;
                order.steps += cost_up;
                up.pop();
                for h in self.feeds(u) {
                    if h == a {
                        if u != b {
                            return true;
                        }
                    } else if order.place[h] > first && std::mem::replace(&mut order.met_up[h], now) != now {
                        up.push(h);
                    }
                }
            }
        }
        false
    }
    /// Regions that `id` reads from, possibly with repetitions; `id` must be in the plan.
    fn feeds(&self, id: usize) -> impl Iterator<Item = usize> + '_ {
        self.plan.by_id[&id].reads.iter().filter_map(|&i| self.home[i]).filter(move |&h| h != id)
    }
    /// Replaces two kernels by `k`, which does the work of both. Gives its id.
    pub(super) fn exchange(&mut self, a: usize, b: usize, k: Region) -> usize {
        self.sort();
        let place = |id: usize| self.order.place[id];
        let (first, second) = if place(a) < place(b) { (a, b) } else { (b, a) };
        let reads_before = |id: usize| self.feeds(id).all(|h| h == first || place(h) < place(first));
        let gone = if reads_before(second) {
            [first, second]
        } else if self.order.after[first].iter().all(|&r| r == second || place(r) > place(second)) {
            [second, first]
        } else {
            self.order.delay(first, second);
            [first, second]
        };
        self.swap(&gone, vec![k])[0]
    }
    /// Replaces `a` and its reader `b` by two kernels that divide the work differently.
    pub(super) fn share_anew(&mut self, a: usize, b: usize, new: [Region; 2]) {
        self.sort();
        let first = self.order.place[a];
        let read = new[0].reads.iter().filter_map(|&i| self.home[i]);
        if read.into_iter().any(|h| h != a && h != b && self.order.place[h] > first) {
            self.order.delay(a, b);
        }
        self.swap(&[a, b], new.into());
    }
    /// Replaces kernels by others, each at the position of one of them, in order; all that a new kernel reads must be
    /// stored before that position. Gives the new ids.
    pub(super) fn swap(&mut self, gone: &[usize], new: Vec<Region>) -> Vec<usize> {
        // The order is updated here, not recomputed.
        let mut order = std::mem::take(&mut self.order);
        self.check.work.steps += std::mem::take(&mut order.steps);
        let sorted = !order.line.is_empty();
        if sorted {
            let lost: Set = gone.iter().copied().collect();
            let feeders: Set = gone.iter().flat_map(|&g| self.feeds(g)).collect();
            feeders.into_iter().for_each(|h| order.after[h].retain(|r| !lost.contains(r)));
        }
        gone.iter().for_each(|&g| self.remove(g));
        let first = self.next;
        let ids: Vec<usize> = new.into_iter().map(|k| self.install(k)).collect();
        if sorted {
            order.place.resize(self.next, GAP);
            order.met.resize(self.next, 0);
            order.met_up.resize(self.next, 0);
            order.after.resize(self.next, vec![]);
            for (i, g) in gone.iter().enumerate() {
                let place = order.place[*g];
                order.line[place] = GAP;
                if let Some(&id) = ids.get(i) {
                    order.line[place] = id;
                    order.place[id] = place;
                }
            }
            for &id in &ids {
                order.after[id] = self.followers(id).into_iter().collect();
                let old: Set = self.feeds(id).filter(|&h| h < first).collect();
                old.into_iter().for_each(|h| order.after[h].push(id));
            }
        }
        self.order = order;
        ids
    }
    /// Recomputes the order if a change has invalidated it.
    fn sort(&mut self) {
        if !self.order.line.is_empty() {
            return;
        }
        let n = self.next;
        let mut order = KernelOrder {
            place: vec![0; n],
            after: vec![vec![]; n],
            met: vec![0; n],
            met_up: vec![0; n],
            ..KernelOrder::default()
        };
        let mut waits = vec![0; n];
        for &id in self.plan.by_id.keys() {
            order.after[id] = self.followers(id).into_iter().collect();
            order.after[id].iter().for_each(|&r| waits[r] += 1);
        }
        let mut ready: Vec<usize> = self.plan.by_id.keys().copied().filter(|&id| waits[id] == 0).collect();
        while let Some(id) = ready.pop() {
            order.place[id] = order.line.len();
            order.line.push(id);
            for &r in &order.after[id] {
                waits[r] -= 1;
                if waits[r] == 0 {
                    ready.push(r);
                }
            }
        }
        self.order = order;
    }
}
