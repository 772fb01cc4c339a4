//! Least and largest value of integers, and what arithmetic makes of them.
//!
//! [`typed_bounds`] bounds values as their types compute them: where a sum may wrap, it has any value of its type.
use crate::{BinaryOp, BlockProgram, Const, Elem, Grid, InstData, Op, Type, UnaryOp, Value};
use std::collections::HashMap;

/// Least and largest value, over the integers.
pub type Bound = (i128, i128);

pub fn union(a: Bound, b: Bound) -> Bound {
    (a.0.min(b.0), a.1.max(b.1))
}

/// Bound of a result over the integers; some ops need the bound of one operand alone.
pub fn arithmetic(op: BinaryOp, a: Option<Bound>, b: Option<Bound>) -> Option<Bound> {
    match op {
        BinaryOp::Rem => {
            let (_, hi) = b.filter(|b| b.0 > 0)?;
            let a = a.unwrap_or((-hi, hi));
            return Some((if a.0 >= 0 { 0 } else { (1 - hi).max(a.0) }, (hi - 1).min(a.1.max(0))));
        }
        BinaryOp::And => {
            let masks = [a, b].into_iter().flatten().filter(|m| m.0 >= 0).map(|m| m.1);
            return masks.min().map(|most| (0, most));
        }
        _ => {}
    }
    let (a, b) = (a?, b?);
    let corners = |f: &dyn Fn(i128, i128) -> Option<i128>| {
        let all = [f(a.0, b.0)?, f(a.0, b.1)?, f(a.1, b.0)?, f(a.1, b.1)?];
        Some((all.into_iter().min()?, all.into_iter().max()?))
    };
    match op {
        BinaryOp::Add => Some((a.0 + b.0, a.1 + b.1)),
        BinaryOp::Sub => Some((a.0 - b.1, a.1 - b.0)),
        BinaryOp::Mul => corners(&|x, y| x.checked_mul(y)),
        BinaryOp::Div if b.0 > 0 => corners(&|x, y| x.checked_div(y)),
        BinaryOp::Min => Some((a.0.min(b.0), a.1.min(b.1))),
        BinaryOp::Max => Some((a.0.max(b.0), a.1.max(b.1))),
        BinaryOp::Shr if b.0 >= 0 && b.1 < 64 => corners(&|x, y| Some(x >> y)),
        _ => None,
    }
}

/// Bounds of integers of at most 64 bits whose type has a sign, and of shorter ones, for any launch.
pub struct TypedBounds(HashMap<Value, Bound>);

pub fn typed_bounds(k: &BlockProgram) -> TypedBounds {
    let mut bounds = TypedBounds(HashMap::new());
    for p in &k.params {
        if let Some(limits) = limits(k.ty(p.value)) {
            let (least, most) = p.facts.range((limits.0 as i64, limits.1 as i64));
            bounds.0.insert(p.value, (least.into(), most.into()));
        }
    }
    k.walk(&mut |_, d| bounds.learn(k, d));
    bounds
}

impl TypedBounds {
    /// Whether the exact result of an instruction may exceed its type.
    pub fn may_wrap(&self, k: &BlockProgram, d: &InstData) -> bool {
        let sums = matches!(
            d.op,
            Op::Binary(BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul) | Op::Unary(UnaryOp::Neg | UnaryOp::Abs)
        );
        let limits = d.results.first().and_then(|v| limits(k.ty(*v)));
        let exact = self.exact(k, d);
        sums && limits.is_none_or(|limits| exact.is_none_or(|b| b.0 < limits.0 || b.1 > limits.1))
    }
    fn learn(&mut self, k: &BlockProgram, d: &InstData) {
        if let (Op::For, [lo, hi, ..], Some(index)) =
            (&d.op, &d.args[..], d.regions.first().and_then(|r| r.params.first()))
            && let (Some(lo), Some(hi)) = (self.of(k, *lo), self.of(k, *hi))
        {
            self.0.insert(*index, (lo.0, (hi.1 - 1).max(lo.0)));
        }
        let [v] = d.results[..] else { return };
        if let (Some(b), Some(limits)) = (self.exact(k, d), limits(k.ty(v)))
            && b.0 >= limits.0
            && b.1 <= limits.1
        {
            self.0.insert(v, b);
        }
    }
    fn of(&self, k: &BlockProgram, v: Value) -> Option<Bound> {
        self.0.get(&v).copied().or_else(|| limits(k.ty(v)))
    }
    /// The result's bound over the integers, by those of its operands.
    fn exact(&self, k: &BlockProgram, d: &InstData) -> Option<Bound> {
        let arg = |n: usize| self.of(k, *d.args.get(n)?);
        match &d.op {
            Op::Const(Const::Int(c)) => Some((i128::from(*c), i128::from(*c))),
            Op::ProgramId(axis) => Some((0, (grid_size(k, *axis) - 1).max(0))),
            Op::NumPrograms(axis) => Some((k.grid.along(*axis).map_or(1, |n| n as i128), grid_size(k, *axis))),
            Op::Iota => Some((0, k.ty(*d.results.first()?).count() as i128 - 1)),
            Op::Splat
            | Op::Broadcast
            | Op::ExpandDims(_)
            | Op::Reshape
            | Op::Permute(_)
            | Op::Part { .. }
            | Op::Split(_)
            | Op::Cast(_)
            | Op::MultipleOf(_)
            | Op::ConvertLayout => arg(0),
            Op::Unary(UnaryOp::Neg) => arg(0).map(|a| (-a.1, -a.0)),
            Op::Unary(UnaryOp::Abs) => arg(0).map(|a| (a.0.max(-a.1).max(0), a.1.max(-a.0))),
            Op::Join | Op::Cat { .. } => Some(union(arg(0)?, arg(1)?)),
            Op::Select => Some(union(arg(1)?, arg(2)?)),
            Op::Binary(op) => arithmetic(*op, arg(0), arg(1)),
            _ => None,
        }
    }
}

fn grid_size(k: &BlockProgram, axis: u8) -> i128 {
    k.grid.along(axis).map_or(Grid::MOST.into(), |n| n as i128)
}

/// What numbers a type holds; an unsigned one of 64 bits has no bound here.
fn limits(ty: &Type) -> Option<Bound> {
    match ty {
        Type::Block { elem: Elem::Bool, .. } => Some((0, 1)),
        Type::Block { elem: Elem::U64, .. } => None,
        Type::Block { elem, .. } => elem.int_range().map(|(least, most)| (least.into(), most.into())),
        _ => None,
    }
}
