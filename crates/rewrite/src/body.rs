//! Builds a kernel's body: its members as a graph, whose inputs are the values it reads and whose outputs are the
//! values it stores.
use crate::cost::OpTypes;
use crate::dag::Dag;
use crate::region::{kind, main_output};
use crate::regions::Region;
use kiln_graph::{BinaryOp, Graph, Op, Scalar, Source, Type, UnaryOp, ValueId};
use kiln_plan::{Cost, Form, Hardware, Kernel, KernelKind, Precision, Reason, Stage};
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

/// The kernel of a region, without its buffers and reasons; and its body.
pub fn kernel(dag: &Dag, k: &Region, name: &str, stage: Stage, machine: &Hardware) -> (Kernel, Body) {
    let mut b = body(dag, k, name);
    let precision_of = |&m: &usize| {
        let op = OpTypes::of(dag, m);
        let multiplies = !op.args.is_empty() && op.is_f32_matmul();
        let attention = op.attention_sizes(machine).map(|sizes| sizes.precision);
        attention.or(multiplies.then(|| machine.f32_matmul(op.op).0))
    };
    let precision = k.members.iter().find_map(precision_of).filter(|_| stage == Stage::Run).unwrap_or(Precision::Exact);
    let planned = Kernel {
        name: name.to_string(),
        kind: kind(dag, &k.members),
        stage,
        body: std::mem::take(&mut b.graph),
        inputs: vec![],
        outputs: vec![],
        cost: match kind(dag, &k.members) {
            KernelKind::Fallback => Cost { us: None, roofline_us: None, ..k.price.cost() },
            _ => k.price.cost(),
        },
        precision,
        rounding: machine.contract.rounding(),
        batch_invariant: machine.contract.batch_invariant,
        form: None,
        schedule: None,
        reason: Reason::default(),
    };
    (planned, b)
}

/// The forms by which a region can be computed: those that rules give all that it multiplies, and that can fuse what
/// else it computes.
pub fn forms(dag: &Dag, k: &Region) -> Vec<Form> {
    let mut all = k.members.iter().map(|&m| &dag.nodes[m].value.forms).filter(|forms| !forms.is_empty());
    let Some(first) = all.next() else { return vec![] };
    let others: Vec<&Vec<Form>> = all.collect();
    let fits = |form: &&Form| form.can_fuse(k.price.needs) && others.iter().all(|forms| forms.contains(form));
    first.iter().filter(fits).copied().collect()
}
