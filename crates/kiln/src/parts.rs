//! Values that a rewrite rule joined: one kernel computes the whole (such as three projections as one matmul), and the
//! kernels that read it slice out the parts, each of which is a value of the imported graph.
use kiln_graph::{Op, ValueId};
use kiln_plan::{BufferId, Kernel, Origin};
use std::collections::{BTreeMap, BTreeSet};

/// A value of the imported graph that is part of a joined value. Kernels are indices into the list given.
pub struct Part<'k> {
    pub value: ValueId,
    /// The kernel that computes the joined value, and that value in its body.
    pub whole: (usize, ValueId),
    /// The kernel that slices the part out, and the part's origin there.
    pub reader: usize,
    pub origin: &'k Origin,
}

/// All parts that these kernels slice out of each other's results.
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

/// Values of the imported graph that each of these kernels computes, including views of them. A part counts for the
/// kernel that computes the joined value.
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

/// The first value of the imported graph among an origin's names.
fn value(o: &Origin) -> Option<ValueId> {
    o.names.first().and_then(|n| graph_value(n))
}
/// The value that `%17` names.
pub fn graph_value(name: &str) -> Option<ValueId> {
    name.strip_prefix('%')?.parse().ok().map(ValueId)
}
