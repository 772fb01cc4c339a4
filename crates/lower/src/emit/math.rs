//! Graph arithmetic as block instructions. Operands are in the compute type of their dtype (f32 for half types).
use crate::scalar::dag::Tf32;
use crate::scalar::types::{held, stored};
use kiln_block::{BinaryOp as B, Builder, CmpOp, Const, Elem, Type, UnaryOp as U, Value};
use kiln_graph::decompose::decompose_op;
use kiln_graph::{BinaryOp, CompareOp, DType, Op, ReduceOp, Scalar, UnaryOp};

/// A scalar constant of a dtype, rounded to it, in its compute type.
pub fn constant(b: &mut Builder, d: DType, v: Scalar) -> Value {
    let c = match d {
        _ if d.is_float() => Const::Float(v.as_f64()),
        DType::Bool => Const::Bool(v.as_f64() != 0.0),
        _ => Const::Int(match v {
            Scalar::Int(i) => i,
            other => other.as_f64() as i64,
        }),
    };
    if d.is_f8() {
        return float(b, Elem::F32, d.round(v.as_f64()));
    }
    let value = b.constant(Type::scalar(stored(d)), c);
    b.cast(value, held(d))
}

pub fn float(b: &mut Builder, elem: Elem, v: f64) -> Value {
    let c = if elem.is_float() { Const::Float(v) } else { Const::Int(v as i64) };
    b.constant(Type::scalar(elem), c)
}

/// Short forms for a chain of float arithmetic.
struct Chain<'a> {
    b: &'a mut Builder,
    elem: Elem,
}
impl Chain<'_> {
    fn n(&mut self, v: f64) -> Value {
        float(self.b, self.elem, v)
    }
    fn un(&mut self, op: U, x: Value) -> Value {
        self.b.unary(op, x)
    }
    fn bin(&mut self, op: B, x: Value, y: Value) -> Value {
        self.b.binary(op, x, y)
    }
    fn with(&mut self, op: B, x: Value, v: f64) -> Value {
        let n = self.n(v);
        self.bin(op, x, n)
    }
}

/// The nearest tf32 number, or the high or low part of the 3xTF32 split, whose sum is `x` to 22 bits. An infinity is
/// split into ±1 and itself, so that products of parts are infinity times zero only where the other operand is zero.
pub fn tf32(b: &mut Builder, x: Value, part: Tf32) -> Value {
    if part == Tf32::Nearest {
        return b.unary(U::Tf32, x);
    }
    let limit = f64::from(f32::from_bits(0x7f7f_e000));
    let mut c = Chain { b, elem: Elem::F32 };
    let near = c.un(U::Tf32, x);
    let near = c.with(B::Min, near, limit);
    let near = c.with(B::Max, near, -limit);
    let sign = c.with(B::Min, x, 1.0);
    let sign = c.with(B::Max, sign, -1.0);
    let infinite = c.un(U::IsInf, x);
    let large = c.b.select(infinite, sign, near);
    if part == Tf32::Large {
        return large;
    }
    let rest = c.bin(B::Sub, x, large);
    c.un(U::Tf32, rest)
}

/// The element type of a value, which must be a number: values of nodes are, and what is computed from them.
pub fn elem(b: &mut Builder, v: Value) -> Elem {
    match b.elem(v) {
        Some(elem) => elem,
        None => {
            b.broken("arithmetic on a value that is not a number");
            Elem::F32
        }
    }
}

