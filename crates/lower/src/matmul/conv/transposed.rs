//! Transposed convolutions as convolutions of stride 1, each of which computes some residues of the result's positions.
//!
//! Along an axis with stride s, dilation d and padding p, let q = o + p be a position o of the result in the padded
//! result, and q = s·j + r. Point k of the window brings to q the input at (q - d·k) / s, where that is whole: for
//! residue r these are the points k = k₀(r) + m·b with b = s / gcd(d, s), and they read the input at j + (r - d·k₀ -
//! m·d·b) / s. So all positions with one residue are a convolution of stride 1 over j whose window is a part of the
//! weights, in reversed order. Residues with equally many points share a [`Part`]: one convolution whose output
//! channels are pairs of a channel and a residue. Its results are interleaved by the store
//! ([`crate::scalar::epilogue_map::Lattice`]). No weight is multiplied by the zeros that a dilated input would have
//! between its points.
//!
//! Where the stride does not divide the window, residues have unequally many points, so that parts store every other
//! element of a line. Joined, all residues of the innermost axis are one part ([`AxisPart::joined`]): each has the
//! points of the longest, of which those that the window lacks are weights of zero. That is more arithmetic, and whole
//! lines are stored. A zero times an infinite input is NaN, so numerics that keep every rounding do without.
//!
//! Takes: a transposed convolution. Gives: its parts, each as a [`Conv`] that the other modules lower as any other.
use crate::matmul::conv::Conv;
use crate::scalar::epilogue_map::Lattice;
use crate::scalar::expr::{Expr, delinear, linear};
use std::ops::Range;

/// Residues of one axis, `first..first + count`, and their points of the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct AxisPart {
    stride: usize,
    first: usize,
    count: usize,
    /// Points of the window for each residue.
    points: usize,
    /// The first point of residue `first`; that of the residue after it is the next one. Points outside of the window
    /// are weights of zero.
    point: i64,
    /// Distance between the points of a residue.
    between: usize,
    /// Distance in the input between what they read.
    dilation: usize,
    /// (r - d·k₀) / s.
    shift: i64,
}

/// Residues of all axes that one convolution of stride 1 computes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    axes: Vec<AxisPart>,
    /// Output channels of a group.
    channels: usize,
    /// Padding and window of the transposed convolution.
    padding: Vec<i64>,
    window: Vec<usize>,
    /// First position in units of the stride, along each axis.
    start: Vec<i64>,
    /// Zeros before the input in the copy that all parts of an implicit GEMM read, and how far beyond a position they
    /// read it.
    pub front: Vec<i64>,
    pub reach: Vec<usize>,
}

/// Most parts: each is a launch.
const MAX_PARTS: usize = 16;

/// The parts of a transposed convolution, the one with most arithmetic first; `None` where there are too many.
/// `joined`: of so many of the innermost axes all residues are in one part, where those of the first of them are
/// several otherwise; `None` where they are not.
pub fn parts(c: &Conv, joined: usize) -> Option<Vec<Part>> {
    let dims = 0..c.stride.len();
    let mut axes: Vec<Vec<AxisPart>> = dims.clone().map(|d| axis_parts(c, d)).collect();
    if joined > 0 {
        let first = dims.end.checked_sub(joined).filter(|d| axes[*d].len() > 1)?;
        for d in (first..dims.end).filter(|d| axes[*d].len() > 1).collect::<Vec<_>>() {
            axes[d] = vec![AxisPart::joined(c, d)?];
        }
    }
    if axes.iter().map(Vec::len).product::<usize>() > MAX_PARTS {
        return None;
    }
    let start: Vec<i64> = dims.clone().map(|d| c.padding[d].div_euclid(c.stride[d] as i64)).collect();
    let read = |d: usize| axes[d].iter().filter(|a| a.points > 0);
    let front: Vec<i64> = dims.clone().map(|d| read(d).map(|a| a.padding(start[d])).max().unwrap_or(0)).collect();
    let end = |d: usize| read(d).map(|a| (front[d] - a.padding(start[d])) as usize + a.reach()).max().unwrap_or(0);
    let reach: Vec<usize> = dims.map(end).collect();
    let product = axes.iter().fold(vec![vec![]], |all: Vec<Vec<AxisPart>>, axis| {
        all.iter().flat_map(|left| axis.iter().map(|a| [&left[..], &[*a]].concat())).collect()
    });
    let (padding, window, channels) = (c.padding.clone(), c.w_shape[2..].to_vec(), c.cout);
    let whole = Part { axes: vec![], channels, padding, window, start, front, reach };
    let part = |axes| Part { axes, ..whole.clone() };
    let mut parts: Vec<Part> = product.into_iter().map(part).collect();
    parts.sort_by_key(|p| std::cmp::Reverse(p.residues() * p.window_points()));
    Some(parts)
}

