//! `for` and `while`.
//!
//! A run-time loop carries the variables that its body assigns and that have a value before it; emission drops those
//! that no iteration changes. Variables that are first assigned in the body end with it.
use super::branches::Condition;
use super::merge::{alike, flatten, leaf_types, rebuild};
use super::scope::{Scope, Slot};
use super::{Evaluator, Flow};
use crate::emit::{Carried, loop_counter};
use crate::error::{Eval, internal, type_error, unsupported, value_error};
use crate::names::assigned;
use crate::ops::arithmetic::index_type;
use crate::ops::convert::{cast_number, to_tensor};
use crate::ops::shape::item;
use crate::syntax::Span;
use crate::syntax::tree::{Expr, ExprKind, Stmt};
use crate::types::{Number, TensorType};
use crate::value::{Builtin, Callee, Constant, Tensor, Value};
use kiln_block::BinaryOp;

/// A static loop of more iterations is refused: each is emitted.
const MAX_UNROLLED: i128 = 1 << 14;

/// A variable that a loop carries, as it was before.
struct CarriedName {
    name: String,
    before: Slot,
}

/// Bounds of a run-time loop in the type that it counts in, and the type of its variable.
struct Bounds {
    from: Tensor,
    to: Tensor,
    step: Tensor,
    index: Number,
}

/// What a `for` runs over.
enum Iteration {
    /// Known values, one copy of the body each.
    Unrolled(Vec<Value>),
    /// From, to, step.
    RunTime(Box<[Value; 3]>),
}

