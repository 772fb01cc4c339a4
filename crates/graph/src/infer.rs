//! Shape and dtype inference: the result type of an op on operands of given types, or why the operands do not fit.
//!
//! Domain any op and any types, valid or not; gives a type within [`check_type`]'s limits, or an error clause for the
//! user. Never panics or overflows: all size arithmetic is checked. Leaves and [`Op::Result`] have no operand types to
//! infer from; their rules are in `verify`.
mod launch;

use crate::{BinaryOp, DType, Op, ReduceOp, Scalar, ScatterMode, Type, UnaryOp, count, plural};

/// The dtypes on which a function is defined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Domain {
    /// Floats only.
    Floats,
    /// Floats and integers.
    Numbers,
    /// Integers and bool.
    Whole,
    /// Every dtype; the result is bool.
    Any,
}
impl Domain {
    /// Whether this dtype is in it.
    pub fn has(self, d: DType) -> bool {
        match self {
            Domain::Floats => d.is_float(),
            Domain::Numbers => d != DType::Bool,
            Domain::Whole => !d.is_float(),
            Domain::Any => true,
        }
    }
}

/// Largest size of a tensor type, in bytes.
pub const MAX_BYTES: usize = 1 << 46;
/// Largest rank of a tensor type.
pub const MAX_RANK: usize = 32;

/// Result type of `op` on operands of types `args`. The error is a clause for the user: what was given and what is
/// expected.
pub fn infer(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let (least, most) = op.arity();
    if args.len() < least || args.len() > most {
        let wanted = match (least, most) {
            (a, b) if a == b => format!("{a}"),
            (a, usize::MAX) => format!("at least {a}"),
            (a, b) => format!("{a} to {b}"),
        };
        return Err(format!("takes {wanted} {}, got {}", plural(least.max(most), "operand"), args.len()));
    }
    for (i, arg) in args.iter().enumerate() {
        check_type(arg).map_err(|e| format!("operand {i}: {e}"))?;
    }
    if let Some(arg) = args.iter().find(|t| t.dtype.is_f8() && !op.row().f8) {
        return Err(format!("not defined on {}; cast first", arg.dtype));
    }
    let ty = result(op, args)?;
    check_type(&ty)?;
    Ok(ty)
}

/// An error if a type exceeds [`MAX_RANK`] or [`MAX_BYTES`]. Axes of size 0 count as 1, so that strides stay in range
/// too.
pub fn check_type(ty: &Type) -> Result<(), String> {
    if ty.rank() > MAX_RANK {
        return Err(format!("{} axes, at most {MAX_RANK} are supported", ty.rank()));
    }
    let bytes = ty.shape.iter().try_fold(ty.dtype.bytes(), |n, &d| n.checked_mul(d.max(1)));
    match bytes {
        Some(n) if n <= MAX_BYTES => Ok(()),
        _ => Err(format!("{ty} is too large")),
    }
}

/// Common shape of two pointwise operands by numpy's broadcasting rules.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, String> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| if i + s.len() < rank { 1 } else { s[i + s.len() - rank] };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(format!(
                "shapes {a:?} and {b:?} do not broadcast: sizes must be equal or 1, counted from the last axis"
            )),
        })
        .collect()
}

