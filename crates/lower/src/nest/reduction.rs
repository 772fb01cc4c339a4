//! Reductions: kernels whose outputs are rows, or one value per row.
//!
//! Takes: a body whose reductions all have one length. Gives: a nest with a row, or nests of points if nothing is
//! reduced. Coordinates are either *kept* or of the *row*. The output with the most elements (the driver) gives the
//! coordinates; those that no reduction depends on are its row.
use crate::error::LowerError;
use crate::nest::{Nest, Visit, pointwise};
use crate::scalar::dag::{Dag, NodeOp, Scene, Store};
use crate::scalar::expr::{CoordId, Expr, delinear, delinear_unbounded, linear};
use crate::scalar::resolve::Body;
use crate::scalar::row::Row;
use crate::scalar::space::{Coord, Space};
use crate::scalar::window::{MAX_UNROLLED, window_len};
use kiln_graph::{Graph, Op, ValueId};
use kiln_plan::Hardware;
use kiln_plan::exec::Slot;

/// Calls `f` with the nests of a body: one if it has rows, else one for each size of outputs.
pub fn visit_nests(source: &Body, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let Some(len) = row_len(source)? else { return pointwise::visit_nests(source, machine, f) };
    let Some(driver) = driver(source, len) else { return Ok(()) };
    let rows = Rows::of(source, driver, len)?;
    let extents = [&rows.kept_shape()[..], &[len]].concat();
    let row_axes: Vec<bool> = (0..extents.len()).map(|i| i == rows.kept.len()).collect();
    let all = |s: &Space| rows.scene(source, s);
    f(&Nest::new(source.name, Space::new(&extents, &row_axes), &all, machine)?.of_body(source.graph))
}

/// Outputs that have elements.
fn live(body: &Graph) -> Vec<usize> {
    (0..body.outputs.len()).filter(|&i| body.ty(body.outputs[i]).count() > 0).collect()
}

/// The first of the largest outputs, preferring one that depends on a reduction.
fn driver(source: &Body, len: usize) -> Option<usize> {
    let body = source.graph;
    let count = |i: usize| body.ty(body.outputs[i]).count();
    let reduces =
        |i: usize| reached(source, vec![body.outputs[i]]).iter().any(|v| reduced_len(source, *v) == Some(len));
    live(body).into_iter().rev().max_by_key(|&i| (count(i), reduces(i)))
}

/// The rows of a body, in terms of the coordinates of its driver.
struct Rows {
    /// The output that gives the coordinates.
    driver: usize,
    len: usize,
    /// Coordinates of the driver that reductions depend on, and those that are the row's; none of these where the
    /// driver has one value per row.
    kept: Vec<Coord>,
    across: Vec<Coord>,
    /// The driver's axes by its coordinates.
    axes: Vec<Expr>,
}

impl Rows {
    /// Which of the driver's coordinates are the row's: those that no reduction depends on.
    fn of(source: &Body, driver: usize, len: usize) -> Result<Rows, LowerError> {
        let shape = source.graph.shape(source.graph.outputs[driver]);
        // For now the reductions' own row is a separate coordinate.
        let extents = [shape, &[len]].concat();
        let row_axes: Vec<bool> = (0..extents.len()).map(|i| i == shape.len()).collect();
        let mut space = Space::new(&extents, &row_axes);
        let scene = space.refine(&|s: &Space| driver_scene(source, driver, s, len))?;
        let deps = scene.dag.depends(&space.row_ids());
        let mut reduced: Vec<CoordId> = vec![];
        for n in scene.live() {
            if matches!(scene.dag.node(n).op, NodeOp::Reduce { .. }) {
                reduced.extend(&deps[n as usize]);
            }
        }
        let of_driver = || space.coords.iter().filter(|c| !c.row).copied();
        let (mut kept, mut across): (Vec<Coord>, Vec<Coord>) = of_driver().partition(|c| reduced.contains(&c.id));
        if across.iter().map(|c| c.extent).product::<usize>() != len {
            // The output has one value per row; coordinates that no reduction depends on only repeat it.
            (kept, across) = (of_driver().collect(), vec![]);
        }
        Ok(Rows { driver, len, kept, across, axes: space.axes[..shape.len()].to_vec() })
    }
    fn kept_shape(&self) -> Vec<usize> {
        self.kept.iter().map(|c| c.extent).collect()
    }
    /// The driver's axes in a space of the kept coordinates, then the row.
    fn driver_axes(&self, axes: &[Expr]) -> Vec<Expr> {
        let across_shape: Vec<usize> = self.across.iter().map(|c| c.extent).collect();
        let parts = delinear_unbounded(&axes[self.kept.len()], &across_shape);
        let source = |id: CoordId| {
            let in_kept = self.kept.iter().position(|c| c.id == id).map(|i| axes[i].clone());
            in_kept.or_else(|| self.across.iter().position(|c| c.id == id).map(|i| parts[i].clone()))
        };
        self.axes.iter().map(|e| e.substitute(&source)).collect()
    }
    /// The program in such a space.
    fn scene(&self, source: &Body, s: &Space) -> Result<Scene, LowerError> {
        let (body, len, kept_shape) = (source.graph, self.len, self.kept_shape());
        let count = |i: usize| body.ty(body.outputs[i]).count();
        let shape = body.shape(body.outputs[self.driver]);
        let mut r = source.resolver();
        r.row = Some(Row::of(s, &s.axes[self.kept.len()], len));
        let axes = self.driver_axes(&s.axes);
        let whole = linear(&axes, shape);
        // Positions of rows that are rounded up are beyond the end of an inner axis.
        let beyond = axes.iter().zip(shape).any(|(e, n)| e.range().1 >= *n as i64);
        let row_sized = linear(&s.axes[..self.kept.len()], &kept_shape);
        let mut stores = vec![];
        for i in live(body) {
            let v = body.outputs[i];
            let position = if count(i) == count(self.driver) {
                &whole
            } else if !self.across.is_empty() && count(i) == kept_shape.iter().product::<usize>() {
                &row_sized
            } else {
                let (largest, other) = (count(self.driver), count(i));
                let why = format!("outputs of {largest} and {other} elements over rows of {len}");
                return Err(source.unsupported(why));
            };
            let ix = match beyond && body.shape(v) == shape {
                true => axes.clone(),
                false => delinear(position, body.shape(v)),
            };
            let value = r.at(v, &ix, &[])?;
            let at = linear(&ix, body.shape(v));
            stores.push(Store::new(Slot::Output(i as u32), body.dtype(v), at, value));
        }
        Ok(Scene { dag: r.dag, stores })
    }
}

