//! Constraints: values that the caller wants fused, kept apart or kept in memory; and their translation to the values
//! of one program.
//!
//! The planner meets constraints, not the e-graph: the search over forms runs as if there were none, then the programs
//! that it tried are planned again under the constraints, cheapest first. So a plan whose own kernels are pinned is
//! reproduced byte for byte, and the price of a forced fusion (`--why-not`) is that of a complete plan.
use crate::dag::{Dag, Program};
use crate::impossible::Impossible;
use crate::names::Names;
use crate::planner::{Limits, Pin, inputs};
use kiln_graph::ops::Class;
use kiln_graph::{Graph, ValueId};
use kiln_plan::Form;
use std::collections::{BTreeMap, BTreeSet};

/// Values of the graph that a constraint refers to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// The text it was written as, for messages.
    pub label: String,
    pub values: BTreeSet<ValueId>,
}

/// A kernel that the plan must contain exactly like this, by value names as in [`kiln_plan::Origin`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pinned {
    pub name: String,
    pub stores: Vec<String>,
    /// Values that it reads from memory; everything else that the stored values depend on is computed in the kernel.
    pub reads: Vec<String>,
}

/// The form of the kernels that compute some values and multiply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FormOf {
    /// Values of the graph; none if `names` says them.
    pub group: Group,
    /// Values by name as in [`kiln_plan::Origin`], which rules may have made.
    pub names: BTreeSet<String>,
    pub form: Form,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Constraints {
    /// One kernel computes all values of a group.
    pub must_fuse: Vec<Group>,
    /// No kernel computes values of two groups of a set. If a set has one group, no two of its values share a kernel.
    pub never_fuse: Vec<Vec<Group>>,
    pub keep_in_memory: Vec<Group>,
    pub kernels: Vec<Pinned>,
    pub forms: Vec<FormOf>,
}
impl Constraints {
    pub fn is_empty(&self) -> bool {
        *self == Constraints::default()
    }
}

/// Translates the constraints to `program`, and notes in `dag` the values to keep in memory, and the forms that are
/// asked for: kernels fuse what these can.
pub fn resolve(g: &Graph, program: &Program, dag: &mut Dag, c: &Constraints) -> Result<Limits, Impossible> {
    let at = locate(g, program);
    let nodes = |group: &Group, constraint: &str| -> Result<BTreeSet<usize>, Impossible> {
        let all = group.values.iter().flat_map(|v| &at[v.0 as usize]);
        let found: BTreeSet<usize> = all.filter_map(|&v| computed(dag, v)).collect();
        let why = "a run computes none of its values: they are inputs, views of inputs, constants, or computed when weights are loaded";
        let constraint = || format!("{constraint} [{}]", group.label);
        if found.is_empty() { Err(Impossible { constraint: constraint(), why: why.into() }) } else { Ok(found) }
    };
    let mut limits = Limits::default();
    for group in &c.must_fuse {
        limits.together.push((format!("must_fuse [{}]", group.label), nodes(group, "must_fuse")?));
    }
    for set in &c.never_fuse {
        let sets = set.iter().map(|g| nodes(g, "never_fuse")).collect::<Result<Vec<_>, _>>()?;
        limits.apart.push(disjoint(set, sets)?);
    }
    let mut kept = BTreeSet::new();
    for group in &c.keep_in_memory {
        kept.extend(nodes(group, "keep_in_memory")?);
    }
    let names = Names::new(program);
    for FormOf { group, names: wanted, form } in &c.forms {
        let named = (0..program.nodes.len()).filter(|v| wanted.contains(names.of(*v)));
        let values = if wanted.is_empty() { nodes(group, "use_form")? } else { named.collect() };
        limits.forms.push((format!("use_form [{}]", group.label), values, *form));
    }
    for (_, values, form) in &limits.forms {
        values.iter().for_each(|&v| dag.nodes[v].use_form(form));
    }
    dag.kept = kept.into_iter().collect();
    let by_name: BTreeMap<&str, usize> = (0..program.nodes.len()).map(|v| (names.of(v), v)).collect();
    limits.pinned = c.kernels.iter().map(|k| pin(dag, &by_name, k)).collect::<Result<_, _>>()?;
    contradictions(c, &limits)?;
    Ok(limits)
}

