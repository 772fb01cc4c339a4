//! Complex values: a real and an imaginary part for each, inside of a conversion alone.
//!
//! A graph has no complex type. A complex value of the program is a pair of values here ([`Ctx::complex`]); as a
//! constant it is a parameter with one more axis, of the two parts, which is how it lies in memory, and so it is as a
//! result. What only moves elements, or is linear, runs once on the real parts and once on the imaginary ones; a few
//! operators have formulas. All others are left to the doors, which have no form for complex values either.
use super::{
    Handler, check,
    context::{Ctx, Res, part_type},
    names::canonical,
    pointwise::{functions, operand},
    scalars::{as_value, scale},
};
use crate::raw::{Arg, Call};
use kiln_graph::{BinaryOp::*, CompareOp, DType, Scalar, Type, UnaryOp::*, ValueId};
use std::collections::HashMap;

/// The real and the imaginary part.
type Pair = [ValueId; 2];

/// Operators that move elements of the first operand, or are linear in it: each part by itself.
const BY_PARTS: &[&str] = &[
    "alias",
    "as_strided",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_to",
    "chunk",
    "clone",
    "contiguous",
    "cumsum",
    "detach",
    "diag",
    "diag_embed",
    "diagonal",
    "diff",
    "dropout",
    "dsplit",
    "expand",
    "expand_as",
    "flatten",
    "flip",
    "fliplr",
    "flipud",
    "gather",
    "hsplit",
    "index",
    "index_select",
    "lift_fresh",
    "lift_fresh_copy",
    "mT",
    "mean",
    "moveaxis",
    "movedim",
    "narrow",
    "numpy_T",
    "permute",
    "pixel_shuffle",
    "positive",
    "ravel",
    "repeat",
    "repeat_interleave",
    "reshape",
    "reshape_as",
    "roll",
    "rot90",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "sum",
    "swapaxes",
    "swapdims",
    "t",
    "tensor_split",
    "tile",
    "trace",
    "transpose",
    "tril",
    "triu",
    "unbind",
    "unflatten",
    "unfold",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "unsqueeze",
    "_unsafe_view",
    "view",
    "view_as",
    "vsplit",
    "zeros_like",
];

/// Operators that put elements of several operands together; a real one has zeros for imaginary parts.
const JOINING: &[&str] = &[
    "cat",
    "column_stack",
    "concat",
    "concatenate",
    "diagonal_scatter",
    "dstack",
    "hstack",
    "select_scatter",
    "slice_scatter",
    "stack",
    "vstack",
    "where",
];

/// Converts a call with a complex operand or result, and binds its results. `None` if it has neither, or if there is no
/// form for it.
pub fn convert(c: &mut Ctx, handlers: &HashMap<&str, Handler>, call: &Call) -> Option<Res<()>> {
    let mut operands = vec![];
    call.args.iter().for_each(|a| a.values(&mut operands));
    let complex = |id: &usize| part_type(&c.info(*id).dtype).is_some();
    operands.retain(complex);
    if operands.is_empty() && !call.outs.iter().any(complex) {
        return None;
    }
    if call.outs.iter().all(|id| c.info(*id).folded) {
        // Its results are constants.
        return call.outs.iter().all(complex).then(|| call.outs.iter().try_for_each(|id| pair(c, *id).map(drop)));
    }
    let name = call.name.strip_prefix("aten::").unwrap_or(&call.name);
    if let Some(found) = formula(c, call, name) {
        return Some(found.and_then(|result| bind(c, call, vec![result])));
    }
    let plain = canonical(&call.name);
    let handler = *handlers.get(plain)?;
    let plain = plain.strip_prefix("aten::")?;
    let joining = JOINING.contains(&plain);
    if !joining && !BY_PARTS.contains(&plain) {
        return None;
    }
    Some(by_parts(c, handler, call, &operands, joining).and_then(|results| bind(c, call, results)))
}

/// A result of a call.
enum Found {
    Complex(Pair),
    Real(ValueId),
}