impl Evaluator<'_> {
    pub(super) fn for_statement(&mut self, target: &Expr, iterable: &Expr, body: &[Stmt]) -> Eval<Flow> {
        let iteration = self.iteration(iterable).map_err(|error| self.located(error, iterable.span))?;
        match iteration {
            Iteration::Unrolled(values) => self.unrolled(target, values, body),
            Iteration::RunTime(bounds) => {
                let ExprKind::Name(name) = &target.kind else {
                    return Err(unsupported("a loop over a range has one variable", "write `for i in range(n)`"));
                };
                self.run_time_for(name, target.span, *bounds, iterable.span, body)?;
                Ok(Flow::Next)
            }
        }
    }

    fn iteration(&mut self, iterable: &Expr) -> Eval<Iteration> {
        if let ExprKind::Call { function, arguments } = &iterable.kind {
            let callee = self.expr(function)?;
            let named = match &callee {
                Value::Callee(Callee::Primitive(name)) => name,
                Value::Callee(Callee::Builtin(Builtin::Range)) => "range",
                _ => "",
            };
            if matches!(named, "range" | "static_range") {
                let arguments = self.arguments(arguments)?;
                let bounds = range_bounds(arguments.positional, arguments.named)?;
                return if named == "range" && !self.frame()?.compile_time {
                    Ok(Iteration::RunTime(Box::new(bounds)))
                } else {
                    unrolled_range(&bounds)
                };
            }
        }
        match self.expr(iterable)? {
            Value::Tuple(tuple) => Ok(Iteration::Unrolled(tuple.values.to_vec())),
            other => Err(unsupported(
                format!("a loop over {} is not supported", other.describe()),
                "loop over `range`, `static_range` or a tuple",
            )),
        }
    }

    fn unrolled(&mut self, target: &Expr, values: Vec<Value>, body: &[Stmt]) -> Eval<Flow> {
        for value in values {
            match &target.kind {
                ExprKind::Name(name) => self.frame_mut()?.scope.set(name, value, target.span),
                _ => self.assign_to(target, value)?,
            }
            if self.frame()?.compile_time {
                match self.block(body, None)? {
                    Flow::Next => continue,
                    returned => return Ok(returned),
                }
            }
            self.frame_mut()?.loops += 1;
            self.block(body, None)?;
            self.frame_mut()?.loops -= 1;
        }
        Ok(Flow::Next)
    }

    /// A `while` whose condition and variables are known while compiling.
    fn known_while(&mut self, test: &Expr, body: &[Stmt]) -> Eval<Flow> {
        for _ in 0..MAX_UNROLLED {
            match self.condition(test)? {
                Condition::Known(true) => {}
                Condition::Known(false) => return Ok(Flow::Next),
                Condition::RunTime(_) => {
                    return Err(type_error(
                        "the condition of a compile-time loop is known only at run time",
                        "a constexpr function works on constants",
                    ));
                }
            }
            if let returned @ Flow::Returned(_) = self.block(body, None)? {
                return Ok(returned);
            }
        }
        Err(unsupported(
            format!("a compile-time loop runs more than {MAX_UNROLLED} times"),
            "check that its condition becomes false",
        ))
    }

    fn run_time_for(
        &mut self,
        name: &str,
        span: Span,
        [from, to, step]: [Value; 3],
        bounds_span: Span,
        body: &[Stmt],
    ) -> Eval<()> {
        let known_step = step.constant().and_then(Constant::as_int);
        if known_step == Some(0) {
            return Err(
                self.located(value_error("the step of a range is 0", "count in steps of 1 or more"), bounds_span)
            );
        }
        let descending = known_step.is_some_and(|step| step < 0);
        let step = match known_step {
            Some(known) if descending => Value::int(-known),
            _ => step,
        };
        let (low, high) = if descending { (to, from) } else { (from, to) };
        let bounds = self.bounds([low, high, step]).map_err(|error| self.located(error, bounds_span))?;
        let Bounds { from, to, step, index } = bounds;

        let before = self.frame()?.scope.clone();
        let carried = self.carried(&before, body, Some(name));
        let parameters = self.open_body(&before, &carried, std::slice::from_ref(&from.ty))?;
        let mut counter = parameters[0].clone();
        if descending {
            counter = self.emit.binary(BinaryOp::Sub, &to, &counter)?;
            counter = self.emit.binary(BinaryOp::Add, &counter, &from)?;
        }
        let index = self.emit.cast(&counter, index)?;
        self.frame_mut()?.scope.set(name, Value::Tensor(index), span);
        self.frame_mut()?.loops += 1;
        self.block(body, None)?;
        self.frame_mut()?.loops -= 1;
        let handed_on = self.handed_on(&carried, &parameters[1..])?;
        let last = self.emit.for_loop([&from, &to, &step], &handed_on)?;
        self.after_loop(before, &carried, last)?;
        let why = format!("`{name}` is the index of a loop that has ended");
        self.frame_mut()?.scope.set_missing(name, span, why, "keep what is needed of it in another variable");
        Ok(())
    }

    fn bounds(&mut self, bounds: [Value; 3]) -> Eval<Bounds> {
        let mut scalars = vec![];
        for bound in &bounds {
            let tensor = to_tensor(&mut self.emit, bound)?;
            let number = tensor.number()?;
            if !number.is_int() {
                return Err(type_error(
                    format!("a bound of the range is {}", tensor.ty),
                    "bounds and steps are integers; cast with `.to(tl.int32)`",
                ));
            }
            scalars.push(item(&mut self.emit, &tensor)?);
        }
        let numbers: Vec<_> = scalars.iter().map(Tensor::number).collect::<Eval<_>>()?;
        let (&[a, b, c], [from, to, step]) = (&numbers[..], &scalars[..]) else {
            return Err(internal("a range has three bounds"));
        };
        let index = index_type([a, b, c]);
        let counter = loop_counter(index);
        let mut counted = |bound: &Tensor| cast_number(&mut self.emit, bound, counter);
        Ok(Bounds { from: counted(from)?, to: counted(to)?, step: counted(step)?, index })
    }

    /// Variables with run-time values that the body assigns.
    fn carried(&self, before: &Scope, body: &[Stmt], index: Option<&str>) -> Vec<CarriedName> {
        let names = assigned(body).into_iter().filter(|name| Some(&name[..]) != index);
        names
            .filter_map(|name| {
                let before = before.usable(&name)?.clone();
                Some(CarriedName { name, before })
            })
            .filter(|carried| !flatten(&carried.before.value).is_empty())
            .collect()
    }

    /// Opens a region whose parameters are those given and the carried variables, which take their values in it.
    fn open_body(&mut self, before: &Scope, carried: &[CarriedName], leading: &[TensorType]) -> Eval<Vec<Tensor>> {
        let mut types = leading.to_vec();
        types.extend(carried.iter().flat_map(|carried| leaf_types(&carried.before.value)));
        let parameters = self.emit.open(&types)?;
        let mut current = parameters[leading.len()..].iter().cloned();
        let mut scope = before.clone();
        for carried in carried {
            scope.set(&carried.name, rebuild(&carried.before.value, &mut current)?, carried.before.span);
        }
        self.frame_mut()?.scope = scope;
        Ok(parameters)
    }

    /// What the body leaves in the carried variables.
    fn handed_on(&mut self, carried: &[CarriedName], current: &[Tensor]) -> Eval<Vec<Carried>> {
        let mut current = current.iter();
        let mut all = vec![];
        for CarriedName { name, before } in carried {
            let Some(now) = self.frame()?.scope.get(name).cloned() else {
                return Err(internal(format!("`{name}` is lost in a loop")));
            };
            alike(&before.value, &now.value)
                .map_err(|_| self.located(changed_in_loop(name, &before.value, &now.value), now.span))?;
            for (initial, next) in flatten(&before.value).into_iter().zip(flatten(&now.value)) {
                let current = current.next().cloned().ok_or_else(|| internal("a loop carries fewer values"))?;
                all.push(Carried { initial, current, next });
            }
        }
        Ok(all)
    }

    /// The variables after a loop: carried ones have their last values, those of the body end with it.
    fn after_loop(&mut self, before: Scope, carried: &[CarriedName], last: Vec<Tensor>) -> Eval<()> {
        let inner = std::mem::replace(&mut self.frame_mut()?.scope, before.clone());
        let mut after = before.clone();
        let mut last = last.into_iter();
        for CarriedName { name, before } in carried {
            after.set(name, rebuild(&before.value, &mut last)?, before.span);
        }
        for (name, slot) in inner.iter() {
            match before.usable(name) {
                None => {
                    let why = format!("`{name}` is first assigned in a loop, and ends with it");
                    after.set_missing(name, slot.span, why, "assign it before the loop");
                }
                Some(old) if flatten(&old.value).is_empty() => alike(&old.value, &slot.value)
                    .map_err(|_| self.located(changed_in_loop(name, &old.value, &slot.value), slot.span))?,
                Some(_) => {}
            }
        }
        self.frame_mut()?.scope = after;
        Ok(())
    }

    /// Tested ahead of the first iteration and at the end of each.
    pub(super) fn while_statement(&mut self, test: &Expr, body: &[Stmt]) -> Eval<Flow> {
        if self.frame()?.compile_time {
            return self.known_while(test, body);
        }
        let runs = match self.condition(test)? {
            Condition::Known(false) => return Ok(Flow::Next),
            Condition::Known(true) => None,
            Condition::RunTime(condition) => Some(condition),
        };
        if runs.is_some() {
            self.emit.open(&[])?;
        }
        let before = self.frame()?.scope.clone();
        let carried = self.carried(&before, body, None);
        let parameters = self.open_body(&before, &carried, &[])?;
        self.frame_mut()?.loops += 1;
        self.block(body, None)?;
        let again = match self.condition(test)? {
            Condition::RunTime(condition) => condition,
            Condition::Known(again) => to_tensor(&mut self.emit, &Value::bool(again))?,
        };
        self.frame_mut()?.loops -= 1;
        let handed_on = self.handed_on(&carried, &parameters)?;
        let mut last = self.emit.do_while(&again, &handed_on)?;
        if let Some(condition) = runs {
            let ran = self.emit.suspend();
            self.emit.open(&[])?;
            let skipped = self.emit.suspend();
            let initial: Vec<Tensor> = handed_on.into_iter().map(|carried| carried.initial).collect();
            last = self.emit.if_else(&condition, [(ran, last), (skipped, initial)])?;
        }
        self.after_loop(before, &carried, last)?;
        Ok(Flow::Next)
    }
}

