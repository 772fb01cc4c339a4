//! Tensor maps (TMA descriptors), encoded by the driver.
//!
//! Takes: a description of a strided array ([`crate::TensorMap`]) and the address of its buffer.
use cudarc::driver::{result::DriverError, sys};
use kiln_graph::DType;

/// An encoded map. The driver reads it at each launch, so it must outlive the launches.
#[repr(C, align(64))]
pub struct TensorMap {
    map: sys::CUtensorMap,
    /// Address of the array's first element.
    at: u64,
}
// SAFETY: plain data once encoded.
unsafe impl Send for TensorMap {}

impl TensorMap {
    /// The map of an array in the buffer at `address`.
    pub fn new(m: &crate::TensorMap, address: u64) -> Result<TensorMap, DriverError> {
        use sys::CUtensorMapSwizzle as S;
        let invalid = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let rank = m.sizes.len();
        if !(1..=5).contains(&rank) || m.strides.len() != rank || m.tile.len() != rank {
            return Err(invalid);
        }
        let bytes = m.dtype.bytes() as u64;
        // The driver lists axes innermost first, and takes no stride of the innermost: it is 1.
        let sizes: Vec<u64> = m.sizes.iter().rev().map(|n| *n as u64).collect();
        let strides: Vec<u64> = m.strides.iter().rev().skip(1).map(|n| *n as u64 * bytes).collect();
        let tile: Vec<u32> = m.tile.iter().rev().map(|n| *n as u32).collect();
        let steps = vec![1u32; rank];
        let swizzle = match m.swizzle {
            0 => S::CU_TENSOR_MAP_SWIZZLE_NONE,
            32 => S::CU_TENSOR_MAP_SWIZZLE_32B,
            64 => S::CU_TENSOR_MAP_SWIZZLE_64B,
            128 => S::CU_TENSOR_MAP_SWIZZLE_128B,
            _ => return Err(invalid),
        };
        let at = address + m.offset as u64 * bytes;
        let mut map = std::mem::MaybeUninit::<Encoded>::zeroed();
        // SAFETY: the lists have `rank` entries (strides one less) and outlive the call; the map is aligned by its
        // type.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                map.as_mut_ptr().cast(),
                format(m.dtype),
                rank as u32,
                std::ptr::without_provenance_mut(at as usize),
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
            .result()?;
            Ok(TensorMap { map: map.assume_init().0, at })
        }
    }
    /// Moves the array by this many bytes, modulo 2^64, in memory that has the same layout.
    pub fn shift(&mut self, bytes: u64) -> Result<(), DriverError> {
        let at = self.at.wrapping_add(bytes);
        // SAFETY: the map was encoded by `new`, and is aligned as the first field of an aligned type.
        unsafe {
            sys::cuTensorMapReplaceAddress(&mut self.map, std::ptr::without_provenance_mut(at as usize)).result()?;
        }
        self.at = at;
        Ok(())
    }
}

/// A map while it is encoded.
#[repr(C, align(64))]
struct Encoded(sys::CUtensorMap);

fn format(d: DType) -> sys::CUtensorMapDataType {
    use sys::CUtensorMapDataType as T;
    match d {
        DType::F64 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
        DType::F32 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        DType::F16 => T::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::Bf16 => T::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        DType::I64 => T::CU_TENSOR_MAP_DATA_TYPE_INT64,
        DType::I32 => T::CU_TENSOR_MAP_DATA_TYPE_INT32,
        DType::I16 => T::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        // Bytes.
        _ => T::CU_TENSOR_MAP_DATA_TYPE_UINT8,
    }
}
