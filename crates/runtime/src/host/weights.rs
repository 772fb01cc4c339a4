//! Prepacked weights: operands of matmuls that no run changes are packed into panels once, when the session is created.
//!
//! Takes: the addresses of parameters and frozen buffers. Gives: packed operands per step, and the set of buffers still read in place.
//! Weights in f32 and f64 are packed, unless the matmul has only a few rows; with AMX those in bf16 are too. A packed weight takes as many
//! bytes as the original, rounded up to whole panels. The session frees originals that nothing else reads.
use super::{
    Parallel,
    gemm::{Panels, Role, Weights, prepack},
};
use crate::{Executable, KernelCode, layout::Layout, memory::Place};
use kiln_plan::{
    BufferId, Stage,
    exec::{GemmCall, Matrix, Slot, Work},
};
use std::{collections::HashSet, sync::Arc};

/// Packs the weights of all matmuls. Returns the packed operands of each step of the executable. `packed`: those of before, which stay
/// where the buffer has not `changed`.
///
/// # Safety
/// `addresses` are those of the layout; parameters and frozen buffers hold their values, but for those that are packed and not changed.
pub(super) unsafe fn pack(
    p: Parallel,
    exe: &Executable,
    layout: &Layout,
    places: &[Place],
    addresses: &[*mut u8],
    packed: Vec<Weights>,
    changed: impl Fn(BufferId) -> bool,
) -> Vec<Weights> {
    let mut all = packed;
    let mut known: Vec<(BufferId, Matrix, Arc<Panels>)> = vec![];
    for (k, kernel) in exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == Stage::Run) {
        for (s, work) in kernel.steps.steps.iter().enumerate() {
            // Panels are laid out for all columns and products.
            let Some(g) = unlimited(work) else { continue };
            let of = &mut all[layout.first_step(k) + s];
            for (role, m, to) in [(Role::A, &g.a, &mut of.a), (Role::B, &g.b, &mut of.b)] {
                let Some(b) = constant(kernel, m.slot, places) else { continue };
                if to.is_some() && !changed(b) {
                    continue;
                }
                let same = |(x, y, panels): &&(BufferId, Matrix, Arc<Panels>)| {
                    *x == b && Matrix { slot: y.slot, ..m.clone() } == *y && panels.fit(g, role)
                };
                *to = known.iter().find(same).map(|found| found.2.clone());
                if to.is_none() {
                    // SAFETY: the address is that of the operand's slot, and nothing writes it.
                    *to = unsafe { prepack(p, g, role, addresses[b.0 as usize]) }.map(Arc::new);
                    known.extend(to.iter().map(|panels| (b, m.clone(), panels.clone())));
                }
            }
        }
    }
    all
}

/// A matmul whose sizes are those of its call.
fn unlimited<C>(work: &Work<C>) -> Option<&GemmCall> {
    if let Work::Gemm(g) = work { Some(g).filter(|g| g.limit.is_none()) } else { None }
}

/// The buffer of a slot, if it is a parameter or frozen: no run changes it.
fn constant(kernel: &KernelCode, slot: Slot, places: &[Place]) -> Option<BufferId> {
    let Slot::Input(i) = slot else { return None };
    let b = *kernel.inputs.get(i as usize)?;
    matches!(places[b.0 as usize], Place::Param(_) | Place::Frozen).then_some(b)
}

/// Buffers that runs read in place, that is, not only as packed operands; outputs included.
pub(super) fn read(exe: &Executable, layout: &Layout, weights: &[Weights]) -> HashSet<BufferId> {
    let mut read: HashSet<BufferId> = exe.outputs.iter().copied().collect();
    for (k, kernel) in exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == Stage::Run) {
        for (s, work) in kernel.steps.steps.iter().enumerate() {
            let w = &weights[layout.first_step(k) + s];
            let slots: Vec<Slot> = match work {
                Work::Block { args, .. } => args.clone(),
                Work::Gemm(g) => {
                    let operands = [(&g.a, w.a.is_none()), (&g.b, w.b.is_none())];
                    operands.into_iter().filter(|o| o.1).map(|o| o.0.slot).collect()
                }
                Work::Fallback(_) | Work::Interpret { .. } => {
                    (0..kernel.inputs.len() as u32).map(Slot::Input).collect()
                }
            };
            let inputs = slots.iter().filter_map(|s| if let Slot::Input(i) = s { Some(*i as usize) } else { None });
            read.extend(inputs.filter_map(|i| kernel.inputs.get(i)));
        }
    }
    read
}
