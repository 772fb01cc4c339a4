//! Types of operations: the language's rules of promotion, and how operands become values of a type.
use super::handle::Operand;
use super::{Block, Built, Writer, wrong};
use crate::{Const, Elem, Type, Value};

/// What an operation asks of types beyond the rules for sums.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Promotion {
    Plain,
    /// Halves are divided as f32, and integers of different signs are not.
    Division,
}

/// bool, integer or float.
fn rank(elem: Elem) -> u8 {
    match elem {
        Elem::Bool => 0,
        elem if elem.is_int() => 1,
        _ => 2,
    }
}

/// The type that a literal has by itself.
fn literal(operand: &Operand) -> Elem {
    match operand {
        Operand::Int(n) if i32::try_from(*n).is_err() => Elem::I64,
        Operand::Int(_) | Operand::Block(_) => Elem::I32,
        Operand::Float(_) => Elem::F32,
        Operand::Bool(_) => Elem::Bool,
    }
}

fn promoted(a: Elem, b: Elem, promotion: Promotion) -> Built<Elem> {
    let divides = promotion == Promotion::Division;
    let half = |elem: Elem| if divides { Elem::F32 } else { elem };
    if let Some(wide) = [Elem::F64, Elem::F32].into_iter().find(|wide| [a, b].contains(wide)) {
        return Ok(wide);
    }
    match [a, b] {
        [Elem::F16, _] | [_, Elem::F16] => return Ok(half(Elem::F16)),
        [Elem::Bf16, Elem::Bf16] => return Ok(half(Elem::Bf16)),
        [Elem::Bf16, _] | [_, Elem::Bf16] => return Ok(Elem::F32),
        _ if a.is_f8() || b.is_f8() => {
            return wrong("there is no arithmetic on 8-bit floats; cast with `.to(Elem::F32)`");
        }
        _ => {}
    }
    if divides && a.is_signed() != b.is_signed() {
        return wrong(format!("{a} and {b} differ in sign, and are not divided by each other; cast one with `.to(…)`"));
    }
    // C's rules: the wider one, of equal widths the one without a sign.
    let [wide, other] = if rank(a) < rank(b) || rank(a) == rank(b) && a.bytes() < b.bytes() { [b, a] } else { [a, b] };
    let unsigned = wide.bytes() == other.bytes() && rank(other) == rank(wide) && !other.is_signed();
    Ok(if unsigned { other } else { wide })
}

impl Writer {
    /// The common type of two operands.
    pub(super) fn common(&self, a: &Operand, b: &Operand, promotion: Promotion) -> Built<Elem> {
        let half = |elem: Elem| if promotion == Promotion::Division && elem.is_half() { Elem::F32 } else { elem };
        match (a, b) {
            (Operand::Block(a), Operand::Block(b)) => promoted(self.number(a)?, self.number(b)?, promotion),
            (Operand::Block(block), other) | (other, Operand::Block(block)) => {
                let (elem, literal) = (self.number(block)?, literal(other));
                if rank(literal) <= rank(elem) { Ok(half(elem)) } else { promoted(elem, literal, promotion) }
            }
            (a, b) => promoted(literal(a), literal(b), promotion),
        }
    }
    /// The element of a block of numbers.
    pub(super) fn number(&self, block: &Block) -> Built<Elem> {
        match block.ty()? {
            Type::Block { elem, .. } => Ok(elem),
            _ => wrong("a pointer is no number; load what it points to, or add an integer to it"),
        }
    }
    /// An operand as a value of this element type.
    pub(super) fn typed_value(&self, operand: &Operand, elem: Elem) -> Built<Value> {
        let constant = |number| Ok(self.with(|b| b.constant(Type::scalar(elem), number)));
        match (*operand, elem) {
            (Operand::Block(block), elem) => {
                self.number(&block)?;
                let value = block.get()?;
                Ok(self.with(|b| b.cast(value, elem)))
            }
            (Operand::Int(n), elem) if elem.is_float() => constant(Const::Float(n as f64)),
            (Operand::Float(x), elem) if elem.is_float() => constant(Const::Float(x)),
            (Operand::Bool(on), Elem::Bool) => constant(Const::Bool(on)),
            (Operand::Int(n @ (0 | 1)), Elem::Bool) => constant(Const::Bool(n == 1)),
            (Operand::Bool(on), elem) if elem.is_float() => constant(Const::Float(f64::from(u8::from(on)))),
            (Operand::Bool(on), elem) if elem.is_int() => constant(Const::Int(i64::from(on))),
            (Operand::Int(n), elem) if elem.is_int() => {
                if elem.wrapped(n) != n || !elem.is_signed() && n < 0 {
                    return wrong(format!("{n} is no {elem}; cast the other operand to a type that holds it"));
                }
                constant(Const::Int(n))
            }
            (Operand::Int(n), elem) => wrong(format!("{n} is no {elem}; give true or false")),
            (Operand::Float(x), elem) => {
                wrong(format!("{x:?} is no {elem}; give an integer, or cast the other operand"))
            }
            (Operand::Bool(on), elem) => wrong(format!("{on} is no {elem}; give a number")),
        }
    }
    /// An operand as an integer of 32 or 64 bits, as offsets and bounds are.
    pub(super) fn offset(&self, operand: &Operand) -> Built<Value> {
        let elem = match operand {
            Operand::Block(block) => self.number(block)?,
            other => literal(other),
        };
        match elem {
            Elem::Bool => wrong("an offset is an integer; cast the bool with `.to(Elem::I32)`"),
            elem if elem.is_float() => {
                wrong(format!("an offset is an integer, not {elem}; cast it with `.to(Elem::I32)`"))
            }
            Elem::I64 | Elem::U64 | Elem::U32 => self.typed_value(operand, Elem::I64),
            _ => self.typed_value(operand, Elem::I32),
        }
    }
    /// The shape that two values broadcast to.
    pub(super) fn broadcast_shape(&self, a: &[usize], b: &[usize]) -> Built<Vec<usize>> {
        let rank = a.len().max(b.len());
        let size = |shape: &[usize], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        (0..rank)
            .map(|axis| match (size(a, axis), size(b, axis)) {
                (1, n) | (n, 1) => Ok(n),
                (n, m) if n == m => Ok(n),
                _ => wrong(format!("shapes {a:?} and {b:?} do not broadcast; `expand(axis)` adds an axis of size 1")),
            })
            .collect()
    }
    /// A value in another shape that it broadcasts to.
    pub(super) fn shaped(&self, value: Value, shape: &[usize]) -> Built<Value> {
        let given = self.ty(value).shape().to_vec();
        if self.broadcast_shape(&given, shape)? != shape {
            return wrong(format!("a block of shape {given:?} does not broadcast to {shape:?}; give one that does"));
        }
        Ok(self.with(|b| b.broadcast_to(value, shape)))
    }
    /// Two values in their common shape.
    pub(super) fn together(&self, a: Value, b: Value) -> Built<[Value; 2]> {
        let shape = self.broadcast_shape(self.ty(a).shape(), self.ty(b).shape())?;
        Ok([self.shaped(a, &shape)?, self.shaped(b, &shape)?])
    }
}
