//! Promises and hints, which change no result where they hold; and what prints or checks at run time.
use super::arguments::{known_int, known_text, tensor};
use super::{Primitive, Walk, row};
use crate::error::Eval;
use crate::ops::convert::bitcast;
use crate::ops::{arithmetic, report};
use crate::syntax::tree::{BinaryOp, CompareOp};
use crate::types::{Number, Scalar};
use crate::value::{Tensor, Value};

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

/// What is promised is known from there on. The interpreter looks whether a promise about a scalar holds.
fn multiple_of(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    let Value::Tensor(x) = &arguments[0] else { return unchanged(walk, arguments) };
    let divisors = match &arguments[1] {
        Value::Tuple(tuple) => tuple.values.iter().map(|v| known_int("values", v)).collect::<Eval<Vec<_>>>()?,
        _ => vec![known_int("values", &arguments[1])?],
    };
    // Blocks of numbers are positions, of which more is known already.
    let is_integer = x.ty.scalar.number().is_some_and(|number| number.is_int() && number != Number::Int1);
    let known = x.ty.scalar.is_pointer() || is_integer && !x.ty.is_block();
    let divisors: Option<Vec<u32>> = divisors.iter().map(|d| u32::try_from(*d).ok().filter(|d| *d > 0)).collect();
    let Some(divisors) = divisors.filter(|d| known && d.len() == x.ty.shape.len().max(1)) else {
        return unchanged(walk, arguments);
    };
    if !walk.options().interpret {
        return walk.emit().known_multiples(x, &divisors).map(Value::Tensor);
    }
    if let ([divisor], false) = (&divisors[..], x.ty.is_block()) {
        check_multiple(walk, x, *divisor)?;
    }
    Ok(arguments[0].clone())
}

fn check_multiple(walk: &mut dyn Walk, x: &Tensor, divisor: u32) -> Eval<()> {
    let number = match x.ty.scalar.is_pointer() {
        true => bitcast(walk.emit(), x, Scalar::Number(Number::Int64))?,
        false => x.clone(),
    };
    let divisor = i128::from(divisor);
    let rest = arithmetic::binary(walk.emit(), BinaryOp::Mod, &Value::Tensor(number), &Value::int(divisor))?;
    let holds = arithmetic::compare(walk.emit(), CompareOp::Eq, &Value::Tensor(rest), &Value::int(0))?;
    let text = walk.with_place(&format!("multiple_of promises multiples of {divisor}"));
    report::assert(walk.emit(), &text, &Value::Tensor(holds), &Value::NONE)?;
    Ok(())
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
