//! Schedules of a kernel: the one that it gets, and others with their prices, which `explain` lists and tuning
//! searches.
use crate::cost::features;
use crate::cost::price::Price;
use crate::dispatch::{self, Lowered, lower_scheduled, visit_nests, with_contract};
use crate::error::{LowerError, unsupported_as_none};
use crate::matmul::pairwise;
use crate::nest::Nest;
use crate::nest::lowering::{Lowering, Stated};
use crate::scalar::composite::Decomposed;
use crate::select::allowed::{FormsAllowed, form_of};
use crate::select::matmul::slices_without_advantage;
use crate::select::{self, propose};
use kiln_machine::Machine;
use kiln_plan::form::{Form, MAX_ROWS_BY_SUMS, MAX_ROWS_OF_SUMS, ProgramFamily};
use kiln_plan::matmul_schedule::{MatmulForm, MatmulSchedule};
use kiln_plan::price_error::{ADVANTAGE_OF_OTHER_FAMILY, SAME_PRICE};
use kiln_plan::{Kernel, KernelKind, Schedule, Step};

/// Version of the programs that schedules stand for: raised whenever they change so much that old measurements are
/// void.
pub const PROGRAMS: u32 = 16;

/// The nest of a kernel with exactly one, which does not multiply: what it is, and its schedules.
pub struct Scheduled {
    /// The nest in numbers.
    pub facts: features::NestFeatures,
    /// The schedule that it gets, then others that fit it, the cheapest first.
    pub schedules: Vec<(Schedule, Price)>,
}

/// How a kernel is lowered, and what it is predicted to take.
#[derive(Clone, Default)]
pub struct Chosen {
    /// By which template a GPU computes what it multiplies; `None` for other kernels.
    pub form: Option<Form>,
    /// The schedule that it has, or else the cheapest, with those of all launches; `None` for a fallback.
    pub schedule: Option<Schedule>,
    /// Microseconds of all its launches; `None` where the model has no price.
    pub us: Option<f64>,
}

/// The schedule of a kernel, the cheapest one of its form if its plan has none, and its price.
pub fn chosen(kernel: &Kernel, machine: &Machine) -> Result<Chosen, LowerError> {
    chosen_among(kernel, machine, None)
}

/// The same, of the cheapest of these forms.
pub fn chosen_among(kernel: &Kernel, machine: &Machine, forms: Option<&[Form]>) -> Result<Chosen, LowerError> {
    let chosen = chosen_schedule(kernel, machine, forms)?;
    Ok(Chosen { form: chosen.schedule.as_ref().and_then(|s| form_of(kernel, machine, s)), ..chosen })
}

fn chosen_schedule(kernel: &Kernel, machine: &Machine, forms: Option<&[Form]>) -> Result<Chosen, LowerError> {
    let forms = FormsAllowed::new(kernel, forms);
    if let Some(schedule) = &kernel.schedule {
        let price = if machine.arch.is_gpu() { priced(kernel, machine, schedule)? } else { None };
        let schedule = lowered(kernel, machine)?.with_launches(schedule.clone());
        return Ok(Chosen { form: None, schedule: Some(schedule), us: price.map(|p| p.us) });
    }
    // One that lowering refuses would leave the kernel without a program.
    if multiplies(kernel, machine)? {
        let found = match machine.arch.is_gpu() {
            true => {
                let found = unsupported_as_none(cheapest_product(kernel, machine, forms, |_| true))?.flatten();
                if found.is_none() {
                    forms.nests(kernel)?;
                }
                found.map(|(lowered, us)| (lowered, Some(us)))
            }
            false => unsupported_as_none(cheapest(kernel, machine, FormsAllowed::default(), |_| true))?,
        };
        if let Some((lowered, us)) = found
            && let Some(schedule) = lowered.schedule()
        {
            return Ok(Chosen { form: None, schedule: Some(schedule), us });
        }
    }
    let cheapest = |lowering: &Lowering, nest: &Nest| Ok((lowering.launch(nest.name), propose::cheapest(nest)?));
    let nests = each_nest(kernel, machine, &cheapest)?;
    let us = (machine.arch.is_gpu() && !nests.is_empty()).then(|| nests.iter().map(|n| n.1.1.us).sum());
    let schedule = match &nests[..] {
        [] => None,
        [(_, (only, _))] => Some(only.clone()),
        all => Some(all.iter().map(|(name, (own, _))| Step::Launch(name.clone(), own.clone())).collect()),
    };
    Ok(Chosen { form: None, schedule, us })
}

