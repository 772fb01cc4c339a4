//! Packs bf16 operands into panels for the matrix unit.
//!
//! Sixteen lanes over 32 depths fill sixteen registers, in one of two forms. In tiles of a, a register holds one lane
//! over all depths; in tiles of b, it holds one pair of depths for all lanes. An operand is read in the form that its
//! memory layout gives; transposing the 4-byte elements turns one form into the other.
use super::{LANES, Operand, STEP, padded};
use crate::host::gemm::pack::Source;
use std::arch::x86_64::*;

/// Lanes of a tile.
const SIDE: usize = 16;
/// Elements of a tile.
const TILE: usize = SIDE * STEP;

type Tile = [__m512i; SIDE];

/// Packs lanes `lane..lane + n` over all of K into one panel.
///
/// # Safety
/// The source holds all these elements, and `to` has room for a panel; `0 < n ≤ LANES`. The processor has AVX-512 F and
/// BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub unsafe fn pack(operand: Operand, s: Source<u16>, [lane, n]: [usize; 2], depth: usize, to: *mut u16) {
    for half in 0..LANES / SIDE {
        let n = n.saturating_sub(half * SIDE).min(SIDE);
        let first = lane + half * SIDE;
        for k in (0..padded(depth)).step_by(STEP) {
            let to = to.wrapping_add(k * LANES + half * TILE);
            let count = STEP.min(depth - k);
            // SAFETY: this function's contract.
            unsafe {
                let (by_lane, tile) = read(s, [first, n], [k, count]);
                let tile = if by_lane == (operand == Operand::A) { tile } else { transposed(tile) };
                for (i, row) in tile.iter().enumerate() {
                    _mm512_storeu_si512(to.add(i * STEP).cast(), *row);
                }
            }
        }
    }
}

/// Reads some lanes over some depths, padded with zeros. Returns whether a register holds a lane, and the registers.
///
/// # Safety
/// The source holds these elements.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn read(s: Source<u16>, [lane, n]: [usize; 2], [k, count]: [usize; 2]) -> (bool, Tile) {
    let mut tile = [_mm512_setzero_si512(); SIDE];
    // SAFETY: this function's contract; masked elements are not read.
    unsafe {
        match (s.lanes.stride(), s.depth.stride()) {
            (Some(stride), Some(1)) => {
                let mask = u32::MAX >> (STEP - count);
                for (i, row) in tile.iter_mut().enumerate().take(n) {
                    *row = _mm512_maskz_loadu_epi16(mask, s.at.add((lane + i) * stride + k).cast());
                }
                (true, tile)
            }
            (Some(1), Some(stride)) => {
                let at = s.at.wrapping_add(lane);
                let line = |k| words(at.wrapping_add(k * stride), n);
                for (i, pair) in tile.iter_mut().enumerate().take(count.div_ceil(2)) {
                    let (even, odd) = (k + 2 * i, k + 2 * i + 1);
                    let high = if odd < k + count { line(odd) } else { _mm512_setzero_si512() };
                    *pair = paired(line(even), high);
                }
                (false, tile)
            }
            _ => (false, gathered(s, [lane, n], [k, count])),
        }
    }
}

/// Loads the first `n` of sixteen elements as 32-bit integers; the others are zero.
///
/// # Safety
/// These `n` elements exist.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn words(at: *const u16, n: usize) -> __m512i {
    let mask = ((1u32 << n) - 1) as __mmask32;
    // SAFETY: this function's contract.
    let both = unsafe { _mm512_maskz_loadu_epi16(mask, at.cast()) };
    _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both))
}

/// Interleaves the elements of two depths to pairs.
#[target_feature(enable = "avx512f,avx512bw")]
fn paired(even: __m512i, odd: __m512i) -> __m512i {
    _mm512_or_si512(even, _mm512_slli_epi32::<16>(odd))
}

/// Consecutive lanes with one stride: the first lane, their number, the offset of the first, and the stride.
#[derive(Clone, Copy, Default)]
struct Run {
    first: usize,
    len: usize,
    offset: usize,
    stride: usize,
}

