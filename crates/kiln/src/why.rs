//! Answers why two parts of a model share a kernel or do not (`kiln explain --why`, `--why-not`): gives the legality
//! rule that forbids it, or plans again with the opposite decision and gives that plan's cost.
use crate::{
    CompileOptions, Error, Model, compile,
    constraints::Constraints,
    diff::{Priced, line, total},
    explain::{left_out, op_name, wrapped},
    parts,
    select::select,
};
use kiln_graph::ops::Class;
use kiln_graph::{Graph, Op, ValueId, count};
use kiln_plan::{BufferKind, FormNeeds, Kernel, Plan, Stage};
use kiln_rewrite::{Group, RewriteError};
use serde::Serialize;
use std::collections::BTreeSet;

/// Most pairs of kernels for which one question plans again.
const MAX_PAIRS: usize = 3;

/// The answer about `a` and `b`.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The first name.
    pub a: Side,
    /// The second name.
    pub b: Side,
    /// Predicted time of the plan: the sum over all kernels except those whose time is unknown.
    pub predicted_us: f64,
    /// The same by the roofline, which decides.
    pub roofline_us: f64,
    /// Number of kernels whose time is unknown.
    pub unpriced: usize,
    /// Number of kernels of the plan.
    pub kernels: usize,
    /// Kernels that compute values of both.
    pub shared: Vec<String>,
    /// What changes if the planner's decision is overturned.
    pub overturned: Vec<Overturned>,
}
/// What one of the names selects.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// The name as given.
    pub name: String,
    /// The ops it selects, such as `gelu_erf %68`.
    pub ops: Vec<String>,
    /// Kernels that compute them.
    pub kernels: Vec<String>,
    /// If no kernel of a run computes them, the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}
/// The plan with two kernels' values forced together, or two parts of one kernel forced apart.
#[derive(Clone, Debug, Serialize)]
pub struct Overturned {
    /// Kernels whose values are forced together or apart.
    pub kernels: Vec<String>,
    /// Why that is impossible.
    pub forbidden: Option<String>,
    /// Predicted time of the whole new plan in microseconds; `None` if it is impossible.
    pub predicted_us: Option<f64>,
    /// The same by the roofline.
    pub roofline_us: Option<f64>,
    /// Whether prices of schedules decide, as only some forms can fuse what differs; else the roofline does.
    pub by_price: bool,
    /// Kernels that only the original plan has, with their times.
    pub gone: Vec<Priced>,
    /// Kernels that only the new plan has, with their times.
    pub new: Vec<Priced>,
}

/// Answers about `a` and `b`, which are selectors of [`crate::select`].
pub fn ask(model: &Model, options: &CompileOptions, a: &str, b: &str) -> Result<Answer, Error> {
    let plan = compile::plan(model, options)?;
    let (left, right) = (select(a, &model.graph, Some(&plan))?, select(b, &model.graph, Some(&plan))?);
    let homes = Homes::new(&plan);
    let (ka, kb) = (homes.of(&left, &right), homes.of(&right, &left));
    let side = |name: &str, values: &BTreeSet<ValueId>, kernels: &[&Kernel]| {
        // Views are listed only if nothing else is selected.
        let (views, work): (Vec<ValueId>, Vec<ValueId>) =
            values.iter().partition(|v| Class::of(model.graph.op(**v)).is_free());
        let shown = if work.is_empty() { views } else { work };
        Side {
            name: name.into(),
            ops: shown.iter().map(|v| format!("{} {v}", op_name(model.graph.op(*v)))).collect(),
            kernels: kernels.iter().map(|k| k.name.clone()).collect(),
            absent: kernels.is_empty().then(|| absent(&model.graph, &plan, &homes, values)),
        }
    };
    let shared: Vec<&Kernel> = ka.iter().copied().filter(|k| kb.iter().any(|o| o.name == k.name)).collect();
    let group = |values: BTreeSet<ValueId>, label: &str| Group { label: format!("`{label}`"), values };
    let mut overturned = vec![];
    if shared.is_empty() {
        for (x, y) in pairs(&plan, &ka, &kb) {
            let mut values = homes.among(x, &left);
            values.extend(homes.among(y, &right));
            let mut forced = options.constraints.resolve(&model.graph)?;
            forced.must_fuse.push(group(values, &format!("{a}, {b}")));
            overturned.push(overturn(model, options, &plan, &[x, y], &forced)?);
        }
    } else if left != right {
        let (both, label) = (left.intersection(&right).copied().collect::<BTreeSet<_>>(), [a, b]);
        let mut forced = options.constraints.resolve(&model.graph)?;
        let [l, r] = [&left, &right].map(|s| s.difference(&both).copied().collect::<BTreeSet<_>>());
        forced.never_fuse.push(vec![group(l, label[0]), group(r, label[1])]);
        overturned.push(overturn(model, options, &plan, &shared, &forced)?);
    }
    Ok(Answer {
        a: side(a, &left, &ka),
        b: side(b, &right, &kb),
        predicted_us: plan.predicted_us(),
        roofline_us: plan.roofline_us(),
        unpriced: plan.unpriced(),
        kernels: run(&plan).count(),
        shared: shared.iter().map(|k| k.name.clone()).collect(),
        overturned,
    })
}

