//! Upsampling: takes rows and columns at positions that are computed from the output's, and blends them with constant
//! weights.
use super::{
    Table,
    context::{Ctx, Res, along, at, table_fits, with_size},
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp, DType, Op, Scalar, Tensor, Type, ValueId};

pub const TABLE: Table = &[
    ("aten::upsample_nearest1d", |c, call| nearest(c, call, Nearest::Floor)),
    ("aten::upsample_nearest2d", |c, call| nearest(c, call, Nearest::Floor)),
    ("aten::upsample_nearest3d", |c, call| nearest(c, call, Nearest::Floor)),
    ("aten::_upsample_nearest_exact1d", |c, call| nearest(c, call, Nearest::Centre)),
    ("aten::_upsample_nearest_exact2d", |c, call| nearest(c, call, Nearest::Centre)),
    ("aten::_upsample_nearest_exact3d", |c, call| nearest(c, call, Nearest::Centre)),
    ("aten::upsample_linear1d", linear),
    ("aten::upsample_bilinear2d", linear),
    ("aten::upsample_trilinear3d", linear),
    ("aten::upsample_bicubic2d", cubic),
];

/// Input positions per output position along one axis: the inverse of the given scale, else the ratio of the sizes.
fn ratio(scale: Option<f64>, have: usize, want: usize) -> f64 {
    match scale {
        Some(s) if s > 0.0 => 1.0 / s,
        _ => have as f64 / want as f64,
    }
}

/// The scale of spatial axis `i`: from the list of the `vec` overload, or from the trailing arguments of the others.
fn scale(c: &Ctx, call: &Call, i: usize, from: usize) -> Option<f64> {
    match c.arg(call, from) {
        Arg::List(items) => items.get(i).and_then(super::context::scalar_of).map(|s| s.as_f64()),
        Arg::Ints(items) => items.get(i).map(|s| *s as f64),
        _ => c.opt_scalar(call, from + i).ok().flatten().map(|s| s.as_f64()),
    }
}

/// The sizes of an axis before and after. Positions in between are tables.
fn sizes(c: &Ctx, x: ValueId, ty: &Type, axis: usize) -> Res<(usize, usize)> {
    let (have, want) = (c.size(x, axis)?, at(&ty.shape, axis)?);
    table_fits(want)?;
    if have == 0 || want == 0 { Err("resampling of no elements".into()) } else { Ok((have, want)) }
}

/// Input positions of output positions `i` along an axis: the floor of `(i * by + plus) / of`, less `less`.
#[derive(Clone, Copy)]
struct Fraction {
    by: usize,
    plus: usize,
    of: usize,
    less: usize,
}

impl Fraction {
    /// Of the positions `(i + centre) * step - centre`, where the step is a fraction of small numbers. `half`: the
    /// centre is a half, else 0.
    fn centred(step: f64, half: bool) -> Option<Fraction> {
        let (p, q) = fraction(step)?;
        Some(match half {
            true => Fraction { by: 2 * p, plus: p + q, of: 2 * q, less: 1 },
            false => Fraction { by: p, plus: 0, of: q, less: 0 },
        })
    }
    fn at(&self, i: usize) -> i64 {
        ((i * self.by + self.plus) / self.of) as i64 - self.less as i64
    }
}

/// The fraction of the smallest numbers that is this step in f64 but for its last digits, by its continued fraction.
fn fraction(step: f64) -> Option<(usize, usize)> {
    const MOST: f64 = 65536.0;
    let (mut rest, mut now, mut before) = (step, (1.0, 0.0), (0.0, 1.0));
    while now.0 <= MOST && now.1 <= MOST && rest.is_finite() {
        let whole = rest.floor();
        (now, before) = ((whole * now.0 + before.0, whole * now.1 + before.1), now);
        if (now.0 / now.1 - step).abs() <= 1e-15 * step {
            return (now.0 <= MOST && now.1 <= MOST).then_some((now.0 as usize, now.1 as usize));
        }
        rest = 1.0 / (rest - whole);
    }
    None
}

/// Integer positions along an axis of `have` elements.
struct Positions {
    at: ValueId,
    have: usize,
}

impl Positions {
    /// These positions, computed where they are used if they are those of the fraction, at least `least`; else a table.
    fn new(c: &mut Ctx, wanted: &[i64], f: Option<Fraction>, least: i64, have: usize) -> Res<Positions> {
        let same = |f: &Fraction| wanted.iter().enumerate().all(|(i, p)| f.at(i).max(least) == *p);
        let Some(f) = f.filter(same) else {
            let table = Tensor::from_f64(Type::new(DType::I32, [wanted.len()]), wanted.iter().map(|v| *v as f64));
            return Ok(Positions { at: c.table("positions", table), have });
        };
        let largest = wanted.len().saturating_mul(f.by).saturating_add(f.plus);
        let dtype = if largest > i32::MAX as usize { DType::I64 } else { DType::I32 };
        let mut at = c.iota(Type::new(dtype, [wanted.len()]), 0);
        for (op, by) in [(BinaryOp::Mul, f.by), (BinaryOp::Add, f.plus), (BinaryOp::FloorDiv, f.of)] {
            at = with(c, op, at, by as i64)?;
        }
        at = with(c, BinaryOp::Sub, at, f.less as i64)?;
        if f.at(0) < least {
            at = with(c, BinaryOp::Max, at, least)?;
        }
        Ok(Positions { at, have })
    }
    /// The elements of `x` at these positions plus `tap`; a position beyond an end is the end.
    fn take(&self, c: &mut Ctx, x: ValueId, axis: usize, tap: i64) -> Res<ValueId> {
        let at = with(c, BinaryOp::Add, self.at, tap)?;
        let at = with(c, BinaryOp::Max, at, 0)?;
        let at = with(c, BinaryOp::Min, at, self.have as i64 - 1)?;
        c.node(Op::Take { axis }, &[x, at])
    }
}

