//! Index expressions solved for their coordinates: which output element a position of a product (or a scan) goes to.
use crate::dag::Guard;
use crate::expr::{Atom, CoordId, Expr, delinear};

/// Coordinates as expressions of a position, and where the position is one that has them.
pub struct Inverse {
    pub coords: Vec<(CoordId, Expr)>,
    pub guard: Guard,
}

/// Solves `e = position` if `e` counts through its coordinates (mixed radix, in either direction) without gaps.
pub fn invert(e: &Expr, position: &Expr) -> Option<Inverse> {
    let mut coords: Vec<(CoordId, usize, i64)> = vec![];
    for (a, c) in &e.terms {
        let Atom::Coord { id, extent } = a else { return None };
        coords.push((*id, *extent, *c));
    }
    coords.sort_by_key(|c| -c.2.abs());
    let down = coords.first().is_some_and(|c| c.2 < 0);
    let mut unit = 1i64;
    for (_, extent, c) in coords.iter().rev() {
        if *c != if down { -unit } else { unit } {
            return None;
        }
        unit *= *extent as i64;
    }
    let lo = if down { e.constant - (unit - 1) } else { e.constant };
    let guard = Guard { expr: position.clone(), lo, hi: lo + unit };
    let from = if down { position.clone().scale(-1).shift(e.constant) } else { position.clone().shift(-e.constant) };
    let shape: Vec<usize> = coords.iter().map(|c| c.1).collect();
    // Positions outside the guard have no coordinates: a remainder on the first axis is not needed.
    let parts = delinear_unbounded(&from, &shape);
    Some(Inverse { coords: coords.iter().map(|c| c.0).zip(parts).collect(), guard })
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