/// Why no kernel of a run computes any of `values`: the reason for the last of them that is not a view, or for the
/// last.
fn absent(g: &Graph, plan: &Plan, homes: &Homes, values: &BTreeSet<ValueId>) -> String {
    let work = values.iter().rev().find(|v| !Class::of(g.op(**v)).is_free());
    let Some(&v) = work.or_else(|| values.last()) else { return "nothing has that name".into() };
    match g.op(v) {
        Op::Input(_) => return "it is an input".into(),
        Op::Param(_) => return "it is a weight".into(),
        Op::Const(_) => return "it is a constant".into(),
        _ => {}
    }
    if frozen(g)[v.0 as usize] {
        let load: Vec<&Kernel> = plan.kernels.iter().filter(|k| k.stage == Stage::Load).collect();
        let makers = load.iter().zip(parts::computed(&load)).filter(|(_, values)| values.contains(&v));
        let makers: Vec<String> = makers.map(|(k, _)| k.name.clone()).collect();
        let by =
            if makers.is_empty() { "folded into them".to_string() } else { format!("computed by {}", listed(&makers)) };
        return format!("it depends on weights alone, so it is {by} once, when they are loaded");
    }
    // Finds the nearest users of the value that are computed, and the rules by which they do not need it.
    let (mut seen, mut next) = (BTreeSet::from([v]), vec![v]);
    while !next.is_empty() {
        let users: BTreeSet<ValueId> = next.iter().flat_map(|v| g.users(*v)).filter(|u| seen.insert(*u)).collect();
        for u in &users {
            let name = u.to_string();
            if let Some((k, _)) = homes.0.iter().find(|(_, computed)| computed.contains(u)) {
                let origin = k.reason.origins.iter().find(|o| o.names.contains(&name));
                let rules = origin.map(|o| o.rules.join(", ")).filter(|r| !r.is_empty());
                let op = format!("{} {u}", op_name(g.op(*u)));
                return match rules {
                    Some(rules) if reads_frozen(plan, k) => format!(
                        "{} computes {op} without it, by {rules}: it is folded into weights that are made once, when \
                         they are loaded",
                        k.name
                    ),
                    Some(rules) => format!("{} computes {op} without it, by {rules}", k.name),
                    None if Class::of(g.op(v)).is_free() => format!("it is a view, which {} reads through", k.name),
                    None => format!("{} computes {op} without it", k.name),
                };
            }
        }
        next = users.into_iter().collect();
    }
    "no result needs it in the form that was planned, or it is a view of an input".into()
}
fn reads_frozen(plan: &Plan, k: &Kernel) -> bool {
    k.inputs.iter().any(|b| plan.buffer(*b).kind == BufferKind::Frozen)
}
/// For each value, whether it depends on weights and constants alone.
fn frozen(g: &Graph) -> Vec<bool> {
    let mut all: Vec<bool> = vec![];
    for v in g.values() {
        let own = !matches!(g.op(v), Op::Input(_) | Op::Fallback(_)) && g.args(v).iter().all(|a| all[a.0 as usize]);
        all.push(own);
    }
    all
}

