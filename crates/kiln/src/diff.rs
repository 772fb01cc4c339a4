//! How two plans differ: kernels split, joined, changed, removed and new, with their predicted times before and after.
//!
//! Matches ops first: by name if both plans are of the same graph, else by kind and type in the order of the models, so
//! that plans of a changed model can be compared. Then compares kernels by the ops they contain.
use crate::{
    explain::{count, left_out, op_name, wrapped},
    parts,
};
use kiln_graph::ops::Class;
use kiln_graph::{Op, Type};
use kiln_plan::{Kernel, Plan, Stage};
use serde::Serialize;
use similar::{Algorithm, DiffOp, capture_diff_slices};
use std::collections::{BTreeMap, BTreeSet};

/// How kernels changed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// One became several.
    Split,
    /// Several became one.
    Joined,
    /// Several kernels became several others.
    Regrouped,
    /// Ops were added, removed or rewritten.
    Changed,
    /// The same ops at another cost.
    Cost,
    /// Its ops are in no kernel of the plan before.
    New,
    /// Its ops are in no kernel of the plan after.
    Gone,
}

/// A kernel's name and its predicted time in us; `None` if libtorch runs it, whose time is unknown.
pub type Priced = (String, Option<f64>);

/// Sum of the known times, and the number of unknown ones.
pub(crate) fn total<'k>(list: impl IntoIterator<Item = &'k Priced>) -> (f64, usize) {
    let add = |(us, unknown): (f64, usize), k: &Priced| match k.1 {
        Some(more) => (us + more, unknown),
        None => (us, unknown + 1),
    };
    list.into_iter().fold((0., 0), add)
}
/// A kernel's line, such as `  -      2.11 us  gemm_9`.
pub(crate) fn line(sign: &str, (name, us): &Priced) -> String {
    let us = us.map_or("unknown".to_string(), |us| format!("{us:.2} us"));
    format!("  {sign} {us:>12}  {name}\n")
}

/// Kernels that contain the same ops before and after; repeated layers that changed in the same way are one entry.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// How they changed.
    pub change: Change,
    /// How often this change occurs.
    pub count: usize,
    /// Kernels of the plan before, of the first occurrence.
    pub before: Vec<Priced>,
    /// Kernels of the plan after, of the first occurrence.
    pub after: Vec<Priced>,
}

/// Two plans, kernel by kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Diff {
    /// The first plan.
    pub before: Side,
    /// The second plan.
    pub after: Side,
    /// Kernels that changed.
    pub entries: Vec<Entry>,
    /// Number of kernels that did not change.
    pub same: usize,
}
/// One of two plans.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Name of its graph.
    pub name: String,
    /// Name of the machine description it is made for.
    pub machine: String,
    /// Number of kernels.
    pub kernels: usize,
    /// Sum over all kernels except those whose time is unknown.
    pub predicted_us: f64,
    /// Kernels whose time is unknown.
    pub unpriced: usize,
}

/// An op of a plan: what it is, and the kernels that compute it.
struct OpAt {
    key: String,
    ty: Type,
    order: (u32, String),
    kernels: BTreeSet<usize>,
}

fn run(p: &Plan) -> Vec<&Kernel> {
    p.kernels.iter().filter(|k| k.stage == Stage::Run).collect()
}

/// Ops of a plan's run in the order of the model. A value that a rule made is placed by the last graph value in its
/// name.
fn ops_of(kernels: &[&Kernel]) -> Vec<OpAt> {
    let mut ops: BTreeMap<(u32, String), OpAt> = BTreeMap::new();
    for (i, k) in kernels.iter().enumerate() {
        for o in &k.reason.origins {
            let op = k.body.op(o.value);
            if Class::of(op).is_free() {
                continue;
            }
            let name = o.names.first().cloned().unwrap_or_default();
            let source = k.body.source(o.value);
            let ty = k.body.ty(o.value).clone();
            let (key, order) = (key(op, &ty, &source.module), (number(&name), name));
            let at = ops.entry(order.clone()).or_insert_with(|| OpAt { key, ty, order, kernels: BTreeSet::new() });
            at.kernels.insert(i);
        }
    }
    for at in joined(kernels) {
        ops.entry(at.order.clone()).or_insert(at);
    }
    let mut list: Vec<OpAt> = ops.into_values().collect();
    list.sort_by(|a, b| a.order.cmp(&b.order));
    list
}

