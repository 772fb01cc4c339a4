//! Packing: copies parts of strided operands to panels. Half types are widened in the process, and results are
//! narrowed.
//!
//! Takes: an operand with the axes of its lanes and of its depth. Gives: panels of a few lanes (rows of a, or columns
//! of b) over some depth: lane `l` at depth `k` is element `k·pitch + l`, and lanes beyond the operand are zero.
use super::kernel::Real;
use super::prefetch::prefetch;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use kiln_cpu::Level;
use kiln_plan::exec::Axis;

/// Most lanes of a panel.
pub const LANES: usize = 32;

/// A type of operands and results.
pub trait Element: Copy + Send + Sync + 'static {
    /// The type of accumulators.
    type Acc: Real;
    fn widen(self) -> Self::Acc;
    /// Rounds to the nearest, ties to even; integers keep their low bits.
    fn narrow(from: &[Self::Acc], to: &mut [Self]);
    fn packing(level: Level) -> Packing<Self>;
}

/// The inner loops of packing.
#[derive(Clone, Copy)]
pub struct Packing<S: Element> {
    /// Transposes `n ≤ pitch` lanes, `stride` apart and contiguous along the depth, into a panel of this depth.
    transpose_lanes: unsafe fn(from: *const S, stride: usize, n: usize, depth: usize, to: *mut S::Acc, pitch: usize),
    /// Copies consecutive runs of lanes into a panel, at these offsets along the depth.
    gather: unsafe fn(from: *const S, runs: &[Run], depth: &[usize], to: *mut S::Acc, pitch: usize),
}

/// The axes of the rows, or of the columns, of an operand. A position counts over all of them, the last axis fastest.
#[derive(Clone, Copy)]
pub struct Side<'a>(pub &'a [Axis]);

impl Side<'_> {
    /// The stride, if there is only one; 0 for a single position.
    pub fn stride(self) -> Option<usize> {
        match self.0 {
            [] => Some(0),
            [only] => Some(only.stride),
            _ => None,
        }
    }
    /// Offset of position `i` in elements.
    pub fn at(self, i: usize) -> usize {
        let mut rest = i;
        let mut offset = 0;
        for a in self.0.iter().rev() {
            offset += rest % a.size * a.stride;
            rest /= a.size;
        }
        offset
    }
    /// Divides `from..to` into stretches with one stride each, and calls `f(first, count, offset, stride)`; `first`
    /// counts from `from`.
    pub fn stretches(self, from: usize, to: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
        let (size, stride) = self.0.last().map_or((to.max(1), 0), |a| (a.size, a.stride));
        let mut i = from;
        while i < to {
            let count = (size - i % size).min(to - i);
            f(i - from, count, self.at(i), stride);
            i += count;
        }
    }
}

/// An operand to pack: its address, and the axes of its lanes and of its depth.
pub struct Source<'a, S> {
    pub at: *const S,
    pub lanes: Side<'a>,
    pub depth: Side<'a>,
}
impl<S> Clone for Source<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S> Copy for Source<'_, S> {}

/// Prefetch distances of packing: in steps of depth for `gather`, in elements along the depth for `transpose_lanes`.
const AHEAD: [usize; 2] = [8, 48];

/// Packs lanes `lane..lane + n` over depths `from..from + depth` into consecutive panels.
///
/// # Safety
/// The source holds all these elements, and `to` has room for the panels; `pitch ≤ LANES`.
pub unsafe fn pack<S: Element>(
    level: Level,
    s: Source<S>,
    [lane, n]: [usize; 2],
    [from, depth]: [usize; 2],
    to: *mut S::Acc,
    pitch: usize,
) {
    debug_assert!(pitch <= LANES);
    let p = S::packing(level);
    let panels = (0..n).step_by(pitch).map(|l| (l, pitch.min(n - l)));
    // SAFETY: this function's contract; all offsets lie within the source and the panels.
    unsafe {
        match (s.lanes.stride(), s.depth.stride()) {
            (Some(lanes), Some(1)) if lanes != 1 => {
                let at = s.at.add(lane * lanes + from);
                panels.for_each(|(l, n)| {
                    (p.transpose_lanes)(at.add(l * lanes), lanes, n, depth, to.add(l * depth), pitch)
                });
            }
            _ => gather(p, s, [lane, n], [from, depth], to, pitch),
        }
    }
}

/// Consecutive lanes of a panel with one stride.
#[derive(Clone, Copy, Default)]
pub struct Run {
    /// First lane, and number of lanes.
    lane: usize,
    len: usize,
    /// Offset of the first lane, and from each lane to the next, in elements of the source.
    offset: usize,
    stride: usize,
}

