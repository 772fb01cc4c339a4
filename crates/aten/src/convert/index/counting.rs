//! Indices that count: `x[arange(n)]` is a slice, and `x[arange(m)[:, None], arange(n)]` is one of two axes.
use super::super::context::{Ctx, Res};
use super::Indexed;
use kiln_graph::{Graph, Op, ValueId};

/// The size of an axis that is counted from the last, which is 0.
fn size(shape: &[usize], axis: usize) -> Option<usize> {
    shape.iter().rev().nth(axis).copied()
}

/// The axis along which a tensor counts from 0, from the last one; it is the same along others.
fn axis(g: &Graph, v: ValueId) -> Option<usize> {
    let shape = g.shape(v);
    let inner = || {
        let a = *g.args(v).first()?;
        let at = axis(g, a)?;
        Some((at, g.shape(a), size(g.shape(a), at)?))
    };
    match g.op(v) {
        Op::Iota { axis } => shape.len().checked_sub(1 + axis),
        Op::Cast(_) => inner().filter(|_| g.dtype(v).is_int()).map(|(at, _, _)| at),
        Op::Broadcast(_) => inner().filter(|(at, _, n)| size(shape, *at) == Some(*n)).map(|(at, _, _)| at),
        Op::Reshape(_) => {
            let (_, from, n) = inner()?;
            // Axes of size 1 come and go.
            let alone = |s: &[usize]| s.iter().product::<usize>() == n;
            let to = shape.iter().rev().position(|&m| m == n)?;
            (alone(from) && alone(shape)).then_some(to)
        }
        _ => None,
    }
}

/// The slice of `moved`, whose indexed axes lie next to each other, that indices take which count along axes of their
/// own; its indexed axes are in the order of those of the result. `None` if they do not.
pub(super) fn slice(c: &mut Ctx, moved: ValueId, place: &Indexed) -> Res<Option<ValueId>> {
    let mut all = vec![];
    for (i, &index) in place.indices.iter().enumerate() {
        let Some(at) = axis(&c.graph, index) else { return Ok(None) };
        let shape = c.shape(index);
        let Some(n) = size(&shape, at).filter(|n| *n > 0) else { return Ok(None) };
        let fits = shape.iter().product::<usize>() == n && n <= c.size(moved, place.first + i)?;
        if !fits || all.iter().any(|(other, _, _)| *other == at) {
            return Ok(None);
        }
        all.push((at, place.first + i, n));
    }
    let mut x = moved;
    for (_, axis, n) in &all {
        x = c.slice(x, *axis, 0, *n, 1)?;
    }
    // The first axis of the result is the farthest from its last.
    all.sort_by_key(|(at, _, _)| std::cmp::Reverse(*at));
    let end = place.first + all.len();
    let order: Vec<usize> =
        (0..place.first).chain(all.iter().map(|(_, axis, _)| *axis)).chain(end..c.rank(x)).collect();
    c.permute(x, &order).map(Some)
}