/// Residues of one axis by their number of points.
fn axis_parts(c: &Conv, d: usize) -> Vec<AxisPart> {
    let (window, stride, dilation, out) = (c.w_shape[d + 2], c.stride[d], c.dilation[d], c.out[d + 2]);
    if stride == 1 {
        return vec![AxisPart { stride, first: 0, count: 1, points: window, point: 0, between: 1, dilation, shift: 0 }];
    }
    let one = |residue: usize| {
        let points: Vec<usize> = (0..window).filter(|k| k * dilation % stride == residue).collect();
        let point = points.first().copied().unwrap_or(0);
        let between = points.get(1).map_or(stride, |k| k - point);
        let shift = (residue as i64 - (dilation * point) as i64).div_euclid(stride as i64);
        let dilation = dilation * between / stride;
        AxisPart {
            stride,
            first: residue,
            count: 1,
            points: points.len(),
            point: point as i64,
            between,
            dilation,
            shift,
        }
    };
    // A result of one position has one residue.
    if out == 1 {
        return vec![one(c.padding[d].rem_euclid(stride as i64) as usize)];
    }
    if dilation > 1 {
        return (0..stride).map(one).collect();
    }
    let longer = window % stride;
    let range = |first: usize, end: usize| (first < end).then(|| AxisPart { count: end - first, ..one(first) });
    range(0, longer).into_iter().chain(range(longer, stride)).collect()
}

impl AxisPart {
    /// All residues of an axis, from one on for which they have the fewest points: if possible that of the result's
    /// first position, so that groups of residues are aligned as the lines of the result are. `None` with dilation:
    /// points of residues are not neighbours.
    fn joined(c: &Conv, d: usize) -> Option<AxisPart> {
        let (window, stride, dilation) = (c.w_shape[d + 2] as i64, c.stride[d] as i64, c.dilation[d]);
        if dilation > 1 || window == 0 {
            return None;
        }
        let from = |first: i64| {
            // The residue `u` of a position reads the input at e = (u - k) / s for points k of the window.
            let (shift, least) = ((first + stride - 1).div_euclid(stride), -(window - 1 - first).div_euclid(stride));
            let (points, point) = ((shift - least + 1) as usize, first - stride * shift);
            let (stride, first) = (stride as usize, first as usize);
            AxisPart { stride, first, count: stride, points, point, between: stride, dilation: 1, shift }
        };
        let aligned = c.padding[d].rem_euclid(stride);
        [from(aligned), from(0)].into_iter().min_by_key(|a| a.points)
    }
    /// How far apart the first and the last position are that a result reads.
    fn reach(&self) -> usize {
        self.dilation * self.points.saturating_sub(1)
    }
    /// Zeros before the input, where results begin at `start` in units of the stride.
    fn padding(&self, start: i64) -> i64 {
        self.reach() as i64 - start - self.shift
    }
}

