//! `if`, and conditional expressions.
use super::merge::{alike, check_returns, flatten, rebuild};
use super::scope::Scope;
use super::statements::Rest;
use super::{Evaluator, Flow};
use crate::error::{Eval, type_error, unsupported};
use crate::names::first_return;
use crate::ops::arithmetic::to_truth;
use crate::ops::shape::item;
use crate::syntax::tree::{Expr, Stmt};
use crate::value::{Tensor, Value};
use std::collections::BTreeSet;

/// A condition: known while compiling, or not.
pub(super) enum Condition {
    Known(bool),
    RunTime(Tensor),
}

impl Evaluator<'_> {
    pub(super) fn condition(&mut self, test: &Expr) -> Eval<Condition> {
        let value = self.expr(test)?;
        let tensor = match &value {
            Value::Tensor(tensor) => tensor.clone(),
            _ => {
                let known = value.truth().map_err(|error| self.located(error, test.span))?;
                return Ok(Condition::Known(known.unwrap_or(true)));
            }
        };
        let scalar = |evaluator: &mut Self| {
            if tensor.ty.count() > 1 {
                return Err(type_error(
                    format!("the condition is {}, and has no single truth", tensor.ty),
                    "use `where(condition, a, b)` for blocks, or reduce the condition",
                ));
            }
            let single = item(&mut evaluator.emit, &tensor)?;
            to_truth(&mut evaluator.emit, &single)
        };
        scalar(self).map(Condition::RunTime).map_err(|error| self.located(error, test.span))
    }

    pub(super) fn if_statement(&mut self, test: &Expr, sides: [&[Stmt]; 2], after: &Rest) -> Eval<Flow> {
        match self.condition(test)? {
            Condition::Known(true) => self.block(sides[0], Some(after)),
            Condition::Known(false) => self.block(sides[1], Some(after)),
            Condition::RunTime(condition) => {
                let returns = sides.iter().find_map(|side| first_return(side));
                match returns {
                    None => self.if_without_return(&condition, sides),
                    Some(span) if self.frame()?.loops > 0 => Err(self.located(
                        unsupported("`return` in a loop is not supported", "set a flag, and test it after the loop"),
                        span,
                    )),
                    Some(_) => self.if_with_return(&condition, sides, after),
                }
            }
        }
    }

    fn if_without_return(&mut self, condition: &Tensor, sides: [&[Stmt]; 2]) -> Eval<Flow> {
        let before = self.frame()?.scope.clone();
        let mut walked = vec![];
        for side in sides {
            self.frame_mut()?.scope = before.clone();
            self.emit.open(&[])?;
            self.block(side, None)?;
            let region = self.emit.suspend();
            walked.push((region, std::mem::take(&mut self.frame_mut()?.scope)));
        }
        let (Some((else_region, else_scope)), Some((then_region, then_scope))) = (walked.pop(), walked.pop()) else {
            return Ok(Flow::Next);
        };
        let (mut merged, differing) = meet(&then_scope, &else_scope);
        let leaves = |scope: &Scope| -> Vec<Tensor> {
            differing.iter().filter_map(|name| scope.get(name)).flat_map(|slot| flatten(&slot.value)).collect()
        };
        let branches = [(then_region, leaves(&then_scope)), (else_region, leaves(&else_scope))];
        let mut results = self.emit.if_else(condition, branches)?.into_iter();
        for name in &differing {
            if let Some(slot) = then_scope.get(name) {
                merged.set(name, rebuild(&slot.value, &mut results)?, slot.span);
            }
        }
        self.frame_mut()?.scope = merged;
        Ok(Flow::Next)
    }

    /// Each side goes on to the end of the function, and gives what it returns.
    fn if_with_return(&mut self, condition: &Tensor, sides: [&[Stmt]; 2], after: &Rest) -> Eval<Flow> {
        let before = self.frame()?.scope.clone();
        let mut walked = vec![];
        for side in sides {
            self.frame_mut()?.scope = before.clone();
            self.emit.open(&[])?;
            let value = self.through_the_end(side, after)?;
            walked.push((self.emit.suspend(), value));
        }
        let (Some((else_region, else_value)), Some((then_region, then_value))) = (walked.pop(), walked.pop()) else {
            return Ok(Flow::Next);
        };
        self.emit.resume(then_region);
        let then_returned = self.in_form_of(&then_value, &else_value)?;
        let then_region = self.emit.suspend();
        self.emit.resume(else_region);
        let else_returned = self.in_form_of(&else_value, &then_value)?;
        let else_region = self.emit.suspend();
        check_returns(&then_returned, &else_returned)?;
        let branches = [(then_region, flatten(&then_returned)), (else_region, flatten(&else_returned))];
        let mut results = self.emit.if_else(condition, branches)?.into_iter();
        Ok(Flow::Returned(rebuild(&then_returned, &mut results)?))
    }

    fn through_the_end(&mut self, body: &[Stmt], after: &Rest) -> Eval<Value> {
        if let Flow::Returned(value) = self.block(body, Some(after))? {
            return Ok(value);
        }
        let mut rest = Some(after);
        while let Some(part) = rest {
            if let Flow::Returned(value) = self.block(part.body, part.outer)? {
                return Ok(value);
            }
            rest = part.outer;
        }
        Ok(Value::NONE)
    }

    pub(super) fn conditional(&mut self, test: &Expr, body: &Expr, otherwise: &Expr) -> Eval<Value> {
        let condition = match self.condition(test)? {
            Condition::Known(true) => return self.expr(body),
            Condition::Known(false) => return self.expr(otherwise),
            Condition::RunTime(condition) => condition,
        };
        let mut walked = vec![];
        for side in [body, otherwise] {
            self.emit.open(&[])?;
            let value = self.expr(side)?;
            let value = self.run_time(value)?;
            walked.push((self.emit.suspend(), value));
        }
        let (Some((else_region, else_value)), Some((then_region, then_value))) = (walked.pop(), walked.pop()) else {
            return Ok(Value::NONE);
        };
        alike(&then_value, &else_value).map_err(|differ| {
            let error = type_error(
                format!("Ternary expression with dynamic condition has inconsistent type: {differ}"),
                "cast one of them with `.to(...)`, or use `where`",
            );
            self.located(error, body.span.to(otherwise.span))
        })?;
        let branches = [(then_region, flatten(&then_value)), (else_region, flatten(&else_value))];
        let mut results = self.emit.if_else(&condition, branches)?.into_iter();
        rebuild(&then_value, &mut results)
    }
}

