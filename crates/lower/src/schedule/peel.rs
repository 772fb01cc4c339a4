//! Unaligned rows, peeled to alignment: rows whose length no vector divides start between two multiples of a vector.
//! Lanes are counted from the multiple before the row's start, so that accesses to the row are aligned vectors, and the
//! first few lanes are masked. Buffers can be read up to the next multiple of 16 bytes.
use crate::nest::passes::{Reduced, in_passes, is_arg};
use crate::scalar::dag::{NodeOp, Scene};
use crate::scalar::expr::{Atom, CoordId, Expr};
use crate::scalar::space::Space;
use crate::schedule::row_plan::{RowPlan, Unaligned};
use crate::schedule::tile::Cut;
use kiln_machine::isa::VECTOR;

/// Whether a row may be combined in an order that depends on its alignment; why not.
fn can_be_peeled(plan: &RowPlan, scene: &Scene) -> Result<(), &'static str> {
    if plan.row.axis + 1 != plan.rank || plan.row.block == 1 || plan.wide.is_some() {
        return Err("a row is peeled along the last axis of a tile");
    }
    let any = |of: fn(&NodeOp) -> bool| scene.live().into_iter().any(|n| of(&scene.dag.node(n).op));
    // Batch invariance: which lane adds an element depends on the row's alignment, which depends on the row's number.
    if plan.machine.contract.batch_invariant || any(|op| matches!(op, NodeOp::Scan { .. })) {
        return Err("a peeled row is combined in an order that depends on where it starts");
    }
    if plan.whole() && any(|op| matches!(op, NodeOp::Reduce { op, .. } if is_arg(*op))) {
        return Err("the position that a tile of a whole row is reduced to is a lane's");
    }
    let counted = || in_passes(scene, &scene.levels(), &[plan.row.id], plan.row.extent).into_iter().flatten();
    if !plan.whole() && counted().any(|r| matches!(r, Reduced::Moments(_))) {
        return Err("a loop that counts the elements of each lane begins where its row does");
    }
    Ok(())
}

/// The plan with rows peeled to vectors of so many elements.
pub fn peel<'m>(plan: RowPlan<'m>, scene: &Scene, space: &mut Space, vector: usize) -> Result<RowPlan<'m>, String> {
    let Some((start, found)) = start(scene, plan.row.id) else { return Err("all rows are aligned already".into()) };
    if found != vector {
        return Err(format!("vectors of the row have {found} elements"));
    }
    can_be_peeled(&plan, scene)?;
    // In loops over chunks of the row, these stay as they are.
    let wide = if plan.whole() { (plan.row.extent + vector - 1).next_power_of_two() } else { plan.row.block };
    let width = (plan.row.extent + vector - 1).next_multiple_of(vector);
    let lane = space.fresh();
    let v = vector as i64;
    let before = start.clone().div(v).scale(v).plus(&start.clone().scale(-1));
    let shift =
        Unaligned { lane, position: Expr::coord(lane, width.max(wide)).plus(&before), start: start.rem(v), vector };
    Ok(RowPlan { row: Cut { block: wide, ..plan.row }, unaligned: Some(shift), ..plan })
}

/// Where rows start, modulo the elements of a vector, and the number of these. `None` if all rows are aligned, or if
/// index expressions do not just add the row's coordinate.
fn start(scene: &Scene, row: CoordId) -> Option<(Expr, usize)> {
    let mut plain = true;
    scene.exprs(&mut |e| plain &= e.stride(row).is_some());
    if !plain {
        return None;
    }
    let loads = scene.live().into_iter().filter_map(|n| match &scene.dag.node(n).op {
        NodeOp::Load { at, .. } => Some((at, scene.dag.node(n).dtype.bytes())),
        _ => None,
    });
    let stores = scene.stores.iter().map(|s| (&s.at, s.dtype.bytes()));
    // Accesses that belong to one row alone.
    let rows: Vec<(&Expr, usize)> = loads
        .chain(stores)
        .filter(|(at, _)| {
            let mut others = false;
            at.coords(&mut |c| others |= c != row);
            at.stride(row) == Some(1) && others
        })
        .collect();
    let bytes = rows.iter().map(|r| r.1).min()?;
    let vector = VECTOR / bytes.clamp(1, VECTOR);
    let aligned_with = |at: &Expr| rows.iter().filter(|r| offset(r.0, row, vector) == offset(at, row, vector)).count();
    let start = offset(rows.iter().max_by_key(|r| aligned_with(r.0))?.0, row, vector);
    let mut reads = false;
    start.nodes(&mut |_| reads = true);
    (start != Expr::default() && start.range().0 >= 0 && !reads).then_some((start, vector))
}

/// The expression without the row's coordinate, its factors modulo `vector`.
fn offset(at: &Expr, row: CoordId, vector: usize) -> Expr {
    let v = vector as i64;
    let mut offset = Expr::constant(at.constant.rem_euclid(v));
    for (atom, factor) in &at.terms {
        let is_row = matches!(atom, Atom::Coord { id, .. } if *id == row);
        if !is_row && factor.rem_euclid(v) != 0 {
            offset.terms.push((atom.clone(), factor.rem_euclid(v)));
        }
    }
    offset
}
