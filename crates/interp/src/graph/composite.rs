//! Composite ops (softmax, norms, attention), computed whole in the carrier's precision; the caller rounds the result
//! once.
use super::{
    pointwise::{map2, reals},
    reduce::{sum, sum_of},
    region::Positions,
    value::{Data, Value, on_floats},
    walk::{broadcast_strides, walk},
};
use kiln_graph::{FullyMasked, Op, ScoreStep, ops::real::Real};
use std::sync::Arc;

/// A composite that has no module of its own. `shape`: of the result.
pub(super) fn composite(op: &Op, args: &[&Value], shape: &[usize]) -> Result<Data, String> {
    match op {
        Op::Softmax { axis } => softmax(args[0], *axis, false),
        Op::LogSoftmax { axis } => softmax(args[0], *axis, true),
        Op::LayerNorm { axes, eps, .. } => layer_norm(args, *axes, eps.as_f64()),
        Op::RmsNorm { eps } => rms_norm(args[0], args[1], eps.as_f64()),
        Op::GroupNorm { groups, eps, .. } => group_norm(args, *groups, eps.as_f64()),
        Op::BatchNorm { eps } => batch_norm(args, eps.as_f64()),
        Op::Attention { .. } => attention(op, args, &Rows::all(args, shape, true)),
        Op::Logaddexp => logaddexp(args[0], args[1], shape),
        _ => Err(format!("{} has no reference", op.name())),
    }
}

/// In f64: the larger, and what the smaller adds to it.
fn logaddexp(a: &Value, b: &Value, shape: &[usize]) -> Result<Data, String> {
    fn one<R: Real>(a: R, b: R) -> R {
        let (a, b) = (a.wide(), b.wide());
        match a == b {
            true => R::of(a + std::f64::consts::LN_2),
            false => R::of(a.max_nan(b) + (-(a - b).abs()).exp().ln_1p()),
        }
    }
    match (&a.data, &b.data) {
        (Data::F32(x), Data::F32(y)) => Ok(Data::F32(Arc::new(map2((x, &a.ty.shape), (y, &b.ty.shape), shape, one)))),
        (Data::F64(x), Data::F64(y)) => Ok(Data::F64(Arc::new(map2((x, &a.ty.shape), (y, &b.ty.shape), shape, one)))),
        _ => Err("floats are wanted".into()),
    }
}

