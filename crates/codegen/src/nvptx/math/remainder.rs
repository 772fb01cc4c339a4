//! The remainder of f64, exact: long division by bits, as many steps as the exponents are apart.
use super::{F, abs, c, copysign};
use crate::nvptx::emit::{Emit, Fail, Res, int};
use inkwell::values::IntValue;
use inkwell::{FloatPredicate, IntPredicate};

/// Bits of a mantissa behind its first one.
const FRACTION: i64 = 52;

/// A positive number, `mantissa · 2^(exponent - 1075)`, the mantissa from 2^52 on.
struct Parts<'c> {
    mantissa: IntValue<'c>,
    exponent: IntValue<'c>,
}

/// How many bits a mantissa is to be moved up until its first one is in place.
fn missing<'c>(e: &Emit<'c>, mantissa: IntValue<'c>) -> Res<IntValue<'c>> {
    let zeros = int(e.call("llvm.ctlz", &[e.i64().into()], &[mantissa.into(), e.bool(false).into()])?)?;
    e.sub(zeros, e.int_of(e.i64(), 63 - FRACTION))
}

fn parts<'c>(e: &Emit<'c>, size: F<'c>) -> Res<Parts<'c>> {
    let number = |v: i64| e.int_of(e.i64(), v);
    let bits = e.bits_of_float(size, e.i64())?;
    let (exponent, fraction) = (e.lshr(bits, number(FRACTION))?, e.and(bits, number((1 << FRACTION) - 1))?);
    let subnormal = e.icmp(IntPredicate::EQ, exponent, number(0))?;
    let normal = e.or(fraction, number(1 << FRACTION))?;
    let up = missing(e, fraction)?;
    Ok(Parts {
        mantissa: e.iselect(subnormal, e.shl(fraction, up)?, normal)?,
        exponent: e.iselect(subnormal, e.sub(number(1), up)?, exponent)?,
    })
}

/// The remainder with the sign of x; NaN by 0, of infinity and of NaN.
pub(super) fn of_double<'c>(e: &Emit<'c>, x: F<'c>, y: F<'c>) -> Res<F<'c>> {
    let number = |v: i64| e.int_of(e.i64(), v);
    let (a, b) = (abs(e, x)?, abs(e, y)?);
    let finite = e.fcmp(FloatPredicate::OLT, a, c(x, f64::INFINITY))?;
    let divides = e.and(finite, e.fcmp(FloatPredicate::OGT, b, c(x, 0.0))?)?;
    let larger = e.and(divides, e.fcmp(FloatPredicate::OGE, a, b)?)?;
    let (from, by) = (parts(e, a)?, parts(e, b)?);
    // Other numbers need no step.
    let first = e.iselect(larger, from.exponent, by.exponent)?;

    let Some(before) = e.b.get_insert_block() else { return Err(Fail::Defect("code outside of a block".into())) };
    let Some(function) = before.get_parent() else { return Err(Fail::Defect("code outside of a function".into())) };
    let names = ["rem", "rem_step", "rem_done"];
    let [head, step, done] = names.map(|name| e.cx.append_basic_block(function, name));
    e.b.build_unconditional_branch(head)?;
    e.b.position_at_end(head);
    let (mantissa, exponent) = (e.b.build_phi(e.i64(), "")?, e.b.build_phi(e.i64(), "")?);
    let (now, at) = (int(mantissa.as_basic_value())?, int(exponent.as_basic_value())?);
    let rest = e.sub(now, by.mantissa)?;
    let taken = e.iselect(e.icmp(IntPredicate::SGE, rest, number(0))?, rest, now)?;
    let more = e.icmp(IntPredicate::SGT, at, by.exponent)?;
    e.b.build_conditional_branch(more, step, done)?;
    e.b.position_at_end(step);
    let (next, below) = (e.shl(taken, number(1))?, e.sub(at, number(1))?);
    e.b.build_unconditional_branch(head)?;
    mantissa.add_incoming(&[(&from.mantissa, before), (&next, step)]);
    exponent.add_incoming(&[(&first, before), (&below, step)]);
    e.b.position_at_end(done);

    let up = missing(e, taken)?;
    let (whole, exponent) = (e.shl(taken, up)?, e.sub(by.exponent, up)?);
    let normal = e.or(e.and(whole, number((1 << FRACTION) - 1))?, e.shl(exponent, number(FRACTION))?)?;
    let down = e.sub(number(1), exponent)?;
    let is_normal = e.icmp(IntPredicate::SGT, exponent, number(0))?;
    // Subnormal results have at most as many bits to lose as the divisor has zeros at its end.
    let bits = e.iselect(is_normal, normal, e.lshr(whole, e.iselect(is_normal, number(0), down)?)?)?;
    let bits = e.iselect(e.icmp(IntPredicate::EQ, taken, number(0))?, number(0), bits)?;
    let size = e.fselect(larger, e.float_of_bits(bits, e.cx.f64_type())?, a)?;
    let orders = e.fcmp(FloatPredicate::ORD, y, y)?;
    e.fselect(e.and(divides, orders)?, copysign(e, size, x)?, c(x, f64::NAN))
}