/// The general case. Computes offsets along the depth once for all panels, and runs of lanes once per panel.
///
/// # Safety
/// As [`pack`].
unsafe fn gather<S: Element>(
    p: Packing<S>,
    s: Source<S>,
    [lane, n]: [usize; 2],
    [from, depth]: [usize; 2],
    to: *mut S::Acc,
    pitch: usize,
) {
    let mut places = [0; 256];
    for start in (0..depth).step_by(places.len()) {
        let places = &mut places[..(depth - start).min(256)];
        s.depth.stretches(from + start, from + start + places.len(), |first, len, offset, stride| {
            (0..len).for_each(|k| places[first + k] = offset + k * stride);
        });
        for l in (0..n).step_by(pitch) {
            let (mut runs, mut count) = ([Run::default(); LANES], 0);
            s.lanes.stretches(lane + l, lane + n.min(l + pitch), |lane, len, offset, stride| {
                runs[count] = Run { lane, len, offset, stride };
                count += 1;
            });
            // SAFETY: this function's contract.
            unsafe { (p.gather)(s.at, &runs[..count], places, to.add(l * depth + start * pitch), pitch) };
        }
    }
}

/// # Safety
/// As `Packing::transpose_lanes`.
unsafe fn plain_transpose_lanes<S: Element>(
    from: *const S,
    stride: usize,
    n: usize,
    depth: usize,
    to: *mut S::Acc,
    pitch: usize,
) {
    for k in 0..depth {
        for l in 0..pitch {
            // SAFETY: lane `l` starts `l·stride` elements behind the first.
            unsafe {
                *to.add(k * pitch + l) = if l < n { (*from.add(l * stride + k)).widen() } else { S::Acc::default() };
            }
        }
    }
}

/// # Safety
/// As `Packing::gather`.
unsafe fn plain_gather<S: Element>(from: *const S, runs: &[Run], depth: &[usize], to: *mut S::Acc, pitch: usize) {
    for (k, place) in depth.iter().enumerate() {
        // SAFETY: the runs lie within the source, and their lanes within the panel.
        unsafe {
            let (from, to) = (from.add(*place), to.add(k * pitch));
            let mut n = 0;
            for run in runs {
                n = run.lane + run.len;
                for l in 0..run.len {
                    *to.add(run.lane + l) = (*from.add(run.offset + l * run.stride)).widen();
                }
            }
            (n..pitch).for_each(|l| *to.add(l) = S::Acc::default());
        }
    }
}

fn portable<S: Element>() -> Packing<S> {
    Packing { transpose_lanes: plain_transpose_lanes, gather: plain_gather }
}

/// Types with accumulators of their own type, or of a wider integer, whose low bits are the result.
macro_rules! plain {
    ($t:ty, $acc:ty) => {
        impl Element for $t {
            type Acc = $acc;
            fn widen(self) -> $acc {
                self as $acc
            }
            fn narrow(from: &[$acc], to: &mut [$t]) {
                to.iter_mut().zip(from).for_each(|(to, x)| *to = *x as $t);
            }
            fn packing(_: Level) -> Packing<$t> {
                portable()
            }
        }
    };
}
plain!(f64, f64);
plain!(i64, i64);
plain!(i32, i32);
plain!(i16, i32);
plain!(i8, i32);
plain!(u8, i32);

/// Types whose accumulators are f32.
macro_rules! element {
    ($t:ty, $avx2:ident, $widen:expr, $narrow:expr) => {
        impl Element for $t {
            type Acc = f32;
            fn widen(self) -> f32 {
                $widen(self)
            }
            fn narrow(from: &[f32], to: &mut [$t]) {
                $narrow(to, from);
            }
            fn packing(level: Level) -> Packing<$t> {
                match level {
                    Level::Portable => portable(),
                    #[cfg(target_arch = "x86_64")]
                    _ => Packing { transpose_lanes: avx2::$avx2::transpose_lanes, gather: avx2::$avx2::gather },
                }
            }
        }
    };
}
element!(f32, plain, |x| x, <[f32]>::copy_from_slice);
element!(f16, f16s, f16::to_f32, <[f16]>::convert_from_f32_slice);
element!(bf16, bf16s, bf16::to_f32, round);

/// Rounds to the nearest, ties to even; vectorised where the processor allows.
fn round(to: &mut [bf16], from: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if Level::used() >= Level::Avx2 {
        // SAFETY: the processor has the instructions that the function is compiled for.
        return unsafe { avx2::round(to, from) };
    }
    plain_round(to, from);
}

/// Free of branches, so that the compiler can vectorise it.
#[inline(always)]
fn plain_round(to: &mut [bf16], from: &[f32]) {
    for (to, x) in to.iter_mut().zip(from) {
        let bits = x.to_bits();
        let even = bits >> 16 & 1;
        let near = bits.wrapping_add(0x7fff + even) >> 16;
        let nan = bits >> 16 | 0x40;
        *to = bf16::from_bits(if x.is_nan() { nan } else { near } as u16);
    }
}

