//! What rules joined: one kernel computes the whole (three projections as one matmul), and its readers cut out the parts, each a
//! value of the imported graph.
use kiln_graph::{Op, ValueId};
use kiln_plan::{BufferId, Kernel, Origin};
use std::collections::{BTreeMap, BTreeSet};

/// A value of the imported graph that is part of a joined one. Kernels are numbered as they were given.
pub struct Part<'k> {
    pub value: ValueId,
    /// The kernel that computes the whole, and the whole in its body.
    pub whole: (usize, ValueId),
    /// The kernel that cuts it out, and where it comes from there.
    pub reader: usize,
    pub origin: &'k Origin,
}

/// All parts that these kernels cut out of each other's results.
pub fn parts<'k>(kernels: &[&'k Kernel]) -> Vec<Part<'k>> {
    let mut wholes: BTreeMap<BufferId, (usize, ValueId)> = BTreeMap::new();
    for (i, k) in kernels.iter().enumerate() {
        for (b, v) in k.outputs.iter().zip(&k.body.outputs) {
            if k.reason.origins.iter().any(|o| o.value == *v && value(o).is_none()) {
                wholes.insert(*b, (i, *v));
            }
        }
    }
    let mut found = vec![];
    for (reader, k) in kernels.iter().enumerate() {
        for origin in k.reason.origins.iter().filter(|o| !o.rules.is_empty()) {
            let whole = k.body.args(origin.value).into_iter().find_map(|a| match k.body.op(a) {
                Op::Input(n) => wholes.get(k.inputs.get(*n as usize)?),
                _ => None,
            });
            if let (Some(whole), Some(value)) = (whole, value(origin)) {
                found.push(Part { value, whole: *whole, reader, origin });
            }
        }
    }
    found
}

/// Values of the imported graph that each of these kernels computes, views of them included. Parts are with their whole.
pub fn computed(kernels: &[&Kernel]) -> Vec<BTreeSet<ValueId>> {
    let names = |o: &Origin| -> Vec<ValueId> { o.names.iter().filter_map(|n| graph_value(n)).collect() };
    let all = |k: &&Kernel| k.reason.origins.iter().flat_map(names).collect::<BTreeSet<ValueId>>();
    let mut sets: Vec<BTreeSet<ValueId>> = kernels.iter().map(all).collect();
    for part in parts(kernels) {
        for v in names(part.origin) {
            sets[part.reader].remove(&v);
            sets[part.whole.0].insert(v);
        }
    }
    sets
}

/// The value of the imported graph that it equals first.
fn value(o: &Origin) -> Option<ValueId> {
    o.names.first().and_then(|n| graph_value(n))
}
/// The value that `%17` names.
pub fn graph_value(name: &str) -> Option<ValueId> {
    name.strip_prefix('%')?.parse().ok().map(ValueId)
}
