//! Pointwise ops, element by element.
use super::memory::{Scalar, bits, collected, element, of_bits};
use super::value::*;
use kiln_block::{BinaryOp, CmpOp, Elem, Type, UnaryOp};

/// The message for an op on operands that the verifier should have rejected.
pub fn undefined(op: impl std::fmt::Debug, on: &str) -> String {
    format!("{op:?} is not defined on {on}, which the verifier should have rejected; please report it with the program")
}

pub fn unary(op: UnaryOp, a: &Block) -> Result<Block, String> {
    let data = match (op, &a.data) {
        (UnaryOp::IsNan, Data::Float(v)) => Data::Int(v.iter().map(|x| i64::from(x.is_nan())).collect()),
        (UnaryOp::IsInf, Data::Float(v)) => Data::Int(v.iter().map(|x| i64::from(x.is_infinite())).collect()),
        (_, Data::Float(v)) => {
            let one = |x: &f64| float_unary(op, *x).map(|y| rounded(a.elem, y));
            Data::Float(v.iter().map(one).collect::<Result<_, _>>()?)
        }
        (_, Data::Int(v)) => Data::Int(v.iter().map(|x| int_unary(op, a.elem, *x)).collect::<Result<_, _>>()?),
        (_, Data::Ptr(_)) => return Err(undefined(op, "pointers")),
    };
    let elem = if matches!(op, UnaryOp::IsNan | UnaryOp::IsInf) { Elem::Bool } else { a.elem };
    Ok(Block { elem, shape: a.shape.clone(), data })
}

fn float_unary(op: UnaryOp, x: f64) -> Result<f64, String> {
    Ok(match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Exp => libm::exp(x),
        UnaryOp::Exp2 | UnaryOp::Exp2Approx => libm::exp2(x),
        UnaryOp::Expm1 => libm::expm1(x),
        UnaryOp::Log => libm::log(x),
        UnaryOp::Log2 => libm::log2(x),
        UnaryOp::Log10 => libm::log10(x),
        UnaryOp::Log1p => libm::log1p(x),
        UnaryOp::Sqrt | UnaryOp::SqrtRn => x.sqrt(),
        UnaryOp::Rsqrt => 1.0 / x.sqrt(),
        UnaryOp::Sin => libm::sin(x),
        UnaryOp::Cos => libm::cos(x),
        UnaryOp::Tan => libm::tan(x),
        UnaryOp::Asin => libm::asin(x),
        UnaryOp::Acos => libm::acos(x),
        UnaryOp::Atan => libm::atan(x),
        UnaryOp::Sinh => libm::sinh(x),
        UnaryOp::Cosh => libm::cosh(x),
        UnaryOp::Tanh | UnaryOp::TanhApprox => libm::tanh(x),
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Gelu => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Trunc => x.trunc(),
        UnaryOp::Tf32 if x.is_nan() => x,
        UnaryOp::Tf32 => f32::from_bits(((x as f32).to_bits() + 0x1000) & !0x1fff).into(),
        UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => return Err(undefined(op, "floats")),
    })
}

fn int_unary(op: UnaryOp, elem: Elem, x: i64) -> Result<i64, String> {
    Ok(match op {
        UnaryOp::Neg => elem.wrapped(x.wrapping_neg()),
        UnaryOp::Abs if !elem.is_signed() => x,
        UnaryOp::Abs => elem.wrapped(x.wrapping_abs()),
        UnaryOp::Not if elem == Elem::Bool => 1 - x,
        UnaryOp::Not => elem.wrapped(!x),
        op => return Err(undefined(op, "integers")),
    })
}

pub fn binary(op: BinaryOp, a: &Block, b: &Block) -> Result<Block, String> {
    let data = match (&a.data, &b.data) {
        (Data::Float(x), Data::Float(y)) => {
            let one = |(x, y): (&f64, &f64)| float_binary(op, *x, *y).map(|v| rounded(a.elem, v));
            Data::Float(x.iter().zip(y).map(one).collect::<Result<_, _>>()?)
        }
        (Data::Int(x), Data::Int(y)) => {
            let one = |(x, y): (&i64, &i64)| int_binary(op, a.elem, *x, *y);
            Data::Int(x.iter().zip(y).map(one).collect::<Result<_, _>>()?)
        }
        _ => return Err(undefined(op, "operands of different types")),
    };
    Ok(Block { elem: a.elem, shape: a.shape.clone(), data })
}

