//! Operands and results as strided arrays that tensor maps describe.
use crate::dag::{NodeId, NodeOp, Scene, Store};
use crate::expr::{Atom, CoordId, Expr};
use crate::product::Product;
use kiln_block::{Array, Elem, Swizzle, Type, Value};
use kiln_graph::DType;
use kiln_plan::exec::Slot;

/// Which axis of an operand is contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Major {
    /// The one that is summed over.
    Depth,
    /// The product's rows or columns.
    Outer,
}

/// An array with batch axes in front: `[batch…, outer, inner]`.
#[derive(Clone, Debug)]
pub struct Strided {
    pub slot: Slot,
    pub major: Major,
    /// Batch axes of the product that the array has.
    batch: Vec<usize>,
    array: Array,
}

/// A coordinate and how many positions it has.
type Axis = (CoordId, usize);

/// Coefficients of coordinates in an expression that has nothing else.
fn coefficient(at: &Expr, id: CoordId) -> usize {
    let found = at.terms.iter().find(|(a, _)| matches!(a, Atom::Coord { id: i, .. } if *i == id));
    found.map_or(0, |t| t.1.max(0) as usize)
}

/// Whether a store may write floats to rows of any length along the product's columns, which then go through shared memory.
pub fn in_rows(s: &Store, columns: CoordId) -> bool {
    let mut used = false;
    s.at.coords(&mut |c| used |= c == columns);
    let is_column = |a: &Atom| matches!(a, Atom::Coord { id, .. } if *id == columns);
    let step = s.at.terms.iter().find(|t| is_column(&t.0)).map_or(1, |t| t.1);
    used && step == 1 && matches!(s.dtype, DType::F32 | DType::F16 | DType::Bf16)
}

impl Strided {
    /// The operand that node `n` reads, at the product's batch coordinates, `outer` and `depth`. Of a product in parts of K the array
    /// has all of K, so that what the last part reads beyond is zero.
    pub fn load(scene: &Scene, n: NodeId, p: &Product, outer: Axis, depth: Axis) -> Option<Strided> {
        let node = scene.dag.node(n);
        let NodeOp::Load { slot, at, guards } = &node.op else { return None };
        if !guards.is_empty() {
            return None;
        }
        let in_parts = p.whole.is_none_or(|_| coefficient(at, 0) == p.k * coefficient(at, depth.0));
        let (bytes, depth) = (node.dtype.bytes(), (depth.0, p.whole.unwrap_or(depth.1)));
        let own = usize::from(p.whole.is_some());
        let of = |axes, major| Strided::of(*slot, at, &p.batch, own, axes, bytes, major).filter(|_| in_parts);
        of([outer, depth], Major::Depth).or_else(|| of([depth, outer], Major::Outer))
    }
    /// What a store writes, if it is rows of the product in their order.
    pub fn store(s: &Store, extents: &[usize], rows: Axis, columns: Axis) -> Option<Strided> {
        let floats = matches!(s.dtype, DType::F32 | DType::F16 | DType::Bf16);
        if !s.guards.is_empty() || !floats {
            return None;
        }
        let all = Strided::of(s.slot, &s.at, extents, 0, [rows, columns], s.dtype.bytes(), Major::Depth)?;
        // Every batch has its own place.
        let own = extents.iter().enumerate().all(|(i, n)| *n == 1 || all.batch.contains(&i));
        own.then_some(all)
    }
    /// `extents`: of the batch axes, of which the first `skipped` are not the array's.
    fn of(
        slot: Slot,
        at: &Expr,
        extents: &[usize],
        skipped: usize,
        [outer, inner]: [Axis; 2],
        bytes: usize,
        major: Major,
    ) -> Option<Strided> {
        let batch = extents.len() as CoordId;
        let known = |a: &Atom| matches!(a, Atom::Coord { id, .. } if *id < batch || *id == outer.0 || *id == inner.0);
        let whole = |n: usize| (n * bytes).is_multiple_of(16) && n < 1 << 36;
        if at.constant < 0 || !at.terms.iter().all(|(a, c)| known(a) && *c > 0) {
            return None;
        }
        let offset = at.constant as usize;
        // An axis of size 1 is no coordinate: any stride will do.
        let row = if inner.1 == 1 { 1 } else { coefficient(at, inner.0) };
        let pitch = if outer.1 == 1 { 16 / bytes } else { coefficient(at, outer.0) };
        if row != 1 || pitch == 0 || !whole(pitch) || !whole(offset) {
            return None;
        }
        let mut s = Strided { slot, major, batch: vec![], array: Array { offset, sizes: vec![], strides: vec![] } };
        for (i, n) in extents.iter().enumerate().skip(skipped).filter(|(_, n)| **n > 1) {
            let stride = coefficient(at, i as CoordId);
            if stride > 0 {
                s.batch.push(i);
                s.array.sizes.push(*n);
                s.array.strides.push(stride);
            }
        }
        s.array.sizes.extend([outer.1, inner.1]);
        s.array.strides.extend([pitch, 1]);
        let fits = s.array.sizes.len() <= 5 && s.array.strides.iter().rev().skip(1).all(|n| whole(*n));
        (fits && s.array.sizes.iter().all(|n| *n < 1 << 31)).then_some(s)
    }
    /// Type of the descriptor for tiles of the last two axes, and its array.
    pub fn map(&self, elem: Elem, tile: [usize; 2]) -> (Type, Array) {
        let shape = [vec![1; self.batch.len()], tile.to_vec()].concat();
        (Type::Desc { elem, shape, swizzle: Swizzle::widest(elem, tile[1]) }, self.array.clone())
    }
    /// Starts of a tile from the product's batch positions and the position along the outer axis and K.
    pub fn starts(&self, batch: &[Value], outer: Value, depth: Value) -> Vec<Value> {
        let mut all: Vec<Value> = self.batch.iter().map(|i| batch[*i]).collect();
        match self.major {
            Major::Depth => all.extend([outer, depth]),
            Major::Outer => all.extend([depth, outer]),
        }
        all
    }
}
