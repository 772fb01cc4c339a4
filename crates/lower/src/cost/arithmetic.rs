//! Instructions that values of a nest take on a GPU.
//!
//! Figures of functions are those of programs of one function that `ptxas` 13.0 assembled for sm_90a; those of f32 include branches that few
//! numbers take. A function without one takes its weight in the registry of ops.
use crate::scalar::dag::{Dag, NodeId, NodeOp};
use kiln_graph::{BinaryOp, Op, ReduceOp, UnaryOp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Instructions of values that depend on the same coordinates of the nest: a thread executes them once for elements that differ in others alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instructions {
    /// The coordinates, ascending.
    pub of: Vec<usize>,
    pub count: f64,
}

/// Of a comparison with a bound, and of what joins it to others.
pub const BOUND: f64 = 2.0;
/// Least of a value that is not computed again at no cost.
pub const SPECIAL: f64 = 4.0;

/// Of a quotient by a constant and its remainder: a shift and a mask, or a long product, a shift, a product and a difference.
pub fn quotient(by: usize) -> f64 {
    if by.is_power_of_two() { 1.0 } else { 4.0 }
}

/// A list of what depends on the same coordinates.
pub fn list(of: BTreeMap<Vec<usize>, f64>) -> Vec<Instructions> {
    of.into_iter().filter(|i| i.1 > 0.0).map(|(of, count)| Instructions { of, count }).collect()
}

/// Of each node. A sum takes no more than its product.
pub fn arithmetic(dag: &Dag, live: &[NodeId]) -> Vec<(NodeId, f64)> {
    let mut users = vec![0; dag.nodes.len()];
    live.iter().flat_map(|n| dag.node(*n).operands()).for_each(|n| users[n as usize] += 1);
    let product = |n: NodeId| matches!(dag.node(n).op, NodeOp::Binary(BinaryOp::Mul, ..)) && users[n as usize] == 1;
    let count = |n: NodeId| match &dag.node(n).op {
        NodeOp::Binary(BinaryOp::Add | BinaryOp::Sub, a, b) if product(*a) || product(*b) => 0.0,
        NodeOp::Reduce { op: ReduceOp::Sum, body } if product(*body) => 0.0,
        NodeOp::Reduce { .. } if !dag.node(n).sums_in_any_order() => 4.0,
        NodeOp::Reduce { .. } | NodeOp::Scan { .. } => 1.0,
        // Small powers are products, or roots of them.
        NodeOp::Binary(BinaryOp::Pow, _, n) if matches!(dag.node(*n).op, NodeOp::Const(_)) => 2.0,
        op => alone(op, dag.node(n).dtype.bytes() < 4),
    };
    live.iter().map(|n| (*n, count(*n))).collect()
}

/// Of a node alone, of a half type (or a smaller one) or another.
fn alone(op: &NodeOp, half: bool) -> f64 {
    match op {
        NodeOp::Unary(op, _) => unary(*op, half),
        NodeOp::Binary(op, ..) => binary(*op, half),
        NodeOp::Compare(..) | NodeOp::Select(..) | NodeOp::Cast(_) => 1.0,
        NodeOp::TanhApprox(_) => 2.0,
        _ => 0.0,
    }
}

fn unary(op: UnaryOp, half: bool) -> f64 {
    use UnaryOp::*;
    let (f32, of_half) = match op {
        Exp => (8.0, 2.0),
        Exp2 => (13.0, 2.0),
        Expm1 => (19.0, 24.0),
        Log | Log2 | Log10 | Log1p => (36.0, 38.0),
        Sqrt => (15.0, 15.0),
        Rsqrt => (4.0, 4.0),
        Reciprocal => (15.0, 8.0),
        Sin | Cos => (46.0, 46.0),
        Tan => (95.0, 95.0),
        Asin | Acos | Atan | Erf => (30.0, 30.0),
        Sinh => (51.0, 51.0),
        Cosh => (38.0, 24.0),
        Tanh => (36.0, 17.0),
        Sigmoid | Silu => (25.0, 5.0),
        GeluErf => (34.0, 13.0),
        GeluTanh => (28.0, 9.0),
        Softplus | LogSigmoid => (49.0, 43.0),
        Mish => (86.0, 58.0),
        Hardswish | Hardsigmoid => (4.0, 5.0),
        Erfinv => (207.0, 207.0),
        Lgamma => (490.0, 490.0),
        Digamma => (282.0, 282.0),
        _ => return Op::Unary(op).weight(),
    };
    if half { of_half } else { f32 }
}

fn binary(op: BinaryOp, half: bool) -> f64 {
    use BinaryOp::*;
    match op {
        Div if half => 9.0,
        Div => 14.0,
        Pow if half => 64.0,
        Pow => 107.0,
        Atan2 => 125.0,
        Fmod | Remainder => 150.0,
        FloorDiv => 190.0,
        _ => Op::Binary(op).weight(),
    }
}
