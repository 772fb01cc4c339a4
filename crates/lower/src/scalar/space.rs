//! Iteration spaces: coordinates, split until views cancel, then merged where every access is contiguous across them.
//!
//! A space starts with one coordinate per axis. `refine` splits coordinates at the sizes that reshapes ask for, so that
//! index expressions become affine; `coarsen` merges neighbours that are contiguous in every expression.
use crate::error::LowerError;
use crate::scalar::dag::Scene;
use crate::scalar::expr::{Atom, CoordId, Expr};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coord {
    pub id: CoordId,
    pub extent: usize,
    /// Whether the coordinate belongs to the row.
    pub row: bool,
}

/// Coordinates, outermost first, and what the original axes are in terms of them.
#[derive(Clone, Debug, Default)]
pub struct Space {
    pub coords: Vec<Coord>,
    /// One expression per original axis.
    pub axes: Vec<Expr>,
    /// Nested reductions are resolved at coordinates of their own, for a check ([`crate::scalar::row::Row`]).
    pub has_distinct_inner_rows: bool,
    /// Neighbours along an axis that are one point: their coordinate, which is not among `coords`, and how many there
    /// are.
    pub group: Option<(CoordId, usize)>,
    next: CoordId,
}

impl Space {
    /// One coordinate per axis; axes of size 1 are the constant 0.
    pub fn new(extents: &[usize], row_axes: &[bool]) -> Space {
        let mut s = Space::default();
        for (&extent, &row) in extents.iter().zip(row_axes) {
            let e = s.add(extent, row);
            s.axes.push(e);
        }
        s
    }
    /// The same space, for the check that no reduction depends on an enclosing row.
    pub fn with_distinct_inner_rows(&self) -> Space {
        Space { has_distinct_inner_rows: true, ..self.clone() }
    }
    /// An id that no coordinate has.
    pub fn fresh(&mut self) -> CoordId {
        self.next += 1;
        self.next - 1
    }
    fn add(&mut self, extent: usize, row: bool) -> Expr {
        let id = self.fresh();
        if extent > 1 {
            self.coords.push(Coord { id, extent, row });
        }
        Expr::coord(id, extent)
    }
    pub fn find(&self, id: CoordId) -> Option<&Coord> {
        self.coords.iter().find(|c| c.id == id)
    }
    pub fn row_ids(&self) -> Vec<CoordId> {
        self.coords.iter().filter(|c| c.row).map(|c| c.id).collect()
    }
    /// Positions of these coordinates in the list of all.
    pub fn among(&self, ids: &[CoordId]) -> Vec<usize> {
        (0..self.coords.len()).filter(|i| ids.contains(&self.coords[*i].id)).collect()
    }
    /// Number of points.
    pub fn count(&self) -> usize {
        self.coords.iter().map(|c| c.extent).product()
    }
    fn replace(&mut self, f: impl Fn(CoordId) -> Option<Expr>) {
        self.axes.iter_mut().for_each(|e| *e = e.substitute(&f));
    }
    /// Splits a coordinate in two, the second of extent `inner`.
    fn split(&mut self, id: CoordId, inner: usize) {
        let Some(i) = self.coords.iter().position(|c| c.id == id) else { return };
        let old = self.coords[i];
        let (a, b) = (self.fresh(), self.fresh());
        let outer = old.extent / inner;
        self.coords[i] = Coord { id: b, extent: inner, row: old.row };
        self.coords.insert(i, Coord { id: a, extent: outer, row: old.row });
        let whole = Expr::coord(a, outer).scale(inner as i64).plus(&Expr::coord(b, inner));
        self.replace(|c| (c == id).then(|| whole.clone()));
    }
    /// Replaces a coordinate by `stride · outer + inner + start`, where `outer` and `inner` run over these extents.
    pub fn stride(&mut self, id: CoordId, stride: i64, start: i64, [outer, inner]: [usize; 2]) {
        let Some(i) = self.coords.iter().position(|c| c.id == id) else { return };
        let row = self.coords.remove(i).row;
        let (a, b) = (self.fresh(), self.fresh());
        let kept = [(a, outer), (b, inner)].into_iter().filter(|c| c.1 > 1);
        self.coords.splice(i..i, kept.map(|(id, extent)| Coord { id, extent, row }));
        let whole = Expr::coord(a, outer).scale(stride).plus(&Expr::coord(b, inner)).shift(start);
        self.replace(|c| (c == id).then(|| whole.clone()));
    }
    /// Moves groups of `count` neighbours of `row` into `along`, as its outermost part (wide rows); returns the merged
    /// coordinate. The row is rounded up to whole groups.
    pub fn distribute(&mut self, row: CoordId, count: usize, along: CoordId) -> Option<CoordId> {
        let at = self.coords.iter().position(|c| c.id == row)?;
        self.coords[at].extent = self.coords[at].extent.next_multiple_of(count);
        self.split(row, count);
        let inner = self.coords.get_mut(at + 1)?;
        inner.row = false;
        let inner = inner.id;
        self.merge(&[inner, along])
    }
    /// Makes one point of `count` neighbours along a coordinate, whose extent they divide.
    pub fn group(&mut self, id: CoordId, count: usize) {
        let Some(at) = self.coords.iter().position(|c| c.id == id) else { return };
        self.split(id, count);
        self.group = Some((self.coords.remove(at + 1).id, count));
    }
    /// The neighbours of a point, each as a point of a space of them alone.
    pub fn members(&self) -> Vec<Space> {
        let Some((id, count)) = self.group else { return vec![self.clone()] };
        let member = |k| {
            let mut member = Space { group: None, ..self.clone() };
            member.replace(|c| (c == id).then(|| Expr::constant(k as i64)));
            member
        };
        (0..count).map(member).collect()
    }
    /// Makes one coordinate of several, in the order given, in place of the first; gives its id.
    pub fn merge(&mut self, ids: &[CoordId]) -> Option<CoordId> {
        let first = *ids.first()?;
        if ids.len() == 1 {
            return Some(first);
        }
        let parts: Vec<Coord> = ids.iter().filter_map(|id| self.find(*id).copied()).collect();
        let extent: usize = parts.iter().map(|c| c.extent).product();
        let id = self.fresh();
        let at = self.coords.iter().position(|c| c.id == first)?;
        self.coords[at] = Coord { id, extent, row: parts[0].row };
        self.coords.retain(|c| !ids[1..].contains(&c.id));
        let shape: Vec<usize> = parts.iter().map(|c| c.extent).collect();
        let split = crate::scalar::expr::delinear(&Expr::coord(id, extent), &shape);
        self.replace(|c| ids.iter().position(|x| *x == c).map(|i| split[i].clone()));
        Some(id)
    }
    /// Splits and merges until nothing changes. `scene` resolves the kernel in a space; gives what it is in this one.
    pub fn canonicalise<F>(&mut self, scene: F) -> Result<Scene, LowerError>
    where
        F: Fn(&Space) -> Result<Scene, LowerError>,
    {
        let refined = self.refine(&scene)?;
        let count = self.coords.len();
        self.coarsen(&refined);
        if self.coords.len() == count { Ok(refined) } else { scene(self) }
    }
    /// Splits until nothing changes; gives the scene in this space.
    pub fn refine<F>(&mut self, scene: &F) -> Result<Scene, LowerError>
    where
        F: Fn(&Space) -> Result<Scene, LowerError>,
    {
        let mut now = scene(self)?;
        // Each round splits at least one coordinate; extents have at most 40 prime factors.
        for _ in 0..24 {
            let cuts = cuts(&now, self);
            if cuts.is_empty() {
                break;
            }
            cuts.into_iter().for_each(|(id, inner)| self.split(id, inner));
            now = scene(self)?;
        }
        Ok(now)
    }
    pub fn coarsen(&mut self, scene: &Scene) {
        let mut exprs = vec![];
        scene.exprs(&mut |e| exprs.push(e.clone()));
        exprs.sort();
        exprs.dedup();
        let mut i = 0;
        while i + 1 < self.coords.len() {
            let (a, b) = (self.coords[i], self.coords[i + 1]);
            if a.row != b.row || !exprs.iter().all(|e| runs_on(e, a.id, b)) {
                i += 1;
                continue;
            }
            let Some(id) = self.merge(&[a.id, b.id]) else { return };
            let whole = Expr::coord(id, a.extent * b.extent);
            let (x, y) = (whole.clone().div(b.extent as i64), whole.rem(b.extent as i64));
            let f = |c: CoordId| if c == a.id { Some(x.clone()) } else { (c == b.id).then(|| y.clone()) };
            exprs.iter_mut().for_each(|e| *e = e.substitute(&f));
        }
    }
}