/// Binds the results of a call, which must have the types of the example run.
fn bind(c: &mut Ctx, call: &Call, results: Vec<Found>) -> Res<()> {
    c.only_results(call, results.len())?;
    for (id, found) in call.outs.iter().zip(results) {
        let shape = c.info(*id).shape.clone();
        match (found, part_type(&c.info(*id).dtype)) {
            (Found::Complex(parts), Some(dtype)) => {
                let mut wide = parts;
                for part in &mut wide {
                    *part = c.broadcast(*part, &shape)?;
                    if *c.ty(*part) != Type::new(dtype, shape.clone()) {
                        return Err(format!("the conversion gives parts of {}", c.ty(*part)));
                    }
                }
                c.complex.insert(*id, wide);
            }
            (Found::Real(v), None) => {
                let v = c.broadcast(v, &shape)?;
                if c.raw_type(*id)? != *c.ty(v) {
                    return Err(format!("the conversion gives {}", c.ty(v)));
                }
                c.bind(*id, v);
            }
            _ => {
                return Err(
                    "the conversion gives a complex value for a real one, or a real one for a complex one".into()
                );
            }
        }
    }
    Ok(())
}

/// The parts of a complex value.
fn pair(c: &mut Ctx, id: usize) -> Res<Pair> {
    if let Some(parts) = c.complex.get(&id) {
        return Ok(*parts);
    }
    let info = c.info(id);
    let Some(dtype) = part_type(&info.dtype).filter(|_| info.constant || info.folded) else {
        return Err("a complex operand has no compiled form".into());
    };
    let v = c.leaf_of(id, Type::new(dtype, [&info.shape[..], &[2]].concat()));
    let parts = split(c, v)?;
    c.complex.insert(id, parts);
    Ok(parts)
}

/// Whether a raw value is complex.
pub fn is_complex(c: &Ctx, id: usize) -> bool {
    part_type(&c.info(id).dtype).is_some()
}

/// The type of a complex tensor where it is one value, as an input, a result or a parameter: its last axis has the
/// parts. `None` if the dtype is not complex.
pub fn pair_type(dtype: &str, shape: &[usize]) -> Option<Type> {
    part_type(dtype).map(|part| Type::new(part, [shape, &[2]].concat()))
}

/// Binds the parts of an input of the graph if it is complex; whether it is.
pub fn input(c: &mut Ctx, id: usize, v: ValueId) -> Res<bool> {
    if is_complex(c, id) {
        let parts = split(c, v)?;
        c.complex.insert(id, parts);
    }
    Ok(is_complex(c, id))
}

/// Binds new inputs in place of a complex result of a refused call, so that what reads it is no problem of its own.
pub fn stand_in(c: &mut Ctx, id: usize) {
    if let Some(part) = part_type(&c.info(id).dtype) {
        let ty = Type::new(part, c.info(id).shape.clone());
        let parts = [c.graph.input(ty.clone()), c.graph.input(ty)];
        c.complex.insert(id, parts);
    }
}

/// The parts along the last axis.
fn split(c: &mut Ctx, v: ValueId) -> Res<Pair> {
    let shape = c.shape(v);
    let Some((2, shape)) = shape.split_last() else { return Err("the last axis does not have two parts".into()) };
    let mut part = |i| {
        let part = c.slice(v, shape.len(), i, 1, 1)?;
        c.reshape(part, shape)
    };
    Ok([part(0)?, part(1)?])
}

/// A complex value as one value, whose last axis has the parts.
pub fn joined(c: &mut Ctx, id: usize) -> Res<ValueId> {
    let parts = pair(c, id)?;
    join(c, parts)
}

fn join(c: &mut Ctx, parts: Pair) -> Res<ValueId> {
    let last = c.rank(parts[0]);
    let mut columns = vec![];
    for part in parts {
        let shape = [&c.shape(part)[..], &[1]].concat();
        columns.push(c.reshape(part, &shape)?);
    }
    c.concat(&columns, last)
}

/// Runs the conversion of real values on the real parts of the complex operands, then on their imaginary parts.
fn by_parts(c: &mut Ctx, handler: Handler, call: &Call, complex: &[usize], joining: bool) -> Res<Vec<Found>> {
    let mut pairs = vec![];
    for id in complex {
        pairs.push((*id, pair(c, *id)?));
    }
    let mut real = vec![];
    if joining {
        // The condition of `where` is none of what is joined.
        let first = usize::from(call.name.ends_with("where"));
        if call.args.iter().skip(first).any(|a| matches!(a, Arg::Float(_))) {
            return Err("a number is joined with complex values".into());
        }
        call.args.iter().skip(first).for_each(|a| a.values(&mut real));
        real.retain(|id| !complex.contains(id));
    }
    let mut results = vec![];
    for part in 0..2 {
        pairs.iter().for_each(|(id, parts)| c.bind(*id, if part == 0 { parts[0] } else { parts[1] }));
        let mut given = vec![];
        for id in &real {
            let v = c.value(*id)?;
            given.push((*id, v));
            if part == 1 {
                let zeros = c.full(&c.ty(v).clone(), Scalar::Int(0))?;
                c.bind(*id, zeros);
            }
        }
        c.of_parts = true;
        let found = handler(c, call).and_then(|vs| check(c, call, &vs).map(|()| vs));
        c.of_parts = false;
        pairs.iter().for_each(|(id, _)| c.unbind(*id));
        given.into_iter().for_each(|(id, v)| c.bind(id, v));
        results.push(found?);
    }
    let [re, im] = &results[..] else { return Err("a complex value without its parts".into()) };
    Ok(re.iter().zip(im).map(|(re, im)| Found::Complex([*re, *im])).collect())
}