fn changed_in_loop(name: &str, before: &Value, after: &Value) -> Box<crate::KernelError> {
    let hint = match (before, after) {
        (_, Value::Tensor(tensor)) if tensor.ty.is_block() => format!(
            "start with `{name} = tl.zeros({:?}, dtype=tl.{})`, or cast what is assigned here",
            tensor.ty.shape, tensor.ty.scalar
        ),
        (_, Value::Tensor(tensor)) => {
            format!("start with a value of type {}, or cast what is assigned here", tensor.ty)
        }
        _ => format!("give `{name}` one type before the loop and in it"),
    };
    type_error(
        format!("`{name}` is {} ahead of the loop, and {} at the end of its body", before.describe(), after.describe()),
        hint,
    )
}

/// From, to and step of `range(to)`, `range(from, to)`, `range(from, to, step)`.
fn range_bounds(positional: Vec<Value>, named: Vec<(String, Value)>) -> Eval<[Value; 3]> {
    /// What a loop may be told beside its bounds: hints, which change no result.
    const HINTS: [&str; 7] = [
        "num_stages",
        "loop_unroll_factor",
        "disallow_acc_multi_buffer",
        "flatten",
        "warp_specialize",
        "disable_licm",
        "merge_epilogue",
    ];
    let mut bounds: Vec<Option<Value>> = positional.into_iter().take(3).map(Some).collect();
    bounds.resize(3, None);
    for (name, value) in named {
        let at = match &name[..] {
            "arg1" => 0,
            "arg2" => 1,
            "step" => 2,
            hint if HINTS.contains(&hint) => continue,
            _ => return Err(type_error(format!("range has no argument `{name}`"), format!("it takes {HINTS:?}"))),
        };
        bounds[at] = Some(value);
    }
    let given = |value: Option<Value>| value.filter(|value| !value.is_none());
    let step = given(bounds.pop().flatten()).unwrap_or(Value::int(1));
    let second = given(bounds.pop().flatten());
    let first = given(bounds.pop().flatten());
    match (first, second) {
        (Some(from), Some(to)) => Ok([from, to, step]),
        (Some(to), None) => Ok([Value::int(0), to, step]),
        _ => Err(type_error("range without a bound", "write `range(n)`")),
    }
}