/// A kernel by its schedule, or else by the cheapest, with the schedule that the steps follow if they multiply.
pub fn lowered(kernel: &Kernel, machine: &Machine) -> Result<Lowered, LowerError> {
    let by = |schedule| Kernel { schedule, ..kernel.clone() };
    let mut found = match &kernel.schedule {
        Some(_) => lower_scheduled(kernel, &with_contract(machine, kernel), propose::schedules_of)?,
        None => cheapest(kernel, machine, FormsAllowed::new(kernel, None), |_| true)?.0,
    };
    if machine.arch.is_gpu() && found.matmul_schedule == Some(MatmulSchedule::Library) {
        let without = Kernel { form: None, ..by(None) };
        let without = cheapest(&without, machine, FormsAllowed::default(), |m| *m != MatmulSchedule::Library);
        found.steps.otherwise = unsupported_as_none(without)?.map(|found| Box::new(found.0.steps));
    }
    Ok(found)
}

/// Most schedules of one form, with one number of slices, that are tried.
pub const MAX_TRIES_OF_FORM: usize = 2;

/// Lowers a kernel without a schedule by the cheapest one that fits and that `takes` admits, with its microseconds; by
/// those of its nests where none does.
fn cheapest(
    kernel: &Kernel,
    machine: &Machine,
    forms: FormsAllowed,
    takes: impl Fn(&MatmulSchedule) -> bool,
) -> Result<(Lowered, Option<f64>), LowerError> {
    if let Some((lowered, us)) = cheapest_product(kernel, machine, forms, takes)? {
        return Ok((lowered, Some(us)));
    }
    forms.nests(kernel)?;
    Ok((lower_scheduled(kernel, &with_contract(machine, kernel), propose::schedules_of)?, None))
}

/// The same for schedules that multiply by tiles or a library on a GPU.
fn cheapest_product(
    kernel: &Kernel,
    machine: &Machine,
    forms: FormsAllowed,
    takes: impl Fn(&MatmulSchedule) -> bool,
) -> Result<Option<(Lowered, f64)>, LowerError> {
    let hardware = &with_contract(machine, kernel);
    let mut all = products(kernel, machine, forms)?;
    all.retain(|c| takes(&c.0));
    // What does not fit in one tile seldom fits in another.
    let mut refused: Vec<((MatmulForm, bool), usize)> = vec![];
    for (m, us) in all {
        let form = match &m {
            MatmulSchedule::Matmul(p) => Some((p.form, p.tile.stages.is_some())),
            MatmulSchedule::Library | MatmulSchedule::Attention(_) => None,
        };
        let before = refused.iter().position(|r| Some(r.0) == form);
        if before.is_some_and(|at| refused[at].1 >= MAX_TRIES_OF_FORM) {
            continue;
        }
        let kernel = Kernel { schedule: Some(m.schedule()), ..kernel.clone() };
        if let Some(lowered) = unsupported_as_none(lower_scheduled(&kernel, hardware, propose::schedules_of))? {
            return Ok(Some((lowered, us)));
        }
        match (before, form) {
            (Some(at), _) => refused[at].1 += 1,
            (None, Some(form)) => refused.push((form, 1)),
            (None, None) => {}
        }
    }
    Ok(None)
}

