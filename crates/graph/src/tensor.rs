//! Tensor types, and tensors as dense host data.
use crate::{
    DType,
    memory::{self, Memory, NoMemory},
};
use kiln_number::Kind;
use serde::{Deserialize, Serialize};
use std::{alloc::Layout, any::Any, fmt, sync::Arc};

/// Element type and shape. `Display` is the text syntax: `f32[8,128]`; rank 0 prints as `f32[]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Sizes of the axes; empty for rank 0, which has one element.
    pub shape: Vec<usize>,
}

impl Type {
    /// A type of this dtype and shape, unchecked.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>) -> Type {
        Type { dtype, shape: shape.into() }
    }
    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
    /// Size of a dense tensor in bytes.
    pub fn bytes(&self) -> usize {
        self.count() * self.dtype.bytes()
    }
    /// Row-major strides in elements.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1; self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i] * self.shape[i].max(1);
        }
        strides
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.dtype)?;
        for (i, d) in self.shape.iter().enumerate() {
            write!(f, "{}{d}", if i > 0 { "," } else { "" })?;
        }
        f.write_str("]")
    }
}

impl std::str::FromStr for Type {
    type Err = String;
    fn from_str(s: &str) -> Result<Type, String> {
        let usage = || format!("`{s}` is not a type; write it as f32[8,128]");
        let (dtype, rest) = s.trim().split_once('[').ok_or_else(usage)?;
        let dims = rest.strip_suffix(']').ok_or_else(usage)?;
        let shape = match dims.trim() {
            "" => vec![],
            dims => dims.split(',').map(|d| d.trim().parse().map_err(|_| usage())).collect::<Result<_, _>>()?,
        };
        let ty = Type { dtype: dtype.trim().parse()?, shape };
        let limit = ty.shape.iter().try_fold(ty.dtype.bytes(), |n, &d| n.checked_mul(d.max(1)));
        if limit.is_none_or(|n| n > 1 << 46) { Err(format!("`{s}` is too large")) } else { Ok(ty) }
    }
}