/// An operation on integers with a constant.
fn with(c: &mut Ctx, op: BinaryOp, x: ValueId, by: i64) -> Res<ValueId> {
    let neutral = matches!((op, by), (BinaryOp::Add | BinaryOp::Sub, 0) | (BinaryOp::Mul | BinaryOp::FloorDiv, 1));
    if neutral {
        return Ok(x);
    }
    let by = c.constant(c.dtype(x), Scalar::Int(by));
    c.binary(op, x, by)
}

/// Which point of an output position is mapped to the input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nearest {
    /// Its start.
    Floor,
    /// Its centre (`nearest-exact`).
    Centre,
}

/// Arithmetic in which eager PyTorch computes nearest positions of dense tensors on the host. The rounding counts: a
/// position close to an integer selects one of two elements.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rounding {
    /// Small images have a kernel of their own: positions in f32; an axis that keeps or doubles its size ignores the
    /// given factor.
    Image,
    /// The general kernel: positions in the compute type of the elements, rounded to f32 before their floor.
    General(DType),
}

impl Rounding {
    /// Of a result of this type. An image is small if it has at most 128 rows and columns together.
    fn of(ty: &Type) -> Rounding {
        match ty.shape[..] {
            [_, _, rows, columns] if rows.saturating_add(columns) <= 128 => Rounding::Image,
            _ if ty.dtype == DType::F64 => Rounding::General(DType::F64),
            _ => Rounding::General(DType::F32),
        }
    }
    /// The input position that output position `i` reads, along an axis of `have` elements of which `want` are made by
    /// the factor `scale`, if one is given.
    fn position(self, nearest: Nearest, i: usize, have: usize, want: usize, scale: Option<f64>) -> usize {
        let step = ratio(scale, have, want);
        let (i32, step32) = (i as f32, step as f32);
        let place = match (self, nearest) {
            (Rounding::Image, Nearest::Floor) if want == have => return i,
            (Rounding::Image, Nearest::Floor) if want == 2 * have => return i / 2,
            (Rounding::Image, Nearest::Centre) => ((i as f64 + 0.5) * f64::from(step32)) as f32,
            (Rounding::General(DType::F64), Nearest::Floor) => (i as f64 * step) as f32,
            (Rounding::General(DType::F64), Nearest::Centre) => ((step * (i as f64 + 0.5) - 0.5) + 0.5) as f32,
            (Rounding::General(_), Nearest::Centre) => (step32 * (i32 + 0.5) - 0.5) + 0.5,
            (_, Nearest::Floor) => i32 * step32,
        };
        (place as usize).min(have - 1)
    }
}

