//! `split-reduce r N`: instances that share a row leave partial results, which blocks of another launch combine.

/// Most partial results that a block combines at a time, and the least columns that they are of.
pub const MAX_JOINED_PARTIALS: usize = 16384;
const COLUMNS: usize = 4;
/// Most of them that a thread of the block holds.
pub const MAX_PARTIALS_PER_THREAD: usize = 32;
/// Most parts that a thread combines by itself, one after the other.
pub const MAX_SERIAL_PARTS: usize = 16;

/// Columns of a block that combines so many parts.
pub fn columns_of(parts: usize) -> usize {
    let parts = parts.next_power_of_two();
    if parts > MAX_SERIAL_PARTS { (MAX_JOINED_PARTIALS / parts).max(COLUMNS) } else { usize::MAX }
}

/// Warps of a block that combines so many partial results.
pub fn joining_warps(results: usize) -> usize {
    results.div_ceil(32 * MAX_PARTIALS_PER_THREAD).next_power_of_two().min(16)
}
