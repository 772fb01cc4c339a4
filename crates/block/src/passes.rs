//! Passes: functions from a kernel to one that computes the same.
//!
//! The first six keep the level and suit every target; `layout` takes an upper-level program toward the GPU. No pass
//! reorders float arithmetic. Verified programs stay verified, which is checked after every pass. What becomes of an
//! instruction is appended by the builder, which keeps values' names (`builder/rewrite`).
mod cse;
mod dce;
mod fold;
pub mod layout;
mod licm;
mod numbers;
mod offsets;
pub mod persistent_rows;
mod pipeline;
pub mod portable_assembly;
pub mod split;
pub mod warpgroup;
mod wide_offsets;

use crate::analysis::{Analysis, Relevance, drop_irrelevant, relevance};
use crate::{BinaryOp, BlockError, BlockProgram, Const, Elem, InstData, Op, Value, verify::verify};
use kiln_machine::Machine;

/// A pass with its name.
pub type Pass = (&'static str, fn(&mut BlockProgram));

/// Every pass, in the order in which they should run.
pub const PASSES: &[Pass] = &[
    ("wide_offsets", wide_offsets::run),
    ("fold", fold::run),
    ("offsets", offsets::run),
    ("cse", cse::run),
    ("licm", licm::run),
    ("dce", dce::run),
    ("layout", assign_layouts),
];

/// A pass for a machine, which refuses programs of another form.
pub type Step = (&'static str, fn(&BlockProgram, &Machine) -> Result<BlockProgram, warpgroup::Refusal>);

/// `split` is for loops with masks, `portable_assembly` for programs that run on no GPU. Then the passes toward
/// warpgroups, in their order; `warpgroups` is all of them. `persistent-rows` is for row programs.
pub const STEPS: &[Step] = &[
    ("split", |k, _| Ok(split::run(k))),
    ("portable_assembly", |k, _| Ok(portable_assembly::portable(k))),
    ("tensor_maps", |k, _| warpgroup::maps::run(k)),
    ("launch_maps", |k, _| warpgroup::maps::launch::run(k)),
    ("persistent", |k, m| {
        let launch = warpgroup::Launch::of(k, m.units.multiprocessors);
        warpgroup::persistent::run(k, warpgroup::Launch { cluster: 1, ..launch })
    }),
    ("clusters", |k, m| warpgroup::persistent::run(k, warpgroup::Launch::of(k, m.units.multiprocessors))),
    ("roles", warpgroup::in_roles),
    ("warpgroups", warpgroup::run),
    ("pipeline", pipeline::run),
    ("persistent-rows", |k, m| persistent_rows::run(k, m.limits.clusters_of(k.blocks))),
];

/// The passes that every program goes through.
pub const CANONICAL: &[&str] = &["wide_offsets", "fold", "offsets", "cse", "licm", "dce"];

fn assign_layouts(k: &mut BlockProgram) {
    *k = layout::assign(k);
}

/// Names of all passes.
pub fn known() -> impl Iterator<Item = &'static str> {
    PASSES.iter().map(|p| p.0).chain(STEPS.iter().map(|p| p.0))
}

/// Runs passes by name, in the order given, on a verified kernel. The kernel is verified again after each pass, and its
/// values are renumbered at the end. The machine is for [`STEPS`].
pub fn run(names: &[&str], kernel: &mut BlockProgram, machine: &Machine) -> Result<(), BlockError> {
    run_with(names, kernel, Some(machine))
}

/// Without a machine, only [`PASSES`].
fn run_with(names: &[&str], kernel: &mut BlockProgram, machine: Option<&Machine>) -> Result<(), BlockError> {
    for name in names {
        let title = kernel.name.clone();
        let wrong = |what: String| BlockError::BlockProgram { kernel: title, what };
        if let Some((_, pass)) = PASSES.iter().find(|p| p.0 == *name) {
            pass(kernel);
        } else if let Some(((_, step), machine)) = STEPS.iter().find(|p| p.0 == *name).zip(machine) {
            *kernel = step(kernel, machine).map_err(|why| wrong(format!("pass `{name}` does not apply: {why}")))?;
        } else {
            return Err(wrong(format!("there is no pass `{name}`; known: {}", known().collect::<Vec<_>>().join(", "))));
        }
        verify(kernel).map_err(|e| BlockError::BlockProgram {
            kernel: kernel.name.clone(),
            what: format!("pass `{name}` broke the program: {e}"),
        })?;
    }
    *kernel = kernel.compacted();
    Ok(())
}

/// A canonical program whose sizes are numbers of the launch, toward warpgroups: with tensor maps, and in roles.
pub struct Warpgroups {
    pub mapped: BlockProgram,
    pub roles: BlockProgram,
}

/// The steps `launch_maps` and `roles`, each canonical again, for a machine that has warpgroups.
///
/// # Errors
/// Why the program has not the form of a matmul by warpgroups.
pub fn to_warpgroups(kernel: &BlockProgram, machine: &Machine) -> Result<Warpgroups, warpgroup::Refusal> {
    if !(machine.arch.has_wgmma() && machine.arch.has_tma()) {
        return Err(warpgroup::Refusal(format!("{} has no warpgroups", machine.name)));
    }
    let broken = |e: BlockError| warpgroup::Refusal(e.to_string());
    let mut mapped = warpgroup::maps::launch::run(kernel)?;
    canonicalise(&mut mapped).map_err(broken)?;
    let mut roles = warpgroup::in_roles(&mapped, machine)?;
    verify(&roles).map_err(broken)?;
    canonicalise(&mut roles).map_err(broken)?;
    Ok(Warpgroups { mapped, roles })
}

/// The step `pipeline`, canonical again.
///
/// # Errors
/// Why the program has no dot for it.
pub fn to_pipeline(kernel: &BlockProgram, machine: &Machine) -> Result<BlockProgram, warpgroup::Refusal> {
    let broken = |e: BlockError| warpgroup::Refusal(e.to_string());
    let mut made = pipeline::run(kernel, machine)?;
    verify(&made).map_err(broken)?;
    canonicalise(&mut made).map_err(broken)?;
    Ok(made)
}

/// Whether a program multiplies blocks.
pub fn multiplies(kernel: &BlockProgram) -> bool {
    let mut found = false;
    kernel.walk(&mut |_, d| found |= matches!(d.op, Op::Dot { .. }));
    found
}

/// [`CANONICAL`], on a verified kernel.
pub fn canonicalise(kernel: &mut BlockProgram) -> Result<(), BlockError> {
    run_with(CANONICAL, kernel, None)
}

/// 64 bits for offsets into large tensors, on a program with values of the launch.
pub(crate) fn widen_offsets(kernel: &mut BlockProgram) {
    wide_offsets::run(kernel);
}

/// Drops facts about parameters that do not matter, and says which do. On a program as a front end makes it.
pub fn drop_irrelevant_facts(kernel: &mut BlockProgram) -> Vec<Relevance> {
    let mut live = kernel.clone();
    dce::run(&mut live);
    let found = relevance(&live);
    drop_irrelevant(kernel, &found);
    found
}

/// The constant that all elements of a block have, if it is one.
pub fn constant(k: &BlockProgram, v: Value) -> Option<Const> {
    let data = k.insts.iter().find(|d| d.results[..] == [v])?;
    match (&data.op, &data.args[..]) {
        (Op::Const(c), _) => Some(*c),
        (Op::Splat, [one]) => constant(k, *one),
        (Op::Cast(Elem::F32), [one]) if k.ty(*one).elem().is_some_and(Elem::is_half) => constant(k, *one),
        _ => None,
    }
}

/// Whether a loop's bounds say that it has an iteration: its end is above its start, or a maximum with a number that
/// is.
fn runs(k: &BlockProgram, facts: &Analysis, data: &InstData) -> bool {
    let [lo, hi, ..] = data.args[..] else { return false };
    let above = |v: Value| {
        let (Some(v), Some(lo)) = (facts.affine(v), facts.affine(lo)) else { return false };
        v.add_scaled(lo, -1).and_then(|d| facts.range(&d, &[])).is_some_and(|(least, _)| least > 0)
    };
    let made = k.insts.iter().find(|d| d.results[..] == [hi]);
    above(hi) || made.is_some_and(|d| d.op == Op::Binary(BinaryOp::Max) && d.args.iter().any(|v| above(*v)))
}
