//! Runtime values of the interpreter, and rounding to element types.
use kiln_block::{Elem, Type};
use std::rc::Rc;

/// An instance's position in the grid.
#[derive(Clone, Copy)]
pub struct Position {
    pub grid: [usize; 3],
    pub at: [usize; 3],
}

/// A pointer: byte `at` of the buffer of parameter `param`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    pub param: usize,
    pub at: i64,
}

impl Address {
    /// log2 of the bytes from the address of one buffer to that of the next, as integers; none is at 0.
    const APART: u32 = 40;

    pub fn plus(self, bytes: i64) -> Address {
        Address { at: self.at.wrapping_add(bytes), ..self }
    }
    /// The address as an integer.
    pub fn number(self) -> i64 {
        ((self.param as i64 + 1) << Address::APART).wrapping_add(self.at)
    }
    /// The address of an integer, which may be in no buffer.
    pub fn of(number: i64) -> Address {
        let nearest = number.wrapping_add(1 << (Address::APART - 1)) >> Address::APART;
        Address { param: (nearest - 1) as usize, at: number.wrapping_sub(nearest << Address::APART) }
    }
}

/// Elements in row-major order. Floats of any type as f64, integers and bool as i64.
#[derive(Clone, PartialEq, Debug)]
pub enum Data {
    Float(Vec<f64>),
    Int(Vec<i64>),
    Ptr(Vec<Address>),
}

/// A scalar (empty shape), a block, or a block of pointers, whose `elem` is the pointee.
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    pub elem: Elem,
    pub shape: Vec<usize>,
    pub data: Data,
}

#[derive(Clone, Debug)]
pub enum Val {
    Block(Rc<Block>),
    /// Index of a shared tile.
    Shared(usize),
    /// Index of a group of barriers.
    Barrier(usize),
    /// Index of the descriptor's parameter.
    Desc(usize),
}

impl Block {
    pub fn int(elem: Elem, v: i64) -> Block {
        Block { elem, shape: vec![], data: Data::Int(vec![v]) }
    }
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
    /// Uninitialised memory: NaN for floats, all bits set for integers, true for bool.
    pub fn unwritten(elem: Elem, shape: &[usize]) -> Block {
        let n = shape.iter().product();
        let data = match elem {
            e if e.is_float() => Data::Float(vec![f64::NAN; n]),
            _ => Data::Int(vec![elem.wrapped(-1); n]),
        };
        Block { elem, shape: shape.to_vec(), data }
    }
    pub fn floats(&self) -> &[f64] {
        match &self.data {
            Data::Float(v) => v,
            _ => &[],
        }
    }
    pub fn ints(&self) -> &[i64] {
        match &self.data {
            Data::Int(v) => v,
            _ => &[],
        }
    }
    pub fn pointers(&self) -> &[Address] {
        match &self.data {
            Data::Ptr(v) => v,
            _ => &[],
        }
    }
    /// A block whose element i is element `of[i]` of this one.
    pub fn gathered(&self, shape: &[usize], of: impl Iterator<Item = usize>) -> Block {
        let data = match &self.data {
            Data::Float(v) => Data::Float(of.map(|i| v[i]).collect()),
            Data::Int(v) => Data::Int(of.map(|i| v[i]).collect()),
            Data::Ptr(v) => Data::Ptr(of.map(|i| v[i]).collect()),
        };
        Block { elem: self.elem, shape: shape.to_vec(), data }
    }
}

/// Element and shape of a type; i32 and an empty shape for types without them.
pub fn block_type(ty: &Type) -> (Elem, Vec<usize>) {
    (ty.elem().unwrap_or(Elem::I32), ty.shape().to_vec())
}

/// Nearest value of a float type, ties to even, rounded directly from f64 (8-bit floats through f32). Other types: `x`
/// unchanged.
pub fn nearest(elem: Elem, x: f64) -> f64 {
    elem.format().map_or(x, |f| f.round(x))
}
/// Rounds an op's exact result to `elem`: through f32, unless it is f64.
pub fn rounded(elem: Elem, x: f64) -> f64 {
    if elem == Elem::F64 { x } else { nearest(elem, f64::from(x as f32)) }
}
