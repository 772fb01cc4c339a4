//! Which of two plans of a graph is faster.
//!
//! The roofline decides where both multiply the same: it takes constant time, and what differs is how much is stored
//! and read. Where matmuls, convolutions or attention differ (two of them joined, attention as matmuls), a roofline
//! knows neither how full tiles are nor which forms there are: then the kernels that only one of the plans has are
//! priced by their cheapest schedules. A plan whose kernels cannot be faster than those that it replaces
//! ([`bound`]), or are far slower by the roofline, is refused without a price.
use crate::checker::Checker;
use crate::cost::bound;
use crate::dag::Dag;
use crate::region::kind;
use crate::regions::{Region, Regions};
use kiln_graph::Type;
use kiln_graph::ops::Class;
use kiln_plan::KernelKind;
use kiln_plan::form::ProgramFamily;
use kiln_plan::price_error::{ADVANTAGE_OF_OTHER_FAMILY, SAME_PRICE};
use std::collections::{BTreeMap, BTreeSet};

/// How much slower by the roofline kernels are that are refused without a price.
const DECIDED_BY_ROOFLINE: f64 = 1.5;
/// The same for rooflines, which only err in how they round.
const SAME_ROOFLINE: f64 = 1. - 1e-6;

/// Kernels of a program.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    pub dag: &'a Dag,
    pub kernels: &'a Regions,
}

impl<'a> Planned<'a> {
    pub fn new(dag: &'a Dag, kernels: &'a Regions) -> Planned<'a> {
        Planned { dag, kernels }
    }
    /// Whether no plan of another program, whose roofline is at least `least`, can improve on it.
    pub fn refuses(&self, other: &Dag, least: f64, check: &Checker) -> bool {
        let same = !check.has_prices() || problems(self.dag) == problems(other);
        same && self.kernels.seconds() * SAME_ROOFLINE <= least
    }
    /// Its kernels of a run by what tells equal ones.
    fn by_key(&self, kinds: &[u32], check: &mut Checker) -> BTreeMap<Vec<u32>, Vec<&'a Region>> {
        let mut all: BTreeMap<Vec<u32>, Vec<&Region>> = BTreeMap::new();
        let run = |r: &&Region| !r.members.iter().all(|&m| self.dag.frozen(m));
        for region in self.kernels.by_id.values().filter(run) {
            all.entry(check.key(self.dag, kinds, region)).or_default().push(region);
        }
        all
    }
}

/// How long elementwise kernels take: most are priced in vain, and each has hundreds of schedules.
#[derive(Clone, Copy, PartialEq)]
enum Elementwise {
    /// By the roofline, within a range.
    Estimated,
    /// By their schedules.
    Priced,
}
/// How much longer or shorter elementwise kernels are priced than estimated: 98 of 100 at most that.
pub const ELEMENTWISE_RANGE: f64 = 2.;

/// Kernels of a program, with what tells its values apart.
struct Kernels<'a> {
    dag: &'a Dag,
    kinds: &'a [u32],
    regions: &'a [&'a Region],
}

/// The price of some kernels in microseconds, at least and at most, and the families of programs that multiply.
struct Total {
    least: f64,
    most: f64,
    families: BTreeSet<ProgramFamily>,
}
impl Total {
    /// What these kernels take, if all have prices. Not all are priced if some exceed `limit`.
    fn of(kernels: &Kernels, elementwise: Elementwise, limit: f64, check: &mut Checker) -> Option<Total> {
        let &Kernels { dag, kinds, regions } = kernels;
        let mut total = Total { least: 0., most: 0., families: BTreeSet::new() };
        for region in regions {
            if elementwise == Elementwise::Estimated && kind(dag, &region.members) == KernelKind::Pointwise {
                let us = region.price.least_seconds(check.machine) * 1e6;
                total.least += us / ELEMENTWISE_RANGE;
                total.most += us * ELEMENTWISE_RANGE;
                continue;
            }
            let priced = check.priced(dag, kinds, &[*region]).pop()??;
            total.least += priced.us;
            total.most += priced.us;
            total.families.extend(priced.family);
            if total.least >= limit {
                break;
            }
        }
        Some(total)
    }
    /// Whether it is less than `before` by a factor; `None` if neither is less than the other.
    fn is_less(&self, before: &Total, factor: f64) -> Option<bool> {
        let (better, worse) = (self.most < before.least * factor, before.most < self.least * factor);
        (better || worse).then_some(better)
    }
}

/// What a program multiplies in a run: types of results and operands, with how often each occurs.
fn problems(dag: &Dag) -> BTreeMap<Vec<&Type>, usize> {
    let mut found: BTreeMap<Vec<&Type>, usize> = BTreeMap::new();
    let multiplies = |v: &&usize| !dag.nodes[**v].value.forms.is_empty() && !dag.frozen(**v);
    for &v in dag.live.iter().filter(multiplies) {
        let operands = dag.args(v).iter().take(2).map(|&a| dag.ty(a));
        *found.entry(std::iter::once(dag.ty(v)).chain(operands).collect()).or_default() += 1;
    }
    found
}

