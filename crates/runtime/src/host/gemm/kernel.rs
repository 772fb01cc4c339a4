//! Micro-kernels: the inner loops of matmuls, one table per instruction set and scalar type.
//!
//! Takes: panels of as many rows or columns as the registers hold. Gives: a tile of the result.
//! Never: knows the strides of operands or the sizes of caches.
use super::prefetch::prefetch;
use kiln_cpu::Level;

/// Columns that one call of `Kernels::dots` computes.
pub const DOTS: usize = 4;
/// Rows of b that one call of `Kernels::rows` adds.
pub const ROWS: usize = 8;

/// How many steps of depth ahead of its loads a micro-kernel prefetches.
const AHEAD: usize = 8;

/// `c = a × b`, or `c += a × b`. The number of rows is the function's position in its table plus one; of the
/// `Kernels::nr` columns of b, the first `n` are written. Element `(i, k)` of a lies at `k·lda + i`, or by rows at
/// `i·lda + k`; `(k, j)` of b at `k·ldb + j`, `(i, j)` of c at `i·ldc + j`.
pub type Micro<T> =
    unsafe fn(k: usize, a: *const T, lda: usize, b: *const T, ldb: usize, c: *mut T, ldc: usize, n: usize, add: bool);

/// The inner loops of one instruction set.
pub struct Kernels<T: 'static> {
    /// Most rows of a micro-kernel.
    pub mr: usize,
    /// Columns of every micro-kernel.
    pub nr: usize,
    /// One for each number of rows, from 1 to `mr`.
    pub micro: &'static [Micro<T>],
    /// The same for an a whose rows are contiguous.
    pub by_rows: &'static [Micro<T>],
    /// Dot products of one vector with `DOTS` others, which start `ldb` elements apart.
    pub dots: unsafe fn(k: usize, a: *const T, b: *const T, ldb: usize) -> [T; DOTS],
    /// `c[j] += Σ a[i]·b[i·ldb + j]` over `ROWS` rows and `n` columns.
    pub rows: unsafe fn(n: usize, a: &[T; ROWS], b: *const T, ldb: usize, c: *mut T),
}

/// A type of accumulators. Integers wrap.
pub trait Real: Copy + Default + Send + Sync + 'static {
    fn kernels(level: Level) -> &'static Kernels<Self>;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}
impl Real for f32 {
    fn plus(self, other: f32) -> f32 {
        self + other
    }
    fn times(self, other: f32) -> f32 {
        self * other
    }
    fn kernels(level: Level) -> &'static Kernels<f32> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &avx2_f32::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => &avx512_f32::KERNELS,
            _ => &portable_f32::KERNELS,
        }
    }
}
impl Real for f64 {
    fn plus(self, other: f64) -> f64 {
        self + other
    }
    fn times(self, other: f64) -> f64 {
        self * other
    }
    fn kernels(level: Level) -> &'static Kernels<f64> {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => &avx2_f64::KERNELS,
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 | Level::Amx => &avx512_f64::KERNELS,
            _ => &portable_f64::KERNELS,
        }
    }
}

macro_rules! integer {
    ($t:ty, $portable:ident, $avx2:ident, $avx512:ident) => {
        impl Real for $t {
            fn plus(self, other: $t) -> $t {
                self.wrapping_add(other)
            }
            fn times(self, other: $t) -> $t {
                self.wrapping_mul(other)
            }
            fn kernels(level: Level) -> &'static Kernels<$t> {
                match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => &$avx2::KERNELS,
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 | Level::Amx => &$avx512::KERNELS,
                    _ => &$portable::KERNELS,
                }
            }
        }
    };
}
integer!(i32, portable_i32, avx2_i32, avx512_i32);
integer!(i64, portable_i64, avx2_i64, avx512_i64);

