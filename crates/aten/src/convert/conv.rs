//! Convolutions, direct and transposed.
use super::{
    Table,
    context::{Ctx, Res, from},
};
use crate::raw::{Arg, Call};
use kiln_graph::{Op, Scalar, ValueId};

pub const TABLE: Table = &[
    ("aten::conv1d", |c, call| direct(c, call, 1)),
    ("aten::conv2d", |c, call| direct(c, call, 2)),
    ("aten::conv3d", |c, call| direct(c, call, 3)),
    ("aten::conv_transpose1d", |c, call| transposed(c, call, 1)),
    ("aten::conv_transpose2d", |c, call| transposed(c, call, 2)),
    ("aten::conv_transpose3d", |c, call| transposed(c, call, 3)),
    ("aten::_convolution", general),
    ("aten::convolution", general),
    ("aten::_convolution_mode", |c, call| by_mode(c, call)),
];

struct Geometry {
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    groups: usize,
    /// Output padding, if the convolution is transposed.
    transposed: Option<Vec<usize>>,
}

/// A list of `n` numbers; a single number is repeated.
pub fn per_axis(c: &Ctx, call: &Call, i: usize, n: usize) -> Res<Vec<usize>> {
    let list = c.sizes(call, i)?;
    match list[..] {
        [one] => Ok(vec![one; n]),
        _ if list.len() == n => Ok(list),
        _ => Err(format!("argument {i} has {} numbers for {n} axes", list.len())),
    }
}

/// Adds a batch axis of 1 if `x` has none.
fn batched(c: &mut Ctx, x: ValueId, rank: usize) -> Res<ValueId> {
    if c.rank(x) == rank {
        return Ok(x);
    }
    let shape = [&[1], &c.shape(x)[..]].concat();
    c.reshape(x, &shape)
}

fn convolve(c: &mut Ctx, call: &Call, x: ValueId, g: Geometry) -> Res<Vec<ValueId>> {
    let (w, bias, ty) = (c.tensor(call, 1)?, c.opt_tensor(call, 2)?, c.out(call, 0)?);
    let x = batched(c, x, c.rank(w))?;
    let mut args = vec![x, w];
    args.extend(bias);
    let op = Op::Conv {
        stride: g.stride,
        padding: g.padding,
        dilation: g.dilation,
        groups: g.groups,
        transposed: g.transposed.is_some(),
        output_padding: g.transposed.unwrap_or_default(),
    };
    let r = c.node(op, &args)?;
    Ok(vec![c.reshape(r, &ty.shape)?])
}

/// `(x, w, bias?, stride, padding, dilation, groups)`; `padding` may be "same" or "valid".
fn direct(c: &mut Ctx, call: &Call, n: usize) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let (stride, dilation) = (per_axis(c, call, 3, n)?, per_axis(c, call, 5, n)?);
    let groups = c.count(call, 6)?;
    let (x, padding) = match c.arg(call, 4) {
        Arg::Str(mode) => {
            let w = c.tensor(call, 1)?;
            let window = from(&c.shape(w), 2)?.to_vec();
            named_padding(c, x, mode, &window, &dilation)?
        }
        _ => (x, per_axis(c, call, 4, n)?),
    };
    convolve(c, call, x, Geometry { stride, padding, dilation, groups, transposed: None })
}

/// The number of axes that windows move along.
fn spatial_axes(c: &Ctx, w: ValueId) -> Res<usize> {
    c.rank(w).checked_sub(2).ok_or_else(|| "a convolution by weights of rank below 2".into())
}

/// `(x, w, bias?, stride, padding: str, dilation, groups)`.
fn by_mode(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let w = c.tensor(call, 1)?;
    direct(c, call, spatial_axes(c, w)?)
}

/// Resolves padding "same" or "valid". For an odd total, pads `x` explicitly, with the extra element at the end.
fn named_padding(
    c: &mut Ctx,
    x: ValueId,
    mode: &str,
    window: &[usize],
    dilation: &[usize],
) -> Res<(ValueId, Vec<usize>)> {
    if mode == "valid" {
        return Ok((x, vec![0; window.len()]));
    }
    if mode != "same" {
        return Err(format!("padding {mode}"));
    }
    let reach = |(w, d): (&usize, &usize)| w.checked_sub(1)?.checked_mul(*d).filter(|r| i64::try_from(*r).is_ok());
    let total = window.iter().zip(dilation).map(reach).collect::<Option<Vec<usize>>>();
    let total = total.ok_or("a window of no elements, or one beyond all bounds")?;
    if total.iter().all(|t| t % 2 == 0) {
        return Ok((x, total.iter().map(|t| t / 2).collect()));
    }
    let lead = c.rank(x).checked_sub(window.len()).ok_or("an operand of fewer axes than the window")?;
    let mut lo = vec![0; lead];
    let mut hi = lo.clone();
    lo.extend(total.iter().map(|t| (t / 2) as i64));
    hi.extend(total.iter().map(|t| (t - t / 2) as i64));
    let zero = c.constant(c.dtype(x), Scalar::Int(0));
    Ok((c.node(Op::Pad { lo, hi }, &[x, zero])?, vec![0; window.len()]))
}

/// `(x, w, bias?, stride, padding, output_padding, groups, dilation)`.
fn transposed(c: &mut Ctx, call: &Call, n: usize) -> Res<Vec<ValueId>> {
    let x = c.tensor(call, 0)?;
    let g = Geometry {
        stride: per_axis(c, call, 3, n)?,
        padding: per_axis(c, call, 4, n)?,
        transposed: Some(per_axis(c, call, 5, n)?),
        groups: c.count(call, 6)?,
        dilation: per_axis(c, call, 7, n)?,
    };
    convolve(c, call, x, g)
}

/// `(x, w, bias?, stride, padding, dilation, transposed, output_padding, groups, …)`.
fn general(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, w) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let n = spatial_axes(c, w)?;
    let transposed = c.bool(call, 6)?;
    let g = Geometry {
        stride: per_axis(c, call, 3, n)?,
        padding: per_axis(c, call, 4, n)?,
        dilation: per_axis(c, call, 5, n)?,
        transposed: if transposed { Some(per_axis(c, call, 7, n)?) } else { None },
        groups: c.count(call, 8)?,
    };
    convolve(c, call, x, g)
}
