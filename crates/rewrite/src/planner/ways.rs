//! Which kernels come after which.
use super::Planner;

/// An order of the kernels in which each comes after those that it reads from, and who reads from whom; by id.
#[derive(Default)]
pub(super) struct Ways {
    /// Kernels in that order, with gaps; empty when it is to be found again.
    line: Vec<usize>,
    /// Places in the line.
    place: Vec<usize>,
    after: Vec<Vec<usize>>,
    /// The last search that met a kernel.
    met: Vec<usize>,
    searches: usize,
}
const GAP: usize = usize::MAX;

impl Ways {
    pub(super) fn forget(&mut self) {
        self.line.clear();
    }
    /// Is there a way from `a` to `b` other than the direct edge?
    fn detour(&mut self, a: usize, b: usize) -> bool {
        let last = self.place[b];
        if self.place[a] >= last {
            return false;
        }
        self.searches += 1;
        let mut todo = vec![a];
        while let Some(k) = todo.pop() {
            for &r in &self.after[k] {
                if r == b {
                    if k != a {
                        return true;
                    }
                // What comes after `b` does not lead to it.
                } else if self.place[r] < last && std::mem::replace(&mut self.met[r], self.searches) != self.searches {
                    todo.push(r);
                }
            }
        }
        false
    }
    /// Puts `new` where `a` and `b` were, which have no detour between them: behind what stands between the two, but for what comes
    /// after the first.
    fn contract(&mut self, a: usize, b: usize, new: usize) {
        let (first, from, to) = match (self.place[a], self.place[b]) {
            (p, q) if p < q => (a, p, q),
            (p, q) => (b, q, p),
        };
        self.searches += 1;
        self.met[first] = self.searches;
        let (mut before, mut behind) = (vec![], vec![]);
        for &k in self.line[from..=to].iter().filter(|&&k| k != GAP) {
            if self.met[k] == self.searches {
                self.after[k].iter().for_each(|&r| self.met[r] = self.searches);
            }
            match () {
                () if k == a || k == b => {}
                () if self.met[k] == self.searches => behind.push(k),
                () => before.push(k),
            }
        }
        let segment = before.into_iter().chain([new]).chain(behind).chain(std::iter::repeat(GAP));
        for (place, k) in (from..=to).zip(segment) {
            self.line[place] = k;
            if k != GAP {
                self.place[k] = place;
            }
        }
    }
}

impl Planner<'_, '_> {
    /// Is there a way from `a` to `b` other than the direct edge? Then one kernel would wait for itself.
    pub(super) fn detour(&mut self, a: usize, b: usize) -> bool {
        self.sort();
        self.ways.detour(a, b)
    }
    /// Exchanges two kernels for one that computes what they do, short of what only they read.
    pub(super) fn exchange(&mut self, a: usize, b: usize, k: super::Kernel) -> usize {
        self.sort();
        let mut ways = std::mem::take(&mut self.ways);
        let feeds = |p: &Self, id: usize| -> Vec<usize> {
            let reads = p.plan.by_id.get(&id).map(|k| &k.reads[..]).unwrap_or_default();
            reads.iter().filter_map(|&i| p.home[i]).collect()
        };
        let old: Vec<usize> = feeds(self, a).into_iter().chain(feeds(self, b)).collect();
        self.remove(a);
        self.remove(b);
        let new = self.install(k);
        ways.place.push(0);
        ways.met.push(0);
        ways.after.push(self.followers(new).into_iter().collect());
        ways.contract(a, b, new);
        for h in old {
            ways.after[h].retain(|&r| r != a && r != b);
        }
        for h in feeds(self, new).into_iter().filter(|&h| h != new) {
            if !ways.after[h].contains(&new) {
                ways.after[h].push(new);
            }
        }
        self.ways = ways;
        new
    }
    /// Finds the order after a change.
    fn sort(&mut self) {
        if !self.ways.line.is_empty() {
            return;
        }
        let n = self.next;
        let mut ways = Ways { place: vec![0; n], after: vec![vec![]; n], met: vec![0; n], ..Ways::default() };
        let mut waits = vec![0; n];
        for &id in self.plan.by_id.keys() {
            ways.after[id] = self.followers(id).into_iter().collect();
            ways.after[id].iter().for_each(|&r| waits[r] += 1);
        }
        let mut ready: Vec<usize> = self.plan.by_id.keys().copied().filter(|&id| waits[id] == 0).collect();
        while let Some(id) = ready.pop() {
            ways.place[id] = ways.line.len();
            ways.line.push(id);
            for &r in &ways.after[id] {
                waits[r] -= 1;
                if waits[r] == 0 {
                    ready.push(r);
                }
            }
        }
        self.ways = ways;
    }
}
