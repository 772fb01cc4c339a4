//! Values of a launch as the compiler and the code take them.
use super::call_error;
use crate::exchange::{DLDevice, Exchange};
use kiln::kernels::{Argument as Passed, ArgumentFacts, ArrayArgument, DescriptorArgument, Known, Literal, Number};
use pyo3::{exceptions::PyOverflowError, prelude::*, types::*};

/// What a parameter says of its argument.
#[derive(Clone, Copy)]
pub struct Wanted {
    pub constant: bool,
    /// It is indexed: its sizes and strides are passed too.
    pub array: bool,
    pub annotated: Option<Number>,
    pub specialised: bool,
}

/// An argument.
pub enum Bound<'py> {
    Pointer(Pointer),
    Scalar {
        elem: Number,
        value: Passed,
        noted: Noted,
    },
    /// A constant of the program.
    Constant {
        object: pyo3::Bound<'py, PyAny>,
        text: Text,
    },
    Tuple(Vec<Bound<'py>>),
    Descriptor(Box<Descriptor>),
    Array(Box<Array>),
}

/// A tensor with the shape of its blocks.
pub struct Descriptor {
    pub base: Pointer,
    pub block: Vec<usize>,
    pub pads_nan: bool,
    pub sizes: Vec<i32>,
    pub strides: Vec<i64>,
}

/// A tensor with its sizes and strides.
pub struct Array {
    pub base: Pointer,
    pub size_type: Number,
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
    pub specialised: bool,
}

/// What is noted of an integer's value.
#[derive(Clone, Copy, Default)]
pub struct Noted {
    pub is_one: bool,
    /// The exponent of the largest power of two up to [`DIVISOR`] that it is a multiple of.
    pub twos: u32,
}

/// A tensor's memory.
#[derive(Clone, Copy)]
pub struct Pointer {
    pub elem: Number,
    pub address: u64,
    /// Of its elements; `None`: unknown.
    pub bytes: Option<u64>,
    pub aligned: bool,
    /// No other argument has some of its memory.
    pub unshared: bool,
    /// All tensors of the launch have so few elements that offsets have 32 bits.
    pub near: bool,
}

impl Pointer {
    pub fn facts(&self) -> ArgumentFacts {
        let (div, noalias, span32) = (self.aligned.then_some(DIVISOR), self.unshared, self.near);
        ArgumentFacts { div, noalias, span32, ..ArgumentFacts::default() }
    }
    /// The bytes of the tensor.
    fn number(&self) -> Option<i64> {
        self.bytes.and_then(|n| i64::try_from(n).ok())
    }
    /// Its type and facts in a word.
    pub fn word(&self) -> u64 {
        let flags = [self.aligned, self.unshared, self.near];
        flags.iter().fold(self.elem as u64, |word, flag| word << 1 | u64::from(*flag))
    }
    /// Whether 32 bits are enough for offsets of its elements, as far as its strides reach.
    pub fn is_near(&self) -> bool {
        self.bytes.is_some_and(|bytes| bytes / u64::from(self.elem.bytes()).max(1) <= MAX_NEAR_ELEMENTS)
    }
    /// Whether two tensors may have memory in common.
    pub fn overlaps(&self, other: &Pointer) -> bool {
        let ends = |p: &Pointer| p.bytes.map(|n| p.address.saturating_add(n));
        match (ends(self), ends(other)) {
            (Some(end), Some(other_end)) => self.address < other_end && other.address < end,
            _ => true,
        }
    }
}

/// A constant in a key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Text {
    None,
    Int(i64),
    Bool(bool),
    Float(u64),
    /// Its type and representation; functions have their addresses in it, and are kept.
    Other(String),
}

/// Most elements of a tensor with offsets of 32 bits. The room up to 2^31 is for offsets outside of masks: those of the
/// last block, and of a few blocks after it.
const MAX_NEAR_ELEMENTS: u64 = (1 << 31) - (1 << 22);

