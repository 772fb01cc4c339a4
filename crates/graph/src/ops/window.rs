//! Inference and decomposition of convolutions and pools.
mod apart;

use super::Built;
use crate::{
    DType, Graph, GraphError, Op, PoolKind, Type, ValueId,
    infer::{self, float, same_dtype},
};
use apart::Steps;

/// A pool of this kind, with the text form's defaults for the other attributes.
pub(super) fn pool_op(kind: PoolKind) -> Op {
    Op::Pool { kind, window: vec![], stride: vec![], padding: vec![], dilation: vec![], ceil: false }
}

pub(super) fn infer_conv(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let Op::Conv { stride, padding, dilation, groups, transposed, output_padding } = op else {
        return Err("is not a convolution".into());
    };
    let g = Window { stride, padding, dilation };
    conv(args, &g, *groups, transposed.then_some(output_padding.as_slice()), output_padding)
}

pub(super) fn infer_pool(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let Op::Pool { kind, window, stride, padding, dilation, ceil } = op else { return Err("is not a pool".into()) };
    pool(args[0], *kind, window, &Window { stride, padding, dilation }, *ceil)
}

pub(super) fn decompose_conv(g: &mut Graph, op: &Op, args: &[ValueId], ty: &Type) -> Built {
    let Op::Conv { stride, padding, dilation, groups, transposed, .. } = op else { return Ok(args[0]) };
    let window = g.shape(args[1]).get(2..).unwrap_or_default().to_vec();
    let steps = Steps { window: &window, stride, padding, dilation };
    match transposed {
        true => apart::transposed(g, args, &steps, *groups, &ty.shape),
        false => apart::conv(g, args, &steps, *groups, &ty.shape),
    }
}

pub(super) fn decompose_pool(g: &mut Graph, op: &Op, args: &[ValueId], ty: &Type) -> Built {
    let Op::Pool { kind, window, stride, padding, dilation, .. } = op else { return Ok(args[0]) };
    apart::pool(g, args[0], *kind, &Steps { window, stride, padding, dilation }, &ty.shape)
}

/// Decomposes a transposed convolution into one matmul and overlap-adds of its result, in the type in which the matmul
/// accumulates. The operands keep their dtype. An error if `op` is not a transposed convolution or the operands do not
/// fit.
pub fn transposed_conv(g: &mut Graph, op: &Op, args: &[ValueId]) -> Result<ValueId, GraphError> {
    let types: Vec<&Type> = args.iter().map(|a| g.ty(*a)).collect();
    let refused = |what: String| GraphError::Operand { value: ValueId(0), op: op.name().to_string(), what };
    let ty = infer::infer(op, &types).map_err(refused)?;
    if !matches!(op, Op::Conv { transposed: true, .. }) {
        return Err(refused("it is not a transposed convolution".into()));
    }
    let y = decompose_conv(g, op, args, &ty)?;
    g.cast(y, ty.dtype)
}

/// Length of a convolution's result along one spatial axis; `None` if the window does not fit or `stride` is 0.
pub fn conv_len(len: usize, window: usize, stride: usize, padding: usize, dilation: usize) -> Option<usize> {
    let reach = dilation.checked_mul(window.checked_sub(1)?)?.checked_add(1)?;
    let padded = len.checked_add(padding.checked_mul(2)?)?;
    Some(padded.checked_sub(reach)?.checked_div(stride)? + 1)
}

/// Length of a pooled axis; `None` if the window does not fit. With `ceil`, a last partial window counts if it starts
/// inside the input or the left padding.
pub fn pool_len(
    len: usize,
    window: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    ceil: bool,
) -> Option<usize> {
    let floor = conv_len(len, window, stride, padding, dilation);
    if !ceil {
        return floor;
    }
    let reach = dilation.checked_mul(window.checked_sub(1)?)?.checked_add(1)?;
    let padded = len.checked_add(padding.checked_mul(2)?)?;
    let steps = padded.checked_add(stride.checked_sub(1)?)?.checked_sub(reach)? / stride;
    let starts_outside = steps.checked_mul(stride)? >= len.checked_add(padding)?;
    let out = if starts_outside { steps } else { steps + 1 };
    (out > 0).then_some(out)
}

/// Upper bound on window sizes, strides, paddings and dilations, so that positions can be computed unchecked.
const LARGEST_STEP: usize = 1 << 31;

struct Window<'a> {
    stride: &'a [usize],
    padding: &'a [usize],
    dilation: &'a [usize],
}

