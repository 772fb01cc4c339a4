//! Promises and hints, which change no result where they hold; and what prints or checks at run time.
use super::arguments::{known_int, known_text, tensor};
use super::{Primitive, Walk, row};
use crate::error::Eval;
use crate::ops::{arithmetic, report};
use crate::syntax::tree::{BinaryOp, CompareOp};
use crate::types::Number;
use crate::value::Value;

pub const TABLE: &[Primitive] = &[
    row("multiple_of", "input, values", multiple_of),
    row("max_contiguous", "input, values", unchanged),
    row("max_constancy", "input, values", unchanged),
    row("expect_zero", "x, mask", unchanged),
    row("assume", "cond", assume),
    row("debug_barrier", "", nothing),
    row("gdc_wait", "", nothing),
    row("gdc_launch_dependents", "", nothing),
    row("device_assert", "cond, msg='', mask=None", device_assert),
    row("device_print", "prefix, *args, hex=False", device_print),
];

fn unchanged(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    match &arguments[0] {
        Value::Constant(_) => Ok(arguments[0].clone()),
        value => tensor(walk, value).map(Value::Tensor),
    }
}

/// A promise about a scalar is taken as a fact; the interpreter looks whether it holds.
fn multiple_of(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let Value::Tensor(x) = &arguments[0] else { return unchanged(walk, arguments) };
    let divisor = match &arguments[1] {
        Value::Tuple(tuple) if tuple.values.len() == 1 => known_int("values", &tuple.values[0])?,
        Value::Constant(_) => known_int("values", &arguments[1])?,
        _ => return unchanged(walk, arguments),
    };
    let integer = x.ty.scalar.number().is_some_and(Number::is_int);
    let (true, false, Ok(divisor)) = (integer && divisor > 1, x.ty.is_block(), i64::try_from(divisor)) else {
        return unchanged(walk, arguments);
    };
    if walk.options().interpret {
        let rest = arithmetic::binary(walk.emit(), BinaryOp::Mod, &arguments[0], &Value::int(divisor))?;
        let holds = arithmetic::compare(walk.emit(), CompareOp::Eq, &Value::Tensor(rest), &Value::int(0))?;
        let text = walk.with_place(&format!("multiple_of promises multiples of {divisor}"));
        report::assert(walk.emit(), &text, &Value::Tensor(holds), &Value::NONE)?;
        return Ok(arguments[0].clone());
    }
    walk.emit().known_multiple(x, divisor).map(Value::Tensor)
}

fn assume(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    match &arguments[0] {
        Value::Tensor(_) if walk.options().interpret => {
            let text = walk.with_place("assume promises this");
            report::assert(walk.emit(), &text, &arguments[0], &Value::NONE)?;
        }
        Value::Tensor(condition) => walk.emit().promise(condition.value),
        _ => {}
    }
    Ok(Value::NONE)
}

fn nothing(_: &mut dyn Walk, _: &[Value]) -> Eval<Value> {
    Ok(Value::NONE)
}

/// Checked in debug mode only.
fn device_assert(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    if walk.options().debug {
        let text = walk.with_place(&known_text("msg", &arguments[1])?);
        report::assert(walk.emit(), &text, &arguments[0], &arguments[2])?;
    }
    Ok(Value::NONE)
}

/// The text, then each element of the blocks.
fn device_print(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let [prefix, Value::Tuple(values), _] = arguments else { return Ok(Value::NONE) };
    known_text("prefix", prefix)?;
    let all: Vec<Value> = std::iter::once(prefix.clone()).chain(values.values.iter().cloned()).collect();
    report::print(walk.emit(), &all)?;
    Ok(Value::NONE)
}