/// Bytes that addresses are multiples of, where they are, and the largest divisor of integers that is noted: more says
/// nothing about vectors.
const DIVISOR: u64 = 16;

impl Noted {
    fn of(n: i128) -> Noted {
        Noted { is_one: n == 1, twos: n.trailing_zeros().min(DIVISOR.trailing_zeros()) }
    }
    /// Of sizes and strides.
    pub fn of_all(numbers: &[i64]) -> impl Iterator<Item = Noted> {
        numbers.iter().map(|n| Noted::of(i128::from(*n)))
    }
    pub fn facts(self) -> ArgumentFacts {
        ArgumentFacts {
            equals: self.is_one.then_some(1),
            div: (self.twos > 0).then_some(1 << self.twos),
            ..ArgumentFacts::default()
        }
    }
    pub fn bits(self) -> u64 {
        u64::from(self.is_one) | u64::from(self.twos) << 1
    }
}

impl Descriptor {
    pub fn known(&self) -> DescriptorArgument {
        // The last stride is 1.
        let outer = self.strides.split_last().map_or(&[][..], |(_, outer)| outer);
        let facts = |noted: Noted| ArgumentFacts { equals: None, ..noted.facts() };
        DescriptorArgument {
            elem: self.base.elem,
            block: self.block.clone(),
            pads_nan: self.pads_nan,
            facts: self.base.facts(),
            shape: vec![],
            strides: Noted::of_all(outer).map(facts).collect(),
        }
    }
}

impl Array {
    pub fn noted(&self, numbers: &[i64]) -> Vec<Noted> {
        match self.specialised {
            true => Noted::of_all(numbers).collect(),
            false => vec![Noted::default(); numbers.len()],
        }
    }
    pub fn known(&self) -> ArrayArgument {
        let facts = |numbers: &[i64]| self.noted(numbers).into_iter().map(Noted::facts);
        ArrayArgument {
            elem: self.base.elem,
            rank: self.sizes.len(),
            size_type: self.size_type,
            facts: self.base.facts(),
            shape: facts(&self.sizes).map(|facts| ArgumentFacts { least: Some(0), ..facts }).collect(),
            strides: facts(&self.strides).collect(),
        }
    }
}

impl Text {
    /// Of Python's own numbers and `None`.
    fn of_number(value: &pyo3::Bound<'_, PyAny>) -> Option<Text> {
        if value.is_none() {
            return Some(Text::None);
        }
        if let Ok(b) = value.cast::<PyBool>() {
            return Some(Text::Bool(b.is_true()));
        }
        if value.is_instance_of::<PyInt>() {
            return value.extract().ok().map(Text::Int);
        }
        value.cast::<PyFloat>().ok().map(|f| Text::Float(f.value().to_bits()))
    }
}

