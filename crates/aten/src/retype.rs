//! Shapes that torch traces wrongly, or for other sizes than those of a call, mended together with those of all values
//! that are computed from them.
//!
//! torch's shape functions of some operators (up to 2.11) give a result another shape than the operator does, and
//! tracing computes all later shapes from it. A `squeeze` keeps a dimension that was traced with a symbol, also where
//! its size is one. Takes the values and calls of a program at known sizes; changes shapes alone. Never guesses: a call
//! that reads a mended value, and whose result has no rule here, is a [`Problem`].
use crate::{
    arguments::{axes, axis, int, int_or, place},
    convert::{is_pointwise, names::canonical},
    error::Problem,
    raw::{Arg, Call, RawInfo},
};
use std::collections::HashSet;

type Shape = Vec<usize>;

/// Mends the shapes of values.
///
/// # Errors
/// If a mended value is read by an operator whose result has no rule.
pub fn mend(values: &mut [RawInfo], calls: &[Call]) -> Result<(), Problem> {
    let mut mended = HashSet::new();
    for call in calls {
        let mut operands = vec![];
        call.args.iter().for_each(|a| a.values(&mut operands));
        let shapes = if let Some(shapes) = computed(call, values) {
            shapes
        } else if operands.iter().any(|id| mended.contains(id)) {
            let shapes = derived(call, values).filter(|s| s.len() == call.outs.len());
            shapes.ok_or_else(|| unknown(call))?
        } else {
            continue;
        };
        for (id, shape) in call.outs.iter().zip(shapes) {
            if values[*id].shape != shape {
                values[*id].shape = shape;
                mended.insert(*id);
            }
        }
    }
    Ok(())
}

fn unknown(call: &Call) -> Problem {
    Problem {
        source: call.source.clone(),
        module: call.module.clone(),
        ..Problem::new(format!(
            "`{}` reads a value whose shape torch.export wrote wrongly, such as the states of an LSTM, or for other \
             sizes, such as a squeezed dimension of 1, and Kiln does not know what shape its result has",
            call.name
        ))
        .help(
            "compile the module with `kiln.compile`, which traces the right shapes, or select and reshape the states \
             before",
        )
    }
}

/// The shapes of the results of an operator that torch traces wrongly, as it computes them; none of an operator that it
/// traces right for all sizes.
fn computed(call: &Call, values: &[RawInfo]) -> Option<Vec<Shape>> {
    let traced = || call.outs.iter().map(|id| values[*id].shape.clone());
    match call.name.as_str() {
        // The states have an axis of one that the operator does not give.
        "aten::lstm" => {
            let state = |(i, shape): (usize, Shape)| match shape[..] {
                [layers, 1, batch, width] if i > 0 => vec![layers, batch, width],
                _ => shape,
            };
            Some(traced().enumerate().map(state).collect())
        }
        // The loss of one vector is of rank 0.
        "aten::multilabel_margin_loss" | "aten::multilabel_margin_loss_forward" => {
            let vector = shape(call, values, 0)?.len() <= 1;
            let loss = |(i, shape): (usize, Shape)| if vector && i == 0 && shape == [1] { vec![] } else { shape };
            Some(traced().enumerate().map(loss).collect())
        }
        name if canonical(name) == "aten::squeeze" => {
            Some(vec![view("squeeze", call, shape(call, values, 0)?, values)?])
        }
        _ => None,
    }
}

/// The shape of a tensor argument.
fn shape<'a>(call: &Call, values: &'a [RawInfo], i: usize) -> Option<&'a [usize]> {
    if let Arg::Value(id) = call.args.get(i)? { Some(&values[*id].shape) } else { None }
}

/// The shapes of a list of tensors, or of one tensor, at `i`.
fn shapes<'a>(call: &Call, values: &'a [RawInfo], i: usize) -> Option<Vec<&'a [usize]>> {
    let mut ids = vec![];
    call.args.get(i)?.values(&mut ids);
    Some(ids.into_iter().map(|id| &values[id].shape[..]).collect())
}

/// A list of integers.
fn ints(call: &Call, i: usize) -> Option<Vec<i64>> {
    match call.args.get(i)? {
        Arg::Ints(v) => Some(v.clone()),
        Arg::Int(v) => Some(vec![*v]),
        Arg::List(v) if v.is_empty() => Some(vec![]),
        _ => None,
    }
}