/// Composite functions take the formula in their row of the op table, unless a line here has a special lowering.
pub fn unary(b: &mut Builder, op: UnaryOp, x: Value) -> Value {
    let elem = elem(b, x);
    let mut c = Chain { b, elem };
    match op {
        UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round | UnaryOp::Trunc if !elem.is_float() => x,
        UnaryOp::Abs if matches!(elem, Elem::U8 | Elem::Bool) => x,
        UnaryOp::IsNan | UnaryOp::IsInf if !elem.is_float() => {
            let no = c.b.constant(Type::scalar(Elem::Bool), Const::Bool(false));
            let shape = c.b.shape(x);
            c.b.broadcast_to(no, &shape)
        }
        UnaryOp::Neg => c.un(U::Neg, x),
        UnaryOp::Abs => c.un(U::Abs, x),
        UnaryOp::Exp => c.un(U::Exp, x),
        UnaryOp::Exp2 => c.un(U::Exp2, x),
        UnaryOp::Expm1 => c.un(U::Expm1, x),
        UnaryOp::Log => c.un(U::Log, x),
        UnaryOp::Log2 => c.un(U::Log2, x),
        UnaryOp::Log10 => c.un(U::Log10, x),
        UnaryOp::Log1p => c.un(U::Log1p, x),
        UnaryOp::Sqrt => c.un(U::Sqrt, x),
        UnaryOp::Rsqrt => c.un(U::Rsqrt, x),
        UnaryOp::Sin => c.un(U::Sin, x),
        UnaryOp::Cos => c.un(U::Cos, x),
        UnaryOp::Tan => c.un(U::Tan, x),
        UnaryOp::Asin => c.un(U::Asin, x),
        UnaryOp::Acos => c.un(U::Acos, x),
        UnaryOp::Atan => c.un(U::Atan, x),
        UnaryOp::Sinh => c.un(U::Sinh, x),
        UnaryOp::Cosh => c.un(U::Cosh, x),
        UnaryOp::Tanh => c.un(U::Tanh, x),
        UnaryOp::Erf => c.un(U::Erf, x),
        UnaryOp::Floor => c.un(U::Floor, x),
        UnaryOp::Ceil => c.un(U::Ceil, x),
        UnaryOp::Round => c.un(U::Round, x),
        UnaryOp::Trunc => c.un(U::Trunc, x),
        UnaryOp::Not => c.un(U::Not, x),
        UnaryOp::IsNan => c.un(U::IsNan, x),
        UnaryOp::IsInf => c.un(U::IsInf, x),
        UnaryOp::Sign => {
            let (zero, one) = (c.n(0.0), c.n(1.0));
            let up = c.b.cmp(CmpOp::Gt, x, zero);
            if elem == Elem::U8 {
                return c.b.select(up, one, zero);
            }
            let minus = c.n(-1.0);
            let down = c.b.cmp(CmpOp::Lt, x, zero);
            let low = c.b.select(down, minus, zero);
            c.b.select(up, one, low)
        }
        UnaryOp::Reciprocal => {
            let one = c.n(1.0);
            c.bin(B::Div, one, x)
        }
        // Special lowerings, measured to be faster than the formulas: one instruction that shares the polynomials of
        // erf and of exp, and 1 + tanh u = 2 / (1 + exp(-2u)), in which nothing cancels.
        UnaryOp::GeluErf if elem == Elem::F32 => c.un(U::Gelu, x),
        UnaryOp::GeluTanh => {
            let square = c.bin(B::Mul, x, x);
            let cube = c.bin(B::Mul, square, x);
            let t = c.with(B::Mul, cube, 0.044715);
            let t = c.bin(B::Add, x, t);
            let t = c.with(B::Mul, t, 2.0 * (2.0 / std::f64::consts::PI).sqrt());
            let neg = c.un(U::Neg, t);
            let e = c.un(U::Exp, neg);
            let d = c.with(B::Add, e, 1.0);
            c.bin(B::Div, x, d)
        }
        composite => formula(b, composite, x),
    }
}

