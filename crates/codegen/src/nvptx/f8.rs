//! 8-bit floats, which registers hold as bytes: to f16, which represents all of them, and from f32, to the nearest.
//! Numbers beyond the largest become infinity or NaN.
use super::emit::{Emit, Res, Val, float, int};
use inkwell::values::{FloatValue, IntValue};
use inkwell::{FloatPredicate, IntPredicate};
use kiln_block::Format;

/// The conversion of two f32 to two bytes, of which the first is the upper one (PTX ISA, `cvt.rn.satfinite`, from `sm_89` on).
fn instruction(format: Format) -> Option<&'static str> {
    match format {
        Format::F8E4M3 => Some("llvm.nvvm.ff.to.e4m3x2.rn"),
        Format::F8E5M2 => Some("llvm.nvvm.ff.to.e5m2x2.rn"),
        _ => None,
    }
}

/// Exponent and fraction are encoded as in f16, except for the bias.
pub(super) fn to_f16<'c>(e: &Emit<'c>, format: Format, x: IntValue<'c>) -> Res<Val<'c>> {
    let i16 = e.cx.i16_type();
    let f16 = e.cx.f16_type();
    let wide = e.b.build_int_z_extend(x, i16, "")?;
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

/// By the conversion of `sm_89` on, which saturates to the largest number; otherwise by arithmetic.
pub(super) fn from_f32<'c>(e: &Emit<'c>, format: Format, x: FloatValue<'c>) -> Res<Val<'c>> {
    let size = e.call_float("llvm.fabs", &[x])?;
    let instruction = instruction(format).filter(|_| e.f8);
    let bits = match instruction {
        Some(name) => {
            let zero = e.f32().const_zero();
            let pair = int(e.call(name, &[], &[zero.into(), x.into()])?)?;
            e.b.build_int_truncate(pair, e.i8(), "")?
        }
        None => rounded(e, format, x, size)?,
    };
    let c = |v: u32| e.i8().const_int(v.into(), false);
    let last = e.f32().const_float(format.last().into());
    let nan = |bits| e.or(bits, c(format.nan()));
    match (format.infinity(), instruction) {
        (None, _) => {
            let fits = e.fcmp(FloatPredicate::OLE, size, last)?;
            e.select(fits, bits.into(), nan(bits)?.into())
        }
        // The instruction converts NaN to NaN.
        (Some(infinity), Some(_)) => {
            let beyond = e.fcmp(FloatPredicate::OGT, size, last)?;
            let infinite = e.or(e.and(bits, c(0x80))?, c(infinity))?;
            e.select(beyond, infinite.into(), bits.into())
        }
        (Some(_), None) => {
            let is_nan = e.fcmp(FloatPredicate::UNO, size, size)?;
            e.select(is_nan, nan(bits)?.into(), bits.into())
        }
    }
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
