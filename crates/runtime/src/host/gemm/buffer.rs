//! Memory for packed panels and accumulators: aligned, grown when needed, kept by each thread.
use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    cell::Cell,
    ptr::{NonNull, null_mut},
};

/// Alignment in bytes: a cache line, and the widest vector register.
const ALIGN: usize = 64;

/// A block of memory that only grows. Growing discards its contents.
pub struct Buffer {
    at: *mut u8,
    bytes: usize,
}
// SAFETY: owns its memory.
unsafe impl Send for Buffer {}
// SAFETY: shared users only take the address.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub const fn new() -> Buffer {
        Buffer { at: null_mut(), bytes: 0 }
    }
    /// Address of room for at least this many elements, which are uninitialised.
    pub fn room<T>(&mut self, count: usize) -> *mut T {
        debug_assert!(align_of::<T>() <= ALIGN);
        let bytes = count * size_of::<T>();
        if bytes > self.bytes {
            *self = Buffer::new();
            let layout = layout(bytes);
            // SAFETY: the layout is not empty: `bytes` exceeds zero.
            let at = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
            *self = Buffer { at: at.as_ptr(), bytes };
        }
        self.at.cast()
    }
    /// The address that `room` returned last.
    pub fn at<T>(&self) -> *const T {
        self.at.cast()
    }
}
impl Default for Buffer {
    fn default() -> Buffer {
        Buffer::new()
    }
}
impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: allocated with this layout by `room`.
            unsafe { dealloc(self.at, layout(self.bytes)) };
        }
    }
}

fn layout(bytes: usize) -> Layout {
    // Invariant: buffers are far smaller than the address space, and this call fails for no other reason.
    Layout::from_size_align(bytes, ALIGN).unwrap_or(Layout::new::<u8>())
}

/// The buffers of a thread: panels of a and b, and accumulators.
#[derive(Default)]
pub struct Scratch {
    pub a: Buffer,
    pub b: Buffer,
    pub sums: Buffer,
}

thread_local! {
    static SCRATCH: Cell<Scratch> =
        const { Cell::new(Scratch { a: Buffer::new(), b: Buffer::new(), sums: Buffer::new() }) };
}

/// Calls `f` with the scratch of this thread. It is taken out meanwhile, so nested work on the thread gets an empty
/// one.
pub fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|cell| {
        let mut s = cell.take();
        let result = f(&mut s);
        cell.set(s);
        result
    })
}
