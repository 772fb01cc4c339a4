//! `stage operands`: operands that many unaligned rows share (a gain) are copied once for each place at which a row can
//! start between two multiples of a vector, so that every row finds the operand aligned with its own vectors.
use crate::scalar::dag::{NodeOp, Scene};
use crate::scalar::expr::{CoordId, Expr};
use crate::schedule::row_plan::{RowPlan, Unaligned};
use crate::schedule::tile::Cut;

/// Whether rows share an operand that can be copied.
pub fn shares(plan: &RowPlan, scene: &Scene) -> bool {
    scene.live().into_iter().any(|n| match &scene.dag.node(n).op {
        NodeOp::Load { at, guards, .. } => guards.is_empty() && follows(at, plan.row.id),
        _ => false,
    })
}

/// Whether an index is the row's position and a constant.
pub fn follows(at: &Expr, row: CoordId) -> bool {
    at.terms.len() == 1 && at.stride(row) == Some(1)
}

/// The index of a lane in the copy for its row's alignment.
pub fn place_in_copy(shift: &Unaligned, row: Cut) -> Expr {
    Expr::coord(shift.lane, row.block).plus(&shift.start.clone().scale(shift.width(row.extent) as i64))
}