/// The program of the driver alone.
fn driver_scene(source: &Body, driver: usize, space: &Space, len: usize) -> Result<Scene, LowerError> {
    let body = source.graph;
    let v = body.outputs[driver];
    let Some((row, ix)) = space.axes.split_last() else { return Ok(Scene { dag: Dag::default(), stores: vec![] }) };
    let mut r = source.resolver();
    r.row = Some(Row::of(space, row, len));
    let value = r.at(v, ix, &[])?;
    let at = linear(ix, body.shape(v));
    let store = Store::new(Slot::Output(driver as u32), body.dtype(v), at, value);
    Ok(Scene { dag: r.dag, stores: vec![store] })
}

/// The row length that all reductions of the body share. `None` if nothing is reduced (rows of one element do not
/// count).
pub fn row_len(body: &Body) -> Result<Option<usize>, LowerError> {
    let mut found: Option<usize> = None;
    for v in needed(body) {
        let Some(len) = reduced_len(body, v).filter(|&n| n > 1) else { continue };
        if *found.get_or_insert(len) != len {
            let why = format!("reductions over rows of {len} and of {} elements", found.unwrap_or(0));
            return Err(body.unsupported(why));
        }
    }
    Ok(found)
}

/// Values that the outputs depend on, not looking below the matmul.
pub fn needed(body: &Body) -> Vec<ValueId> {
    reached(body, body.graph.outputs.clone())
}
/// Values that these depend on.
fn reached(body: &Body, mut open: Vec<ValueId>) -> Vec<ValueId> {
    let mut seen = vec![false; body.graph.len()];
    while let Some(v) = open.pop() {
        if body.is_matmul(v) || std::mem::replace(&mut seen[v.0 as usize], true) {
            continue;
        }
        open.extend(body.graph.args(v));
    }
    body.graph.values().filter(|v| seen[v.0 as usize]).collect()
}

/// Elements that one element of a value is reduced from, if it is a reduction.
fn reduced_len(source: &Body, v: ValueId) -> Option<usize> {
    let body = source.graph;
    if let Some(part) = source.decomposed.get(v) {
        return part.values().find_map(|r| reduced_axes(part, r));
    }
    let args = body.args(v);
    let x = || args.first().map(|&a| body.shape(a));
    match body.op(v) {
        Op::Reduce { .. } => reduced_axes(body, v),
        Op::Softmax { axis } => x().map(|s| s[*axis]),
        Op::Dot | Op::Linear => x().and_then(|s| s.last().copied()),
        op @ (Op::Conv { .. } | Op::Pool { .. }) => {
            let shapes: Vec<&[usize]> = args.iter().map(|&a| body.shape(a)).collect();
            window_len(op, &shapes).filter(|&n| n > MAX_UNROLLED)
        }
        _ => None,
    }
}

/// Elements along the axes that a reduction is over.
fn reduced_axes(body: &Graph, v: ValueId) -> Option<usize> {
    let Op::Reduce { axes, .. } = body.op(v) else { return None };
    let shape = body.shape(*body.args(v).first()?);
    Some(axes.iter().map(|&a| shape[a]).product())
}