/// Softmax or its logarithm along an axis.
fn softmax(x: &Value, axis: usize, log: bool) -> Result<Data, String> {
    let shape = &x.ty.shape;
    let (len, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let outer: usize = shape[..axis].iter().product();
    fn run<R: Real>(v: &[R], [outer, len, inner]: [usize; 3], log: bool) -> Vec<R> {
        let mut out = v.to_vec();
        let mut row = vec![R::ZERO; len];
        for o in 0..outer {
            for i in 0..inner {
                let at = |k: usize| (o * len + k) * inner + i;
                for (k, r) in row.iter_mut().enumerate() {
                    *r = v[at(k)];
                }
                softmax_row(&mut row, log);
                for (k, r) in row.iter().enumerate() {
                    out[at(k)] = *r;
                }
            }
        }
        out
    }
    Ok(on_floats!(&x.data, v => run(v, [outer, len, inner], log)))
}

/// Softmax of one row, in place. A row of minus infinities gives NaN, as in PyTorch.
fn softmax_row<R: Real>(row: &mut [R], log: bool) {
    let Some(&first) = row.first() else { return };
    let max = row.iter().fold(first, |m, x| m.max_nan(*x));
    if log {
        let total = sum_of(row, |x| (x - max).exp().wide());
        let log_sum = R::of(total).ln();
        row.iter_mut().for_each(|x| *x = *x - max - log_sum);
    } else {
        row.iter_mut().for_each(|x| *x = (*x - max).exp());
        let total = R::of(sum(row));
        row.iter_mut().for_each(|x| *x = *x / total);
    }
}

/// Mean and 1/sqrt(variance + eps), accumulated in f64.
fn moments<R: Real>(row: &[R], eps: f64) -> (R, R) {
    let n = row.len() as f64;
    let mean = sum(row) / n;
    let variance = sum_of(row, |x| (x.wide() - mean) * (x.wide() - mean)) / n;
    (R::of(mean), R::of(1.0 / (variance + eps).sqrt()))
}

/// The operands after the first, which must have the first one's carrier type.
fn rest<'a, R: 'a>(args: &[&'a Value], get: impl Fn(&'a Data) -> Option<&'a [R]>) -> Result<Vec<&'a [R]>, String> {
    let all: Option<Vec<&[R]>> = args[1..].iter().map(|v| get(&v.data)).collect();
    all.ok_or_else(|| "operands are of different types".into())
}
fn f32s(d: &Data) -> Option<&[f32]> {
    if let Data::F32(v) = d { Some(v) } else { None }
}
fn f64s(d: &Data) -> Option<&[f64]> {
    if let Data::F64(v) = d { Some(v) } else { None }
}

/// Runs a generic function on the elements of the first operand and of the remaining ones.
macro_rules! on_all {
    ($args:expr, $run:expr) => {
        match &$args[0].data {
            Data::F32(v) => Ok(Data::F32(Arc::new($run(v, &rest($args, f32s)?)))),
            Data::F64(v) => Ok(Data::F64(Arc::new($run(v, &rest($args, f64s)?)))),
            _ => Err("expected floats".to_string()),
        }
    };
}

fn layer_norm(args: &[&Value], axes: usize, eps: f64) -> Result<Data, String> {
    let shape = &args[0].ty.shape;
    let len: usize = shape[shape.len() - axes..].iter().product();
    fn run<R: Real>(v: &[R], rest: &[&[R]], len: usize, eps: f64) -> Vec<R> {
        let mut out = Vec::with_capacity(v.len());
        for row in v.chunks(len.max(1)) {
            let (mean, scale) = moments(row, eps);
            out.extend(row.iter().enumerate().map(|(i, x)| {
                let y = (*x - mean) * scale;
                if let [gain, bias] = rest { y * gain[i] + bias[i] } else { y }
            }));
        }
        out
    }
    on_all!(args, |v, r: &Vec<_>| run(v, r, len, eps))
}

fn rms_norm(x: &Value, gain: &Value, eps: f64) -> Result<Data, String> {
    let len = x.ty.shape.last().copied().unwrap_or(1);
    fn run<R: Real>(v: &[R], rest: &[&[R]], len: usize, eps: f64) -> Vec<R> {
        let mut out = Vec::with_capacity(v.len());
        for row in v.chunks(len.max(1)) {
            let square = sum_of(row, |x| x.wide() * x.wide()) / row.len() as f64;
            let scale = R::of(1.0 / (square + eps).sqrt());
            out.extend(row.iter().zip(rest[0]).map(|(x, g)| *x * scale * *g));
        }
        out
    }
    on_all!(&[x, gain], |v, r: &Vec<_>| run(v, r, len, eps))
}

fn group_norm(args: &[&Value], groups: usize, eps: f64) -> Result<Data, String> {
    let shape = &args[0].ty.shape;
    let (channels, plane) = (shape[1], shape[2..].iter().product::<usize>());
    let len = channels / groups * plane;
    fn run<R: Real>(v: &[R], rest: &[&[R]], [channels, plane, len]: [usize; 3], eps: f64) -> Vec<R> {
        let mut out = Vec::with_capacity(v.len());
        for (r, row) in v.chunks(len.max(1)).enumerate() {
            let (mean, scale) = moments(row, eps);
            out.extend(row.iter().enumerate().map(|(i, x)| {
                let y = (*x - mean) * scale;
                let c = (r * len + i) / plane.max(1) % channels;
                if let [gain, bias] = rest { y * gain[c] + bias[c] } else { y }
            }));
        }
        out
    }
    on_all!(args, |v, r: &Vec<_>| run(v, r, [channels, plane, len], eps))
}

fn batch_norm(args: &[&Value], eps: f64) -> Result<Data, String> {
    let shape = &args[0].ty.shape;
    let (channels, plane) = (shape[1], shape[2..].iter().product::<usize>());
    fn run<R: Real>(v: &[R], rest: &[&[R]], [channels, plane]: [usize; 2], eps: f64) -> Vec<R> {
        let [gain, bias, mean, variance] = rest else { return v.to_vec() };
        let scale: Vec<R> = variance.iter().map(|x| R::ONE / (*x + R::of(eps)).sqrt()).collect();
        let channel = |i: usize| i / plane.max(1) % channels.max(1);
        let one = |(i, x): (usize, &R)| {
            let c = channel(i);
            (*x - mean[c]) * scale[c] * gain[c] + bias[c]
        };
        v.iter().enumerate().map(one).collect()
    }
    on_all!(args, |v, r: &Vec<_>| run(v, r, [channels, plane], eps))
}

/// Softmax(q·kᵀ·scale + mask)·v, one query at a time, without the probability of the sink. A row in which nothing takes
/// part gives zeros (PyTorch's `_safe_softmax`) or NaN (its softmax).
pub(super) fn attention(op: &Op, args: &[&Value], rows: &Rows) -> Result<Data, String> {
    let Op::Attention { scale, causal, fully_masked, score, lse, .. } = op else { return Err("not attention".into()) };
    let (q, k, v) = (args[0], args[1], args[2]);
    let r = q.ty.rank();
    let (heads, s, d) = (q.ty.shape[r - 3], q.ty.shape[r - 2], q.ty.shape[r - 1]);
    let (key_heads, t, e) = (k.ty.shape[r - 3], k.ty.shape[r - 2], v.ty.shape[r - 1]);
    let batch: usize = q.ty.shape[..r - 3].iter().product();
    let scores = [&q.ty.shape[..r - 1], &[t]].concat();
    // Of what broadcasts to the scores: the offset of each of their rows, and the stride along a row (0 if broadcast).
    let rows_of = |x: &Value| {
        let (strides, mut at) = (broadcast_strides(&x.ty.shape, &scores), Vec::new());
        walk(&scores[..r - 1], [&strides[..r - 1]], [0], |[i]| at.push(i));
        (at, strides[r - 1] as usize)
    };
    let size = Sizes { batch, heads, key_heads, s, t, d, e };
    let mask = args.get(op.mask_place()).map(|m| (rows_of(m), &m.data));
    let others: Vec<((Vec<usize>, usize), &Data)> =
        args[3..op.sink_place().unwrap_or(op.mask_place())].iter().map(|x| (rows_of(x), &x.data)).collect();
    let sink = op.sink_place().map(|i| (rows_of(args[i]).0, &args[i].data));
    macro_rules! on {
        ($variant:ident, $function:ident, $q:expr) => {{
            let (Data::$variant(k), Data::$variant(v)) = (&k.data, &v.data) else {
                return Err("operands are of different types".into());
            };
            let step = |row: usize, scores: &mut Vec<_>| -> Result<(), String> {
                let mut others = others.iter();
                for step in score {
                    *scores = match step {
                        ScoreStep::Unary(u) => {
                            let f = u.function().reference.ok_or_else(|| format!("{step} of floats"))?.$function;
                            scores.iter().map(|x| f(*x)).collect()
                        }
                        ScoreStep::Number(b, c) => reals(*b, (scores, &[t]), (&[Real::of(c.as_f64())], &[]), &[t])?,
                        ScoreStep::Operand(b) => {
                            let Some(((at, stride), Data::$variant(x))) = others.next() else {
                                return Err("an operand of the score function is missing, or of another type".into());
                            };
                            let along: Vec<_> = (0..t).map(|j| x[at[row] + j * stride]).collect();
                            reals(*b, (scores, &[t]), (&along, &[t]), &[t])?
                        }
                    };
                }
                Ok(())
            };
            let add = |row: usize, scores: &mut [_]| match &mask {
                Some(((at, stride), Data::Bool(m))) => {
                    for (j, x) in scores.iter_mut().enumerate() {
                        if !m[at[row] + j * stride] {
                            *x = Real::of(f64::NEG_INFINITY);
                        }
                    }
                }
                Some(((at, stride), Data::$variant(m))) => {
                    for (j, x) in scores.iter_mut().enumerate() {
                        *x += m[at[row] + j * stride];
                    }
                }
                _ => {}
            };
            let beside = |row: usize| match &sink {
                Some((at, Data::$variant(x))) => Ok(Some(x[at[row]])),
                Some(_) => Err("the sink is of another type".to_string()),
                None => Ok(None),
            };
            let how = (scale.as_f64(), *causal, *fully_masked, *lse);
            Data::$variant(Arc::new(attend([&$q[..], k, v], &size, rows, how, (step, add, beside))?))
        }};
    }
    Ok(match &q.data {
        Data::F32(q) => on!(F32, f32, q),
        Data::F64(q) => on!(F64, f64, q),
        _ => return Err("expected floats".into()),
    })
}

/// Which rows of attention are computed.
pub(super) struct Rows {
    /// Positions of the queries, which a causal mask compares with keys.
    pub queries: Positions,
    /// For each head the key head whose keys it reads.
    pub key_head: Vec<usize>,
    /// Values of keys whose weight is zero count, too: NaN where they are not finite.
    pub every_value: bool,
}

impl Rows {
    /// All rows of a result of this shape.
    pub fn all(args: &[&Value], shape: &[usize], every_value: bool) -> Rows {
        let r = shape.len();
        let (heads, key_heads) = (shape[r - 3], args[1].ty.shape[r - 3]);
        let key_head = (0..heads).map(|h| h * key_heads / heads).collect();
        Rows { queries: Positions::all(shape[r - 2]), key_head, every_value }
    }
}

struct Sizes {
    batch: usize,
    heads: usize,
    key_heads: usize,
    s: usize,
    t: usize,
    d: usize,
    e: usize,
}

/// In f64: the logarithm of a sum of exponentials.
fn log_sum_exp<R: Real>(row: &[R]) -> R {
    let most = row.iter().fold(f64::NEG_INFINITY, |m, x| m.max_nan(x.wide()));
    if most.is_infinite() {
        return R::of(most);
    }
    R::of(most + row.iter().map(|x| (x.wide() - most).exp()).sum::<f64>().ln())
}

/// `step`: what the score function makes of a row's scaled scores. `mask`: adds or applies the mask of a row. `sink`:
/// the row's.
fn attend<R: Real>(
    [q, k, v]: [&[R]; 3],
    z: &Sizes,
    rows: &Rows,
    (scale, causal, fully_masked, lse): (f64, bool, FullyMasked, bool),
    (step, mask, sink): (
        impl Fn(usize, &mut Vec<R>) -> Result<(), String>,
        impl Fn(usize, &mut [R]),
        impl Fn(usize) -> Result<Option<R>, String>,
    ),
) -> Result<Vec<R>, String> {
    let width = if lse { 1 } else { z.e };
    let mut out = vec![R::ZERO; z.batch * z.heads * z.s * width];
    let mut scores = vec![R::ZERO; z.t];
    let masked = R::of(f64::NEG_INFINITY);
    let queries: Vec<usize> = rows.queries.iter().collect();
    for row in 0..z.batch * z.heads * z.s {
        let (query, head, b) = (queries[row % z.s], row / z.s % z.heads, row / z.s / z.heads);
        let key_head = b * z.key_heads + rows.key_head[head];
        let query_row = &q[row * z.d..(row + 1) * z.d];
        for (j, score) in scores.iter_mut().enumerate() {
            let key = &k[(key_head * z.t + j) * z.d..][..z.d];
            let dot = query_row.iter().zip(key).fold(R::ZERO, |s, (x, y)| s + *x * *y);
            *score = dot * R::of(scale);
        }
        step(row, &mut scores)?;
        if causal {
            scores.iter_mut().skip(query + 1).for_each(|x| *x = masked);
        }
        mask(row, &mut scores);
        scores.extend(sink(row)?);
        if lse {
            out[row] = log_sum_exp(&scores);
            scores.truncate(z.t);
            continue;
        }
        // Weights of zero: a non-finite value still gives NaN.
        match fully_masked == FullyMasked::Zero && scores.iter().all(|x| *x == masked) {
            true => scores.fill(R::ZERO),
            false => softmax_row(&mut scores, false),
        }
        scores.truncate(z.t);
        let result = &mut out[row * z.e..(row + 1) * z.e];
        for (j, p) in scores.iter().enumerate().filter(|(_, p)| rows.every_value || **p != R::ZERO) {
            let value = &v[(key_head * z.t + j) * z.e..][..z.e];
            result.iter_mut().zip(value).for_each(|(s, x)| *s += *p * *x);
        }
    }
    Ok(out)
}
