//! Adds values to the e-graph in normal form. Simplifications that are always better are made here and need no rule.
//!
//! Normalised: chains of views of one kind, views that change nothing, explicit broadcasts of operands that a pointwise
//! op broadcasts itself, casts to a wider type and back. All of this is exact.
use crate::certificate::Event;
use crate::concat;
use crate::constants::{self, Known};
use crate::language::{ClassData, ENode, OpKey, Values, op};
use egg::Id;
use kiln_graph::decompose::decompose_op;
use kiln_graph::ops::Class;
use kiln_graph::{BinaryOp, DType, Graph, Op, Scalar, Source, Type, UnaryOp, infer::infer};
use std::collections::BTreeMap;

/// The e-graph under construction.
#[derive(Default)]
pub struct Builder {
    pub g: Values,
    /// Source location in the model of each class: that of the value for which it was created.
    pub source: BTreeMap<Id, Source>,
    /// Source location given to new classes.
    pub origin: Source,
    /// Columns of the machine's widest tile of a matmul; 0: rules that compute by tiles do not apply.
    pub tile: usize,
    /// Classes that were new, with the heads of their terms.
    pub fresh: Vec<(Id, u32)>,
    /// What the e-graph was told, if a certificate is wanted.
    pub log: Option<Vec<Event>>,
}

/// Does every number of type `from` have an exact image in `to`?
pub fn widens(from: DType, to: DType) -> bool {
    use DType::*;
    if let (Some(from), Some(to)) = (from.format(), to.format()) {
        return to.holds(from);
    }
    from == to
        || matches!(
            (from, to),
            (Bool | U8, I16 | I32 | I64) | (Bool, I8) | (I8, I16 | I32 | I64) | (I16, I32 | I64) | (I32, I64)
        )
}

impl Builder {
    /// The graph as e-classes: one id per value.
    pub fn import(graph: &Graph) -> (Builder, Vec<Id>) {
        Builder::default().of_graph(graph)
    }
    /// The same, with a log for a certificate.
    pub fn logged(graph: &Graph) -> (Builder, Vec<Id>) {
        Builder { log: Some(vec![]), ..Builder::default() }.of_graph(graph)
    }
    fn of_graph(self, graph: &Graph) -> (Builder, Vec<Id>) {
        let mut b = self;
        let mut ids: Vec<Id> = Vec::with_capacity(graph.len());
        for (v, known) in graph.values().zip(constants::known(graph)) {
            let node = graph.node(v);
            b.origin = node.source.clone();
            if let Some(id) = known.and_then(|known| b.known(&known, &node.ty, &ids)) {
                b.log(|| Event::Value { value: v.0, class: id });
                ids.push(id);
                continue;
            }
            let args: Vec<Id> = graph.args(v).iter().map(|a| ids[a.0 as usize]).collect();
            let serial = matches!(node.op, Op::Fallback(_)).then_some(v.0);
            let id = b.typed(node.op.clone(), node.ty.clone(), serial, args.clone());
            if node.op.is_attention_of_steps()
                && let Some(steps) = b.decomposed(&node.op, &args)
            {
                // The host has no kernel for it.
                b.equate(id, steps);
                let (op, ty) = (node.op.clone(), node.ty.clone());
                b.log(|| Event::Equal { why: "decomposition", op, ty, leaves: args.clone(), args, form: steps });
            }
            b.log(|| Event::Value { value: v.0, class: id });
            ids.push(id);
        }
        b.g.rebuild();
        (b, ids)
    }