impl<'py> Bound<'py> {
    pub fn of(
        exchange: &Exchange,
        value: &pyo3::Bound<'py, PyAny>,
        wanted: Wanted,
        device: &mut Option<DLDevice>,
        name: &dyn Fn() -> String,
    ) -> PyResult<Bound<'py>> {
        if wanted.constant {
            return Bound::constant(value);
        }
        if wanted.array {
            return Bound::array(exchange, value, wanted, device, name);
        }
        if exchange.is_tensor(value) {
            return Bound::pointer(exchange, value, wanted, device, name);
        }
        if let Ok(b) = value.cast::<PyBool>() {
            let elem = wanted.annotated.unwrap_or(Number::Int1);
            return Ok(Bound::Scalar { elem, value: integer(elem, i128::from(b.is_true())), noted: Noted::default() });
        }
        if let Ok(f) = value.cast::<PyFloat>() {
            let elem = wanted.annotated.unwrap_or(Number::Float32);
            return Ok(Bound::Scalar { elem, value: float(elem, f.value(), name)?, noted: Noted::default() });
        }
        if value.is_instance_of::<PyInt>() {
            return Bound::int(value, wanted, name);
        }
        if let Ok(items) = value.cast::<PyTuple>() {
            let wanted = Wanted { annotated: None, ..wanted };
            let parts = items.iter().map(|item| Bound::of(exchange, &item, wanted, device, name));
            return Ok(Bound::Tuple(parts.collect::<PyResult<_>>()?));
        }
        let py = value.py();
        if !value.is_none() && value.hasattr(pyo3::intern!(py, "data_ptr"))? {
            return Bound::pointer(exchange, value, wanted, device, name);
        }
        let class = value.get_type().name()?;
        if class == "TensorDescriptor" {
            return Bound::descriptor(exchange, value, wanted, device, name);
        }
        if class == "Array" {
            return Bound::array(exchange, value, wanted, device, name);
        }
        if value.hasattr(pyo3::intern!(py, "__index__"))? && !is_constexpr(value)? {
            return Bound::int(value, wanted, name);
        }
        Bound::constant(value)
    }

    fn pointer(
        exchange: &Exchange,
        value: &pyo3::Bound<'py, PyAny>,
        wanted: Wanted,
        device: &mut Option<DLDevice>,
        name: &dyn Fn() -> String,
    ) -> PyResult<Bound<'py>> {
        let seen = exchange.pointer(value)?;
        // An empty tensor stands for none, wherever it is.
        if seen.bytes != Some(0) && *device.get_or_insert(seen.device) != seen.device {
            let what = format!("{} is on another device than the tensors before it", name());
            return Err(call_error(format!("{what}; move all of them to one")));
        }
        let elem: Number = match wanted.annotated {
            Some(elem) => elem,
            None => Number::named(&seen.dtype).ok_or_else(|| {
                call_error(format!("{} has the dtype {}, which kernels do not have", name(), seen.dtype))
            })?,
        };
        let aligned = wanted.specialised && seen.address.is_multiple_of(DIVISOR);
        let (address, bytes) = (seen.address, seen.bytes);
        Ok(Bound::Pointer(Pointer { elem, address, bytes, aligned, unshared: false, near: false }))
    }

    /// An array with the shape of its blocks.
    fn descriptor(
        exchange: &Exchange,
        value: &pyo3::Bound<'py, PyAny>,
        wanted: Wanted,
        device: &mut Option<DLDevice>,
        name: &dyn Fn() -> String,
    ) -> PyResult<Bound<'py>> {
        let base = Bound::pointer(exchange, &value.getattr("base")?, wanted, device, name)?;
        let Bound::Pointer(base) = base else {
            return Err(call_error(format!("{} has no tensor", name())));
        };
        let sizes: Vec<i32> = value.getattr("shape")?.extract()?;
        let strides: Vec<i64> = value.getattr("strides")?.extract()?;
        let block: Vec<usize> = value.getattr("block_shape")?.extract()?;
        let padding: String = value.getattr("padding")?.extract()?;
        Ok(Bound::Descriptor(Box::new(Descriptor { base, block, pads_nan: padding == "nan", sizes, strides })))
    }

    /// A tensor, or one in a `kiln.language.Array`, with its sizes and strides.
    fn array(
        exchange: &Exchange,
        value: &pyo3::Bound<'py, PyAny>,
        wanted: Wanted,
        device: &mut Option<DLDevice>,
        name: &dyn Fn() -> String,
    ) -> PyResult<Bound<'py>> {
        let py = value.py();
        let wrapped = value.get_type().name()? == "Array";
        let tensor = if wrapped { &value.getattr(pyo3::intern!(py, "tensor"))? } else { value };
        if !tensor.hasattr(pyo3::intern!(py, "data_ptr"))? {
            let what = format!("{} is an array, and gets a {}", name(), tensor.get_type().name()?);
            return Err(call_error(format!("{what}; pass a tensor")));
        }
        let Bound::Pointer(base) = Bound::pointer(exchange, tensor, wanted, device, name)? else {
            return Err(call_error(format!("{} has no tensor", name())));
        };
        let sizes: Vec<i64> = tensor.getattr(pyo3::intern!(py, "shape"))?.extract()?;
        let strides: Vec<i64> = tensor.call_method0(pyo3::intern!(py, "stride"))?.extract()?;
        let fits = sizes.iter().all(|size| i32::try_from(*size).is_ok());
        let size_type = if fits { Number::Int32 } else { Number::Int64 };
        Ok(Bound::Array(Box::new(Array { base, size_type, sizes, strides, specialised: wanted.specialised })))
    }

    fn int(value: &pyo3::Bound<'py, PyAny>, wanted: Wanted, name: &dyn Fn() -> String) -> PyResult<Bound<'py>> {
        let too_large = || PyOverflowError::new_err(format!("{} does not fit 64 bits", name()));
        // Python gives 128 bits in two halves, each a new object.
        let n = match value.extract::<i64>() {
            Ok(n) => i128::from(n),
            Err(_) => value.extract().map_err(|_| too_large())?,
        };
        let elem = match wanted.annotated {
            Some(elem) => elem,
            None if i32::try_from(n).is_ok() => Number::Int32,
            None if i64::try_from(n).is_ok() => Number::Int64,
            None if u64::try_from(n).is_ok() => Number::UInt64,
            None => return Err(too_large()),
        };
        if elem.is_float() {
            return Ok(Bound::Scalar { elem, value: float(elem, n as f64, name)?, noted: Noted::default() });
        }
        let noted = if wanted.specialised { Noted::of(n) } else { Noted::default() };
        Ok(Bound::Scalar { elem, value: integer(elem, n), noted })
    }

    fn constant(value: &pyo3::Bound<'py, PyAny>) -> PyResult<Bound<'py>> {
        if let Some(text) = Text::of_number(value) {
            return Ok(Bound::Constant { object: value.clone(), text });
        }
        let value = if is_constexpr(value)? { &value.getattr(pyo3::intern!(value.py(), "value"))? } else { value };
        let text = match Text::of_number(value) {
            Some(text) => text,
            None => match value.extract::<i64>() {
                Ok(n) => Text::Int(n),
                Err(_) => Text::Other(format!("{} {}", value.get_type().fully_qualified_name()?, value.repr()?)),
            },
        };
        Ok(Bound::Constant { object: value.clone(), text })
    }

    /// Visits the tensors.
    pub fn pointers<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut Pointer)) {
        match self {
            Bound::Pointer(pointer) => visit(pointer),
            Bound::Descriptor(descriptor) => visit(&mut descriptor.base),
            Bound::Array(array) => visit(&mut array.base),
            Bound::Tuple(parts) => parts.iter_mut().for_each(|part| part.pointers(visit)),
            Bound::Scalar { .. } | Bound::Constant { .. } => {}
        }
    }
    /// Visits the constants that only Python can describe, in order.
    pub fn constants(&self, visit: &mut dyn FnMut(&pyo3::Bound<'py, PyAny>) -> PyResult<()>) -> PyResult<()> {
        match self {
            Bound::Constant { object, text: Text::Other(_) } => visit(object),
            Bound::Tuple(parts) => parts.iter().try_for_each(|p| p.constants(visit)),
            Bound::Pointer(_)
            | Bound::Scalar { .. }
            | Bound::Constant { .. }
            | Bound::Descriptor(_)
            | Bound::Array(_) => Ok(()),
        }
    }

    /// What the compiler is told, with what Python says of constants, in order.
    pub fn known(&self, literals: &mut dyn Iterator<Item = Literal>) -> Known {
        match self {
            Bound::Pointer(pointer) => Known::Pointer { elem: pointer.elem, facts: pointer.facts() },
            Bound::Scalar { elem, noted, .. } => Known::Scalar { elem: *elem, facts: noted.facts() },
            Bound::Constant { text, .. } => Known::Constant(match text {
                Text::None => Literal::None,
                Text::Int(n) => Literal::Int(i128::from(*n)),
                Text::Bool(b) => Literal::Bool(*b),
                Text::Float(bits) => Literal::Float(f64::from_bits(*bits)),
                Text::Other(_) => literals.next().unwrap_or(Literal::None),
            }),
            Bound::Tuple(parts) => Known::Tuple(parts.iter().map(|p| p.known(literals)).collect()),
            Bound::Descriptor(descriptor) => Known::Descriptor(descriptor.known()),
            Bound::Array(array) => Known::Array(array.known()),
        }
    }

    /// The argument at a place in tuples, as code takes it.
    pub fn passed(&self, path: &[usize]) -> Option<Passed> {
        match (self, path) {
            (Bound::Pointer(pointer), []) => Some(Passed::Address(pointer.address)),
            (Bound::Scalar { value, .. }, []) => Some(*value),
            (Bound::Tuple(parts), [first, rest @ ..]) => parts.get(*first)?.passed(rest),
            (Bound::Array(array), [0]) => Some(Passed::Address(array.base.address)),
            (Bound::Array(array), [1, axis]) => {
                array.sizes.get(*axis).map(|n| integer(array.size_type, i128::from(*n)))
            }
            (Bound::Array(array), [2, axis]) => array.strides.get(*axis).map(|n| Passed::from(*n)),
            (Bound::Descriptor(descriptor), [0]) => Some(Passed::Address(descriptor.base.address)),
            (Bound::Descriptor(descriptor), [1, axis]) => descriptor.sizes.get(*axis).map(|n| Passed::from(*n)),
            (Bound::Descriptor(descriptor), [2, axis]) => descriptor.strides.get(*axis).map(|n| Passed::from(*n)),
            _ => None,
        }
    }
    /// The integer at a place in tuples, or the bytes of the tensor there.
    pub fn number(&self, path: &[usize]) -> Option<i64> {
        match (self, path) {
            (Bound::Pointer(pointer), []) => pointer.number(),
            (Bound::Scalar { elem: Number::Int32, value, .. }, []) => Some(i64::from(value.bits() as i32)),
            (Bound::Scalar { elem, value, .. }, []) if !elem.is_float() => Some(value.bits() as i64),
            (Bound::Tuple(parts), [first, rest @ ..]) => parts.get(*first)?.number(rest),
            (Bound::Array(array), [0]) => array.base.number(),
            (Bound::Array(array), [1, axis]) => array.sizes.get(*axis).copied(),
            (Bound::Array(array), [2, axis]) => array.strides.get(*axis).copied(),
            (Bound::Descriptor(descriptor), [0]) => descriptor.base.number(),
            (Bound::Descriptor(descriptor), [1, axis]) => descriptor.sizes.get(*axis).map(|n| i64::from(*n)),
            (Bound::Descriptor(descriptor), [2, axis]) => descriptor.strides.get(*axis).copied(),
            _ => None,
        }
    }
}

fn is_constexpr(value: &pyo3::Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.get_type().name()? == "constexpr")
}

/// An integer in the bytes of its type; higher ones are cut off.
fn integer(elem: Number, n: i128) -> Passed {
    match elem.bits() {
        1 => Passed::from(n != 0),
        8 => Passed::from(n as u8),
        16 => Passed::from(n as u16),
        32 => Passed::from(n as u32),
        _ => Passed::from(n as u64),
    }
}

fn float(elem: Number, x: f64, name: &dyn Fn() -> String) -> PyResult<Passed> {
    match elem {
        Number::Float64 => Ok(Passed::from(x)),
        // Kernels round numbers of fewer bits themselves.
        elem if elem.is_float() => Ok(Passed::from(x as f32)),
        _ => Err(call_error(format!("{} is a float, but its annotation says another type", name()))),
    }
}
