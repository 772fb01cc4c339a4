//! Schedules of a kernel: the one that it gets, and others with their prices, which `explain` lists and tuning searches.
use crate::composite::Decomposed;
use crate::multiply::Multiply;
use crate::price::Price;
use crate::resolve::Body;
use crate::{LowerError, body, facts, flash, gemm, if_taken, lowered, nests, own, propose, schedule, under};
use kiln_machine::Machine;
use kiln_plan::{Engine, Hardware, Kernel, KernelKind, Schedule, Step};

/// How much cheaper a schedule of a kernel that multiplies must be to replace that of the rules: prices that are closer are as often in the
/// wrong order (`benches/results/schedules.md`).
const GAIN: f64 = 1.1;
/// The same for an implicit GEMM in place of another form: what its windows read again from the L2 cache is priced too low.
const GAIN_IMPLICIT: f64 = 1.35;

/// Version of the programs that schedules stand for: raised whenever they change so much that old measurements are void.
pub const PROGRAMS: u32 = 8;

/// The nest of a kernel with exactly one, which does not multiply: what it is, and its schedules.
pub struct Scheduled {
    /// The nest in numbers.
    pub facts: facts::Facts,
    /// The schedule that it gets, then others that fit it, the cheapest first.
    pub schedules: Vec<(Schedule, Price)>,
    /// The schedule by fixed rules, which another one replaces where it is much cheaper.
    pub fixed: Schedule,
}

/// The schedule that a kernel gets if its plan has none; `None` for a fallback, and for a kernel of several nests.
pub fn default_schedule(kernel: &Kernel, machine: &Machine) -> Result<Option<Schedule>, LowerError> {
    let kernel = &Kernel { schedule: None, ..kernel.clone() };
    if multiplies(kernel, machine)?
        && let Some(made) = lowered(kernel, machine)?.1
    {
        // One that lowering refuses would leave the kernel without a program.
        let schedule = made.schedule();
        return Ok(if_taken(fits(kernel, machine, &schedule))?.map(|()| schedule));
    }
    only_nest(kernel, machine, &schedule::default)
}

/// A schedule that is predicted to be much faster than the one that the rules of lowering give a kernel that multiplies.
pub fn cheaper(kernel: &Kernel, machine: &Machine, made: &Multiply) -> Result<Option<Schedule>, LowerError> {
    let rules = match made {
        Multiply::Library => return Ok(None),
        // What is predicted of few queries, and of tiles by FMAs, errs by as much as schedules differ.
        Multiply::Attention(a) if a.engine == Engine::Mma => return Ok(None),
        _ => made.schedule(),
    };
    if kernel.batch_invariant || !machine.gemm.fitted {
        return Ok(None);
    }
    let all = multiplying(kernel, machine)?;
    let Some(own) = all.iter().find(|c| unstaged(&c.0) == unstaged(&rules)) else { return Ok(None) };
    let is_predicted = |s: &Schedule| match Multiply::of(s) {
        Ok(Some(Multiply::Attention(a))) => a.engine != Engine::Mma,
        // An epilogue that is fused stays so.
        Ok(Some(Multiply::Matmul(p))) => {
            let fused = matches!(made, Multiply::Matmul(rules) if rules.forms.apart == p.forms.apart);
            fused && (p.tile.engine != Engine::Fma || p.tile.stages.is_some())
        }
        _ => false,
    };
    let implicit = |s: &Schedule| s.steps.contains(&Step::ImplicitGemm);
    let gain = |s: &Schedule| if implicit(s) && !implicit(&rules) { GAIN_IMPLICIT } else { GAIN };
    let cheaper = all.iter().take_while(|c| c.1.us * GAIN < own.1.us);
    let cheaper = cheaper.filter(|c| c.1.us * gain(&c.0) < own.1.us && is_predicted(&c.0));
    let skips = matches!(made, Multiply::Attention(a) if a.block_mask);
    for (schedule, _) in cheaper.take(TRIED) {
        let schedule = if skips { schedule.clone().then(Step::BlockMask) } else { schedule.clone() };
        if if_taken(fits(kernel, machine, &schedule))?.is_some() {
            return Ok(Some(schedule));
        }
    }
    Ok(None)
}
/// Most schedules that are tried in place of that of the rules.
const TRIED: usize = 8;

/// The schedule that the rules of lowering give a kernel that multiplies, which a cheaper one may replace.
pub fn ruled(kernel: &Kernel, machine: &Machine) -> Result<Option<Schedule>, LowerError> {
    let kernel = &Kernel { schedule: None, ..kernel.clone() };
    Ok(own(kernel, &under(machine, kernel))?.1.map(|made| made.schedule()))
}

