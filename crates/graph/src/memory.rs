//! Host memory: zeroed and aligned, or held by another owner; and checks that enough memory is free before it is
//! allocated.
//!
//! Large blocks request huge pages: page faults on first touch of 4 KiB pages can cost more than the computation.
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of fixed size. Either allocated here: zero-initialised, aligned to at least 64 bytes and freed on drop. Or
/// foreign ([`Memory::foreign`]): held by another owner, aligned as it happens to be, never written, and copied before
/// a write.
pub struct Memory {
    /// Start of the allocation.
    base: NonNull<u8>,
    /// Offset of the aligned bytes in the allocation.
    start: usize,
    bytes: usize,
    held: Held,
}
/// Who frees the bytes.
enum Held {
    Here(Layout),
    /// Whatever frees them when the last clone is dropped.
    Elsewhere {
        _owner: Arc<dyn Any + Send + Sync>,
    },
}
// SAFETY: owned bytes are accessed through `&self` and `&mut self` like those of a vector; foreign bytes are only read,
// and whoever called `foreign` vouches that nothing writes them meanwhile. Owners are `Send` and `Sync` themselves.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

/// Not enough memory. The message says what needs it, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error(
    "{what} needs {bytes} bytes of memory and {free} are free; use a smaller shape or batch, or a machine with more \
     memory"
)]
pub struct NoMemory {
    /// What needs the memory.
    pub what: String,
    /// Bytes needed.
    pub bytes: usize,
    /// Bytes free at the time of the request ([`free`]).
    pub free: usize,
}

/// Requests below this size skip the check for free memory.
const SMALL: usize = 64 << 20;

/// Bytes available without swapping: the smaller of the system's `MemAvailable` and what the cgroup's limit leaves.
/// `usize::MAX` if unknown.
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

/// An error if fewer than `bytes` bytes are free; `what` names the consumer in the message. Without this check, an
/// operating system that overcommits would kill the process when it touches the memory.
pub fn require(bytes: usize, what: &str) -> Result<(), NoMemory> {
    if bytes < SMALL {
        return Ok(());
    }
    let free = free();
    if bytes <= free { Ok(()) } else { Err(NoMemory { what: what.into(), bytes, free }) }
}

/// An empty vector with capacity for `bytes` bytes, or an error as from [`require`].
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
    /// Allocates `bytes` zeroed bytes; `None` if the allocation fails.
    pub fn zeroed(bytes: usize) -> Option<Memory> {
        let align = if bytes >= 2 * HUGE { HUGE } else { ALIGN };
        // Use the allocator's default alignment: with a larger one it would clear fresh pages a second time.
        let layout = Layout::from_size_align(bytes.checked_add(align)?, 16).ok()?;
        // SAFETY: the layout's size is not zero.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let start = base.as_ptr().align_offset(align);
        let memory = Memory { base, start, bytes, held: Held::Here(layout) };
        if align == HUGE {
            huge_pages(memory.as_ptr(), bytes / HUGE * HUGE);
        }
        Some(memory)
    }
    /// Memory that another owner holds, such as a tensor of another library or a mapped file. Nothing is copied;
    /// `owner` is dropped with the memory. The address may have any alignment. A writer ([`Memory::as_mut_slice`]) gets
    /// a copy.
    ///
    /// # Safety
    /// While `owner` lives, `bytes` initialised bytes at `at` stay readable at this address, from any thread. Nothing
    /// writes them while a slice of them is in use; between uses they may change, and readers then see the new values.
    /// `at` may be null if `bytes` is 0.
    pub unsafe fn foreign(at: *const u8, bytes: usize, owner: Arc<dyn Any + Send + Sync>) -> Memory {
        let base = NonNull::new(at.cast_mut()).unwrap_or(NonNull::dangling());
        Memory { base, start: 0, bytes, held: Held::Elsewhere { _owner: owner } }
    }
    /// Whether another owner holds the bytes.
    pub fn is_foreign(&self) -> bool {
        matches!(self.held, Held::Elsewhere { .. })
    }
    /// Pointer to the first byte. Memory allocated here is aligned to at least 64; to 2 MiB for blocks of 4 MiB and
    /// more. Foreign memory must not be written through it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr().wrapping_add(self.start)
    }
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }
    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the allocation holds `start + bytes` initialised bytes (`align_offset` is less than the slack);
        // foreign bytes by the contract of `foreign`.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }
    /// The bytes, writable. Foreign memory is replaced by a copy first.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        if self.is_foreign() {
            *self = self.clone();
        }
        // SAFETY: as in `as_slice`; the bytes are owned, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.bytes) }
    }
}

impl Clone for Memory {
    /// A copy, which is not foreign.
    fn clone(&self) -> Memory {
        let layout = Layout::from_size_align(self.bytes, 1).unwrap_or(Layout::new::<u8>());
        let mut new = Memory::zeroed(self.bytes).unwrap_or_else(|| std::alloc::handle_alloc_error(layout));
        new.as_mut_slice().copy_from_slice(self.as_slice());
        new
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Held::Here(layout) = self.held {
            // SAFETY: allocated with this layout by `zeroed`.
            unsafe { dealloc(self.base.as_ptr(), layout) };
        }
    }
}

/// Requests huge pages. Only a hint: if it is refused, pages stay small.
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
    fn foreign_memory_is_read_in_place_and_copied_before_a_write() {
        let owner: Arc<Vec<u8>> = Arc::new((0..100).collect());
        // SAFETY: the vector is never changed, and lives as long as the memory.
        let mut m = unsafe { Memory::foreign(owner.as_ptr().wrapping_add(3), 50, owner.clone()) };
        assert_eq!((m.as_ptr().cast_const(), m.len(), m.is_foreign()), (owner[3..].as_ptr(), 50, true));
        let copy = m.clone();
        assert_eq!((copy.is_foreign(), copy.as_ptr() as usize % 64, copy.as_slice()), (false, 0, &owner[3..53]));
        assert_eq!(Arc::strong_count(&owner), 2, "a copy does not hold the owner");
        m.as_mut_slice()[0] = 77;
        assert_eq!((m.as_slice()[0], m.as_slice()[1], owner[3], m.is_foreign()), (77, 4, 3, false));
        assert_eq!(Arc::strong_count(&owner), 1, "written memory has let its owner go");
        // SAFETY: no bytes are read.
        let empty = unsafe { Memory::foreign(std::ptr::null(), 0, owner) };
        assert!(empty.is_empty() && empty.as_slice().is_empty());
    }

    #[test]
    fn too_large_requests_are_errors() {
        for bytes in [1 << 45, usize::MAX] {
            let e = require(bytes, "input 0").unwrap_err();
            assert_eq!((e.bytes, e.free < bytes), (bytes, true));
            assert!(e.to_string().starts_with(&format!("input 0 needs {bytes} bytes of memory and ")), "{e}");
            assert_eq!(reserve(bytes, "input 0").map_err(|e| e.bytes), Err(bytes));
        }
        assert_eq!(reserve(10, "x").map(|v| v.capacity() >= 10), Ok(true));
    }
}