/// Ops of the graph that a rule joined into one, each with the kernel that computes the joined op.
fn joined(kernels: &[&Kernel]) -> Vec<OpAt> {
    let one = |p: parts::Part| {
        let (reader, (i, whole)) = (&kernels[p.reader].body, p.whole);
        let op = kernels[i].body.op(whole);
        let v = p.origin.value;
        let name = p.value.to_string();
        OpAt {
            key: key(op, reader.ty(v), &reader.source(v).module),
            ty: reader.ty(v).clone(),
            order: (p.value.0, name),
            kernels: BTreeSet::from([i]),
        }
    };
    parts::parts(kernels).into_iter().map(one).collect()
}
/// Identifies an op in both plans: name, attributes, type and module.
fn key(op: &Op, ty: &Type, module: &str) -> String {
    format!("{} {} {ty} {module}", op_name(op), kiln_graph::text::attributes(op))
}
/// The highest number of an imported graph's value that occurs in a name.
fn number(name: &str) -> u32 {
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u32>().ok();
    name.split('%').skip(1).filter_map(digits).max().unwrap_or(0)
}

/// Compares two plans.
pub fn diff(a: &Plan, b: &Plan) -> Diff {
    let (ka, kb) = (run(a), run(b));
    let (oa, ob) = (ops_of(&ka), ops_of(&kb));
    let named = if a.name == b.name { by_name(&oa, &ob) } else { None };
    let (one_graph, matched) = (named.is_some(), named.unwrap_or_else(|| by_sequence(&oa, &ob)));
    let mut parts = pair_equal(components(&oa, &ob, &matched, ka.len(), kb.len()), &ka, &kb);
    if one_graph {
        parts = absorbed(parts, &ka, &kb);
    }
    let (mut same, mut groups) = (0, BTreeMap::<(Change, String), Entry>::new());
    let mut order: Vec<(Change, String)> = vec![];
    for (left, right) in parts {
        let (before, after): (Vec<&Kernel>, Vec<&Kernel>) =
            (left.iter().map(|i| ka[*i]).collect(), right.iter().map(|i| kb[*i]).collect());
        let Some(change) = change(&before, &after) else {
            same += 1;
            continue;
        };
        let key = (change, format!("{:?} {:?}", alike(&before), alike(&after)));
        let costs = |list: &[&Kernel]| list.iter().map(|k| (k.name.clone(), k.cost.us)).collect();
        let entry = groups.entry(key.clone()).or_insert_with(|| {
            order.push(key);
            Entry { change, count: 0, before: costs(&before), after: costs(&after) }
        });
        entry.count += 1;
    }
    let entries = order.iter().filter_map(|k| groups.remove(k)).collect();
    let side = |p: &Plan, n: usize| Side {
        name: p.name.clone(),
        machine: p.machine.clone(),
        kernels: n,
        predicted_us: p.predicted_us(),
        unpriced: p.unpriced(),
    };
    Diff { before: side(a, ka.len()), after: side(b, kb.len()), entries, same }
}

/// Matches ops with equal keys, in the order of the models.
fn by_sequence(a: &[OpAt], b: &[OpAt]) -> Vec<(usize, usize)> {
    let keys = |ops: &[OpAt]| ops.iter().map(|o| o.key.clone()).collect::<Vec<_>>();
    let mut matched = vec![];
    for d in capture_diff_slices(Algorithm::Myers, &keys(a), &keys(b)) {
        if let DiffOp::Equal { old_index, new_index, len } = d {
            matched.extend((0..len).map(|i| (old_index + i, new_index + i)));
        }
    }
    matched
}

