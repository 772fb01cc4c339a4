//! The outputs of a body in terms of its matmul: to which output element an element of the matmul goes, and what is
//! computed from it on the way (the fused epilogue).
use crate::error::LowerError;
use crate::scalar::dag::{Dag, Guard, NodeId, NodeOp, Scene, Store};
use crate::scalar::expr::{CoordId, Expr, linear};
use crate::scalar::invert::invert;
use crate::scalar::resolve::{Body, MatmulSource, Resolver};
use crate::scalar::row::Row;
use crate::scalar::space::Space;
use kiln_graph::ValueId;
use kiln_machine::isa::SECTOR;
use kiln_plan::exec::Slot;

/// One output's coordinates, solved for positions along the matmul's dimensions.
pub struct Placed {
    output: usize,
    /// Per axis of the output, in terms of the stand-ins of the dimensions.
    axes: Vec<Expr>,
    guards: Vec<Guard>,
}

/// Positions along an axis of a matmul's value that it computes, of those that it has: `stride · i + k + start` for `i`
/// and `k` below `extents`, where that is within the axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lattice {
    pub axis: usize,
    pub stride: i64,
    pub start: i64,
    pub extents: [usize; 2],
}

impl Lattice {
    /// Makes a space one of these positions, where `along` is the place on the axis; gives the axis of the space that
    /// they leave, if they are positions along one of its axes.
    pub fn restrict(&self, space: &mut Space, along: &Expr) -> Option<usize> {
        let id = along.clone().shift(-along.constant).as_coord()?;
        let axis = space.axes.iter().position(|e| e.as_coord() == Some(id))?;
        space.stride(id, self.stride, self.start - along.constant, self.extents);
        Some(axis)
    }
}

/// The part of a value's positions that a lattice has.
pub fn share(lattice: &[Lattice]) -> f64 {
    lattice.iter().map(|l| l.extents[1] as f64 / l.stride as f64).product()
}

/// Bytes of the sectors that stores of a lattice's positions touch, for each byte that they write. `inner`: the
/// contiguous axis of the value, whose elements have so many bytes.
pub fn sectors(lattice: &[Lattice], inner: usize, bytes: usize) -> f64 {
    let Some(l) = lattice.iter().find(|l| l.axis == inner) else { return 1.0 };
    let (written, pitch) = (l.extents[1] * bytes, l.stride as usize * bytes);
    written.max(pitch.min(SECTOR)) as f64 / written as f64
}

/// Where a value is among the dimensions of its matmul, and which of its positions the matmul computes: all, or those
/// of a lattice.
#[derive(Clone, Copy)]
pub struct Positions<'a> {
    pub place: &'a dyn Fn(&[Expr]) -> Vec<Expr>,
    pub lattice: &'a [Lattice],
}

/// Coordinate that stands for dimension `i` in a [`Placed`].
fn stand_in(i: usize, extent: usize) -> Expr {
    Expr::coord(u32::MAX - i as u32, extent)
}

/// Solves every output for the dimensions of the body's matmul (a node); `place` gives them from an index of the
/// matmul's value. `None` if an output is not elementwise in the matmul (repeated elements, an order that is no mixed
/// radix), or reads several of its elements. The two elements of a dual GEMM are solved for the first.
/// `row`: length of the rows that the epilogue reduces. An output along the row is solved for its own element; an
/// output with one value per row is stored once for all columns.
pub fn outputs(body: &Body, dims: &[usize], positions: Positions, row: Option<usize>) -> Option<Vec<Placed>> {
    (0..body.graph.outputs.len()).map(|i| output(body, i, dims, positions, row)).collect()
}

/// [`outputs`] for one output.
pub fn output(
    body: &Body,
    i: usize,
    dims: &[usize],
    Positions { place, lattice }: Positions,
    row: Option<usize>,
) -> Option<Placed> {
    let g = body.graph;
    let out = g.outputs[i];
    let rank = g.shape(out).len();
    let resolve = |s: &Space| -> Result<Scene, LowerError> {
        let mut r = body.resolver();
        r.row = row.zip(s.axes.get(rank)).map(|(len, along)| Row::of(s, along, len));
        let value = r.at(out, &s.axes[..rank], &[])?;
        // The dimensions are part of the scene, so that the space is split for them too.
        let mut stores = vec![];
        for at in anchors(&r.dag, &[value]) {
            for e in place(&at) {
                stores.push(Store::new(Slot::Output(0), g.dtype(out), e, value));
            }
        }
        Ok(Scene { dag: r.dag, stores })
    };
    let extents: Vec<usize> = g.shape(out).iter().copied().chain(row).collect();
    let mut space = Space::new(&extents, &(0..extents.len()).map(|axis| axis == rank).collect::<Vec<_>>());
    let left = on_lattice(body, out, &mut space, lattice)?;
    let scene = space.refine(&resolve).ok()?;
    let value = scene.stores.first()?.value;
    let all = anchors(&scene.dag, &[value]);
    let along = space.row_ids();
    let (along_row, elements): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|at| at.iter().any(|e| along.iter().any(|id| e.uses(*id))));
    // A row must be all columns of the matmul, or the columns of one head, in order.
    let is_row = |at: &[Expr]| {
        let lead = place(at);
        let (column, lead) = lead.split_last()?;
        let is_whole = !lead.iter().any(|e| along.iter().any(|id| e.uses(*id)));
        (is_whole && Some(&column.clone().rem(row? as i64)) == space.axes.get(rank)).then_some(())
    };
    along_row.iter().try_for_each(|at| is_row(at))?;
    let rows_alone = elements.is_empty();
    let at = match &(if rows_alone { along_row } else { elements })[..] {
        [at] => at.clone(),
        [a, b] if row.is_none() => first_of_pair(a, b, *dims.last()?)?,
        _ => return None,
    };
    let mut solved: Vec<(CoordId, Expr)> = vec![];
    let mut guards = vec![];
    for (d, e) in place(&at).iter().enumerate() {
        let inverse = invert(e, &stand_in(d, dims[d]))?;
        solved.extend(inverse.coords.iter().cloned());
        guards.extend(inverse.guards(dims[d]));
    }
    let mut wanted = space.coords.iter().filter(|c| rows_alone || !c.row);
    let once = |id: CoordId| solved.iter().filter(|s| s.0 == id).count() == 1;
    if solved.len() != wanted.clone().count() || !wanted.all(|c| once(c.id)) {
        return None;
    }
    let find = |id| solved.iter().find(|s| s.0 == id).map(|s| s.1.clone());
    let axes: Vec<Expr> = space.axes[..rank].iter().map(|e| e.substitute(&find)).collect();
    guards.extend(left.into_iter().map(|a| Guard { expr: axes[a].clone(), lo: 0, hi: extents[a] as i64 }));
    Some(Placed { output: i, axes, guards })
}

