//! Matmuls, and operators built on them: `addmm`, `einsum`, `_scaled_mm`, `cdist`.
mod einsum;

use super::{
    Table,
    context::{Ctx, Res, normal_axis},
    reduce::moments::p_norm,
    scalars::scale,
};
use crate::raw::Call;
use kiln_graph::{BinaryOp, DType, Op, ReduceOp, Scalar, UnaryOp, ValueId};

pub const TABLE: Table = &[
    ("aten::linear", linear),
    ("aten::matmul", matmul),
    ("aten::mm", matmul),
    ("aten::bmm", matmul),
    ("aten::mv", matmul),
    ("aten::dot", matmul),
    ("aten::vdot", matmul),
    ("aten::inner", inner),
    ("aten::outer", outer),
    ("aten::ger", outer),
    ("aten::addmm", |c, call| add_matmul(c, call, 3, 4)),
    ("aten::baddbmm", |c, call| add_matmul(c, call, 3, 4)),
    ("aten::addmv", |c, call| add_matmul(c, call, 3, 4)),
    ("aten::addbmm", addbmm),
    ("aten::addr", addr),
    ("aten::bilinear", bilinear),
    ("aten::tensordot", tensordot),
    ("aten::kron", kron),
    ("aten::einsum", einsum::einsum),
    ("aten::_scaled_mm", scaled_matmul),
    ("aten::_int_mm", integer_matmul),
    ("aten::cdist", cdist),
    ("aten::_euclidean_dist", |c, call| {
        let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
        let r = distance_by_matmul(c, a, b)?;
        one(c.reshape(r, &ty.shape)?)
    }),
];

fn one(v: ValueId) -> Res<Vec<ValueId>> {
    Ok(vec![v])
}

/// `(x, weight, bias?)`.
fn linear(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, w, bias) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.opt_tensor(call, 2)?);
    let mut args = vec![x, w];
    args.extend(bias);
    one(c.node(Op::Linear, &args)?)
}

/// `a × b`; a vector is a row on the left and a column on the right. The result is reshaped to `shape`, which drops the
/// added axes.
pub fn dot(c: &mut Ctx, a: ValueId, b: ValueId, shape: &[usize]) -> Res<ValueId> {
    let a = match c.shape(a)[..] {
        [k] => c.reshape(a, &[1, k])?,
        _ => a,
    };
    let b = match c.shape(b)[..] {
        [k] => c.reshape(b, &[k, 1])?,
        _ => b,
    };
    let r = c.node(Op::Dot, &[a, b])?;
    c.reshape(r, shape)
}

/// `_int_mm`: 8-bit integer operands, accumulated in i32.
fn integer_matmul(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let (a, b) = (c.cast(a, DType::I32)?, c.cast(b, DType::I32)?);
    one(c.node(Op::Dot, &[a, b])?)
}

fn matmul(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    one(dot(c, a, b, &ty.shape)?)
}

/// `inner`: contracts the last axis of both operands.
fn inner(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let (Some(&k), Some(_)) = (c.shape(b).last(), c.shape(a).last()) else {
        return Err("inner of rank 0".into());
    };
    let (rows, columns) = (c.ty(a).count() / k.max(1), c.ty(b).count() / k.max(1));
    let (a, b) = (c.reshape(a, &[rows, k])?, c.reshape(b, &[columns, k])?);
    let b = c.transpose(b)?;
    one(dot(c, a, b, &ty.shape)?)
}

fn outer(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let n = c.ty(a).count();
    let a = c.reshape(a, &[n, 1])?;
    one(c.binary(BinaryOp::Mul, a, b)?)
}

/// `beta c + alpha a × b`; with beta 0, c is not read, so its NaNs do not propagate.
fn add_matmul(c: &mut Ctx, call: &Call, beta_at: usize, alpha_at: usize) -> Res<Vec<ValueId>> {
    let (add, a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?, c.out(call, 0)?);
    let r = dot(c, a, b, &ty.shape)?;
    one(plus(c, add, r, c.scalar(call, beta_at)?, c.scalar(call, alpha_at)?)?)
}

