//! Instructions that values of a nest take on a GPU.
//!
//! Figures are those of [`kiln_machine::Ptxas`]. A function without one takes its weight in the registry of ops.
use crate::scalar::dag::{Dag, NodeId, NodeOp};
use kiln_graph::{BinaryOp, Op, ReduceOp};
use kiln_machine::ptxas;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Instructions of values that depend on the same coordinates of the nest: a thread executes them once for elements
/// that differ in others alone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Instructions {
    /// The coordinates, ascending.
    pub of: Vec<usize>,
    pub count: f64,
}

/// Instructions of a quotient by a constant and its remainder: a shift and a mask, or a long product, a shift, a
/// product and a difference.
pub fn quotient(by: usize) -> f64 {
    if by.is_power_of_two() { 1.0 } else { ptxas().instructions.quotient }
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
        NodeOp::Reduce { .. } if !dag.node(n).sums_in_any_order() => ptxas().instructions.position,
        NodeOp::Reduce { .. } | NodeOp::Scan { .. } => 1.0,
        // Small powers are products, or roots of them.
        NodeOp::Binary(BinaryOp::Pow, _, n) if matches!(dag.node(*n).op, NodeOp::Const(_)) => {
            ptxas().instructions.small_power
        }
        op => alone(op, dag.node(n).dtype.bytes() < 4),
    };
    live.iter().map(|n| (*n, count(*n))).collect()
}

/// Of a node alone, of a half type (or a smaller one) or another.
fn alone(op: &NodeOp, half: bool) -> f64 {
    match op {
        NodeOp::Unary(op, _) => function(&Op::Unary(*op), half),
        NodeOp::Binary(op, ..) => function(&Op::Binary(*op), half),
        NodeOp::Compare(..) | NodeOp::Select(..) | NodeOp::Cast(_) => 1.0,
        NodeOp::TanhApprox(_) => ptxas().instructions.approximate_tanh,
        _ => 0.0,
    }
}

/// Instructions of an op by its figure, or else its weight.
fn function(op: &Op, half: bool) -> f64 {
    let of_types = ptxas().functions.get(op.name());
    of_types.map_or_else(|| op.weight(), |[single, of_half]| if half { *of_half } else { *single })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_ops_that_there_are() {
        for name in ptxas().functions.keys() {
            assert!(Op::named(name).is_some(), "{name}");
        }
    }
}