fn result(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let x = args.first().copied();
    let first = || x.cloned().ok_or_else(|| "no operand".to_string());
    let with_shape = |shape: Vec<usize>| first().map(|x| Type { dtype: x.dtype, shape });
    match op {
        Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::Iota { .. } => {
            Err("a leaf's type cannot be inferred; add it with `push`, `input`, `param` or `constant`".into())
        }
        Op::Result(_) => Err("the type of a further result is in its operand; add it with `Graph::add`".into()),
        Op::Unary(u) => unary(*u, &first()?),
        Op::Binary(b) => {
            let dtype = binary(*b, args)?;
            Ok(Type { dtype, shape: broadcast(&args[0].shape, &args[1].shape)? })
        }
        Op::Compare(_) => {
            same_dtype(args)?;
            Ok(Type { dtype: DType::Bool, shape: broadcast(&args[0].shape, &args[1].shape)? })
        }
        Op::Select => {
            if args[0].dtype != DType::Bool {
                return Err(format!("the condition is {}, it must be bool (compare, or cast)", args[0].dtype));
            }
            same_dtype(&args[1..])?;
            let branches = broadcast(&args[1].shape, &args[2].shape)?;
            Ok(Type { dtype: args[1].dtype, shape: broadcast(&args[0].shape, &branches)? })
        }
        Op::Cast(dtype) => Ok(Type { dtype: *dtype, shape: first()?.shape }),
        Op::Reshape(shape) => {
            let (x, ty) = (first()?, with_shape(shape.clone())?);
            check_type(&ty)?;
            if x.count() != ty.count() {
                return Err(format!("{x} has {} elements, {shape:?} has {}", x.count(), ty.count()));
            }
            Ok(ty)
        }
        Op::Permute(perm) => {
            let x = first()?;
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..x.rank()) {
                return Err(format!("{perm:?} is not a permutation of the axes 0..{}", x.rank()));
            }
            with_shape(perm.iter().map(|&p| x.shape[p]).collect())
        }
        Op::Broadcast(shape) => {
            let x = first()?;
            if !broadcasts_to(&x.shape, shape) {
                return Err(format!("{x} does not broadcast to {shape:?}"));
            }
            with_shape(shape.clone())
        }
        Op::Slice { axis, start, len, step } => {
            let mut x = first()?;
            let dim = axis_len(&x, *axis)?;
            let last = len.checked_sub(1).map(|n| n.checked_mul(*step).and_then(|n| n.checked_add(*start)));
            let inside = match last {
                None => *start <= dim,
                Some(last) => last.is_some_and(|last| last < dim),
            };
            if *step == 0 || !inside {
                return Err(format!(
                    "a slice of {} from {start} by {step} does not lie in axis {axis} of {x}",
                    count(*len, "element")
                ));
            }
            x.shape[*axis] = *len;
            Ok(x)
        }
        Op::Flip(axes) => {
            let x = first()?;
            check_axes(&x, axes)?;
            Ok(x)
        }
        Op::Pad { lo, hi } => pad(&first()?, args[1], lo, hi),
        Op::Concat { axis } => concat(args, *axis),
        Op::Gather { axis } => {
            gathered(args[0], args[1], *axis)?;
            with_shape(args[1].shape.clone())
        }
        Op::Take { axis } => {
            let x = first()?;
            axis_len(&x, *axis)?;
            index_dtype(args[1])?;
            with_shape([&x.shape[..*axis], &args[1].shape, &x.shape[*axis + 1..]].concat())
        }
        Op::Scatter { axis, mode } => {
            gathered(args[0], args[1], *axis)?;
            if args[2].dtype != args[0].dtype || args[2].shape != args[1].shape {
                let wanted = Type { dtype: args[0].dtype, shape: args[1].shape.clone() };
                return Err(format!("the source is {}, it must be {wanted}", args[2]));
            }
            if *mode == ScatterMode::Add && args[0].dtype == DType::Bool {
                return Err("bool does not add; cast to i64 first".into());
            }
            first()
        }
        Op::Reduce { op, axes } => reduce(*op, &first()?, axes),
        Op::Scan { op: _, axis } => {
            let x = first()?;
            axis_len(&x, *axis)?;
            if x.dtype == DType::Bool { Err("a scan of bool: cast to i64 first".into()) } else { Ok(x) }
        }
        Op::Dot => {
            let dtype = same_dtype(args)?;
            if dtype == DType::Bool {
                return Err("a matmul of bool: cast to i64 first".into());
            }
            let ([batch_a @ .., m, k], [batch_b @ .., k2, n]) = (&args[0].shape[..], &args[1].shape[..]) else {
                return Err(format!("{} × {}: both must have at least two axes (reshape vectors)", args[0], args[1]));
            };
            if k != k2 {
                return Err(format!("{} × {}: inner sizes {k} and {k2} differ", args[0], args[1]));
            }
            let mut shape = broadcast(batch_a, batch_b)?;
            shape.extend([*m, *n]);
            Ok(Type { dtype: dtype.matmul(), shape })
        }
        Op::Fallback(f) => f.results.first().cloned().ok_or_else(|| format!("{} has no results", f.name)),
        Op::Launch(launch) => launch::first_result(launch, args),
        _ => own(op, args),
    }
}

/// Applies the inference rule in the op's registry row.
fn own(op: &Op, args: &[&Type]) -> Result<Type, String> {
    let rule = op.row().infer.ok_or("has no type inference rule; please report it")?;
    rule(op, args)
}

fn unary(op: UnaryOp, x: &Type) -> Result<Type, String> {
    let domain = op.function().domain;
    let dtype = if domain == Domain::Any { DType::Bool } else { x.dtype };
    match domain.has(x.dtype) {
        true => Ok(Type { dtype, shape: x.shape.clone() }),
        false => Err(format!("not defined on {}; cast first", x.dtype)),
    }
}

fn binary(op: BinaryOp, args: &[&Type]) -> Result<DType, String> {
    use BinaryOp::*;
    let dtype = same_dtype(args)?;
    let ok = match op {
        And | Or | Xor => !dtype.is_float(),
        Max | Min => true,
        Atan2 => dtype.is_float(),
        Add | Sub | Mul | Div | FloorDiv | Remainder | Fmod | Pow => dtype != DType::Bool,
    };
    if ok { Ok(dtype) } else { Err(format!("not defined on {dtype}; cast first")) }
}