/// `(a, b, scale of a, scale of b, bias?, scale of the result?, dtype?, fast?)`: `a × b` of f8 with f32 accumulation,
/// times both scales (per tensor, or per row of a and per column of b), plus the bias.
fn scaled_matmul(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let types = [a, b].map(|v| c.dtype(v));
    if !types[0].is_f8() || types[0] != types[1] {
        return Err(format!("_scaled_mm of {} by {}; both operands must have the same f8 dtype", types[0], types[1]));
    }
    if c.opt_tensor(call, 5)?.is_some() {
        return Err("_scaled_mm with a scale for the result".into());
    }
    let mut r = dot(c, a, b, &ty.shape)?;
    let [rows, columns] = ty.shape[..] else { return Err("_scaled_mm that gives no matrix".into()) };
    for i in [2, 3] {
        let scale = c.tensor(call, i)?;
        let scale = match &c.shape(scale)[..] {
            s if s.iter().product::<usize>() == 1 => c.reshape(scale, &[])?,
            s if *s == [rows, 1] && i == 2 || *s == [1, columns] && i == 3 => scale,
            s => return Err(format!("_scaled_mm with a scale of shape {s:?}")),
        };
        let scale = c.cast(scale, DType::F32)?;
        r = c.binary(BinaryOp::Mul, r, scale)?;
    }
    if let Some(bias) = c.opt_tensor(call, 4)? {
        let bias = c.cast(bias, DType::F32)?;
        r = c.binary(BinaryOp::Add, r, bias)?;
    }
    one(c.cast(r, ty.dtype)?)
}

/// `beta add + alpha r`. Scaling computes in f32 for narrower floats, and only the sum is rounded.
fn plus(c: &mut Ctx, add: ValueId, r: ValueId, beta: Scalar, alpha: Scalar) -> Res<ValueId> {
    let dtype = c.dtype(r);
    let scaled = alpha.as_f64() != 1.0 || !matches!(beta.as_f64(), 0.0 | 1.0);
    let work = if scaled { dtype.compute() } else { dtype };
    let r = c.cast(r, work)?;
    let r = scale(c, r, alpha)?;
    if beta.as_f64() == 0.0 {
        return c.cast(r, dtype);
    }
    let add = c.cast(add, work)?;
    let add = scale(c, add, beta)?;
    let sum = c.binary(BinaryOp::Add, add, r)?;
    c.cast(sum, dtype)
}

/// `beta c + alpha * (sum of a × b over the batch)`: one matmul, whose inner axis runs over the batch too.
fn addbmm(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (add, a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?, c.out(call, 0)?);
    let ([batch, rows, inner], [.., columns]) = (&c.shape(a)[..], &c.shape(b)[..]) else {
        return Err("addbmm of a rank other than 3".into());
    };
    let (all, rows, columns) = (batch * inner, *rows, *columns);
    let by_row = c.permute(a, &[1, 0, 2])?;
    let (a, b) = (c.reshape(by_row, &[rows, all])?, c.reshape(b, &[all, columns])?);
    let r = dot(c, a, b, &ty.shape)?;
    one(plus(c, add, r, c.scalar(call, 3)?, c.scalar(call, 4)?)?)
}

/// `beta c + alpha a bᵀ` of vectors.
fn addr(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let ty = c.out(call, 0)?;
    let get = |c: &mut Ctx, i| c.tensor(call, i).and_then(|v| c.cast(v, ty.dtype));
    let (add, a, b) = (get(c, 0)?, get(c, 1)?, get(c, 2)?);
    let n = c.ty(a).count();
    let column = c.reshape(a, &[n, 1])?;
    let outer = c.binary(BinaryOp::Mul, column, b)?;
    one(plus(c, add, outer, c.scalar(call, 3)?, c.scalar(call, 4)?)?)
}

/// `(a, b, w, bias?)`: `sum of a[i] w[o, i, j] b[j]`, as `a` times the matrix `[i, o j]`, then times b and summed over
/// j.
fn bilinear(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, w, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.tensor(call, 2)?, c.out(call, 0)?);
    let [outs, n, m] = c.shape(w)[..] else { return Err("bilinear weights of a rank other than 3".into()) };
    let rows = c.ty(a).count() / n.max(1);
    let by_row = c.permute(w, &[1, 0, 2])?;
    let matrix = c.reshape(by_row, &[n, outs * m])?;
    let a = c.reshape(a, &[rows, n])?;
    let left = c.node(Op::Dot, &[a, matrix])?;
    let left = c.reshape(left, &[rows, outs, m])?;
    let b = c.reshape(b, &[rows, 1, m])?;
    let work = ty.dtype.compute();
    let (left, b) = (c.cast(left, work)?, c.cast(b, work)?);
    let products = c.binary(BinaryOp::Mul, left, b)?;
    let mut r = c.reduce(ReduceOp::Sum, products, &[2])?;
    r = c.reshape(r, &[rows, outs])?;
    if let Some(bias) = c.opt_tensor(call, 3)? {
        let bias = c.cast(bias, work)?;
        r = c.binary(BinaryOp::Add, r, bias)?;
    }
    let r = c.cast(r, ty.dtype)?;
    one(c.reshape(r, &ty.shape)?)
}

