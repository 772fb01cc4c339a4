//! Decompositions: convolutions as im2col and a matmul, pooling as slices and a running maximum or sum.
use super::Built;
use crate::{BinaryOp, DType, Graph, GraphError, Op, PoolKind, Scalar, ValueId};

pub(super) struct Steps<'a> {
    pub window: &'a [usize],
    pub stride: &'a [usize],
    pub padding: &'a [usize],
    pub dilation: &'a [usize],
}

/// Pads the trailing axes to exactly the length that the windows cover; crops what no window reads.
fn pad_to_windows(g: &mut Graph, x: ValueId, steps: &Steps, out: &[usize], value: crate::Scalar) -> Built {
    let shape = g.shape(x).to_vec();
    let lead = shape.len() - out.len();
    let (mut lo, mut hi) = (vec![0i64; shape.len()], vec![0i64; shape.len()]);
    for (i, &n) in out.iter().enumerate() {
        let reach = (n - 1) * steps.stride[i] + (steps.window[i] - 1) * steps.dilation[i] + 1;
        lo[lead + i] = steps.padding[i] as i64;
        hi[lead + i] = reach as i64 - (shape[lead + i] + steps.padding[i]) as i64;
    }
    if lo.iter().chain(&hi).all(|p| *p == 0) {
        return Ok(x);
    }
    let dtype = g.dtype(x);
    let value = g.constant(dtype, value);
    g.add(Op::Pad { lo, hi }, &[x, value])
}

pub(super) fn pool(g: &mut Graph, x: ValueId, kind: PoolKind, steps: &Steps, shape: &[usize]) -> Built {
    let lead = shape.len() - steps.window.len();
    let out = &shape[lead..];
    let inside = g.shape(x)[lead..].to_vec();
    let (fill, combine) = match kind {
        PoolKind::Max => (least(g.dtype(x)), BinaryOp::Max),
        PoolKind::Avg { .. } => (crate::Scalar::Float(0.0), BinaryOp::Add),
    };
    let mut y = pad_to_windows(g, x, steps, out, fill)?;
    for (i, &n) in out.iter().enumerate() {
        let mut total = g.slice(y, lead + i, 0, n, steps.stride[i])?;
        for tap in 1..steps.window[i] {
            let next = g.slice(y, lead + i, tap * steps.dilation[i], n, steps.stride[i])?;
            total = g.binary(combine, total, next)?;
        }
        y = total;
    }
    let PoolKind::Avg { count_pad } = kind else { return Ok(y) };
    for (i, &len) in inside.iter().enumerate() {
        y = divide_by_count(g, y, lead + i, len, steps, i, count_pad)?;
    }
    Ok(y)
}

/// Divides by the number of elements that each window counts along one axis.
fn divide_by_count(
    g: &mut Graph,
    y: ValueId,
    axis: usize,
    len: usize,
    steps: &Steps,
    i: usize,
    count_pad: bool,
) -> Built {
    let (k, s, p) = (steps.window[i] as i64, steps.stride[i] as i64, steps.padding[i] as i64);
    let out = g.shape(y)[axis] as i64;
    let (first, last) = if count_pad { (-p, len as i64 + p) } else { (0, len as i64) };
    let count = |n: i64| (n * s - p + k).min(last) - (n * s - p).max(first);
    if (0..out).all(|n| count(n) == k) {
        return g.binary_scalar(BinaryOp::Div, y, k as f64);
    }
    let mut shape = vec![1; g.shape(y).len()];
    shape[axis] = out as usize;
    let n = g.iota(DType::I64, shape, axis);
    let start = g.binary_scalar(BinaryOp::Mul, n, s as f64)?;
    let start = g.binary_scalar(BinaryOp::Sub, start, p as f64)?;
    let end = g.binary_scalar(BinaryOp::Add, start, k as f64)?;
    let end = g.binary_scalar(BinaryOp::Min, end, last as f64)?;
    let start = g.binary_scalar(BinaryOp::Max, start, first as f64)?;
    let count = g.binary(BinaryOp::Sub, end, start)?;
    let count = g.binary_scalar(BinaryOp::Max, count, 1.0)?;
    let dtype = g.dtype(y);
    let count = g.cast(count, dtype)?;
    g.binary(BinaryOp::Div, y, count)
}

/// `args`: input, weight, optional bias. im2col, then one batched matmul over batch and groups.
pub(super) fn conv(g: &mut Graph, args: &[ValueId], steps: &Steps, groups: usize, shape: &[usize]) -> Built {
    let (batch, outs, out) = (shape[0], shape[1], &shape[2..]);
    let (x, w) = (args[0], args[1]);
    let channels = g.shape(x)[1];
    let (in_group, out_group) = (channels / groups, outs / groups);
    let taps: usize = steps.window.iter().product();
    let w = g.reshape(w, [groups, out_group, in_group * taps])?;
    let x = pad_to_windows(g, x, steps, out, crate::Scalar::Float(0.0))?;
    let columns = unfold(g, x, steps, out)?;
    let positions: usize = out.iter().product();
    let columns = g.reshape(columns, [batch, groups, in_group * taps, positions])?;
    let y = g.dot(w, columns)?;
    let y = g.reshape(y, shape.to_vec())?;
    biased(g, y, args.get(2))
}

fn biased(g: &mut Graph, y: ValueId, bias: Option<&ValueId>) -> Built {
    let Some(&bias) = bias else { return Ok(y) };
    let dtype = g.dtype(y);
    let mut per_channel = vec![1; g.shape(y).len() - 1];
    per_channel[0] = g.shape(y)[1];
    let bias = g.reshape(bias, per_channel)?;
    let bias = g.cast(bias, dtype)?;
    g.binary(BinaryOp::Add, y, bias)
}

