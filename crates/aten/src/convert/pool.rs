//! Pooling: windowed pools, and adaptive pools to a given output size.
mod patches;

use super::{
    Table,
    context::{Ctx, Res, at, from, table_fits, with_size},
    conv::per_axis,
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, CompareOp, DType, Op, PoolKind, ReduceOp, Scalar, Tensor, Type, ValueId};

pub const TABLE: Table = &[
    ("aten::max_pool1d", |c, call| max_pool(c, call, 1)),
    ("aten::max_pool2d", |c, call| max_pool(c, call, 2)),
    ("aten::max_pool3d", |c, call| max_pool(c, call, 3)),
    ("aten::max_pool2d_with_indices", |c, call| max_pool(c, call, 2)),
    ("aten::max_pool3d_with_indices", |c, call| max_pool(c, call, 3)),
    ("aten::avg_pool1d", |c, call| avg_pool(c, call, 1)),
    ("aten::avg_pool2d", |c, call| avg_pool(c, call, 2)),
    ("aten::avg_pool3d", |c, call| avg_pool(c, call, 3)),
    ("aten::adaptive_avg_pool1d", |c, call| adaptive(c, call, 1, false)),
    ("aten::adaptive_avg_pool2d", |c, call| adaptive(c, call, 2, false)),
    ("aten::adaptive_avg_pool3d", |c, call| adaptive(c, call, 3, false)),
    ("aten::adaptive_max_pool1d", |c, call| adaptive(c, call, 1, true)),
    ("aten::adaptive_max_pool2d", |c, call| adaptive(c, call, 2, true)),
    ("aten::adaptive_max_pool3d", |c, call| adaptive(c, call, 3, true)),
    ("aten::im2col", patches::im2col),
    ("aten::col2im", patches::col2im),
];

/// Window and stride; an empty stride defaults to the window.
fn window(c: &Ctx, call: &Call, n: usize) -> Res<(Vec<usize>, Vec<usize>)> {
    let window = per_axis(c, call, 1, n)?;
    let stride = if c.ints(call, 2)?.is_empty() { window.clone() } else { per_axis(c, call, 2, n)? };
    Ok((window, stride))
}

/// `(x, window, stride, padding, dilation, ceil)`. The indices are not computed.
fn max_pool(c: &mut Ctx, call: &Call, n: usize) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let (window, stride) = window(c, call, n)?;
    let (padding, dilation) = (per_axis(c, call, 3, n)?, per_axis(c, call, 4, n)?);
    let ceil = c.bool(call, 5)?;
    Ok(vec![c.node(Op::Pool { kind: PoolKind::Max, window, stride, padding, dilation, ceil }, &[x])?])
}

/// `(x, window, stride, padding, ceil, count_include_pad, divisor?)`.
fn avg_pool(c: &mut Ctx, call: &Call, n: usize) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let (window, stride) = window(c, call, n)?;
    let (padding, ceil, divisor) = (per_axis(c, call, 3, n)?, c.bool(call, 4)?, c.opt_int(call, 6)?);
    let size = window.iter().map(|n| *n as f64).product::<f64>();
    let count_pad = c.bool(call, 5)? || divisor.is_some();
    let op = Op::Pool { kind: PoolKind::Avg { count_pad }, window, stride, padding, dilation: vec![1; n], ceil };
    let Some(divisor) = divisor else { return Ok(vec![c.node(op, &[x])?]) };
    if ceil {
        return Err("average pooling with its own divisor, and windows beyond the padding".into());
    }
    // A mean over whole windows, padding included, times their size is the sum.
    Ok(vec![c.in_compute(x, c.dtype(x), |c, x| {
        let mean = c.node(op, &[x])?;
        c.with(BinaryOp::Mul, mean, size / divisor as f64)
    })?])
}

