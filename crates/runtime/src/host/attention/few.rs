//! A few queries in bf16 over keys and values as they lie in memory, by vectors: the loops read everything once, so
//! that memory bounds them. Where there is a matrix unit there is AVX-512 BF16.
use crate::host::gemm::amx::STEP;
use std::arch::x86_64::*;

/// Keys whose dot products are summed together.
const KEYS: usize = 4;
/// Lanes of a vector of f32.
const LANES: usize = 16;

/// Dot products of a query with `n` keys, which begin `pitch` elements apart.
///
/// # Safety
/// The keys exist, with `depth` elements each; the query has zeros up to a multiple of [`STEP`]. The processor has
/// AVX-512 F, BW, VL, BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub unsafe fn dots(depth: usize, query: *const u16, keys: *const u16, pitch: usize, n: usize, to: *mut f32) {
    for key in (0..n).step_by(KEYS) {
        let count = KEYS.min(n - key);
        let mut sums = [_mm512_setzero_ps(); KEYS];
        for at in (0..depth).step_by(STEP) {
            let some = u32::MAX >> (STEP - STEP.min(depth - at));
            // SAFETY: this function's contract; masked elements are not read. The types have the same bits.
            unsafe {
                let q = std::mem::transmute::<__m512i, __m512bh>(_mm512_loadu_si512(query.add(at).cast()));
                for (i, sum) in sums.iter_mut().enumerate() {
                    // Beyond the last key, the last again.
                    let k = keys.add((key + i.min(count - 1)) * pitch + at);
                    let k = std::mem::transmute::<__m512i, __m512bh>(_mm512_maskz_loadu_epi16(some, k.cast()));
                    *sum = _mm512_dpbf16_ps(*sum, q, k);
                }
            }
        }
        let [a, b, c, d] = sums;
        let two = |a, b| _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
        let (ab, cd) = (_mm512_castps_pd(two(a, b)), _mm512_castps_pd(two(c, d)));
        let (low, high) = (_mm512_unpacklo_pd(ab, cd), _mm512_unpackhi_pd(ab, cd));
        let four = _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
        let half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps::<1>(four));
        let out = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps::<1>(half));
        // SAFETY: this function's contract; lanes beyond the last key are not written.
        unsafe { _mm_mask_storeu_ps(to.add(key), (1 << count) - 1, out) };
    }
}

/// Adds `n` values, `pitch` elements apart, each times its probability, to sums. Probability `k` lies at `k / 32 · step
/// + k % 32`.
///
/// # Safety
/// The values exist, with `width` elements each; the sums have room for whole vectors. The processor has AVX-512 F, BW
/// and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub unsafe fn add(
    (probabilities, step): (*const u16, usize),
    n: usize,
    (values, pitch): (*const u16, usize),
    width: usize,
    sums: *mut f32,
) {
    let mut at = 0;
    while at < width {
        let left = width - at;
        let (values, sums) = (values.wrapping_add(at), sums.wrapping_add(at));
        let p = (probabilities, step);
        // SAFETY: this function's contract.
        at += unsafe {
            match left.div_ceil(LANES) {
                1 => columns::<1>(p, n, (values, pitch), left, sums),
                2 => columns::<2>(p, n, (values, pitch), left, sums),
                3 => columns::<3>(p, n, (values, pitch), left, sums),
                _ => columns::<4>(p, n, (values, pitch), left, sums),
            }
        };
    }
}

/// As [`add`], for `N` vectors of columns, of which `left` elements exist. Gives the number of columns.
///
/// # Safety
/// As [`add`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn columns<const N: usize>(
    (probabilities, step): (*const u16, usize),
    n: usize,
    (values, pitch): (*const u16, usize),
    left: usize,
    sums: *mut f32,
) -> usize {
    let some: [__mmask16; N] =
        std::array::from_fn(|i| (u32::from(u16::MAX) >> (LANES - LANES.min(left - i * LANES))) as __mmask16);
    // SAFETY: this function's contract; masked elements are not read.
    unsafe {
        let mut own = [_mm512_setzero_ps(); N];
        for key in 0..n {
            let p = *probabilities.add(key / STEP * step + key % STEP);
            let p = _mm512_set1_ps(f32::from_bits(u32::from(p) << 16));
            for i in 0..N {
                let value = values.add(key * pitch + i * LANES);
                let value = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some[i], value.cast()));
                own[i] = _mm512_fmadd_ps(p, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(value)), own[i]);
            }
        }
        for (i, own) in own.into_iter().enumerate() {
            let sum = sums.add(i * LANES);
            _mm512_storeu_ps(sum, _mm512_add_ps(_mm512_loadu_ps(sum), own));
        }
    }
    N * LANES
}
