//! `x[...]`: new axes of blocks, elements and slices of tuples.
use super::Evaluator;
use crate::error::{Eval, type_error, unsupported, value_error};
use crate::syntax::tree::{Expr, ExprKind};
use crate::value::{Constant, Tensor, Tuple, Value};
use std::rc::Rc;

impl Evaluator<'_> {
    /// An index, whose slices are values of their own.
    pub(super) fn index(&mut self, expr: &Expr) -> Eval<Value> {
        match &expr.kind {
            ExprKind::Tuple(items) => {
                let values: Vec<Value> = items.iter().map(|item| self.index(item)).collect::<Eval<_>>()?;
                Ok(Value::tuple(values))
            }
            ExprKind::Slice { lower, upper, step } => {
                if let Some(step) = step.as_ref().filter(|step| step.kind != ExprKind::None) {
                    let error = unsupported("a slice with a step is not supported", "take the elements one by one");
                    return Err(self.located(error, step.span));
                }
                let bound = |evaluator: &mut Self, end: &Option<Box<Expr>>| -> Eval<Option<i128>> {
                    let Some(end) = end else { return Ok(None) };
                    let value = evaluator.expr(end)?;
                    if value.is_none() {
                        return Ok(None);
                    }
                    let known = value.constant().and_then(Constant::as_int);
                    known.map(Some).ok_or_else(|| {
                        let error = type_error(
                            format!("a slice ends at {}", value.describe()),
                            "ends are integers that are known at compile time",
                        );
                        evaluator.located(error, end.span)
                    })
                };
                let (lower, upper) = (bound(self, lower)?, bound(self, upper)?);
                Ok(Value::Slice { whole: lower.is_none() && upper.is_none(), lower, upper })
            }
            _ => self.expr(expr),
        }
    }

    pub(super) fn subscript(&mut self, base: &Value, index: &Value) -> Eval<Value> {
        match base {
            Value::Tensor(tensor) => self.block_subscript(tensor, index).map(Value::Tensor),
            Value::Tuple(tuple) => tuple_subscript(tuple, index),
            Value::Constant(Constant::Str(text)) => {
                let characters = text.chars().map(|c| Value::str(c.to_string())).collect();
                tuple_subscript(&Tuple { values: Rc::new(characters), fields: None }, index)
            }
            other => Err(type_error(
                format!("{} has no elements", other.describe()),
                "blocks take `[None, :]`, and tuples an index",
            )),
        }
    }

    fn block_subscript(&mut self, tensor: &Tensor, index: &Value) -> Eval<Tensor> {
        let single = [index.clone()];
        let items: &[Value] = match index {
            Value::Tuple(tuple) => &tuple.values,
            _ => &single,
        };
        let named = items.iter().filter(|item| matches!(item, Value::Slice { .. })).count();
        let rank = tensor.ty.shape.len();
        let mut result = tensor.clone();
        let mut axis = 0;
        for item in items {
            match item {
                Value::Constant(Constant::None) => {
                    result = self.emit.expand_dims(&result, axis)?;
                    axis += 1;
                }
                Value::Slice { whole: true, .. } => axis += 1,
                Value::Ellipsis => axis += rank.saturating_sub(named),
                other => {
                    return Err(unsupported(
                        format!("{} is no index of a block", other.describe()),
                        "`None`, `:` and `...` are; use `gather`, or a sum over a mask, for elements",
                    ));
                }
            }
        }
        if named > rank {
            return Err(value_error(
                format!("{} has {rank} axes, and the index names {named}", tensor.ty),
                "write one `:` for each axis",
            ));
        }
        Ok(result)
    }
}

fn tuple_subscript(tuple: &Tuple, index: &Value) -> Eval<Value> {
    let count = tuple.values.len() as i128;
    let from_front = |at: i128| if at < 0 { at + count } else { at };
    match index {
        Value::Constant(constant) if constant.as_int().is_some() => {
            let at = constant.as_int().map_or(0, from_front);
            usize::try_from(at).ok().and_then(|at| tuple.values.get(at)).cloned().ok_or_else(|| {
                value_error(
                    format!("element {} of a tuple of {count}", constant.repr()),
                    "its elements are numbered from 0",
                )
            })
        }
        Value::Slice { lower, upper, .. } => {
            let end = |bound: &Option<i128>, open: i128| from_front(bound.unwrap_or(open)).clamp(0, count) as usize;
            let (from, to) = (end(lower, 0), end(upper, count));
            let values = tuple.values.get(from..to.max(from)).unwrap_or_default().to_vec();
            Ok(Value::tuple(values))
        }
        other => Err(type_error(
            format!("{} is no index of a tuple", other.describe()),
            "indices of tuples are integers that are known at compile time",
        )),
    }
}
