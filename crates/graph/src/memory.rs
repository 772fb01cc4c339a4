//! Blocks of zeroed host memory. Large ones ask for huge pages: a first touch of 4 KiB at a time can cost more than the work.
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Plain bytes of fixed size, aligned to at least 64; freed when dropped.
pub struct Memory {
    /// What was allocated, and where the bytes start in it.
    base: NonNull<u8>,
    layout: Layout,
    start: usize,
    bytes: usize,
}
// SAFETY: the bytes are owned, and reached through `&self` and `&mut self` like those of a vector.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

const ALIGN: usize = 64;
/// Size and alignment of huge pages on x86-64 and most of Arm.
const HUGE: usize = 2 << 20;

impl Memory {
    /// `None` if there is not so much memory.
    pub fn zeroed(bytes: usize) -> Option<Memory> {
        let align = if bytes >= 2 * HUGE { HUGE } else { ALIGN };
        // The allocator's own alignment, so that fresh pages are not cleared a second time.
        let layout = Layout::from_size_align(bytes.checked_add(align)?, 16).ok()?;
        // SAFETY: the size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let start = base.as_ptr().align_offset(align);
        let memory = Memory { base, layout, start, bytes };
        if align == HUGE {
            huge_pages(memory.as_ptr(), bytes / HUGE * HUGE);
        }
        Some(memory)
    }
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.start)
    }
    pub fn len(&self) -> usize {
        self.bytes
    }
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the allocation holds `start + bytes` initialised bytes (`align_offset` is less than the slack).
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.bytes) }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Memory {
        let layout = Layout::from_size_align(self.bytes, ALIGN).unwrap_or(self.layout);
        let mut new = Memory::zeroed(self.bytes).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        new.as_mut_slice().copy_from_slice(self.as_slice());
        new
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `zeroed`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Advice only: where it is not taken, pages are small.
fn huge_pages(at: *mut u8, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const MADV_HUGEPAGE: i32 = 14;
        unsafe extern "C" {
            fn madvise(at: *mut std::ffi::c_void, bytes: usize, advice: i32) -> i32;
        }
        // SAFETY: the range is whole pages of an allocation; the advice does not change what they hold.
        unsafe { madvise(at.cast(), bytes, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (at, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn zeroed_aligned_and_copied() {
        for bytes in [0, 1, 63, 4096, 5 << 20] {
            let mut m = Memory::zeroed(bytes).unwrap();
            assert_eq!((m.len(), m.as_ptr() as usize % 64), (bytes, 0));
            assert!(m.as_slice().iter().all(|&b| b == 0));
            if let Some(last) = m.as_mut_slice().last_mut() {
                *last = 7;
            }
            assert_eq!(m.clone().as_slice().last(), m.as_slice().last());
        }
        assert!(Memory::zeroed(usize::MAX).is_none());
    }
}
