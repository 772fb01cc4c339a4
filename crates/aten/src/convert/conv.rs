//! Convolutions, direct and transposed.
use super::{
    Table,
    context::{Ctx, Res},
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
    let groups = c.int(call, 6)? as usize;
    let (x, padding) = match c.arg(call, 4) {
        Arg::Str(mode) => {
            let w = c.tensor(call, 1)?;
            let window = c.shape(w)[2..].to_vec();
            named_padding(c, x, mode, &window, &dilation)?
        }
        _ => (x, per_axis(c, call, 4, n)?),
    };
    convolve(c, call, x, Geometry { stride, padding, dilation, groups, transposed: None })
}

/// `(x, w, bias?, stride, padding: str, dilation, groups)`.
fn by_mode(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let w = c.tensor(call, 1)?;
    direct(c, call, c.rank(w) - 2)
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
    let total: Vec<usize> = window.iter().zip(dilation).map(|(w, d)| (w - 1) * d).collect();
    if total.iter().all(|t| t % 2 == 0) {
        return Ok((x, total.iter().map(|t| t / 2).collect()));
    }
    let mut lo = vec![0; c.rank(x) - window.len()];
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
        groups: c.int(call, 6)? as usize,
        dilation: per_axis(c, call, 7, n)?,
    };
    convolve(c, call, x, g)
}

/// `(x, w, bias?, stride, padding, dilation, transposed, output_padding, groups, …)`.
fn general(c: &mut Ctx, call: &Call) -> Res<Vec<ValueId>> {
    let (x, w) = (c.tensor(call, 0)?, c.tensor(call, 1)?);
    let n = c.rank(w) - 2;
    let transposed = c.bool(call, 6)?;
    let g = Geometry {
        stride: per_axis(c, call, 3, n)?,
        padding: per_axis(c, call, 4, n)?,
        dilation: per_axis(c, call, 5, n)?,
        transposed: if transposed { Some(per_axis(c, call, 7, n)?) } else { None },
        groups: c.int(call, 8)? as usize,
    };
    convolve(c, call, x, g)
}