/// The groups to keep apart: those of the set, or each value by itself if the set has one group.
fn disjoint(set: &[Group], sets: Vec<BTreeSet<usize>>) -> Result<Vec<BTreeSet<usize>>, Impossible> {
    if let [one] = &sets[..] {
        return Ok(one.iter().map(|&v| BTreeSet::from([v])).collect());
    }
    for (i, a) in sets.iter().enumerate() {
        if let Some((j, _)) = sets.iter().enumerate().skip(i + 1).find(|(_, b)| !a.is_disjoint(b)) {
            let labels: Vec<&str> = set.iter().map(|g| g.label.as_str()).collect();
            let why = format!("`{}` and `{}` name the same value", set[i].label, set[j].label);
            return Err(Impossible { constraint: format!("never_fuse [{}]", labels.join(", ")), why });
        }
    }
    Ok(sets)
}

fn contradictions(c: &Constraints, limits: &Limits) -> Result<(), Impossible> {
    for (label, group) in &limits.together {
        for (set, sets) in c.never_fuse.iter().zip(&limits.apart) {
            if sets.iter().filter(|s| !s.is_disjoint(group)).count() > 1 {
                let labels: Vec<&str> = set.iter().map(|g| g.label.as_str()).collect();
                let why = format!("never_fuse [{}] forbids it", labels.join(", "));
                return Err(Impossible { constraint: label.clone(), why });
            }
        }
    }
    Ok(())
}

/// For every value of the graph, the values of the program that compute it: the value itself, or those that it became
/// part of.
fn locate(g: &Graph, program: &Program) -> Vec<Vec<usize>> {
    let mut at: Vec<Vec<usize>> = vec![vec![]; g.len()];
    for (i, node) in program.nodes.iter().enumerate() {
        node.value.of.iter().for_each(|v| at[v.0 as usize] = vec![i]);
    }
    for v in g.values().rev().filter(|v| !matches!(Class::of(g.op(*v)), Class::Leaf | Class::Generator)) {
        if at[v.0 as usize].is_empty() {
            let users: BTreeSet<usize> = g.users(v).iter().flat_map(|u| at[u.0 as usize].clone()).collect();
            at[v.0 as usize] = users.into_iter().collect();
        }
    }
    at
}

/// The value that a run computes for `v`: itself, or the value that it is a view of; `None` if it is in memory before a
/// run.
fn computed(dag: &Dag, mut v: usize) -> Option<usize> {
    while dag.class[v] == Class::View {
        v = *dag.args(v).first()?;
    }
    let run = !matches!(dag.class[v], Class::Leaf | Class::Generator);
    (run && dag.live.binary_search(&v).is_ok()).then_some(v)
}

fn pin(dag: &Dag, by_name: &BTreeMap<&str, usize>, k: &Pinned) -> Result<Pin, Impossible> {
    let refuse = |why: String| Impossible { constraint: format!("kernel `{}`", k.name), why };
    let find = |n: &String| {
        let v = by_name.get(n.as_str()).copied().filter(|v| dag.live.binary_search(v).is_ok());
        v.ok_or_else(|| refuse(format!("the chosen program has no value {n}")))
    };
    let mut outs = k.stores.iter().map(find).collect::<Result<Vec<_>, _>>()?;
    let reads = k.reads.iter().map(find).collect::<Result<BTreeSet<_>, _>>()?;
    outs.sort_unstable();
    if outs.is_empty() {
        return Err(refuse("it stores nothing".into()));
    }
    let (mut members, mut todo) = (BTreeSet::new(), outs.clone());
    while let Some(v) = todo.pop() {
        if dag.class[v] != Class::Leaf && !reads.contains(&v) && members.insert(v) {
            todo.extend(dag.args(v));
        }
    }
    let members: Vec<usize> = members.into_iter().collect();
    if outs.iter().any(|o| members.binary_search(o).is_err()) {
        return Err(refuse("it reads a value that it stores, or stores one that is in memory before a run".into()));
    }
    debug_assert!(inputs(dag, &members).iter().all(|i| members.binary_search(i).is_err()));
    Ok(Pin { name: k.name.clone(), members, outs })
}
