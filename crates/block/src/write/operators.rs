//! Operators, comparisons, choices, casts and elementary functions.
use super::handle::Operand;
use super::promote::Promotion;
use super::{Block, Built, Writer, wrong};
use crate::{BinaryOp, CmpOp, Elem, Type, UnaryOp, Value};
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Shl, Shr, Sub};

impl Writer {
    fn binary(&self, op: BinaryOp, a: &Operand, b: &Operand) -> Built<Value> {
        let promotion =
            if matches!(op, BinaryOp::Div | BinaryOp::Rem) { Promotion::Division } else { Promotion::Plain };
        let elem = self.common(a, b, promotion)?;
        let of_bits = matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr);
        if of_bits && elem.is_float() {
            return wrong(format!("bits of {elem} are not combined; compare to get a bool, or cast to an integer"));
        }
        if elem == Elem::Bool && !matches!(op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor) {
            return wrong("there is no arithmetic on bools; cast one with `.to(Elem::I32)`");
        }
        let [a, b] = self.together(self.typed_value(a, elem)?, self.typed_value(b, elem)?)?;
        Ok(self.with(|builder| builder.binary(op, a, b)))
    }
    /// `pointer + offset`, or with the offset's sign turned.
    fn moved(&self, pointer: Value, op: BinaryOp, offset: &Operand) -> Built<Value> {
        let mut offset = self.offset(offset)?;
        match op {
            BinaryOp::Add => {}
            BinaryOp::Sub => offset = self.with(|b| b.unary(UnaryOp::Neg, offset)),
            _ => return wrong("pointers take `+` and `-` with integers alone; load what it points to"),
        }
        let [pointer, offset] = self.together(pointer, offset)?;
        Ok(self.with(|b| b.ptr_add(pointer, offset)))
    }
    fn operated(&self, op: BinaryOp, a: &Operand, b: &Operand) -> Built<Value> {
        let pointer = |operand: &Operand| match operand {
            Operand::Block(block) => Ok(Some(block.get()?).filter(|v| matches!(self.ty(*v), Type::Ptr { .. }))),
            _ => Ok(None),
        };
        match (pointer(a)?, pointer(b)?) {
            (None, None) => self.binary(op, a, b),
            (Some(p), None) => self.moved(p, op, b),
            (None, Some(p)) if op == BinaryOp::Add => self.moved(p, op, a),
            _ => wrong("pointers are not combined with each other; add an integer to one"),
        }
    }
    fn compared(&self, op: CmpOp, a: &Operand, b: &Operand) -> Built<Value> {
        let elem = self.common(a, b, Promotion::Plain)?;
        let [a, b] = self.together(self.typed_value(a, elem)?, self.typed_value(b, elem)?)?;
        Ok(self.with(|builder| builder.cmp(op, a, b)))
    }
    /// A bool.
    pub(super) fn condition(&self, operand: &Block) -> Built<Value> {
        match self.number(operand)? {
            Elem::Bool => operand.get(),
            elem => wrong(format!("a condition is a bool, not {elem}; compare it, as in `x.ne(0)`")),
        }
    }
    fn chosen(&self, condition: &Block, a: &Operand, b: &Operand) -> Built<Value> {
        let condition = self.condition(condition)?;
        let elem = self.common(a, b, Promotion::Plain)?;
        let [a, b] = self.together(self.typed_value(a, elem)?, self.typed_value(b, elem)?)?;
        let [condition, a] = self.together(condition, a)?;
        let [a, b] = self.together(a, b)?;
        Ok(self.with(|builder| builder.select(condition, a, b)))
    }
    fn function(&self, op: UnaryOp, x: &Block) -> Built<Value> {
        let (elem, value) = (self.number(x)?, x.get()?);
        let takes_integers = matches!(op, UnaryOp::Neg | UnaryOp::Abs);
        if !(elem.is_float() || takes_integers && elem.is_int()) || elem.is_f8() {
            return wrong(format!("this function is not defined on {elem}; cast with `.to(Elem::F32)`"));
        }
        Ok(self.with(|b| b.unary(op, value)))
    }
    fn cast(&self, x: &Block, elem: Elem) -> Built<Value> {
        self.typed_value(&Operand::Block(*x), elem)
    }
    fn inverted(&self, x: &Block) -> Built<Value> {
        match self.number(x)? {
            elem if elem.is_float() => wrong(format!("bits of {elem} are not turned; cast to an integer")),
            _ => {
                let value = x.get()?;
                Ok(self.with(|b| b.unary(UnaryOp::Not, value)))
            }
        }
    }
}