/// The schedules of these forms that multiply by tiles or a library, in the order in which they are tried; none where
/// sums along rows are cheaper.
fn products(kernel: &Kernel, machine: &Machine, forms: FormsAllowed) -> Result<Vec<(MatmulSchedule, f64)>, LowerError> {
    let rows = forms.rows();
    if rows && is_few(kernel, machine, MAX_ROWS_BY_SUMS)? {
        return Ok(vec![]);
    }
    let mut all = multiplying(kernel, machine)?;
    if kernel.kind != KernelKind::Reduction && forms.0.is_some() {
        let matmuls = kernel.matmuls();
        all.retain(|c| forms.contain(&Form::of_tiles(&c.0, kernel.kind, matmuls)));
    }
    if rows && let Some((_, rows)) = by_rows(kernel, machine)?.filter(|_| !kernel.batch_invariant) {
        all.retain(|c| c.1 <= ADVANTAGE_OF_OTHER_FAMILY * rows.us);
    }
    Ok(all)
}

/// Microseconds of a kernel by the cheapest schedule of these forms, without lowering it: a schedule of that price may
/// not fit; and the family of programs, if it multiplies. `None` on the host, and where the model has no price.
pub fn price_among(
    kernel: &Kernel,
    machine: &Machine,
    forms: Option<&[Form]>,
) -> Result<Option<(f64, Option<ProgramFamily>)>, LowerError> {
    if !machine.arch.is_gpu() {
        return Ok(None);
    }
    let multiplies = multiplies(kernel, machine)?;
    if multiplies && let Some((schedule, us)) = products(kernel, machine, FormsAllowed::new(kernel, forms))?.first() {
        return Ok(Some((*us, Some(ProgramFamily::of(schedule)))));
    }
    let nests = each_nest(kernel, machine, &|_, nest| Ok(propose::cheapest(nest)?.1.us))?;
    let family = kernel.form_of(&Schedule::default()).map(|_| ProgramFamily::Rows);
    Ok(if nests.is_empty() { None } else { Some((nests.iter().sum(), family)) })
}

/// The schedule and the price of a matmul of few rows or columns as sums along rows.
fn by_rows(kernel: &Kernel, machine: &Machine) -> Result<Option<(Schedule, Price)>, LowerError> {
    if !is_few(kernel, machine, MAX_ROWS_OF_SUMS)? {
        return Ok(None);
    }
    let nest = unsupported_as_none(only_nest(kernel, machine, &|_, nest| propose::schedules(nest)))?.flatten();
    Ok(nest.and_then(|all| all.into_iter().next()))
}

/// Whether a matmul has at most so many rows or columns.
fn is_few(kernel: &Kernel, machine: &Machine, most: usize) -> Result<bool, LowerError> {
    let is_matmul = kernel.kind == KernelKind::Gemm && machine.arch.is_gpu();
    let few = |lowering: &Lowering| {
        Ok(unsupported_as_none(select::gemm::least(lowering, lowering.machine))?.is_some_and(|n| n <= most))
    };
    Ok(is_matmul && with(kernel, machine, few)?)
}

/// The nest of a kernel and its schedules; `None` for a kernel that multiplies, or has several nests.
pub fn scheduled(kernel: &Kernel, machine: &Machine) -> Result<Option<Scheduled>, LowerError> {
    let kernel = &Kernel { schedule: None, ..kernel.clone() };
    if multiplies(kernel, machine)? && lowered(kernel, machine)?.matmul_schedule.is_some() {
        return Ok(None);
    }
    let schedules = |_: &Lowering, nest: &Nest| {
        let schedules = propose::schedules(nest)?;
        Ok(Scheduled { facts: features::NestFeatures::of(nest), schedules })
    };
    only_nest(kernel, machine, &schedules)
}

