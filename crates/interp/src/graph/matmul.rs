//! Matmuls (`dot`, `linear`) and convolutions.
use super::{
    region::Positions,
    value::{Data, Value, on_floats},
    walk::{broadcast_strides, collect, walk},
    window::{Steps, segments},
};
use kiln_graph::ops::real::Real;
use std::sync::Arc;

/// Length of partial sums along K, so that f32 rounding errors are those of a blocked matmul.
const BLOCK: usize = 256;

/// Arguments: sizes `[m, k, n]`, left operand, right operand, result.
type Gemm<T> = fn([usize; 3], &[T], &[T], &mut [T]);

/// `c[m,n] = a[m,k] · b[k,n]`.
fn gemm<R: Real>([m, k, n]: [usize; 3], a: &[R], b: &[R], c: &mut [R]) {
    c.fill(R::ZERO);
    let mut partial = vec![R::ZERO; n];
    for from in (0..k).step_by(BLOCK) {
        let to = (from + BLOCK).min(k);
        for i in 0..m {
            partial.fill(R::ZERO);
            for p in from..to {
                let x = a[i * k + p];
                for (s, y) in partial.iter_mut().zip(&b[p * n..(p + 1) * n]) {
                    *s += x * *y;
                }
            }
            for (s, y) in c[i * n..(i + 1) * n].iter_mut().zip(&partial) {
                *s += *y;
            }
        }
    }
}

fn gemm_ints([m, k, n]: [usize; 3], a: &[i64], b: &[i64], c: &mut [i64]) {
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                c[i * n + j] = c[i * n + j].wrapping_add(a[i * k + p].wrapping_mul(b[p * n + j]));
            }
        }
    }
}

pub(super) fn dot(a: &Value, b: &Value, shape: &[usize]) -> Result<Data, String> {
    let (ra, rb, r) = (a.ty.rank(), b.ty.rank(), shape.len());
    let (m, k, n) = (a.ty.shape[ra - 2], a.ty.shape[ra - 1], b.ty.shape[rb - 1]);
    let batch = &shape[..r - 2];
    let sa = broadcast_strides(&a.ty.shape[..ra - 2], batch);
    let sb = broadcast_strides(&b.ty.shape[..rb - 2], batch);
    /// One matmul per batch position.
    fn each<T: Copy>(
        batch: &[usize],
        strides: [&[isize]; 2],
        size: [usize; 3],
        (a, b): (&[T], &[T]),
        zero: T,
        gemm: Gemm<T>,
    ) -> Vec<T> {
        let [m, k, n] = size;
        let mut out = vec![zero; batch.iter().product::<usize>() * m * n];
        let mut at = 0;
        walk(batch, strides, [0, 0], |[i, j]| {
            gemm(size, &a[i * m * k..(i + 1) * m * k], &b[j * k * n..(j + 1) * k * n], &mut out[at..at + m * n]);
            at += m * n;
        });
        out
    }
    let size = [m, k, n];
    Ok(match (&a.data, &b.data) {
        (Data::F32(x), Data::F32(y)) => Data::F32(Arc::new(each(batch, [&sa, &sb], size, (x, y), 0.0, gemm))),
        (Data::F64(x), Data::F64(y)) => Data::F64(Arc::new(each(batch, [&sa, &sb], size, (x, y), 0.0, gemm))),
        (Data::Int(x), Data::Int(y)) => Data::Int(Arc::new(each(batch, [&sa, &sb], size, (x, y), 0, gemm_ints))),
        _ => return Err("operands are of different types".into()),
    })
}

