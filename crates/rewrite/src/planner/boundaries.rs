//! What the planner did not do: why kernels were not merged, and where a kernel could be cut.
use super::{Planner, cone};
use crate::checker::Checker;
use crate::dag::Dag;
use crate::planner::{Limits, Region, Regions};
use crate::region::Reject;
use crate::regions::sorted;
use kiln_plan::form::FormNeeds;
use std::collections::BTreeMap;

/// Why two kernels were not merged.
pub enum Apart {
    Illegal(Reject),
    /// In microseconds, by the roofline; where only some forms can fuse them, by the prices of schedules, if there are
    /// any.
    NoGain {
        together: Option<f64>,
        apart: Option<f64>,
        needs: FormNeeds,
    },
    WouldWaitForItself,
}
impl Planner<'_, '_> {
    /// Why `a` and `b`, which are `merged` together, take no less time.
    fn no_gain(&mut self, a: usize, b: usize, merged: &Region) -> Apart {
        let parts = [&self.plan.by_id[&a], &self.plan.by_id[&b]];
        let by_all_forms = parts.iter().any(|part| part.price.needs == merged.price.needs);
        let needs = if by_all_forms { FormNeeds::default() } else { merged.price.needs };
        let (together, apart) = (merged.price.seconds, self.seconds(a) + self.seconds(b));
        if needs == FormNeeds::default() || together >= apart {
            return Apart::NoGain { together: Some(together * 1e6), apart: Some(apart * 1e6), needs };
        }
        let mut us = |regions: &[&Region]| -> Option<f64> {
            let priced = self.check.priced(self.dag, &self.kinds, regions);
            priced.into_iter().map(|p| Some(p?.us)).sum()
        };
        let (together, apart) = (us(&[merged]), us(&parts));
        Apart::NoGain { together, apart, needs }
    }
}

/// For every kernel and each of its readers: why they were not merged.
pub fn boundaries(
    dag: &Dag,
    kernels: &Regions,
    check: &mut Checker,
    limits: Option<&Limits>,
) -> BTreeMap<(usize, usize), Apart> {
    let mut p = Planner::new(dag, check);
    p.limits = limits;
    p.next = kernels.by_id.keys().max().map_or(0, |m| m + 1);
    for (&id, k) in &kernels.by_id {
        for &i in &k.reads {
            p.readers[i].insert(id);
        }
        for &o in &k.outs {
            p.home[o] = Some(id);
        }
    }
    p.plan = kernels.clone();
    let mut out = BTreeMap::new();
    for &id in kernels.by_id.keys() {
        for f in p.followers(id) {
            let why = match p.union(id, f) {
                Some(Err(r)) => Apart::Illegal(r),
                Some(Ok(_)) if p.detour(id, f) => Apart::WouldWaitForItself,
                Some(Ok(k)) => p.no_gain(id, f, &k),
                None => continue,
            };
            out.insert((id, f), why);
        }
    }
    out
}

/// The cheapest way to cut `k` in two: seconds, and the value after which it is cut.
pub fn best_cut(dag: &Dag, kinds: &[u32], k: &Region, check: &mut Checker) -> Option<(f64, usize)> {
    let inner = k.members.iter().copied().filter(|m| !dag.class[*m].is_free() && !k.outs.contains(m));
    let mut best: Option<(f64, usize)> = None;
    for v in inner.take(MAX_CUTS) {
        let head = cone(dag, &k.members, &[v], &[]);
        let (mut early, late): (Vec<usize>, Vec<usize>) = k.outs.iter().partition(|o| head.binary_search(o).is_ok());
        early = sorted(early.into_iter().chain([v]));
        let tail = cone(dag, &k.members, &late, &early);
        let one = check.price(dag, kinds, &head, &early);
        let two = check.price(dag, kinds, &tail, &late);
        let (Ok(one), Ok(two)) = (one, two) else { continue };
        let seconds = one.seconds + two.seconds;
        if best.is_none_or(|b| seconds < b.0) {
            best = Some((seconds, v));
        }
    }
    best
}
/// Cuts tried in one kernel.
const MAX_CUTS: usize = 32;
