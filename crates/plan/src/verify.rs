//! The plan's verifier. Invariants:
//! 1. kernel names are unique;
//! 2. a kernel's body is a verified graph without parameters, without dead values, and with at least one output;
//! 3. body inputs and outputs correspond to the kernel's buffers in number and type; no buffer is written twice by one
//!    kernel;
//! 4. a buffer is written before it is read, by exactly one kernel; input and parameter buffers are never written;
//! 5. kernels of the load stage come first, read parameters and frozen buffers, and write frozen buffers; kernels of
//!    the run stage write temporaries;
//! 6. outputs are defined buffers;
//! 7. a kernel's form can fuse what its body computes.
use crate::{BufferId, BufferKind, FormNeeds, Kernel, Plan, PlanError, Stage};
use kiln_graph::{Op, ValueId, count};
use std::collections::BTreeSet;

/// Checks every invariant above; the first violation is the error.
pub fn verify(p: &Plan) -> Result<(), PlanError> {
    let given = |k: BufferKind| matches!(k, BufferKind::Input(_) | BufferKind::Param(_));
    let mut defined: Vec<bool> = p.buffers.iter().map(|b| given(b.kind)).collect();
    let (mut names, mut running) = (BTreeSet::new(), false);
    for k in &p.kernels {
        let wrong = |what: String| PlanError::Kernel { kernel: k.name.clone(), what };
        if !names.insert(&k.name) {
            return Err(wrong("the name is taken; kernel names are unique".into()));
        }
        body(p, k).map_err(wrong)?;
        if let Some(form) = k.form.filter(|form| !form.can_fuse(FormNeeds::of(&k.body))) {
            let needs = FormNeeds::of(&k.body).names().join(" and ");
            return Err(wrong(format!("its form `{form}` cannot fuse its {needs}")));
        }
        running |= k.stage == Stage::Run;
        if running && k.stage == Stage::Load {
            return Err(wrong("a kernel of the load stage comes after one of the run stage".into()));
        }
        for &b in &k.inputs {
            if !defined[b.0 as usize] {
                return Err(wrong(format!("reads {b} before any kernel writes it")));
            }
            if k.stage == Stage::Load && matches!(p.buffer(b).kind, BufferKind::Input(_) | BufferKind::Temp) {
                return Err(wrong(format!("runs at load time and reads {b}, which exists only during a run")));
            }
        }
        for &b in &k.outputs {
            let kind = if k.stage == Stage::Load { BufferKind::Frozen } else { BufferKind::Temp };
            if p.buffer(b).kind != kind {
                return Err(wrong(format!("writes {b}, which is {:?} and not {kind:?}", p.buffer(b).kind)));
            }
            if std::mem::replace(&mut defined[b.0 as usize], true) {
                return Err(wrong(format!("writes {b}, which has been written already")));
            }
        }
    }
    for (index, &b) in p.outputs.iter().enumerate() {
        if defined.get(b.0 as usize) != Some(&true) {
            return Err(PlanError::Output { index, what: format!("{b} is never written") });
        }
    }
    match defined.iter().position(|d| !d) {
        Some(i) => Err(PlanError::Buffer { buffer: BufferId(i as u32), what: "no kernel writes it".into() }),
        None => Ok(()),
    }
}

/// Checks a kernel's body against its buffers.
fn body(p: &Plan, k: &Kernel) -> Result<(), String> {
    let g = &k.body;
    kiln_graph::verify::verify(g).map_err(|e| format!("its body is not valid: {e}"))?;
    if !g.params.is_empty() {
        return Err("its body has parameters; they must be inputs".into());
    }
    if g.outputs.is_empty() {
        return Err("its body has no output".into());
    }
    for (what, buffers, values) in [("input", &k.inputs, &g.inputs), ("output", &k.outputs, &g.outputs)] {
        if buffers.len() != values.len() {
            return Err(format!(
                "{} for {} of the body",
                count(buffers.len(), &format!("{what} buffer")),
                count(values.len(), what)
            ));
        }
        for (&b, &v) in buffers.iter().zip(values) {
            let Some(buffer) = p.buffers.get(b.0 as usize) else { return Err(format!("{b} does not exist")) };
            if buffer.ty != *g.ty(v) {
                return Err(format!("{what} {v} is {} in the body and {b} is {}", g.ty(v), buffer.ty));
            }
        }
    }
    let mut seen = BTreeSet::new();
    let mut todo: Vec<ValueId> = g.outputs.clone();
    while let Some(v) = todo.pop() {
        if seen.insert(v) {
            todo.extend(g.args(v));
            // All results of a fallback or a launch belong to its one call.
            if matches!(g.op(v), Op::Fallback(_) | Op::Launch(_)) {
                seen.extend(g.users(v));
            }
        }
    }
    match g.values().find(|v| !seen.contains(v)) {
        Some(v) => Err(format!("{v} of its body is dead")),
        None => Ok(()),
    }
}