/// The variables after a branch, and those whose run-time values depend on the side.
fn meet(then_scope: &Scope, else_scope: &Scope) -> (Scope, Vec<String>) {
    let mut merged = Scope::default();
    let mut differing = vec![];
    let names: BTreeSet<&String> = then_scope.iter().chain(else_scope.iter()).map(|(name, _)| name).collect();
    for name in names {
        let (then_slot, else_slot) = match (then_scope.usable(name), else_scope.usable(name)) {
            (Some(then_slot), Some(else_slot)) => (then_slot, else_slot),
            (None, None) => {
                let slot = then_scope.get(name).or(else_scope.get(name));
                slot.into_iter().for_each(|slot| merged.set(name, slot.value.clone(), slot.span));
                continue;
            }
            (Some(slot), None) | (None, Some(slot)) => {
                let why = format!("`{name}` is assigned on one side of an `if` only");
                merged.set_missing(name, slot.span, why, "assign it before the `if`, or on both sides");
                continue;
            }
        };
        if let Err(differ) = alike(&then_slot.value, &else_slot.value) {
            let why = format!("Mismatched type for {name} between the sides of an `if`: {differ}");
            merged.set_missing(name, then_slot.span, why, "give both sides one type, such as with `.to(...)`");
        } else if flatten(&then_slot.value) == flatten(&else_slot.value) {
            merged.set(name, then_slot.value.clone(), then_slot.span);
        } else {
            differing.push(name.clone());
        }
    }
    (merged, differing)
}