pub(super) fn linear(x: &Value, w: &Value, bias: Option<&Value>) -> Result<Data, String> {
    let (n, k) = (w.ty.shape[0], w.ty.shape[1]);
    let m: usize = x.ty.shape[..x.ty.rank() - 1].iter().product();
    fn run<R: Real>([m, k, n]: [usize; 3], x: &[R], w: &[R], bias: Option<&[R]>) -> Vec<R> {
        let transposed = collect(w, &[k, n], &[1, k as isize], 0);
        let mut out = vec![R::ZERO; m * n];
        gemm([m, k, n], x, &transposed, &mut out);
        if let Some(bias) = bias
            && n > 0
        {
            for row in out.chunks_mut(n) {
                row.iter_mut().zip(bias).for_each(|(s, b)| *s += *b);
            }
        }
        out
    }
    Ok(match (&x.data, &w.data, bias.map(|b| &b.data)) {
        (Data::F32(x), Data::F32(w), None) => Data::F32(Arc::new(run([m, k, n], x, w, None))),
        (Data::F64(x), Data::F64(w), None) => Data::F64(Arc::new(run([m, k, n], x, w, None))),
        (Data::F32(x), Data::F32(w), Some(Data::F32(b))) => Data::F32(Arc::new(run([m, k, n], x, w, Some(b)))),
        (Data::F64(x), Data::F64(w), Some(Data::F64(b))) => Data::F64(Arc::new(run([m, k, n], x, w, Some(b)))),
        _ => return Err("expected floats of one type".into()),
    })
}

/// Direct convolution, one result plane at a time, accumulated in f64. `from`: the region of the input that `x` holds;
/// `to`: that of the result. Channels are those of whole groups, of which there are `groups`.
pub(super) fn conv(
    x: &Value,
    w: &Value,
    bias: Option<&Value>,
    steps: &Steps,
    groups: usize,
    transposed: bool,
    [from, to]: [&[Positions]; 2],
) -> Result<Data, String> {
    let wide = |v: &Value| -> Result<Vec<f64>, String> {
        match &v.data {
            Data::F32(d) => Ok(d.iter().map(|x| f64::from(*x)).collect()),
            Data::F64(d) => Ok(d.to_vec()),
            _ => Err("expected floats".into()),
        }
    };
    let (xs, ws, bias) = (wide(x)?, wide(w)?, bias.map(wide).transpose()?);
    let (batch, channels, outs) = (to[0].count(), x.ty.shape[1], to[1].count());
    let (inside, outside, window) = (&from[2..], &to[2..], &w.ty.shape[2..]);
    let count = |s: &[Positions]| s.iter().map(Positions::count).product::<usize>();
    let (in_plane, out_plane, taps) = (count(inside), count(outside), window.iter().product::<usize>());
    let (in_group, out_group) = (channels / groups.max(1), outs / groups.max(1));
    // A convolution gathers from its input, a transposed one scatters to its result; both use the same pairs of
    // positions.
    let (small, big) = if transposed { (inside, outside) } else { (outside, inside) };
    let pairs = segments(small, big, window, steps);
    let stride = steps.stride.last().copied().unwrap_or(1);
    let mut result = vec![0.0f64; batch * outs * out_plane];
    for n in 0..batch {
        for o in 0..outs {
            let plane = &mut result[(n * outs + o) * out_plane..][..out_plane];
            plane.fill(bias.as_ref().map_or(0.0, |b| b[o]));
            for c in (o / out_group) * in_group..(o / out_group + 1) * in_group {
                let from = &xs[(n * channels + c) * in_plane..][..in_plane];
                let weights = if transposed { c * out_group + o % out_group } else { o * in_group + c % in_group };
                for s in &pairs {
                    let weight = ws[weights * taps + s.tap];
                    if transposed {
                        for t in 0..s.len {
                            plane[s.big + t * stride] += weight * from[s.small + t];
                        }
                    } else if stride == 1 {
                        let row = &mut plane[s.small..s.small + s.len];
                        row.iter_mut().zip(&from[s.big..]).for_each(|(y, x)| *y += weight * x);
                    } else {
                        for t in 0..s.len {
                            plane[s.small + t] += weight * from[s.big + t * stride];
                        }
                    }
                }
            }
        }
    }
    Ok(on_floats!(&x.data, v => {
        // The second argument only selects the carrier type.
        narrow(&result, v.first().copied())
    }))
}

fn narrow<R: Real>(from: &[f64], _carrier: Option<R>) -> Vec<R> {
    from.iter().map(|x| R::of(*x)).collect()
}
