//! Accesses of memory: loads, stores and atomic updates through pointers, with a mask or without.
use super::handle::Operand;
use super::{Block, Built, wrong};
use crate::{AtomicOp, Atomicity, Elem, Type, Value};

/// Pointers whose elements are accessed where a mask holds.
#[derive(Clone, Copy)]
pub struct Access<'k> {
    pointer: Block<'k>,
    mask: Option<Block<'k>>,
}

impl<'k> Block<'k> {
    /// These pointers, accessed only where a condition holds.
    pub fn masked(self, mask: Block<'k>) -> Access<'k> {
        Access { pointer: self, mask: Some(mask) }
    }
    /// What these pointers point to.
    #[track_caller]
    pub fn load(self) -> Block<'k> {
        Access { pointer: self, mask: None }.load()
    }
    /// Writes to what these pointers point to.
    #[track_caller]
    pub fn store(self, value: impl Into<Operand<'k>>) {
        Access { pointer: self, mask: None }.store(value);
    }
    /// Combines values with what these pointers point to, as one access each.
    #[track_caller]
    pub fn atomic(self, op: AtomicOp, value: impl Into<Operand<'k>>) {
        Access { pointer: self, mask: None }.atomic(op, value);
    }
}

/// Pointers with what they point to, and the mask in their shape.
struct Places {
    pointer: Value,
    elem: Elem,
    shape: Vec<usize>,
    mask: Option<Value>,
}

impl<'k> Access<'k> {
    /// The elements; 0 where the mask does not hold.
    #[track_caller]
    pub fn load(self) -> Block<'k> {
        self.pointer.writer.told(self.loaded(None))
    }
    /// The elements; another value where the mask does not hold.
    #[track_caller]
    pub fn load_or(self, other: impl Into<Operand<'k>>) -> Block<'k> {
        self.pointer.writer.told(self.loaded(Some(other.into())))
    }
    /// Writes a value, which takes the type of the elements.
    #[track_caller]
    pub fn store(self, value: impl Into<Operand<'k>>) {
        let stored = self.stored(&value.into());
        self.pointer.writer.noted(stored);
    }
    /// Combines a value with each element, as one access.
    #[track_caller]
    pub fn atomic(self, op: AtomicOp, value: impl Into<Operand<'k>>) {
        let updated = self.updated(op, &value.into());
        self.pointer.writer.noted(updated);
    }
    /// [`Access::atomic`], and the elements as they were.
    #[track_caller]
    pub fn atomic_old(self, op: AtomicOp, value: impl Into<Operand<'k>>) -> Block<'k> {
        let updated = self.updated_old(op, &value.into());
        self.pointer.writer.told(updated)
    }

    fn places(&self) -> Built<Places> {
        let pointer = self.pointer.get()?;
        let Type::Ptr { elem, shape } = self.pointer.ty()? else {
            return wrong("only pointers lead to memory; add this to a pointer of the kernel");
        };
        let writer = self.pointer.writer;
        let mask = match &self.mask {
            Some(mask) => Some(writer.shaped(writer.condition(mask)?, &shape)?),
            None => None,
        };
        Ok(Places { pointer, elem, shape, mask })
    }
    fn value(&self, places: &Places, value: &Operand) -> Built<Value> {
        let writer = self.pointer.writer;
        writer.shaped(writer.typed_value(value, places.elem)?, &places.shape)
    }
    fn loaded(&self, other: Option<Operand>) -> Built<Value> {
        let places = self.places()?;
        let other = match &other {
            Some(other) => Some(self.value(&places, other)?),
            None => None,
        };
        Ok(self.pointer.writer.with(|b| b.load(places.pointer, places.mask, other)))
    }
    fn stored(&self, value: &Operand) -> Built<()> {
        let places = self.places()?;
        let value = self.value(&places, value)?;
        self.pointer.writer.with(|b| b.store(places.pointer, value, places.mask));
        Ok(())
    }
    fn updated(&self, op: AtomicOp, value: &Operand) -> Built<()> {
        let (places, value) = self.update(op, value)?;
        self.pointer.writer.with(|b| b.atomic(op, places.pointer, value, places.mask));
        Ok(())
    }
    fn updated_old(&self, op: AtomicOp, value: &Operand) -> Built<Value> {
        let (places, value) = self.update(op, value)?;
        let how = (op, Atomicity::default());
        Ok(self.pointer.writer.with(|b| b.atomic_old(how, places.pointer, value, places.mask)))
    }
    fn update(&self, op: AtomicOp, value: &Operand) -> Built<(Places, Value)> {
        let places = self.places()?;
        if !op.takes(places.elem) {
            return wrong(format!("{} is not updated so; point to i32, or for sums to f32", places.elem));
        }
        let value = self.value(&places, value)?;
        Ok((places, value))
    }
}