/// Restricts a space of the output's axes to those positions of the matmul that a lattice has; gives the axes on which
/// some of them are out of bounds. `None` if a position of the output is not one of the matmul, up to a constant.
pub fn on_lattice(body: &Body, out: ValueId, space: &mut Space, lattice: &[Lattice]) -> Option<Vec<usize>> {
    if lattice.is_empty() {
        return Some(vec![]);
    }
    let mut r = body.resolver();
    let value = r.at(out, &space.axes, &[]).ok()?;
    let [at] = &anchors(&r.dag, &[value])[..] else { return None };
    lattice.iter().map(|l| l.restrict(space, at.get(l.axis)?)).collect()
}

/// Drops guards from the loads of `value` that do not concern their addresses: the store has these guards anyway.
fn unguarded(dag: &mut Dag, value: NodeId, guards: &[Guard]) {
    for n in dag.reach(&[value]) {
        let NodeOp::Load { at, guards: of_load, .. } = &mut dag.nodes[n as usize].op else { continue };
        let mut used = vec![];
        at.coords(&mut |c| used.push(c));
        of_load.retain(|g| !guards.contains(g) || used.iter().any(|c| g.expr.uses(*c)));
    }
}

fn anchors(dag: &Dag, roots: &[NodeId]) -> Vec<Vec<Expr>> {
    let reach = dag.reach(roots).into_iter();
    reach
        .filter_map(|n| match &dag.node(n).op {
            NodeOp::Anchor { at } => Some(at.clone()),
            _ => None,
        })
        .collect()
}

impl Placed {
    /// The store of this output at element `dims` of the matmul, which its value reads as a node.
    pub fn store(&self, r: &mut Resolver, dims: &[Expr]) -> Result<Store, LowerError> {
        let real = |id: CoordId| dims.get((u32::MAX - id) as usize).cloned();
        let ix: Vec<Expr> = self.axes.iter().map(|e| e.substitute(&real)).collect();
        let guards: Vec<Guard> =
            self.guards.iter().map(|g| Guard { expr: g.expr.substitute(&real), ..g.clone() }).collect();
        let out = r.graph.outputs[self.output];
        let value = r.at(out, &ix, &guards)?;
        unguarded(&mut r.dag, value, &guards);
        let at = linear(&ix, r.graph.shape(out));
        let slot = Slot::Output(self.output as u32);
        Ok(Store::new(slot, r.graph.dtype(out), at, value).within(guards))
    }
}

/// Whether every output reads the matmul `v` at two elements that lie `half` columns apart.
pub fn reads_halves(body: &Body, v: ValueId, half: usize) -> bool {
    let g = body.graph;
    let body = Body { matmul: Some((v, MatmulSource::Node)), ..*body };
    g.outputs.iter().all(|&out| {
        let space = Space::new(g.shape(out), &vec![false; g.shape(out).len()]);
        let mut r = body.resolver();
        let Ok(value) = r.at(out, &space.axes, &[]) else { return false };
        matches!(&anchors(&r.dag, &[value])[..], [a, b] if first_of_pair(a, b, half).is_some())
    })
}

/// The first of two places that are `n` columns apart.
fn first_of_pair(a: &[Expr], b: &[Expr], n: usize) -> Option<Vec<Expr>> {
    let later = |at: &[Expr]| {
        let mut at = at.to_vec();
        *at.last_mut()? = at.last()?.clone().shift(n as i64);
        Some(at)
    };
    match () {
        () if later(a)? == b => Some(a.to_vec()),
        () if later(b)? == a => Some(b.to_vec()),
        () => None,
    }
}

/// The anchors of a program, in the order of their columns, if it reads each of the `sums` accumulators at exactly one
/// element.
pub fn accumulators(scene: &Scene, sums: usize) -> Option<Vec<NodeId>> {
    let column = |n: NodeId| match &scene.dag.node(n).op {
        NodeOp::Anchor { at } => Some((at.last()?.constant, n)),
        _ => None,
    };
    let mut found: Vec<(i64, NodeId)> = scene.live().into_iter().filter_map(column).collect();
    found.sort_unstable();
    (found.len() == sums).then(|| found.into_iter().map(|f| f.1).collect())
}
