//! Tensor maps that launches make of their arguments.
//!
//! Encoding one takes about a microsecond, and launches often have the arguments of earlier ones: the last maps are
//! kept, by the numbers that they were made of.
use super::map::TensorMap;
use crate::{Extent, LaunchMap, Passed};
use cudarc::driver::{result::DriverError, sys};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

/// Maps of one array that are kept.
const KEPT: usize = 8;
/// The largest size of an axis.
const MAX_SIZE: i64 = 1 << 32;

/// The maps of one array, of several launches.
pub(super) struct LaunchMaps {
    map: LaunchMap,
    last: Mutex<VecDeque<(Key, Arc<TensorMap>)>>,
}

/// What a map is made of: the address, then sizes and strides.
type Key = (u64, Vec<i64>);

impl LaunchMaps {
    pub fn new(map: LaunchMap) -> LaunchMaps {
        LaunchMaps { map, last: Mutex::default() }
    }
    /// The map for arguments of these bits.
    pub fn made(&self, passed: &[Passed], bits: &[u64]) -> Result<Arc<TensorMap>, DriverError> {
        let invalid = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);
        let number = |extent: &Extent| {
            extent
                .arguments
                .iter()
                .try_fold(extent.factor, |product, n| product.checked_mul(signed(passed.get(*n)?, *bits.get(*n)?)))
        };
        let numbers = self.map.sizes.iter().chain(&self.map.strides).map(number);
        let numbers: Vec<i64> = numbers.collect::<Option<_>>().ok_or(invalid)?;
        let key = (*bits.get(self.map.base).ok_or(invalid)?, numbers);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, map)) = last.iter().find(|(known, _)| *known == key) {
            return Ok(map.clone());
        }
        let map = Arc::new(self.encoded(&key)?);
        last.truncate(KEPT - 1);
        last.push_front((key, map.clone()));
        Ok(map)
    }
    fn encoded(&self, (address, numbers): &Key) -> Result<TensorMap, DriverError> {
        let (sizes, strides) = numbers.split_at(self.map.sizes.len());
        // Nothing is read of an array without elements, but the driver wants a size.
        let sizes = sizes.iter().map(|n| (*n).clamp(1, MAX_SIZE) as usize).collect();
        // The driver has no negative strides.
        let strides = strides.iter().map(|n| usize::try_from(*n)).collect::<Result<_, _>>();
        let strides = strides.map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE))?;
        let map = crate::TensorMap {
            dtype: self.map.dtype,
            offset: 0,
            sizes,
            strides,
            tile: self.map.tile.clone(),
            swizzle: self.map.swizzle,
        };
        TensorMap::new(&map, *address)
    }
}

/// The integer in the lowest bytes of an argument.
fn signed(passed: &Passed, bits: u64) -> i64 {
    match passed {
        Passed::Scalar(1) => i64::from(bits as i8),
        Passed::Scalar(2) => i64::from(bits as i16),
        Passed::Scalar(4) => i64::from(bits as i32),
        _ => bits as i64,
    }
}
