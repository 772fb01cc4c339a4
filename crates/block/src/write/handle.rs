//! Values of a program that is being written, and what meets them in an operation.
use super::{Built, Trouble, Writer};
use crate::{Elem, Type, Value};

/// A block of numbers or pointers, or a single one. It may be copied freely: it names a value.
#[derive(Clone, Copy)]
pub struct Block<'k> {
    pub(super) writer: &'k Writer,
    /// None where the operation that it comes from is wrong.
    pub(super) value: Option<Value>,
}

impl Block<'_> {
    pub(super) fn get(&self) -> Built<Value> {
        self.value.ok_or(Trouble::Operand)
    }
    pub(super) fn ty(&self) -> Built<Type> {
        self.get().map(|value| self.writer.ty(value))
    }
    /// What it is of, or points to; none after a mistake.
    pub fn elem(&self) -> Option<Elem> {
        self.ty().ok().and_then(|ty| ty.elem())
    }
    /// Sizes of its axes; none for a single number.
    pub fn shape(&self) -> Vec<usize> {
        self.ty().map(|ty| ty.shape().to_vec()).unwrap_or_default()
    }
}

/// An operand: a block, or a literal, which takes the type of what it meets.
#[derive(Clone, Copy)]
pub enum Operand<'k> {
    Block(Block<'k>),
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl<'k> From<Block<'k>> for Operand<'k> {
    fn from(block: Block<'k>) -> Operand<'k> {
        Operand::Block(block)
    }
}
macro_rules! literals {
    ($($number:ty => $variant:ident),*) => {
        $(impl From<$number> for Operand<'_> {
            fn from(n: $number) -> Self {
                Operand::$variant(n.into())
            }
        })*
    };
}
literals!(i32 => Int, i64 => Int, u32 => Int, f32 => Float, f64 => Float, bool => Bool);

impl From<usize> for Operand<'_> {
    /// Sizes beyond those of an i64 become its largest number, which no program has room for.
    fn from(n: usize) -> Self {
        Operand::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}