/// `(x, size?, scales)`: the input element at `floor((output position + centre) * ratio)`.
fn nearest(c: &mut Ctx, call: &Call, nearest: Nearest) -> Res<Vec<ValueId>> {
    let (mut x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    let rounding = Rounding::of(&ty);
    for axis in 2..ty.rank() {
        let (have, want) = sizes(c, x, &ty, axis)?;
        let factor = scale(c, call, axis - 2, 2);
        let places: Vec<usize> = (0..want).map(|i| rounding.position(nearest, i, have, want, factor)).collect();
        let whole = want % have == 0 && places.iter().enumerate().all(|(i, p)| *p == i / (want / have));
        x = if whole {
            widen(c, x, axis, want / have)?
        } else {
            let wanted: Vec<i64> = places.iter().map(|p| *p as i64).collect();
            let of = fraction(ratio(factor, have, want)).or_else(|| fraction(have as f64 / want as f64));
            let exact = of.map(|(p, q)| match nearest {
                Nearest::Centre => Fraction { by: 2 * p, plus: p, of: 2 * q, less: 0 },
                Nearest::Floor => Fraction { by: p, plus: 0, of: q, less: 0 },
            });
            Positions::new(c, &wanted, exact, 0, have)?.take(c, x, axis, 0)?
        };
    }
    Ok(vec![x])
}

/// Every element of `axis` repeated `times`.
fn widen(c: &mut Ctx, x: ValueId, axis: usize, times: usize) -> Res<ValueId> {
    if times == 1 {
        return Ok(x);
    }
    let shape = c.shape(x);
    let total = at(&shape, axis)?.checked_mul(times).ok_or("a result beyond all bounds")?;
    let r = c.repeated(x, axis, times)?;
    c.reshape(r, &with_size(&shape, axis, total)?)
}

/// `(x, size?, align_corners, scales)`: interpolates linearly between the two neighbours along each axis.
fn linear(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    if !ty.dtype.is_float() {
        return Err(format!("linear interpolation of {}, for which torch rounds the weights", ty.dtype));
    }
    let corners = c.bool(call, 2)?;
    let r = c.in_compute(x, ty.dtype, |c, mut x| {
        for axis in (2..ty.rank()).rev() {
            let (have, want) = sizes(c, x, &ty, axis)?;
            if have == want {
                continue;
            }
            let step = match (corners, want) {
                (true, 1) => 0.0,
                (true, _) => (have - 1) as f64 / (want - 1) as f64,
                _ => ratio(scale(c, call, axis - 2, 3), have, want),
            };
            let position = |i: usize| match corners {
                true => i as f64 * step,
                false => ((i as f64 + 0.5) * step - 0.5).max(0.0),
            };
            let positions: Vec<f64> = (0..want).map(position).collect();
            x = blend(c, x, axis, &positions, Fraction::centred(step, !corners))?;
        }
        Ok(x)
    })?;
    Ok(vec![r])
}

/// `x[floor p] (1 - w) + x[floor p + 1] w` with w the fraction of p, for each position p along `axis`.
fn blend(c: &mut Ctx, x: ValueId, axis: usize, positions: &[f64], of: Option<Fraction>) -> Res<ValueId> {
    let (have, dtype) = (c.size(x, axis)?, c.dtype(x));
    let low: Vec<i64> = positions.iter().map(|p| (*p as i64).min(have as i64 - 1)).collect();
    let weights = positions.iter().zip(&low).map(|(p, l)| (p - *l as f64).clamp(0.0, 1.0));
    let shape = along(c.rank(x), axis, positions.len())?;
    let w = c.table("weights", Tensor::from_f64(Type::new(dtype, shape), weights));
    let unit = c.float_const(dtype, 1.0);
    let rest = c.binary(BinaryOp::Sub, unit, w)?;
    let low = Positions::new(c, &low, of, 0, have)?;
    let (a, b) = (low.take(c, x, axis, 0)?, low.take(c, x, axis, 1)?);
    let (a, b) = (c.binary(BinaryOp::Mul, a, rest)?, c.binary(BinaryOp::Mul, b, w)?);
    c.binary(BinaryOp::Add, a, b)
}

/// `(x, size?, align_corners, scales)`: the cubic through four neighbours along each axis.
fn cubic(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, ty) = (c.tensor(call, 0)?, c.out(call, 0)?);
    if !ty.dtype.is_float() {
        return Err(format!("cubic interpolation of {}, for which torch rounds the weights", ty.dtype));
    }
    let corners = c.bool(call, 2)?;
    let r = c.in_compute(x, ty.dtype, |c, mut x| {
        for axis in (2..ty.rank()).rev() {
            let (have, want) = sizes(c, x, &ty, axis)?;
            let step = match (corners, want) {
                (true, 1) => 0.0,
                (true, _) => (have - 1) as f64 / (want - 1) as f64,
                _ => ratio(scale(c, call, axis - 2, 3), have, want),
            };
            let position = |i: usize| if corners { i as f64 * step } else { (i as f64 + 0.5) * step - 0.5 };
            let positions: Vec<f64> = (0..want).map(position).collect();
            if positions.iter().enumerate().all(|(i, p)| *p == i as f64) && have == want {
                continue;
            }
            x = through_four(c, x, axis, &positions, Fraction::centred(step, !corners))?;
        }
        Ok(x)
    })?;
    Ok(vec![r])
}

/// The cubic convolution of R. Keys (1981) with a = -3/4 at each position along `axis`; positions beyond an end count
/// as the end's.
fn through_four(c: &mut Ctx, x: ValueId, axis: usize, positions: &[f64], of: Option<Fraction>) -> Res<ValueId> {
    const A: f64 = -0.75;
    let near = |d: f64| ((A + 2.0) * d - (A + 3.0)) * d * d + 1.0;
    let far = |d: f64| ((A * d - 5.0 * A) * d + 8.0 * A) * d - 4.0 * A;
    let (have, dtype) = (c.size(x, axis)?, c.dtype(x));
    let floors: Vec<i64> = positions.iter().map(|p| p.floor() as i64).collect();
    let floor = Positions::new(c, &floors, of, i64::MIN, have)?;
    let shape = along(c.rank(x), axis, positions.len())?;
    let mut sum = None;
    for tap in -1..3i64 {
        let weights = positions.iter().map(|p| {
            let d = (p - p.floor() - tap as f64).abs();
            if d <= 1.0 { near(d) } else { far(d) }
        });
        let w = c.table("weights", Tensor::from_f64(Type::new(dtype, shape.clone()), weights));
        let taken = floor.take(c, x, axis, tap)?;
        let term = c.binary(BinaryOp::Mul, taken, w)?;
        sum = Some(sum.map_or(Ok(term), |s| c.binary(BinaryOp::Add, s, term))?);
    }
    sum.ok_or_else(|| "no neighbours".into())
}