/// Whether an expression depends on two coordinates only through their row-major position.
pub fn runs_on(e: &Expr, a: CoordId, b: Coord) -> bool {
    let mut ok = true;
    e.walk(&mut |e| {
        let of = |id| {
            let at = |t: &&(Atom, i64)| matches!(&t.0, Atom::Coord { id: i, .. } if *i == id);
            e.terms.iter().find(at).map_or(0, |t| t.1)
        };
        ok &= of(a) == of(b.id) * b.extent as i64;
    });
    ok
}

/// The splits that quotients and remainders need: the coordinate and the extent of its inner part.
fn cuts(scene: &Scene, space: &Space) -> Vec<(CoordId, usize)> {
    let mut found: Vec<(CoordId, usize)> = vec![];
    let mut look = |e: &Expr| {
        for (a, _) in &e.terms {
            let (Atom::Div(x, k) | Atom::Mod(x, k)) = a else { continue };
            for (t, c) in &x.terms {
                let Atom::Coord { id, extent } = t else { continue };
                if *c > 0 && k % c == 0 {
                    let inner = (k / c) as usize;
                    let fits = inner > 1 && inner < *extent && extent % inner == 0;
                    if fits && space.find(*id).is_some() && !found.iter().any(|f| f.0 == *id) {
                        found.push((*id, inner));
                    }
                }
            }
        }
    };
    scene.exprs(&mut |e| e.walk(&mut look));
    found
}
