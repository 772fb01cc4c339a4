//! Constants that all NVIDIA GPUs share; machine descriptions do not repeat them.

/// Threads per warp.
pub const WARP: usize = 32;
/// Instructions that a multiprocessor issues in a cycle, each of another warp.
pub const ISSUED: usize = 4;
/// Most warps per block: 1024 threads.
pub const BLOCK_WARPS: usize = 32;
/// Warps of a warpgroup.
pub const GROUP_WARPS: usize = 4;
/// Rows of the result of one warpgroup matmul (`wgmma.m64`).
pub const GROUP_ROWS: usize = 64;
/// Most columns of it (`wgmma.n256`).
pub const GROUP_COLUMNS: usize = 256;
/// Bytes along K of its operands.
pub const GROUP_DEPTH_BYTES: usize = 32;
/// Bytes of the widest access or asynchronous copy of a thread.
pub const VECTOR: usize = 16;
/// Bytes of a sector: what memory transfers at least.
pub const SECTOR: usize = 32;
/// Granularity of register allocation per thread (`setmaxnreg` takes multiples of it).
pub const REGISTERS: usize = 8;
/// Bytes of shared memory that a block may use without opting in to more (CUDA C++ programming guide, table of compute
/// capabilities).
pub const SHARED_UNASKED: usize = 48 << 10;
/// Bytes of shared memory that the system takes for each block (CUDA programming guide, compute capability 8.0 on).
pub const SHARED_RESERVED: usize = 1 << 10;
