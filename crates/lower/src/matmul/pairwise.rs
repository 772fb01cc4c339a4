//! Pairwise distances: sums of squared or absolute differences of all pairs of rows (f32, at least 32 rows on each
//! side). They are computed as matmuls with `(a - b)²` or `|a - b|` in place of `a · b`, so that a block loads rows
//! and columns once for a whole tile of pairs. Where a plan may approximate, the rewrite rule `distance-by-product`
//! makes a matmul of the squares instead.
//!
//! Anything else that reduces broadcast pairs is reduced row by row.
use crate::error::LowerError;
use crate::matmul::{self, Matmul};
use crate::nest::lowering::Lowering;
use crate::scalar::expr::Expr;
use crate::scalar::resolve::{Resolver, broadcast_index};
use crate::steps::Emitted;
use kiln_block::Terms;
use kiln_graph::pairwise::{Pairwise, padded, pairs};
use kiln_graph::{BinaryOp, DType, Graph, Op, ReduceOp, UnaryOp, ValueId};
use kiln_plan::matmul_schedule::TiledMatmul;
use kiln_plan::{Hardware, Precision};

/// Least rows and columns, and least terms in all, for which tiles are profitable.
const MIN_ROWS: usize = 32;
const MIN_TERMS: usize = 1 << 22;
/// Most terms of a sum: they are added one after the other.
const MAX_TERMS_OF_SUM: usize = 4096;

/// A sum over pairs: the reduction, the operands of the difference, and how they pair up.
struct Found {
    v: ValueId,
    terms: Terms,
    sides: [ValueId; 2],
    pairs: Pairwise,
    shape: Vec<usize>,
}

/// Whether pairs of rows are tiled as a matmul.
pub fn applies(kernel: &Lowering, machine: &Hardware) -> bool {
    machine.arch.is_gpu()
        && kernel.schedule.is_none()
        && !machine.contract.batch_invariant
        && find(kernel.graph).is_some()
}

/// By the schedule of a matmul.
pub fn lower(kernel: &Lowering, machine: &Hardware, asked: &TiledMatmul) -> Result<Emitted, LowerError> {
    with(kernel, machine, |p| matmul::lower(kernel, p, machine, asked))?
}

/// Calls `then` with the pairs as a matmul.
pub fn with<T>(kernel: &Lowering, machine: &Hardware, then: impl FnOnce(&Matmul) -> T) -> Result<T, LowerError> {
    let found = find(kernel.graph).filter(|_| applies(kernel, machine));
    let found =
        found.ok_or_else(|| kernel.unsupported("it has the schedule of a kernel that multiplies, and does not"))?;
    let (g, p) = (kernel.graph, &found.pairs);
    // An index along each axis of the pairs, from the axes that an operand has.
    let at = |r: &mut Resolver, side: usize, axes: &[usize], at: &[Expr]| {
        let mut ix = vec![Expr::default(); found.shape.len()];
        axes.iter().zip(at).for_each(|(&axis, e)| ix[axis] = e.clone());
        let v = found.sides[side];
        r.at(v, &broadcast_index(&ix, g.shape(v)), &[])
    };
    let left = [&p.batch[..], &[p.rows, p.along]].concat();
    let right = [&p.batch[..], &[p.along, p.columns]].concat();
    let size = |axis: usize| found.shape[axis];
    let matmul = Matmul {
        v: found.v,
        batch: p.batch.iter().map(|&i| size(i)).collect(),
        m: size(p.rows),
        n: size(p.columns),
        k: size(p.along),
        full_k: None,
        run: None,
        dual: None,
        machine,
        precision: Precision::Exact,
        nearest: false,
        rounded: false,
        transposed: false,
        low: None,
        lattice: &[],
        sectors: 1.0,
        terms: found.terms,
        row: None,
        epilogue_ops: 0.0,
        epilogue_bytes: 0.0,
        a: &|r, ix| at(r, 0, &left, ix),
        b: &|r, ix| at(r, 1, &right, ix),
        place: &|ix| p.batch.iter().chain([&p.rows, &p.columns]).map(|&i| ix[i].clone()).collect(),
    };
    Ok(then(&matmul))
}

/// The one reduction of a body that has nothing else but pointwise work and views.
fn find(g: &Graph) -> Option<Found> {
    let plain = |op: &Op| {
        use Op::*;
        matches!(
            op,
            Input(_) | Const(_) | Iota { .. } | Unary(_) | Binary(_) | Compare(_) | Select | Cast(_) | Reshape(_)
        ) || matches!(op, Permute(_) | Broadcast(_) | Slice { .. } | Flip(_))
    };
    let mut others = g.values().filter(|v| !plain(g.op(*v)));
    let v = others.next().filter(|_| others.next().is_none())?;
    let Op::Reduce { op: ReduceOp::Sum, axes } = g.op(v) else { return None };
    let (&[along], DType::F32) = (&axes[..], g.dtype(v)) else { return None };
    let (terms, difference) = terms(g, *g.args(v).first()?)?;
    let [x, y] = g.args(difference)[..] else { return None };
    let sides = [unspread(g, x), unspread(g, y)];
    let [left, right] = sides.map(|s| g.shape(s));
    let shape = g.shape(difference).to_vec();
    let pairs = pairs(&padded(left, shape.len()), right, along)?;
    let (m, n, k) = (shape[pairs.rows], shape[pairs.columns], shape[along]);
    let work = shape.iter().fold(1usize, |all, n| all.saturating_mul(*n));
    let profitable = m.min(n) >= MIN_ROWS && work >= MIN_TERMS && k <= MAX_TERMS_OF_SUM;
    profitable.then_some(Found { v, terms, sides, pairs, shape })
}

/// What is summed, and the difference it is made of.
fn terms(g: &Graph, v: ValueId) -> Option<(Terms, ValueId)> {
    let (terms, difference) = match (g.op(v), &g.args(v)[..]) {
        (Op::Binary(BinaryOp::Mul), [x, y]) if x == y => (Terms::Squares, *x),
        (Op::Unary(UnaryOp::Abs), [x]) => (Terms::Distances, *x),
        _ => return None,
    };
    matches!(g.op(difference), Op::Binary(BinaryOp::Sub)).then_some((terms, difference))
}

/// The value before it was broadcast.
fn unspread(g: &Graph, v: ValueId) -> ValueId {
    match (g.op(v), &g.args(v)[..]) {
        (Op::Broadcast(_), [x]) => unspread(g, *x),
        _ => v,
    }
}