/// An operand of arithmetic, in the type of the parts: a real one has no imaginary part.
struct Term {
    re: ValueId,
    im: Option<ValueId>,
}

fn term(c: &mut Ctx, call: &Call, i: usize, dtype: DType) -> Res<Term> {
    if let Arg::Value(id) = c.arg(call, i)
        && part_type(&c.info(*id).dtype).is_some()
    {
        let [re, im] = pair(c, *id)?;
        return Ok(Term { re: c.cast(re, dtype)?, im: Some(c.cast(im, dtype)?) });
    }
    if let Arg::Complex([re, im]) = *c.arg(call, i) {
        return Ok(Term { re: c.float_const(dtype, re), im: Some(c.float_const(dtype, im)) });
    }
    let real = operand(c, call, i)?;
    Ok(Term { re: as_value(c, real, dtype)?, im: None })
}

/// Operators with a formula; `None` for all others.
fn formula(c: &mut Ctx, call: &Call, name: &str) -> Option<Res<Found>> {
    Some(match name {
        "view_as_complex" | "view_as_complex_copy" => c.tensor(call, 0).and_then(|x| split(c, x)).map(Found::Complex),
        "view_as_real" | "view_as_real_copy" => operand_pair(c, call).and_then(|z| join(c, z)).map(Found::Real),
        "real" => operand_pair(c, call).map(|[re, _]| Found::Real(re)),
        "imag" => operand_pair(c, call).map(|[_, im]| Found::Real(im)),
        "conj" | "_conj" | "conj_physical" | "_conj_physical" => conjugate(c, call).map(Found::Complex),
        "mH" | "adjoint" | "matrix_H" => conjugate(c, call).and_then(|[re, im]| {
            let parts = [c.transpose(re)?, c.transpose(im)?];
            Ok(Found::Complex(parts))
        }),
        "neg" | "negative" => operand_pair(c, call).and_then(|[re, im]| {
            let parts = [c.unary(Neg, re)?, c.unary(Neg, im)?];
            Ok(Found::Complex(parts))
        }),
        "abs" | "absolute" => {
            operand_pair(c, call).and_then(|[re, im]| functions::hypotenuse(c, re, im)).map(Found::Real)
        }
        "angle" => operand_pair(c, call).and_then(|[re, im]| c.binary(Atan2, im, re)).map(Found::Real),
        "polar" => both(c, call).and_then(|[size, angle]| turned(c, size, angle)).map(Found::Complex),
        "complex" => both(c, call).map(Found::Complex),
        "exp" => operand_pair(c, call).and_then(|[re, im]| {
            let size = c.unary(Exp, re)?;
            turned(c, size, im).map(Found::Complex)
        }),
        "add" => sum(c, call, false, [0, 1]).map(Found::Complex),
        "sub" | "subtract" => sum(c, call, true, [0, 1]).map(Found::Complex),
        "rsub" => sum(c, call, true, [1, 0]).map(Found::Complex),
        "mul" | "multiply" => product(c, call).map(Found::Complex),
        "div" | "divide" | "true_divide" => quotient(c, call).map(Found::Complex),
        "reciprocal" => operand_pair(c, call).and_then(|[re, im]| {
            let one = c.float_const(c.dtype(re), 1.0);
            divided(c, Term { re: one, im: None }, [re, im]).map(Found::Complex)
        }),
        "square" => operand_pair(c, call).and_then(|z| multiplied(c, z, z)).map(Found::Complex),
        "pow" if matches!(c.arg(call, 1), Arg::Int(2)) => {
            operand_pair(c, call).and_then(|z| multiplied(c, z, z)).map(Found::Complex)
        }
        "eq" => equal(c, call).map(Found::Real),
        "ne" => equal(c, call).and_then(|same| c.unary(Not, same)).map(Found::Real),
        "to" | "_to_copy" | "type_as" | "resolve_conj" | "resolve_neg" => cast(c, call),
        _ => return None,
    })
}

