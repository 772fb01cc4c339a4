//! f8e4m3, a byte in registers: to f16, which holds all its numbers, and from f32, to the nearest, beyond the largest to NaN.
use super::emit::{Emit, Res, Val, float, int};
use inkwell::values::{FloatValue, IntValue};
use inkwell::{FloatPredicate, IntPredicate};

/// What is more than this becomes NaN; this itself rounds to 448, the largest number.
const LAST: f64 = 464.0;

/// Exponent and fraction lie in those of f16 as they are, but for the bias: times 2^8.
pub(super) fn to_f16<'c>(e: &Emit<'c>, x: IntValue<'c>) -> Res<Val<'c>> {
    let i16 = e.cx.i16_type();
    let f16 = e.cx.f16_type();
    let wide = e.b.build_int_z_extend(x, i16, "")?;
    let c = |v: u64| i16.const_int(v, false);
    let size = e.and(wide, c(0x7f))?;
    let sign = e.shl(e.and(wide, c(0x80))?, c(8))?;
    let place = e.shl(size, c(7))?;
    let small = float(e.bitcast(e.or(place, sign)?.into(), f16)?)?;
    let value = e.fmul(small, f16.const_float(256.0))?;
    let is_nan = e.icmp(IntPredicate::EQ, size, c(0x7f))?;
    e.select(is_nan, f16.const_float(f64::NAN).into(), value.into())
}

/// By the conversion of `sm_89` on, which gives the largest number for what is beyond it; else by arithmetic.
pub(super) fn from_f32<'c>(e: &Emit<'c>, x: FloatValue<'c>) -> Res<Val<'c>> {
    let size = e.call_float("llvm.fabs", &[x])?;
    let bits = if e.f8 {
        let zero = e.f32().const_zero();
        let pair = int(e.call("llvm.nvvm.ff.to.e4m3x2.rn", &[], &[zero.into(), x.into()])?)?;
        e.b.build_int_truncate(pair, e.i8(), "")?
    } else {
        rounded(e, x, size)?
    };
    let fits = e.fcmp(FloatPredicate::OLE, size, e.f32().const_float(LAST))?;
    let nan = e.or(bits, e.i8().const_int(0x7f, false))?;
    e.select(fits, bits.into(), nan.into())
}

/// The byte of a number that is not too large.
fn rounded<'c>(e: &Emit<'c>, x: FloatValue<'c>, size: FloatValue<'c>) -> Res<IntValue<'c>> {
    let c = |v: i64| e.int(v);
    // Twenty bits of the fraction are rounded off, to the nearest, of two the even one.
    let bits = e.bits_of_float(size, e.i32())?;
    let odd = e.and(e.lshr(bits, c(20))?, c(1))?;
    let up = e.add(e.add(bits, c(0x7_ffff))?, odd)?;
    let normal = e.sub(e.lshr(up, c(20))?, c(120 << 3))?;
    // Below 2^-6: a multiple of 2^-9, which is the last place of 3/2 * 2^14.
    let shifted = e.fadd(size, e.f32().const_float(24576.0))?;
    let small = e.and(e.bits_of_float(shifted, e.i32())?, c(0xf))?;
    let is_small = e.fcmp(FloatPredicate::OLT, size, e.f32().const_float(1.0 / 64.0))?;
    let value = int(e.select(is_small, small.into(), normal.into())?)?;
    let sign = e.and(e.lshr(e.bits_of_float(x, e.i32())?, c(24))?, c(0x80))?;
    Ok(e.b.build_int_truncate(e.or(value, sign)?, e.i8(), "")?)
}
