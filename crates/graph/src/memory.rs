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

/// There is not so much memory. The sentence says what needs it, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error(
    "{what} needs {bytes} bytes of memory and {free} are free; use a smaller shape or batch, or a machine with more memory"
)]
pub struct NoMemory {
    pub what: String,
    pub bytes: usize,
    pub free: usize,
}

/// What is less is allocated without asking how much is free.
const SMALL: usize = 64 << 20;

/// Bytes that can be had without swapping, as the operating system and this process's limits have it; all there are where they say
/// nothing.
pub fn free() -> usize {
    #[cfg(target_os = "linux")]
    {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let number = |text: String| text.trim().parse::<usize>().ok();
        let line = |text: String| {
            let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?.trim();
            line.strip_suffix("kB")?.trim().parse::<usize>().ok().map(|k| k.saturating_mul(1024))
        };
        let system = read("/proc/meminfo").and_then(line);
        let limit = read("/sys/fs/cgroup/memory.max").and_then(number);
        let used = read("/sys/fs/cgroup/memory.current").and_then(number);
        let group = limit.zip(used).map(|(limit, used)| limit.saturating_sub(used));
        system.into_iter().chain(group).min().unwrap_or(usize::MAX)
    }
    #[cfg(not(target_os = "linux"))]
    usize::MAX
}

/// Fails if so many bytes are not free: an operating system that promises more than it has ends whoever uses it.
pub fn require(bytes: usize, what: &str) -> Result<(), NoMemory> {
    if bytes < SMALL {
        return Ok(());
    }
    let free = free();
    if bytes <= free { Ok(()) } else { Err(NoMemory { what: what.into(), bytes, free }) }
}

/// An empty vector with room for so many bytes.
pub fn reserve(bytes: usize, what: &str) -> Result<Vec<u8>, NoMemory> {
    require(bytes, what)?;
    let mut room = vec![];
    room.try_reserve_exact(bytes).map_err(|_| NoMemory { what: what.into(), bytes, free: free() })?;
    Ok(room)
}

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

    #[test]
    fn more_than_there_is_is_refused_in_a_sentence() {
        for bytes in [1 << 45, usize::MAX] {
            let e = require(bytes, "input 0").unwrap_err();
            assert_eq!((e.bytes, e.free < bytes), (bytes, true));
            assert!(e.to_string().starts_with(&format!("input 0 needs {bytes} bytes of memory and ")), "{e}");
            assert_eq!(reserve(bytes, "input 0").map_err(|e| e.bytes), Err(bytes));
        }
        assert_eq!(reserve(10, "x").map(|v| v.capacity() >= 10), Ok(true));
    }
}