/// Matches ops that are the same value of one graph, whatever form rules gave them; `None` if the plans are of
/// different graphs.
fn by_name(a: &[OpAt], b: &[OpAt]) -> Option<Vec<(usize, usize)>> {
    let places: BTreeMap<&str, usize> = b.iter().enumerate().map(|(j, o)| (o.order.1.as_str(), j)).collect();
    let pairs = a.iter().enumerate().filter_map(|(i, o)| Some((i, *places.get(o.order.1.as_str())?)));
    let pairs: Vec<(usize, usize)> = pairs.collect();
    let agree = pairs.iter().all(|(i, j)| a[*i].ty == b[*j].ty);
    // Values that rules removed occur in one plan only.
    (agree && 3 * pairs.len() >= a.len().min(b.len())).then_some(pairs)
}

/// For plans of one graph: moves kernels that only one of the plans has into the group that contains all of their
/// readers.
fn absorbed(mut parts: Vec<Part>, a: &[&Kernel], b: &[&Kernel]) -> Vec<Part> {
    for (after, kernels) in [(false, a), (true, b)] {
        let mut home = vec![0; kernels.len()];
        let side = |p: &Part| if after { p.1.clone() } else { p.0.clone() };
        parts.iter().enumerate().for_each(|(p, part)| side(part).into_iter().for_each(|k| home[k] = p));
        // Readers come after what they read.
        for k in (0..kernels.len()).rev() {
            let other = if after { &parts[home[k]].0 } else { &parts[home[k]].1 };
            let reads = |r: &&usize| kernels[**r].inputs.iter().any(|i| kernels[k].outputs.contains(i));
            let all: Vec<usize> = (k + 1..kernels.len()).collect();
            let homes: BTreeSet<usize> = all.iter().filter(reads).map(|r| home[*r]).collect();
            let Some(&to) = homes.first().filter(|_| other.is_empty() && homes.len() == 1) else { continue };
            if to != home[k] {
                let from = std::mem::take(&mut parts[home[k]]);
                side(&from).into_iter().for_each(|moved| home[moved] = to);
                parts[to].0.extend(from.0);
                parts[to].1.extend(from.1);
            }
        }
    }
    parts.retain(|p| !p.0.is_empty() || !p.1.is_empty());
    for p in &mut parts {
        p.0.sort_unstable();
        p.1.sort_unstable();
    }
    parts
}

/// A group of kernels: indices before and after.
type Part = (Vec<usize>, Vec<usize>);

/// Connected components of kernels that share ops: indices before and after, in the order of the plans.
fn components(a: &[OpAt], b: &[OpAt], matched: &[(usize, usize)], na: usize, nb: usize) -> Vec<Part> {
    let mut root: Vec<usize> = (0..na + nb).collect();
    fn find(root: &mut [usize], mut i: usize) -> usize {
        while root[i] != i {
            root[i] = root[root[i]];
            i = root[i];
        }
        i
    }
    for (i, j) in matched {
        // A value that several kernels compute does not show which of them correspond.
        if a[*i].kernels.len() > 1 || b[*j].kernels.len() > 1 {
            continue;
        }
        for (x, y) in a[*i].kernels.iter().flat_map(|x| b[*j].kernels.iter().map(move |y| (*x, na + *y))) {
            let (x, y) = (find(&mut root, x), find(&mut root, y));
            root[x.max(y)] = x.min(y);
        }
    }
    let mut parts: BTreeMap<usize, Part> = BTreeMap::new();
    for i in 0..na + nb {
        let part = parts.entry(find(&mut root, i)).or_default();
        if i < na { part.0.push(i) } else { part.1.push(i - na) }
    }
    parts.into_values().collect()
}

/// Pairs equal kernels among those that share no op with others (constants, views, ops that several kernels compute).
fn pair_equal(parts: Vec<Part>, before: &[&Kernel], after: &[&Kernel]) -> Vec<Part> {
    let mut spare: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
    for (_, right) in parts.iter().rev().filter(|p| p.0.is_empty()) {
        right.iter().for_each(|i| spare.entry(content(after[*i])).or_default().push(*i));
    }
    let (mut out, mut taken) = (vec![], BTreeSet::new());
    for (left, mut right) in parts {
        if let ([i], []) = (&left[..], &right[..]) {
            right.extend(spare.get_mut(&content(before[*i])).and_then(Vec::pop));
            taken.extend(right.iter().copied());
        }
        out.push((left, right));
    }
    out.retain(|(left, right)| !left.is_empty() || !right.iter().all(|i| taken.contains(i)));
    out
}

