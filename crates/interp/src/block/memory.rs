//! Buffers behind the parameters; shared tiles and barriers of an instance.
use super::value::*;
use kiln_block::{Array, Elem, Kernel, Kind, Type};
use std::rc::Rc;

/// Memory of a parameter: an array behind a pointer, the array of a descriptor, or one scalar.
#[derive(Clone, PartialEq, Debug)]
pub struct Buffer {
    pub elem: Elem,
    /// Row-major; descriptors need the sizes, for pointers they mean nothing.
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Buffer {
    pub fn new(elem: Elem, shape: &[usize], bytes: Vec<u8>) -> Buffer {
        Buffer { elem, shape: shape.to_vec(), bytes }
    }
    /// Zeros.
    pub fn zeros(elem: Elem, shape: &[usize]) -> Buffer {
        Buffer::new(elem, shape, vec![0; shape.iter().product::<usize>() * elem.bytes()])
    }
    /// Numbers, rounded to the type.
    pub fn from_f64(elem: Elem, shape: &[usize], values: impl IntoIterator<Item = f64>) -> Buffer {
        let mut b = Buffer::zeros(elem, shape);
        for (i, x) in values.into_iter().enumerate().take(b.count()) {
            let v = if elem.is_float() { Scalar::Float(nearest(elem, x)) } else { Scalar::Int(elem.wrapped(x as i64)) };
            b.write(i, v);
        }
        b
    }
    pub fn to_f64(&self) -> Vec<f64> {
        let number = |i| match self.read(i) {
            Scalar::Float(x) => x,
            Scalar::Int(x) => x as f64,
        };
        (0..self.count()).map(number).collect()
    }
    /// Elements.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.elem.bytes()
    }
    /// What a descriptor of this buffer is of: the parameter's array, else the whole buffer.
    pub(super) fn array(&self, p: &kiln_block::Param) -> Array {
        p.array.clone().unwrap_or_else(|| {
            let mut strides = vec![1; self.shape.len()];
            for i in (1..strides.len()).rev() {
                strides[i - 1] = strides[i] * self.shape[i];
            }
            Array { offset: 0, sizes: self.shape.clone(), strides }
        })
    }
    /// Element `i`, which exists.
    pub(super) fn read(&self, i: usize) -> Scalar {
        let n = self.elem.bytes();
        let mut b = [0; 8];
        b[..n].copy_from_slice(&self.bytes[i * n..][..n]);
        let low = u64::from_le_bytes(b);
        match self.elem.kind() {
            Kind::Float(format) => Scalar::Float(format.from_bits(low)),
            kind => Scalar::Int(kind.wrapped(low as i64)),
        }
    }
    pub(super) fn write(&mut self, i: usize, v: Scalar) {
        let low = match (self.elem.kind(), v) {
            (Kind::Float(format), Scalar::Float(x)) => format.to_bits(x),
            (_, Scalar::Float(x)) => x as i64 as u64,
            (_, Scalar::Int(x)) => x as u64,
        };
        let n = self.elem.bytes();
        self.bytes[i * n..][..n].copy_from_slice(&low.to_le_bytes()[..n]);
    }
}

/// An element on its way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    Float(f64),
    Int(i64),
}
pub fn element(b: &Block, i: usize) -> Scalar {
    match &b.data {
        Data::Float(v) => Scalar::Float(v[i]),
        Data::Int(v) => Scalar::Int(v[i]),
        Data::Ptr(v) => Scalar::Int(v[i].at),
    }
}
/// Elements as a block of this type.
pub fn collected(elem: Elem, shape: &[usize], all: impl Iterator<Item = Scalar>) -> Block {
    let data = if elem.is_float() {
        Data::Float(all.map(|s| if let Scalar::Float(x) = s { x } else { 0.0 }).collect())
    } else {
        Data::Int(all.map(|s| if let Scalar::Int(x) = s { x } else { 0 }).collect())
    };
    Block { elem, shape: shape.to_vec(), data }
}

/// One buffer a parameter, of its element type; arrays of descriptors have their sizes.
pub fn check(k: &Kernel, buffers: &[Buffer]) -> Result<(), String> {
    if buffers.len() != k.params.len() {
        return Err(format!("{} buffers for {} parameters", buffers.len(), k.params.len()));
    }
    for (p, b) in k.params.iter().zip(buffers) {
        let ty = k.ty(p.value);
        if ty.elem() != Some(b.elem) {
            return Err(format!("the buffer of {} holds {}; {ty} is needed", p.name, b.elem));
        }
        let count = b.shape.iter().try_fold(1usize, |a, n| a.checked_mul(*n));
        match (ty, &p.array) {
            (Type::Desc { .. }, Some(array)) => {
                let last = array.sizes.iter().zip(&array.strides).map(|(n, s)| n.saturating_sub(1).saturating_mul(*s));
                let last = last.fold(array.offset, usize::saturating_add);
                if last >= b.count() {
                    return Err(format!("the array of {} reaches element {last} of {}", p.name, b.count()));
                }
            }
            (Type::Desc { shape, .. }, None) if b.shape.len() != shape.len() || count != Some(b.count()) => {
                return Err(format!(
                    "the array of {} has shape {:?} and {} elements; {ty}",
                    p.name,
                    b.shape,
                    b.count()
                ));
            }
            (Type::Block { .. }, _) if b.count() < 1 => return Err(format!("the scalar {} has no value", p.name)),
            _ => {}
        }
    }
    Ok(())
}

/// A ring of shared tiles.
pub struct Tile {
    pub stages: Vec<Rc<Block>>,
}

/// One barrier: completes a phase when all arrivals and all expected bytes have come.
#[derive(Clone)]
pub struct Barrier {
    pub arrivals: usize,
    pub arrived: usize,
    pub bytes: i64,
    /// Completed phases.
    pub phase: u64,
}
impl Barrier {
    pub fn new(arrivals: usize) -> Barrier {
        Barrier { arrivals, arrived: 0, bytes: 0, phase: 0 }
    }
    /// After a change: on to the next phase if this one is complete.
    pub fn settle(&mut self) {
        if self.arrived >= self.arrivals && self.bytes == 0 {
            self.arrived -= self.arrivals;
            self.phase += 1;
        }
    }
    /// True once the phase of this parity is complete; before the first, the odd one counts as complete.
    pub fn passed(&self, parity: i64) -> bool {
        (self.phase & 1) as i64 != parity & 1
    }
}