/// The loops over vectors of `LANES` scalars. The operations on vectors are in scope by name.
macro_rules! kernels {
    ($t:ty, $rows:literal: [$($r:literal)*], $(#[$attr:meta])*) => {
        pub static KERNELS: Kernels<$t> = Kernels {
            mr: $rows,
            nr: 2 * LANES,
            micro: &[$(micro::<$r, false>),*],
            by_rows: &[$(micro::<$r, true>),*],
            dots,
            rows,
        };

        // Loops over register rows need constant bounds to unroll; iterators do not unroll.
        #[allow(clippy::needless_range_loop, clippy::too_many_arguments)]
        $(#[$attr])*
        unsafe fn micro<const R: usize, const BY_ROWS: bool>(
            k: usize,
            mut a: *const $t,
            lda: usize,
            mut b: *const $t,
            ldb: usize,
            c: *mut $t,
            ldc: usize,
            n: usize,
            add: bool,
        ) {
            // SAFETY: the caller's operands hold the elements that `Micro` names.
            unsafe {
                let mut sum = [[zero(); 2]; R];
                for i in 0..R {
                    prefetch(c.wrapping_add(i * ldc));
                    prefetch(c.wrapping_add(i * ldc + LANES));
                }
                let (row, step) = if BY_ROWS { (lda, 1) } else { (1, lda) };
                for _ in 0..k {
                    if !BY_ROWS {
                        prefetch(a.wrapping_add(AHEAD * lda));
                    }
                    prefetch(b.wrapping_add(AHEAD * ldb));
                    // The second cache line, if a row of b has two.
                    if 2 * LANES * size_of::<$t>() > 64 {
                        prefetch(b.wrapping_add(AHEAD * ldb + LANES));
                    }
                    let x = [load(b), load(b.add(LANES))];
                    for i in 0..R {
                        let y = splat(*a.add(i * row));
                        sum[i][0] = fma(y, x[0], sum[i][0]);
                        sum[i][1] = fma(y, x[1], sum[i][1]);
                    }
                    a = a.wrapping_add(step);
                    b = b.wrapping_add(ldb);
                }
                if n == 2 * LANES {
                    for i in 0..R {
                        for j in 0..2 {
                            let at = c.add(i * ldc + j * LANES);
                            let old = if add { load(at) } else { zero() };
                            store(at, if add { plus(sum[i][j], old) } else { sum[i][j] });
                        }
                    }
                    return;
                }
                for i in 0..R {
                    for j in 0..2 {
                        let (at, n) = (c.wrapping_add(i * ldc + j * LANES), n.saturating_sub(j * LANES).min(LANES));
                        let old = if add { load_some(at, n) } else { zero() };
                        store_some(at, if add { plus(sum[i][j], old) } else { sum[i][j] }, n);
                    }
                }
            }
        }

        #[allow(clippy::needless_range_loop)]
        $(#[$attr])*
        unsafe fn dots(k: usize, a: *const $t, b: *const $t, ldb: usize) -> [$t; DOTS] {
            // SAFETY: the vectors hold `k` elements.
            unsafe {
                let mut sum = [[zero(); 2]; DOTS];
                let whole = k - k % (2 * LANES);
                for at in (0..whole).step_by(2 * LANES) {
                    let x = [load(a.add(at)), load(a.add(at + LANES))];
                    for j in 0..DOTS {
                        let from = b.add(j * ldb + at);
                        sum[j][0] = fma(x[0], load(from), sum[j][0]);
                        sum[j][1] = fma(x[1], load(from.add(LANES)), sum[j][1]);
                    }
                }
                for at in (whole..k).step_by(LANES) {
                    let n = (k - at).min(LANES);
                    let x = load_some(a.add(at), n);
                    for j in 0..DOTS {
                        sum[j][0] = fma(x, load_some(b.add(j * ldb + at), n), sum[j][0]);
                    }
                }
                let mut out = [<$t>::default(); DOTS];
                for j in 0..DOTS {
                    let mut lanes = [<$t>::default(); LANES];
                    store(lanes.as_mut_ptr(), plus(sum[j][0], sum[j][1]));
                    // A tree reduction, so that no addition depends on all earlier ones.
                    let mut half = LANES / 2;
                    while half > 0 {
                        for l in 0..half {
                            lanes[l] = lanes[l].plus(lanes[l + half]);
                        }
                        half /= 2;
                    }
                    out[j] = lanes[0];
                }
                out
            }
        }

        $(#[$attr])*
        unsafe fn rows(n: usize, a: &[$t; ROWS], b: *const $t, ldb: usize, c: *mut $t) {
            // SAFETY: the rows and `c` hold `n` elements.
            unsafe {
                let x: [_; ROWS] = std::array::from_fn(|i| a[i]);
                let whole = n - n % LANES;
                for at in (0..whole).step_by(LANES) {
                    let mut sum = load(c.add(at));
                    for (i, x) in x.iter().enumerate() {
                        sum = fma(splat(*x), load(b.add(i * ldb + at)), sum);
                    }
                    store(c.add(at), sum);
                }
                for at in whole..n {
                    for (i, x) in x.iter().enumerate() {
                        *c.add(at) = (*c.add(at)).plus(x.times(*b.add(i * ldb + at)));
                    }
                }
            }
        }
    };
}

/// Vectors of the portable loops: arrays, which the compiler keeps in vector registers.
macro_rules! portable {
    ($name:ident, $t:ty, $lanes:literal) => {
        mod $name {
            use super::{AHEAD, DOTS, Kernels, ROWS, Real, prefetch};
            const LANES: usize = $lanes;
            type V = [$t; LANES];
            #[inline(always)]
            fn zero() -> V {
                [<$t>::default(); LANES]
            }
            #[inline(always)]
            unsafe fn load(p: *const $t) -> V {
                // SAFETY: the caller passes the address of this many elements.
                unsafe { p.cast::<V>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn store(p: *mut $t, v: V) {
                // SAFETY: as for `load`.
                unsafe { p.cast::<V>().write_unaligned(v) }
            }
            /// Loads the first `n` lanes and sets the others to zero.
            #[inline(always)]
            unsafe fn load_some(p: *const $t, n: usize) -> V {
                // SAFETY: the caller passes the address of `n` elements.
                std::array::from_fn(|i| if i < n { unsafe { *p.add(i) } } else { <$t>::default() })
            }
            #[inline(always)]
            unsafe fn store_some(p: *mut $t, v: V, n: usize) {
                // SAFETY: the caller has room for `n` elements.
                unsafe { p.copy_from_nonoverlapping(v.as_ptr(), n.min(LANES)) }
            }
            #[inline(always)]
            fn splat(x: $t) -> V {
                [x; LANES]
            }
            #[inline(always)]
            fn plus(a: V, b: V) -> V {
                std::array::from_fn(|i| a[i].plus(b[i]))
            }
            #[inline(always)]
            fn fma(a: V, b: V, c: V) -> V {
                std::array::from_fn(|i| a[i].times(b[i]).plus(c[i]))
            }
            kernels!($t, 4: [1 2 3 4],);
        }
    };
}
portable!(portable_f32, f32, 4);
portable!(portable_f64, f64, 2);
portable!(portable_i32, i32, 4);
portable!(portable_i64, i64, 2);

/// Vectors of x86: the vector type, its scalar type, and the intrinsics.
macro_rules! x86 {
    (
        $name:ident, $t:ty, $v:ident, $lanes:literal, $rows:literal: [$($r:literal)*], $features:literal,
        $zero:ident, $load:ident, $store:ident, $splat:ident, $plus:ident, $fma:ident
    ) => {
        #[cfg(target_arch = "x86_64")]
        mod $name {
            use super::{AHEAD, DOTS, Kernels, ROWS, Real, prefetch};
            #[allow(unused_imports, reason = "only vectors of integers need them")]
            use super::integers::*;
            use std::arch::x86_64::*;
            const LANES: usize = $lanes;
            type V = $v;
            #[target_feature(enable = $features)]
            fn zero() -> V {
                $zero()
            }
            #[target_feature(enable = $features)]
            unsafe fn load(p: *const $t) -> V {
                // SAFETY: the caller passes the address of a whole vector.
                unsafe { $load(p) }
            }
            #[target_feature(enable = $features)]
            unsafe fn store(p: *mut $t, v: V) {
                // SAFETY: as for `load`.
                unsafe { $store(p, v) }
            }
            /// Loads the first `n` lanes and sets the others to zero.
            #[target_feature(enable = $features)]
            unsafe fn load_some(p: *const $t, n: usize) -> V {
                // SAFETY: the caller passes the address of `n` elements; no others are read.
                unsafe { super::some::$name::load(p, n) }
            }
            #[target_feature(enable = $features)]
            unsafe fn store_some(p: *mut $t, v: V, n: usize) {
                // SAFETY: the caller has room for `n` elements; others are not written.
                unsafe { super::some::$name::store(p, v, n) }
            }
            #[target_feature(enable = $features)]
            fn splat(x: $t) -> V {
                $splat(x)
            }
            #[target_feature(enable = $features)]
            fn plus(a: V, b: V) -> V {
                $plus(a, b)
            }
            #[target_feature(enable = $features)]
            fn fma(a: V, b: V, c: V) -> V {
                $fma(a, b, c)
            }
            kernels!($t, $rows: [$($r)*], #[target_feature(enable = $features)]);
        }
    };
}
x86!(
    avx2_f32, f32, __m256, 8, 6: [1 2 3 4 5 6], "avx2,fma",
    _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_add_ps, _mm256_fmadd_ps
);
x86!(
    avx2_f64, f64, __m256d, 4, 6: [1 2 3 4 5 6], "avx2,fma",
    _mm256_setzero_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_set1_pd, _mm256_add_pd, _mm256_fmadd_pd
);
x86!(
    avx512_f32, f32, __m512, 16, 14: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx2,fma",
    _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_set1_ps, _mm512_add_ps, _mm512_fmadd_ps
);
x86!(
    avx512_f64, f64, __m512d, 8, 14: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx2,fma",
    _mm512_setzero_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_set1_pd, _mm512_add_pd, _mm512_fmadd_pd
);
x86!(
    avx2_i32, i32, __m256i, 8, 6: [1 2 3 4 5 6], "avx2,fma",
    _mm256_setzero_si256, load_256, store_256, _mm256_set1_epi32, _mm256_add_epi32, multiply_add_8_i32
);
x86!(
    avx2_i64, i64, __m256i, 4, 6: [1 2 3 4 5 6], "avx2,fma",
    _mm256_setzero_si256, load_256, store_256, _mm256_set1_epi64x, _mm256_add_epi64, multiply_add_4_i64
);
x86!(
    avx512_i32, i32, __m512i, 16, 14: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx512dq,avx2,fma",
    _mm512_setzero_si512, load_512, store_512, _mm512_set1_epi32, _mm512_add_epi32, multiply_add_16_i32
);
x86!(
    avx512_i64, i64, __m512i, 8, 14: [1 2 3 4 5 6 7 8 9 10 11 12 13 14], "avx512f,avx512dq,avx2,fma",
    _mm512_setzero_si512, load_512, store_512, _mm512_set1_epi64, _mm512_add_epi64, multiply_add_8_i64
);

/// Vectors of integers: loads and stores of any lanes, and `a b + c`.
#[cfg(target_arch = "x86_64")]
mod integers {
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub unsafe fn load_256<T>(p: *const T) -> __m256i {
        // SAFETY: the caller passes the address of a whole vector.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[target_feature(enable = "avx2")]
    pub unsafe fn store_256<T>(p: *mut T, v: __m256i) {
        // SAFETY: as for `load_256`.
        unsafe { _mm256_storeu_si256(p.cast(), v) }
    }
    #[target_feature(enable = "avx512f")]
    pub unsafe fn load_512<T>(p: *const T) -> __m512i {
        // SAFETY: as for `load_256`.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[target_feature(enable = "avx512f")]
    pub unsafe fn store_512<T>(p: *mut T, v: __m512i) {
        // SAFETY: as for `load_256`.
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[target_feature(enable = "avx2")]
    pub fn multiply_add_8_i32(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        _mm256_add_epi32(_mm256_mullo_epi32(a, b), c)
    }
    /// AVX2 multiplies 32 bits by 32: the high halves count for the high half of the product alone.
    #[target_feature(enable = "avx2")]
    pub fn multiply_add_4_i64(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
        let high = |v| _mm256_srli_epi64::<32>(v);
        let crossed = _mm256_add_epi64(_mm256_mul_epu32(high(a), b), _mm256_mul_epu32(a, high(b)));
        let product = _mm256_add_epi64(_mm256_mul_epu32(a, b), _mm256_slli_epi64::<32>(crossed));
        _mm256_add_epi64(product, c)
    }
    #[target_feature(enable = "avx512f")]
    pub fn multiply_add_16_i32(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        _mm512_add_epi32(_mm512_mullo_epi32(a, b), c)
    }
    #[target_feature(enable = "avx512f,avx512dq")]
    pub fn multiply_add_8_i64(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
        _mm512_add_epi64(_mm512_mullo_epi64(a, b), c)
    }
}

/// Masked loads and stores of the first lanes of a vector; the form of the mask depends on the instruction set.
#[cfg(target_arch = "x86_64")]
mod some {
    macro_rules! some {
        (
            $name:ident, $t:ty, $v:ident, $features:literal,
            |$n:ident| $mask:expr,
            |$p:ident, $m:ident| $load:expr,
            |$q:ident, $k:ident, $x:ident| $store:expr
        ) => {
            pub mod $name {
                use std::arch::x86_64::*;
                #[target_feature(enable = $features)]
                pub unsafe fn load($p: *const $t, $n: usize) -> $v {
                    let $m = $mask;
                    // SAFETY: the caller passes the address of `n` elements.
                    unsafe { $load }
                }
                #[target_feature(enable = $features)]
                pub unsafe fn store($q: *mut $t, $x: $v, $n: usize) {
                    let $k = $mask;
                    // SAFETY: the caller has room for `n` elements.
                    unsafe { $store }
                }
            }
        };
    }
    some!(
        avx2_f32,
        f32,
        __m256,
        "avx2,fma",
        |n| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        |p, m| _mm256_maskload_ps(p, m),
        |q, k, x| _mm256_maskstore_ps(q, k, x)
    );
    some!(
        avx2_f64,
        f64,
        __m256d,
        "avx2,fma",
        |n| _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)),
        |p, m| _mm256_maskload_pd(p, m),
        |q, k, x| _mm256_maskstore_pd(q, k, x)
    );
    some!(
        avx512_f32,
        f32,
        __m512,
        "avx512f,avx2,fma",
        |n| ((1u32 << n) - 1) as __mmask16,
        |p, m| _mm512_maskz_loadu_ps(m, p),
        |q, k, x| _mm512_mask_storeu_ps(q, k, x)
    );
    some!(
        avx512_f64,
        f64,
        __m512d,
        "avx512f,avx2,fma",
        |n| ((1u32 << n) - 1) as __mmask8,
        |p, m| _mm512_maskz_loadu_pd(m, p),
        |q, k, x| _mm512_mask_storeu_pd(q, k, x)
    );
    some!(
        avx2_i32,
        i32,
        __m256i,
        "avx2,fma",
        |n| _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        |p, m| _mm256_maskload_epi32(p, m),
        |q, k, x| _mm256_maskstore_epi32(q, k, x)
    );
    some!(
        avx2_i64,
        i64,
        __m256i,
        "avx2,fma",
        |n| _mm256_cmpgt_epi64(_mm256_set1_epi64x(n as i64), _mm256_setr_epi64x(0, 1, 2, 3)),
        |p, m| _mm256_maskload_epi64(p, m),
        |q, k, x| _mm256_maskstore_epi64(q, k, x)
    );
    some!(
        avx512_i32,
        i32,
        __m512i,
        "avx512f,avx512dq,avx2,fma",
        |n| ((1u32 << n) - 1) as __mmask16,
        |p, m| _mm512_maskz_loadu_epi32(m, p),
        |q, k, x| _mm512_mask_storeu_epi32(q, k, x)
    );
    some!(
        avx512_i64,
        i64,
        __m512i,
        "avx512f,avx512dq,avx2,fma",
        |n| ((1u32 << n) - 1) as __mmask8,
        |p, m| _mm512_maskz_loadu_epi64(m, p),
        |q, k, x| _mm512_mask_storeu_epi64(q, k, x)
    );
}
