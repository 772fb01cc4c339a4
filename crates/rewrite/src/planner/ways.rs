//! Which kernels come after which.
use super::Planner;

impl Planner<'_, '_> {
    /// Is there a way from `a` to `b` other than the direct edge? Then one kernel would wait for itself.
    pub(super) fn detour(&mut self, a: usize, b: usize) -> bool {
        self.sort();
        let last = self.order[b];
        let (mut todo, mut seen) = (vec![a], vec![false; self.next]);
        while let Some(k) = todo.pop() {
            let Some(kernel) = self.plan.by_id.get(&k) else { continue };
            for &r in kernel.outs.iter().flat_map(|&o| &self.readers[o]) {
                if r == b && k != a {
                    return true;
                }
                // What comes after `b` does not lead to it.
                if r != b && r != k && self.order[r] < last && !std::mem::replace(&mut seen[r], true) {
                    todo.push(r);
                }
            }
        }
        false
    }
    /// Fills `order` after a change.
    fn sort(&mut self) {
        if !self.order.is_empty() {
            return;
        }
        self.order = vec![0; self.next];
        let mut waits = vec![0; self.next];
        let mut ready = vec![];
        for (&id, k) in &self.plan.by_id {
            waits[id] = k.reads.iter().filter(|&&i| self.home[i].is_some_and(|h| h != id)).count();
            if waits[id] == 0 {
                ready.push(id);
            }
        }
        let mut place = 0;
        while let Some(id) = ready.pop() {
            self.order[id] = place;
            place += 1;
            for &r in self.plan.by_id[&id].outs.iter().flat_map(|&o| &self.readers[o]).filter(|&&r| r != id) {
                waits[r] -= 1;
                if waits[r] == 0 {
                    ready.push(r);
                }
            }
        }
    }
}