/// One to eight little-endian bytes as a number.
fn low(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// A dense row-major tensor in host memory. Cheap to clone: clones share data, copied on write. Its memory is its own
/// and aligned to 64 bytes, or foreign ([`Tensor::foreign`]) and aligned at least to the size of an element.
#[derive(Clone)]
pub struct Tensor {
    /// Element type and shape.
    pub ty: Type,
    data: Arc<Memory>,
}

impl Tensor {
    /// A tensor of zeros, or an error if there is not enough memory; `what` names the tensor in the message.
    pub fn try_zeros(ty: Type, what: &str) -> Result<Tensor, NoMemory> {
        let bytes = ty.bytes();
        memory::require(bytes, what)?;
        let memory =
            Memory::zeroed(bytes).ok_or_else(|| NoMemory { what: what.into(), bytes, free: memory::free() })?;
        Ok(Tensor { ty, data: Arc::new(memory) })
    }
    /// A tensor of zeros. Aborts the process if there is not enough memory: only for small tensors, or after
    /// [`memory::require`].
    pub fn zeros(ty: Type) -> Tensor {
        let bytes = ty.bytes();
        let memory = Memory::zeroed(bytes).unwrap_or_else(|| {
            std::alloc::handle_alloc_error(Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>()))
        });
        Tensor { ty, data: Arc::new(memory) }
    }
    /// A tensor in memory that another owner holds, such as a tensor of another library or a mapped file; `owner` is
    /// dropped with the last clone. Nothing is copied, unless `at` is not a multiple of the element's size: then the
    /// values of now are copied, and later changes are not seen ([`Tensor::is_foreign`] tells).
    ///
    /// # Safety
    /// As [`Memory::foreign`], with `ty.bytes()` bytes, row-major and dense. Bools are 0 or 1.
    pub unsafe fn foreign(ty: Type, at: *const u8, owner: Arc<dyn Any + Send + Sync>) -> Tensor {
        // SAFETY: this function's contract.
        let memory = unsafe { Memory::foreign(at, ty.bytes(), owner) };
        let aligned = memory.is_empty() || (at as usize).is_multiple_of(ty.dtype.bytes());
        Tensor { ty, data: Arc::new(if aligned { memory } else { memory.clone() }) }
    }
    /// Whether another owner holds the data.
    pub fn is_foreign(&self) -> bool {
        self.data.is_foreign()
    }
    /// Whether no other clone shares its data and no other owner holds it, so that it can be written without a copy.
    pub fn is_unique(&mut self) -> bool {
        Arc::get_mut(&mut self.data).is_some_and(|m| !m.is_foreign())
    }
    /// A tensor of the given row-major bytes. `None` if their number is not `ty.bytes()`.
    pub fn from_bytes(ty: Type, bytes: &[u8]) -> Option<Tensor> {
        if bytes.len() != ty.bytes() {
            return None;
        }
        let mut t = Tensor::zeros(ty);
        t.bytes_mut().copy_from_slice(bytes);
        Some(t)
    }
    /// A tensor of the given row-major values, each converted as by [`Tensor::set_f64`]. Missing elements are zero;
    /// extra ones are ignored.
    pub fn from_f64(ty: Type, values: impl IntoIterator<Item = f64>) -> Tensor {
        let mut t = Tensor::zeros(ty);
        for (i, v) in values.into_iter().take(t.ty.count()).enumerate() {
            t.set_f64(i, v);
        }
        t
    }
    /// The elements as little-endian bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_slice()
    }
    /// The bytes, writable. Copies the data first if a clone shares it or another owner holds it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.data).as_mut_slice()
    }
    /// The elements as a typed slice; `None` if the size of `T` differs from the dtype's.
    pub fn as_slice<T: bytemuck::Pod>(&self) -> Option<&[T]> {
        // Invariant: the data is aligned to the size of an element, or has no elements (a cast of nothing from any
        // address).
        match self.ty.bytes() {
            _ if size_of::<T>() != self.ty.dtype.bytes() => None,
            0 => Some(&[]),
            _ => Some(bytemuck::cast_slice(self.bytes())),
        }
    }
    /// The elements as a writable typed slice; `None` if the size of `T` differs from the dtype's. Copies shared data
    /// first.
    pub fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> Option<&mut [T]> {
        (size_of::<T>() == self.ty.dtype.bytes()).then(|| bytemuck::cast_slice_mut(self.bytes_mut()))
    }
    /// Element `i`, in row-major order, as f64. Integers beyond 2^53 lose precision. Panics if `i` is out of bounds.
    pub fn get_f64(&self, i: usize) -> f64 {
        let n = self.ty.dtype.bytes();
        let low = low(&self.bytes()[i * n..(i + 1) * n]);
        match self.ty.dtype.kind() {
            Kind::Float(format) => format.from_bits(low),
            kind @ Kind::Int { .. } => kind.wrapped(low as i64) as f64,
            Kind::Bool => low as f64,
        }
    }
    /// Element `i` as i64; floats truncate toward zero and saturate. Panics if `i` is out of bounds.
    pub fn get_i64(&self, i: usize) -> i64 {
        match self.ty.dtype {
            DType::I64 => bytemuck::pod_read_unaligned(&self.bytes()[i * 8..i * 8 + 8]),
            _ => self.get_f64(i) as i64,
        }
    }
    /// Sets element `i`, in row-major order. Floats round to nearest even. Integers truncate toward zero: i64 and i32
    /// saturate, narrower ones keep the low bits. Nonzero is true. Panics if `i` is out of bounds.
    pub fn set_f64(&mut self, i: usize, v: f64) {
        let (dtype, size) = (self.ty.dtype, self.ty.dtype.bytes());
        let b = &mut self.bytes_mut()[i * size..(i + 1) * size];
        let low = match dtype.kind() {
            Kind::Float(format) => format.to_bits(v),
            Kind::Int { .. } if size == 4 => v as i32 as u64,
            Kind::Int { .. } => v as i64 as u64,
            Kind::Bool => u64::from(v != 0.0),
        };
        b.copy_from_slice(&low.to_le_bytes()[..size]);
    }
    /// Sets element `i`, exactly for i64, with the low bits for i32, and as [`Tensor::set_f64`] for other dtypes.
    pub fn set_i64(&mut self, i: usize, v: i64) {
        match self.ty.dtype {
            DType::I64 => self.bytes_mut()[i * 8..i * 8 + 8].copy_from_slice(&v.to_le_bytes()),
            DType::I32 => self.bytes_mut()[i * 4..i * 4 + 4].copy_from_slice(&(v as i32).to_le_bytes()),
            _ => self.set_f64(i, v as f64),
        }
    }
    /// All elements as f64, row-major.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        (0..self.ty.count()).map(|i| self.get_f64(i)).collect()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}, ", self.ty)?;
        f.debug_list().entries((0..self.ty.count().min(8)).map(|i| self.get_f64(i))).finish()?;
        f.write_str(if self.ty.count() > 8 { "…)" } else { ")" })
    }
}

