//! Planning under constraints: pinned kernels, and values that must or must not share a kernel.
use super::{Planner, Regions, Set, sorted};
use crate::checker::Checker;
use crate::dag::Dag;
use crate::impossible::Impossible;
use crate::planner::Region;
use crate::why::{label, refusal};
use kiln_graph::ops::Class;
use kiln_plan::Form;
use std::collections::BTreeSet;

/// A kernel that the plan must contain exactly like this.
#[derive(Clone, Debug)]
pub struct Pin {
    pub name: String,
    /// Ascending, as are `outs`.
    pub members: Vec<usize>,
    pub outs: Vec<usize>,
}

/// Constraints in terms of the values of one program.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Groups of values that one kernel must compute, with the text of the constraint.
    pub together: Vec<(String, BTreeSet<usize>)>,
    /// Sets of groups; no kernel has values of two groups of a set.
    pub apart: Vec<Vec<BTreeSet<usize>>>,
    pub pinned: Vec<Pin>,
    /// Forms of the kernels that compute some values, with the text of the constraint.
    pub forms: Vec<(String, BTreeSet<usize>, Form)>,
}
impl Limits {
    /// Does `apart` allow a kernel with these members?
    pub fn allows(&self, members: &[usize]) -> bool {
        let holds = |group: &&BTreeSet<usize>| members.iter().any(|m| group.contains(m));
        self.apart.iter().all(|set| set.iter().filter(holds).count() < 2)
    }
}

/// [`fused`](super::fused) under `limits`.
pub fn fused_under(dag: &Dag, check: &mut Checker, limits: &Limits) -> Result<Regions, Impossible> {
    let mut p = Planner::new(dag, check);
    p.limits = Some(limits);
    p.install_pinned(limits)?;
    for (constraint, group) in &limits.together {
        p.bring_together(constraint, group)?;
    }
    p.improve();
    Ok(p.plan)
}

fn holds(k: &Region, group: &BTreeSet<usize>) -> bool {
    group.iter().all(|v| k.members.binary_search(v).is_ok())
}

impl Planner<'_, '_> {
    /// Does replacing `gone` by `new` keep groups of `together` whole and pinned kernels unchanged?
    pub(super) fn keeps_together(&self, gone: &[usize], new: &[Region]) -> bool {
        let Some(limits) = self.limits else { return true };
        let had = |group: &BTreeSet<usize>| gone.iter().filter_map(|g| self.plan.by_id.get(g)).any(|k| holds(k, group));
        gone.iter().all(|g| !self.locked.contains(g))
            && limits.together.iter().all(|(_, group)| !had(group) || new.iter().any(|k| holds(k, group)))
    }

    /// Installs the pinned kernels, and one kernel for every other op that is needed.
    fn install_pinned(&mut self, limits: &Limits) -> Result<(), Impossible> {
        if limits.pinned.is_empty() {
            self.one_kernel_per_op(self.ops());
            return Ok(());
        }
        for pin in &limits.pinned {
            let refuse = |why: String| Impossible { constraint: format!("kernel `{}`", pin.name), why };
            if let Some(&o) = pin.outs.iter().find(|o| self.home[**o].is_some()) {
                return Err(refuse(format!("another pinned kernel stores {} already", label(self.dag, o))));
            }
            let k = self
                .price(pin.members.clone(), pin.outs.clone())
                .map_err(|r| refuse(refusal(self.dag, &pin.members, &pin.outs, r)))?;
            let id = self.install(k);
            self.locked.insert(id);
        }
        let rest = self.unpinned();
        self.one_kernel_per_op(rest);
        match self.plan.launches() {
            Some(_) => Ok(()),
            None => Err(Impossible {
                constraint: "the pinned kernels".into(),
                why: "they depend on each other in a cycle: each reads what another stores".into(),
            }),
        }
    }
    /// Values that need a kernel in addition to the pinned ones: their operands, and results that no kernel stores yet.
    fn unpinned(&self) -> Vec<usize> {
        let dag = self.dag;
        let (mut seen, mut out) = (Set::new(), Set::new());
        let mut todo: Vec<(usize, bool)> = dag.roots.iter().chain(&dag.kept).map(|&r| (r, true)).collect();
        while let Some((v, stored)) = todo.pop() {
            let first = seen.insert(v);
            if let Some(k) = self.home[v].and_then(|h| self.plan.by_id.get(&h)) {
                if first {
                    todo.extend(k.reads.iter().map(|&i| (i, true)));
                }
                continue;
            }
            if matches!(dag.class[v], Class::Leaf | Class::Result) {
                todo.extend(dag.args(v).iter().filter(|_| first).map(|&a| (a, true)));
                continue;
            }
            if stored || !dag.class[v].is_free() {
                out.insert(v);
            }
            if first {
                todo.extend(dag.args(v).iter().map(|&a| (a, false)));
            }
        }
        out.into_iter().collect()
    }

