//! Scans: running sums and products along an axis, with pointwise work before and after.
//!
//! Takes: a body whose scans have one length, axis and direction. Gives: a nest whose row is scanned.
use crate::error::LowerError;
use crate::nest::{Nest, Visit, pointwise};
use crate::scalar::dag::{Scene, Store};
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::invert::{Inverse, invert};
use crate::scalar::resolve::Body;
use crate::scalar::row::Row;
use crate::scalar::space::Space;
use kiln_graph::Op;
use kiln_plan::Hardware;
use kiln_plan::exec::Slot;

/// Calls `f` with the nests of a body with scans: one, unless they are over rows of one element.
pub fn visit_nests(source: &Body, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let body = source.graph;
    let mut lengths = body.values().filter_map(|v| match body.op(v) {
        Op::Scan { axis, .. } => Some(body.shape(v)[*axis]),
        _ => None,
    });
    let Some(len) = lengths.next() else {
        return pointwise::visit_nests(source, machine, f);
    };
    if lengths.any(|l| l != len) {
        return Err(source.unsupported("scans of different lengths"));
    }
    let shape = body.outputs.first().map(|&v| body.shape(v).to_vec()).unwrap_or_default();
    let count: usize = shape.iter().product();
    if body.outputs.iter().any(|&v| body.ty(v).count() != count) {
        return Err(source.unsupported("a scan with outputs of different sizes"));
    }

    // The index at which the first output reads the scan defines the row.
    let mut space = Space::new(&shape, &vec![false; shape.len()]);
    let separate_row = || Some(Row::alone(Expr::coord(u32::MAX - 1, len), len));
    let scene = |s: &Space| Ok(outputs(source, &s.axes, &shape, separate_row())?.0);
    space.refine(&scene)?;
    let (_, positions) = outputs(source, &space.axes, &shape, separate_row())?;
    if len == 1 {
        return pointwise::visit_nests(source, machine, f);
    }
    let at = positions.first().cloned().unwrap_or_default();
    if positions.iter().any(|p| *p != at) {
        return Err(source.unsupported("scans in different directions or along different axes"));
    }
    let row_id = u32::MAX;
    let whole = |i: &Inverse| i.guard.lo == 0 && i.guard.hi == len as i64 && i.gaps.is_empty();
    let Some(inverse) = invert(&at, &Expr::coord(row_id, len)).filter(whole) else {
        return Err(source.unsupported("an output that needs only a part of a scan"));
    };
    let kept: Vec<_> = space.coords.iter().filter(|c| !inverse.coords.iter().any(|i| i.0 == c.id)).copied().collect();
    let old = space.axes.clone();
    let mut extents: Vec<usize> = kept.iter().map(|c| c.extent).collect();
    extents.push(len);
    let row_axes: Vec<bool> = (0..extents.len()).map(|i| i == kept.len()).collect();
    let scene = |s: &Space| {
        let row = &s.axes[kept.len()];
        let of_row = |id| (id == row_id).then(|| row.clone());
        let coord = |id| {
            let in_kept = kept.iter().position(|c| c.id == id).map(|i| s.axes[i].clone());
            in_kept.or_else(|| inverse.coords.iter().find(|c| c.0 == id).map(|c| c.1.substitute(&of_row)))
        };
        let axes: Vec<Expr> = old.iter().map(|e| e.substitute(&coord)).collect();
        let (scene, positions) = outputs(source, &axes, &shape, Some(Row::of(s, row, len)))?;
        match positions.iter().all(|p| p == row) {
            true => Ok(scene),
            false => Err(source.unsupported("a scan along an axis that views split")),
        }
    };
    f(&Nest::new(source.name, Space::new(&extents, &row_axes), &scene, machine)?.of_body(source.graph))
}

fn outputs(body: &Body, axes: &[Expr], shape: &[usize], row: Option<Row>) -> Result<(Scene, Vec<Expr>), LowerError> {
    let mut r = body.resolver();
    r.row = row;
    let position = linear(axes, shape);
    let mut stores = vec![];
    for (i, &v) in body.graph.outputs.iter().enumerate() {
        let ix = delinear(&position, body.graph.shape(v));
        let value = r.at(v, &ix, &[])?;
        let at = linear(&ix, body.graph.shape(v));
        stores.push(Store::new(Slot::Output(i as u32), body.graph.dtype(v), at, value));
    }
    Ok((Scene { dag: r.dag, stores }, r.scan_at))
}
