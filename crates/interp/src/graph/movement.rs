//! Views and data movement. Every op copies into a new dense value.
use super::{
    Precision,
    value::{Data, Value, on_any, on_both},
    walk::{broadcast_strides, collect, strides, walk},
};
use half::{bf16, f16};
use kiln_graph::{DType, ScatterMode, Type};
use std::sync::Arc;

pub(super) fn iota(ty: &Type, axis: usize, precision: Precision) -> Data {
    let mut along = vec![0; ty.rank()];
    along[axis] = 1;
    let mut out = Vec::with_capacity(ty.count());
    walk(&ty.shape, [&along], [0], |[i]| out.push(i as i64));
    let ints = Data::Int(Arc::new(out));
    ints.cast(kiln_graph::DType::I64, ty.dtype, precision)
}

pub(super) fn permute(x: &Value, perm: &[usize]) -> Data {
    let own = strides(&x.ty.shape);
    let shape: Vec<usize> = perm.iter().map(|&p| x.ty.shape[p]).collect();
    let moved: Vec<isize> = perm.iter().map(|&p| own[p]).collect();
    on_any!(&x.data, v => collect(v, &shape, &moved, 0))
}

pub(super) fn broadcast(x: &Value, shape: &[usize]) -> Data {
    let s = broadcast_strides(&x.ty.shape, shape);
    on_any!(&x.data, v => collect(v, shape, &s, 0))
}

pub(super) fn slice(x: &Value, shape: &[usize], axis: usize, start: usize, step: usize) -> Data {
    let mut s = strides(&x.ty.shape);
    let first = s[axis] * start as isize;
    // With a single element the step is irrelevant, and may be too large to multiply.
    s[axis] = if shape[axis] > 1 { s[axis] * step as isize } else { 0 };
    on_any!(&x.data, v => collect(v, shape, &s, first))
}

pub(super) fn flip(x: &Value, axes: &[usize]) -> Data {
    let mut s = strides(&x.ty.shape);
    let mut start = 0;
    for &a in axes {
        start += s[a] * x.ty.shape[a].saturating_sub(1) as isize;
        s[a] = -s[a];
    }
    on_any!(&x.data, v => collect(v, &x.ty.shape, &s, start))
}

pub(super) fn pad(x: &Value, value: &Value, lo: &[i64], shape: &[usize]) -> Result<Data, String> {
    let (from, to) = (strides(&x.ty.shape), strides(shape));
    // The part of the operand that is kept, and its position in the result.
    let mut kept = Vec::with_capacity(shape.len());
    let (mut read, mut write) = (0isize, 0isize);
    for (i, &lo) in lo.iter().enumerate() {
        let cropped = lo.min(0).unsigned_abs() as usize;
        let shift = lo.max(0) as usize;
        kept.push((x.ty.shape[i].saturating_sub(cropped)).min(shape[i].saturating_sub(shift)));
        read += from[i] * cropped as isize;
        write += to[i] * shift as isize;
    }
    Ok(on_both!(&x.data, &value.data, (v, p) => {
        let mut out = vec![p[0]; shape.iter().product()];
        walk(&kept, [&from, &to], [read, write], |[i, j]| out[j] = v[i]);
        out
    }))
}

pub(super) fn concat(args: &[&Value], axis: usize, shape: &[usize]) -> Result<Data, String> {
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    let runs: Vec<usize> = args.iter().map(|a| a.ty.shape[axis] * inner).collect();
    macro_rules! join {
        ($variant:ident) => {{
            let mut parts = Vec::with_capacity(args.len());
            for a in args {
                let Data::$variant(v) = &a.data else { return Err("operands are of different types".into()) };
                parts.push(v);
            }
            let mut out = Vec::with_capacity(shape.iter().product());
            for o in 0..outer {
                for (v, run) in parts.iter().zip(&runs) {
                    out.extend_from_slice(&v[o * run..(o + 1) * run]);
                }
            }
            Data::$variant(Arc::new(out))
        }};
    }
    Ok(match &args[0].data {
        Data::F32(_) => join!(F32),
        Data::F64(_) => join!(F64),
        Data::Int(_) => join!(Int),
        Data::Bool(_) => join!(Bool),
    })
}

