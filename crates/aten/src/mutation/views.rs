//! Operators whose results share memory with an operand: which elements of it they show, and how a part is put back.
//!
//! A program has no strides, so for some operators (`reshape`, `contiguous`, `to`) a result may be a view or a copy. It counts as a view
//! that is not certain.
use super::operators::keeps_all;
use crate::{
    convert::context::normal_axis,
    raw::{Arg, Call, RawInfo},
};

/// Which elements of its base a view shows.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// All, in row-major order, in another shape.
    Reshape,
    /// All: axis i is axis `perm[i]` of the base.
    Permute(Vec<usize>),
    /// `len` places of an axis.
    Slice { axis: usize, start: usize, len: usize, step: usize },
    /// One place of an axis, which it lacks.
    Select { axis: usize, at: usize },
    /// Those of axes `a` and `b` where `b - a` is the offset, along a new last axis.
    Diagonal { offset: i64, a: usize, b: usize },
    /// Some of them several times (`expand`).
    Expand,
    /// Known to torch alone.
    Opaque,
}

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

/// A call in the making: name, overload, arguments.
pub type Form = (&'static str, &'static str, Vec<Arg>);

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
        // Of one operand: a permutation or a diagonal, if nothing is summed.
        ("einsum", [_, Arg::List(items), ..]) => match items[..] {
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
        | "positive" | "unflatten" | "atleast_1d" | "atleast_2d" | "atleast_3d" | "real" | "conj" | "resolve_conj"
        | "resolve_neg" => {
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
        | "bool" | "cpu" | "cuda" => {
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
        "t" | "numpy_T" | "mT" | "mH" | "adjoint" | "transpose" | "swapaxes" | "swapdims" | "permute" | "movedim"
        | "moveaxis" => or_opaque(permutation(op, call, from.shape.len()).map(Step::Permute)),
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

fn int(call: &Call, i: usize) -> Option<i64> {
    if let Arg::Int(v) = call.args.get(i)? { Some(*v) } else { None }
}

/// An integer argument, which may be missing.
fn int_or(call: &Call, i: usize, default: i64) -> Option<i64> {
    match call.args.get(i) {
        None | Some(Arg::None) => Some(default),
        Some(Arg::Int(v)) => Some(*v),
        _ => None,
    }
}

fn axis(call: &Call, i: usize, default: i64, rank: usize) -> Option<usize> {
    normal_axis(int_or(call, i, default)?, rank).ok().filter(|a| *a < rank)
}

fn axes(call: &Call, i: usize, rank: usize) -> Option<Vec<usize>> {
    let given = match call.args.get(i)? {
        Arg::Ints(v) => &v[..],
        Arg::Int(v) => std::slice::from_ref(v),
        Arg::List(v) if v.is_empty() => &[],
        _ => return None,
    };
    given.iter().map(|a| normal_axis(*a, rank).ok().filter(|a| *a < rank)).collect()
}

/// Place `v` of an axis with `size` places; negative numbers count from the end.
fn place(v: i64, size: usize) -> usize {
    let size = size as i64;
    (if v < 0 { v.saturating_add(size) } else { v }).clamp(0, size) as usize
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

fn ints(v: &[usize]) -> Arg {
    Arg::Ints(v.iter().map(|n| *n as i64).collect())
}

fn at(v: usize) -> Arg {
    Arg::Int(v as i64)
}

/// Start, end and step of a slice as arguments.
fn bounds(start: usize, len: usize, step: usize) -> [Arg; 3] {
    let end = if len == 0 { start } else { start + (len - 1) * step + 1 };
    [at(start), at(end), at(step)]
}

impl Step {
    /// Whether a write into the view can be put back into its base.
    pub fn writable(&self) -> bool {
        !matches!(self, Step::Expand | Step::Opaque)
    }
    /// Whether the view shows all elements of its base.
    pub fn covers(&self, base: &[usize]) -> bool {
        match self {
            Step::Reshape | Step::Permute(_) => true,
            Step::Slice { axis, len, .. } => base.get(*axis) == Some(len),
            _ => false,
        }
    }
    /// The view of value `of`, which has the base's shape, as a call; `None` if it is the value itself or [`Step::Opaque`].
    pub fn view(&self, of: usize, base: &[usize], shape: &[usize]) -> Option<Form> {
        let of = Arg::Value(of);
        Some(match self {
            Step::Reshape if base == shape => return None,
            Step::Reshape => ("aten::reshape", "", vec![of, ints(shape)]),
            Step::Permute(perm) => ("aten::permute", "", vec![of, ints(perm)]),
            Step::Slice { axis, start, len, step } => {
                let [start, end, step] = bounds(*start, *len, *step);
                ("aten::slice", "Tensor", vec![of, at(*axis), start, end, step])
            }
            Step::Select { axis, at: place } => ("aten::select", "int", vec![of, at(*axis), at(*place)]),
            Step::Diagonal { offset, a, b } => ("aten::diagonal", "", vec![of, Arg::Int(*offset), at(*a), at(*b)]),
            Step::Expand => ("aten::expand", "", vec![of, ints(shape), Arg::Bool(false)]),
            Step::Opaque => return None,
        })
    }
    /// `base` with the elements that the view shows replaced by `part`, as a call; `None` if that is `part` itself. The step is
    /// writable; a step that covers its base does not read it.
    pub fn scatter(&self, base: usize, part: usize, base_shape: &[usize], shape: &[usize]) -> Option<Form> {
        let (base, part) = (Arg::Value(base), Arg::Value(part));
        Some(match self {
            Step::Slice { axis, len, .. } if base_shape.get(*axis) == Some(len) => return None,
            Step::Slice { axis, start, len, step } => {
                let [start, end, step] = bounds(*start, *len, *step);
                ("aten::slice_scatter", "", vec![base, part, at(*axis), start, end, step])
            }
            Step::Select { axis, at: place } => ("aten::select_scatter", "", vec![base, part, at(*axis), at(*place)]),
            Step::Diagonal { offset, a, b } => {
                ("aten::diagonal_scatter", "", vec![base, part, Arg::Int(*offset), at(*a), at(*b)])
            }
            Step::Permute(perm) => {
                let mut inverse = vec![0; perm.len()];
                perm.iter().enumerate().for_each(|(i, p)| inverse[*p] = i);
                ("aten::permute", "", vec![part, ints(&inverse)])
            }
            Step::Reshape if base_shape != shape => ("aten::reshape", "", vec![part, ints(base_shape)]),
            Step::Reshape | Step::Expand | Step::Opaque => return None,
        })
    }
    /// Whether two views of one base share no element.
    pub fn disjoint(&self, other: &Step) -> bool {
        let span = |s: &Step| match *s {
            Step::Slice { axis, start, len, step } => Some((axis, start, len, step)),
            Step::Select { axis, at } => Some((axis, at, 1, 1)),
            _ => None,
        };
        let (Some((axis, start, len, step)), Some((axis2, start2, len2, step2))) = (span(self), span(other)) else {
            return false;
        };
        if axis != axis2 {
            return false;
        }
        if len == 0 || len2 == 0 {
            return true;
        }
        let (last, last2) = (start + (len - 1) * step, start2 + (len2 - 1) * step2);
        // All places of a slice have one remainder by the steps' common divisor; a single place has no step.
        let single = |len, step| if len == 1 { 0 } else { step };
        let divisor = gcd(single(len, step), single(len2, step2));
        last < start2 || last2 < start || (divisor > 0 && !start.abs_diff(start2).is_multiple_of(divisor))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_share_no_element() {
        let slice = |start, len, step| Step::Slice { axis: 0, start, len, step };
        let at = |at| Step::Select { axis: 0, at };
        for (a, b) in [
            (slice(0, 2, 1), slice(2, 2, 1)),
            (slice(0, 4, 2), slice(1, 4, 2)),
            (slice(0, 4, 2), slice(1, 2, 4)),
            (slice(0, 4, 2), at(3)),
            (slice(0, 0, 1), slice(0, 4, 1)),
            (at(0), at(1)),
        ] {
            assert!(a.disjoint(&b) && b.disjoint(&a), "{a:?} {b:?}");
        }
        for (a, b) in [
            (slice(0, 2, 1), slice(1, 2, 1)),
            (slice(0, 4, 2), slice(1, 4, 3)),
            (slice(0, 4, 2), at(4)),
            (at(1), at(1)),
            (at(0), Step::Select { axis: 1, at: 1 }),
            (at(0), Step::Reshape),
        ] {
            assert!(!a.disjoint(&b) && !b.disjoint(&a), "{a:?} {b:?}");
        }
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
