//! The row of a softmax that is computed block by block: one table of loops per instruction set and scalar type.
//!
//! Takes: the scores of a row in one block of keys, and the greatest score so far. Gives: powers of two in place of
//! scores, their sum, and the greatest score. A probability is `2^((score - greatest) · c)` over the sum of these; c
//! has the factor log₂ e.
//!
//! A score of minus infinity, or one far below the greatest, gives zero; NaN gives NaN.
use crate::host::gemm::kernel::Real;
use kiln_cpu::Level;

/// What has been seen of a row: the greatest score, and the sum of powers relative to it.
#[derive(Clone, Copy)]
pub struct Seen<T> {
    pub greatest: T,
    pub sum: T,
}

/// The loops of one instruction set. Addresses are those of `n` elements.
pub struct Rows<T: 'static> {
    /// Replaces the scores of a block by powers. Gives the greatest score of `old` and these, and the sum of the
    /// powers.
    pub powers: unsafe fn(x: *mut T, n: usize, old: T, c: T) -> Seen<T>,
    /// `x = x · scale + bias`; minus infinity where the bias is, whatever the score.
    pub masked: unsafe fn(x: *mut T, bias: *const T, n: usize, scale: T),
    /// `x = x · by`.
    pub scaled: unsafe fn(x: *mut T, n: usize, by: T),
}

/// A type of scores.
pub trait Score: Real + PartialOrd + std::ops::Div<Output = Self> {
    const LOWEST: Self;
    fn of(x: f64) -> Self;
    fn value(self) -> f64;
    fn rows(level: Level) -> &'static Rows<Self>;

    /// `2^((old - new) · c)`: the factor on what was summed relative to `old`.
    fn carried(old: Self, new: Self, c: Self) -> Self {
        match old == new {
            true => Self::of(1.0),
            false => Self::of(((old.value() - new.value()) * c.value()).exp2()),
        }
    }
}
impl Score for f32 {
    const LOWEST: f32 = f32::NEG_INFINITY;
    fn of(x: f64) -> f32 {
        x as f32
    }
    fn value(self) -> f64 {
        f64::from(self)
    }
    fn rows(level: Level) -> &'static Rows<f32> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &avx2::ROWS,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => &avx512::ROWS,
            _ => &portable::ROWS,
        }
    }
}
impl Score for f64 {
    const LOWEST: f64 = f64::NEG_INFINITY;
    fn of(x: f64) -> f64 {
        x
    }
    fn value(self) -> f64 {
        self
    }
    fn rows(_: Level) -> &'static Rows<f64> {
        &exact::ROWS
    }
}

/// Coefficients of polynomials for `2^r` over `0 ≤ r ≤ 1`, the constant first: least maxima of the relative error,
/// 2·10⁻⁹ and 3·10⁻⁶.
#[expect(clippy::approx_constant, reason = "a coefficient near ln 2")]
const POWER: [f32; 7] = [1.0, 0.693_147, 0.240_229_83, 0.055_483_34, 0.009_678_841, 0.001_243_968_8, 0.000_217_022_55];
#[cfg(target_arch = "x86_64")]
const POWER_HALF: [f32; 5] = [1.000_002_6, 0.693_003_83, 0.241_442_76, 0.052_011_46, 0.013_534_168];
/// Powers of less are zero.
const LEAST: f32 = -126.0;

/// What is subtracted from scores: the greatest, but 0 where all are minus infinity.
#[inline(always)]
fn subtracted<T: Score>(greatest: T) -> T {
    if greatest == T::LOWEST { T::of(0.0) } else { greatest }
}