/// A composite function, by the formula in its row of the op table.
fn formula(b: &mut Builder, op: UnaryOp, x: Value) -> Value {
    let elem = elem(b, x);
    let Some(dtype) = DType::ALL.into_iter().find(|d| stored(*d) == elem) else {
        return b.broken(format!("no dtype is stored as {elem}"));
    };
    let formula = match decompose_op(&Op::Unary(op), &[kiln_graph::Type::new(dtype, [])]) {
        Ok(Some(formula)) => formula,
        _ => return b.broken(format!("{} has no formula on {dtype}", op.name())),
    };
    let mut values: Vec<Value> = Vec::with_capacity(formula.len());
    for v in formula.values() {
        let arg = |i: usize| values[formula.args(v)[i].0 as usize];
        let value = match formula.op(v) {
            Op::Input(_) => x,
            Op::Const(s) => constant(b, formula.dtype(v), *s),
            Op::Unary(op) => unary(b, *op, arg(0)),
            Op::Binary(op) => binary(b, *op, arg(0), arg(1), None),
            Op::Compare(op) => compare(b, *op, arg(0), arg(1)),
            Op::Select => b.select(arg(0), arg(1), arg(2)),
            Op::Cast(d) => cast(b, arg(0), *d),
            other => return b.broken(format!("{} in the formula of {}", other.name(), op.name())),
        };
        values.push(value);
    }
    match formula.outputs.first() {
        Some(y) => values[y.0 as usize],
        None => b.broken(format!("the formula of {} has no output", op.name())),
    }
}

/// `power`: the exponent, where it is a constant.
pub fn binary(b: &mut Builder, op: BinaryOp, x: Value, y: Value, power: Option<f64>) -> Value {
    let elem = elem(b, x);
    let bool = elem == Elem::Bool;
    match op {
        BinaryOp::Add => b.binary(B::Add, x, y),
        BinaryOp::Sub => b.binary(B::Sub, x, y),
        BinaryOp::Mul => b.binary(B::Mul, x, y),
        BinaryOp::Div => b.binary(B::Div, x, y),
        BinaryOp::Fmod => b.binary(B::Rem, x, y),
        BinaryOp::Max => b.binary(if bool { B::Or } else { B::Max }, x, y),
        BinaryOp::Min => b.binary(if bool { B::And } else { B::Min }, x, y),
        BinaryOp::Atan2 => b.binary(B::Atan2, x, y),
        BinaryOp::And => b.binary(B::And, x, y),
        BinaryOp::Or => b.binary(B::Or, x, y),
        BinaryOp::Xor => b.binary(B::Xor, x, y),
        BinaryOp::Remainder => remainder(b, x, y).1,
        BinaryOp::FloorDiv => floor_div(b, elem, x, y),
        BinaryOp::Pow => power
            .and_then(|p| small_power(b, elem, x, p))
            .unwrap_or_else(|| if elem.is_float() { b.binary(B::Pow, x, y) } else { int_power(b, x, y) }),
    }
}

/// Whether a nonzero remainder's sign differs from the divisor's, and the remainder corrected for that.
fn remainder(b: &mut Builder, x: Value, y: Value) -> (Value, Value) {
    let elem = elem(b, x);
    let zero = float(b, elem, 0.0);
    let r = b.binary(B::Rem, x, y);
    let nonzero = b.cmp(CmpOp::Ne, r, zero);
    if elem == Elem::U8 {
        let no = b.cmp(CmpOp::Ne, r, r);
        return (no, r);
    }
    let (rn, yn) = (b.cmp(CmpOp::Lt, r, zero), b.cmp(CmpOp::Lt, y, zero));
    let differ = b.binary(B::Xor, rn, yn);
    let wrong = b.binary(B::And, nonzero, differ);
    let fixed = b.binary(B::Add, r, y);
    let out = b.select(wrong, fixed, r);
    (wrong, out)
}

