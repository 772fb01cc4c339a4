//! Memory for packed panels and partial sums: aligned, grown when needed, kept by each thread.
use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    cell::Cell,
    ptr::{NonNull, null_mut},
};

/// Alignment in bytes: a cache line, and the widest vector.
const ALIGN: usize = 64;

/// A block of memory that only grows. Its contents are never kept when it does.
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
    /// Address of at least this many elements, which may hold anything.
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
    /// Address of what `room` gave last.
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
    // Invariant: no buffer comes near the address space's size, which is all that can be wrong here.
    Layout::from_size_align(bytes, ALIGN).unwrap_or(Layout::new::<u8>())
}

/// What a thread keeps: panels of a and b, and sums.
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

/// Lends the thread's scratch. It is taken while in use, so that nested work on the same thread finds an empty one.
pub fn with_scratch<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|cell| {
        let mut s = cell.take();
        let result = f(&mut s);
        cell.set(s);
        result
    })
}