/// The shapes of the results of a call, from those of its operands and its arguments.
fn derived(call: &Call, values: &[RawInfo]) -> Option<Vec<Shape>> {
    if call.name.ends_with('_') && !call.name.ends_with("__") {
        // In place: the result is the first operand.
        return Some(vec![shape(call, values, 0)?.to_vec()]);
    }
    let canonical = canonical(&call.name);
    if is_pointwise(canonical) {
        let mut operands = vec![];
        call.args.iter().for_each(|a| a.values(&mut operands));
        return Some(vec![broadcast(operands.iter().map(|id| &values[*id].shape[..]))?]);
    }
    let name = canonical.strip_prefix("aten::")?;
    let joined = |axis_at: usize, stacked: bool| {
        let parts = shapes(call, values, 0)?;
        let mut joint = parts.first()?.to_vec();
        let at = axis(call, axis_at, 0, joint.len() + usize::from(stacked))?;
        if stacked {
            joint.insert(at, parts.len());
        } else {
            joint[at] = parts.iter().map(|p| p.get(at).copied()).sum::<Option<usize>>()?;
        }
        Some(joint)
    };
    match name {
        "stack" => return Some(vec![joined(1, true)?]),
        "cat" | "concat" | "concatenate" => return Some(vec![joined(1, false)?]),
        _ => {}
    }
    let from = shape(call, values, 0)?;
    pieces(name, call, from).or_else(|| Some(vec![view(name, call, from, values)?])).or_else(|| {
        let one = match name {
            "linear" => {
                let (features, rows) = (shape(call, values, 1)?, from.split_last()?.1);
                [rows, &features[..features.len().checked_sub(1)?]].concat()
            }
            "matmul" | "mm" | "bmm" => product(from, shape(call, values, 1)?)?,
            "max" | "min" if call.overload == "dim" => return Some(vec![reduced(call, from, 1, 2)?; 2]),
            "max" | "min" if shape(call, values, 1).is_some() => {
                broadcast([from, shape(call, values, 1)?].into_iter())?
            }
            "sum" | "mean" | "prod" | "any" | "all" | "max" | "min" if call.overload.is_empty() => vec![],
            "sum" | "mean" | "prod" | "any" | "all" | "amax" | "amin" | "logsumexp" | "argmax" | "argmin" => {
                reduced(call, from, 1, 2)?
            }
            "linalg_vector_norm" => reduced(call, from, 2, 3)?,
            _ => return None,
        };
        Some(vec![one])
    })
}

/// The shape to which these broadcast.
fn broadcast<'a>(shapes: impl Iterator<Item = &'a [usize]>) -> Option<Shape> {
    let mut all: Shape = vec![];
    for shape in shapes {
        if shape.len() > all.len() {
            all.splice(0..0, std::iter::repeat_n(1, shape.len() - all.len()));
        }
        let skipped = all.len() - shape.len();
        for (a, b) in all[skipped..].iter_mut().zip(shape) {
            *a = match (*a, *b) {
                (1, n) | (n, 1) => n,
                (a, b) if a == b => a,
                _ => return None,
            };
        }
    }
    Some(all)
}

/// The shape of a product of matrices or vectors.
fn product(a: &[usize], b: &[usize]) -> Option<Shape> {
    let matrix = |s: &[usize], left: bool| match s[..] {
        [n] if left => vec![1, n],
        [n] => vec![n, 1],
        _ => s.to_vec(),
    };
    let (left, right) = (matrix(a, true), matrix(b, false));
    let ([lead_a @ .., rows, _], [lead_b @ .., _, columns]) = (&left[..], &right[..]) else { return None };
    let mut shape = broadcast([lead_a, lead_b].into_iter())?;
    shape.extend((a.len() > 1).then_some(*rows));
    shape.extend((b.len() > 1).then_some(*columns));
    Some(shape)
}

/// The shape after a reduction over the axes in an argument; none or no axes are all.
fn reduced(call: &Call, from: &[usize], axes_at: usize, keep_at: usize) -> Option<Shape> {
    let gone = match call.args.get(axes_at) {
        None | Some(Arg::None) => vec![],
        Some(_) => axes(call, axes_at, from.len())?,
    };
    let gone = if gone.is_empty() { (0..from.len()).collect() } else { gone };
    let keep = call.args.get(keep_at) == Some(&Arg::Bool(true));
    let left = from.iter().enumerate().filter(|(i, _)| keep || !gone.contains(i));
    Some(left.map(|(i, n)| if gone.contains(&i) { 1 } else { *n }).collect())
}