impl Part {
    pub fn residues(&self) -> usize {
        self.axes.iter().map(|a| a.count).product()
    }
    /// Whether it is the only part.
    pub fn is_whole(&self) -> bool {
        self.axes.iter().all(|a| a.count == a.stride)
    }
    pub fn window_points(&self) -> usize {
        self.axes.iter().map(|a| a.points).product()
    }
    pub fn counts(&self) -> Vec<usize> {
        self.axes.iter().map(|a| a.count).collect()
    }
    /// Positions in units of the stride along axis `d`: as many for all parts of an axis, whose residues begin at 0, or
    /// for one of all residues.
    pub fn extent(&self, c: &Conv, d: usize) -> usize {
        let a = &self.axes[d];
        let first = if a.count == a.stride { a.first as i64 } else { 0 };
        let last = c.padding[d] + c.out[d + 2] as i64 - 1 - first;
        (last.div_euclid(c.stride[d] as i64) - self.start[d] + 1).max(1) as usize
    }
    /// Where the first residue of axis `d` is in the result at the part's position `j`.
    pub fn position(&self, d: usize, j: usize) -> i64 {
        let a = &self.axes[d];
        a.stride as i64 * (self.start[d] + j as i64) + a.first as i64 - self.padding[d]
    }
    /// The part's positions along axis `d` whose first residue is within the result.
    pub fn range(&self, c: &Conv, d: usize) -> Range<usize> {
        let end = c.out[d + 2] as i64;
        let mut inside = (0..self.extent(c, d)).filter(|j| (0..end).contains(&self.position(d, *j)));
        inside.next().map_or(0..0, |first| first..first + 1 + inside.count())
    }
    /// The same results as parts whose residues along each axis are within the result at the same positions: all of
    /// them, or single ones.
    pub fn within_ranges(&self, c: &Conv) -> Vec<Part> {
        let mut parts = vec![self.clone()];
        for d in 0..self.axes.len() {
            let a = self.axes[d];
            let single = |n: usize| AxisPart { first: a.first + n, count: 1, point: a.point + n as i64, ..a };
            let with = |part: &Part, axis: AxisPart| {
                let mut part = part.clone();
                part.axes[d] = axis;
                part
            };
            let ranges: Vec<Range<usize>> = (0..a.count).map(|n| with(self, single(n)).range(c, d)).collect();
            if ranges.windows(2).any(|r| r[0] != r[1]) {
                parts = parts.iter().flat_map(|p| (0..a.count).map(|n| with(p, single(n)))).collect();
            }
        }
        parts
    }
    /// The convolution of stride 1 that computes this part of `c`.
    pub fn conv(&self, c: &Conv) -> Conv {
        let dims = 0..self.axes.len();
        let window: Vec<usize> = self.axes.iter().map(|a| a.points).collect();
        let extents: Vec<usize> = dims.clone().map(|d| self.extent(c, d)).collect();
        let cout = c.cout * self.residues();
        Conv {
            x: c.x,
            w: c.w,
            x_shape: c.x_shape.clone(),
            w_shape: [&c.w_shape[..2], &window].concat(),
            out: [&[c.out[0], cout * c.groups], &extents[..]].concat(),
            stride: vec![1; self.axes.len()],
            padding: dims.map(|d| self.axes[d].padding(self.start[d])).collect(),
            dilation: self.axes.iter().map(|a| a.dilation).collect(),
            groups: c.groups,
            transposed: false,
            cin: c.cin,
            cout,
            k: c.cin * window.iter().product::<usize>(),
            points: extents.iter().product(),
            part: Some(self.clone()),
        }
    }
    /// The weight's element for a row of the group's output channels and residues, an input channel of the group, and a
    /// point of the part's window.
    pub fn weight(&self, cin: usize, [group, row, channel]: [&Expr; 3], window: &[Expr]) -> Vec<Expr> {
        let residues = self.residues() as i64;
        let residue = delinear(&row.clone().rem(residues), &self.counts());
        let mut ix = vec![group.clone().scale(cin as i64).plus(channel), row.clone().div(residues)];
        for ((a, r), m) in self.axes.iter().zip(&residue).zip(window) {
            let last = a.point + (a.between * a.points.saturating_sub(1)) as i64;
            ix.push(r.plus(&m.clone().scale(-(a.between as i64))).shift(last));
        }
        ix
    }
    /// Bounds of the weight's element among those of the window, where points may be missing.
    pub fn bounds(&self, element: &[Expr]) -> Vec<(Expr, i64, i64)> {
        let window = element.iter().skip(2).zip(&self.window);
        window.map(|(k, n)| (k.clone(), 0, *n as i64)).collect()
    }
    /// Group, row of output channels and residues, and position of the part's result, from an index of the transposed
    /// convolution's.
    pub fn place(&self, ix: &[Expr]) -> (Expr, Expr, Vec<Expr>) {
        let (group, channel) = (ix[1].clone().div(self.channels as i64), ix[1].clone().rem(self.channels as i64));
        let (mut row, mut position) = (vec![channel], vec![]);
        for (d, a) in self.axes.iter().enumerate() {
            let padded = ix[d + 2].clone().shift(self.padding[d] - a.first as i64);
            row.push(padded.clone().rem(a.stride as i64));
            position.push(padded.div(a.stride as i64).shift(-self.start[d]));
        }
        (group, linear(&row, &[&[self.channels], &self.counts()[..]].concat()), position)
    }
    /// Where the part's results are among those of the transposed convolution `c`.
    pub fn lattice(&self, c: &Conv) -> Vec<Lattice> {
        let strided = self.axes.iter().enumerate().filter(|(d, a)| a.stride > 1 && c.out[d + 2] > 1);
        let lattice = |(d, a): (usize, &AxisPart)| Lattice {
            axis: d + 2,
            stride: a.stride as i64,
            start: a.stride as i64 * self.start[d] + a.first as i64 - self.padding[d],
            extents: [self.extent(c, d), a.count],
        };
        strided.map(lattice).collect()
    }
}
