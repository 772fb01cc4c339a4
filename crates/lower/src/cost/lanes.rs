//! Where the lanes of a warp are in a nest, and the cache lines and sectors that their accesses touch.
use crate::cost::features::{Access, NestFeatures};
use crate::cost::price::Bit;
use kiln_machine::isa::SECTOR;

/// Bytes of a cache line.
pub(super) const LINE: usize = 128;
/// Bytes that memory reads or writes at once.
const GRAIN: f64 = 64.0;

/// Where each lane of a warp is along the coordinates of a nest. `splits`: coordinates of each split axis, the last one
/// fastest.
pub(super) fn places(facts: &NestFeatures, splits: &[&[usize]], lanes: &[Bit]) -> Vec<Vec<i64>> {
    let place = |lane: usize| {
        let mut at = vec![0; facts.coords.len()];
        for (n, coords) in splits.iter().enumerate() {
            let of_axis = lanes.iter().enumerate().filter(|(i, bit)| bit.0 == n && lane >> i & 1 == 1);
            let mut index: usize = of_axis.map(|(_, bit)| 1usize << bit.1).sum();
            for (digit, i) in coords.iter().enumerate().rev() {
                let extent = if digit == 0 { usize::MAX } else { facts.coords[*i].0 };
                at[*i] = (index % extent) as i64;
                index /= extent;
            }
        }
        at
    };
    (0..1usize << lanes.len().min(5)).map(place).collect()
}

/// Bytes from the base of a buffer where each of these places is, in order. An access at a computed position is taken
/// to be at the next element.
fn starts(access: &Access, places: &[Vec<i64>]) -> Vec<i64> {
    let start = |at: &Vec<i64>| {
        let element: i64 = at.iter().zip(&access.strides).map(|(n, s)| n * s.unwrap_or(1)).sum();
        element * access.bytes as i64
    };
    let mut all: Vec<i64> = places.iter().map(start).collect();
    all.sort_unstable();
    all
}

/// Cache lines in which these places are.
pub(super) fn lines(access: &Access, places: &[Vec<i64>]) -> f64 {
    let mut touched: Vec<i64> = starts(access, places).iter().map(|at| at.div_euclid(LINE as i64)).collect();
    touched.dedup();
    touched.len() as f64
}

/// Sectors and cache lines that a store of so many bytes at each of these places touches, where addresses are multiples
/// of `align`.
pub(super) fn written(access: &Access, places: &[Vec<i64>], bytes: usize, align: usize) -> [f64; 2] {
    let starts = starts(access, places);
    let near = |pair: &[i64]| pair[1] < pair[0] + bytes as i64 + SECTOR as i64;
    let mut from = 0;
    let mut sum = [0.0; 2];
    for at in 1..=starts.len() {
        if at == starts.len() || !near(&starts[at - 1..=at]) {
            let length = (starts[at - 1] - starts[from]) as usize + bytes;
            sum[0] += of_run(length, align);
            sum[1] += lines_of_run(length, align);
            from = at;
        }
    }
    sum
}

/// Passes of shared memory in which a warp reads an element a lane of rows of `row` elements that follow each other,
/// with 2^`along` lanes along each, `spacing` elements from each other.
pub(super) fn passes(row: usize, (along, spacing): (u32, usize), bytes: usize) -> f64 {
    let word = |lane: usize| ((lane >> along) * row + lane % (1 << along) * spacing) * bytes / 4;
    let mut words: Vec<usize> = (0..32).map(word).collect();
    words.dedup();
    let of_bank = |bank: usize| words.iter().filter(|w| **w % 32 == bank).count();
    (0..32).map(of_bank).max().unwrap_or(1) as f64
}

/// Sectors of so many bytes in a row that start at any multiple of `align`.
pub(super) fn of_run(bytes: usize, align: usize) -> f64 {
    1.0 + (bytes as f64 - align as f64).max(0.0) / SECTOR as f64
}

/// Bytes that memory moves for a store of them: it reads what it writes a part of.
pub(super) fn moved(bytes: usize, align: usize) -> f64 {
    GRAIN + (bytes as f64 - align as f64).max(0.0)
}

/// Cache lines of them; whole sectors are taken to start at a line.
pub(super) fn lines_of_run(bytes: usize, align: usize) -> f64 {
    match align < SECTOR {
        true => 1.0 + (bytes as f64 - align as f64).max(0.0) / LINE as f64,
        false => (bytes as f64 / LINE as f64).ceil(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kiln_plan::exec::Slot;

    /// 32 lanes, so many elements from each other.
    fn lanes(spacing: i64) -> Vec<Vec<i64>> {
        (0..32).map(|lane| vec![lane * spacing]).collect()
    }

    #[test]
    fn staged_rows_meet_in_banks() {
        assert_eq!(passes(255, (5, 1), 2), 1.0, "a row of its own");
        assert_eq!(passes(255, (3, 1), 2), 4.0, "four rows, 127.5 words apart");
        assert_eq!(passes(72, (3, 1), 4), 1.0, "four rows, 8 words apart in the banks");
        assert_eq!(passes(64, (2, 1), 4), 8.0, "eight rows at the same banks");
        assert_eq!(passes(1943, (5, 8), 2), 4.0, "a row of its own, 4 words apart");
    }

    #[test]
    fn lines_and_sectors_of_a_warp() {
        let access = Access {
            slot: Slot::Output(0),
            bytes: 2,
            store: true,
            strides: vec![Some(1)],
            offset: 0,
            share: 1.0,
            within: vec![32],
            after_reductions: true,
            live_across: false,
            gathered: false,
            guarded: false,
            shares_sectors: false,
            same_strides_as: 0,
            same_bounds_as: 0,
        };
        assert_eq!(written(&access, &lanes(8), 16, 32), [16.0, 4.0], "vectors of 16 bytes");
        assert_eq!(written(&access, &lanes(1), 2, 32), [2.0, 1.0], "neighbouring elements");
        assert_eq!(written(&access, &lanes(1), 2, 2), [1.0 + 62.0 / 32.0, 1.0 + 62.0 / 128.0], "at any even address");
        assert_eq!(
            written(&access, &lanes(8), 2, 32),
            [1.0 + (31.0 * 16.0 + 2.0 - 32.0) / 32.0, 4.0],
            "one of 8 elements"
        );
        assert_eq!(written(&access, &lanes(1000), 2, 32), [32.0, 32.0]);
        assert_eq!(
            (lines(&access, &lanes(8)), lines(&access, &lanes(1)), lines(&access, &lanes(1000))),
            (4.0, 1.0, 32.0)
        );
    }
}
