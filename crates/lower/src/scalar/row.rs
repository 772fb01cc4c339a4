//! The row of a reduction or a scan: the coordinates that it binds.
use crate::scalar::expr::{Atom, CoordId, Expr};
use crate::scalar::space::Space;

/// The position within the row, as an expression of the row's coordinates.
#[derive(Clone, Debug)]
pub struct Row {
    pub position: Expr,
    pub len: usize,
    /// The row's coordinates; none where the kept index is an expression of them too.
    pub ids: Vec<CoordId>,
    /// Nested reductions have coordinates of their own: for the check.
    pub has_distinct_inner_rows: bool,
}

impl Row {
    /// The row of a space, at this position of it.
    pub fn of(space: &Space, position: &Expr, len: usize) -> Row {
        Row {
            position: position.clone(),
            len,
            ids: space.row_ids(),
            has_distinct_inner_rows: space.has_distinct_inner_rows,
        }
    }
    /// A row with coordinates that nothing else uses.
    pub fn alone(position: Expr, len: usize) -> Row {
        let mut ids = vec![];
        position.coords(&mut |c| ids.push(c));
        Row { position, len, ids, has_distinct_inner_rows: false }
    }
    /// One of several consecutive rows along a coordinate, such as heads along the columns of a matmul.
    pub fn part_of(coord: &Expr, len: usize) -> Row {
        let position = coord.clone().rem(len as i64);
        let ids = position.as_coord().into_iter().collect();
        Row { position, len, ids, has_distinct_inner_rows: false }
    }
    /// The position at which reductions inside `depth` others are resolved.
    pub fn at(&self, depth: u32) -> Expr {
        if !self.has_distinct_inner_rows || depth == 0 {
            return self.position.clone();
        }
        self.position.renamed(&|a| match a {
            Atom::Coord { id, extent } if self.ids.contains(id) => {
                Some(Atom::Coord { id: level(*id, depth), extent: *extent })
            }
            _ => None,
        })
    }
    pub fn has(&self, id: CoordId) -> bool {
        self.ids.contains(&if self.has_distinct_inner_rows { id & (LEVEL - 1) } else { id })
    }
}

/// Coordinate ids of a space are below this.
pub const LEVEL: CoordId = 1 << 20;
/// A row's coordinate for reductions inside `depth` others.
fn level(id: CoordId, depth: u32) -> CoordId {
    id | (LEVEL * depth)
}
