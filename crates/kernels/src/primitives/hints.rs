//! Promises and hints, which change no result; and what prints or checks at run time.
use super::arguments::{known_text, tensor};
use super::{Primitive, Walk, row};
use crate::error::{Eval, unsupported};
use crate::ops::report;
use crate::value::Value;

pub const TABLE: &[Primitive] = &[
    row("multiple_of", "input, values", unchanged),
    row("max_contiguous", "input, values", unchanged),
    row("max_constancy", "input, values", unchanged),
    row("expect_zero", "x, mask", unchanged),
    row("assume", "cond", nothing),
    row("debug_barrier", "", nothing),
    row("gdc_wait", "", nothing),
    row("gdc_launch_dependents", "", nothing),
    row("device_assert", "cond, msg='', mask=None", device_assert),
    row("device_print", "prefix, *args, hex=False", device_print),
    row("inline_asm_elementwise", "asm, constraints, args, dtype, is_pure, pack", |_, _| {
        Err(unsupported("inline assembly is not supported", "use functions of the language"))
    }),
    row("globaltimer", "", |_, _| Err(no_counter("globaltimer"))),
    row("smid", "", |_, _| Err(no_counter("smid"))),
    row("num_threads", "", |_, _| Err(no_counter("num_threads"))),
    row("num_warps", "", |e, _| Ok(Value::int(e.options().warps as i128))),
];

fn no_counter(name: &str) -> Box<crate::KernelError> {
    unsupported(format!("{name} is not supported"), "results do not depend on where an instance runs")
}

fn unchanged(walk: &mut dyn Walk, arguments: &[Value]) -> Eval<Value> {
    match &arguments[0] {
        Value::Constant(_) => Ok(arguments[0].clone()),
        value => tensor(walk, value).map(Value::Tensor),
    }
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
