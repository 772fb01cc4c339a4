//! Pointwise ops: unary functions, arithmetic, comparison, selection.
use super::{
    value::{Data, Value, on_both},
    walk::{broadcast_strides, walk},
};
use kiln_graph::{BinaryOp, CompareOp, UnaryOp, ops::real::Real};
use std::sync::Arc;

/// Applies the op's reference function from the registry (`kiln_graph::ops::unary`).
pub(super) fn unary(op: UnaryOp, x: &Value) -> Result<Data, String> {
    let f = op.function();
    let undefined = |on: &str| format!("{} is not defined on {on}", op.name());
    Ok(match (&x.data, op) {
        (Data::F32(v), UnaryOp::IsNan) => Data::Bool(Arc::new(v.iter().map(|x| x.is_nan()).collect())),
        (Data::F64(v), UnaryOp::IsNan) => Data::Bool(Arc::new(v.iter().map(|x| x.is_nan()).collect())),
        (Data::F32(v), UnaryOp::IsInf) => Data::Bool(Arc::new(v.iter().map(|x| x.is_infinite()).collect())),
        (Data::F64(v), UnaryOp::IsInf) => Data::Bool(Arc::new(v.iter().map(|x| x.is_infinite()).collect())),
        (Data::Int(v), UnaryOp::IsNan | UnaryOp::IsInf) => Data::Bool(Arc::new(vec![false; v.len()])),
        (Data::Bool(v), UnaryOp::IsNan | UnaryOp::IsInf) => Data::Bool(Arc::new(vec![false; v.len()])),
        (Data::Bool(v), UnaryOp::Not) => Data::Bool(Arc::new(v.iter().map(|x| !x).collect())),
        (Data::Bool(_), _) => return Err(undefined("bool")),
        (Data::Int(v), UnaryOp::Not) => Data::Int(Arc::new(v.iter().map(|x| !x).collect())),
        (Data::Int(v), _) => {
            let f = f.whole.ok_or_else(|| undefined("integers"))?;
            Data::Int(Arc::new(v.iter().map(|x| f(*x)).collect()))
        }
        (Data::F32(v), _) => {
            let f = f.reference.ok_or_else(|| undefined("floats"))?.f32;
            Data::F32(Arc::new(v.iter().map(|x| f(*x)).collect()))
        }
        (Data::F64(v), _) => {
            let f = f.reference.ok_or_else(|| undefined("floats"))?.f64;
            Data::F64(Arc::new(v.iter().map(|x| f(*x)).collect()))
        }
    })
}

/// Applies `f` to broadcast operands.
pub(super) fn map2<T: Copy, U>(
    a: (&[T], &[usize]),
    b: (&[T], &[usize]),
    shape: &[usize],
    f: impl Fn(T, T) -> U,
) -> Vec<U> {
    let (xs, ys) = (a.0, b.0);
    if a.1 == shape && b.1 == shape {
        return xs.iter().zip(ys).map(|(x, y)| f(*x, *y)).collect();
    }
    let (sa, sb) = (broadcast_strides(a.1, shape), broadcast_strides(b.1, shape));
    let mut out = Vec::with_capacity(shape.iter().product());
    walk(shape, [&sa, &sb], [0, 0], |[i, j]| out.push(f(xs[i], ys[j])));
    out
}

pub(super) fn binary(op: BinaryOp, a: &Value, b: &Value, shape: &[usize]) -> Result<Data, String> {
    let (sa, sb) = (&a.ty.shape[..], &b.ty.shape[..]);
    if let Some(root) = root(op, b) {
        return unary(root, a);
    }
    Ok(match (&a.data, &b.data) {
        (Data::F32(x), Data::F32(y)) => Data::F32(Arc::new(reals(op, (x, sa), (y, sb), shape)?)),
        (Data::F64(x), Data::F64(y)) => Data::F64(Arc::new(reals(op, (x, sa), (y, sb), shape)?)),
        (Data::Int(x), Data::Int(y)) => Data::Int(Arc::new(ints(op, (x, sa), (y, sb), shape)?)),
        (Data::Bool(x), Data::Bool(y)) => {
            let f: fn(bool, bool) -> bool = match op {
                BinaryOp::And | BinaryOp::Min => |x, y| x & y,
                BinaryOp::Or | BinaryOp::Max => |x, y| x | y,
                BinaryOp::Xor => |x, y| x ^ y,
                _ => return Err(format!("{} is not defined on bool", op.name())),
            };
            Data::Bool(Arc::new(map2((x, sa), (y, sb), shape, f)))
        }
        _ => return Err("operands are of different types".into()),
    })
}

/// The root by which PyTorch computes a power with the rank-0 exponent 0.5 or -0.5; it differs from `pow` at -inf and
/// -0.
fn root(op: BinaryOp, power: &Value) -> Option<UnaryOp> {
    let number = match &power.data {
        Data::F32(y) if power.ty.shape.is_empty() => f64::from(*y.first()?),
        Data::F64(y) if power.ty.shape.is_empty() => *y.first()?,
        _ => return None,
    };
    match number {
        _ if op != BinaryOp::Pow => None,
        0.5 => Some(UnaryOp::Sqrt),
        -0.5 => Some(UnaryOp::Rsqrt),
        _ => None,
    }
}

type Operand<'a, T> = (&'a [T], &'a [usize]);