/// The shapes of parts along an axis.
fn pieces(name: &str, call: &Call, from: &[usize]) -> Option<Vec<Shape>> {
    let parts = |axis: usize, sizes: Vec<usize>| {
        let part = |size| {
            let mut part = from.to_vec();
            part[axis] = size;
            part
        };
        sizes.into_iter().map(part).collect()
    };
    // Parts of one size, and what is left.
    let equal = |axis: usize, size: usize| {
        let starts = (0..from[axis]).step_by(size.max(1));
        parts(axis, starts.map(|start| size.min(from[axis] - start)).collect())
    };
    match name {
        "chunk" | "unsafe_chunk" => {
            let (axis, n) = (axis(call, 2, 0, from.len())?, usize::try_from(int(call, 1)?).ok()?);
            Some(equal(axis, from[axis].div_ceil(n.max(1))))
        }
        "split" | "unsafe_split" if int(call, 1).is_some() => {
            Some(equal(axis(call, 2, 0, from.len())?, usize::try_from(int(call, 1)?).ok()?))
        }
        "split" | "split_with_sizes" | "unsafe_split_with_sizes" => {
            let sizes = ints(call, 1)?.into_iter().map(|n| usize::try_from(n).ok()).collect::<Option<Vec<usize>>>()?;
            Some(parts(axis(call, 2, 0, from.len())?, sizes))
        }
        "unbind" => {
            let axis = axis(call, 1, 0, from.len())?;
            let mut row = from.to_vec();
            let n = row.remove(axis);
            Some(vec![row; n])
        }
        _ => None,
    }
}

/// The shape of a view or a copy of one tensor.
fn view(name: &str, call: &Call, from: &[usize], values: &[RawInfo]) -> Option<Shape> {
    let rank = from.len();
    let mut to = from.to_vec();
    match name {
        "alias"
        | "to"
        | "type_as"
        | "detach"
        | "clone"
        | "contiguous"
        | "lift_fresh"
        | "lift_fresh_copy"
        | "positive"
        | "dropout"
        | "feature_dropout"
        | "alpha_dropout"
        | "feature_alpha_dropout"
        | "softmax"
        | "_softmax"
        | "log_softmax"
        | "_log_softmax"
        | "cumsum"
        | "cumprod"
        | "flip"
        | "roll"
        | "tril"
        | "triu"
        | "layer_norm"
        | "rms_norm"
        | "zeros_like"
        | "ones_like"
        | "full_like"
        | "empty_like"
        | "prelu"
        | "_prelu_kernel"
        | "copy"
        | "fill" => {}
        "view" | "reshape" | "_unsafe_view" => return sized(from.iter().product(), &ints(call, 1)?),
        "view_as" | "reshape_as" | "expand_as" => return Some(shape(call, values, 1)?.to_vec()),
        "select" => {
            to.remove(axis(call, 1, 0, rank)?);
        }
        "slice" => {
            let axis = axis(call, 1, 0, rank)?;
            let (start, end) = (place(int_or(call, 2, 0)?, from[axis]), place(int_or(call, 3, i64::MAX)?, from[axis]));
            to[axis] = end.saturating_sub(start).div_ceil(usize::try_from(int_or(call, 4, 1)?).ok()?.max(1));
        }
        "narrow" => to[axis(call, 1, 0, rank)?] = usize::try_from(int(call, 3)?).ok()?,
        "unsqueeze" => to.insert(axis(call, 1, 0, rank + 1)?, 1),
        "squeeze" => {
            let chosen = if call.args.len() > 1 { axes(call, 1, rank)? } else { (0..rank).collect() };
            let left = from.iter().enumerate().filter(|(i, n)| **n != 1 || !chosen.contains(i));
            to = left.map(|(_, n)| *n).collect();
        }
        "transpose" | "swapaxes" | "swapdims" => to.swap(axis(call, 1, 0, rank)?, axis(call, 2, 0, rank)?),
        "t" | "mT" | "adjoint" if rank >= 2 => to.swap(rank - 2, rank - 1),
        "t" if rank < 2 => {}
        "numpy_T" => to.reverse(),
        "permute" => to = axes(call, 1, rank)?.into_iter().map(|a| from[a]).collect(),
        "movedim" | "moveaxis" => {
            let (source, target) = (axes(call, 1, rank)?, axes(call, 2, rank)?);
            let mut moved: Vec<(usize, usize)> = target.into_iter().zip(source.iter().copied()).collect();
            moved.sort_unstable();
            let mut order: Vec<usize> = (0..rank).filter(|a| !source.contains(a)).collect();
            moved.into_iter().for_each(|(t, s)| order.insert(t.min(order.len()), s));
            to = order.into_iter().map(|a| from[a]).collect();
        }
        "flatten" => {
            let (first, last) = (axis(call, 1, 0, rank.max(1))?, axis(call, 2, -1, rank.max(1))?);
            if rank == 0 {
                return Some(vec![1]);
            }
            to.splice(first..=last.max(first), [from[first..=last.max(first)].iter().product()]);
        }
        "unflatten" => {
            let axis = axis(call, 1, 0, rank)?;
            to.splice(axis..=axis, sized(from[axis], &ints(call, 2)?)?);
        }
        "expand" | "broadcast_to" => {
            let sizes = ints(call, 1)?;
            let added = sizes.len().checked_sub(rank)?;
            let size = |(i, n): (usize, &i64)| match *n {
                -1 => from.get(i.checked_sub(added)?).copied(),
                n => usize::try_from(n).ok(),
            };
            return sizes.iter().enumerate().map(size).collect();
        }
        "repeat" | "tile" => {
            let times = ints(call, 1)?;
            let whole = times.len().max(rank);
            let at = |list: &[usize], i: usize| (i + list.len()).checked_sub(whole).map_or(1, |i| list[i]);
            let times = times.into_iter().map(|n| usize::try_from(n).ok()).collect::<Option<Vec<usize>>>()?;
            return (0..whole).map(|i| at(from, i).checked_mul(at(&times, i))).collect();
        }
        _ => return None,
    }
    Some(to)
}

