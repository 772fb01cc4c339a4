//! Operands that many unaligned rows share (a gain), replicated per alignment: one copy for each place at which a row
//! can start between two multiples of a vector, so that every row finds the operand aligned with its own vectors.
use crate::scalar::dag::{NodeOp, Scene};
use crate::scalar::types;
use crate::schedule::row_plan::RowPlan;
use crate::schedule::stage_operands::{follows, place_in_copy};
use crate::steps::Emitted;
use kiln_block::{BinaryOp as B, BlockProgram, Builder, CmpOp};
use kiln_graph::{DType, Type};
use kiln_plan::exec::{Slot, Work};

/// Elements that an instance of that step copies, and its warps.
const BLOCK: usize = 1024;
const WARPS: usize = 4;

/// Redirects loads of shared operands to copies; returns their buffers, from scratch buffer `first` on, and the step
/// that makes them. Persistent kernels read shared operands once, unaligned.
pub fn copied(name: &str, plan: &RowPlan, scene: &mut Scene, first_scratch: u32) -> Emitted {
    let mut out = Emitted::default();
    let Some(shift) = plan.unaligned.as_ref().filter(|_| plan.copies) else { return out };
    let width = shift.width(plan.row.extent);
    let mut copies = vec![];
    for n in scene.live() {
        let node = scene.dag.node(n);
        let (NodeOp::Load { slot, at, guards }, dtype) = (&node.op, node.dtype) else { continue };
        if !guards.is_empty() || !follows(at, plan.row.id) {
            continue;
        }
        let to = Slot::Scratch(first_scratch + out.scratch.len() as u32);
        copies.push(Copy { from: *slot, offset: at.constant, to, dtype });
        out.scratch.push(Type::new(dtype, [shift.vector, width]));
        let at = place_in_copy(shift, plan.row);
        scene.dag.nodes[n as usize].op = NodeOp::Load { slot: to, at, guards: vec![] };
    }
    if !copies.is_empty() {
        out.steps.push(step(&format!("{name}_copies"), &copies, [shift.vector, plan.row.extent, width]));
    }
    out
}

/// A replicated operand: its buffer, its first element, and the buffer of its copies.
struct Copy {
    from: Slot,
    offset: i64,
    to: Slot,
    dtype: DType,
}

/// The step that makes `count` copies of `len` elements in rows of `width`, each shifted by one element more than the
/// one before.
fn step(name: &str, copies: &[Copy], [count, len, width]: [usize; 3]) -> Work<BlockProgram> {
    let parts = width.div_ceil(BLOCK);
    let mut b = Builder::new(name, [count * parts, 1, 1], WARPS);
    let mut buffers = vec![];
    for (i, c) in copies.iter().enumerate() {
        let elem = types::stored(c.dtype);
        buffers.push((b.param(format!("from{i}"), elem, true), b.param(format!("to{i}"), elem, false)));
    }
    let (number, parts) = (b.program_id(0), b.i32(parts as i64));
    let (copy, part) = (b.binary(B::Div, number, parts), b.binary(B::Rem, number, parts));
    let (block, lane) = (b.i32(BLOCK as i64), b.iota(BLOCK));
    let start = b.binary(B::Mul, part, block);
    let at = b.binary(B::Add, start, lane);
    let position = b.binary(B::Sub, at, copy);
    let (zero, len, width) = (b.i32(0), b.i32(len as i64), b.i32(width as i64));
    let (after, before) = (b.cmp(CmpOp::Ge, position, zero), b.cmp(CmpOp::Lt, position, len));
    let (inside, written) = (b.binary(B::And, after, before), b.cmp(CmpOp::Lt, at, width));
    let start = b.binary(B::Mul, copy, width);
    for (c, (from, to)) in copies.iter().zip(buffers) {
        let offset = b.i32(c.offset);
        let from = b.ptr_add(from, offset);
        let from = b.ptr_add(from, position);
        let v = b.load(from, Some(inside), None);
        let to = b.ptr_add(to, start);
        let to = b.ptr_add(to, at);
        b.store(to, v, Some(written));
    }
    Work::Block { code: b.finish(), args: copies.iter().flat_map(|c| [c.from, c.to]).collect() }
}