macro_rules! operators {
    ($($operator:ident $method:ident;)*) => {$(
        impl<'k, T: Into<Operand<'k>>> $operator<T> for Block<'k> {
            type Output = Block<'k>;
            #[track_caller]
            fn $method(self, other: T) -> Block<'k> {
                self.writer.told(self.writer.operated(BinaryOp::$operator, &self.into(), &other.into()))
            }
        }
        operators!(literals $operator $method i32 i64 f32 f64);
    )*};
    (literals $operator:ident $method:ident $($number:ty)*) => {$(
        impl<'k> $operator<Block<'k>> for $number {
            type Output = Block<'k>;
            #[track_caller]
            fn $method(self, other: Block<'k>) -> Block<'k> {
                other.writer.told(other.writer.operated(BinaryOp::$operator, &self.into(), &other.into()))
            }
        }
    )*};
}
operators! { Add add; Sub sub; Mul mul; Div div; Rem rem; Shl shl; Shr shr; }

macro_rules! bits {
    ($($operator:ident $method:ident $op:ident;)*) => {$(
        impl<'k, T: Into<Operand<'k>>> $operator<T> for Block<'k> {
            type Output = Block<'k>;
            #[track_caller]
            fn $method(self, other: T) -> Block<'k> {
                self.writer.told(self.writer.binary(BinaryOp::$op, &self.into(), &other.into()))
            }
        }
    )*};
}
bits! { BitAnd bitand And; BitOr bitor Or; BitXor bitxor Xor; }

impl<'k> Neg for Block<'k> {
    type Output = Block<'k>;
    #[track_caller]
    fn neg(self) -> Block<'k> {
        self.writer.told(self.writer.function(UnaryOp::Neg, &self))
    }
}
impl<'k> Not for Block<'k> {
    type Output = Block<'k>;
    #[track_caller]
    fn not(self) -> Block<'k> {
        self.writer.told(self.writer.inverted(&self))
    }
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $method:ident $op:ident;)*) => {
        impl<'k> Block<'k> {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(self, other: impl Into<Operand<'k>>) -> Block<'k> {
                self.writer.told(self.writer.compared(CmpOp::$op, &self.into(), &other.into()))
            }
        )*}
    };
}
comparisons! {
    /// Whether elements are below the others.
    lt Lt;
    /// Whether elements are at most the others.
    le Le;
    /// Whether elements are above the others.
    gt Gt;
    /// Whether elements are at least the others.
    ge Ge;
    /// Whether elements are equal; NaN is not.
    eq Eq;
    /// Whether elements differ; NaN does.
    ne Ne;
}

macro_rules! functions {
    ($($method:ident $op:ident;)*) => {
        /// Elementary functions, element by element.
        impl<'k> Block<'k> {$(
            #[track_caller]
            pub fn $method(self) -> Block<'k> {
                self.writer.told(self.writer.function(UnaryOp::$op, &self))
            }
        )*}
    };
}
functions! {
    abs Abs; exp Exp; exp2 Exp2; log Log; log2 Log2; sqrt Sqrt; rsqrt Rsqrt; sin Sin; cos Cos; tanh Tanh; erf Erf;
    floor Floor; ceil Ceil;
}

impl<'k> Block<'k> {
    /// Elements in another type: rounded to nearest, to integers truncated.
    #[track_caller]
    pub fn to(self, elem: Elem) -> Block<'k> {
        self.writer.told(self.writer.cast(&self, elem))
    }
    /// The larger of two; of a number and NaN the number.
    #[track_caller]
    pub fn maximum(self, other: impl Into<Operand<'k>>) -> Block<'k> {
        self.extreme([BinaryOp::MaxNum, BinaryOp::Max], other.into())
    }
    /// The smaller of two; of a number and NaN the number.
    #[track_caller]
    pub fn minimum(self, other: impl Into<Operand<'k>>) -> Block<'k> {
        self.extreme([BinaryOp::MinNum, BinaryOp::Min], other.into())
    }
    /// By the first op of floats, by the second of integers.
    #[track_caller]
    fn extreme(self, [of_floats, of_integers]: [BinaryOp; 2], other: Operand<'k>) -> Block<'k> {
        let (writer, this) = (self.writer, self.into());
        let built = match writer.common(&this, &other, Promotion::Plain) {
            Ok(elem) if elem.is_float() => writer.binary(of_floats, &this, &other),
            Ok(_) => writer.binary(of_integers, &this, &other),
            Err(trouble) => Err(trouble),
        };
        writer.told(built)
    }
    /// Of two the first where this condition holds, else the second.
    #[track_caller]
    pub fn select(self, yes: impl Into<Operand<'k>>, no: impl Into<Operand<'k>>) -> Block<'k> {
        self.writer.told(self.writer.chosen(&self, &yes.into(), &no.into()))
    }
}