/// Schedules of a kernel with their prices: first the one that it gets, then others, the cheapest first. Empty where
/// there are none. Of a kernel that multiplies, not all of the others fit ([`fits`]).
pub fn schedules(kernel: &Kernel, machine: &Machine) -> Result<Vec<(Schedule, Price)>, LowerError> {
    let kernel = &Kernel { form: None, schedule: None, ..kernel.clone() };
    let made = if multiplies(kernel, machine)? { lowered(kernel, machine)?.matmul_schedule } else { None };
    let priced = |(m, us): (MatmulSchedule, f64)| (m.schedule(), Price { us, ..Price::default() });
    let mut all: Vec<(Schedule, Price)> = multiplying(kernel, machine)?.into_iter().map(priced).collect();
    all.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
    let Some(first) = made.map(|made| made.schedule()) else {
        let launch = |lowering: &Lowering, nest: &Nest| {
            Ok(PricedLaunch { name: lowering.launch(nest.name), schedules: propose::schedules(nest)? })
        };
        let mut nests = each_nest(kernel, machine, &launch)?;
        return Ok(match nests.len() {
            0 => vec![],
            1 => nests.swap_remove(0).schedules.into_iter().chain(all).collect(),
            _ => of_launches(&nests),
        });
    };
    all.extend(by_rows(kernel, machine)?);
    all.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
    match all.iter().position(|c| c.0 == first) {
        Some(at) => all[..=at].rotate_right(1),
        None => all.insert(0, (first, Price::default())),
    }
    Ok(all)
}

/// A launch of a kernel, with its schedules and their prices, the cheapest first.
struct PricedLaunch {
    name: String,
    schedules: Vec<(Schedule, Price)>,
}

/// Schedules of a kernel of several launches: the cheapest of each, then one of them by another, the cheapest first.
fn of_launches(nests: &[PricedLaunch]) -> Vec<(Schedule, Price)> {
    let step = |l: &PricedLaunch, own: &Schedule| Step::Launch(l.name.clone(), own.clone());
    let first: Vec<&(Schedule, Price)> = nests.iter().filter_map(|l| l.schedules.first()).collect();
    let sum = |other: Option<(usize, &Price)>| {
        let price = |(n, own): (usize, &&(Schedule, Price))| *other.filter(|o| o.0 == n).map_or(&own.1, |o| o.1);
        first.iter().enumerate().map(price).fold(Price::default(), |a, b| a + b)
    };
    let whole: Vec<Step> = nests.iter().zip(&first).map(|(l, own)| step(l, &own.0)).collect();
    let mut others = vec![];
    for (n, l) in nests.iter().enumerate() {
        for (schedule, price) in l.schedules.iter().skip(1) {
            let mut steps = whole.clone();
            steps[n] = step(l, schedule);
            others.push((Schedule { steps }, sum(Some((n, price)))));
        }
    }
    others.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
    [(Schedule { steps: whole }, sum(None))].into_iter().chain(others).collect()
}

/// Whether a kernel has this schedule's steps, and what they may not do; an error says which step does not fit.
pub fn fits(kernel: &Kernel, machine: &Machine, schedule: &Schedule) -> Result<(), LowerError> {
    let kernel = Kernel { schedule: Some(schedule.clone()), ..kernel.clone() };
    lowered(&kernel, machine).map(|_| ())
}

/// The price of a schedule for a kernel, where the model has one. An error where the schedule does not fit.
pub fn priced(kernel: &Kernel, machine: &Machine, schedule: &Schedule) -> Result<Option<Price>, LowerError> {
    fits(kernel, machine, schedule)?;
    if schedule.multiplies() {
        let all = schedules(kernel, machine)?;
        // The number of resident blocks is that of the machine where it is not given.
        let resident = schedule.steps.iter().any(|s| matches!(s, Step::Persist(_)));
        let key = |schedule: &Schedule| -> Schedule {
            let kept = |s: &&Step| resident || !matches!(s, Step::Persist(_));
            unstaged(schedule).steps.iter().filter(kept).cloned().collect()
        };
        let found = all.iter().find(|c| key(&c.0) == key(schedule)).map(|c| c.1);
        return Ok(found);
    }
    let kernel = &Kernel { schedule: Some(schedule.clone()), ..kernel.clone() };
    let price = |lowering: &Lowering, nest: &Nest| match lowering.stated(nest) {
        Some(Stated::Main(stated) | Stated::Launch(stated)) => {
            propose::price_of(nest, &features::NestFeatures::of(nest), &stated)
        }
        None => Ok(propose::cheapest(nest)?.1),
    };
    Ok(each_nest(kernel, machine, &price)?.into_iter().reduce(|a, b| a + b))
}