/// The nest of a kernel and its schedules; `None` for a kernel that multiplies, or has several nests.
pub fn scheduled(kernel: &Kernel, machine: &Machine) -> Result<Option<Scheduled>, LowerError> {
    let kernel = &Kernel { schedule: None, ..kernel.clone() };
    if multiplies(kernel, machine)? && lowered(kernel, machine)?.1.is_some() {
        return Ok(None);
    }
    let of = |nest: &crate::nest::Nest| {
        let schedules = schedule::all_of(nest)?;
        Ok(Scheduled { facts: facts::Facts::of(nest), schedules, fixed: schedule::fixed(nest)? })
    };
    only_nest(kernel, machine, &of)
}

/// Schedules of a kernel with their prices: first the one that it gets, then others, the cheapest first. Empty where there are none. Of a
/// kernel that multiplies, not all of the others fit ([`fits`]); where the model has no time for the first, its price is infinite.
pub fn schedules(kernel: &Kernel, machine: &Machine) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let kernel = &Kernel { schedule: None, ..kernel.clone() };
    let made = if multiplies(kernel, machine)? { lowered(kernel, machine)?.1 } else { None };
    let nest = || Ok(only_nest(kernel, machine, &schedule::all_of)?.unwrap_or_default());
    let Some(made) = made else {
        let mut all: Vec<(Schedule, Price)> = nest()?;
        let others = if all.is_empty() { vec![] } else { multiplying(kernel, machine)? };
        all.extend(others);
        return Ok(all);
    };
    let (first, mut all) = (made.schedule(), multiplying(kernel, machine)?);
    let us = all.iter().find(|c| unstaged(&c.0) == unstaged(&first)).map_or(f64::INFINITY, |c| c.1.us);
    all.retain(|c| c.0 != first);
    if let Some(rules) = ruled(kernel, machine)?.filter(|s| *s != first)
        && !all.iter().any(|c| c.0 == rules)
    {
        let price = all.iter().find(|c| unstaged(&c.0) == unstaged(&rules)).map_or(f64::INFINITY, |c| c.1.us);
        all.push((rules, Price { us: price, ..Price::default() }));
    }
    if by_rows(kernel, machine)?.is_some() {
        all.extend(nest()?.into_iter().take(1));
    }
    all.sort_by(|a, b| a.1.us.total_cmp(&b.1.us).then(a.0.cmp(&b.0)));
    let us = if machine.arch.is_gpu() { us } else { 0.0 };
    all.insert(0, (first, Price { us, ..Price::default() }));
    Ok(all)
}

/// Whether a kernel has this schedule's steps, and what they may not do; an error says which step does not fit.
pub fn fits(kernel: &Kernel, machine: &Machine, schedule: &Schedule) -> Result<(), LowerError> {
    let kernel = Kernel { schedule: Some(schedule.clone()), ..kernel.clone() };
    lowered(&kernel, machine).map(|_| ())
}

/// The price of a schedule for a kernel, where the model has one, and how much cheaper than the fixed rules' schedule one must be to replace
/// it: `None` where no prediction does. An error where the schedule does not fit.
pub fn priced(
    kernel: &Kernel,
    machine: &Machine,
    schedule: &Schedule,
) -> Result<(Option<Price>, Option<f64>), LowerError> {
    fits(kernel, machine, schedule)?;
    if schedule.multiplies() {
        let all = schedules(kernel, machine)?;
        let found = all.iter().find(|c| unstaged(&c.0) == unstaged(schedule)).map(|c| c.1);
        return Ok((found.filter(|p| p.us.is_finite()), Some(1.0)));
    }
    let of = |nest: &crate::nest::Nest| {
        let facts = facts::Facts::of(nest);
        Ok((Some(propose::price_of(nest, &facts, schedule)?), schedule::gain(nest, &facts)?))
    };
    let why = || "it has no schedule: it is several nests".to_string();
    let without = || LowerError::Unsupported { kernel: kernel.name.clone(), why: why() };
    only_nest(kernel, machine, &of)?.ok_or_else(without)
}

/// A schedule without what its price does not depend on, or follows from memory that is left.
fn unstaged(schedule: &Schedule) -> Schedule {
    let priced = |s: &&Step| !matches!(s, Step::Stage(..) | Step::Group(_) | Step::BlockMask);
    schedule.steps.iter().filter(priced).cloned().collect()
}

/// Whether a kernel may multiply: by a matmul, or as one.
fn multiplies(kernel: &Kernel, machine: &Machine) -> Result<bool, LowerError> {
    let may = matches!(kernel.kind, KernelKind::Gemm | KernelKind::Conv | KernelKind::Attention);
    Ok(may
        || kernel.kind == KernelKind::Reduction
            && with(kernel, machine, |of| Ok(crate::pairwise::applies(of, of.machine)))?)
}

