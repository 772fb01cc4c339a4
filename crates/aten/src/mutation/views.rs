//! Operators whose results share memory with an operand, by name: which elements of it they show.
//!
//! A program has no strides, so for some operators (`reshape`, `contiguous`, `to`) a result may be a view or a copy. It
//! counts as a view that is not certain.
use super::{operators::keeps_all, step::Step};
use crate::{
    arguments::{axes, axis, int, int_or, place},
    raw::{Arg, Call, Raw, RawInfo},
};

/// How a result of a call shares memory with an operand.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Value id of the operand.
    pub base: usize,
    pub step: Step,
    /// False if the result may be a copy instead, or if the elements that it shows are not known.
    pub certain: bool,
    /// Whether it may show memory beyond the operand's elements.
    pub beyond: bool,
}

fn certain(base: usize, step: Step) -> Option<View> {
    Some(View { base, step, certain: true, beyond: false })
}

fn uncertain(base: usize, step: Step) -> Option<View> {
    Some(View { base, step, certain: false, beyond: false })
}

/// For each result of a call in order, the memory that it shares; trailing results that share none may be omitted.
pub fn views(call: &Call, values: &[RawInfo]) -> Vec<Option<View>> {
    let Some(op) = call.name.strip_prefix("aten::") else { return vec![] };
    match (op, &call.args[..]) {
        // Results in order of the operands.
        ("broadcast_tensors" | "meshgrid" | "atleast_1d" | "atleast_2d" | "atleast_3d", [Arg::List(items), ..]) => {
            let each = |a: &Arg| if let Arg::Value(id) = a { uncertain(*id, Step::Opaque) } else { None };
            items.iter().map(each).collect()
        }
        // Of one operand: it, a permutation or a diagonal, if nothing is summed.
        ("cartesian_prod", [Arg::List(items)]) | ("einsum", [_, Arg::List(items), ..]) => match items[..] {
            [Arg::Value(id)] => vec![uncertain(id, Step::Opaque)],
            _ => vec![],
        },
        (_, [Arg::Value(base), ..]) => match pieces(op, call, *base, values) {
            Some(steps) => steps.into_iter().map(|s| certain(*base, s)).collect(),
            None => vec![single(op, call, *base, values)],
        },
        _ => vec![],
    }
}

/// The steps of an operator that gives several views at once; `None` for other operators.
fn pieces(op: &str, call: &Call, base: usize, values: &[RawInfo]) -> Option<Vec<Step>> {
    let shape = &values[base].shape;
    let axis = match op {
        "unbind" => axis(call, 1, 0, shape.len()),
        "split"
        | "split_with_sizes"
        | "unsafe_split"
        | "unsafe_split_with_sizes"
        | "chunk"
        | "unsafe_chunk"
        | "tensor_split" => axis(call, 2, 0, shape.len()),
        "hsplit" => Some(usize::from(shape.len() != 1)),
        "vsplit" => Some(0),
        "dsplit" => Some(2),
        _ => return None,
    };
    let opaque = vec![Step::Opaque; call.outs.len()];
    let Some(axis) = axis.filter(|a| *a < shape.len()) else { return Some(opaque) };
    if op == "unbind" {
        return Some((0..call.outs.len()).map(|at| Step::Select { axis, at }).collect());
    }
    let mut start = 0;
    let next = |out: &usize| {
        let len = values[*out].shape.get(axis).copied().unwrap_or(0);
        start += len;
        Step::Slice { axis, start: start - len, len, step: 1 }
    };
    let steps = call.outs.iter().map(next).collect();
    // Pieces that do not cover the axis once are not consecutive: `tensor_split` accepts places in any order.
    Some(if start == shape[axis] { steps } else { opaque })
}

