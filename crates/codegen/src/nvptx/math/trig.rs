//! Sine, cosine, tangent for any f32; arctangent in f64.
//!
//! x is an integer m times 2^k (24 bits; k = 0 below 2^23, where m need not be whole). m · (2^k · 2/π mod 4) is x · 2/π
//! up to whole turns, and the factor is a table of pairs of f64 over k: Payne and Hanek's reduction with few steps.
use super::exp_log::{ROUND, low_integer};
use super::{F, abs, c, copysign, fma, horner, widened};
use crate::nvptx::emit::{Emit, Res, float, int};
use inkwell::values::{BasicValueEnum, PointerValue};
use inkwell::{FloatPredicate, IntPredicate};
use kiln_block::UnaryOp;

/// The first 224 bits of 2/π behind the point.
const TWO_OVER_PI: [u32; 7] =
    [0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];
/// Exponents of f32 beyond 2^23.
const POWERS: usize = 105;

/// 2^k · 2/π mod 4 as a sum of two f64.
fn factor(k: usize) -> (f64, f64) {
    // 112 bits from the one of weight 2 on; the bit of weight 1/2 is number 0 of the table.
    let bit = |i: isize| if i < 0 { 0 } else { TWO_OVER_PI.get(i as usize / 32).map_or(0, |w| w >> (31 - i % 32) & 1) };
    let window = (0..112).fold(0u128, |w, i| w << 1 | u128::from(bit(k as isize - 2 + i)));
    let unit = |n: i32| 2f64.powi(n);
    let (high, low) = (window >> 59, window & ((1 << 59) - 1));
    (high as f64 * unit(59 - 110), low as f64 * unit(-110))
}

fn table<'c>(e: &Emit<'c>) -> PointerValue<'c> {
    const NAME: &str = "_two_over_pi";
    if let Some(t) = e.module.get_global(NAME) {
        return t.as_pointer_value();
    }
    let f64 = e.cx.f64_type();
    let numbers: Vec<_> = (0..POWERS).flat_map(|k| [factor(k).0, factor(k).1]).map(|v| f64.const_float(v)).collect();
    let all = f64.const_array(&numbers);
    let space = (!e.host).then(|| inkwell::AddressSpace::from(super::super::emit::GLOBAL));
    let t = e.module.add_global(all.get_type(), space, NAME);
    t.set_initializer(&all);
    t.set_constant(true);
    t.set_linkage(inkwell::module::Linkage::Internal);
    t.set_alignment(16);
    t.as_pointer_value()
}