/// Packing with AVX2 vectors of eight lanes.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use half::bf16;
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx2")]
    pub unsafe fn round(to: &mut [bf16], from: &[f32]) {
        super::plain_round(to, from);
    }

    /// Transposes an 8×8 matrix.
    #[target_feature(enable = "avx2")]
    fn transpose(r: [__m256; 8]) -> [__m256; 8] {
        let pair = |i: usize| {
            [
                [_mm256_unpacklo_ps(r[i], r[i + 1]), _mm256_unpacklo_ps(r[i + 2], r[i + 3])],
                [_mm256_unpackhi_ps(r[i], r[i + 1]), _mm256_unpackhi_ps(r[i + 2], r[i + 3])],
            ]
        };
        let quad = |[lo, hi]: [[__m256; 2]; 2]| {
            [
                _mm256_shuffle_ps::<0b01_00_01_00>(lo[0], lo[1]),
                _mm256_shuffle_ps::<0b11_10_11_10>(lo[0], lo[1]),
                _mm256_shuffle_ps::<0b01_00_01_00>(hi[0], hi[1]),
                _mm256_shuffle_ps::<0b11_10_11_10>(hi[0], hi[1]),
            ]
        };
        let (upper, lower) = (quad(pair(0)), quad(pair(4)));
        let mut out = r;
        for i in 0..4 {
            out[i] = _mm256_permute2f128_ps::<0x20>(upper[i], lower[i]);
            out[i + 4] = _mm256_permute2f128_ps::<0x31>(upper[i], lower[i]);
        }
        out
    }

    /// Stores the first `n` of eight lanes.
    #[target_feature(enable = "avx2")]
    unsafe fn store(to: *mut f32, v: __m256, n: usize) {
        // SAFETY: the caller passes room for `n` elements.
        unsafe {
            if n >= 8 {
                _mm256_storeu_ps(to, v);
            } else {
                let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes), v);
            }
        }
    }

    /// Gathers eight elements, `stride` apart.
    #[target_feature(enable = "avx2")]
    unsafe fn spread(from: *const f32, stride: usize) -> __m256 {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let places = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(stride as i32));
        // SAFETY: the caller ensures that these elements exist and that the stride is below 2²⁸.
        unsafe { _mm256_i32gather_ps::<4>(from, places) }
    }

    type Spread = Option<unsafe fn(*const f32, usize) -> __m256>;
    const SPREAD: Spread = Some(spread);
    const NONE: Spread = None;

    macro_rules! packing {
        ($name:ident, $t:ty, |$p:ident| $load8:expr, $load4:expr, $spread:ident) => {
            pub mod $name {
                use super::super::{AHEAD, Element, Run, prefetch};
                use super::{store, transpose};
                use std::arch::x86_64::*;

                #[target_feature(enable = "avx2,f16c")]
                unsafe fn load8($p: *const $t) -> __m256 {
                    // SAFETY: the caller passes the address of eight elements.
                    unsafe { $load8 }
                }
                #[target_feature(enable = "avx2,f16c")]
                unsafe fn load4($p: *const $t) -> __m128 {
                    // SAFETY: the caller passes the address of four elements.
                    unsafe { $load4 }
                }

                /// Copies `n` elements, `stride` apart.
                #[target_feature(enable = "avx2,f16c")]
                unsafe fn strided(from: *const $t, stride: usize, n: usize, to: *mut f32) {
                    // SAFETY: the elements exist, and `to` has room for `n`.
                    unsafe {
                        let whole = if super::$spread.is_some() && stride < 1 << 28 { n - n % 8 } else { 0 };
                        if let Some(load) = super::$spread {
                            for l in (0..whole).step_by(8) {
                                _mm256_storeu_ps(to.add(l), load(from.add(l * stride).cast(), stride));
                            }
                        }
                        (whole..n).for_each(|l| *to.add(l) = (*from.add(l * stride)).widen());
                    }
                }

                /// Copies `8 V` contiguous lanes at each depth, for panels of this width.
                ///
                /// # Safety
                /// As `Packing::gather`, with one run of `8 V` contiguous lanes that begin at `from`.
                #[target_feature(enable = "avx2,f16c")]
                unsafe fn whole<const V: usize>(from: *const $t, depth: &[usize], to: *mut f32) {
                    for (k, place) in depth.iter().enumerate() {
                        prefetch(from.wrapping_add(*depth.get(k + AHEAD[0]).unwrap_or(place)));
                        // SAFETY: this function's contract.
                        unsafe {
                            let (from, to) = (from.add(*place), to.add(k * 8 * V));
                            (0..V).for_each(|v| _mm256_storeu_ps(to.add(8 * v), load8(from.add(8 * v))));
                        }
                    }
                }

                /// Copies `n` contiguous lanes at each depth. The last vector overlaps the one before.
                ///
                /// # Safety
                /// As `Packing::gather`, with one run of `n` contiguous lanes that begin at `from`.
                #[target_feature(enable = "avx2,f16c")]
                unsafe fn side_by_side(from: *const $t, n: usize, depth: &[usize], to: *mut f32, pitch: usize) {
                    let lines = depth.iter().enumerate().map(|(k, place)| {
                        prefetch(from.wrapping_add(*depth.get(k + AHEAD[0]).unwrap_or(place)));
                        (from.wrapping_add(*place), to.wrapping_add(k * pitch))
                    });
                    // SAFETY: all vectors lie within `n` elements.
                    unsafe {
                        match n {
                            8.. => lines.for_each(|(from, to)| {
                                let mut l = 0;
                                while l + 8 < n {
                                    _mm256_storeu_ps(to.add(l), load8(from.add(l)));
                                    l += 8;
                                }
                                _mm256_storeu_ps(to.add(n - 8), load8(from.add(n - 8)));
                            }),
                            4.. => lines.for_each(|(from, to)| {
                                let (head, tail) = (load4(from), load4(from.add(n - 4)));
                                _mm_storeu_ps(to, head);
                                _mm_storeu_ps(to.add(n - 4), tail);
                            }),
                            _ => lines.for_each(|(from, to)| (0..n).for_each(|l| *to.add(l) = (*from.add(l)).widen())),
                        }
                    }
                }

                #[target_feature(enable = "avx2,f16c")]
                pub unsafe fn gather(from: *const $t, runs: &[Run], depth: &[usize], to: *mut f32, pitch: usize) {
                    let n = runs.last().map_or(0, |r| r.lane + r.len);
                    // SAFETY: the runs lie within the source, and their lanes within the panel.
                    unsafe {
                        match (runs, pitch) {
                            ([Run { len: 16, stride: 1, offset, .. }], 16) => {
                                return whole::<2>(from.add(*offset), depth, to);
                            }
                            ([Run { len: 32, stride: 1, offset, .. }], 32) => {
                                return whole::<4>(from.add(*offset), depth, to);
                            }
                            _ => {}
                        }
                        for r in runs {
                            let (from, to) = (from.wrapping_add(r.offset), to.add(r.lane));
                            match r.stride {
                                1 => side_by_side(from, r.len, depth, to, pitch),
                                s => depth.iter().enumerate().for_each(|(k, place)| {
                                    strided(from.wrapping_add(*place), s, r.len, to.add(k * pitch));
                                }),
                            }
                        }
                        if n < pitch {
                            for k in 0..depth.len() {
                                (n..pitch).for_each(|l| *to.add(k * pitch + l) = 0.0);
                            }
                        }
                    }
                }

                #[target_feature(enable = "avx2,f16c")]
                pub unsafe fn transpose_lanes(
                    from: *const $t,
                    stride: usize,
                    n: usize,
                    depth: usize,
                    to: *mut f32,
                    pitch: usize,
                ) {
                    // SAFETY: lanes beyond `n` are not read, and those beyond `pitch` are not written.
                    unsafe {
                        let whole = depth - depth % 8;
                        for l in (0..pitch).step_by(8) {
                            for k in (0..whole).step_by(8) {
                                let mut r = [_mm256_setzero_ps(); 8];
                                let from = from.wrapping_add(l * stride + k);
                                match n.saturating_sub(l) {
                                    8.. => (0..8).for_each(|i| {
                                        prefetch(from.wrapping_add(i * stride + AHEAD[1]));
                                        r[i] = load8(from.add(i * stride));
                                    }),
                                    few => (0..few).for_each(|i| r[i] = load8(from.add(i * stride))),
                                }
                                for (i, v) in transpose(r).into_iter().enumerate() {
                                    store(to.add((k + i) * pitch + l), v, pitch - l);
                                }
                            }
                        }
                        for k in whole..depth {
                            for l in 0..pitch {
                                *to.add(k * pitch + l) = if l < n { (*from.add(l * stride + k)).widen() } else { 0.0 };
                            }
                        }
                    }
                }
            }
        };
    }
    packing!(plain, f32, |p| _mm256_loadu_ps(p), _mm_loadu_ps(p), SPREAD);
    packing!(
        f16s,
        half::f16,
        |p| _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
        _mm_cvtph_ps(_mm_loadl_epi64(p.cast())),
        NONE
    );
    packing!(
        bf16s,
        half::bf16,
        |p| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())))),
        _mm_castsi128_ps(_mm_slli_epi32::<16>(_mm_cvtepu16_epi32(_mm_loadl_epi64(p.cast())))),
        NONE
    );
}
