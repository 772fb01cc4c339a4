//! Builds a kernel's body: its members as a graph, whose inputs are the values it reads and whose outputs are the
//! values it stores.
use crate::dag::Dag;
use crate::planner::Region;
use crate::region::main_output;
use kiln_graph::{BinaryOp, Graph, Op, Scalar, Source, Type, UnaryOp, ValueId};
use std::collections::BTreeMap;

/// A body with the values it stores, in the order of its outputs; its inputs are the values the kernel reads, in the
/// kernel's order.
pub struct Body {
    pub graph: Graph,
    pub stores: Vec<usize>,
    /// Every member of the kernel with its value in the body.
    pub values: Vec<(usize, ValueId)>,
}

pub fn body(dag: &Dag, k: &Region, name: &str) -> Body {
    let mut g = Graph::new(name);
    let (mut at, mut values) = (BTreeMap::<usize, ValueId>::new(), vec![]);
    for &i in &k.reads {
        at.insert(i, g.input(dag.ty(i).clone()));
    }
    for &m in &k.members {
        let node = &dag.nodes[m];
        let args: Vec<ValueId> = dag.args(m).iter().filter_map(|a| at.get(a).copied()).collect();
        let before = g.len();
        let v = match &node.value.op {
            Op::BatchNorm { eps } => batch_norm(&mut g, *eps, &node.value.ty, &args),
            op => g.push(op.clone(), node.value.ty.clone(), &args),
        };
        if node.value.source != Source::default() {
            for new in before..g.len() {
                g.set_source(ValueId(new as u32), node.value.source.clone());
            }
        }
        at.insert(m, v);
        values.push((m, v));
    }
    // The first output defines the iteration space.
    let main = main_output(dag, &k.members, &k.outs);
    let rest = k.outs.iter().copied().filter(|&o| Some(o) != main);
    let stores: Vec<usize> = main.into_iter().chain(rest).collect();
    g.outputs = stores.iter().filter_map(|o| at.get(o).copied()).collect();
    Body { graph: g, stores, values }
}

/// Batch normalisation in primitives, computed in the accumulation type: `(x - mean) · rsqrt(variance + eps) · gain +
/// bias`.
fn batch_norm(g: &mut Graph, eps: Scalar, ty: &Type, args: &[ValueId]) -> ValueId {
    let wide = ty.dtype.compute();
    let mut channel = vec![1; ty.rank()];
    if let (Some(c), Some(&n)) = (channel.get_mut(1), ty.shape.get(1)) {
        *c = n;
    }
    let cast = |g: &mut Graph, v: ValueId| {
        let t = Type::new(wide, g.shape(v).to_vec());
        if g.dtype(v) == wide { v } else { g.push(Op::Cast(wide), t, &[v]) }
    };
    let per_channel: Vec<ValueId> = args[1..]
        .iter()
        .map(|&a| {
            let a = cast(g, a);
            g.push(Op::Reshape(channel.clone()), Type::new(wide, channel.clone()), &[a])
        })
        .collect();
    let (full, row) = (Type::new(wide, ty.shape.clone()), Type::new(wide, channel));
    let [gain, bias, mean, variance] = per_channel[..] else { return args[0] };
    let x = cast(g, args[0]);
    let eps = g.push(Op::Const(Scalar::Float(eps.as_f64())), Type::new(wide, []), &[]);
    let variance = g.push(Op::Binary(BinaryOp::Add), row.clone(), &[variance, eps]);
    let scale = g.push(Op::Unary(UnaryOp::Rsqrt), row, &[variance]);
    let mut y = g.push(Op::Binary(BinaryOp::Sub), full.clone(), &[x, mean]);
    for (op, other) in [(BinaryOp::Mul, scale), (BinaryOp::Mul, gain), (BinaryOp::Add, bias)] {
        y = g.push(Op::Binary(op), full.clone(), &[y, other]);
    }
    if wide == ty.dtype { y } else { g.push(Op::Cast(ty.dtype), ty.clone(), &[y]) }
}
