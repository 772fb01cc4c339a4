//! What passes over a row reduce: reductions of one level, and pairs of which the second needs the first but can be
//! accumulated in the same pass. A GPU computes pairs in one pass over rows that do not fit a tile.
//!
//! Takes: the scalar program of a row. Gives: the reductions of each pass. How they are accumulated:
//! [`crate::emit::row_program`].
use crate::scalar::dag::{Dag, NodeId, NodeOp, Scene};
use crate::scalar::expr::CoordId;
use crate::scalar::types;
use kiln_block::Elem;
use kiln_graph::{BinaryOp, ReduceOp, ScanOp, UnaryOp};

/// Reductions with one accumulator.
#[derive(Clone, Copy, Debug)]
pub enum Reduced {
    /// One reduction, or the total of a scan.
    One {
        node: NodeId,
        op: ReduceOp,
        body: NodeId,
    },
    Exponentials(Exponentials),
    Moments(Moments),
}

impl Reduced {
    /// A reduction or the total of a scan by itself.
    pub fn one(dag: &Dag, node: NodeId) -> Option<Reduced> {
        match dag.node(node).op {
            NodeOp::Reduce { op, body } => Some(Reduced::One { node, op, body }),
            NodeOp::Scan { op, body } => Some(Reduced::One { node, op: as_reduction(op), body }),
            _ => None,
        }
    }
    /// The nodes whose values it gives.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        let (first, second) = match *self {
            Reduced::One { node, .. } => (node, None),
            Reduced::Exponentials(e) => (e.max, Some(e.sum)),
            Reduced::Moments(m) => (m.sum, Some(m.squares)),
        };
        std::iter::once(first).chain(second)
    }
    /// What is reduced.
    pub fn body(&self) -> NodeId {
        match *self {
            Reduced::One { body, .. } => body,
            Reduced::Exponentials(e) => e.body,
            Reduced::Moments(m) => m.body,
        }
    }
    /// What its results need besides.
    pub fn needs(&self) -> Option<NodeId> {
        if let Reduced::Exponentials(e) = self { Some(e.shift) } else { None }
    }
    /// The reduction that gives the accumulator's first value.
    pub fn op(&self) -> ReduceOp {
        match self {
            Reduced::One { op, .. } => *op,
            Reduced::Exponentials(_) => ReduceOp::Max,
            Reduced::Moments(_) => ReduceOp::Sum,
        }
    }
    /// Whether the accumulator has a second value: a position, or that of the second reduction.
    pub fn has_two_values(&self) -> bool {
        !matches!(self, Reduced::One { op, .. } if !is_arg(*op))
    }
}

/// Levels of reductions of rows of `len` elements along `row`, of which each needs those before it, with the pairs that
/// one pass gives together.
pub fn in_passes(scene: &Scene, levels: &[Vec<NodeId>], row: &[CoordId], len: usize) -> Vec<Vec<Reduced>> {
    let deps = scene.dag.depends(row);
    let alike = |n: NodeId| !row.iter().any(|r| deps[n as usize].contains(r));
    let all = levels.iter().map(|level| level.iter().filter_map(|n| Reduced::one(&scene.dag, *n)).collect());
    let mut all: Vec<Vec<Reduced>> = all.collect();
    for i in 1..all.len() {
        let (before, after) = all.split_at_mut(i);
        let (before, after) = (&mut before[i - 1], &mut after[0]);
        after.retain(|second| {
            let pair = |first: &Reduced| {
                let (Reduced::One { node: first, .. }, Reduced::One { node: second, .. }) = (first, second) else {
                    return None;
                };
                let sums =
                    Exponentials::of(&scene.dag, *first, *second).filter(|e| alike(e.shift)).map(Reduced::Exponentials);
                sums.or_else(|| Moments::of(&scene.dag, *first, *second, len).map(Reduced::Moments))
            };
            let found = before.iter().enumerate().find_map(|(n, first)| Some((n, pair(first)?)));
            found.map(|(n, pair)| before[n] = pair).is_none()
        });
    }
    all.retain(|level| !level.is_empty());
    all
}

/// `max(x)`, and `sum(exp(x - shift))`, where `shift` is of the maximum.
#[derive(Clone, Copy, Debug)]
pub struct Exponentials {
    pub max: NodeId,
    pub sum: NodeId,
    pub shift: NodeId,
    /// The elements of which the maximum is.
    pub body: NodeId,
}

impl Exponentials {
    /// Those that these two reductions are, if the shift is the same for all of the row.
    pub fn of(dag: &Dag, max: NodeId, sum: NodeId) -> Option<Exponentials> {
        let NodeOp::Reduce { op: ReduceOp::Max, body } = dag.node(max).op else { return None };
        let NodeOp::Reduce { op: ReduceOp::Sum, body: term } = dag.node(sum).op else { return None };
        let NodeOp::Unary(UnaryOp::Exp, difference) = dag.node(term).op else { return None };
        let NodeOp::Binary(BinaryOp::Sub, x, shift) = dag.node(difference).op else { return None };
        let reduces = |n: NodeId| matches!(dag.node(n).op, NodeOp::Reduce { .. });
        let of_max = dag.reach_until(&[shift], reduces).contains(&max);
        let float = types::held(dag.node(body).dtype) == Elem::F32;
        (float && x == body && of_max).then_some(Exponentials { max, sum, shift, body })
    }
}

/// A sum, and the sum of squared deviations from its mean.
#[derive(Clone, Copy, Debug)]
pub struct Moments {
    pub sum: NodeId,
    pub squares: NodeId,
    /// The elements that are summed.
    pub body: NodeId,
}

impl Moments {
    /// Those that these two reductions of rows of this length are.
    pub fn of(dag: &Dag, sum: NodeId, squares: NodeId, row: usize) -> Option<Moments> {
        let NodeOp::Reduce { op: ReduceOp::Sum, body } = dag.node(sum).op else { return None };
        let NodeOp::Reduce { op: ReduceOp::Sum, body: square } = dag.node(squares).op else { return None };
        let NodeOp::Binary(BinaryOp::Mul, x, y) = dag.node(square).op else { return None };
        let NodeOp::Binary(BinaryOp::Sub, element, mean) = dag.node(x).op else { return None };
        let NodeOp::Binary(BinaryOp::Div, total, length) = dag.node(mean).op else { return None };
        let NodeOp::Const(length) = dag.node(length).op else { return None };
        let float = types::held(dag.node(body).dtype) == Elem::F32;
        let same = x == y && element == body && total == sum && length.as_f64() == row as f64;
        (float && same).then_some(Moments { sum, squares, body })
    }
}

/// Whether a reduction gives the position of its result.
pub fn is_arg(op: ReduceOp) -> bool {
    matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin)
}

/// The reduction that gives the total of a scan.
pub fn as_reduction(op: ScanOp) -> ReduceOp {
    match op {
        ScanOp::Sum => ReduceOp::Sum,
        ScanOp::Prod => ReduceOp::Prod,
    }
}
