//! Operands and results as strided arrays that tensor maps describe; `None` for what is no such array.
use crate::matmul::Matmul;
use crate::scalar::dag::{NodeId, NodeOp, Scene, Store};
use crate::scalar::expr::{Atom, CoordId, Expr};
use kiln_block::passes::warpgroup::roles::epilogue::MAX_ROW_STEP;
use kiln_block::{Array, BinaryOp as B, Builder, Elem, Swizzle, Type, Value};
use kiln_graph::DType;
use kiln_plan::exec::Slot;

/// Bytes along K of one tensor-map copy: the swizzle's span.
pub const SPAN: usize = 128;

/// Which axis of an operand is contiguous.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Major {
    /// The axis that is summed over: K-major.
    Depth,
    /// The matmul's rows or columns: M-major or N-major.
    Outer,
}

/// How an operand lies in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Side {
    pub major: Major,
    /// Its rows are whole lines of the cache apart.
    pub lines: bool,
}
impl Side {
    pub fn new(major: Major, pitch: usize) -> Side {
        Side { major, lines: pitch.is_multiple_of(SPAN) }
    }
}
/// The contiguous axes of both operands.
pub fn majors(sides: [Side; 2]) -> [Major; 2] {
    sides.map(|s| s.major)
}

/// An array with batch axes in front: `[batch…, outer, inner]`.
#[derive(Clone, Debug)]
pub struct Strided {
    pub slot: Slot,
    pub major: Major,
    /// Batch axes of the matmul that the array has.
    batch: Vec<usize>,
    array: Array,
    /// Implicit GEMM: K runs along both axes of the array.
    window: Option<Window>,
}

/// An array of which K runs along both axes, in whole stages: a padded input of an implicit GEMM, whose rows are the
/// channels of one image point. A point of the window shifts all rows that are read.
#[derive(Clone, Debug)]
struct Window {
    /// Functions of K's coordinates, which are the split-K slice and the position in it.
    row: Expr,
    column: Expr,
    depth: CoordId,
}

/// A coordinate and how many positions it has.
type Axis = (CoordId, usize);

/// The coefficient of a coordinate, in an expression that has nothing but coordinates.
fn coefficient(at: &Expr, id: CoordId) -> usize {
    let found = at.terms.iter().find(|(a, _)| matches!(a, Atom::Coord { id: i, .. } if *i == id));
    found.map_or(0, |t| t.1.max(0) as usize)
}

/// Whether a store writes floats to rows along the matmul's columns, which may have any length and then go through
/// shared memory.
pub fn in_rows(s: &Store, columns: CoordId) -> bool {
    let mut used = false;
    s.at.coords(&mut |c| used |= c == columns);
    let is_column = |a: &Atom| matches!(a, Atom::Coord { id, .. } if *id == columns);
    let step = s.at.terms.iter().find(|t| is_column(&t.0)).map_or(1, |t| t.1);
    used && (1..=MAX_ROW_STEP).contains(&step) && matches!(s.dtype, DType::F32 | DType::F16 | DType::Bf16)
}

/// The load of an array with the rows and columns of the only result and its type: the epilogue can read tiles of it
/// through the buffers of the result.
pub fn prefetched(scene: &Scene, p: &Matmul, [rows, columns]: [Axis; 2]) -> Option<(NodeId, Strided)> {
    let [store] = &scene.stores[..] else { return None };
    Strided::store(store, &p.batch, rows, columns).filter(|_| p.row.is_none() && p.full_k.is_none())?;
    let array = |n: NodeId| match &scene.dag.node(n).op {
        NodeOp::Load { slot, at, guards } if guards.is_empty() && scene.dag.node(n).dtype == store.dtype => {
            Some((n, Strided::array(*slot, at, &p.batch, [rows, columns], store.dtype.bytes())?))
        }
        _ => None,
    };
    scene.dag.reach(&[store.value]).into_iter().find_map(array)
}

