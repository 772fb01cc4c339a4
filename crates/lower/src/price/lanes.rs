//! Where the lanes of a warp are in a nest, and the cache lines that their accesses touch.
use super::Bit;
use crate::facts::{Access, Facts};

/// Bytes of a cache line.
pub(super) const LINE: usize = 128;

/// Where each lane of a warp is along the coordinates of a nest. `splits`: coordinates of each split axis, the last one fastest.
pub(super) fn places(facts: &Facts, splits: &[&[usize]], lanes: &[Bit]) -> Vec<Vec<i64>> {
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

/// Cache lines in which these places are. An access at a computed position is taken to be at the next element.
pub(super) fn lines(access: &Access, places: &[Vec<i64>]) -> f64 {
    let line = |at: &Vec<i64>| {
        let element: i64 = at.iter().zip(&access.strides).map(|(n, s)| n * s.unwrap_or(1)).sum();
        (element * access.bytes as i64).div_euclid(LINE as i64)
    };
    let mut touched: Vec<i64> = places.iter().map(line).collect();
    touched.sort_unstable();
    touched.dedup();
    touched.len() as f64
}