/// The parts of the first operand, which is complex.
fn operand_pair(c: &mut Ctx, call: &Call) -> Res<Pair> {
    let Arg::Value(id) = c.arg(call, 0) else { return Err("argument 0 is not a tensor".into()) };
    let id = *id;
    if part_type(&c.info(id).dtype).is_none() {
        return Err("argument 0 is real".into());
    }
    pair(c, id)
}

fn conjugate(c: &mut Ctx, call: &Call) -> Res<Pair> {
    let [re, im] = operand_pair(c, call)?;
    Ok([re, c.unary(Neg, im)?])
}

/// Type of the parts of the result, or else of the first complex operand.
fn part_of_result(c: &Ctx, call: &Call) -> Res<DType> {
    let mut ids = call.outs.clone();
    call.args.iter().for_each(|a| a.values(&mut ids));
    ids.iter().find_map(|id| part_type(&c.info(*id).dtype)).ok_or_else(|| "nothing is complex".into())
}

/// Two real operands.
fn both(c: &mut Ctx, call: &Call) -> Res<Pair> {
    Ok([c.tensor(call, 0)?, c.tensor(call, 1)?])
}

/// Of a size and an angle.
fn turned(c: &mut Ctx, size: ValueId, angle: ValueId) -> Res<Pair> {
    let (cos, sin) = (c.unary(Cos, angle)?, c.unary(Sin, angle)?);
    Ok([c.binary(Mul, size, cos)?, c.binary(Mul, size, sin)?])
}

/// `a ± alpha b` of the arguments at `[a, b]`.
fn sum(c: &mut Ctx, call: &Call, minus: bool, [a, b]: [usize; 2]) -> Res<Pair> {
    let dtype = part_of_result(c, call)?;
    let alpha = c.opt_scalar(call, 2)?.unwrap_or(Scalar::Int(1));
    let (a, b) = (term(c, call, a, dtype)?, term(c, call, b, dtype)?);
    let op = if minus { Sub } else { Add };
    let scaled = scale(c, b.re, alpha)?;
    let re = c.binary(op, a.re, scaled)?;
    let im = match (a.im, b.im) {
        (Some(a), Some(b)) => {
            let b = scale(c, b, alpha)?;
            c.binary(op, a, b)?
        }
        (Some(a), None) => a,
        (None, Some(b)) => {
            let b = scale(c, b, alpha)?;
            if minus { c.unary(Neg, b)? } else { b }
        }
        (None, None) => return Err("neither operand is complex".into()),
    };
    Ok([re, im])
}

/// `(a + b i) (c + d i) = (ac - bd) + (ad + bc) i`.
fn multiplied(c: &mut Ctx, [re, im]: Pair, [other_re, other_im]: Pair) -> Res<Pair> {
    let (ac, bd) = (c.binary(Mul, re, other_re)?, c.binary(Mul, im, other_im)?);
    let (ad, bc) = (c.binary(Mul, re, other_im)?, c.binary(Mul, im, other_re)?);
    Ok([c.binary(Sub, ac, bd)?, c.binary(Add, ad, bc)?])
}

fn product(c: &mut Ctx, call: &Call) -> Res<Pair> {
    let dtype = part_of_result(c, call)?;
    let (a, b) = (term(c, call, 0, dtype)?, term(c, call, 1, dtype)?);
    match (a.im, b.im) {
        (Some(ai), Some(bi)) => multiplied(c, [a.re, ai], [b.re, bi]),
        (Some(im), None) => Ok([c.binary(Mul, a.re, b.re)?, c.binary(Mul, im, b.re)?]),
        (None, Some(im)) => Ok([c.binary(Mul, a.re, b.re)?, c.binary(Mul, a.re, im)?]),
        (None, None) => Err("neither operand is complex".into()),
    }
}

fn quotient(c: &mut Ctx, call: &Call) -> Res<Pair> {
    if matches!(c.arg(call, 2), Arg::Str(_)) {
        return Err("a rounded quotient of complex values".into());
    }
    let dtype = part_of_result(c, call)?;
    let (a, b) = (term(c, call, 0, dtype)?, term(c, call, 1, dtype)?);
    match (a.im, b.im) {
        (_, Some(im)) => divided(c, a, [b.re, im]),
        (Some(im), None) => Ok([c.binary(Div, a.re, b.re)?, c.binary(Div, im, b.re)?]),
        (None, None) => Err("neither operand is complex".into()),
    }
}

