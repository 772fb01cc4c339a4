//! The lanes of a block that a mask leaves, and the elements that they reach.
use super::scalars::{Numbers, Scalars, holds};
use super::{Coverage, Unfollowed};
use crate::CmpOp;
use crate::analysis::Bounds;

/// Most runs of elements that one access reaches each time that it runs.
const MAX_RUNS: i64 = 1 << 16;

impl Numbers {
    fn at(&self, lane: &[i64]) -> i64 {
        self.coeffs.iter().zip(lane).fold(self.constant, |sum, (c, x)| sum.saturating_add(c.saturating_mul(*x)))
    }
    /// The axes along which it changes.
    fn axes(&self) -> impl Iterator<Item = usize> {
        self.coeffs.iter().enumerate().filter(|(_, c)| **c != 0).map(|(axis, _)| axis)
    }
}

/// Positions `lo..hi` along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Range {
    lo: i64,
    hi: i64,
}

impl Range {
    fn len(self) -> i64 {
        (self.hi - self.lo).max(0)
    }
    /// Leaves the positions x with `factor·x + constant op 0`; `None` for inequality, which leaves no range.
    fn restrict(self, factor: i64, constant: i64, op: CmpOp) -> Option<Range> {
        let at_most = |range: Range, factor: i64, constant: i64| match factor {
            0 => Range { hi: if constant <= 0 { range.hi } else { range.lo }, ..range },
            c if c > 0 => Range { hi: range.hi.min((-constant).div_euclid(c) + 1), ..range },
            c => Range { lo: range.lo.max(-(-constant).div_euclid(-c)), ..range },
        };
        // Positions are far from the ends of the type: nothing changes for numbers beyond this.
        const FAR: i64 = 1 << 61;
        let [factor, constant] = [factor, constant].map(|n| n.clamp(-FAR, FAR));
        Some(match op {
            CmpOp::Lt => at_most(self, factor, constant + 1),
            CmpOp::Le => at_most(self, factor, constant),
            CmpOp::Gt => at_most(self, -factor, 1 - constant),
            CmpOp::Ge => at_most(self, -factor, -constant),
            CmpOp::Eq => at_most(at_most(self, factor, constant), -factor, -constant),
            CmpOp::Ne if factor == 0 => {
                Range { hi: if holds(op, constant.cmp(&0)) { self.hi } else { self.lo }, ..self }
            }
            CmpOp::Ne => return None,
        })
    }
}

/// A range of positions along each axis, and bounds that join several axes.
pub struct Lanes {
    ranges: Vec<Range>,
    joint: Vec<(Numbers, CmpOp)>,
    is_empty: bool,
}

impl Lanes {
    /// Those of a block of this shape in which the bounds hold.
    pub fn of(shape: &[usize], bounds: &Bounds, scalars: &mut Scalars) -> Result<Lanes, Unfollowed> {
        let ranges = shape.iter().map(|n| Range { lo: 0, hi: *n as i64 }).collect();
        let mut lanes = Lanes { ranges, joint: vec![], is_empty: false };
        for (form, op) in bounds {
            let numbers = scalars.numbers(form).ok_or(Unfollowed::NotAffine)?;
            let axes: Vec<usize> = numbers.axes().collect();
            match axes[..] {
                [] => lanes.is_empty |= !holds(*op, numbers.constant.cmp(&0)),
                [axis] => {
                    let range = lanes.ranges[axis].restrict(numbers.coeffs[axis], numbers.constant, *op);
                    lanes.ranges[axis] = range.ok_or(Unfollowed::NotAffine)?;
                }
                _ => lanes.joint.push((numbers, *op)),
            }
        }
        lanes.is_empty |= lanes.ranges.iter().any(|range| range.len() == 0);
        Ok(lanes)
    }
    /// Least and largest value of a form on the lanes, by their ranges alone; `None` if there are none.
    pub fn range(&self, numbers: &Numbers) -> Option<(i64, i64)> {
        if self.is_empty {
            return None;
        }
        let (mut lo, mut hi) = (numbers.constant, numbers.constant);
        for (c, range) in numbers.coeffs.iter().zip(&self.ranges) {
            let [a, b] = [range.lo, range.hi - 1].map(|x| c.saturating_mul(x));
            (lo, hi) = (lo.saturating_add(a.min(b)), hi.saturating_add(a.max(b)));
        }
        Some((lo, hi))
    }
    /// Calls `f` with the runs of consecutive elements at these offsets.
    pub fn runs(&self, offsets: &Numbers, f: &mut impl FnMut(std::ops::Range<i64>)) -> Result<(), Unfollowed> {
        if self.is_empty {
            return Ok(());
        }
        let Some(along) = offsets.coeffs.iter().position(|c| *c == 1).or(self.ranges.len().checked_sub(1)) else {
            f(offsets.constant..offsets.constant.saturating_add(1));
            return Ok(());
        };
        let step = offsets.coeffs[along];
        let lengths = self.ranges.iter().enumerate().filter(|(axis, _)| *axis != along || step != 1);
        if lengths.map(|(_, range)| range.len()).product::<i64>() > MAX_RUNS {
            return Err(Unfollowed::TooMany);
        }
        let mut lane: Vec<i64> = self.ranges.iter().map(|range| range.lo).collect();
        loop {
            lane[along] = 0;
            let range = self.range_along(along, &lane)?;
            let start = offsets.at(&lane);
            let at = |x: i64| start.saturating_add(step.saturating_mul(x));
            match step {
                1 if range.len() > 0 => f(at(range.lo)..at(range.hi)),
                1 => {}
                _ => (range.lo..range.hi).for_each(|x| f(at(x)..at(x).saturating_add(1))),
            }
            let Some(axis) = (0..lane.len()).rev().find(|a| *a != along && lane[*a] + 1 < self.ranges[*a].hi) else {
                return Ok(());
            };
            lane[axis] += 1;
            for (x, range) in lane.iter_mut().zip(&self.ranges).skip(axis + 1) {
                *x = range.lo;
            }
        }
    }
    /// The positions along an axis at which the bounds hold, the others being those of `lane`, which is 0 along it.
    fn range_along(&self, axis: usize, lane: &[i64]) -> Result<Range, Unfollowed> {
        self.joint.iter().try_fold(self.ranges[axis], |range, (numbers, op)| {
            range.restrict(numbers.coeffs[axis], numbers.at(lane), *op).ok_or(Unfollowed::NotAffine)
        })
    }
}

/// Which elements of a tensor are stored.
pub struct Bits {
    words: Vec<u64>,
    elements: usize,
    stored: usize,
    is_outside: bool,
}

impl Bits {
    pub fn new(elements: usize) -> Bits {
        Bits { words: vec![0; elements.div_ceil(64)], elements, stored: 0, is_outside: false }
    }
    /// Notes a run of elements.
    pub fn set(&mut self, run: std::ops::Range<i64>) {
        if run.start < 0 || run.end > self.elements as i64 {
            self.is_outside = true;
            return;
        }
        let (mut at, end) = (run.start as usize, run.end as usize);
        self.stored += end - at;
        while at < end {
            let last = end.min((at / 64 + 1) * 64);
            let ones = u64::MAX >> (64 - (last - at));
            self.words[at / 64] |= ones << (at % 64);
            at = last;
        }
    }
    pub fn coverage(&self) -> Coverage {
        let found: usize = self.words.iter().map(|word| word.count_ones() as usize).sum();
        if found == self.elements && !self.is_outside {
            Coverage::Whole { stored: self.stored }
        } else {
            Coverage::Part
        }
    }
}