impl PartialEq for Tensor {
    /// Equal types and bitwise equal data.
    fn eq(&self, o: &Tensor) -> bool {
        self.ty == o.ty && self.bytes() == o.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_tensors_are_shared_and_copied_on_write() {
        let owner: Arc<Vec<f32>> = Arc::new(vec![1.0, 2.0, 3.0, 4.0]);
        let bytes: *const u8 = owner.as_ptr().cast();
        let make = |ty: &str, skip: usize| {
            // SAFETY: the tests ask for types within the vector, which is never changed.
            unsafe { Tensor::foreign(ty.parse().unwrap(), bytes.wrapping_add(skip), owner.clone()) }
        };
        let mut a = make("f32[3]", 4);
        let b = a.clone();
        assert_eq!((a.bytes().as_ptr(), b.bytes().as_ptr()), (bytes.wrapping_add(4), bytes.wrapping_add(4)));
        assert_eq!(Arc::strong_count(&owner), 2, "clones share the owner");
        assert!(a.is_foreign() && !a.is_unique());
        a.set_f64(0, 9.0);
        assert_eq!((a.to_f64_vec(), b.to_f64_vec(), owner[1]), (vec![9.0, 3.0, 4.0], vec![2.0, 3.0, 4.0], 2.0));
        assert!(a.is_unique() && !a.is_foreign());
        drop(b);
        assert_eq!(Arc::strong_count(&owner), 1, "the last clone drops the owner");
        let mut alone = make("f32[4]", 0);
        assert!(!alone.is_unique(), "foreign data must not be written, even if no clone shares it");
        alone.bytes_mut()[0] = 1;
        assert_eq!(owner[0], 1.0);
    }

    #[test]
    fn foreign_tensors_that_are_less_aligned_than_an_element_are_copied() {
        let owner: Arc<Vec<u64>> = Arc::new(vec![0x0807_0605_0403_0201, 0x100f_0e0d_0c0b_0a09]);
        // SAFETY: the eight bytes lie within the vector, which is never changed.
        let t = unsafe {
            Tensor::foreign("i32[2]".parse().unwrap(), owner.as_ptr().cast::<u8>().wrapping_add(1), owner.clone())
        };
        assert_eq!((t.is_foreign(), Arc::strong_count(&owner)), (false, 1));
        assert_eq!(t.as_slice::<i32>(), Some(&[0x0504_0302, 0x0908_0706][..]));
        // SAFETY: the tensor has no bytes.
        let empty = unsafe { Tensor::foreign("f64[0]".parse().unwrap(), std::ptr::null(), owner) };
        assert_eq!(empty.as_slice::<f64>(), Some(&[][..]));
    }
}