/// The view that an operator with one result gives, if it does.
fn single(op: &str, call: &Call, base: usize, values: &[RawInfo]) -> Option<View> {
    let (from, to) = (&values[base], &values[*call.outs.first()?]);
    let count: usize = from.shape.iter().product();
    let or_opaque = |step: Option<Step>| certain(base, step.unwrap_or(Step::Opaque));
    match op {
        "view" | "view_as" | "unsqueeze" | "squeeze" | "_unsafe_view" | "alias" | "detach" | "lift_fresh"
        | "positive" | "unflatten" | "atleast_1d" | "atleast_2d" | "atleast_3d" | "real" | "conj" | "_conj"
        | "conj_physical" | "resolve_conj" | "resolve_neg" => {
            // `view.dtype` reads the same bytes as other elements.
            or_opaque((from.dtype == to.dtype).then_some(Step::Reshape))
        }
        "dropout" | "feature_dropout" | "alpha_dropout" | "feature_alpha_dropout" if keeps_all(call) => {
            certain(base, Step::Reshape)
        }
        "reshape" | "reshape_as" | "flatten" if always_a_view(&from.shape, &to.shape) => certain(base, Step::Reshape),
        "contiguous" | "ravel" if count <= 1 => certain(base, Step::Reshape),
        "reshape" | "reshape_as" | "flatten" | "ravel" | "contiguous" => uncertain(base, Step::Reshape),
        "to" | "type_as" | "float" | "double" | "half" | "bfloat16" | "int" | "long" | "short" | "char" | "byte"
        | "bool" | "cpu" | "cuda" | "pin_memory" => {
            let copy = match call.overload.as_str() {
                "device" => 4,
                "dtype_layout" => 6,
                _ => 3,
            };
            let copies = op == "to" && call.args.get(copy) == Some(&Arg::Bool(true));
            if copies || from.dtype != to.dtype { None } else { uncertain(base, Step::Reshape) }
        }
        "sum_to_size" | "pixel_shuffle" | "pixel_unshuffle" | "channel_shuffle" => uncertain(base, Step::Opaque),
        "as_strided" | "_reshape_alias" => {
            Some(View { base, step: Step::Opaque, certain: false, beyond: op == "as_strided" })
        }
        "unfold" | "view_as_real" | "view_as_complex" | "imag" | "numpy_H" => certain(base, Step::Opaque),
        "expand" | "expand_as" | "broadcast_to" => {
            let step = if to.shape.iter().product::<usize>() == count { Step::Reshape } else { Step::Expand };
            certain(base, step)
        }
        "slice" | "narrow" => or_opaque(slice(op, call, &from.shape, &to.shape)),
        "select" => or_opaque(select(call, &from.shape)),
        "diagonal" | "linalg_diagonal" => or_opaque(diagonal(op, call, from.shape.len())),
        "t" | "numpy_T" | "mT" | "mH" | "matrix_H" | "adjoint" | "transpose" | "swapaxes" | "swapdims" | "permute"
        | "movedim" | "moveaxis" => or_opaque(permutation(op, call, from.shape.len()).map(Step::Permute)),
        _ => None,
    }
}

/// Whether a reshape only splits axes, and adds or drops axes of size 1: then torch gives a view whatever the strides.
fn always_a_view(from: &[usize], to: &[usize]) -> bool {
    if from.iter().product::<usize>() <= 1 {
        return true;
    }
    let mut parts = to.iter().filter(|n| **n != 1);
    from.iter().filter(|n| **n != 1).all(|&size| {
        let mut covered = 1;
        while covered < size {
            let Some(n) = parts.next() else { return false };
            covered *= n;
        }
        covered == size
    })
}

fn slice(op: &str, call: &Call, from: &[usize], to: &[usize]) -> Option<Step> {
    let axis = axis(call, 1, 0, from.len())?;
    let (size, len) = (from[axis], *to.get(axis)?);
    let start = place(int_or(call, 2, 0)?, size);
    let step = if op == "slice" { usize::try_from(int_or(call, 4, 1)?).ok()? } else { 1 };
    // With at most one element the step is irrelevant, and may be any number.
    let step = if len > 1 { step.max(1) } else { 1 };
    let inside = len == 0 || (len - 1).checked_mul(step).is_some_and(|d| start + d < size);
    inside.then_some(Step::Slice { axis, start, len, step })
}

fn select(call: &Call, from: &[usize]) -> Option<Step> {
    let axis = axis(call, 1, 0, from.len())?;
    let at = place(int(call, 2)?, from[axis]);
    (at < from[axis]).then_some(Step::Select { axis, at })
}

fn diagonal(op: &str, call: &Call, rank: usize) -> Option<Step> {
    let default = if op == "diagonal" { (0, 1) } else { (-2, -1) };
    let (a, b) = (axis(call, 2, default.0, rank)?, axis(call, 3, default.1, rank)?);
    Some(Step::Diagonal { offset: int_or(call, 1, 0)?, a, b })
}

