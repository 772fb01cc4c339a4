//! Reductions and scans.
use super::{
    Precision,
    movement::permute,
    value::{Data, Value, on_floats},
};
use kiln_graph::ops::real::Real;
use kiln_graph::{ReduceOp, ScanOp};
use std::sync::Arc;

pub(super) fn reduce(op: ReduceOp, x: &Value, axes: &[usize]) -> Result<Data, String> {
    let shape = &x.ty.shape;
    let kept = (0..shape.len()).filter(|a| !axes.contains(a));
    let perm: Vec<usize> = kept.clone().chain((0..shape.len()).filter(|a| axes.contains(a))).collect();
    let rows: usize = kept.map(|a| shape[a]).product();
    let len: usize = axes.iter().map(|&a| shape[a]).product();
    let in_order = perm.iter().copied().eq(0..shape.len());
    let moved = if in_order { x.data.clone() } else { permute(x, &perm) };
    let row = |r: usize| r * len..(r + 1) * len;
    let by_index = |better: &dyn Fn(usize, usize) -> bool| {
        let best = |r: usize| row(r).reduce(|best, i| if better(i, best) { i } else { best });
        let place = |r| best(r).map_or(0, |i| (i - r * len) as i64);
        Data::Int(Arc::new((0..rows).map(place).collect()))
    };
    Ok(match (&moved, op) {
        (Data::F32(v), ReduceOp::ArgMax) => by_index(&|i, j| v[i].nan() && !v[j].nan() || v[i] > v[j]),
        (Data::F64(v), ReduceOp::ArgMax) => by_index(&|i, j| v[i].nan() && !v[j].nan() || v[i] > v[j]),
        (Data::Int(v), ReduceOp::ArgMax) => by_index(&|i, j| v[i] > v[j]),
        (Data::Bool(v), ReduceOp::ArgMax) => by_index(&|i, j| v[i] & !v[j]),
        (Data::F32(v), ReduceOp::ArgMin) => by_index(&|i, j| v[i].nan() && !v[j].nan() || v[i] < v[j]),
        (Data::F64(v), ReduceOp::ArgMin) => by_index(&|i, j| v[i].nan() && !v[j].nan() || v[i] < v[j]),
        (Data::Int(v), ReduceOp::ArgMin) => by_index(&|i, j| v[i] < v[j]),
        (Data::Bool(v), ReduceOp::ArgMin) => by_index(&|i, j| !v[i] & v[j]),
        (Data::Bool(v), _) => {
            let f: fn(&[bool]) -> bool = match op {
                ReduceOp::Any | ReduceOp::Max => |r| r.contains(&true),
                ReduceOp::All | ReduceOp::Min => |r| !r.contains(&false),
                _ => return Err(format!("{} is not defined on bool", op.name())),
            };
            Data::Bool(Arc::new((0..rows).map(|r| f(&v[row(r)])).collect()))
        }
        (Data::Int(v), _) => {
            let f: fn(&[i64]) -> i64 = match op {
                ReduceOp::Sum => |r| r.iter().fold(0, |s, x| s.wrapping_add(*x)),
                ReduceOp::Prod => |r| r.iter().fold(1, |s, x| s.wrapping_mul(*x)),
                ReduceOp::Max => |r| r.iter().copied().max().unwrap_or(0),
                ReduceOp::Min => |r| r.iter().copied().min().unwrap_or(0),
                _ => return Err(format!("{} is not defined on integers", op.name())),
            };
            Data::Int(Arc::new((0..rows).map(|r| f(&v[row(r)])).collect()))
        }
        (data, _) => on_floats!(data, v => {
            let one = |r: usize| reals(op, &v[row(r)]);
            (0..rows).map(one).collect::<Result<Vec<_>, String>>()?
        }),
    })
}

fn reals<R: Real>(op: ReduceOp, row: &[R]) -> Result<R, String> {
    let first = || row.first().copied().unwrap_or(R::ZERO);
    Ok(match op {
        ReduceOp::Sum => R::of(sum(row)),
        ReduceOp::Mean => R::of(sum(row) / row.len() as f64),
        ReduceOp::Prod => row.iter().fold(R::ONE, |p, x| p * *x),
        ReduceOp::Max => row.iter().fold(first(), |m, x| m.max_nan(*x)),
        ReduceOp::Min => row.iter().fold(first(), |m, x| m.min_nan(*x)),
        _ => return Err(format!("{} is not defined on floats", op.name())),
    })
}

/// Sum accumulated in f64.
pub(super) fn sum<R: Real>(row: &[R]) -> f64 {
    sum_of(row, |x| x.wide())
}

/// Pairwise sum of `f` over the row, so that even long f64 rows keep nearly all digits.
pub(super) fn sum_of<R: Real>(row: &[R], f: impl Fn(R) -> f64 + Copy) -> f64 {
    if row.len() <= 64 {
        return row.iter().fold(0.0, |s, x| s + f(*x));
    }
    let (a, b) = row.split_at(row.len() / 2);
    sum_of(a, f) + sum_of(b, f)
}

/// Scan along `axis`, accumulated in f64. Sums in [`Precision::F64`] use Neumaier's compensation: sequential addition
/// of thousands of f64 elements would lose digits, and the reference must be more exact than the results it judges.
pub(super) fn scan(op: ScanOp, x: &Value, axis: usize, precision: Precision) -> Result<Data, String> {
    let shape = &x.ty.shape;
    let (len, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let outer: usize = shape[..axis].iter().product();
    let each = |f: &mut dyn FnMut(&mut dyn Iterator<Item = usize>)| {
        for o in 0..outer {
            for i in 0..inner {
                f(&mut (0..len).map(|k| (o * len + k) * inner + i));
            }
        }
    };
    if let Data::Int(v) = &x.data {
        let mut out = v.to_vec();
        each(&mut |line| {
            let mut acc = i64::from(op == ScanOp::Prod);
            for i in line {
                acc = if op == ScanOp::Sum { acc.wrapping_add(v[i]) } else { acc.wrapping_mul(v[i]) };
                out[i] = acc;
            }
        });
        return Ok(Data::Int(Arc::new(out)));
    }
    type Lines<'a> = dyn Fn(&mut dyn FnMut(&mut dyn Iterator<Item = usize>)) + 'a;
    fn reals<R: Real>(op: ScanOp, v: &[R], each: &Lines, compensated: bool) -> Vec<R> {
        let mut out = v.to_vec();
        each(&mut |line| {
            let (mut acc, mut error) = (if op == ScanOp::Sum { 0.0 } else { 1.0 }, 0.0);
            for i in line {
                let x = v[i].wide();
                let next = if op == ScanOp::Sum { acc + x } else { acc * x };
                if compensated && op == ScanOp::Sum && next.is_finite() {
                    let (large, small) = if f64::abs(acc) >= x.abs() { (acc, x) } else { (x, acc) };
                    error += (large - next) + small;
                }
                acc = next;
                out[i] = R::of(if error == 0.0 { acc } else { acc + error });
            }
        });
        out
    }
    Ok(on_floats!(&x.data, v => reals(op, v, &each, precision == Precision::F64)))
}