pub(super) fn reals<R: Real>(op: BinaryOp, a: Operand<R>, b: Operand<R>, shape: &[usize]) -> Result<Vec<R>, String> {
    Ok(match op {
        BinaryOp::Add => map2(a, b, shape, |x, y| x + y),
        BinaryOp::Sub => map2(a, b, shape, |x, y| x - y),
        BinaryOp::Mul => map2(a, b, shape, |x, y| x * y),
        BinaryOp::Div => map2(a, b, shape, |x, y| x / y),
        BinaryOp::FloorDiv => map2(a, b, shape, floor_div),
        BinaryOp::Remainder => map2(a, b, shape, remainder),
        BinaryOp::Fmod => map2(a, b, shape, |x, y| x % y),
        BinaryOp::Pow => map2(a, b, shape, R::pow),
        BinaryOp::Max => map2(a, b, shape, R::max_nan),
        BinaryOp::Min => map2(a, b, shape, R::min_nan),
        BinaryOp::Atan2 => map2(a, b, shape, R::atan2),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => return Err(format!("{} is not defined on floats", op.name())),
    })
}

/// `torch.remainder`: the result has the divisor's sign.
fn remainder<R: Real>(x: R, y: R) -> R {
    let r = x % y;
    if r != R::ZERO && (r < R::ZERO) != (y < R::ZERO) { r + y } else { r }
}

/// `c10::div_floor_floating`: exact if the quotient is.
fn floor_div<R: Real>(x: R, y: R) -> R {
    if y == R::ZERO {
        return x / y;
    }
    let r = x % y;
    let mut q = (x - r) / y;
    if r != R::ZERO && (r < R::ZERO) != (y < R::ZERO) {
        q = q - R::ONE;
    }
    if q == R::ZERO {
        return R::ZERO.copysign(x / y);
    }
    let floor = q.floor();
    if q - floor > R::of(0.5) { floor + R::ONE } else { floor }
}

fn ints(op: BinaryOp, a: Operand<i64>, b: Operand<i64>, shape: &[usize]) -> Result<Vec<i64>, String> {
    let divides = matches!(op, BinaryOp::Div | BinaryOp::FloorDiv | BinaryOp::Remainder | BinaryOp::Fmod);
    if divides && b.0.contains(&0) && !shape.contains(&0) {
        return Err("integer division by zero".into());
    }
    let f: fn(i64, i64) -> i64 = match op {
        BinaryOp::Add => i64::wrapping_add,
        BinaryOp::Sub => i64::wrapping_sub,
        BinaryOp::Mul => i64::wrapping_mul,
        BinaryOp::Div => i64::wrapping_div,
        BinaryOp::FloorDiv => |x, y| {
            let q = x.wrapping_div(y);
            if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { q - 1 } else { q }
        },
        BinaryOp::Remainder => |x, y| {
            let r = x.wrapping_rem(y);
            if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
        },
        BinaryOp::Fmod => i64::wrapping_rem,
        BinaryOp::Pow => int_pow,
        BinaryOp::Max => i64::max,
        BinaryOp::Min => i64::min,
        BinaryOp::And => |x, y| x & y,
        BinaryOp::Or => |x, y| x | y,
        BinaryOp::Xor => |x, y| x ^ y,
        BinaryOp::Atan2 => return Err("atan2 is not defined on integers".into()),
    };
    Ok(map2(a, b, shape, f))
}

/// Wrapping integer power. A negative exponent gives 0, except for bases 1 and -1.
fn int_pow(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut e) = (1i64, base, exponent);
    while e > 0 {
        if e & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        e >>= 1;
    }
    result
}

pub(super) fn compare(op: CompareOp, a: &Value, b: &Value, shape: &[usize]) -> Result<Data, String> {
    fn of<T: Copy + PartialOrd>(op: CompareOp, a: Operand<T>, b: Operand<T>, shape: &[usize]) -> Vec<bool> {
        match op {
            CompareOp::Eq => map2(a, b, shape, |x, y| x == y),
            CompareOp::Ne => map2(a, b, shape, |x, y| x != y),
            CompareOp::Lt => map2(a, b, shape, |x, y| x < y),
            CompareOp::Le => map2(a, b, shape, |x, y| x <= y),
            CompareOp::Gt => map2(a, b, shape, |x, y| x > y),
            CompareOp::Ge => map2(a, b, shape, |x, y| x >= y),
        }
    }
    let (sa, sb) = (&a.ty.shape[..], &b.ty.shape[..]);
    let result = match (&a.data, &b.data) {
        (Data::F32(x), Data::F32(y)) => of(op, (x, sa), (y, sb), shape),
        (Data::F64(x), Data::F64(y)) => of(op, (x, sa), (y, sb), shape),
        (Data::Int(x), Data::Int(y)) => of(op, (x, sa), (y, sb), shape),
        (Data::Bool(x), Data::Bool(y)) => of(op, (x, sa), (y, sb), shape),
        _ => return Err("operands are of different types".into()),
    };
    Ok(Data::Bool(Arc::new(result)))
}

pub(super) fn select(cond: &Value, yes: &Value, no: &Value, shape: &[usize]) -> Result<Data, String> {
    let c = cond.data.bools()?;
    let [sc, sy, sn] = [cond, yes, no].map(|v| broadcast_strides(&v.ty.shape, shape));
    Ok(on_both!(&yes.data, &no.data, (y, n) => {
        let mut out = Vec::with_capacity(shape.iter().product());
        walk(shape, [&sc, &sy, &sn], [0; 3], |[i, j, k]| out.push(if c[i] { y[j] } else { n[k] }));
        out
    }))
}
