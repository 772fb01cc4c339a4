//! Inverts index expressions, solving them for their coordinates: which output element a position of a matmul (or a
//! scan) goes to. `None` for expressions that are no mixed radix.
use crate::scalar::dag::Guard;
use crate::scalar::expr::{Atom, CoordId, Expr, delinear_unbounded};

/// Coordinates as expressions of a position, and for which positions there are any.
pub struct Inverse {
    pub coords: Vec<(CoordId, Expr)>,
    /// The range of positions.
    pub guard: Guard,
    /// Guards against positions in that range without coordinates (padding).
    pub gaps: Vec<Guard>,
}

impl Inverse {
    /// All conditions for a position among `0..extent`.
    pub fn guards(self, extent: usize) -> Vec<Guard> {
        let ends = self.guard.lo > 0 || self.guard.hi < extent as i64;
        ends.then_some(self.guard).into_iter().chain(self.gaps).collect()
    }
}

/// Solves `e = position` if `e` enumerates its coordinates (mixed radix, ascending or descending). If ascending, an
/// axis may be followed by gaps, as in rows of padded images.
pub fn invert(e: &Expr, position: &Expr) -> Option<Inverse> {
    let mut coords: Vec<(CoordId, usize, i64)> = vec![];
    for (a, c) in &e.terms {
        let Atom::Coord { id, extent } = a else { return None };
        coords.push((*id, *extent, *c));
    }
    coords.sort_by_key(|c| -c.2.abs());
    let down = coords.first().is_some_and(|c| c.2 < 0);
    // Positions that the axes so far span, and the stride of the last of these.
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
    // Positions outside the guard are masked, so the first axis needs no remainder.
    let parts = delinear_unbounded(&from, &padded);
    let gap = |((c, part), n): ((&(CoordId, usize, i64), &Expr), &usize)| {
        (*n > c.1).then(|| Guard { expr: part.clone(), lo: 0, hi: c.1 as i64 })
    };
    let gaps = coords.iter().zip(&parts).zip(&padded).filter_map(gap).collect();
    Some(Inverse { coords: coords.iter().map(|c| c.0).zip(parts).collect(), guard, gaps })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Images of 3 by 5 points whose lines are padded to 6 points and images to 4 lines: every point's position gives
    /// back its coordinates, and all other positions are guarded.
    #[test]
    fn gaps_are_guarded() {
        let c = |id, extent| Expr::coord(id, extent);
        let e = c(0, 2).scale(24).plus(&c(1, 3).scale(6)).plus(&c(2, 5)).shift(1);
        let inverse = invert(&e, &c(9, 60)).unwrap();
        let find = |id: u32| inverse.coords.iter().find(|x| x.0 == id).unwrap().1.clone();
        let coords = [find(0), find(1), find(2)];
        let mut points = vec![None; 60];
        for (n, y, x) in (0..2).flat_map(|n| (0..3).flat_map(move |y| (0..5).map(move |x| (n, y, x)))) {
            points[(n * 24 + y * 6 + x + 1) as usize] = Some([n, y, x]);
        }
        let guards = inverse.guards(60);
        for (i, point) in points.into_iter().enumerate() {
            let at = |e: &Expr| e.value_at(&|_| i as i64);
            let inside = guards.iter().all(|g| (g.lo..g.hi).contains(&at(&g.expr)));
            assert_eq!(inside.then(|| [0, 1, 2].map(|d: usize| at(&coords[d]))), point, "{i}");
        }
        // Lines may not overlap, and the innermost axis has stride 1.
        assert!(invert(&c(0, 4).scale(4).plus(&c(1, 5)), &c(9, 60)).is_none());
        assert!(invert(&c(0, 4).scale(2), &c(9, 60)).is_none());
    }
}
