//! Block IR: kernels as programs over blocks. A grid of program instances, each working on small dense blocks; programs
//! never mention threads.
//!
//! Upper level: what is computed (`program_id`, `iota`, `load`, pointwise ops, `reduce`, `scan`, `dot`, `for`, `if`).
//! Lower level: how, on a GPU (layouts, shared tiles, asynchronous copies, barriers, `wgmma` tokens, roles). Passes
//! lower the first to the second; host code is generated from the first.
//! Takes: programs made by [`builder::Builder`] or [`text::parse`]. Gives: verified programs, text, analyses.
//! Never: tensors, graphs, devices, LLVM.
pub mod analysis;
pub mod bind;
pub mod builder;
pub mod error;
pub mod ir;
pub mod layout;
pub mod memories;
pub mod ops;
pub mod passes;
pub mod text;
pub mod types;
pub mod verify;
pub mod write;

pub use builder::Builder;
pub use error::BlockError;
pub use ir::{
    Arithmetic, Array, BlockProgram, Extent, Facts, Grid, Inst, InstData, LaunchArray, Param, Region, Value, ValueData,
};
pub use kiln_number::{Format, Kind};
pub use layout::Layout;
pub use ops::{
    Assembly, AtomicOp, Atomicity, BinaryOp, CachePolicy, CmpOp, Const, DotPrecision, Effects, LoadMode, MemoryOrder,
    Op, ReduceOp, Register, Registers, Role, ScanOp, Scope, Terms, UnaryOp,
};
pub use types::{Elem, Swizzle, Type};
pub use write::write;