/// The larger operand; NaN if either is NaN. +0 is larger than -0.
pub fn float_max(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else if x > y || (x == y && x.is_sign_positive()) {
        x
    } else {
        y
    }
}

/// The larger operand; of a number and NaN the number.
fn number_max(x: f64, y: f64) -> f64 {
    match (x.is_nan(), y.is_nan()) {
        (true, _) => y,
        (_, true) => x,
        _ => float_max(x, y),
    }
}

fn float_binary(op: BinaryOp, x: f64, y: f64) -> Result<f64, String> {
    Ok(match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        BinaryOp::Mul => x * y,
        BinaryOp::Div | BinaryOp::DivRn => x / y,
        BinaryOp::Rem => x % y,
        BinaryOp::Max => float_max(x, y),
        BinaryOp::Min => -float_max(-x, -y),
        BinaryOp::MaxNum => number_max(x, y),
        BinaryOp::MinNum => -number_max(-x, -y),
        BinaryOp::Pow => libm::pow(x, y),
        BinaryOp::Atan2 => libm::atan2(x, y),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr | BinaryOp::MulHi => {
            return Err(undefined(op, "floats"));
        }
    })
}

fn int_binary(op: BinaryOp, elem: Elem, x: i64, y: i64) -> Result<i64, String> {
    let bits = 8 * elem.bytes() as i64;
    let (ux, uy) = (x as u64, y as u64);
    let v = match op {
        BinaryOp::Div if elem == Elem::U64 && y != 0 => (ux / uy) as i64,
        BinaryOp::Rem if elem == Elem::U64 && y != 0 => (ux % uy) as i64,
        BinaryOp::Shr if elem == Elem::U64 => {
            if uy < 64 {
                (ux >> uy) as i64
            } else {
                0
            }
        }
        BinaryOp::MulHi if elem == Elem::U64 => ((u128::from(ux) * u128::from(uy)) >> 64) as i64,
        BinaryOp::MulHi => ((i128::from(x) * i128::from(y)) >> bits) as i64,
        BinaryOp::Add => x.wrapping_add(y),
        BinaryOp::Sub => x.wrapping_sub(y),
        BinaryOp::Mul => x.wrapping_mul(y),
        BinaryOp::Div if y == 0 => 0,
        BinaryOp::Div => x.wrapping_div(y),
        BinaryOp::Rem if y == 0 => 0,
        BinaryOp::Rem => x.wrapping_rem(y),
        BinaryOp::Max => {
            if elem.ordered(x) >= elem.ordered(y) {
                x
            } else {
                y
            }
        }
        BinaryOp::Min => {
            if elem.ordered(x) <= elem.ordered(y) {
                x
            } else {
                y
            }
        }
        BinaryOp::And => x & y,
        BinaryOp::Or => x | y,
        BinaryOp::Xor => x ^ y,
        // Shifts by the width or more give zeros, or copies of the sign bit.
        BinaryOp::Shl if (0..bits).contains(&y) => x.wrapping_shl(y as u32),
        BinaryOp::Shl => 0,
        BinaryOp::Shr => x >> if (0..bits).contains(&y) { y } else { 63 },
        BinaryOp::Pow | BinaryOp::Atan2 | BinaryOp::DivRn | BinaryOp::MaxNum | BinaryOp::MinNum => {
            return Err(undefined(op, "integers"));
        }
    };
    Ok(elem.wrapped(v))
}

pub fn compare(op: CmpOp, a: &Block, b: &Block) -> Block {
    fn holds<T: PartialOrd>(op: CmpOp, x: T, y: T) -> i64 {
        i64::from(match op {
            CmpOp::Eq => x == y,
            CmpOp::Ne => x != y,
            CmpOp::Lt => x < y,
            CmpOp::Le => x <= y,
            CmpOp::Gt => x > y,
            CmpOp::Ge => x >= y,
        })
    }
    let data = match (&a.data, &b.data) {
        (Data::Float(x), Data::Float(y)) => x.iter().zip(y).map(|(x, y)| holds(op, *x, *y)).collect(),
        _ => a.ints().iter().zip(b.ints()).map(|(x, y)| holds(op, a.elem.ordered(*x), a.elem.ordered(*y))).collect(),
    };
    Block { elem: Elem::Bool, shape: a.shape.clone(), data: Data::Int(data) }
}