fn run(plan: &Plan) -> impl Iterator<Item = &Kernel> {
    plan.kernels.iter().filter(|k| k.stage == Stage::Run)
}
/// Kernels of a run with the graph's values that each computes.
struct Homes<'p>(Vec<(&'p Kernel, BTreeSet<ValueId>)>);
impl<'p> Homes<'p> {
    fn new(plan: &'p Plan) -> Homes<'p> {
        let kernels: Vec<&Kernel> = run(plan).collect();
        let values = parts::computed(&kernels);
        Homes(kernels.into_iter().zip(values).collect())
    }
    /// The subset of `values` that a kernel computes.
    fn among(&self, kernel: &Kernel, values: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
        let found = self.0.iter().find(|(k, _)| k.name == kernel.name);
        found.map(|(_, computed)| computed.intersection(values).copied().collect()).unwrap_or_default()
    }
    /// Kernels that compute some of `values`; only those that also compute some of `others`, if there are any.
    fn of(&self, values: &BTreeSet<ValueId>, others: &BTreeSet<ValueId>) -> Vec<&'p Kernel> {
        let all: Vec<_> = self.0.iter().filter(|(_, computed)| !computed.is_disjoint(values)).collect();
        let both: Vec<_> = all.iter().filter(|(_, computed)| !computed.is_disjoint(others)).collect();
        if both.is_empty() { all.iter().map(|h| h.0).collect() } else { both.iter().map(|h| h.0).collect() }
    }
}
/// Pairs of kernels to force together: those where one reads the other's result, or else the first of each side.
fn pairs<'p>(plan: &Plan, a: &[&'p Kernel], b: &[&'p Kernel]) -> Vec<(&'p Kernel, &'p Kernel)> {
    let feeds = |x: &Kernel, y: &Kernel| x.outputs.iter().any(|o| y.inputs.contains(o) && !plan.outputs.is_empty());
    let all = a.iter().flat_map(|x| b.iter().map(move |y| (*x, *y)));
    let mut near: Vec<(&Kernel, &Kernel)> = all.clone().filter(|(x, y)| feeds(x, y) || feeds(y, x)).collect();
    near.extend(if near.is_empty() { all.take(1).collect() } else { vec![] });
    near.truncate(MAX_PAIRS);
    near
}

/// Plans again under constraints that overturn a decision, and compares the kernels.
pub(crate) fn overturn(
    model: &Model,
    options: &CompileOptions,
    plan: &Plan,
    kernels: &[&Kernel],
    forced: &kiln_rewrite::Constraints,
) -> Result<Overturned, Error> {
    let names = kernels.iter().map(|k| k.name.clone()).collect();
    let mut out = Overturned {
        kernels: names,
        forbidden: None,
        predicted_us: None,
        roofline_us: None,
        by_price: false,
        gone: vec![],
        new: vec![],
    };
    let schedules = compile::Schedules::new(options.machine());
    match compile::plan_under(model, options, forced, &schedules) {
        Ok(mut other) => {
            schedules.assign(&mut other)?;
            out.predicted_us = Some(other.predicted_us());
            out.roofline_us = Some(other.roofline_us());
            let computes_operands = |k: &&Kernel| FormNeeds::of(&k.body).computes_operands();
            let (gone, new) = (only_in(plan, &other), only_in(&other, plan));
            out.by_price = gone.iter().chain(&new).any(computes_operands);
            let timed = |k: &&Kernel| (k.name.clone(), k.cost.us);
            (out.gone, out.new) = (gone.iter().map(timed).collect(), new.iter().map(timed).collect());
        }
        Err(RewriteError::Impossible { why, .. }) => out.forbidden = Some(why),
        Err(e) => return Err(compile::not_planned(model, e)),
    }
    Ok(out)
}
/// Kernels of `p` that `q` does not have.
fn only_in<'p>(p: &'p Plan, q: &Plan) -> Vec<&'p Kernel> {
    let known: BTreeSet<String> = run(q).map(|k| kiln_graph::text::print(&nameless(k))).collect();
    run(p).filter(|k| !known.contains(&kiln_graph::text::print(&nameless(k)))).collect()
}
fn nameless(k: &Kernel) -> kiln_graph::Graph {
    let mut body = k.body.clone();
    body.name.clear();
    body
}

