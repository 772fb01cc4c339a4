//! Statements.
use super::{Evaluator, Flow};
use crate::error::{Eval, type_error, unsupported};
use crate::names::{dotted, first_return};
use crate::ops::report;
use crate::syntax::tree::{BinaryOp, Expr, ExprKind, Stmt, StmtKind, WithItem};
use crate::value::{Callee, Value};

/// Statements that come after those that are walked, innermost first.
pub struct Rest<'t> {
    pub body: &'t [Stmt],
    pub outer: Option<&'t Rest<'t>>,
}

impl Evaluator<'_> {
    /// Walks statements. `rest` is what follows them in the function: an early return under a run-time condition walks
    /// that too, and gives `Returned`.
    pub(super) fn block(&mut self, body: &[Stmt], rest: Option<&Rest>) -> Eval<Flow> {
        for (at, stmt) in body.iter().enumerate() {
            let after = Rest { body: &body[at + 1..], outer: rest };
            match self.deeper(stmt.span, |evaluator| evaluator.statement(stmt, &after))? {
                Flow::Next => {}
                returned => return Ok(returned),
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, stmt: &Stmt, after: &Rest) -> Eval<Flow> {
        match &stmt.kind {
            StmtKind::Pass => {}
            StmtKind::Expr(expr) => {
                let value = self.expr(expr)?;
                self.keep_hint(expr, value)?;
            }
            StmtKind::Assign { targets, value } => self.assign(targets, value)?,
            StmtKind::Augmented { target, op, value } => self.augment(target, *op, value)?,
            StmtKind::Annotated { target, annotation, value } => self.annotate(target, annotation, value.as_ref())?,
            StmtKind::If { test, body, otherwise } => return self.if_statement(test, [body, otherwise], after),
            StmtKind::For { target, iterable, body, has_else } => {
                self.refuse_else(*has_else)?;
                return self.for_statement(target, iterable, body);
            }
            StmtKind::While { test, body, has_else } => {
                self.refuse_else(*has_else)?;
                return self.while_statement(test, body);
            }
            StmtKind::With { items, body } => return self.with_statement(items, body),
            StmtKind::Return(value) => {
                if self.frame()?.loops > 0 {
                    return Err(unsupported(
                        "`return` in a loop is not supported",
                        "set a flag, and test it after the loop",
                    ));
                }
                let value = match value {
                    Some(value) => self.expr(value)?,
                    None => Value::NONE,
                };
                return Ok(Flow::Returned(value));
            }
            StmtKind::Assert { test, message } => self.assert_statement(test, message.as_ref())?,
            StmtKind::Unsupported(name) => return Err(no_statement(name)),
        }
        Ok(Flow::Next)
    }

    /// `multiple_of(x, …)` as a statement says it of `x`.
    fn keep_hint(&mut self, expr: &Expr, value: Value) -> Eval<()> {
        let ExprKind::Call { function, arguments } = &expr.kind else { return Ok(()) };
        let Some(ExprKind::Name(name)) = arguments.first().map(|argument| &argument.value.kind) else { return Ok(()) };
        let is_variable = self.frame()?.scope.get(name).is_some();
        if is_variable && matches!(self.expr(function)?, Value::Callee(Callee::Primitive("multiple_of"))) {
            self.frame_mut()?.scope.set(name, value, expr.span);
        }
        Ok(())
    }

    fn refuse_else(&self, has_else: bool) -> Eval<()> {
        match has_else {
            true => Err(unsupported("`else` after a loop is not supported", "write it after the loop")),
            false => Ok(()),
        }
    }

    fn assign(&mut self, targets: &[Expr], value: &Expr) -> Eval<()> {
        let value = self.expr(value)?;
        for target in targets {
            self.assign_to(target, value.clone())?;
        }
        Ok(())
    }

    /// Gives a name, or the names of a tuple, a value.
    pub(super) fn assign_to(&mut self, target: &Expr, value: Value) -> Eval<()> {
        match &target.kind {
            ExprKind::Name(name) => {
                let constant = self.frame_mut()?.scope.annotated.remove(name);
                let value = if constant { value } else { self.run_time(value)? };
                self.frame_mut()?.scope.set(name, value, target.span);
                Ok(())
            }
            ExprKind::Tuple(items) | ExprKind::List(items) => {
                let values = self.sequence(&value).map_err(|error| self.located(error, target.span))?;
                if values.len() != items.len() {
                    let (names, count) = (items.len(), values.len());
                    let error = type_error(
                        format!("{count} values are assigned to {names} names"),
                        "give each value a name; `_` is one for values that are not used",
                    );
                    return Err(self.located(error, target.span));
                }
                items.iter().zip(values).try_for_each(|(item, value)| self.assign_to(item, value))
            }
            ExprKind::Subscript(base, index) => {
                let container = self.expr(base)?;
                let index = self.index(index)?;
                let assigned = self.assign_elements(base, &container, &index, &value);
                assigned.map_err(|error| self.located(error, target.span))
            }
            ExprKind::Attribute(..) => {
                Err(self.located(unsupported("attributes are not assigned", "use a variable"), target.span))
            }
            _ => Err(self.located(unsupported("this is not assigned to", "assign to a name"), target.span)),
        }
    }

    fn augment(&mut self, target: &Expr, op: BinaryOp, value: &Expr) -> Eval<()> {
        let whole = target.span.to(value.span);
        let sides = super::expressions::Sides { left: target, right: value };
        // The index of an element is evaluated once.
        if let ExprKind::Subscript(base, index) = &target.kind {
            let container = self.expr(base)?;
            let index = self.index(index)?;
            let old = self.subscript(&container, &index).map_err(|error| self.located(error, target.span))?;
            let change = self.expr(value)?;
            let new = self.binary(op, &old, &change, &sides).map_err(|error| self.located(error, whole))?;
            let assigned = self.assign_elements(base, &container, &index, &new);
            return assigned.map_err(|error| self.located(error, target.span));
        }
        let old = self.expr(target)?;
        let change = self.expr(value)?;
        let new = self.binary(op, &old, &change, &sides).map_err(|error| self.located(error, whole))?;
        self.assign_to(target, new)
    }

    fn annotate(&mut self, target: &Expr, annotation: &Expr, value: Option<&Expr>) -> Eval<()> {
        let ExprKind::Name(name) = &target.kind else {
            return Err(unsupported("only names are annotated", "assign to a variable first"));
        };
        match (is_constexpr(annotation), value) {
            (true, None) => {
                self.frame_mut()?.scope.annotated.insert(name.clone());
                Ok(())
            }
            (true, Some(value)) => {
                let value = self.expr(value)?;
                self.frame_mut()?.scope.set(name, value, target.span);
                Ok(())
            }
            (false, Some(value)) => {
                let value = self.expr(value)?;
                self.assign_to(target, value)
            }
            (false, None) => Ok(()),
        }
    }

    fn assert_statement(&mut self, test: &Expr, message: Option<&Expr>) -> Eval<()> {
        let condition = self.expr(test)?;
        let known = condition.truth()?;
        let message = match known {
            Some(true) => None,
            _ => message.map(|message| self.expr(message)).transpose()?,
        };
        if known.is_none() && self.options.debug {
            let text = message.as_ref().and_then(Value::constant).map_or(String::new(), |c| c.text());
            let text = self.with_place(&text);
            return report::assert(&mut self.emit, &text, &condition, &Value::NONE);
        }
        if known == Some(false) {
            let text = message.as_ref().and_then(Value::constant).map_or(String::new(), |c| format!(": {}", c.text()));
            return Err(crate::KernelError::new(
                crate::ErrorKind::Assertion,
                format!("the assertion does not hold{text}"),
            )
            .with_hint("the condition is known at compile time"));
        }
        Ok(())
    }

    fn with_statement(&mut self, items: &[WithItem], body: &[Stmt]) -> Eval<Flow> {
        if let Some(span) = first_return(body) {
            return Err(self.located(unsupported("`return` in a `with` is not supported", "return after it"), span));
        }
        for item in items {
            let ExprKind::Call { function, .. } = &item.context.kind else {
                return Err(no_statement("with"));
            };
            let named = dotted(function).and_then(|path| path.last().cloned()).unwrap_or_default();
            if !matches!(&named[..], "async_task" | "async_tasks" | "warp_specialize" | "range") {
                return Err(no_statement("with"));
            }
        }
        self.block(body, None)
    }
}

/// Whether an annotation is `constexpr`, by any path, or as a string.
pub fn is_constexpr(annotation: &Expr) -> bool {
    match &annotation.kind {
        ExprKind::Str(text) => text.rsplit('.').next() == Some("constexpr"),
        _ => dotted(annotation).is_some_and(|path| path.last().is_some_and(|name| name == "constexpr")),
    }
}

/// Whether an annotation says that a pointer is only read through: `tl.const`, or a signature such as `*kfp32`.
pub fn is_const(annotation: &Expr) -> bool {
    match &annotation.kind {
        ExprKind::Str(text) => text.rsplit('.').next() == Some("const") || text.starts_with("*k"),
        _ => dotted(annotation).is_some_and(|path| path.last().is_some_and(|name| name == "const")),
    }
}

fn no_statement(name: &str) -> Box<crate::KernelError> {
    let hint = match name {
        "break" | "continue" => "put the rest of the body under an `if`, or use `while` with a condition",
        "def" | "class" => "move it to the level of the module, and decorate it as a kernel",
        "import" | "from" => "import at the level of the module",
        "raise" | "try" => "use `static_assert` or `device_assert`",
        "match" => "use `if` and `elif`",
        "global" | "nonlocal" => "pass the value as an argument",
        _ => "kernels are made of assignments, calls, `if`, `for` and `while`",
    };
    unsupported(format!("`{name}` is not supported in a kernel"), hint)
}
