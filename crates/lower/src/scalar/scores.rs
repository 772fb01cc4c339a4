//! What attention on the host and on GPUs share: its sizes, and a score from its raw dot product.
use crate::error::LowerError;
use crate::scalar::dag::{Dag, Guard, NodeId, NodeOp, is_number};
use crate::scalar::expr::Expr;
use crate::scalar::mask_value;
use crate::scalar::resolve::{Body, Resolved, Resolver, broadcast_index};
use kiln_graph::{BinaryOp, CompareOp, DType, Graph, Op, ScoreStep, UnaryOp, ValueId};

/// Sizes of an attention: batch axes, key heads, queries per key head, query and key lengths, widths of keys and
/// values.
pub struct Sizes {
    pub batch: Vec<usize>,
    pub heads: usize,
    pub group: usize,
    pub s: usize,
    pub t: usize,
    pub d: usize,
    pub e: usize,
}

pub fn sizes(body: &Body, v: ValueId) -> Sizes {
    let args = body.graph.args(v);
    let (q, k, w) = (body.graph.shape(args[0]), body.graph.shape(args[1]), body.graph.shape(args[2]));
    let n = q.len();
    Sizes {
        batch: q[..n - 3].to_vec(),
        heads: k[n - 3],
        group: q[n - 3] / k[n - 3].max(1),
        s: q[n - 2],
        t: k[n - 2],
        d: q[n - 1],
        e: w[n - 1],
    }
}

/// Index of a score in a mask, from (batch…, head, s, t).
fn mask_index(shape: &[usize], at: &[Expr]) -> Vec<Expr> {
    broadcast_index(at, shape)
}

/// The sink of a query; `at` is the index of one of its scores.
pub fn sink(r: &mut Resolver, v: ValueId, at: &[Expr]) -> Result<Option<NodeId>, LowerError> {
    let graph = r.graph;
    let Some(place) = graph.op(v).sink_place() else { return Ok(None) };
    let x = graph.args(v)[place];
    r.at(x, &mask_index(graph.shape(x), at), &[]).map(Some)
}

/// The float type whose numbers mask: that of the mask, or of the operands.
pub fn mask_dtype(g: &Graph, v: ValueId) -> DType {
    let args = g.args(v);
    let mask = args.get(g.op(v).mask_place()).map(|&m| g.dtype(m)).filter(|d| d.is_float());
    mask.unwrap_or(g.dtype(args[0]))
}

/// How the mask of a causal attention is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Causal {
    /// As a guard.
    Guard,
    /// As a comparison of positions, like masks in graphs: [`crate::scalar::key_range`] finds its end.
    Comparison,
}