    /// A composite as the ops that it is made of.
    fn decomposed(&mut self, op: &Op, args: &[Id]) -> Option<Id> {
        let types: Vec<Type> = args.iter().map(|a| self.ty(*a).clone()).collect();
        let part = decompose_op(op, &types).ok()??;
        let mut ids: Vec<Id> = vec![];
        for v in part.values() {
            let id = match part.op(v) {
                Op::Input(i) => *args.get(*i as usize)?,
                op => {
                    let args = part.args(v).iter().map(|a| ids[a.0 as usize]).collect();
                    self.typed(op.clone(), part.ty(v).clone(), None, args)
                }
            };
            ids.push(id);
        }
        part.outputs.first().map(|v| ids[v.0 as usize])
    }
    /// A value in its simpler form.
    fn known(&mut self, known: &Known, ty: &Type, ids: &[Id]) -> Option<Id> {
        let id = match known {
            Known::Same(v) => ids[v.0 as usize],
            Known::Uniform(n) => {
                let n = self.typed(Op::Const(*n), Type::new(ty.dtype, []), None, vec![]);
                if ty.shape.is_empty() { n } else { self.add(Op::Broadcast(ty.shape.clone()), &[n])? }
            }
            Known::Position { axis, first } => {
                let at = self.typed(Op::Iota { axis: *axis }, ty.clone(), None, vec![]);
                if *first == 0 {
                    return Some(at);
                }
                let first = self.typed(Op::Const(Scalar::Int(*first)), Type::new(ty.dtype, []), None, vec![]);
                self.binary(BinaryOp::Add, at, first)?
            }
        };
        (self.ty(id) == ty).then_some(id)
    }
    pub fn fact(&self, x: Id) -> &ClassData {
        &self.g[x].data
    }
    pub fn ty(&self, x: Id) -> &Type {
        &self.g[x].data.ty
    }
    pub fn shape(&self, x: Id) -> &[usize] {
        &self.g[x].data.ty.shape
    }
    /// A form of `x` whose op passes `test`.
    pub fn form<T>(&self, x: Id, test: impl Fn(&Op, &[Id]) -> Option<T>) -> Option<T> {
        self.g[x].nodes.iter().find_map(|t| test(op(&self.g, t), &t.args))
    }

    /// `op` on `args`; `None` if they do not fit it.
    pub fn add(&mut self, op: Op, args: &[Id]) -> Option<Id> {
        let types: Vec<&Type> = args.iter().map(|a| self.ty(*a)).collect();
        let ty = infer(&op, &types).ok()?;
        Some(self.typed(op, ty, None, args.to_vec()))
    }
    pub fn unary(&mut self, u: UnaryOp, x: Id) -> Option<Id> {
        self.add(Op::Unary(u), &[x])
    }
    pub fn binary(&mut self, b: BinaryOp, x: Id, y: Id) -> Option<Id> {
        self.add(Op::Binary(b), &[x, y])
    }
    pub fn constant(&mut self, dtype: DType, v: f64) -> Id {
        self.typed(Op::Const(Scalar::Float(v)), Type::new(dtype, []), None, vec![])
    }
    pub fn reshape(&mut self, x: Id, to: &[usize]) -> Option<Id> {
        self.add(Op::Reshape(to.to_vec()), &[x])
    }
    pub fn permute(&mut self, x: Id, perm: &[usize]) -> Option<Id> {
        self.add(Op::Permute(perm.to_vec()), &[x])
    }
    /// The last two axes exchanged.
    pub fn transpose(&mut self, x: Id) -> Option<Id> {
        let n = self.shape(x).len();
        let mut p: Vec<usize> = (0..n).collect();
        p.swap(n.checked_sub(2)?, n - 1);
        self.permute(x, &p)
    }
    /// Merges the classes of two equal values. False if they are one class already, or if their types differ.
    pub fn equate(&mut self, a: Id, b: Id) -> bool {
        self.ty(a) == self.ty(b) && self.g.union(a, b)
    }

    /// Adds an event to the log, if there is one.
    pub fn log(&mut self, event: impl FnOnce() -> Event) {
        if let Some(log) = &mut self.log {
            log.push(event());
        }
    }