pub(super) fn of_single<'c>(e: &Emit<'c>, op: UnaryOp, single: F<'c>) -> Res<F<'c>> {
    let (i32, i64) = (e.i32(), e.i64());
    let x = widened(e, single)?;
    let bits = e.bits_of_float(single, i32)?;
    let exponent = e.and(e.lshr(bits, e.int(23))?, e.int(255))?;
    let k = e.sub(exponent, e.int(150))?;
    let k = int(e.call("llvm.smax", &[i32.into()], &[k.into(), e.int(0).into()])?)?;
    let k = int(e.call("llvm.smin", &[i32.into()], &[k.into(), e.int(POWERS as i64 - 1).into()])?)?;
    let down = e.sub(e.int_of(i64, 1023), e.zext(k, i64)?)?;
    let m = e.fmul(x, e.float_of_bits(e.shl(down, e.int_of(i64, 52))?, e.cx.f64_type())?)?;
    let entry = e.gep(e.cx.f64_type().into(), table(e), e.mul(k, e.int(2))?)?;
    let pair: BasicValueEnum = e.load(e.cx.f64_type().vec_type(2).into(), entry, 16, true)?;
    let (high, low) = (float(e.element(pair, 0)?)?, float(e.element(pair, 1)?)?);
    let p = e.fmul(m, high)?;
    let lost = fma(e, m, high, e.fneg(p)?)?;
    let rest = fma(e, m, low, lost)?;
    let shifted = e.fadd(p, c(x, ROUND))?;
    let quarter = low_integer(e, shifted)?;
    let f = e.fadd(e.fsub(p, e.fsub(shifted, c(x, ROUND))?)?, rest)?;
    let r = e.fmul(f, c(x, std::f64::consts::FRAC_PI_2))?;
    let s = e.fmul(r, r)?;
    let p = horner(e, s, &[-1.0 / 39_916_800.0, 1.0 / 362_880.0, -1.0 / 5_040.0, 1.0 / 120.0, -1.0 / 6.0])?;
    let sine = fma(e, e.fmul(p, s)?, r, r)?;
    let cosine =
        horner(e, s, &[1.0 / 479_001_600.0, -1.0 / 3_628_800.0, 1.0 / 40_320.0, -1.0 / 720.0, 1.0 / 24.0, -0.5, 1.0])?;
    let bit = |n: i64, of| -> Res<_> {
        let masked = e.and(of, e.int_of(i64, n))?;
        e.icmp(IntPredicate::NE, masked, e.int_of(i64, 0))
    };
    let turned = |quarter, a, b| -> Res<F<'c>> {
        let v = e.fselect(bit(1, quarter)?, b, a)?;
        e.fselect(bit(2, quarter)?, e.fneg(v)?, v)
    };
    let v = match op {
        UnaryOp::Sin => turned(quarter, sine, cosine)?,
        UnaryOp::Cos => turned(e.add(quarter, e.int_of(i64, 1))?, sine, cosine)?,
        _ => {
            let swap = bit(1, quarter)?;
            let (top, bottom) = (e.fselect(swap, e.fneg(cosine)?, sine)?, e.fselect(swap, sine, cosine)?);
            e.fdiv(top, bottom)?
        }
    };
    let v = e.b.build_float_trunc(v, e.f32(), "")?;
    // Sines of the smallest numbers, and of minus zero, are the numbers.
    let v = if op == UnaryOp::Cos {
        v
    } else {
        e.fselect(e.fcmp(FloatPredicate::OEQ, single, c(single, 0.0))?, single, v)?
    };
    let finite = e.fcmp(FloatPredicate::OLT, abs(e, single)?, c(single, f64::INFINITY))?;
    e.fselect(finite, v, c(single, f64::NAN))
}

/// (atan t / t - 1) / t² on |t| ≤ tan(π/8), in t²: least squares at Chebyshev points, within 4e-17 of atan t / t.
const ARCTANGENT: [f64; 10] = [
    0.0212185398056491,
    -0.043555219035647214,
    0.05691223488968605,
    -0.06640852659734661,
    0.07690035115069628,
    -0.09090779868940332,
    0.11111106534664104,
    -0.14285714192066068,
    0.19999999999045717,
    -0.3333333333332994,
];

/// The angle of the point (x, y), f64.
pub(super) fn atan2<'c>(e: &Emit<'c>, y: F<'c>, x: F<'c>) -> Res<F<'c>> {
    use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI};
    let (ax, ay) = (abs(e, x)?, abs(e, y)?);
    let steep = e.fcmp(FloatPredicate::OGT, ay, ax)?;
    let (low, high) = (e.fselect(steep, ax, ay)?, e.fselect(steep, ay, ax)?);
    let (zero, one) = (c(x, 0.0), c(x, 1.0));
    let t = e.fdiv(low, high)?;
    let t = e.fselect(e.fcmp(FloatPredicate::OEQ, low, high)?, one, t)?;
    let t = e.fselect(e.fcmp(FloatPredicate::OEQ, high, zero)?, zero, t)?;
    let upper = e.fcmp(FloatPredicate::OGT, t, c(x, 0.414_213_562_373_095))?;
    let turned = e.fdiv(e.fsub(t, one)?, e.fadd(t, one)?)?;
    let u = e.fselect(upper, turned, t)?;
    let s = e.fmul(u, u)?;
    let curved = e.fmul(e.fmul(horner(e, s, &ARCTANGENT)?, s)?, u)?;
    let a = e.fadd(e.fselect(upper, c(x, FRAC_PI_4), zero)?, e.fadd(u, curved)?)?;
    let a = e.fselect(steep, e.fsub(c(x, FRAC_PI_2), a)?, a)?;
    let bits = e.bits_of_float(x, e.i64())?;
    let left = e.icmp(IntPredicate::SLT, bits, e.int_of(e.i64(), 0))?;
    let a = e.fselect(left, e.fsub(c(x, PI), a)?, a)?;
    let v = copysign(e, a, y)?;
    let ordered = e.fcmp(FloatPredicate::ORD, x, y)?;
    e.fselect(ordered, v, e.fadd(x, y)?)
}
