//! Index expressions solved for their coordinates: which output element a position of a product (or a scan) goes to.
use crate::dag::Guard;
use crate::expr::{Atom, CoordId, Expr, delinear};

/// Coordinates as expressions of a position, and where the position is one that has them.
pub struct Inverse {
    pub coords: Vec<(CoordId, Expr)>,
    /// Where positions begin and end.
    pub guard: Guard,
    /// Between them, where there are positions without coordinates.
    pub gaps: Vec<Guard>,
}

impl Inverse {
    /// All conditions for a position among `0..extent`.
    pub fn guards(self, extent: usize) -> Vec<Guard> {
        let ends = self.guard.lo > 0 || self.guard.hi < extent as i64;
        ends.then_some(self.guard).into_iter().chain(self.gaps).collect()
    }
}

/// Solves `e = position` if `e` counts through its coordinates (mixed radix, in either direction). Counting up it may leave gaps behind
/// the positions of an axis, as rows of padded images do.
pub fn invert(e: &Expr, position: &Expr) -> Option<Inverse> {
    let mut coords: Vec<(CoordId, usize, i64)> = vec![];
    for (a, c) in &e.terms {
        let Atom::Coord { id, extent } = a else { return None };
        coords.push((*id, *extent, *c));
    }
    coords.sort_by_key(|c| -c.2.abs());
    let down = coords.first().is_some_and(|c| c.2 < 0);
    // Positions of all axes so far, and those from one of the last to the next.
    let (mut unit, mut step) = (1i64, 1i64);
    let mut padded: Vec<usize> = coords.iter().map(|c| c.1).collect();
    for (i, (_, extent, c)) in coords.iter().enumerate().rev() {
        let gap = !down && *c > unit && c % step == 0 && i + 1 < coords.len();
        if *c != if down { -unit } else { unit } && !gap {
            return None;
        }
        if gap {
            padded[i + 1] = (c / step) as usize;
        }
        step = c.abs();
        unit = step * *extent as i64;
    }
    let lo = if down { e.constant - (unit - 1) } else { e.constant };
    let guard = Guard { expr: position.clone(), lo, hi: lo + unit };
    let from = if down { position.clone().scale(-1).shift(e.constant) } else { position.clone().shift(-e.constant) };
    // Positions outside the guard have no coordinates: a remainder on the first axis is not needed.
    let parts = delinear_unbounded(&from, &padded);
    let gap = |((c, part), n): ((&(CoordId, usize, i64), &Expr), &usize)| {
        (*n > c.1).then(|| Guard { expr: part.clone(), lo: 0, hi: c.1 as i64 })
    };
    let gaps = coords.iter().zip(&parts).zip(&padded).filter_map(gap).collect();
    Some(Inverse { coords: coords.iter().map(|c| c.0).zip(parts).collect(), guard, gaps })
}

/// As `delinear`, the first axis not reduced: exact where the position is inside the shape.
fn delinear_unbounded(position: &Expr, shape: &[usize]) -> Vec<Expr> {
    let mut parts = delinear(position, shape);
    let inner: usize = shape.iter().skip(1).product();
    if let Some(first) = parts.first_mut() {
        *first = position.clone().div(inner as i64);
    }
    parts
}