    fn typed(&mut self, mut op: Op, ty: Type, serial: Option<u32>, mut args: Vec<Id>) -> Id {
        if let Op::Concat { axis } = op {
            args = concat::grouped(args, |group| {
                let types: Vec<&Type> = group.iter().map(|a| self.ty(*a)).collect();
                let ty = concat::ty(axis, &types);
                self.typed(Op::Concat { axis }, ty, None, group.to_vec())
            });
        }
        let asked = self.log.is_some().then(|| (op.clone(), args.clone()));
        // Classes may be views of each other, so the simplification might not terminate without a limit.
        for _ in 0..MAX_STEPS {
            match self.normal(&op, &ty, &mut args) {
                Some(Normal::Is(x)) => {
                    if let (Some(asked), Some(log)) = (asked, &mut self.log) {
                        log.push(Event::Node { asked, normal: None, ty, class: x });
                    }
                    return x;
                }
                Some(Normal::Becomes(o, a)) => (op, args) = (o, a),
                None => break,
            }
        }
        let logged = asked.map(|asked| (asked, (op.clone(), args.clone()), ty.clone()));
        let head = self.g.analysis.key(OpKey { op, ty, serial, template: None });
        let known = self.g.number_of_classes();
        let id = self.g.add(ENode { key: head, args });
        if self.g.number_of_classes() > known {
            self.source.insert(id, self.origin.clone());
            self.fresh.push((id, head));
        }
        if let (Some((asked, normal, ty)), Some(log)) = (logged, &mut self.log) {
            log.push(Event::Node { asked, normal: Some(normal), ty, class: id });
        }
        id
    }

    /// A simpler form of `op` on `args`, if there is one. May replace operands by equal ones.
    fn normal(&self, o: &Op, ty: &Type, args: &mut [Id]) -> Option<Normal> {
        let x = args.first().copied()?;
        if Class::of(o) == Class::View && self.ty(x) == ty {
            let moves = match o {
                Op::Permute(p) => !in_order(p, &ty.shape),
                Op::Flip(axes) => axes.iter().any(|&a| ty.shape[a] != 1),
                _ => false,
            };
            if !moves {
                return Some(Normal::Is(x));
            }
        }
        match o {
            Op::Reshape(to) => {
                let inner = self.form(x, |o, a| matches!(o, Op::Reshape(_)).then(|| a[0]))?;
                let back = self.ty(inner) == ty;
                Some(if back { Normal::Is(inner) } else { Normal::Becomes(Op::Reshape(to.clone()), vec![inner]) })
            }
            Op::Permute(p) if in_order(p, self.shape(x)) => {
                Some(Normal::Becomes(Op::Reshape(ty.shape.clone()), vec![x]))
            }
            Op::Permute(p) => {
                let inner = self.form(x, |o, a| if let Op::Permute(q) = o { Some((q.clone(), a[0])) } else { None });
                let (q, y) = inner?;
                Some(Normal::Becomes(Op::Permute(p.iter().map(|&i| q[i]).collect()), vec![y]))
            }
            Op::Cast(to) => {
                if self.ty(x).dtype == *to {
                    return Some(Normal::Is(x));
                }
                let inner = self.form(x, |o, a| matches!(o, Op::Cast(_)).then(|| a[0]))?;
                let exact = widens(self.ty(inner).dtype, self.ty(x).dtype);
                exact.then(|| Normal::Becomes(Op::Cast(*to), vec![inner]))
            }
            Op::Unary(_) => None,
            o if Class::of(o) == Class::Pointwise => {
                self.drop_broadcasts(o, ty, args);
                None
            }
            _ => None,
        }
    }
    /// Removes explicit broadcasts of operands that the op can broadcast itself, as long as the result keeps its shape.
    fn drop_broadcasts(&self, o: &Op, ty: &Type, args: &mut [Id]) {
        for i in 0..args.len() {
            let Some(inner) = self.form(args[i], |o, a| matches!(o, Op::Broadcast(_)).then(|| a[0])) else { continue };
            let kept = std::mem::replace(&mut args[i], inner);
            let types: Vec<&Type> = args.iter().map(|a| self.ty(*a)).collect();
            if infer(o, &types).as_ref() != Ok(ty) {
                args[i] = kept;
            }
        }
    }
}

/// Most simplification steps on the way to a normal form.
const MAX_STEPS: usize = 8;

enum Normal {
    Is(Id),
    Becomes(Op, Vec<Id>),
}

/// Does the permutation move axes of size 1 only?
fn in_order(p: &[usize], shape: &[usize]) -> bool {
    let moved: Vec<usize> = p.iter().copied().filter(|&i| shape[i] != 1).collect();
    moved.windows(2).all(|w| w[0] < w[1])
}
