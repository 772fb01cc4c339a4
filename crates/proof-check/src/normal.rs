//! The theory of views, casts and broadcasts: equal forms of a term that follow from forms of its operands. All of it
//! is exact.
//!
//! - a view that moves nothing and keeps the type is its operand;
//! - a reshape of a reshape, and a permutation of a permutation, are one;
//! - a permutation that moves axes of size 1 alone is a reshape;
//! - a cast to the operand's type is the operand; a cast of a cast that loses nothing is one cast;
//! - a pointwise op broadcasts operands itself;
//! - batch normalisation is `(x - mean) · rsqrt(variance + eps) · gain + bias`, computed in the accumulation type
//!   (kernels are written so);
//! - a concatenation whose first operands are concatenated along the same axis has their operands.
use crate::terms::Terms;
use kiln_graph::{BinaryOp, DType, Op, Scalar, Type, UnaryOp, infer::infer, ops::Class};

/// Most equal forms that are added for one term.
const MOST: usize = 24;

/// Most terms to which the theory is applied after a step.
const MOST_SETTLED: usize = 4000;

enum Form {
    Term(usize),
    Op(Op, Vec<usize>),
}

/// A term, with the equal forms that follow from the classes of its operands.
pub fn add(t: &mut Terms, op: Op, ty: Type, args: Vec<usize>) -> usize {
    let known = t.len();
    let term = t.insert(op, ty, args);
    if term >= known {
        settle(t, term);
    }
    term
}

/// Applies the theory to terms whose operands have new forms, until nothing is new or the limit is met: what it leaves
/// out is not shown.
pub fn saturate(t: &mut Terms) {
    for _ in 0..MOST_SETTLED {
        let Some(term) = t.take_touched() else { return };
        settle(t, term);
    }
    while t.take_touched().is_some() {}
}

/// Joins a term with its equal forms, and these with theirs.
fn settle(t: &mut Terms, term: usize) {
    let (mut todo, mut count) = (vec![term], 0);
    while let Some(x) = todo.pop() {
        if let Op::BatchNorm { eps } = t.term(x).op
            && let Some(primitives) = batch_norm(t, x, eps)
        {
            t.join(x, primitives);
        }
        for form in forms(t, x) {
            let to = match form {
                Form::Term(to) => to,
                Form::Op(op, args) => {
                    let ty = t.ty(x).clone();
                    let to = t.insert(op, ty, args);
                    if count < MOST && !t.same(to, x) {
                        todo.push(to);
                        count += 1;
                    }
                    to
                }
            };
            t.join(x, to);
        }
    }
}