impl Strided {
    /// How it lies in memory, for elements of so many bytes.
    pub fn side(&self, bytes: usize) -> Side {
        let pitch = self.array.strides.iter().rev().nth(1).map_or(SPAN, |n| n * bytes);
        Side::new(self.major, pitch)
    }
    /// The operand that node `n` reads, at the matmul's batch coordinates, `outer` and `depth`. Under split-K the array
    /// has all of K, so that the last slice reads zeros beyond it.
    pub fn load(scene: &Scene, n: NodeId, p: &Matmul, outer: Axis, depth: Axis) -> Option<Strided> {
        let node = scene.dag.node(n);
        let NodeOp::Load { slot, at, guards } = &node.op else { return None };
        if !guards.is_empty() {
            return None;
        }
        let in_parts = p.full_k.is_none_or(|_| coefficient(at, 0) == p.k * coefficient(at, depth.0));
        let (bytes, depth) = (node.dtype.bytes(), (depth.0, p.full_k.unwrap_or(depth.1)));
        let slice_axes = usize::from(p.full_k.is_some());
        let of = |axes, major| Strided::of(*slot, at, &p.batch, slice_axes, axes, bytes, major).filter(|_| in_parts);
        // Columns come after rows.
        let in_windows = p.run.is_some() && outer.0 as usize > p.batch.len();
        if in_windows {
            return Strided::windows(*slot, at, p, outer, depth.0, bytes);
        }
        of([outer, depth], Major::Depth).or_else(|| of([depth, outer], Major::Outer))
    }
    /// An operand of an implicit GEMM: rows and columns are functions of K. Such an array goes on beyond K, so split-K
    /// slices must be whole.
    fn windows(slot: Slot, at: &Expr, p: &Matmul, outer: Axis, depth: CoordId, bytes: usize) -> Option<Strided> {
        let (parts, slice_axes) = p.full_k.map_or((1, 0), |_| (p.batch[0], 1));
        let run =
            p.run.filter(|run| (run.len * bytes).is_multiple_of(SPAN) && p.full_k.is_none_or(|k| k == parts * p.k))?;
        let of_depth = |c: CoordId| c == depth || slice_axes == 1 && c == 0;
        let follows = |(a, _): &(Atom, i64)| {
            let (mut all, e) = (true, Expr { terms: vec![(a.clone(), 1)], constant: 0 });
            e.coords(&mut |c| all &= of_depth(c));
            e.nodes(&mut |_| all = false);
            all
        };
        let (along, rest): (Vec<_>, Vec<_>) = at.terms.iter().cloned().partition(follows);
        let (along, rest) = (Expr { terms: along, constant: 0 }, Expr { terms: rest, constant: at.constant });
        let start = |part: usize, k: usize| along.value_at(&|c| if c == depth { k as i64 } else { part as i64 });
        let stage = SPAN / bytes;
        let together = |part: usize, k: usize| start(part, k) == start(part, k - k % stage) + (k % stage) as i64;
        if !(0..parts).all(|part| (0..p.k).all(|k| together(part, k))) {
            return None;
        }
        let at = rest.plus(&Expr::coord(depth, run.pitch));
        let mut s = Strided::of(
            slot,
            &at,
            &p.batch,
            slice_axes,
            [(outer.0, run.rows), (depth, run.pitch)],
            bytes,
            Major::Depth,
        )?;
        let pitch = run.pitch as i64;
        s.window = Some(Window { row: along.clone().div(pitch), column: along.rem(pitch), depth });
        Some(s)
    }
    /// The array of rows and columns that a load reads, in batches of these extents whose coordinates come first.
    pub fn array(slot: Slot, at: &Expr, extents: &[usize], axes: [Axis; 2], bytes: usize) -> Option<Strided> {
        Strided::of(slot, at, extents, 0, axes, bytes, Major::Depth)
    }
    /// The array that a store writes, if that has the rows of the matmul in order.
    pub fn store(s: &Store, extents: &[usize], rows: Axis, columns: Axis) -> Option<Strided> {
        let floats = matches!(s.dtype, DType::F32 | DType::F16 | DType::Bf16);
        if !s.guards.is_empty() || !floats {
            return None;
        }
        let all = Strided::of(s.slot, &s.at, extents, 0, [rows, columns], s.dtype.bytes(), Major::Depth)?;
        // Every batch must write elements of its own.
        let distinct = extents.iter().enumerate().all(|(i, n)| *n == 1 || all.batch.contains(&i));
        distinct.then_some(all)
    }
    /// `extents`: those of the batch axes, of which the array does not have the first `skipped`.
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
        // An axis of size 1 has no coordinate: any stride will do.
        let row = if inner.1 == 1 { 1 } else { coefficient(at, inner.0) };
        let pitch = if outer.1 == 1 { 16 / bytes } else { coefficient(at, outer.0) };
        if row != 1 || pitch == 0 || !whole(pitch) || !whole(offset) {
            return None;
        }
        let array = Array { offset, sizes: vec![], strides: vec![] };
        let mut s = Strided { slot, major, batch: vec![], array, window: None };
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
    /// Start indices of a tile, from the matmul's batch indices, the position along the outer axis, and the positions
    /// in all of K and in its split-K slice.
    pub fn starts(&self, b: &mut Builder, batch: &[Value], outer: Value, [depth, within]: [Value; 2]) -> Vec<Value> {
        let mut all: Vec<Value> = self.batch.iter().map(|i| batch[*i]).collect();
        match (&self.window, self.major) {
            (Some(w), _) => {
                let coord = |id: CoordId| if id == w.depth { within } else { batch[id as usize] };
                let (row, column) = (count(b, &w.row, &coord), count(b, &w.column, &coord));
                all.extend([b.binary(B::Add, outer, row), column]);
            }
            (None, Major::Depth) => all.extend([outer, depth]),
            (None, Major::Outer) => all.extend([depth, outer]),
        }
        all
    }
}

/// Emits an expression of scalars (i32) that is never negative.
fn count(b: &mut Builder, e: &Expr, coord: &impl Fn(CoordId) -> Value) -> Value {
    let mut sum = b.i32(e.constant);
    for (a, c) in &e.terms {
        let v = match a {
            Atom::Coord { id, .. } => coord(*id),
            Atom::Div(x, by) | Atom::Mod(x, by) => {
                let (x, by) = (count(b, x, coord), b.i32(*by));
                b.binary(if matches!(a, Atom::Div(..)) { B::Div } else { B::Rem }, x, by)
            }
            // Operands at indices read from memory are no strided arrays.
            Atom::Value { .. } => b.i32(0),
        };
        let c = b.i32(*c);
        let v = b.binary(B::Mul, v, c);
        sum = b.binary(B::Add, sum, v);
    }
    sum
}