impl Window<'_> {
    fn check(&self, spatial: usize) -> Result<(), String> {
        for (name, list) in [("stride", self.stride), ("padding", self.padding), ("dilation", self.dilation)] {
            if list.len() != spatial {
                return Err(format!(
                    "{name}={list:?}: wants {}, one per spatial axis",
                    crate::count(spatial, "number")
                ));
            }
        }
        if [self.stride, self.padding, self.dilation].iter().any(|l| l.iter().any(|&n| n > LARGEST_STEP)) {
            return Err(format!("stride, padding and dilation must be at most {LARGEST_STEP}"));
        }
        if self.stride.contains(&0) || self.dilation.contains(&0) {
            return Err("stride and dilation must be at least 1".into());
        }
        Ok(())
    }
}

fn conv(
    args: &[&Type],
    g: &Window,
    groups: usize,
    transposed: Option<&[usize]>,
    output_padding: &[usize],
) -> Result<Type, String> {
    let (x, w) = (args[0], args[1]);
    float(x)?;
    let dtype = same_dtype(args)?;
    let spatial = x.rank().saturating_sub(2);
    if spatial == 0 || w.rank() != x.rank() {
        return Err(format!(
            "input {x} and weight {w}: both need [batch, channels, spatial…] with the same rank of 3 or more"
        ));
    }
    g.check(spatial)?;
    let channels = x.shape[1];
    let weight_in = if transposed.is_some() { w.shape[0] } else { w.shape[1].saturating_mul(groups) };
    let out = if transposed.is_some() { w.shape[1].saturating_mul(groups) } else { w.shape[0] };
    if groups == 0 || channels % groups != 0 || out % groups != 0 || weight_in != channels {
        return Err(format!("input {x}, weight {w}, groups {groups}: channels do not fit"));
    }
    if let Some(b) = args.get(2)
        && b.shape != [out]
    {
        return Err(format!("the bias is {b}, it must be {dtype}[{out}]"));
    }
    let mut shape = vec![x.shape[0], out];
    for i in 0..spatial {
        let (len, k, s, p, d) = (x.shape[i + 2], w.shape[i + 2], g.stride[i], g.padding[i], g.dilation[i]);
        let fit = match transposed {
            None => conv_len(len, k, s, p, d),
            Some(extra) => {
                let extra = *extra.get(i).ok_or("output_padding: wants one number per spatial axis")?;
                if extra >= s.max(d) {
                    return Err(format!("output_padding {extra} must be smaller than stride or dilation"));
                }
                transposed_len(len, k, s, p, d, extra)
            }
        };
        shape.push(fit.ok_or_else(|| {
            format!("a window of {k} (dilation {d}, padding {p}) does not fit axis {} of {x}", i + 2)
        })?);
    }
    if transposed.is_none() && output_padding.iter().any(|&p| p != 0) {
        return Err("output_padding is for transposed convolutions; leave it out".into());
    }
    if output_padding.len() > spatial {
        return Err("output_padding: wants one number per spatial axis".into());
    }
    Ok(Type { dtype, shape })
}

fn transposed_len(len: usize, k: usize, s: usize, p: usize, d: usize, extra: usize) -> Option<usize> {
    let reach = k.checked_sub(1)?.checked_mul(d)?;
    let full = len.checked_sub(1)?.checked_mul(s)?.checked_add(reach)?.checked_add(extra)?.checked_add(1)?;
    full.checked_sub(p.checked_mul(2)?).filter(|&n| n > 0)
}

fn pool(x: &Type, kind: PoolKind, window: &[usize], g: &Window, ceil: bool) -> Result<Type, String> {
    if x.dtype == DType::Bool || (matches!(kind, PoolKind::Avg { .. }) && !x.dtype.is_float()) {
        return Err(format!("not defined on {}; cast first", x.dtype));
    }
    g.check(window.len())?;
    if window.is_empty() || window.len() > x.rank() || window.iter().any(|&k| k == 0 || k > LARGEST_STEP) {
        return Err(format!("window {window:?} does not fit the trailing axes of {x}"));
    }
    if matches!(kind, PoolKind::Avg { .. }) && g.dilation.iter().any(|&d| d != 1) {
        return Err("average pooling has no dilation".into());
    }
    let mut shape = x.shape.clone();
    let lead = x.rank() - window.len();
    for i in 0..window.len() {
        let (len, k, s, p, d) = (x.shape[lead + i], window[i], g.stride[i], g.padding[i], g.dilation[i]);
        let reach = d.checked_mul(k - 1).and_then(|n| n.checked_add(1)).ok_or("the window is too large")?;
        if p > reach / 2 {
            return Err(format!("padding {p} is more than half the window ({k}, dilation {d})"));
        }
        let fit = pool_len(len, k, s, p, d, ceil).filter(|_| len > 0);
        shape[lead + i] = fit.ok_or_else(|| {
            format!("a window of {k} (dilation {d}, padding {p}) does not fit axis {} of {x}", lead + i)
        })?;
    }
    Ok(Type { dtype: x.dtype, shape })
}