/// Names without their number in the plan, and times: equal for repeated layers.
fn alike(kernels: &[&Kernel]) -> Vec<(String, Option<u64>)> {
    let base = |k: &Kernel| k.name.rsplit_once('_').map_or(k.name.clone(), |n| n.0.to_string());
    kernels.iter().map(|k| (base(k), k.cost.us.map(f64::to_bits))).collect()
}
/// What a kernel computes, without names and source lines.
fn content(k: &Kernel) -> Vec<String> {
    let g = &k.body;
    let one = |v| format!("{v} {:?} {} {:?}", g.op(v), g.ty(v), g.args(v));
    g.values().map(one).chain([format!("{:?}", g.outputs)]).collect()
}

fn change(before: &[&Kernel], after: &[&Kernel]) -> Option<Change> {
    match (before, after) {
        ([], _) => Some(Change::New),
        (_, []) => Some(Change::Gone),
        ([x], [y]) if content(x) != content(y) => Some(Change::Changed),
        ([x], [y]) => (x.cost != y.cost).then_some(Change::Cost),
        ([_], _) => Some(Change::Split),
        (_, [_]) => Some(Change::Joined),
        _ => Some(Change::Regrouped),
    }
}

impl Diff {
    /// Whether nothing changed.
    pub fn is_same(&self) -> bool {
        self.entries.is_empty() && self.before.machine == self.after.machine
    }
    /// For a terminal of that width.
    pub fn text(&self, width: usize) -> String {
        let (a, b) = (&self.before, &self.after);
        let percent = 100. * (b.predicted_us - a.predicted_us) / a.predicted_us.max(1e-12);
        let machines =
            if a.machine == b.machine { a.machine.clone() } else { format!("{} and {}", a.machine, b.machine) };
        let names = if a.name == b.name { a.name.clone() } else { format!("{} and {}", a.name, b.name) };
        let mut t = wrapped(
            "",
            &format!(
                "{names} on {machines}: {} before, {} after; {:.2} us before{}, {:.2} us after{} ({percent:+.1} %)",
                count(a.kernels, "kernel"),
                b.kernels,
                a.predicted_us,
                left_out(a.unpriced),
                b.predicted_us,
                left_out(b.unpriced)
            ),
            width,
        );
        for e in &self.entries {
            let times = if e.count > 1 { format!(" {} times", e.count) } else { String::new() };
            let words = match e.change {
                Change::Split => "split",
                Change::Joined => "joined",
                Change::Regrouped => "regrouped",
                Change::Changed => "changed",
                Change::Cost => "cost changed",
                Change::New => "new",
                Change::Gone => "gone",
            };
            let ((before, some), (after, others)) = (total(&e.before), total(&e.after));
            let (each, left_out) = (if e.count > 1 { " each" } else { "" }, left_out(some + others));
            t += &format!("\n{words}{times}: {:+.2} us{each}{left_out}\n", after - before);
            for (sign, list) in [("-", &e.before), ("+", &e.after)] {
                list.iter().for_each(|k| t += &line(sign, k));
            }
        }
        if !self.entries.is_empty() {
            t += "\n";
        }
        t + &format!("the same: {}\n", count(self.same, "kernel"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_are_unknown_are_left_out_and_said() {
        let (known, unknown) = (("gemm_1".to_string(), Some(2.0)), ("sort_2".to_string(), None));
        assert_eq!(total([&known, &unknown, &known]), (4.0, 1));
        assert_eq!(line("-", &known), format!("  -{:>10} us  gemm_1\n", "2.00"));
        assert_eq!(line("+", &unknown), format!("  +{:>13}  sort_2\n", "unknown"));
        assert_eq!(left_out(0), "");
        assert_eq!(left_out(2), ", without 2 fallbacks, whose time is unknown");
    }
}