/// `(a + b i) / (c + d i) = ((ac + bd) + (bc - ad) i) / (c² + d²)`, with c and d divided by the larger of them first,
/// so that squares neither overflow nor vanish.
fn divided(c: &mut Ctx, a: Term, [re, im]: Pair) -> Res<Pair> {
    let (abs_re, abs_im) = (c.unary(Abs, re)?, c.unary(Abs, im)?);
    let size = c.binary(Max, abs_re, abs_im)?;
    let (re, im) = (c.binary(Div, re, size)?, c.binary(Div, im, size)?);
    let (rr, ii) = (c.binary(Mul, re, re)?, c.binary(Mul, im, im)?);
    let squares = c.binary(Add, rr, ii)?;
    let below = c.binary(Mul, squares, size)?;
    let back = c.unary(Neg, im)?;
    let above = match a.im {
        Some(a_im) => multiplied(c, [a.re, a_im], [re, back])?,
        None => [c.binary(Mul, a.re, re)?, c.binary(Mul, a.re, back)?],
    };
    Ok([c.binary(Div, above[0], below)?, c.binary(Div, above[1], below)?])
}

fn equal(c: &mut Ctx, call: &Call) -> Res<ValueId> {
    let dtype = part_of_result(c, call)?;
    let (a, b) = (term(c, call, 0, dtype)?, term(c, call, 1, dtype)?);
    let zero = c.float_const(dtype, 0.0);
    let same_re = c.compare(CompareOp::Eq, a.re, b.re)?;
    let same_im = c.compare(CompareOp::Eq, a.im.unwrap_or(zero), b.im.unwrap_or(zero))?;
    c.binary(And, same_re, same_im)
}

/// From one dtype to another; a real result is the real part.
fn cast(c: &mut Ctx, call: &Call) -> Res<Found> {
    let out = *call.outs.first().ok_or("a cast without a result")?;
    let Some(dtype) = part_type(&c.info(out).dtype) else {
        let [re, _] = operand_pair(c, call)?;
        let dtype = c.out(call, 0)?.dtype;
        return c.cast(re, dtype).map(Found::Real);
    };
    let z = term(c, call, 0, dtype)?;
    let zero = c.float_const(dtype, 0.0);
    Ok(Found::Complex([z.re, z.im.unwrap_or(zero)]))
}

#[cfg(test)]
mod tests {
    use crate::{convert::convert, raw::Raw};

    /// `f(view_as_complex(x))` with a result of this dtype and shape.
    fn converted(f: &str, dtype: &str, shape: &str) -> Result<String, String> {
        let text = format!(
            r#"{{"values": [{{"dtype": "f32", "shape": [3, 2]}}, {{"dtype": "complex64", "shape": [3]}},
                {{"dtype": "{dtype}", "shape": {shape}}}],
            "inputs": [{{"name": "x", "value": 0}}],
            "calls": [{{"name": "aten::view_as_complex", "overload": "", "args": [{{"value": 0}}], "outs": [1]}},
                {{"name": "aten::{f}", "overload": "", "args": [{{"value": 1}}], "outs": [2]}}],
            "outputs": [2], "structure": null}}"#
        );
        let raw: Raw = serde_json::from_str(&text).expect("valid");
        let graph = convert(&raw, "complex").map_err(|e| e.to_string())?.graph;
        graph.verify().map_err(|e| e.to_string())?;
        Ok(graph.to_string())
    }

    #[test]
    fn graphs_have_parts_alone() {
        let graph = converted("conj", "complex64", "[3]").expect("has a form");
        assert!(graph.contains("neg") && graph.contains("f32[3,2]") && !graph.contains("complex64"), "{graph}");
        assert!(converted("angle", "f32", "[3]").is_ok_and(|g| g.contains("atan2")));
    }

    #[test]
    fn what_has_no_form_is_refused() {
        let said = |f, dtype, shape| converted(f, dtype, shape).expect_err("no form");
        let e = said("fft_fft", "complex64", "[3]");
        assert!(e.contains("`aten::fft_fft` gives complex64 values, a dtype that Kiln does not have"), "{e}");
        let e = said("linalg_vector_norm", "f32", "[]");
        assert!(e.contains("`aten::linalg_vector_norm` cannot be run by libtorch: an operand is complex"), "{e}");
        // Programs that lie about their results.
        for (dtype, shape) in [("f32", "[3]"), ("complex64", "[4]"), ("complex128", "[3]")] {
            assert!(converted("conj", dtype, shape).is_err(), "{dtype}{shape}");
        }
    }
}
