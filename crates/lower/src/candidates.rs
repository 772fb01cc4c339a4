//! Template candidates for a kernel's matmul: the space that tuning searches.
use crate::composite::Decomposed;
use crate::resolve::Body;
use crate::warpgroup::GROUP;
use crate::{body, gemm, lower_at, template, under};
use kiln_machine::Machine;
use kiln_plan::{Family, Hardware, Kernel, KernelKind, Parameters, Reason, Template};

/// Version of the templates: raised whenever their programs change so much that old measurements are void.
pub const TEMPLATES: u32 = 6;

/// A template that applies to a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Candidate {
    pub template: Template,
    /// Microseconds that a coarse model predicts for the matmul, the sum of its split-K slices included.
    pub us: f64,
}

/// Templates of a kernel's matmul on a GPU: first the one that lowering chooses by default, then all others that may
/// apply, the fastest in the model first. Empty where there is nothing to choose.
pub fn candidates(kernel: &Kernel, machine: &Machine) -> Vec<Candidate> {
    let machine = &under(machine, kernel);
    let Some(decomposed) = decomposed(kernel) else { return vec![] };
    let of = Body { template: None, ..body(kernel, &decomposed, machine) };
    if kernel.kind != KernelKind::Gemm {
        return vec![];
    }
    let (Ok(mut all), Some(chosen)) = (gemm::candidates(&of, machine), chosen(kernel, &of)) else { return vec![] };
    if all.is_empty() {
        return vec![];
    }
    all.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let us = all.iter().find(|c| c.0 == chosen).map_or(f64::INFINITY, |c| c.1);
    all.retain(|c| c.0 != chosen);
    all.insert(0, (chosen, us));
    all.into_iter().map(|(template, us)| Candidate { template, us }).collect()
}

/// None for a kernel that lowering refuses.
fn decomposed(kernel: &Kernel) -> Option<Decomposed> {
    Decomposed::of(&kernel.name, &kernel.body).ok()
}
/// Whether lowering chooses the GPU's library by default.
pub fn prefers_library(kernel: &Kernel, machine: &Hardware) -> bool {
    let free = !machine.contract.batch_invariant && kernel.reason.template.is_none();
    let open = kernel.kind == KernelKind::Gemm && free;
    open && decomposed(kernel).is_some_and(|d| gemm::prefers_library(&body(kernel, &d, machine), machine))
}

/// The template that lowering chooses for a kernel's matmul by default, with all choices explicit.
fn chosen(kernel: &Kernel, of: &Body) -> Option<Template> {
    let by = |template| {
        let mut kernel = kernel.clone();
        kernel.reason = Reason { template, ..Reason::default() };
        lower_at(&kernel, of.machine.machine).ok()
    };
    let steps = by(None)?.steps;
    let seen = template::of(kernel.kind, steps.iter().map(template::Part::from));
    if seen.family != Family::Warpgroup {
        return Some(seen);
    }
    let parts = gemm::parts(of, of.machine).ok();
    let template = Template { schedule: Parameters { split_k: parts, group: Some(GROUP), ..seen.schedule }, ..seen };
    by(Some(template)).map(|_| template)
}

/// Templates that differ from a warpgroup template in one choice that the model does not price: the number of stages,
/// their depth, the order of tiles, clusters, tiles in flight. Not all of them apply to a kernel.
pub fn neighbours(t: Template) -> Vec<Template> {
    let s = t.schedule;
    let (Family::Warpgroup, Some(stages), Some(cluster), Some(depth)) = (t.family, s.stages, s.cluster, s.depth) else {
        return vec![];
    };
    let mut all = vec![];
    let mut put = |schedule| all.push(Template { schedule, ..t });
    for n in [4, 8, 16, 32, 64] {
        put(Parameters { group: Some(n), ..s });
    }
    for n in stages.saturating_sub(2)..=stages + 2 {
        put(Parameters { stages: Some(n), ..s });
    }
    put(Parameters { cluster: Some(3 - cluster.min(2)), ..s });
    put(Parameters { tiles: Some(3 - s.tiles.unwrap_or(1).min(2)), ..s });
    match depth {
        128 => put(Parameters { depth: Some(256), stages: Some(stages / 2), ..s }),
        _ => put(Parameters { depth: Some(depth / 2), stages: Some(stages * 2), ..s }),
    }
    all.retain(|n| *n != t && n.schedule.stages >= Some(2));
    all
}
