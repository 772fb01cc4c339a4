//! Sliding windows over the trailing axes: which input and output positions meet, and pooling.
use super::{
    region::{Positions, shape},
    value::{Data, Value},
};
use kiln_graph::PoolKind;
use kiln_graph::ops::real::Real;
use std::sync::Arc;

pub(super) struct Steps<'a> {
    pub stride: &'a [usize],
    pub padding: &'a [usize],
    pub dilation: &'a [usize],
}

/// A run of position pairs: `small + t` and `big + t * (last stride)`, for `t < len`, meet under window element `tap`.
pub(super) struct Segment {
    pub tap: usize,
    pub small: usize,
    pub big: usize,
    pub len: usize,
}

/// All pairs with `big = small * stride + tap * dilation - padding` that lie inside both regions, which have all of
/// their last axis; as places in the regions' parts.
pub(super) fn segments(small: &[Positions], big: &[Positions], window: &[usize], steps: &Steps) -> Vec<Segment> {
    let (inside, outside) = (big, small);
    let (small, big) = (shape(small), shape(big));
    let rank = small.len();
    let mut all = vec![Segment { tap: 0, small: 0, big: 0, len: 1 }];
    for axis in 0..rank {
        let (s, p, d) = (steps.stride[axis] as i128, steps.padding[axis] as i128, steps.dilation[axis] as i128);
        let last = axis + 1 == rank;
        let mut next = Vec::new();
        for tap in 0..window[axis] {
            let offset = tap as i128 * d - p;
            if !last {
                let meets = |(i, o): (usize, usize)| {
                    let at = o as i128 * s + offset;
                    Some((i, inside[axis].find(usize::try_from(at).ok()?)?))
                };
                for (i, at) in outside[axis].iter().enumerate().filter_map(meets) {
                    next.extend(all.iter().map(|g| Segment {
                        tap: g.tap * window[axis] + tap,
                        small: g.small * small[axis] + i,
                        big: g.big * big[axis] + at,
                        len: 1,
                    }));
                }
                continue;
            }
            // First and one past last `i` with 0 <= i * s + offset < big.
            let first = (-offset).max(0).unsigned_abs().div_ceil(s.unsigned_abs());
            let end = (big[axis] as i128 - offset).max(0).unsigned_abs().div_ceil(s.unsigned_abs());
            let (first, end) = (first.min(small[axis] as u128) as usize, end.min(small[axis] as u128) as usize);
            let at = |i: usize| (i as i128 * s + offset) as usize;
            for g in &all {
                if first < end {
                    let tap = g.tap * window[axis] + tap;
                    let (small, big) = (g.small * small[axis] + first, g.big * big[axis] + at(first));
                    next.push(Segment { tap, small, big, len: end - first });
                }
            }
        }
        all = next;
    }
    all
}

/// `from`: the region of the operand that `x` holds; `to`: that of the result.
pub(super) fn pool(
    x: &Value,
    kind: PoolKind,
    window: &[usize],
    steps: &Steps,
    from: &[Positions],
    to: &[Positions],
) -> Result<Data, String> {
    let lead = to.len() - window.len();
    let (inside, outside) = (&from[lead..], &to[lead..]);
    let pairs = segments(outside, inside, window, steps);
    let stride = steps.stride.last().copied().unwrap_or(1);
    let count = |region: &[Positions]| shape(region).iter().product::<usize>();
    let sizes = [count(&to[..lead]), count(inside), count(outside)];
    fn max<T: Copy>(
        v: &[T],
        least: T,
        max: fn(T, T) -> T,
        pairs: &[Segment],
        stride: usize,
        sizes: [usize; 3],
    ) -> Vec<T> {
        let [planes, from, to] = sizes;
        let mut out = vec![least; planes * to];
        for p in 0..planes {
            let (x, y) = (&v[p * from..(p + 1) * from], &mut out[p * to..(p + 1) * to]);
            for s in pairs {
                for t in 0..s.len {
                    y[s.small + t] = max(y[s.small + t], x[s.big + t * stride]);
                }
            }
        }
        out
    }
    fn avg<R: Real>(v: &[R], divisor: &[f64], pairs: &[Segment], stride: usize, sizes: [usize; 3]) -> Vec<R> {
        let [planes, from, to] = sizes;
        let mut out = Vec::with_capacity(planes * to);
        let mut sums = vec![0.0; to];
        for p in 0..planes {
            let x = &v[p * from..(p + 1) * from];
            sums.fill(0.0);
            for s in pairs {
                for t in 0..s.len {
                    sums[s.small + t] += x[s.big + t * stride].wide();
                }
            }
            out.extend(sums.iter().zip(divisor).map(|(s, d)| R::of(s / d)));
        }
        out
    }
    Ok(match (&x.data, kind) {
        (Data::F32(v), PoolKind::Max) => {
            Data::F32(Arc::new(max(v, f32::NEG_INFINITY, Real::max_nan, &pairs, stride, sizes)))
        }
        (Data::F64(v), PoolKind::Max) => {
            Data::F64(Arc::new(max(v, f64::NEG_INFINITY, Real::max_nan, &pairs, stride, sizes)))
        }
        (Data::Int(v), PoolKind::Max) => Data::Int(Arc::new(max(v, i64::MIN, i64::max, &pairs, stride, sizes))),
        (data, PoolKind::Avg { count_pad }) => {
            let divisor = divisors(inside, outside, window, steps, count_pad);
            match data {
                Data::F32(v) => Data::F32(Arc::new(avg(v, &divisor, &pairs, stride, sizes))),
                Data::F64(v) => Data::F64(Arc::new(avg(v, &divisor, &pairs, stride, sizes))),
                _ => return Err("expected floats".into()),
            }
        }
        _ => return Err("expected numbers".into()),
    })
}

/// The divisor of the average at each position. A window that reaches past the padding (with `ceil`) counts only
/// elements inside the padded input.
fn divisors(inside: &[Positions], outside: &[Positions], window: &[usize], steps: &Steps, count_pad: bool) -> Vec<f64> {
    let mut all = vec![1.0];
    for axis in 0..window.len() {
        let (len, p) = (inside[axis].size() as i128, steps.padding[axis] as i128);
        let along: Vec<f64> = outside[axis]
            .iter()
            .map(|i| {
                let start = i as i128 * steps.stride[axis] as i128 - p;
                let end = (start + window[axis] as i128).min(len + p);
                let n = if count_pad { end - start } else { end.min(len) - start.max(0) };
                n.max(1) as f64
            })
            .collect();
        all = all.iter().flat_map(|a| along.iter().map(move |b| a * b)).collect();
    }
    all
}