/// Calls `f` with the kernel's body.
fn with<T>(
    kernel: &Kernel,
    machine: &Machine,
    f: impl FnOnce(&Body) -> Result<T, LowerError>,
) -> Result<T, LowerError> {
    let machine = &under(machine, kernel);
    let decomposed = Decomposed::of(&kernel.name, &kernel.body)?;
    f(&body(kernel, &decomposed, machine)?)
}

/// What `say` says of a kernel's nest; `None` for a kernel with several nests, or with none.
fn only_nest<T>(
    kernel: &Kernel,
    machine: &Machine,
    say: &dyn Fn(&crate::nest::Nest) -> Result<T, LowerError>,
) -> Result<Option<T>, LowerError> {
    with(kernel, machine, |of| {
        let mut found = vec![];
        nests(kernel, of, of.machine, &mut |nest| {
            found.push(say(nest)?);
            Ok(())
        })?;
        Ok(if found.len() == 1 { found.pop() } else { None })
    })
}

/// Schedules of a kernel that multiplies, other than those of its rows. Not all of them fit.
fn multiplying(kernel: &Kernel, machine: &Machine) -> Result<Vec<(Schedule, Price)>, LowerError> {
    if !machine.arch.is_gpu() {
        return Ok(vec![]);
    }
    let found = with(kernel, machine, |of| {
        let all: Result<Vec<(Multiply, f64)>, LowerError> = match kernel.kind {
            KernelKind::Gemm => gemm::candidates(of, of.machine),
            KernelKind::Conv => crate::conv::candidates(of, of.machine),
            KernelKind::Attention => flash::candidates(of, of.machine),
            _ => Ok(vec![]),
        };
        Ok(if_taken(all)?.unwrap_or_default())
    })?;
    let one = |(m, us): (Multiply, f64)| (m.schedule(), Price { us, ..Price::default() });
    let mut all: Vec<(Schedule, Price)> = found.into_iter().map(one).collect();
    all.sort_by(|a, b| a.1.us.total_cmp(&b.1.us).then(a.0.cmp(&b.0)));
    Ok(all)
}

/// Predicted time of a matmul of few rows or columns as sums along rows.
fn by_rows(kernel: &Kernel, machine: &Machine) -> Result<Option<f64>, LowerError> {
    if kernel.kind != KernelKind::Gemm || !machine.arch.is_gpu() {
        return Ok(None);
    }
    with(kernel, machine, |of| Ok(if_taken(gemm::by_rows(of, of.machine))?.flatten()))
}

/// Whether lowering chooses the GPU's library by default.
pub fn prefers_library(kernel: &Kernel, machine: &Hardware) -> bool {
    let open = kernel.kind == KernelKind::Gemm && !machine.contract.batch_invariant && kernel.schedule.is_none();
    open && with(kernel, machine.machine, |of| Ok(gemm::prefers_library(of, of.machine))).unwrap_or(false)
}

/// Schedules that differ from that of a matmul by warpgroups in one choice that the model does not price: the number of stages and of
/// buffers, their depth, the order of tiles, clusters, tiles in flight. Not all of them fit a kernel.
pub fn neighbours(schedule: &Schedule) -> Vec<Schedule> {
    let Ok(Some(Multiply::Matmul(p))) = Multiply::of(schedule) else { return vec![] };
    let (Some(stages), t) = (p.tile.stages, p.tile) else { return vec![] };
    let mut all = vec![];
    let mut put = |tile| all.push(Multiply::Matmul(crate::multiply::Product { tile, ..p }).schedule());
    for group in [4, 8, 16, 32, 64] {
        put(crate::multiply::Tile { group, ..t });
    }
    for n in stages.saturating_sub(2).max(2)..=stages + 2 {
        put(crate::multiply::Tile { stages: Some(n), ..t });
    }
    let cluster = 3 - t.cluster.min(2);
    put(crate::multiply::Tile { cluster, persist: t.persist.map(|n| n / cluster * cluster), ..t });
    put(crate::multiply::Tile { ping_pong: !t.ping_pong, ..t });
    if let Some(n) = t.buffers {
        put(crate::multiply::Tile { buffers: None, ..t });
        put(crate::multiply::Tile { buffers: Some(n.div_ceil(2)), ..t });
    }
    let [m, n, k] = t.size;
    put(crate::multiply::Tile { size: [m, n, 2 * k], stages: Some((stages / 2).max(2)), ..t });
    put(crate::multiply::Tile { size: [m, n, k / 2], stages: Some(stages * 2), ..t });
    all.retain(|n| n != schedule);
    all
}
