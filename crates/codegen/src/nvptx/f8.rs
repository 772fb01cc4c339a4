//! 8-bit floats, which registers hold as bytes: to f16, which represents all of them, and from f32, to the nearest.
//! Numbers beyond the largest become infinity or NaN.
use super::emit::{Emit, Res, Val, float, int};
use inkwell::values::{FloatValue, IntValue};
use inkwell::{FloatPredicate, IntPredicate};
use kiln_block::Format;

/// Conversions of two numbers at once (PTX ISA, `cvt`, from `sm_89` on): of two f32, the first in the upper byte, and
/// of two bytes to f16.
struct Pairs {
    from_f32: &'static str,
    /// `None` where a shift does it.
    to_f16: Option<&'static str>,
}

fn pairs(e: &Emit, format: Format) -> Option<Pairs> {
    let pairs = match format {
        Format::F8E4M3 => Pairs { from_f32: "llvm.nvvm.ff.to.e4m3x2.rn", to_f16: Some("llvm.nvvm.e4m3x2.to.f16x2.rn") },
        Format::F8E5M2 => Pairs { from_f32: "llvm.nvvm.ff.to.e5m2x2.rn", to_f16: None },
        _ => return None,
    };
    Some(pairs).filter(|_| e.f8)
}

/// One number or two neighbours, which an instruction converts together. Exponent and fraction are encoded as in f16,
/// except for the bias.
pub(super) fn to_f16<'c>(e: &Emit<'c>, format: Format, xs: &[IntValue<'c>]) -> Res<Vec<Val<'c>>> {
    let i16 = e.cx.i16_type();
    let Some(name) = pairs(e, format).and_then(|p| p.to_f16) else {
        return xs.iter().map(|x| half_of(e, format, *x)).collect();
    };
    let mut pair = e.zext(xs[0], i16)?;
    if let Some(x) = xs.get(1) {
        pair = e.or(pair, e.shl(e.zext(*x, i16)?, i16.const_int(8, false))?)?;
    }
    let halves = e.call(name, &[], &[pair.into()])?;
    (0..xs.len()).map(|i| e.element(halves, i)).collect()
}

/// By arithmetic.
fn half_of<'c>(e: &Emit<'c>, format: Format, x: IntValue<'c>) -> Res<Val<'c>> {
    let i16 = e.cx.i16_type();
    let f16 = e.cx.f16_type();
    let wide = e.zext(x, i16)?;
    let c = |v: u64| i16.const_int(v, false);
    if format.exponent == Format::F16.exponent && format.infinities {
        return e.bitcast(e.shl(wide, c(8))?.into(), f16);
    }
    let size = e.and(wide, c(0x7f))?;
    let sign = e.shl(e.and(wide, c(0x80))?, c(8))?;
    let place = e.shl(size, c((Format::F16.fraction - format.fraction).into()))?;
    let small = float(e.bitcast(e.or(place, sign)?.into(), f16)?)?;
    let bias = 2f64.powi(Format::F16.bias() - format.bias());
    let value = e.fmul(small, f16.const_float(bias))?;
    let is_nan = e.icmp(IntPredicate::EQ, size, c(format.nan().into()))?;
    e.select(is_nan, f16.const_float(f64::NAN).into(), value.into())
}

/// One number or two neighbours. By the conversion of `sm_89` on, which saturates to the largest number; otherwise by
/// arithmetic.
pub(super) fn from_f32<'c>(e: &Emit<'c>, format: Format, xs: &[FloatValue<'c>]) -> Res<Vec<Val<'c>>> {
    let Some(pairs) = pairs(e, format) else { return xs.iter().map(|x| byte_of(e, format, *x)).collect() };
    let last = e.f32().const_float(format.last().into());
    let beyond = |x| e.fcmp(FloatPredicate::OGT, e.call_float("llvm.fabs", &[x])?, last);
    let infinity = format.infinity();
    let operand = |i: usize| {
        let Some(x) = xs.get(i).copied() else { return Ok(e.f32().const_zero()) };
        // What has no infinity becomes NaN.
        if infinity.is_some() { Ok(x) } else { e.fselect(beyond(x)?, e.f32().const_float(f64::NAN), x) }
    };
    let mut bits = int(e.call(pairs.from_f32, &[], &[operand(1)?.into(), operand(0)?.into()])?)?;
    let i16 = e.cx.i16_type();
    if let Some(infinity) = infinity {
        // What is beyond the largest number was made the largest.
        for (i, x) in xs.iter().enumerate() {
            let more = i16.const_int(u64::from(infinity ^ (infinity - 1)) << (8 * i), false);
            bits = e.xor(bits, e.iselect(beyond(*x)?, more, i16.const_zero())?)?;
        }
    }
    let byte = |i: u64| Ok(e.trunc(e.lshr(bits, i16.const_int(8 * i, false))?, e.i8())?.into());
    (0..xs.len() as u64).map(byte).collect()
}

/// By arithmetic.
fn byte_of<'c>(e: &Emit<'c>, format: Format, x: FloatValue<'c>) -> Res<Val<'c>> {
    let size = e.call_float("llvm.fabs", &[x])?;
    let bits = rounded(e, format, x, size)?;
    let nan = |bits| e.or(bits, e.i8().const_int(format.nan().into(), false));
    if format.infinities {
        let is_nan = e.fcmp(FloatPredicate::UNO, size, size)?;
        return e.select(is_nan, nan(bits)?.into(), bits.into());
    }
    let fits = e.fcmp(FloatPredicate::OLE, size, e.f32().const_float(format.last().into()))?;
    e.select(fits, bits.into(), nan(bits)?.into())
}

/// The byte of a number, by arithmetic. In formats without infinities the number must not be too large.
fn rounded<'c>(e: &Emit<'c>, format: Format, x: FloatValue<'c>, size: FloatValue<'c>) -> Res<IntValue<'c>> {
    let c = |v: i64| e.int(v);
    let dropped = i64::from(23 - format.fraction);
    // The lower bits of the fraction are rounded off to the nearest, ties to even.
    let bits = e.bits_of_float(size, e.i32())?;
    let odd = e.and(e.lshr(bits, c(dropped))?, c(1))?;
    let up = e.add(e.add(bits, c((1 << (dropped - 1)) - 1))?, odd)?;
    let below = format.bias_below_f32() << format.fraction;
    let normal = e.sub(e.lshr(up, c(dropped))?, c(below.into()))?;
    // Subnormal numbers: a multiple of the least number, which is the last place of 1.5 times a power of two.
    let magic = 1.5 * format.least() / f64::from(f32::EPSILON);
    let shifted = e.fadd(size, e.f32().const_float(magic))?;
    let small = e.and(e.bits_of_float(shifted, e.i32())?, c((2 << format.fraction) - 1))?;
    let is_small = e.fcmp(FloatPredicate::OLT, size, e.f32().const_float(format.least_normal()))?;
    let mut value = int(e.select(is_small, small.into(), normal.into())?)?;
    if let Some(infinity) = format.infinity().map(|bits| c(bits.into())) {
        let fits = e.icmp(IntPredicate::ULT, value, infinity)?;
        value = int(e.select(fits, value.into(), infinity.into())?)?;
    }
    let sign = e.and(e.lshr(e.bits_of_float(x, e.i32())?, c(24))?, c(0x80))?;
    Ok(e.b.build_int_truncate(e.or(value, sign)?, e.i8(), "")?)
}