fn permutation(op: &str, call: &Call, rank: usize) -> Option<Vec<usize>> {
    let mut perm: Vec<usize> = (0..rank).collect();
    match op {
        "numpy_T" => perm.reverse(),
        "permute" => perm = axes(call, 1, rank)?,
        "transpose" | "swapaxes" | "swapdims" if rank > 0 => {
            perm.swap(axis(call, 1, 0, rank)?, axis(call, 2, 0, rank)?);
        }
        "movedim" | "moveaxis" => {
            let (from, to) = (axes(call, 1, rank)?, axes(call, 2, rank)?);
            let mut rest = (0..rank).filter(|a| !from.contains(a));
            let source = |t: usize| to.iter().position(|x| *x == t).map(|i| from[i]).or_else(|| rest.next());
            perm = (0..rank).map(source).collect::<Option<_>>()?;
        }
        _ if rank >= 2 => perm.swap(rank - 1, rank - 2),
        _ => {}
    }
    (perm.len() == rank).then_some(perm)
}

/// Operators whose result is row-major, whatever their operands.
const ROW_MAJOR: [&str; 10] = [
    "aten::zeros",
    "aten::ones",
    "aten::full",
    "aten::arange",
    "aten::eye",
    "aten::scalar_tensor",
    "aten::new_zeros",
    "aten::new_ones",
    "aten::new_full",
    "aten::one_hot",
];

/// Whether a value is known to lie row-major in memory of its own, which holds nothing else. New tensors and inputs
/// have no gaps, so of these all vectors do. Memory formats other than row-major exist for ranks 4 and 5.
pub fn row_major(raw: &Raw, id: usize) -> bool {
    order(raw, id).is_some_and(|ordered| ordered)
}

/// Whether a value's elements lie row-major; `None` if they are not known to be all that is in their memory.
fn order(raw: &Raw, id: usize) -> Option<bool> {
    let rank = raw.values[id].shape.len();
    let made = raw.calls.iter().find_map(|c| c.outs.iter().position(|o| *o == id).map(|i| (c, i)));
    let ordered = match made {
        None => false,
        Some((call, i)) => match views(call, &raw.values).into_iter().nth(i).flatten() {
            None => ROW_MAJOR.contains(&call.name.as_str()),
            Some(View { base, step: Step::Reshape, .. }) => match call.name.as_str() {
                "aten::contiguous" => order(raw, base).map(|_| !matches!(rank, 4 | 5))?,
                _ => order(raw, base)?,
            },
            Some(View { base, step: Step::Permute(_), .. }) => order(raw, base).map(|_| false)?,
            Some(_) => return None,
        },
    };
    Some(ordered || rank <= 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutation::tests::Builder;

    #[test]
    fn values_in_memory_order() {
        let mut b = Builder::default();
        let ints = |v: &[i64]| Arg::Ints(v.to_vec());
        let (x, n) = (b.input("f32", &[2, 3]), b.input("f32", &[6]));
        let mut call = |name: &str, of: usize, rest: &[Arg], shape: &[usize]| {
            b.call(name, "", [&[Arg::Value(of)], rest].concat(), shape)
        };
        let t = call("t", x, &[], &[3, 2]);
        let zeros = call("new_zeros", x, &[ints(&[2, 3])], &[2, 3]);
        let tail = call("slice", n, &[Arg::Int(0), Arg::Int(2)], &[4]);
        let ordered = [
            zeros,
            n,
            call("view", n, &[ints(&[2, 3])], &[2, 3]),
            call("contiguous", t, &[Arg::None], &[3, 2]),
            // A view of all elements along one axis has stride 1; a copy, too.
            call("reshape", t, &[ints(&[6])], &[6]),
            call("neg", tail, &[], &[4]),
        ];
        let unknown = [
            x,
            t,
            tail,
            call("t", zeros, &[], &[3, 2]),
            call("neg", x, &[], &[2, 3]),
            call("reshape", x, &[ints(&[3, 2])], &[3, 2]),
            // It may be a part of other memory.
            call("contiguous", tail, &[Arg::None], &[4]),
            call("expand", n, &[ints(&[2, 6]), Arg::Bool(false)], &[2, 6]),
        ];
        assert_eq!(ordered.map(|id| row_major(&b.raw, id)), [true; 6]);
        assert_eq!(unknown.map(|id| row_major(&b.raw, id)), [false; 8]);
    }

    #[test]
    fn a_reshape_that_merges_no_axes_is_always_a_view() {
        for (from, to) in [(&[4, 6][..], &[2, 2, 1, 6][..]), (&[1, 6], &[6]), (&[1, 1], &[]), (&[2, 3], &[2, 3])] {
            assert!(always_a_view(from, to), "{from:?} {to:?}");
        }
        for (from, to) in [(&[2, 3][..], &[6][..]), (&[2, 3], &[3, 2]), (&[4, 3], &[2, 6]), (&[4, 6], &[24])] {
            assert!(!always_a_view(from, to), "{from:?} {to:?}");
        }
    }
}