fn reduce(op: ReduceOp, x: &Type, axes: &[usize]) -> Result<Type, String> {
    use ReduceOp::*;
    check_axes(x, axes)?;
    let dtype = match op {
        Sum | Prod if x.dtype == DType::Bool => return Err("bool does not add or multiply; cast to i64 first".into()),
        Mean if !x.dtype.is_float() => {
            return Err(format!("the mean of {} is not defined; cast to a float first", x.dtype));
        }
        Any | All if x.dtype != DType::Bool => {
            return Err(format!("takes bool, got {}; compare with 0 first", x.dtype));
        }
        ArgMax | ArgMin if axes.len() != 1 => {
            return Err(format!("takes one axis, got {axes:?}; reshape the axes into one first"));
        }
        ArgMax | ArgMin => DType::I64,
        _ => x.dtype,
    };
    if matches!(op, Max | Min | ArgMax | ArgMin) && axes.iter().any(|&a| x.shape[a] == 0) {
        return Err(format!("axes {axes:?} of {x} have no elements, so there is no maximum or minimum"));
    }
    let mut shape = x.shape.clone();
    for &a in axes {
        shape[a] = 1;
    }
    Ok(Type { dtype, shape })
}

fn pad(x: &Type, value: &Type, lo: &[i64], hi: &[i64]) -> Result<Type, String> {
    if value.rank() != 0 || value.dtype != x.dtype {
        return Err(format!("the padding value is {value}, it must be {}[]", x.dtype));
    }
    if lo.len() != x.rank() || hi.len() != x.rank() {
        return Err(format!("lo={lo:?} hi={hi:?}: {x} needs {} in each", count(x.rank(), "number")));
    }
    let padded = |i: usize| {
        let (dim, lo, hi) = (x.shape[i] as i128, i128::from(lo[i]), i128::from(hi[i]));
        let kept = dim + lo.min(0) + hi.min(0);
        let len = usize::try_from(dim + lo + hi);
        match len {
            Ok(len) if kept >= 0 => Ok(len),
            _ => Err(format!("axis {i} of {x} cannot be padded or cropped by lo={lo} hi={hi}")),
        }
    };
    let shape = (0..x.rank()).map(padded).collect::<Result<_, _>>()?;
    Ok(Type { dtype: x.dtype, shape })
}

fn concat(args: &[&Type], axis: usize) -> Result<Type, String> {
    let dtype = same_dtype(args)?;
    let mut shape = args[0].shape.clone();
    axis_len(args[0], axis)?;
    let mut total = 0usize;
    for (i, t) in args.iter().enumerate() {
        let fits = t.rank() == shape.len() && (0..shape.len()).all(|d| d == axis || t.shape[d] == shape[d]);
        if !fits {
            return Err(format!("operand {i} is {t}; except for axis {axis} it must have the sizes of {}", args[0]));
        }
        total = total.checked_add(t.shape[axis]).ok_or("the result is too large")?;
    }
    shape[axis] = total;
    Ok(Type { dtype, shape })
}

/// The common rules of gather and scatter: the index has the operand's rank, and no larger sizes except along `axis`.
fn gathered(x: &Type, index: &Type, axis: usize) -> Result<(), String> {
    axis_len(x, axis)?;
    index_dtype(index)?;
    let fits = index.rank() == x.rank() && (0..x.rank()).all(|d| d == axis || index.shape[d] <= x.shape[d]);
    if fits {
        Ok(())
    } else {
        Err(format!("the index is {index}; it needs the rank of {x} and, except for axis {axis}, no larger sizes"))
    }
}

fn index_dtype(index: &Type) -> Result<(), String> {
    if index.dtype.is_int() { Ok(()) } else { Err(format!("the index is {}, it must be an integer", index.dtype)) }
}

pub(crate) fn broadcasts_to(from: &[usize], to: &[usize]) -> bool {
    from.len() <= to.len() && from.iter().rev().zip(to.iter().rev()).all(|(&a, &b)| a == b || a == 1)
}

pub(crate) fn same_dtype(args: &[&Type]) -> Result<DType, String> {
    let dtype = args.first().ok_or("no operand")?.dtype;
    match args.iter().find(|t| t.dtype != dtype) {
        Some(t) => Err(format!("operands are {dtype} and {}; cast them to one type", t.dtype)),
        None => Ok(dtype),
    }
}

pub(crate) fn axis_len(x: &Type, axis: usize) -> Result<usize, String> {
    x.shape.get(axis).copied().ok_or_else(|| format!("{x} has no axis {axis}"))
}

fn check_axes(x: &Type, axes: &[usize]) -> Result<(), String> {
    for (i, &a) in axes.iter().enumerate() {
        axis_len(x, a)?;
        if axes[..i].contains(&a) {
            return Err(format!("axis {a} is named twice in {axes:?}"));
        }
    }
    Ok(())
}

pub(crate) fn float(x: &Type) -> Result<(), String> {
    if x.dtype.is_float() { Ok(()) } else { Err(format!("takes floats, got {}; cast first", x.dtype)) }
}

/// Checks an `eps` or `scale` attribute: any number, but not a bool.
pub(crate) fn number(s: Scalar) -> Result<(), String> {
    match s {
        Scalar::Bool(_) => Err("expected a number, got a bool".into()),
        _ => Ok(()),
    }
}
