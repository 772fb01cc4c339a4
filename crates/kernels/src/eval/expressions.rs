//! Expressions.
use super::constants;
use super::{Evaluator, format};
use crate::error::{Eval, type_error, unsupported};
use crate::ops::arithmetic;
use crate::syntax::tree::{BinaryOp, CompareOp, Expr, ExprKind, LogicalOp, UnaryOp};
use crate::value::{Constant, Tuple, Value};
use std::rc::Rc;

/// The two operands as they are written.
pub struct Sides<'t> {
    pub left: &'t Expr,
    pub right: &'t Expr,
}

impl Evaluator<'_> {
    pub(super) fn expr(&mut self, expr: &Expr) -> Eval<Value> {
        self.deeper(expr.span, |evaluator| evaluator.expr_inner(expr))
    }

    fn expr_inner(&mut self, expr: &Expr) -> Eval<Value> {
        match &expr.kind {
            ExprKind::Name(_) | ExprKind::Attribute(..) => self.name_or_attribute(expr),
            ExprKind::None => Ok(Value::NONE),
            ExprKind::Bool(value) => Ok(Value::bool(*value)),
            ExprKind::Int(value) => Ok(Value::int(*value)),
            ExprKind::Float(value) => Ok(Value::Constant(Constant::Float(*value))),
            ExprKind::Str(text) => Ok(Value::str(&text[..])),
            ExprKind::Ellipsis => Ok(Value::Ellipsis),
            ExprKind::Format(parts) => {
                let text = format::text(self, parts)?;
                Ok(Value::str(text))
            }
            ExprKind::Tuple(items) | ExprKind::List(items) => self.items(items),
            ExprKind::Starred(_) => Err(unsupported("`*` stands only in calls and tuples", "name the values")),
            ExprKind::Unary(op, operand) => {
                let value = self.expr(operand)?;
                self.unary(*op, &value)
            }
            ExprKind::Binary(op, left, right) => {
                let (a, b) = (self.expr(left)?, self.expr(right)?);
                self.binary(*op, &a, &b, &Sides { left, right })
            }
            ExprKind::Logical(op, operands) => self.logical(*op, operands),
            ExprKind::Compare { left, rest } => self.compare(left, rest),
            ExprKind::Conditional { test, body, otherwise } => self.conditional(test, body, otherwise),
            ExprKind::Call { function, arguments } => self.call_expr(function, arguments, expr.span),
            ExprKind::Subscript(base, index) => {
                let base = self.expr(base)?;
                let index = self.index(index)?;
                self.subscript(&base, &index)
            }
            ExprKind::Slice { .. } => Err(unsupported("a slice stands only in `x[...]`", "index a block or a tuple")),
            ExprKind::Assign { name, value } => {
                let value = self.expr(value)?;
                let value = self.run_time(value)?;
                self.frame_mut()?.scope.set(name, value.clone(), expr.span);
                Ok(value)
            }
            ExprKind::ListOf { element, target, iterable, conditions } => {
                self.list_of(element, target, iterable, conditions)
            }
            ExprKind::Unsupported(name) => Err(unsupported(
                format!("{name} is not supported in a kernel"),
                "kernels are made of numbers, blocks, tuples, calls and operators",
            )),
        }
    }

    fn items(&mut self, items: &[Expr]) -> Eval<Value> {
        let mut values = vec![];
        for item in items {
            match &item.kind {
                ExprKind::Starred(inner) => {
                    let inner = self.expr(inner)?;
                    values.extend(self.sequence(&inner)?);
                }
                _ => values.push(self.expr(item)?),
            }
        }
        Ok(Value::tuple(values))
    }

    /// The values of a tuple.
    pub(super) fn sequence(&self, value: &Value) -> Eval<Vec<Value>> {
        match value {
            Value::Tuple(tuple) => Ok(tuple.values.to_vec()),
            other => {
                Err(type_error(format!("{} is not a tuple", other.describe()), "a tuple or a list is needed here"))
            }
        }
    }

    fn list_of(&mut self, element: &Expr, target: &Expr, iterable: &Expr, conditions: &[Expr]) -> Eval<Value> {
        let values = self.expr(iterable)?;
        let values = self.sequence(&values).map_err(|error| self.located(error, iterable.span))?;
        let outer = self.frame()?.scope.clone();
        let mut results = vec![];
        'values: for value in values {
            match &target.kind {
                ExprKind::Name(name) => self.frame_mut()?.scope.set(name, value, target.span),
                _ => self.assign_to(target, value)?,
            }
            for condition in conditions {
                let keep = self.expr(condition)?;
                match keep.truth()? {
                    Some(true) => {}
                    Some(false) => continue 'values,
                    None => {
                        let error =
                            type_error("the condition of a list is known only at run time", "use constexpr values");
                        return Err(self.located(error, condition.span));
                    }
                }
            }
            results.push(self.expr(element)?);
        }
        self.frame_mut()?.scope = outer;
        Ok(Value::tuple(results))
    }

    fn unary(&mut self, op: UnaryOp, value: &Value) -> Eval<Value> {
        match value {
            Value::Tensor(tensor) => arithmetic::unary(&mut self.emit, op, tensor).map(Value::Tensor),
            Value::Constant(constant) => constants::unary(op, constant).map(Value::Constant),
            other if op == UnaryOp::Not => Ok(Value::bool(!other.truth()?.unwrap_or(true))),
            other => Err(type_error(
                format!("`{}` is not defined on {}", op.symbol(), other.describe()),
                "it takes numbers and blocks",
            )),
        }
    }

    pub(super) fn binary(&mut self, op: BinaryOp, a: &Value, b: &Value, sides: &Sides) -> Eval<Value> {
        match (a, b) {
            (Value::Constant(a), Value::Constant(b)) => constants::binary(op, a, b).map(Value::Constant),
            (Value::Tuple(a), Value::Tuple(b)) if op == BinaryOp::Add => {
                Ok(Value::tuple(a.values.iter().chain(b.values.iter()).cloned().collect()))
            }
            (Value::Tuple(tuple), Value::Constant(count)) | (Value::Constant(count), Value::Tuple(tuple))
                if op == BinaryOp::Mul =>
            {
                repeated(tuple, count)
            }
            _ => {
                if let Some(sum) = self.sum_with_dot(op, a, b, sides)? {
                    return Ok(sum);
                }
                arithmetic::binary(&mut self.emit, op, a, b).map(Value::Tensor)
            }
        }
    }

    /// `acc + dot(a, b)` adds in the dot, where the product has no other use.
    fn sum_with_dot(&mut self, op: BinaryOp, a: &Value, b: &Value, sides: &Sides) -> Eval<Option<Value>> {
        let (Value::Tensor(x), Value::Tensor(y)) = (a, b) else { return Ok(None) };
        if op != BinaryOp::Add {
            return Ok(None);
        }
        let is_call = |side: &Expr| matches!(side.kind, ExprKind::Call { .. });
        if is_call(sides.right)
            && let Some(sum) = self.emit.dot_added_to(y, x)?
        {
            return Ok(Some(Value::Tensor(sum)));
        }
        if is_call(sides.left)
            && let Some(sum) = self.emit.dot_added_to(x, y)?
        {
            return Ok(Some(Value::Tensor(sum)));
        }
        Ok(None)
    }

    fn logical(&mut self, op: LogicalOp, operands: &[Expr]) -> Eval<Value> {
        let mut run_time = vec![];
        let mut last = Value::NONE;
        for operand in operands {
            last = self.expr(operand)?;
            match last.truth()? {
                None => run_time.extend(last.tensor().cloned()),
                Some(truth) if truth == (op == LogicalOp::Or) => return Ok(last),
                Some(_) => {}
            }
        }
        let emitted = match op {
            LogicalOp::And => kiln_block::BinaryOp::And,
            LogicalOp::Or => kiln_block::BinaryOp::Or,
        };
        let mut values = run_time.into_iter();
        let Some(mut result) = values.next() else { return Ok(last) };
        for value in values {
            result = arithmetic::logical(&mut self.emit, emitted, &result, &value)?;
        }
        Ok(Value::Tensor(result))
    }

    fn compare(&mut self, left: &Expr, rest: &[(CompareOp, Expr)]) -> Eval<Value> {
        let [(op, right)] = rest else {
            return Err(unsupported("chained comparisons are not supported", "write `(a < b) & (b < c)`"));
        };
        let (a, b) = (self.expr(left)?, self.expr(right)?);
        self.compare_values(*op, &a, &b)
    }

    pub(super) fn compare_values(&mut self, op: CompareOp, a: &Value, b: &Value) -> Eval<Value> {
        let run_time = a.tensor().is_some() || b.tensor().is_some();
        match op {
            CompareOp::Is | CompareOp::IsNot => {
                let same = !run_time && constants::same(a, b);
                Ok(Value::bool(same == (op == CompareOp::Is)))
            }
            CompareOp::In | CompareOp::NotIn => {
                let found = constants::contains(b, a)?;
                Ok(Value::bool(found == (op == CompareOp::In)))
            }
            _ if run_time && !a.is_none() && !b.is_none() => {
                arithmetic::compare(&mut self.emit, op, a, b).map(Value::Tensor)
            }
            _ => constants::compare(op, a, b).map(Value::bool),
        }
    }
}

fn repeated(tuple: &Tuple, count: &Constant) -> Eval<Value> {
    let count = count.as_int().and_then(|count| usize::try_from(count.max(0)).ok()).filter(|count| *count <= 1 << 16);
    let Some(count) = count else {
        return Err(type_error("a tuple is not repeated so often", "multiply it by a small integer"));
    };
    let values: Vec<Value> = (0..count).flat_map(|_| tuple.values.iter().cloned()).collect();
    Ok(Value::Tuple(Tuple { values: Rc::new(values), fields: None }))
}