fn forms(t: &Terms, x: usize) -> Vec<Form> {
    let node = t.term(x);
    let (Some(&a), ty) = (node.args.first(), &node.ty) else { return vec![] };
    let mut found = vec![];
    if Class::of(&node.op) == Class::View && t.ty(a) == ty {
        let moves = match &node.op {
            Op::Permute(p) => !in_order(p, &ty.shape),
            Op::Flip(axes) => axes.iter().any(|&a| ty.shape[a] != 1),
            _ => false,
        };
        if !moves {
            return vec![Form::Term(a)];
        }
    }
    let inner = |test: &dyn Fn(&Op) -> bool| -> Vec<(Op, usize)> {
        let members = t.members(a).iter().map(|m| t.term(*m)).filter(|n| test(&n.op));
        members.map(|n| (n.op.clone(), n.args[0])).collect()
    };
    match &node.op {
        Op::Reshape(_) => {
            for (_, y) in inner(&|o| matches!(o, Op::Reshape(_))) {
                found.push(if t.ty(y) == ty { Form::Term(y) } else { Form::Op(node.op.clone(), vec![y]) });
            }
        }
        Op::Permute(p) if in_order(p, &t.ty(a).shape) => {
            found.push(Form::Op(Op::Reshape(ty.shape.clone()), vec![a]));
        }
        Op::Permute(p) => {
            for (q, y) in inner(&|o| matches!(o, Op::Permute(_))) {
                if let Op::Permute(q) = q {
                    found.push(Form::Op(Op::Permute(p.iter().map(|&i| q[i]).collect()), vec![y]));
                }
            }
        }
        Op::Cast(to) if t.ty(a).dtype == *to => found.push(Form::Term(a)),
        Op::Cast(_) => {
            for (_, y) in inner(&|o| matches!(o, Op::Cast(_))) {
                if keeps(t.ty(y).dtype, t.ty(a).dtype) {
                    found.push(Form::Op(node.op.clone(), vec![y]));
                }
            }
        }
        Op::Concat { axis } => {
            for m in t.members(a).iter().map(|m| t.term(*m)) {
                if m.op == (Op::Concat { axis: *axis }) {
                    found.push(Form::Op(node.op.clone(), [&m.args[..], &node.args[1..]].concat()));
                }
            }
        }
        Op::Unary(_) => {}
        op if Class::of(op) == Class::Pointwise => {
            for i in 0..node.args.len() {
                for m in t.members(node.args[i]).iter().map(|m| t.term(*m)) {
                    if !matches!(m.op, Op::Broadcast(_)) {
                        continue;
                    }
                    let mut args = node.args.clone();
                    args[i] = m.args[0];
                    let types: Vec<&Type> = args.iter().map(|a| t.ty(*a)).collect();
                    if infer(op, &types).as_ref() == Ok(ty) {
                        found.push(Form::Op(op.clone(), args));
                    }
                }
            }
        }
        _ => {}
    }
    found
}

/// Batch normalisation in primitives; `None` if an operand is missing.
fn batch_norm(t: &mut Terms, x: usize, eps: Scalar) -> Option<usize> {
    let (ty, args) = (t.ty(x).clone(), t.term(x).args.clone());
    let wide = ty.dtype.compute();
    let mut channel = vec![1; ty.rank()];
    *channel.get_mut(1)? = *ty.shape.get(1)?;
    let (full, row) = (Type::new(wide, ty.shape.clone()), Type::new(wide, channel.clone()));
    let mut operands = vec![];
    for a in args {
        let as_wide = Type::new(wide, t.ty(a).shape.clone());
        let a = if t.ty(a).dtype == wide { a } else { add(t, Op::Cast(wide), as_wide, vec![a]) };
        let shaped = Op::Reshape(channel.clone());
        operands.push(if operands.is_empty() { a } else { add(t, shaped, row.clone(), vec![a]) });
    }
    let [x, gain, bias, mean, variance] = operands[..] else { return None };
    let eps = add(t, Op::Const(Scalar::Float(eps.as_f64())), Type::new(wide, []), vec![]);
    let variance = add(t, Op::Binary(BinaryOp::Add), row.clone(), vec![variance, eps]);
    let scale = add(t, Op::Unary(UnaryOp::Rsqrt), row, vec![variance]);
    let mut y = add(t, Op::Binary(BinaryOp::Sub), full.clone(), vec![x, mean]);
    for (op, other) in [(BinaryOp::Mul, scale), (BinaryOp::Mul, gain), (BinaryOp::Add, bias)] {
        y = add(t, Op::Binary(op), full.clone(), vec![y, other]);
    }
    Some(if wide == ty.dtype { y } else { add(t, Op::Cast(ty.dtype), ty, vec![y]) })
}

/// Whether a permutation moves axes of size 1 alone.
fn in_order(p: &[usize], shape: &[usize]) -> bool {
    let moved: Vec<usize> = p.iter().copied().filter(|&i| shape[i] != 1).collect();
    moved.windows(2).all(|w| w[0] < w[1])
}

/// Whether each number of one type is a number of the other.
fn keeps(from: DType, to: DType) -> bool {
    if let (Some(from), Some(to)) = (from.format(), to.format()) {
        return to.holds(from);
    }
    let range = |d: DType| if d == DType::Bool { Some((0, 1)) } else { d.int_range() };
    matches!((range(from), range(to)), (Some(a), Some(b)) if to != DType::Bool && b.0 <= a.0 && a.1 <= b.1)
        || from == to
}