/// Is `new` faster than `now`?
pub fn improves(now: &Planned, new: &Planned, check: &mut Checker) -> bool {
    let by_roofline = new.kernels.seconds() < now.kernels.seconds() * SAME_ROOFLINE;
    if !check.has_prices() || problems(now.dag) == problems(new.dag) {
        return by_roofline;
    }
    by_price(now, new, check).unwrap_or(by_roofline)
}

/// The same by the prices of the kernels that only one of them has; `None` if these are close, or unknown.
fn by_price(now: &Planned, new: &Planned, check: &mut Checker) -> Option<bool> {
    let (kinds_now, kinds_new) = (check.kinds(now.dag), check.kinds(new.dag));
    let (all_now, all_new) = (now.by_key(&kinds_now, check), new.by_key(&kinds_new, check));
    let (gone, added) = (only_in(&all_now, &all_new), only_in(&all_new, &all_now));
    let roofline = |regions: &[&Region]| regions.iter().map(|r| r.price.seconds).sum::<f64>();
    if roofline(&added) >= DECIDED_BY_ROOFLINE * roofline(&gone) {
        return Some(false);
    }
    let least: f64 = added.iter().map(|r| bound(&r.price, check.machine)).sum();
    let by_roofline = roofline(&added) + slack(now, new, &gone, &added, check) < roofline(&gone) * SAME_ROOFLINE;
    let gone = Kernels { dag: now.dag, kinds: &kinds_now, regions: &gone };
    let added = Kernels { dag: new.dag, kinds: &kinds_new, regions: &added };
    for elementwise in [Elementwise::Estimated, Elementwise::Priced] {
        let before = Total::of(&gone, elementwise, f64::INFINITY, check)?;
        if least * 1e6 >= before.most {
            return Some(false);
        }
        // Kernels of this price are refused whatever the others take.
        let limit = before.most * if by_roofline { ADVANTAGE_OF_OTHER_FAMILY } else { 1. / SAME_PRICE };
        let after = Total::of(&added, elementwise, limit, check)?;
        if after.least >= limit {
            return Some(false);
        }
        // Sums along rows take weights to be in the L2 cache that fit it by themselves, but not together.
        let alike = before.families == after.families && !before.families.contains(&ProgramFamily::Rows);
        let factor = if alike { SAME_PRICE } else { 1. / ADVANTAGE_OF_OTHER_FAMILY };
        if let Some(better) = after.is_less(&before, factor) {
            return Some(better);
        }
    }
    Some(by_roofline)
}

/// Whether kernels whose form computes operands where it reads them (`new`) are cheaper than those that they replace,
/// which multiply the same. The roofline, by which they are merged, does not know that only some forms can, nor how
/// often these compute an operand. False where there are no prices.
pub fn prologue_pays(dag: &Dag, kinds: &[u32], gone: &[&Region], new: &[&Region], check: &mut Checker) -> bool {
    let least: f64 = new.iter().map(|r| bound(&r.price, check.machine)).sum();
    let [gone, new] = [gone, new].map(|regions| Kernels { dag, kinds, regions });
    for elementwise in [Elementwise::Estimated, Elementwise::Priced] {
        let Some(before) = Total::of(&gone, elementwise, f64::INFINITY, check) else { return false };
        if least * 1e6 >= before.most {
            return false;
        }
        let Some(after) = Total::of(&new, elementwise, before.most, check) else { return false };
        let factor = if before.families == after.families { SAME_PRICE } else { 1. / ADVANTAGE_OF_OTHER_FAMILY };
        if after.least >= before.most * factor {
            return false;
        }
        if after.most < before.least * factor {
            return true;
        }
    }
    false
}

/// What matmuls in place of attention must save by the roofline, which is low for short ones: a launch for each.
fn slack(now: &Planned, new: &Planned, gone: &[&Region], added: &[&Region], check: &Checker) -> f64 {
    let attentions = |p: &Planned, regions: &[&Region]| {
        let is_attention = |m: &usize| p.dag.class[*m] == Class::Attention;
        regions.iter().filter(|r| r.members.iter().any(is_attention)).count()
    };
    let replaced = attentions(now, gone).saturating_sub(attentions(new, added));
    replaced as f64 * check.machine.rates.launch
}

/// Kernels of `a` beyond those that `b` has too.
fn only_in<'a>(a: &BTreeMap<Vec<u32>, Vec<&'a Region>>, b: &BTreeMap<Vec<u32>, Vec<&'a Region>>) -> Vec<&'a Region> {
    let more = |(key, regions): (&Vec<u32>, &Vec<&'a Region>)| {
        let shared = b.get(key).map_or(0, Vec::len);
        regions.iter().copied().skip(shared).collect::<Vec<_>>()
    };
    a.iter().flat_map(more).collect()
}
