//! The program that the planner works on: one form per value, operands before users, frozen values marked.
//!
//! Takes: a [`Graph`] as it is, or the forms chosen from the e-graph. Gives: nodes by index, in the same way for both.
//! A frozen value (computed from parameters only) is a leaf of the run stage and a result of the load stage, so one
//! [`Program`] has two [`Dag`]s, one per stage, over the same indices.
use crate::concat;
use kiln_graph::ops::Class;
use kiln_graph::{BinaryOp, Graph, Op, Source, Type, UnaryOp, ValueId};
use kiln_plan::{Form, Stage};
use std::collections::BTreeSet;
use std::rc::Rc;

/// A value without its operands. Shared between the many programs that are tried.
#[derive(Clone, Debug)]
pub struct Value {
    pub op: Op,
    pub ty: Type,
    pub source: Source,
    /// Computed from parameters and constants only.
    pub frozen: bool,
    /// Rules that gave the value this form.
    pub rules: Vec<&'static str>,
    /// Values of the graph that it equals, ascending; none if a rule made it.
    pub of: Vec<ValueId>,
    /// By which templates a GPU can compute it, if it multiplies.
    pub forms: Vec<Form>,
}

/// A value with its operands, which are earlier nodes.
#[derive(Clone, Debug)]
pub struct Node {
    pub value: Rc<Value>,
    pub args: Vec<usize>,
}
impl Node {
    /// Leaves it no other form, if it has this one.
    pub fn use_form(&mut self, form: &Form) {
        if self.value.forms.contains(form) {
            self.value = Rc::new(Value { forms: vec![*form], ..Value::clone(&self.value) });
        }
    }
}

/// Nodes, operands before users, and those that are the graph's outputs, in order.
#[derive(Clone, Debug, Default)]
pub struct Program {
    pub nodes: Vec<Node>,
    pub roots: Vec<usize>,
}

impl Program {
    /// The graph as written.
    pub fn of_graph(g: &Graph) -> Program {
        let (mut nodes, mut at): (Vec<Node>, Vec<usize>) = (Vec::with_capacity(g.len()), Vec::with_capacity(g.len()));
        let push = |nodes: &mut Vec<Node>, op: &Op, ty: Type, source: &Source, of: Vec<ValueId>, args: Vec<usize>| {
            let frozen = is_frozen(op, args.iter().map(|&a| nodes[a].value.frozen));
            let value = Value { op: op.clone(), ty, source: source.clone(), frozen, rules: vec![], of, forms: vec![] };
            nodes.push(Node { value: Rc::new(value), args });
            nodes.len() - 1
        };
        for v in g.values() {
            let n = g.node(v);
            let mut args: Vec<usize> = g.args(v).iter().map(|a| at[a.0 as usize]).collect();
            if let Op::Concat { axis } = n.op {
                args = concat::grouped(args, |group| {
                    let types: Vec<&Type> = group.iter().map(|&a| &nodes[a].value.ty).collect();
                    let ty = concat::ty(axis, &types);
                    push(&mut nodes, &n.op, ty, &n.source, vec![], group.to_vec())
                });
            }
            at.push(push(&mut nodes, &n.op, n.ty.clone(), &n.source, vec![v], args));
        }
        Program { nodes, roots: g.outputs.iter().map(|o| at[o.0 as usize]).collect() }
    }
}

/// Is the result of `op` known at load time, given which operands are?
pub fn is_frozen(op: &Op, mut args: impl Iterator<Item = bool>) -> bool {
    !matches!(op, Op::Input(_) | Op::Fallback(_)) && args.all(|a| a)
}

/// Most operations of a step from positions to a mask that is repeated for every score: a comparison, a sum, a choice.
/// Functions cost more than loading their results.
const CHEAP: f64 = 2.;

/// For each value, whether kernels compute it rather than read it from memory, although it is known at load time: masks
/// of attention and indices of takes, computed from positions and constants alone, element by element and cheaply; and
/// bounds of an index, which make checks of it needless.
fn of_positions(p: &Program, class: &[Class]) -> Vec<bool> {
    let plain = |c: Class| matches!(c, Class::Pointwise | Class::View | Class::Generator);
    let op = |v: usize| &p.nodes[v].value.op;
    let exact = |v: usize| p.nodes[v].value.ty.dtype.is_int();
    let mut cheap: Vec<bool> = Vec::with_capacity(p.nodes.len());
    for (v, (n, &c)) in p.nodes.iter().zip(class).enumerate() {
        // A quotient of positions by a number is a multiplication.
        let constant = |a: &usize| matches!(op(*a), Op::Const(_));
        let quotient = exact(v) && matches!(op(v), Op::Binary(BinaryOp::FloorDiv | BinaryOp::Remainder));
        let cheap_op =
            c != Class::Pointwise || op(v).weight() <= CHEAP || quotient && n.args.last().is_some_and(constant);
        cheap.push(plain(c) && cheap_op && n.args.iter().all(|&a| cheap[a]));
    }
    let mut todo: Vec<usize> = vec![];
    let mut out = vec![false; p.nodes.len()];
    for n in &p.nodes {
        match n.value.op {
            Op::Attention { .. } => todo.extend(n.args.get(3..).unwrap_or_default()),
            Op::Take { .. } | Op::Gather { .. } => {
                let mut at = n.args[1];
                todo.push(at);
                let bounded = |at: usize| match (op(at), &p.nodes[at].args[..]) {
                    (Op::Binary(BinaryOp::Max | BinaryOp::Min), [a, b]) if matches!(op(*b), Op::Const(_)) => Some(*a),
                    (Op::Unary(UnaryOp::Relu), [a]) => Some(*a),
                    _ => None,
                };
                while let Some(inner) = bounded(at).filter(|_| exact(at)) {
                    (out[at], at) = (true, inner);
                }
            }
            _ => {}
        }
    }
    let mut seen = vec![false; p.nodes.len()];
    while let Some(v) = todo.pop() {
        if plain(class[v]) && !std::mem::replace(&mut seen[v], true) {
            out[v] |= cheap[v];
            todo.extend(&p.nodes[v].args);
        }
    }
    out
}