/// A schedule without what its price does not depend on, or follows from memory that is left.
fn unstaged(schedule: &Schedule) -> Schedule {
    let priced = |s: &&Step| !matches!(s, Step::Stage(..) | Step::Group(_) | Step::BlockMask | Step::Launch(..));
    schedule.steps.iter().filter(priced).cloned().collect()
}

/// Whether a kernel may multiply: by a matmul, or as one.
fn multiplies(kernel: &Kernel, machine: &Machine) -> Result<bool, LowerError> {
    let may = matches!(kernel.kind, KernelKind::Gemm | KernelKind::Conv | KernelKind::Attention);
    Ok(may
        || kernel.kind == KernelKind::Reduction && with(kernel, machine, |of| Ok(pairwise::applies(of, of.machine)))?)
}

/// Calls `f` with the kernel's body.
fn with<T>(
    kernel: &Kernel,
    machine: &Machine,
    f: impl FnOnce(&Lowering) -> Result<T, LowerError>,
) -> Result<T, LowerError> {
    let machine = &with_contract(machine, kernel);
    let decomposed = Decomposed::of(&kernel.name, &kernel.body)?;
    f(&dispatch::lowering(kernel, &decomposed, machine, propose::schedules_of)?)
}

/// What `say` says of a kernel's nest; `None` for a kernel with several nests, or with none.
fn only_nest<T>(
    kernel: &Kernel,
    machine: &Machine,
    say: &dyn Fn(&Lowering, &Nest) -> Result<T, LowerError>,
) -> Result<Option<T>, LowerError> {
    let mut all = each_nest(kernel, machine, say)?;
    Ok(if all.len() == 1 { all.pop() } else { None })
}

/// What `say` says of each nest of a kernel.
fn each_nest<T>(
    kernel: &Kernel,
    machine: &Machine,
    say: &dyn Fn(&Lowering, &Nest) -> Result<T, LowerError>,
) -> Result<Vec<T>, LowerError> {
    with(kernel, machine, |of| {
        let mut found = vec![];
        visit_nests(kernel, of, of.machine, &mut |nest| {
            found.push(say(of, nest)?);
            Ok(())
        })?;
        Ok(found)
    })
}

/// Schedules of a kernel that multiplies with the microseconds they are predicted to take, the cheapest first. Not all
/// of them fit. Slices in registers that are not much cheaper than staged tiles come last. Under a batch-invariant
/// contract those come first whose form does not depend on the number of rows.
fn multiplying(kernel: &Kernel, machine: &Machine) -> Result<Vec<(MatmulSchedule, f64)>, LowerError> {
    if !machine.arch.is_gpu() {
        return Ok(vec![]);
    }
    let all = with(kernel, machine, |of| {
        let all = match kernel.kind {
            KernelKind::Gemm => select::gemm::candidates(of, of.machine),
            KernelKind::Conv => select::conv::candidates(of, of.machine),
            KernelKind::Attention => select::attention::candidates(of, of.machine),
            KernelKind::Reduction => select::pairwise::candidates(of, of.machine),
            _ => Ok(vec![]),
        };
        Ok(unsupported_as_none(all)?.unwrap_or_default())
    })?;
    let without_advantage = slices_without_advantage(&all);
    let (slices, all): (Vec<_>, Vec<_>) = all.into_iter().partition(without_advantage);
    // Of schedules of about the same price the first is taken that leaves the fewest multiprocessors idle: larger tiles
    // come first, and read less from the L2 cache.
    let least = all.iter().map(|c| c.1).fold(f64::INFINITY, f64::min);
    let (mut close, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|c| c.1 * SAME_PRICE <= least);
    close.sort_by_key(|c| c.0.idle(machine.units.multiprocessors));
    for mut others in [others, slices] {
        others.sort_by(|a, b| a.1.total_cmp(&b.1));
        close.extend(others);
    }
    if kernel.batch_invariant {
        close.retain(|c| c.0.is_invariant());
        close.sort_by_key(|c| c.0.form());
    }
    Ok(close)
}