    /// Merges all kernels that compute values of `group`, and all kernels between them, into one.
    fn bring_together(&mut self, constraint: &str, group: &BTreeSet<usize>) -> Result<(), Impossible> {
        if self.plan.by_id.values().any(|k| holds(k, group)) {
            return Ok(());
        }
        let refuse = |why: String| Impossible { constraint: constraint.to_string(), why };
        let has = |k: &Region| k.outs.iter().any(|o| group.contains(o)) || k.members.iter().any(|m| group.contains(m));
        let asked: Set = self.plan.by_id.iter().filter(|(_, k)| has(k)).map(|(&id, _)| id).collect();
        let ids = self.with_between(&asked);
        if ids.iter().any(|id| self.locked.contains(id)) {
            return Err(refuse("one of the kernels to be merged is pinned".into()));
        }
        let parts: Vec<&Region> = ids.iter().filter_map(|id| self.plan.by_id.get(id)).collect();
        let read_elsewhere = |o: &usize| self.dag.is_root(*o) || self.readers[*o].iter().any(|r| !ids.contains(r));
        let outs = sorted(parts.iter().flat_map(|k| k.outs.iter().copied()).filter(read_elsewhere));
        let members = sorted(parts.iter().flat_map(|k| k.members.iter().copied()));
        let members = self.cone(&members, &outs);
        let between: Vec<String> = ids
            .difference(&asked)
            .filter_map(|id| self.plan.by_id.get(id)?.outs.last())
            .map(|&o| label(self.dag, o))
            .collect();
        let kernel = self.price(members.clone(), outs.clone()).map_err(|r| {
            let why = refusal(self.dag, &members, &outs, r);
            if between.is_empty() {
                return refuse(why);
            }
            let more = if between.len() > 3 { format!(" and {} more", between.len() - 3) } else { String::new() };
            let between = between[..between.len().min(3)].join(", ");
            refuse(format!("the kernel would also have to compute the values in between ({between}{more}); {why}"))
        })?;
        ids.into_iter().for_each(|id| self.remove(id));
        self.install(kernel);
        Ok(())
    }
    /// `ids` and all kernels on a path from one of them to another.
    fn with_between(&self, ids: &Set) -> Set {
        let reach = |next: &dyn Fn(usize) -> Set| {
            let (mut seen, mut todo) = (Set::new(), ids.iter().copied().collect::<Vec<_>>());
            while let Some(id) = todo.pop() {
                todo.extend(next(id).into_iter().filter(|&n| seen.insert(n)));
            }
            seen
        };
        let feeds = |id: usize| -> Set {
            let reads = self.plan.by_id.get(&id).map(|k| &k.reads[..]).unwrap_or_default();
            reads.iter().filter_map(|&i| self.home[i]).filter(|&h| h != id).collect()
        };
        let (after, before) = (reach(&|id| self.followers(id)), reach(&feeds));
        after.intersection(&before).copied().chain(ids.iter().copied()).collect()
    }
}