/// The loops on arrays of `LANES` scalars, which the compiler keeps in vector registers; `$fma` multiplies and adds.
macro_rules! loops {
    ($fma:expr, $lanes:literal, $(#[$attr:meta])*) => {
        use super::{LEAST, POWER, Rows, Seen, subtracted};
        pub static ROWS: Rows<f32> = Rows { powers, masked, scaled };
        const LANES: usize = $lanes;

        /// Adding this rounds to the nearest integer, which is then in the low bits.
        const INTEGER: f32 = 12_582_912.0;

        #[inline(always)]
        fn power(y: f32) -> f32 {
            let z = if y < LEAST { LEAST } else { y };
            let whole = (z - 0.5) + INTEGER;
            let r = z - (whole - INTEGER);
            let mut p = POWER[6];
            for c in POWER[..6].iter().rev() {
                p = $fma(p, r, *c);
            }
            let exponent = whole.to_bits().wrapping_sub(INTEGER.to_bits()).wrapping_add(127) << 23;
            if y < LEAST { 0.0 } else { p * f32::from_bits(exponent) }
        }

        $(#[$attr])*
        unsafe fn powers(x: *mut f32, n: usize, old: f32, c: f32) -> Seen<f32> {
            // SAFETY: the caller's contract.
            let x = unsafe { std::slice::from_raw_parts_mut(x, n) };
            let (vectors, rest) = x.as_chunks_mut::<LANES>();
            // A comparison leaves NaN out.
            let most = |a: f32, b: f32| if b > a { b } else { a };
            let mut tops = [old; LANES];
            for v in vectors.iter() {
                for (t, x) in tops.iter_mut().zip(v) {
                    *t = most(*t, *x);
                }
            }
            let greatest = tops.iter().chain(rest.iter()).fold(old, |a, b| most(a, *b));
            let m = subtracted(greatest);
            let mut sums = [0.0; LANES];
            for v in vectors {
                for (s, x) in sums.iter_mut().zip(v) {
                    *x = power((*x - m) * c);
                    *s += *x;
                }
            }
            let mut sum: f32 = sums.iter().sum();
            for x in rest {
                *x = power((*x - m) * c);
                sum += *x;
            }
            Seen { greatest, sum }
        }

        $(#[$attr])*
        unsafe fn masked(x: *mut f32, bias: *const f32, n: usize, scale: f32) {
            // SAFETY: the caller's contract.
            let (x, bias) = unsafe { (std::slice::from_raw_parts_mut(x, n), std::slice::from_raw_parts(bias, n)) };
            for (x, b) in x.iter_mut().zip(bias) {
                *x = if *b == f32::NEG_INFINITY { *b } else { *x * scale + *b };
            }
        }

        $(#[$attr])*
        unsafe fn scaled(x: *mut f32, n: usize, by: f32) {
            // SAFETY: the caller's contract.
            unsafe { std::slice::from_raw_parts_mut(x, n) }.iter_mut().for_each(|x| *x *= by);
        }
    };
}
mod portable {
    loops!(|a: f32, b: f32, c: f32| a * b + c, 4,);
}
#[cfg(target_arch = "x86_64")]
mod avx2 {
    loops!(f32::mul_add, 8, #[target_feature(enable = "avx2,fma")]);
}

/// f64, by the powers of the standard library.
mod exact {
    use super::{Rows, Seen, subtracted};
    pub static ROWS: Rows<f64> = Rows { powers, masked, scaled };

    unsafe fn powers(x: *mut f64, n: usize, old: f64, c: f64) -> Seen<f64> {
        // SAFETY: the caller's contract.
        let x = unsafe { std::slice::from_raw_parts_mut(x, n) };
        let greatest = x.iter().fold(old, |a, b| if *b > a { *b } else { a });
        let m = subtracted(greatest);
        x.iter_mut().for_each(|x| *x = ((*x - m) * c).exp2());
        Seen { greatest, sum: x.iter().sum() }
    }
    unsafe fn masked(x: *mut f64, bias: *const f64, n: usize, scale: f64) {
        // SAFETY: the caller's contract.
        let (x, bias) = unsafe { (std::slice::from_raw_parts_mut(x, n), std::slice::from_raw_parts(bias, n)) };
        for (x, b) in x.iter_mut().zip(bias) {
            *x = if *b == f64::NEG_INFINITY { *b } else { *x * scale + *b };
        }
    }
    unsafe fn scaled(x: *mut f64, n: usize, by: f64) {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(x, n) }.iter_mut().for_each(|x| *x *= by);
    }
}

/// AVX-512, with its instructions for exponents.
#[cfg(target_arch = "x86_64")]
pub mod avx512 {
    use super::{LEAST, POWER, POWER_HALF, Rows, Seen, subtracted};
    use std::arch::x86_64::*;

    pub static ROWS: Rows<f32> = Rows { powers, masked, scaled };
    const LANES: usize = 16;
    /// `_mm512_reduce_ps`: what is left above the next lower integer, without exceptions.
    const FRACTION: i32 = 0b1001;

    fn lanes(n: usize) -> __mmask16 {
        ((1u32 << n.min(LANES)) - 1) as __mmask16
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    fn power<const N: usize>(y: __m512, coefficients: &[f32; N]) -> __m512 {
        let r = _mm512_reduce_ps::<FRACTION>(y);
        let mut p = _mm512_set1_ps(coefficients[N - 1]);
        for c in coefficients[..N - 1].iter().rev() {
            p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(*c));
        }
        // Other lanes are not computed, so that no denormal costs its microcode; NaN is not less.
        let counts = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(y, _mm512_set1_ps(LEAST));
        _mm512_maskz_scalef_ps(counts, p, y)
    }

    /// The greatest of `old` and `n` elements. NaN is left out.
    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn greatest(x: *const f32, n: usize, old: f32) -> f32 {
        let mut tops = [_mm512_set1_ps(old); 4];
        let mut at = 0;
        // SAFETY: the caller's contract; masked lanes are not read.
        unsafe {
            while at + 4 * LANES <= n {
                for (i, top) in tops.iter_mut().enumerate() {
                    // The second operand where one is NaN.
                    *top = _mm512_max_ps(_mm512_loadu_ps(x.add(at + i * LANES)), *top);
                }
                at += 4 * LANES;
            }
            while at < n {
                let v = _mm512_mask_loadu_ps(tops[0], lanes(n - at), x.add(at));
                tops[0] = _mm512_max_ps(v, tops[0]);
                at += LANES;
            }
        }
        let [a, b, c, d] = tops;
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)))
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    unsafe fn powers(x: *mut f32, n: usize, old: f32, c: f32) -> Seen<f32> {
        // SAFETY: the caller's contract; masked lanes are neither read nor written.
        unsafe {
            let greatest = greatest(x, n, old);
            let (m, c) = (_mm512_set1_ps(subtracted(greatest)), _mm512_set1_ps(c));
            let mut sums = [_mm512_setzero_ps(); 2];
            let mut at = 0;
            while at + 2 * LANES <= n {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let to = x.add(at + i * LANES);
                    let p = power(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(to), m), c), &POWER);
                    _mm512_storeu_ps(to, p);
                    *sum = _mm512_add_ps(*sum, p);
                }
                at += 2 * LANES;
            }
            while at < n {
                let (to, some) = (x.add(at), lanes(n - at));
                let p = power(_mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(some, to), m), c), &POWER);
                _mm512_mask_storeu_ps(to, some, p);
                sums[0] = _mm512_mask_add_ps(sums[0], some, sums[0], p);
                at += LANES;
            }
            Seen { greatest, sum: _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])) }
        }
    }

    /// As [`Rows::powers`], with the powers rounded to bf16: element `k` goes to `k / 32 · step + k % 32`, and zeros
    /// follow up to a multiple of 32.
    ///
    /// # Safety
    /// The row holds `n` scores, and there is room for the result. The processor has AVX-512 F, BW, DQ and BF16.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512bf16")]
    pub unsafe fn halves(x: *const f32, n: usize, old: f32, c: f32, to: *mut u16, step: usize) -> Seen<f32> {
        // SAFETY: this function's contract; masked lanes are not read.
        unsafe {
            let greatest = greatest(x, n, old);
            let (m, c) = (_mm512_set1_ps(subtracted(greatest)), _mm512_set1_ps(c));
            let mut sums = [_mm512_setzero_ps(); 2];
            let whole = n - n % (2 * LANES);
            let mut to = to;
            for at in (0..whole).step_by(2 * LANES) {
                let mut p = sums;
                for i in 0..2 {
                    let v = _mm512_loadu_ps(x.add(at + i * LANES));
                    p[i] = power(_mm512_mul_ps(_mm512_sub_ps(v, m), c), &POWER_HALF);
                    sums[i] = _mm512_add_ps(sums[i], p[i]);
                }
                store(to, p);
                to = to.wrapping_add(step);
            }
            if whole < n {
                let mut p = sums;
                for i in 0..2 {
                    let (first, some) = (whole + i * LANES, lanes(n.saturating_sub(whole + i * LANES)));
                    let v = _mm512_maskz_loadu_ps(some, x.wrapping_add(first));
                    let y = _mm512_mul_ps(_mm512_sub_ps(v, m), c);
                    p[i] = _mm512_maskz_mov_ps(some, power(y, &POWER_HALF));
                    sums[i] = _mm512_add_ps(sums[i], p[i]);
                }
                store(to, p);
            }
            Seen { greatest, sum: _mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])) }
        }
    }

    /// Stores 32 numbers as bf16.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn store(to: *mut u16, p: [__m512; 2]) {
        // SAFETY: the caller has room for them; the types have the same bits.
        unsafe {
            let pair: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(p[1], p[0]));
            _mm512_storeu_si512(to.cast(), pair);
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn masked(x: *mut f32, bias: *const f32, n: usize, scale: f32) {
        let (scale, lowest) = (_mm512_set1_ps(scale), _mm512_set1_ps(f32::NEG_INFINITY));
        for at in (0..n).step_by(LANES) {
            let some = lanes(n - at);
            // SAFETY: the caller's contract; masked lanes are neither read nor written.
            unsafe {
                let (v, b) = (_mm512_maskz_loadu_ps(some, x.add(at)), _mm512_maskz_loadu_ps(some, bias.add(at)));
                let gone = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(b, lowest);
                let v = _mm512_add_ps(_mm512_mul_ps(v, scale), b);
                _mm512_mask_storeu_ps(x.add(at), some, _mm512_mask_mov_ps(v, gone, lowest));
            }
        }
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn scaled(x: *mut f32, n: usize, by: f32) {
        let by = _mm512_set1_ps(by);
        for at in (0..n).step_by(LANES) {
            let some = lanes(n - at);
            // SAFETY: the caller's contract; masked lanes are neither read nor written.
            unsafe {
                let v = _mm512_maskz_loadu_ps(some, x.add(at));
                _mm512_mask_storeu_ps(x.add(at), some, _mm512_mul_ps(v, by));
            }
        }
    }
}