/// As `torch.floor_divide`: exact for integers; for floats computed from the remainder, so that the two agree.
fn floor_div(b: &mut Builder, elem: Elem, x: Value, y: Value) -> Value {
    let (wrong, _) = remainder(b, x, y);
    let (zero, one) = (float(b, elem, 0.0), float(b, elem, 1.0));
    if !elem.is_float() {
        let q = b.binary(B::Div, x, y);
        let previous = b.binary(B::Sub, q, one);
        // Division by zero gives 0, also its remainder, so nothing is corrected.
        return b.select(wrong, previous, q);
    }
    let m = b.binary(B::Rem, x, y);
    let even = b.binary(B::Sub, x, m);
    let q = b.binary(B::Div, even, y);
    let previous = b.binary(B::Sub, q, one);
    let q = b.select(wrong, previous, q);
    let floor = b.unary(U::Floor, q);
    let rest = b.binary(B::Sub, q, floor);
    let half = float(b, elem, 0.5);
    let above = b.cmp(CmpOp::Gt, rest, half);
    let up = b.binary(B::Add, floor, one);
    let whole = b.select(above, up, floor);
    let plain = b.binary(B::Div, x, y);
    // A zero quotient takes the sign of the true one.
    let signed_zero = b.binary(B::Mul, plain, zero);
    let is_zero = b.cmp(CmpOp::Eq, q, zero);
    let whole = b.select(is_zero, signed_zero, whole);
    let by_zero = b.cmp(CmpOp::Eq, y, zero);
    b.select(by_zero, plain, whole)
}

fn small_power(b: &mut Builder, elem: Elem, x: Value, p: f64) -> Option<Value> {
    let square = |b: &mut Builder| b.binary(B::Mul, x, x);
    Some(match p {
        1.0 => x,
        2.0 => square(b),
        3.0 => {
            let s = square(b);
            b.binary(B::Mul, s, x)
        }
        4.0 if !elem.is_float() || elem == Elem::F32 || elem == Elem::F64 => {
            let s = square(b);
            b.binary(B::Mul, s, s)
        }
        0.5 if elem.is_float() => b.unary(U::Sqrt, x),
        -0.5 if elem.is_float() => b.unary(U::Rsqrt, x),
        -1.0 if elem.is_float() => {
            let one = float(b, elem, 1.0);
            b.binary(B::Div, one, x)
        }
        _ => return None,
    })
}

/// Exponentiation by squaring. Negative exponents give 0 except for bases 1 and -1, as in PyTorch.
fn int_power(b: &mut Builder, x: Value, y: Value) -> Value {
    let elem = elem(b, x);
    let (zero, one) = (float(b, elem, 0.0), float(b, elem, 1.0));
    let bits = if elem == Elem::U8 { 8 } else { elem.bytes() * 8 - 1 };
    // Higher bits matter for 0, 1 and -1 alone, whose powers repeat; 2^k for k past the width is 0 after `bits`
    // squarings.
    let (mut result, mut base) = (one, x);
    for i in 0..bits {
        let shift = float(b, elem, i as f64);
        let bit = b.binary(B::Shr, y, shift);
        let bit = b.binary(B::And, bit, one);
        let set = b.cmp(CmpOp::Ne, bit, zero);
        let next = b.binary(B::Mul, result, base);
        result = b.select(set, next, result);
        if i + 1 < bits {
            base = b.binary(B::Mul, base, base);
        }
    }
    if elem == Elem::U8 {
        return result;
    }
    let negative = b.cmp(CmpOp::Lt, y, zero);
    let minus = float(b, elem, -1.0);
    let odd = b.binary(B::And, y, one);
    let odd = b.cmp(CmpOp::Ne, odd, zero);
    let sign = b.select(odd, minus, one);
    let (is_one, is_minus) = (b.cmp(CmpOp::Eq, x, one), b.cmp(CmpOp::Eq, x, minus));
    let inverse = b.select(is_minus, sign, zero);
    let inverse = b.select(is_one, one, inverse);
    b.select(negative, inverse, result)
}