pub fn select(c: &Block, a: &Block, b: &Block) -> Block {
    fn pick<T: Copy>(c: &[i64], a: &[T], b: &[T]) -> Vec<T> {
        c.iter().zip(a.iter().zip(b)).map(|(c, (a, b))| if *c != 0 { *a } else { *b }).collect()
    }
    let data = match (&a.data, &b.data) {
        (Data::Float(x), Data::Float(y)) => Data::Float(pick(c.ints(), x, y)),
        (Data::Int(x), Data::Int(y)) => Data::Int(pick(c.ints(), x, y)),
        _ => Data::Ptr(pick(c.ints(), a.pointers(), b.pointers())),
    };
    Block { elem: a.elem, shape: a.shape.clone(), data }
}

/// The same bits as a value of another type.
pub fn bitcast(a: &Block, ty: &Type) -> Block {
    let (elem, shape) = block_type(ty);
    let data = match (&a.data, ty) {
        (Data::Ptr(v), Type::Ptr { .. }) => Data::Ptr(v.clone()),
        (Data::Ptr(v), _) => Data::Int(v.iter().map(|p| p.number()).collect()),
        (Data::Int(v), Type::Ptr { .. }) => Data::Ptr(v.iter().map(|n| Address::of(*n)).collect()),
        _ => {
            let one = |i| of_bits(elem, bits(a.elem, element(a, i)));
            return collected(elem, &shape, (0..a.count()).map(one));
        }
    };
    Block { elem, shape, data }
}

/// To a float of fewer bits, toward zero.
pub fn cast_to_zero(to: Elem, a: &Block) -> Block {
    let one = |x: &f64| {
        let near = nearest(to, *x);
        // One less in its bits is the next number toward zero.
        match of_bits(to, bits(to, Scalar::Float(near)).wrapping_sub(1)) {
            Scalar::Float(less) if near.abs() > x.abs() => less,
            _ => near,
        }
    };
    Block { elem: to, shape: a.shape.clone(), data: Data::Float(a.floats().iter().map(one).collect()) }
}

/// Products and sums, rounded once.
pub fn fma(a: &Block, b: &Block, c: &Block) -> Block {
    let all = a.floats().iter().zip(b.floats()).zip(c.floats());
    let data = all.map(|((x, y), z)| rounded(a.elem, x.mul_add(*y, *z))).collect();
    Block { elem: a.elem, shape: a.shape.clone(), data: Data::Float(data) }
}

pub fn cast(to: Elem, a: &Block) -> Block {
    let float_to_int = |x: f64| match to {
        Elem::I64 => x as i64,
        Elem::I32 => i64::from(x as i32),
        Elem::I16 => i64::from((x as i32).clamp(i16::MIN.into(), i16::MAX.into())),
        Elem::I8 => i64::from(x as i8),
        Elem::U8 => i64::from(x as u8),
        Elem::U16 => i64::from(x as u16),
        Elem::U32 => i64::from(x as u32),
        Elem::U64 => x as u64 as i64,
        _ => i64::from(x != 0.0),
    };
    let int_to_float = |x: i64| match (a.elem, to) {
        (Elem::U64, Elem::F64) => x as u64 as f64,
        (Elem::U64, _) => nearest(to, f64::from(x as u64 as f32)),
        (_, Elem::F64) => x as f64,
        _ => nearest(to, f64::from(x as f32)),
    };
    let data = match &a.data {
        Data::Float(v) if to.is_float() => Data::Float(v.iter().map(|x| nearest(to, *x)).collect()),
        Data::Float(v) => Data::Int(v.iter().map(|x| float_to_int(*x)).collect()),
        Data::Int(v) if to.is_float() => Data::Float(v.iter().map(|x| int_to_float(*x)).collect()),
        Data::Int(v) => Data::Int(v.iter().map(|x| to.wrapped(*x)).collect()),
        Data::Ptr(_) => a.data.clone(),
    };
    Block { elem: to, shape: a.shape.clone(), data }
}
