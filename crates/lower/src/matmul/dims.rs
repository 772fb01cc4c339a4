//! Matmuls of a graph as batches of matrices: sizes, and where operands and results are.
use crate::scalar::expr::{Expr, delinear, linear};
use crate::scalar::resolve::broadcast_index;
use kiln_graph::{Graph, Op, ValueId};

/// A matmul as batches of `m × k` by `k × n`.
pub struct Dims {
    pub batch: Vec<usize>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Sizes of a `Dot` or `Linear`; the leading axes of a linear layer's input are its rows.
pub fn dims(g: &Graph, v: ValueId) -> Option<Dims> {
    let args = g.args(v);
    let out = g.shape(v);
    match g.op(v) {
        Op::Dot => {
            let (batch, mn) = out.split_at(out.len() - 2);
            Some(Dims { batch: batch.to_vec(), m: mn[0], n: mn[1], k: *g.shape(args[0]).last()? })
        }
        Op::Linear => {
            let (n, lead) = out.split_last()?;
            Some(Dims { batch: vec![], m: lead.iter().product(), n: *n, k: *g.shape(args[1]).last()? })
        }
        _ => None,
    }
}

/// Index of operand 0 (`at` = batch…, m, k) or 1 (`at` = batch…, k, n).
pub fn operand_index(g: &Graph, v: ValueId, which: usize, at: &[Expr]) -> Vec<Expr> {
    let args = g.args(v);
    let shape = g.shape(args[which]);
    let (batch, last) = at.split_at(at.len() - 2);
    match (g.op(v), which) {
        (Op::Linear, 0) => {
            let mut ix = delinear(&last[0], &shape[..shape.len() - 1]);
            ix.push(last[1].clone());
            ix
        }
        (Op::Linear, _) => vec![last[1].clone(), last[0].clone()],
        _ => {
            let mut ix = broadcast_index(batch, &shape[..shape.len() - 2]);
            ix.extend_from_slice(last);
            ix
        }
    }
}

/// The position in the matmul, (batch…, m, n), of an element of the value.
pub fn place(g: &Graph, v: ValueId, ix: &[Expr]) -> Vec<Expr> {
    match (g.op(v), ix.split_last()) {
        (Op::Linear, Some((column, lead))) => vec![linear(lead, &g.shape(v)[..lead.len()]), column.clone()],
        _ => ix.to_vec(),
    }
}
