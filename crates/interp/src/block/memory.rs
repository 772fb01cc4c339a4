//! Memory of a run: buffers behind the parameters, and an instance's shared tiles and barriers.
use super::value::*;
use kiln_block::{Array, BlockProgram, Elem, Kind, Type};
use std::rc::Rc;

/// Memory of one parameter: the array behind a pointer, the array of a descriptor, or one scalar.
#[derive(Clone, PartialEq, Debug)]
pub struct Buffer {
    pub elem: Elem,
    /// Row-major sizes. Descriptors use them; for pointers only the number of bytes matters.
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Buffer {
    pub fn new(elem: Elem, shape: &[usize], bytes: Vec<u8>) -> Buffer {
        Buffer { elem, shape: shape.to_vec(), bytes }
    }
    /// The value of a scalar parameter, rounded (or wrapped) to `elem`.
    pub fn scalar(elem: Elem, value: f64) -> Buffer {
        Buffer::from_f64(elem, &[], [value])
    }
    /// A buffer of zeros.
    pub fn zeros(elem: Elem, shape: &[usize]) -> Buffer {
        Buffer::new(elem, shape, vec![0; shape.iter().product::<usize>() * elem.bytes()])
    }
    /// A buffer of the given numbers, rounded (or wrapped) to `elem`; missing ones are zero.
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
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.bytes.len() / self.elem.bytes()
    }
    /// The array that a descriptor of this buffer describes: the parameter's own, else the whole buffer.
    pub(super) fn array(&self, p: &kiln_block::Param) -> Array {
        p.array.clone().unwrap_or_else(|| {
            let mut strides = vec![1; self.shape.len()];
            for i in (1..strides.len()).rev() {
                strides[i - 1] = strides[i] * self.shape[i];
            }
            Array { offset: 0, sizes: self.shape.clone(), strides }
        })
    }
    /// Element `i`, which must be in bounds.
    pub(super) fn read(&self, i: usize) -> Scalar {
        self.read_at(self.elem, i * self.elem.bytes())
    }
    pub(super) fn write(&mut self, i: usize, v: Scalar) {
        self.write_at(self.elem, i * self.elem.bytes(), v);
    }
    /// The element of this type from byte `at` on, which must be in bounds.
    pub(super) fn read_at(&self, elem: Elem, at: usize) -> Scalar {
        let mut b = [0; 8];
        b[..elem.bytes()].copy_from_slice(&self.bytes[at..][..elem.bytes()]);
        of_bits(elem, u64::from_le_bytes(b))
    }
    pub(super) fn write_at(&mut self, elem: Elem, at: usize, v: Scalar) {
        self.bytes[at..][..elem.bytes()].copy_from_slice(&bits(elem, v).to_le_bytes()[..elem.bytes()]);
    }
}

/// One element, between memory and a block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    Float(f64),
    Int(i64),
}
/// The element of this type with these bits, the lowest of a word.
pub fn of_bits(elem: Elem, bits: u64) -> Scalar {
    match elem.kind() {
        Kind::Float(format) => Scalar::Float(format.from_bits(bits)),
        kind => Scalar::Int(kind.wrapped(bits as i64)),
    }
}
/// The bits of an element of this type; those above it are not defined.
pub fn bits(elem: Elem, v: Scalar) -> u64 {
    match (elem.kind(), v) {
        (Kind::Float(format), Scalar::Float(x)) => format.to_bits(x),
        (_, Scalar::Float(x)) => x as i64 as u64,
        (_, Scalar::Int(x)) => x as u64,
    }
}
pub fn element(b: &Block, i: usize) -> Scalar {
    match &b.data {
        Data::Float(v) => Scalar::Float(v[i]),
        Data::Int(v) => Scalar::Int(v[i]),
        Data::Ptr(v) => Scalar::Int(v[i].number()),
    }
}
/// A block of this shape whose first rows are those of `block`; what follows is not defined, and NaN where that exists.
pub fn undefined_after(block: Block, shape: &[usize]) -> Block {
    let (all, own) = (shape.iter().product::<usize>(), block.count());
    if all == own {
        return block;
    }
    let undefined = if block.elem.is_float() { Scalar::Float(f64::NAN) } else { Scalar::Int(i64::MAX) };
    collected(block.elem, shape, (0..all).map(|i| if i < own { element(&block, i) } else { undefined }))
}
/// Collects elements into a block of this type.
pub fn collected(elem: Elem, shape: &[usize], all: impl Iterator<Item = Scalar>) -> Block {
    let data = if elem.is_float() {
        Data::Float(all.map(|s| if let Scalar::Float(x) = s { x } else { 0.0 }).collect())
    } else {
        Data::Int(all.map(|s| if let Scalar::Int(x) = s { x } else { 0 }).collect())
    };
    Block { elem, shape: shape.to_vec(), data }
}

/// Checks that there is one buffer per parameter, of its element type, and large enough for the arrays of descriptors.
pub fn check(k: &BlockProgram, buffers: &[Buffer]) -> Result<(), String> {
    // Arrays that the launcher describes come last, and lie in the buffers of others.
    let passed = k.params.iter().filter(|p| p.launch_array.is_none()).count();
    if buffers.len() != passed {
        return Err(format!("{} buffers for {passed} parameters", buffers.len()));
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
            (Type::Block { .. }, _) => {
                if let Scalar::Int(n) = b.read(0)
                    && !p.facts.allow(n)
                {
                    return Err(format!("the scalar {} is {n}, which its facts exclude", p.name));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// A ring buffer of tiles in shared memory.
pub struct Tile {
    pub stages: Vec<Rc<Block>>,
}

/// An mbarrier: a phase completes when all arrivals and all expected bytes have come.
#[derive(Clone)]
pub struct Barrier {
    pub arrivals: usize,
    pub arrived: usize,
    pub bytes: i64,
    /// Number of completed phases.
    pub phase: u64,
}
impl Barrier {
    pub fn new(arrivals: usize) -> Barrier {
        Barrier { arrivals, arrived: 0, bytes: 0, phase: 0 }
    }
    /// Advances to the next phase if the current one is complete; called after every change.
    pub fn settle(&mut self) {
        if self.arrived >= self.arrivals && self.bytes == 0 {
            self.arrived -= self.arrivals;
            self.phase += 1;
        }
    }
    /// Whether the phase of this parity is complete. Before the first phase, the odd parity counts as complete.
    pub fn passed(&self, parity: i64) -> bool {
        (self.phase & 1) as i64 != parity & 1
    }
}