/// The part of a program that one stage computes.
#[derive(Clone, Debug)]
pub struct Dag {
    pub nodes: Vec<Node>,
    pub class: Vec<Class>,
    /// Values to be stored, each once, ascending.
    pub roots: Vec<usize>,
    /// Values that a constraint keeps in memory, ascending.
    pub kept: Vec<usize>,
    /// All values that the roots depend on in this stage, ascending.
    pub live: Vec<usize>,
    pub stage: Stage,
    /// For each value, whether no kernel reads it from memory: [`of_positions`].
    indexed: Vec<bool>,
}

impl Dag {
    /// The run: frozen values are leaves, but views of them and constants are still read through, and masks and indices
    /// are computed from positions.
    pub fn run(p: &Program) -> Dag {
        let mut class: Vec<Class> = p.nodes.iter().map(|n| Class::of(&n.value.op)).collect();
        let indexed = of_positions(p, &class);
        for (i, (c, n)) in class.iter_mut().zip(&p.nodes).enumerate() {
            if n.value.frozen && !c.is_free() && !indexed[i] {
                *c = Class::Leaf;
            }
        }
        let roots: BTreeSet<usize> = p.roots.iter().copied().collect();
        for &r in roots.iter().filter(|&&r| p.nodes[r].value.frozen) {
            class[r] = Class::Leaf;
        }
        Dag::new(p, class, roots, Stage::Run, indexed)
    }
    /// The load: computes the frozen values `wanted`.
    pub fn load(p: &Program, wanted: impl IntoIterator<Item = usize>) -> Dag {
        let class = p.nodes.iter().map(|n| Class::of(&n.value.op)).collect();
        let indexed = vec![false; p.nodes.len()];
        Dag::new(p, class, wanted.into_iter().collect(), Stage::Load, indexed)
    }
    fn new(p: &Program, class: Vec<Class>, roots: BTreeSet<usize>, stage: Stage, indexed: Vec<bool>) -> Dag {
        let roots: Vec<usize> = roots.into_iter().collect();
        let mut dag = Dag { nodes: p.nodes.clone(), class, roots, kept: vec![], live: vec![], stage, indexed };
        let (mut seen, mut todo) = (vec![false; dag.nodes.len()], dag.roots.clone());
        while let Some(v) = todo.pop() {
            if !std::mem::replace(&mut seen[v], true) {
                todo.extend(dag.args(v));
            }
        }
        dag.live = (0..dag.nodes.len()).filter(|&v| seen[v]).collect();
        dag
    }
    /// Operands of `v` in this stage: none for a leaf.
    pub fn args(&self, v: usize) -> &[usize] {
        if self.class[v] == Class::Leaf { &[] } else { &self.nodes[v].args }
    }
    pub fn op(&self, v: usize) -> &Op {
        &self.nodes[v].value.op
    }
    pub fn ty(&self, v: usize) -> &Type {
        &self.nodes[v].value.ty
    }
    pub fn shape(&self, v: usize) -> &[usize] {
        &self.nodes[v].value.ty.shape
    }
    pub fn count(&self, v: usize) -> f64 {
        self.ty(v).shape.iter().map(|&d| d as f64).product()
    }
    pub fn bytes(&self, v: usize) -> f64 {
        self.count(v) * self.ty(v).dtype.bytes() as f64
    }
    /// Must the value be stored, whether or not another kernel reads it?
    pub fn is_root(&self, v: usize) -> bool {
        self.roots.binary_search(&v).is_ok() || self.kept.binary_search(&v).is_ok()
    }
    /// Whether the value needs no kernel of its own if its users can compute it inline.
    pub fn is_free(&self, v: usize) -> bool {
        self.class[v].is_free() || self.indexed[v]
    }
    pub fn frozen(&self, v: usize) -> bool {
        self.nodes[v].value.frozen
    }
}