impl Answer {
    /// For a terminal of that width.
    pub fn text(&self, width: usize) -> String {
        let mut t = String::new();
        for side in [&self.a, &self.b] {
            let ops = listed(&side.ops);
            let place = match &side.absent {
                Some(why) => format!("no kernel of a run computes it: {why}"),
                None => format!("in {}", listed(&side.kernels)),
            };
            let ops = if side.ops.len() == 1 && side.name == side.ops[0] { String::new() } else { format!("{ops}; ") };
            t += &wrapped(&format!("{}: ", side.name), &format!("{ops}{place}"), width);
        }
        t += "\n";
        if self.a.kernels.is_empty() || self.b.kernels.is_empty() {
            return t;
        }
        let verdict = match &self.shared[..] {
            [] => "They are in different kernels.".to_string(),
            shared => format!("They are together in {}.", listed(shared)),
        };
        t += &wrapped("", &verdict, width);
        for overturned in &self.overturned {
            t += &self.overturned(overturned, width);
        }
        t
    }
    fn overturned(&self, u: &Overturned, width: usize) -> String {
        let forced = if self.shared.is_empty() { "together" } else { "apart" };
        let pair = u.kernels.join(" and ");
        let mut t = String::new();
        match (&u.forbidden, u.predicted_us.zip(u.roofline_us)) {
            (Some(why), _) => t += &wrapped("  ", &format!("{pair} cannot be forced {forced}: {why}."), width),
            (None, Some((us, roofline))) => {
                let instead = |us: f64, of: f64| {
                    let (more, percent) = (us - of, 100. * (us - of) / of.max(1e-12));
                    format!("{us:.2} us instead of {of:.2} us ({more:+.2} us, {percent:+.1} %)")
                };
                let mut than = format!(
                    "Forced {forced}, the plan takes {}{}",
                    instead(us, self.predicted_us),
                    left_out(self.unpriced)
                );
                if (us, self.predicted_us) != (roofline, self.roofline_us) {
                    let roofline = instead(roofline, self.roofline_us);
                    than += &match u.by_price {
                        false => format!("; by the roofline, which decides, {roofline}"),
                        true => format!(" by its schedules, which decide; by the roofline {roofline}"),
                    };
                }
                than += ":";
                t += &wrapped("  ", &than, width);
                for (sign, list) in [("-", &u.gone), ("+", &u.new)] {
                    list.iter().take(SHOWN).for_each(|k| t += &format!("  {}", line(sign, k)));
                    if list.len() > SHOWN {
                        let (rest, unknown) = total(&list[SHOWN..]);
                        let more = format!("in {} more{}", list.len() - SHOWN, left_out(unknown));
                        t += &format!("  {}", line(sign, &(more, Some(rest))));
                    }
                }
            }
            (None, None) => {}
        }
        t
    }
}

/// Most words or kernels listed.
const SHOWN: usize = 6;

fn listed(words: &[String]) -> String {
    let more = if words.len() > SHOWN { format!(" and {} more", words.len() - SHOWN) } else { String::new() };
    words[..words.len().min(SHOWN)].join(", ") + &more
}

/// A plan's kernels as a constraints file, with a comment that says what plan they are from.
pub fn pinned_text(plan: &Plan) -> String {
    let n = run(plan).count();
    format!(
        "# The {} of {}, planned for {}: {:.2} us predicted{}.\n{}",
        count(n, "kernel"),
        plan.name,
        plan.machine,
        plan.predicted_us(),
        left_out(plan.unpriced()),
        Constraints::pin(plan).text()
    )
}