/// The sizes in a list for `count` elements, of which one may be -1.
fn sized(count: usize, list: &[i64]) -> Option<Shape> {
    let known =
        list.iter().filter(|n| **n >= 0).try_fold(1usize, |all, n| all.checked_mul(usize::try_from(*n).ok()?))?;
    let size = |n: &i64| match *n {
        -1 => count.checked_div(known),
        n => usize::try_from(n).ok(),
    };
    let shape = list.iter().map(size).collect::<Option<Shape>>()?;
    (shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n))? == count).then_some(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(shape: &[usize]) -> RawInfo {
        RawInfo { dtype: "f32".into(), shape: shape.to_vec(), constant: false, folded: false, scalar: None, name: None }
    }

    fn call(name: &str, overload: &str, args: Vec<Arg>, outs: Vec<usize>) -> Call {
        Call {
            name: name.into(),
            overload: overload.into(),
            args,
            outs,
            source: String::new(),
            module: String::new(),
            vouched: false,
        }
    }

    /// A dimension of one that was traced with a symbol, and so was kept.
    #[test]
    fn squeezed_dimensions_of_one_are_left_out() {
        let cases = [
            ("dim", Some(Arg::Int(0)), vec![1, 16], vec![16]),
            ("dim", Some(Arg::Int(0)), vec![2, 16], vec![2, 16]),
            ("dims", Some(Arg::Ints(vec![0, -1])), vec![1, 16], vec![16]),
            ("", None, vec![1, 16, 1], vec![16]),
            ("dim", Some(Arg::Int(-1)), vec![1, 16], vec![1, 16]),
        ];
        for (overload, axes, from, to) in cases {
            let mut values = vec![info(&from), info(&from), info(&from)];
            let args = std::iter::once(Arg::Value(0)).chain(axes).collect();
            let calls = [
                call("aten::squeeze", overload, args, vec![1]),
                call("aten::mul", "Scalar", vec![Arg::Value(1), Arg::Int(3)], vec![2]),
            ];
            mend(&mut values, &calls).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((&values[1].shape[..], &values[2].shape[..]), (&to[..], &to[..]), "{overload} {from:?}");
        }
    }

    /// What the shape of a result becomes, of an operator that reads LSTM states `[4, 1, 3, 40]`, with the arguments
    /// after the states.
    fn after(name: &str, overload: &str, rest: &[Arg], results: usize) -> Result<Vec<Shape>, String> {
        let mut values = vec![info(&[5, 3, 20]), info(&[5, 3, 80]), info(&[4, 1, 3, 40]), info(&[4, 1, 3, 40])];
        values.extend((0..results).map(|_| info(&[7, 7, 7])));
        values.push(info(&[9, 40]));
        let args = [&[Arg::Value(2)], rest].concat();
        let calls = [
            call("aten::lstm", "input", vec![Arg::Value(0)], vec![1, 2, 3]),
            call(name, overload, args, (4..4 + results).collect()),
        ];
        mend(&mut values, &calls).map_err(|p| p.to_string())?;
        assert_eq!((&values[1].shape[..], &values[2].shape[..]), (&[5, 3, 80][..], &[4, 3, 40][..]));
        Ok(values[4..4 + results].iter().map(|v| v.shape.clone()).collect())
    }

    #[test]
    fn shapes_follow_from_those_of_mended_states() {
        use Arg::{Bool, Int, Ints, None, Value};
        let of =
            |name: &str, overload: &str, rest: &[Arg]| after(name, overload, rest, 1).expect("has a rule").remove(0);
        assert_eq!(of("aten::select", "int", &[Int(0), Int(-1)]), [3, 40]);
        assert_eq!(of("aten::slice", "Tensor", &[Int(0), Int(-2), Int(i64::MAX), Int(1)]), [2, 3, 40]);
        assert_eq!(of("aten::narrow", "", &[Int(-1), Int(3), Int(7)]), [4, 3, 7]);
        assert_eq!(of("aten::unsqueeze", "", &[Int(-1)]), [4, 3, 40, 1]);
        assert_eq!(of("aten::squeeze", "dims", &[Ints(vec![0, 1])]), [4, 3, 40]);
        assert_eq!(of("aten::transpose", "int", &[Int(0), Int(1)]), [3, 4, 40]);
        assert_eq!(of("aten::permute", "", &[Ints(vec![2, 0, -2])]), [40, 4, 3]);
        assert_eq!(of("aten::movedim", "intlist", &[Ints(vec![0]), Ints(vec![-1])]), [3, 40, 4]);
        assert_eq!(of("aten::flatten", "using_ints", &[Int(1), Int(-1)]), [4, 120]);
        assert_eq!(of("aten::unflatten", "int", &[Int(0), Ints(vec![2, -1])]), [2, 2, 3, 40]);
        assert_eq!(of("aten::view", "", &[Ints(vec![2, 2, 3, -1])]), [2, 2, 3, 40]);
        assert_eq!(of("aten::expand", "", &[Ints(vec![2, -1, -1, 40])]), [2, 4, 3, 40]);
        assert_eq!(of("aten::repeat", "", &[Ints(vec![2, 1, 1, 3])]), [2, 4, 3, 120]);
        assert_eq!(of("aten::tanh", "", &[]), [4, 3, 40]);
        assert_eq!(of("aten::type_as", "", &[Value(0)]), [4, 3, 40]);
        assert_eq!(of("aten::mul_", "Scalar", &[Int(2)]), [4, 3, 40]);
        assert_eq!(of("aten::sub", "Tensor", &[Value(3), Int(1)]), [4, 3, 40]);
        assert_eq!(of("aten::sum", "dim_IntList", &[Ints(vec![0]), Bool(true), None]), [1, 3, 40]);
        assert_eq!(of("aten::mean", "", &[Int(6)]), [0usize; 0]);
        assert_eq!(of("aten::linear", "", &[Value(5), None]), [4, 3, 9]);
        let parts = |name: &str, rest: &[Arg], n| after(name, "", rest, n).expect("has a rule");
        assert_eq!(parts("aten::chunk", &[Int(3), Int(-1)], 3), [vec![4, 3, 14], vec![4, 3, 14], vec![4, 3, 12]]);
        assert_eq!(parts("aten::split_with_sizes", &[Ints(vec![1, 3]), Int(0)], 2), [vec![1, 3, 40], vec![3, 3, 40]]);
        assert_eq!(parts("aten::unbind", &[Int(0)], 4), vec![vec![3, 40]; 4]);
        let said = after("aten::kthvalue", "", &[Int(1)], 2).expect_err("no rule");
        assert!(said.contains("`aten::kthvalue` reads a value whose shape torch.export wrote wrongly"), "{said}");
    }
}