/// One matmul of every input point's channels with the whole window, then an overlap-add (col2im), one axis at a time.
/// Zeros are inserted only after the matmul: an infinite weight times an inserted zero would be NaN where PyTorch has
/// none.
pub(super) fn transposed(g: &mut Graph, args: &[ValueId], steps: &Steps, groups: usize, shape: &[usize]) -> Built {
    let (x, w) = (args[0], args[1]);
    let (batch, outs, out) = (shape[0], shape[1], &shape[2..]);
    let inside = g.shape(x)[2..].to_vec();
    let (in_group, out_group) = (g.shape(x)[1] / groups, outs / groups);
    let (taps, points): (usize, usize) = (steps.window.iter().product(), inside.iter().product());
    let w = g.reshape(w, [groups, in_group, out_group * taps])?;
    let w = g.permute(w, [0, 2, 1])?;
    let x = g.reshape(x, [batch, groups, in_group, points])?;
    let y = g.dot(w, x)?;
    let wide = g.dtype(y).compute();
    let mut y = g.cast(y, wide)?;
    // Axes: N, C, the window axes still to be summed, the result axes done, the remaining input axes.
    y = g.reshape(y, [&[batch, outs][..], steps.window, &inside[..]].concat())?;
    for (i, &n) in out.iter().enumerate() {
        // Each iteration removes one window axis, so the input axis to replace is always at this position.
        let axis = 1 + out.len();
        let mut without = g.shape(y).to_vec();
        without.remove(2);
        let reach = (without[axis] * steps.stride[i]) as i64;
        let mut total: Option<ValueId> = None;
        for tap in 0..steps.window[i] {
            let lo = (tap * steps.dilation[i]) as i64 - steps.padding[i] as i64;
            if lo <= -reach || lo >= n as i64 {
                continue;
            }
            let part = g.slice(y, 2, tap, 1, 1)?;
            let part = g.reshape(part, without.clone())?;
            let part = spread(g, part, axis, [steps.stride[i], n], lo)?;
            total = Some(match total {
                Some(total) => g.binary(BinaryOp::Add, total, part)?,
                None => part,
            });
        }
        y = match total {
            Some(total) => total,
            None => {
                let zero = g.constant_like(y, 0.0)?;
                without[axis] = n;
                g.broadcast_to(zero, without)?
            }
        };
    }
    biased(g, y, args.get(2))
}

/// Inserts `stride - 1` zeros after each element of an axis and `lo` zeros in front, then pads or crops the end to
/// length `n`.
fn spread(g: &mut Graph, x: ValueId, axis: usize, [stride, n]: [usize; 2], lo: i64) -> Built {
    let mut shape = g.shape(x).to_vec();
    let (rank, len) = (shape.len(), shape[axis]);
    let mut x = x;
    if stride > 1 {
        let mut between = shape.clone();
        between.insert(axis + 1, 1);
        let mut hi = vec![0; rank + 1];
        hi[axis + 1] = stride as i64 - 1;
        x = g.reshape(x, between)?;
        x = g.pad(x, 0.0, vec![0; rank + 1], hi)?;
        shape[axis] = len * stride;
        x = g.reshape(x, shape)?;
    }
    let [mut before, mut after] = [0; 2].map(|_| vec![0; rank]);
    before[axis] = lo;
    after[axis] = n as i64 - lo - (len * stride) as i64;
    g.pad(x, 0.0, before, after)
}

/// im2col: `[N, C, L1, L2, …]` to `[N, C, k1, k2, …, o1, o2, …]`, window elements by output positions.
fn unfold(g: &mut Graph, x: ValueId, steps: &Steps, out: &[usize]) -> Result<ValueId, GraphError> {
    let mut x = x;
    for (i, &n) in out.iter().enumerate() {
        // Axes so far: N, C, a pair (k, o) per axis done, the remaining input axes.
        let axis = 2 + 2 * i;
        let (k, s, d) = (steps.window[i], steps.stride[i], steps.dilation[i]);
        let shape = g.shape(x).to_vec();
        let with = |a: usize, b: usize| [&shape[..axis], &[a, b], &shape[axis + 1..]].concat();
        if k > 1 && s == k && d == 1 {
            // Windows tile the axis without overlap: only a view.
            x = g.reshape(x, with(n, k))?;
            let mut perm: Vec<usize> = (0..shape.len() + 1).collect();
            perm.swap(axis, axis + 1);
            x = g.permute(x, perm)?;
            continue;
        }
        let mut parts = Vec::with_capacity(k);
        for tap in 0..k {
            let part = g.slice(x, axis, tap * d, n, s)?;
            parts.push(g.reshape(part, with(1, n))?);
        }
        x = g.concat(&parts, axis)?;
    }
    let spatial = out.len();
    let taps = (0..spatial).map(|i| 2 + 2 * i);
    let positions = (0..spatial).map(|i| 3 + 2 * i);
    g.permute(x, [0, 1].into_iter().chain(taps).chain(positions).collect::<Vec<_>>())
}

/// The smallest value of a dtype: the identity of maximum.
fn least(dtype: DType) -> Scalar {
    match dtype {
        DType::Bool => Scalar::Bool(false),
        _ => dtype.int_range().map_or(Scalar::Float(f64::NEG_INFINITY), |(least, _)| Scalar::Int(least)),
    }
}