/// A score from its raw dot product: scaled, by its score function, masked.
pub fn masked_score(r: &mut Resolver, raw: NodeId, v: ValueId, at: &[Expr], way: Causal) -> Resolved {
    let graph = r.graph;
    let op = graph.op(v);
    let Op::Attention { scale, causal, score, .. } = op else { return Err(r.unsupported("not attention")) };
    let args = graph.args(v);
    let dtype = r.dag.node(raw).dtype;
    let scale = r.dag.number(dtype, scale.as_f64());
    let mut x = r.dag.binary(BinaryOp::Mul, raw, scale);
    let mut operands = args[3..].iter();
    // Programs round the results of steps to the operands' type.
    let half = matches!(graph.dtype(args[0]), DType::F16 | DType::Bf16);
    for step in score {
        x = match *step {
            ScoreStep::Unary(UnaryOp::Tanh) if half => r.dag.add(NodeOp::TanhApprox(x), dtype),
            ScoreStep::Number(BinaryOp::Div, c) if half && c.as_f64().recip().is_normal() => {
                let c = r.dag.number(dtype, c.as_f64().recip());
                r.dag.binary(BinaryOp::Mul, x, c)
            }
            ScoreStep::Unary(u) => r.dag.add(NodeOp::Unary(u, x), dtype),
            ScoreStep::Number(b, c) => {
                let c = r.dag.number(dtype, c.as_f64());
                r.dag.binary(b, x, c)
            }
            ScoreStep::Operand(b) => {
                let next = operands.next();
                let &y = next.ok_or_else(|| r.invariant("a step of a score function has no operand"))?;
                let y = r.at(y, &mask_index(graph.shape(y), at), &[])?;
                r.dag.binary(b, x, y)
            }
        };
    }
    let lowest = r.dag.number(dtype, f64::NEG_INFINITY);
    if let Some(&mask) = args.get(op.mask_place()) {
        let ix = mask_index(r.graph.shape(mask), at);
        let m = r.at(mask, &ix, &[])?;
        x = if graph.dtype(mask) == DType::Bool {
            r.dag.add(NodeOp::Select(m, x, lowest), dtype)
        } else {
            let lengths = [0, 1].map(|i| graph.shape(args[i])).map(|shape| shape[shape.len() - 2]);
            let place = mask_value::Place { at, lengths, causal: *causal };
            let m = mask_value::exact(&mut r.dag, m, graph.dtype(mask), &place);
            masked_by(&mut r.dag, x, m)
        };
    }
    if *causal {
        let [query, key] = [at[at.len() - 2].clone(), at[at.len() - 1].clone()];
        let seen = match way {
            Causal::Guard => NodeOp::Inside(vec![Guard { expr: query.plus(&key.scale(-1)), lo: 0, hi: i64::MAX }]),
            Causal::Comparison => {
                let [query, key] = [query, key].map(|e| r.dag.add(NodeOp::Index(e), DType::I64));
                NodeOp::Compare(CompareOp::Le, key, query)
            }
        };
        let seen = r.dag.add(seen, DType::Bool);
        x = r.dag.add(NodeOp::Select(seen, x, lowest), dtype);
    }
    Ok(x)
}

/// The sum of a score and a mask. Minus infinity is selected in place of the score, not added to it: so a score that is
/// NaN or infinite counts as masked there, as in the blocks of keys that are skipped.
fn masked_by(dag: &mut Dag, x: NodeId, mask: NodeId) -> NodeId {
    let dtype = dag.node(x).dtype;
    let lowest = |dag: &Dag, n: NodeId| is_number(dag, n, f64::NEG_INFINITY);
    match dag.node(mask).op {
        NodeOp::Const(_) if is_number(dag, mask, 0.0) => x,
        NodeOp::Select(c, a, b) if lowest(dag, a) != lowest(dag, b) => {
            let [a, b] = [a, b]
                .map(|n| if lowest(dag, n) { dag.number(dtype, f64::NEG_INFINITY) } else { masked_by(dag, x, n) });
            dag.add(NodeOp::Select(c, a, b), dtype)
        }
        // A sum with zeros and infinities is exact in any order.
        NodeOp::Binary(BinaryOp::Add, a, b) if only_masks(dag, a) => {
            let x = masked_by(dag, x, b);
            masked_by(dag, x, a)
        }
        NodeOp::Binary(BinaryOp::Add, a, b) if only_masks(dag, b) => {
            let x = masked_by(dag, x, a);
            masked_by(dag, x, b)
        }
        NodeOp::Cast(a) if only_masks(dag, a) => masked_by(dag, x, a),
        _ => dag.binary(BinaryOp::Add, x, mask),
    }
}

/// Whether a float is zero or minus infinity everywhere.
fn only_masks(dag: &Dag, n: NodeId) -> bool {
    match dag.node(n).op {
        NodeOp::Const(_) => is_number(dag, n, 0.0) || is_number(dag, n, f64::NEG_INFINITY),
        NodeOp::Select(_, a, b) | NodeOp::Binary(BinaryOp::Add, a, b) => only_masks(dag, a) && only_masks(dag, b),
        NodeOp::Cast(a) => dag.node(a).dtype.is_float() && only_masks(dag, a),
        _ => false,
    }
}