pub fn compare(b: &mut Builder, op: CompareOp, x: Value, y: Value) -> Value {
    let op = match op {
        CompareOp::Eq => CmpOp::Eq,
        CompareOp::Ne => CmpOp::Ne,
        CompareOp::Lt => CmpOp::Lt,
        CompareOp::Le => CmpOp::Le,
        CompareOp::Gt => CmpOp::Gt,
        CompareOp::Ge => CmpOp::Ge,
    };
    if b.elem(x) == Some(Elem::Bool) {
        let (x, y) = (b.cast(x, Elem::I32), b.cast(y, Elem::I32));
        return b.cmp(op, x, y);
    }
    b.cmp(op, x, y)
}

/// Converts to `d`, rounded to it, in its compute type. Floats out of the range of a narrow integer wrap as i32 does.
/// Half types are rounded from f32, as in PyTorch.
pub fn cast(b: &mut Builder, x: Value, d: DType) -> Value {
    let narrow = d.is_int() && d.bytes() < 4;
    let x = if narrow && b.elem(x).is_some_and(Elem::is_float) { b.cast(x, Elem::I32) } else { x };
    let wide = matches!(b.elem(x), Some(Elem::F64 | Elem::I64 | Elem::I32)) && matches!(d, DType::F16 | DType::Bf16);
    let x = if wide { b.cast(x, Elem::F32) } else { x };
    let rounded = b.cast(x, stored(d));
    b.cast(rounded, held(d))
}

/// The identity of a reduction, as a scalar of the element type.
pub fn identity(b: &mut Builder, op: ReduceOp, elem: Elem) -> Value {
    let lowest = matches!(op, ReduceOp::Max | ReduceOp::ArgMax);
    let extreme = matches!(op, ReduceOp::Min | ReduceOp::ArgMin) || lowest;
    let c = match elem {
        Elem::Bool => Const::Bool(matches!(op, ReduceOp::All | ReduceOp::Min)),
        _ if extreme && elem.is_float() => Const::Float(if lowest { f64::NEG_INFINITY } else { f64::INFINITY }),
        _ if extreme => match elem.int_range() {
            Some((min, max)) => Const::Int(if lowest { min } else { max }),
            None => return b.broken(format!("{elem:?} has no minimum and maximum")),
        },
        _ => {
            let one = matches!(op, ReduceOp::Prod | ReduceOp::All);
            if elem.is_float() { Const::Float(f64::from(u8::from(one))) } else { Const::Int(i64::from(one)) }
        }
    };
    b.constant(Type::scalar(elem), c)
}

/// The block op of a reduction, by element (maximum of bool is `or`).
pub fn reduce_op(op: ReduceOp, elem: Elem) -> kiln_block::ReduceOp {
    use kiln_block::ReduceOp as R;
    match op {
        ReduceOp::Sum | ReduceOp::Mean => R::Sum,
        ReduceOp::Prod => R::Prod,
        ReduceOp::Max if elem == Elem::Bool => R::Or,
        ReduceOp::Min if elem == Elem::Bool => R::And,
        ReduceOp::Max => R::Max,
        ReduceOp::Min => R::Min,
        ReduceOp::Any => R::Or,
        ReduceOp::All => R::And,
        ReduceOp::ArgMax => R::ArgMax,
        ReduceOp::ArgMin => R::ArgMin,
    }
}

/// Combines two partial results.
pub fn combine(b: &mut Builder, op: ReduceOp, x: Value, y: Value) -> Value {
    let bool = b.elem(x) == Some(Elem::Bool);
    let op = match op {
        ReduceOp::Sum | ReduceOp::Mean => B::Add,
        ReduceOp::Prod => B::Mul,
        ReduceOp::Max | ReduceOp::ArgMax => {
            if bool {
                B::Or
            } else {
                B::Max
            }
        }
        ReduceOp::Min | ReduceOp::ArgMin => {
            if bool {
                B::And
            } else {
                B::Min
            }
        }
        ReduceOp::Any => B::Or,
        ReduceOp::All => B::And,
    };
    b.binary(op, x, y)
}
