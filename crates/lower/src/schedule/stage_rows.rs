//! Several short rows per tile, where no vector divides their length: the rows of a tile are one contiguous run in
//! memory, which is aligned if there are enough rows. It is loaded and stored as a run, and its rows are separated on
//! the way, in shared memory.
use crate::scalar::dag::{NodeOp, Scene};
use crate::scalar::expr::{CoordId, Expr};
use crate::schedule::row_plan::RowPlan;
use kiln_graph::DType;
use kiln_machine::isa::VECTOR;

/// Whether the rows of the plan's tile are loaded and stored as a run, or why not.
pub fn packs(plan: &RowPlan, scene: &Scene) -> Result<(), String> {
    let [kept] = plan.kept[..] else { return Err("rows are those of one axis".into()) };
    let tile = plan.rank == 2 && plan.row.axis == 1 && kept.axis == 0 && plan.whole();
    if !plan.machine.arch.is_gpu() || !tile {
        return Err("a tile of a GPU holds several whole rows".into());
    }
    let fits = |at: &Expr, dtype: DType| {
        let vector = VECTOR / dtype.bytes().max(1);
        let odd = !plan.row.extent.is_multiple_of(vector) && kept.block.is_multiple_of(vector);
        odd && packable(dtype, plan.row.extent) && behind(at, kept.id, plan.row.id, plan.row.extent, vector).is_some()
    };
    let loads = scene.live().into_iter().any(|n| match &scene.dag.node(n).op {
        NodeOp::Load { at, guards, .. } => guards.is_empty() && fits(at, scene.dag.node(n).dtype),
        _ => false,
    });
    let any = loads || scene.stores.iter().any(|s| s.guards.is_empty() && fits(&s.at, s.dtype));
    if any { Ok(()) } else { Err("no access is a run of short unaligned rows of floats".into()) }
}

/// Whether this is profitable for rows of `len` such elements. Single words that neighbouring lanes read are as fast,
/// except in rows that are shorter than a warp. Floats only: padding lanes hold arbitrary values, which must not become
/// an address.
pub fn packable(dtype: DType, len: usize) -> bool {
    dtype.is_float() && (dtype.bytes() == 2 || dtype.bytes() == 4 && len < 32)
}

/// The offset of an access from the start of the rows, if that is a constant number of vectors.
pub fn behind(at: &Expr, kept: CoordId, row: CoordId, len: usize, vector: usize) -> Option<i64> {
    if at.stride(kept) != Some(len as i64) || at.stride(row) != Some(1) || at.terms.len() != 2 {
        return None;
    }
    (at.constant % vector as i64 == 0).then_some(at.constant)
}