/// `(a, b, axes of a, axes of b)`: a matmul with the axes to contract last in a and first in b.
fn tensordot(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let split = |c: &Ctx, v: ValueId, at: usize| {
        let rank = c.rank(v);
        let inner = c.ints(call, at)?.into_iter().map(|x| normal_axis(x, rank)).collect::<Res<Vec<usize>>>()?;
        let outer: Vec<usize> = (0..rank).filter(|x| !inner.contains(x)).collect();
        Ok::<_, String>((inner, outer))
    };
    let ((inner_a, outer_a), (inner_b, outer_b)) = (split(c, a, 2)?, split(c, b, 3)?);
    let size = |c: &Ctx, v: ValueId, axes: &[usize]| axes.iter().map(|x| c.size(v, *x)).product::<Res<usize>>();
    let (rows, inner, columns) = (size(c, a, &outer_a)?, size(c, a, &inner_a)?, size(c, b, &outer_b)?);
    if inner != size(c, b, &inner_b)? {
        return Err("tensordot of axes that broadcast".into());
    }
    let left = c.permute(a, &[outer_a, inner_a].concat())?;
    let left = c.reshape(left, &[rows, inner])?;
    let right = c.permute(b, &[inner_b, outer_b].concat())?;
    let right = c.reshape(right, &[inner, columns])?;
    one(dot(c, left, right, &ty.shape)?)
}

/// Every element of a times all of b: each axis of a is before the same one of b, and both become one.
fn kron(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let spread = |c: &mut Ctx, v: ValueId, first: bool| {
        let missing = ty.rank().checked_sub(c.rank(v)).ok_or("a result of lower rank than its operands")?;
        let shape = [vec![1; missing], c.shape(v)].concat();
        let apart: Vec<usize> = shape.into_iter().flat_map(|n| if first { [n, 1] } else { [1, n] }).collect();
        let v = c.cast(v, ty.dtype)?;
        c.reshape(v, &apart)
    };
    let (a, b) = (spread(c, a, true)?, spread(c, b, false)?);
    let r = c.binary(BinaryOp::Mul, a, b)?;
    one(c.reshape(r, &ty.shape)?)
}

/// Above this many rows torch computes Euclidean distances by a matmul
/// (`use_mm_for_euclid_dist_if_necessary` in ATen/native/Distance.cpp).
const DISTANCE_BY_MATMUL: usize = 25;

/// `(a, b, p, mode?)`: distances between the rows of a and of b.
fn cdist(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (a, b, ty) = (c.tensor(call, 0)?, c.tensor(call, 1)?, c.out(call, 0)?);
    let (p, mode) = (c.float(call, 2)?, c.opt_int(call, 3)?.unwrap_or(0));
    let ([.., rows, _], [.., others, _]) = (&c.shape(a)[..], &c.shape(b)[..]) else {
        return Err("distances of vectors".into());
    };
    let many = *rows > DISTANCE_BY_MATMUL || *others > DISTANCE_BY_MATMUL;
    let by_matmul = p == 2.0 && (mode == 1 || mode == 0 && many);
    let r = if by_matmul { distance_by_matmul(c, a, b)? } else { distance(c, a, b, p)? };
    one(c.reshape(r, &ty.shape)?)
}

/// `sqrt(max(|a|² + |b|² - 2 a·b, 0))`.
fn distance_by_matmul(c: &mut Ctx, a: ValueId, b: ValueId) -> Res<ValueId> {
    let squares = |c: &mut Ctx, x| {
        let xx = c.binary(BinaryOp::Mul, x, x)?;
        let last = c.last_axis(x)?;
        c.reduce(ReduceOp::Sum, xx, &[last])
    };
    let (aa, bb) = (squares(c, a)?, squares(c, b)?);
    let bb = c.transpose(bb)?;
    let bt = c.transpose(b)?;
    let ab = c.node(Op::Dot, &[a, bt])?;
    let ab = c.with(BinaryOp::Mul, ab, 2.0)?;
    let sum = c.binary(BinaryOp::Add, aa, bb)?;
    let d = c.binary(BinaryOp::Sub, sum, ab)?;
    let d = c.with(BinaryOp::Max, d, 0.0)?;
    c.unary(UnaryOp::Sqrt, d)
}

/// Pairwise differences, then their p-norm over the last axis.
fn distance(c: &mut Ctx, a: ValueId, b: ValueId, p: f64) -> Res<ValueId> {
    let (sa, sb) = (c.shape(a), c.shape(b));
    let ([lead_a @ .., width_a], [lead_b @ .., rows, width_b]) = (&sa[..], &sb[..]) else {
        return Err("distances of vectors".into());
    };
    let a = c.reshape(a, &[lead_a, &[1, *width_a]].concat())?;
    let b = c.reshape(b, &[lead_b, &[1, *rows, *width_b]].concat())?;
    let d = c.binary(BinaryOp::Sub, a, b)?;
    let last = c.last_axis(d)?;
    p_norm(c, d, p, &[last])
}