fn unrolled_range(bounds: &[Value; 3]) -> Eval<Iteration> {
    let known: Vec<i128> = bounds
        .iter()
        .map(|bound| {
            bound.constant().and_then(Constant::as_int).ok_or_else(|| {
                type_error(
                    format!("static_range runs to {}", bound.describe()),
                    "its bounds are known at compile time; use `range` for others",
                )
            })
        })
        .collect::<Eval<_>>()?;
    let values = known_range([known[0], known[1], known[2]])?;
    Ok(Iteration::Unrolled(values.into_iter().map(Value::int).collect()))
}

/// The numbers of a range with known bounds.
pub(super) fn known_range([from, to, step]: [i128; 3]) -> Eval<Vec<i128>> {
    if step == 0 {
        return Err(value_error("the step of a range is 0", "count in steps of 1 or more"));
    }
    let distance = if step > 0 { to - from } else { from - to };
    let count = distance.max(0).div_euclid(step.abs()) + i128::from(distance.max(0) % step.abs() != 0);
    if count > MAX_UNROLLED {
        return Err(unsupported(
            format!("a static loop of {count} iterations is not unrolled"),
            format!("use `range`, or at most {MAX_UNROLLED} iterations"),
        ));
    }
    Ok((0..count).map(|i| from + i * step).collect())
}