/// All indices as positions in `0..len`; an index out of range is an error.
fn positions(index: &Value, len: usize) -> Result<Vec<usize>, String> {
    let inside = |&i: &i64| match usize::try_from(i) {
        Ok(i) if i < len => Ok(i),
        _ => Err(format!("index {i} is out of range for an axis of {len}")),
    };
    index.data.ints()?.iter().map(inside).collect()
}

pub(super) fn gather(x: &Value, index: &Value, axis: usize) -> Result<Data, String> {
    let at = positions(index, x.ty.shape[axis])?;
    let mut others = strides(&x.ty.shape);
    let along = others[axis] as usize;
    others[axis] = 0;
    let shape = &index.ty.shape;
    Ok(on_any!(&x.data, v => {
        let mut out = Vec::with_capacity(at.len());
        walk(shape, [&others, &strides(shape)], [0, 0], |[i, j]| out.push(v[i + at[j] * along]));
        out
    }))
}

pub(super) fn take(x: &Value, index: &Value, axis: usize) -> Result<Data, String> {
    let shape = &x.ty.shape;
    let outer: usize = shape[..axis].iter().product();
    let inner: usize = shape[axis + 1..].iter().product();
    let len = shape[axis];
    let at = positions(index, len)?;
    if outer * inner == 0 {
        return Ok(on_any!(&x.data, v => v[..0].to_vec()));
    }
    Ok(on_any!(&x.data, v => {
        let mut out = Vec::with_capacity(outer * at.len() * inner);
        for o in 0..outer {
            for &i in &at {
                let start = (o * len + i) * inner;
                out.extend_from_slice(&v[start..start + inner]);
            }
        }
        out
    }))
}

/// Writes or adds in row-major order of the indices. Sums in f16 and bf16 are rounded after each addition, as in
/// PyTorch.
pub(super) fn scatter(
    [x, index, source]: [&Value; 3],
    axis: usize,
    mode: ScatterMode,
    precision: Precision,
) -> Result<Data, String> {
    let at = positions(index, x.ty.shape[axis])?;
    let mut others = strides(&x.ty.shape);
    let along = others[axis] as usize;
    others[axis] = 0;
    let shape = &index.ty.shape;
    let own = strides(shape);
    let each = |f: &mut dyn FnMut(usize, usize)| walk(shape, [&others, &own], [0, 0], |[i, j]| f(i + at[j] * along, j));
    if mode == ScatterMode::Replace {
        return Ok(on_both!(&x.data, &source.data, (v, s) => {
            let mut out = v.to_vec();
            each(&mut |i, j| out[i] = s[j]);
            out
        }));
    }
    match (&x.data, &source.data) {
        (Data::F32(v), Data::F32(s)) => {
            let mut out = v.to_vec();
            let round: fn(f32) -> f32 = match x.ty.dtype {
                DType::F16 if precision != Precision::F64 => |x| f16::from_f32(x).to_f32(),
                DType::Bf16 if precision != Precision::F64 => |x| bf16::from_f32(x).to_f32(),
                _ => |x| x,
            };
            each(&mut |i, j| out[i] = round(out[i] + s[j]));
            Ok(Data::F32(Arc::new(out)))
        }
        (Data::F64(v), Data::F64(s)) => {
            let mut out = v.to_vec();
            each(&mut |i, j| out[i] += s[j]);
            Ok(Data::F64(Arc::new(out)))
        }
        (Data::Int(v), Data::Int(s)) => {
            let mut out = v.to_vec();
            each(&mut |i, j| out[i] = out[i].wrapping_add(s[j]));
            Ok(Data::Int(Arc::new(out)))
        }
        _ => Err("scatter adds numbers of one type".into()),
    }
}
