//! What all GPUs of NVIDIA have in common, which no description repeats.

/// Threads of a warp.
pub const WARP: usize = 32;
/// Warps of a block, at most: 1024 threads.
pub const BLOCK_WARPS: usize = 32;
/// Rows that a warpgroup multiplies at once (`wgmma.m64`).
pub const GROUP_ROWS: usize = 64;
/// Registers that a thread is given at a time (`setmaxnreg` takes multiples of as many).
pub const REGISTERS: usize = 8;
/// Bytes of shared memory that a block gets without asking (CUDA C++ programming guide, table of compute capabilities).
pub const SHARED_UNASKED: usize = 48 << 10;