/// The general case: reads runs of lanes, and pairs depths.
///
/// # Safety
/// The source holds these elements.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn gathered(s: Source<u16>, [lane, n]: [usize; 2], [k, count]: [usize; 2]) -> Tile {
    let (mut runs, mut some) = ([Run::default(); SIDE], 0);
    s.lanes.stretches(lane, lane + n, |first, len, offset, stride| {
        runs[some] = Run { first, len, offset, stride };
        some += 1;
    });
    let mut lines = [_mm512_setzero_si512(); STEP];
    s.depth.stretches(k, k + count, |first, len, offset, stride| {
        for (i, line) in lines[first..first + len].iter_mut().enumerate() {
            let at = s.at.wrapping_add(offset + i * stride);
            // SAFETY: this function's contract.
            *line = unsafe { line_of(at, &runs[..some]) };
        }
    });
    std::array::from_fn(|i| paired(lines[2 * i], lines[2 * i + 1]))
}

/// Loads sixteen elements of one depth as 32-bit integers.
///
/// # Safety
/// The elements of the runs exist; others are not read.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn line_of(at: *const u16, runs: &[Run]) -> __m512i {
    let mut line = _mm512_setzero_si512();
    for r in runs {
        let lanes = ((1u32 << r.len) - 1) << r.first;
        // The address that lane 0 would have.
        let start = at.wrapping_add(r.offset).wrapping_sub(r.first * r.stride);
        // SAFETY: this function's contract.
        let some = unsafe {
            match r.stride {
                1 => _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_maskz_loadu_epi16(lanes, start.cast()))),
                // With stride 2, the mask leaves each element in the lower half of its 32-bit lane.
                2 => _mm512_maskz_loadu_epi16(spread(lanes), start.cast()),
                stride => {
                    let mut words = [0u32; SIDE];
                    for (lane, word) in words.iter_mut().enumerate().skip(r.first).take(r.len) {
                        *word = u32::from(*start.wrapping_add(lane * stride));
                    }
                    _mm512_loadu_si512(words.as_ptr().cast())
                }
            }
        };
        line = _mm512_or_si512(line, some);
    }
    line
}

/// The lower 16 bits, each followed by a zero bit.
fn spread(bits: u32) -> u32 {
    [(8, 0x00ff_00ff), (4, 0x0f0f_0f0f), (2, 0x3333_3333), (1, 0x5555_5555)]
        .into_iter()
        .fold(bits & 0xffff, |bits, (by, mask)| (bits | bits << by) & mask)
}

/// Transposes a matrix of sixteen by sixteen 4-byte elements.
#[target_feature(enable = "avx512f,avx512bw")]
fn transposed(r: Tile) -> Tile {
    // Register j holds elements 4·q + j of rows i to i + 3, for every quarter q; i is a multiple of four.
    let quarters = |i: usize| {
        let low = [_mm512_unpacklo_epi32(r[i], r[i + 1]), _mm512_unpacklo_epi32(r[i + 2], r[i + 3])];
        let high = [_mm512_unpackhi_epi32(r[i], r[i + 1]), _mm512_unpackhi_epi32(r[i + 2], r[i + 3])];
        [
            _mm512_unpacklo_epi64(low[0], low[1]),
            _mm512_unpackhi_epi64(low[0], low[1]),
            _mm512_unpacklo_epi64(high[0], high[1]),
            _mm512_unpackhi_epi64(high[0], high[1]),
        ]
    };
    let q = [quarters(0), quarters(4), quarters(8), quarters(12)];
    let mut out = r;
    for j in 0..4 {
        let [a, b, c, d] = [q[0][j], q[1][j], q[2][j], q[3][j]];
        let even = [_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d)];
        let odd = [_mm512_shuffle_i32x4::<0b11_01_11_01>(a, b), _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d)];
        out[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even[0], even[1]);
        out[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd[0], odd[1]);
        out[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even[0], even[1]);
        out[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd[0], odd[1]);
    }
    out
}
