//! Prepacked weights: operands of matmuls that no run changes are packed into panels once, when the session is created.
//!
//! Takes: the addresses of parameters and frozen buffers. Gives: packed operands per step, and the set of buffers still
//! read in place. Weights in f32 and f64 are packed, unless the matmul has only a few rows; with AMX those in bf16 are
//! too. A packed weight takes as many bytes as the original, rounded up to whole panels. The session frees originals
//! that nothing else reads.
use super::gemm::{Role, packs};
use crate::{Executable, KernelCode, layout::Layout, memory::Place};
use kiln_plan::{
    BufferId, Stage,
    exec::{GemmCall, Slot, Work},
};
use std::collections::HashSet;

/// An operand of a matmul of runs that is packed.
pub(super) struct Operand<'a> {
    /// Number of its step in the layout.
    pub step: usize,
    pub role: Role,
    pub call: &'a GemmCall,
    pub buffer: usize,
    /// The form of its panels: equal for operands whose panels are equal if their buffers are.
    pub form: String,
}

/// The operands that are packed.
pub(super) fn operands<'a>(exe: &'a Executable, layout: &Layout, places: &[Place]) -> Vec<Operand<'a>> {
    let mut all = vec![];
    for (k, kernel) in exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == Stage::Run) {
        for (s, work) in kernel.steps.steps.iter().enumerate() {
            let Work::Gemm(call) = work else { continue };
            for (role, slot) in [(Role::A, call.a.slot), (Role::B, call.b.slot)] {
                let Some(b) = constant(kernel, slot, places) else { continue };
                let step = layout.first_step(k) + s;
                let operand = |form| Operand { step, role, call, buffer: b.0 as usize, form };
                all.extend(packs(call, role).map(operand));
            }
        }
    }
    all
}

/// The buffer of a slot, if it is a parameter or frozen: no run changes it.
fn constant(kernel: &KernelCode, slot: Slot, places: &[Place]) -> Option<BufferId> {
    let Slot::Input(i) = slot else { return None };
    let b = *kernel.inputs.get(i as usize)?;
    matches!(places[b.0 as usize], Place::Param(_) | Place::Frozen).then_some(b)
}

/// Buffers that runs read in place, that is, not only as packed operands; outputs included.
pub(super) fn read(exe: &Executable, layout: &Layout, packed: &[Operand]) -> HashSet<BufferId> {
    let packed: HashSet<(usize, Role)> = packed.iter().map(|o| (o.step, o.role)).collect();
    let mut read: HashSet<BufferId> = exe.outputs.iter().copied().collect();
    for (k, kernel) in exe.kernels.iter().enumerate().filter(|(_, k)| k.stage == Stage::Run) {
        for (s, work) in kernel.steps.steps.iter().enumerate() {
            let step = layout.first_step(k) + s;
            let slots: Vec<Slot> = match work {
                Work::Block { args, .. } => args.clone(),
                Work::Gemm(g) => {
                    let operands = [(Role::A, g.a.slot), (Role::B, g.b.slot)];
                    operands.into_iter().filter(|(role, _)| !packed.contains(&(step, *role))).map(|o| o.1).collect()
                }
                Work::Attention(a) => a.slots(),
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