/// Adaptive pooling: a reduction for output size 1, a plain pool if the input size is a multiple of the output size,
/// else [`uneven`].
fn adaptive(c: &mut Ctx, call: &Call, n: usize, max: bool) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let lead = c.rank(x).checked_sub(n).filter(|_| ty.rank() == c.rank(x)).ok_or("pooling of too few axes")?;
    let (have, want) = (from(&c.shape(x), lead)?.to_vec(), from(&ty.shape, lead)?.to_vec());
    if want.iter().all(|w| *w == 1) {
        let axes: Vec<usize> = (lead..c.rank(x)).collect();
        return Ok(vec![c.reduce(if max { ReduceOp::Max } else { ReduceOp::Mean }, x, &axes)?]);
    }
    if c.dtype(x) == DType::Bool || want.contains(&0) {
        return Err(format!("adaptive pooling of {} to {want:?}", c.ty(x)));
    }
    if have.iter().zip(&want).any(|(h, w)| !h.is_multiple_of(*w)) {
        return Ok(vec![c.in_compute(x, ty.dtype, |c, x| uneven(c, x, &have, &want, max))?]);
    }
    let window: Vec<usize> = have.iter().zip(&want).map(|(h, w)| h / w).collect();
    let kind = if max { PoolKind::Max } else { PoolKind::Avg { count_pad: true } };
    let op = Op::Pool { kind, stride: window.clone(), window, padding: vec![0; n], dilation: vec![1; n], ceil: false };
    Ok(vec![c.node(op, &[x])?])
}

/// Windows of different sizes: window `i` of `want` begins at `⌊i·have / want⌋` and ends before `⌈(i+1)·have / want⌉`.
/// All windows are gathered at the length of the longest; shorter ones repeat their last element, which a mean counts
/// only once.
fn uneven(c: &mut Ctx, x: ValueId, have: &[usize], want: &[usize], max: bool) -> Res<ValueId> {
    let shape = c.shape(x);
    let lead = shape.get(..shape.len().saturating_sub(have.len())).unwrap_or_default();
    let out = [lead, want].concat();
    want.iter().chain(have).try_for_each(|n| table_fits(*n))?;
    let ends = |i: usize, h: usize, w: usize| (i * h / w, ((i + 1) * h).div_ceil(w));
    let longest = |h, w| (0..w).map(|i| ends(i, h, w)).map(|(start, end)| end - start).max().unwrap_or(1);
    // Each axis becomes two: the windows, and the positions in a window.
    let mut split = lead.to_vec();
    let lead = lead.len();
    split.extend(want.iter().zip(have).flat_map(|(&w, &h)| [w, longest(h, w)]));
    let places: Vec<usize> = (0..have.len()).map(|a| lead + 2 * a + 1).collect();
    let (mut taken, mut counts) = (x, vec![]);
    for (a, (&h, &w)) in have.iter().zip(want).enumerate().rev() {
        let place = c.iota(Type::new(DType::I64, [w, longest(h, w)]), 1);
        let bound = |c: &mut Ctx, at: &dyn Fn(usize) -> usize| {
            let all = Tensor::from_f64(Type::new(DType::I64, [w, 1]), (0..w).map(|i| at(i) as f64));
            c.table("windows", all)
        };
        let start = bound(c, &|i| ends(i, h, w).0);
        let end = bound(c, &|i| ends(i, h, w).1);
        let place = c.binary(BinaryOp::Add, start, place)?;
        let last = c.with(BinaryOp::Sub, end, 1.0)?;
        let index = c.binary(BinaryOp::Min, place, last)?;
        taken = c.node(Op::Take { axis: lead + a }, &[taken, index])?;
        let inside = c.compare(CompareOp::Le, place, last)?;
        let count = c.binary(BinaryOp::Sub, end, start)?;
        counts.push((a, inside, count));
    }
    if max {
        let all = c.reduce(ReduceOp::Max, taken, &places)?;
        return c.reshape(all, &out);
    }
    let (mut sizes, zero) = (None, c.constant(c.dtype(x), Scalar::Int(0)));
    for (a, inside, count) in counts {
        let mut alone = vec![1; split.len()];
        let (have, want) = (at(have, a)?, at(want, a)?);
        alone = with_size(&alone, lead + 2 * a, want)?;
        let count = c.reshape(count, &alone)?;
        alone = with_size(&alone, lead + 2 * a + 1, longest(have, want))?;
        let inside = c.reshape(inside, &alone)?;
        taken = c.select(inside, taken, zero)?;
        let count = c.cast(count, c.dtype(x))?;
        sizes = Some(sizes.map_or(Ok(count), |s| c.binary(BinaryOp::Mul, s, count))?);
    }
    let sum = c.reduce(ReduceOp::Sum, taken, &places)?;
    let mean = sizes.map_or(Ok(sum), |s| c.binary(BinaryOp::Div, sum, s))?;
    c.reshape(mean, &out)
}
