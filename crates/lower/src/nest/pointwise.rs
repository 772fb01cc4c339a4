//! Pointwise programs: one value per point of a space, no point needing another.
//!
//! Takes: a body without reductions, or a scalar program of a point's coordinates. Gives: nests.
use crate::error::LowerError;
use crate::nest::{Nest, Visit};
use crate::scalar::dag::{Scene, Store};
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::resolve::Body;
use crate::scalar::space::Space;
use kiln_plan::Hardware;
use kiln_plan::exec::Slot;

/// Calls `f` with a nest for each number of elements that outputs of a body have.
pub fn visit_nests(source: &Body, machine: &Hardware, f: &mut Visit) -> Result<(), LowerError> {
    let (name, body) = (source.name, source.graph);
    let mut left: Vec<usize> = (0..body.outputs.len()).collect();
    let mut nests = 0;
    while let Some(&first) = left.first() {
        let count = body.ty(body.outputs[first]).count();
        let (group, rest): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|&i| body.ty(body.outputs[i]).count() == count);
        left = rest;
        if count == 0 {
            continue;
        }
        let name = if nests == 0 { name.to_string() } else { format!("{name}_{nests}") };
        nests += 1;
        let shape = body.shape(body.outputs[first]).to_vec();
        let at = |s: &Space| outputs(source, &group, &s.axes, &shape);
        let nest = Nest::new(&name, Space::new(&shape, &vec![false; shape.len()]), &at, machine)?;
        f(&nest.of_body(source.graph))?;
    }
    Ok(())
}

/// The outputs `group` of a body at a point of `shape`, stored there.
fn outputs(source: &Body, group: &[usize], axes: &[Expr], shape: &[usize]) -> Result<Scene, LowerError> {
    let (mut r, body) = (source.resolver(), source.graph);
    let mut stores = vec![];
    let position = linear(axes, shape);
    for &i in group {
        let v = body.outputs[i];
        let ix = delinear(&position, body.shape(v));
        let value = r.at(v, &ix, &[])?;
        let at = linear(&ix, body.shape(v));
        stores.push(Store::new(Slot::Output(i as u32), body.dtype(v), at, value));
    }
    Ok(Scene { dag: r.dag, stores })
}

/// What `say` says of the nest of the points of `shape`. `scene` gives the program at a point's coordinates.
pub fn of_points<F, T>(
    name: &str,
    shape: &[usize],
    scene: &F,
    machine: &Hardware,
    say: impl FnOnce(Nest) -> Result<T, LowerError>,
) -> Result<T, LowerError>
where
    F: Fn(&[Expr]) -> Result<Scene, LowerError>,
{
    let at = |s: &Space| scene(&s.axes);
    say(Nest::new(name, Space::new(shape, &vec![false; shape.len()]), &at, machine)?)
}
