//! The ops. Each op's doc gives the operand order; [`crate::verify`] defines the result types.
mod assembly;
mod kinds;

pub use assembly::{Assembly, Effects, Register, Registers};
pub use kinds::*;

use crate::types::Elem;
use serde::{Deserialize, Serialize};

/// An operation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    // ---- Upper level: what is computed ----
    /// A constant of the result's type, the same in every element.
    Const(Const),
    /// i32: this instance's position in the grid along `axis` (0..3).
    ProgramId(u8),
    /// i32: the number of instances along `axis` (0..3).
    NumPrograms(u8),
    /// `i32[n]`: 0, 1, …, n-1.
    Iota,
    /// Scalar to block.
    Splat,
    /// Axes of size 1 are repeated to the result's shape (same rank).
    Broadcast,
    /// Inserts an axis of size 1.
    ExpandDims(u8),
    /// Same elements in row-major order.
    Reshape,
    /// Result axis i is operand axis `perm[i]`.
    Permute(Vec<u8>),
    /// Elements from `at` on along `axis`, as many as the result has; `at` is a multiple of that count.
    Part {
        axis: u8,
        at: u32,
    },
    /// Splits a block of one axis into rows of `row` elements, the rows of a block of two axes: element (i, j) of the
    /// result is element `i·row + j`. Elements past the end of a row are unspecified.
    Unpack {
        row: u32,
    },
    /// Concatenates the first `row` elements of each row of a block of two axes; elements past the last are
    /// unspecified.
    Pack {
        row: u32,
    },
    /// The operand, integers or pointers, of which it is known from here on that along each axis (a scalar: one number)
    /// the first element of a run of neighbours is a multiple: of pointers, its address in bytes. Runs start at multiples
    /// of their length.
    MultipleOf(Vec<u32>),
    Unary(UnaryOp),
    Binary(BinaryOp),
    /// Result bool.
    Cmp(CmpOp),
    /// Condition (bool, same shape), if true, if false.
    Select,
    /// Value conversion: rounds to nearest even; float to integer truncates and saturates; to bool: nonzero.
    Cast(Elem),
    /// The same bits as another type of as many: of an element to another, of a pointer to a pointer or an i64 (its
    /// address in bytes), of an i64 to a pointer.
    Bitcast,
    /// To a float of fewer bits, rounded toward zero; what is beyond its range becomes its largest number.
    CastToZero(Elem),
    /// Factor, factor, addend: floats, rounded once (f16 and bf16: to f32 first).
    Fma,
    /// Blocks and pointers of one shape: the elements that a text of the GPU's assembly computes from each element, or
    /// from each `pack` of them. Which elements are taken together is open; what else the text does, too.
    Asm(Box<Assembly>),
    /// Pointer (block), offset in elements (i32 or i64, same shape).
    PtrAdd,
    /// Pointer, then mask (bool), then the value where the mask is false (default: 0).
    Load(LoadMode, CachePolicy),
    /// Pointer, value, then mask. Where instances or elements overlap, all must write the same value.
    Store(CachePolicy),
    /// Pointer, value, then mask: combines each value with the element at its pointer, which no other update comes
    /// between. Elements and instances may overlap; their order is open. Result, if there is one: the elements before,
    /// 0 outside of the mask.
    Atomic {
        op: AtomicOp,
        how: Atomicity,
    },
    /// Pointers, expected values, new values, of 16, 32 or 64 bits: each element of memory that has the bits of the
    /// expected value is replaced by the new one, as one access. Result: the elements before.
    CompareSwap {
        how: Atomicity,
    },
    /// Pointer to an i64 (a scalar), condition (bool), index (i64, same shape), then mask. Where condition and mask
    /// hold, the index is out of range, and [`crate::ops::fault`] of the site and the index is written to the pointer.
    /// If there are several, any one of them is written.
    Check {
        site: u32,
    },
    /// Nothing, or a block, then mask: each element in the mask is written to standard output after the text, with its
    /// instance and its position. In no order between elements and instances.
    Print(String),
    /// Condition (bool), then mask: where the mask holds and the condition does not, the launch fails, with the text.
    Assert(String),
    /// Pointers to i64, values of 4 or 8 bytes, then mask: stores a value with the mark that it is there. One store
    /// writes both, so that no fence comes between them. Each 4 bytes of a value take a word: their bits, and bit 32 as
    /// the mark; an 8-byte value has its low half at the pointer, and its high half in the word after it.
    Publish,
    /// Pointers to i64, then mask: waits until the values there are published, and gives them; 0 where the mask is not
    /// set. Only for words that were 0 when the kernel started, and for what instances with lower numbers publish,
    /// which run or have run.
    Await,
    /// Pointer to an i32 (a scalar), limit (i32): the number that is there, which becomes the next one, or 0 from the
    /// limit on. No two instances get the number of one increment.
    AtomicInc,
    /// Drops `axis`.
    Reduce {
        op: ReduceOp,
        axis: u8,
    },
    /// Inclusive, keeps the shape.
    Scan {
        op: ScanOp,
        axis: u8,
    },
    /// Blocks of one shape: drops `axis`, and combines its elements by the region. Its parameters are an element of
    /// each operand and then another of each; it ends in `yield` of an element of each. It is pure, and the order and
    /// the grouping of elements is open.
    ReduceBy {
        axis: u8,
    },
    /// The same for all elements up to each one, itself included; from the end of the axis if `reverse`. Earlier
    /// elements come first in the region's parameters; their grouping is open.
    ScanBy {
        axis: u8,
        reverse: bool,
    },
    /// Two blocks of one shape: a block with a last axis of 2 more, whose elements come from each.
    Join,
    /// The elements 0 or 1 along the last axis, of size 2, which is dropped.
    Split(u8),
    /// Two blocks of one shape, one after the other along an axis.
    Cat {
        axis: u8,
    },
    /// Block, positions along `axis` (i32, of the block's rank and its sizes along the other axes): the elements there.
    /// A position is one of the axis.
    Gather {
        axis: u8,
    },
    /// a `[M,K]`, b `[K,N]`, accumulator `[M,N]` (f32; f64 for f64; i32 for i8 and u8).
    Dot {
        precision: DotPrecision,
        terms: Terms,
    },
    /// Lower bound, upper bound, step (scalars of one type, i32 or i64; step > 0, otherwise the interpreter refuses the
    /// loop, and code for programs with values of the launch skips it), then initial values of the carried
    /// values. One region: its parameters are the index and the carried values; it ends in `yield` of their next
    /// values. Results: the last ones; the initial ones if the lower bound is not below the upper one.
    For,
    /// Initial values of the carried values. One region, whose parameters are the carried values; it ends in `yield` of
    /// a condition and their next values, and runs again as long as the condition holds. Results: the last ones; may be
    /// left out if all are i32 scalars.
    While,
    /// Condition (bool scalar). Two regions (then, else), without parameters; results are what they yield.
    If,
    /// Ends a region.
    Yield,
    /// Descriptor, then one i32 start per axis: the tile, zero outside of the array. Leading axes of size 1 of the
    /// descriptor may be dropped.
    TileLoad,
    /// Descriptor, value, starts. Elements outside are dropped. Leading axes as in `TileLoad`.
    TileStore,

    // ---- Lower level: how ----
    /// The same block in the result's layout.
    ConvertLayout,
    /// Pointer to bytes that another instance will read soon. Only a hint.
    Prefetch {
        bytes: u32,
    },
    /// A shared tile (type in the result).
    AllocShared,
    /// Shared tile, stage (i32), value: synchronous store. A tile without axes holds a scalar.
    SharedStore,
    /// Shared tile, stage: synchronous load.
    SharedLoad,
    /// Shared tile of a, its stage, shared tile of b, its stage, block to add to, optionally the number of valid
    /// elements of K (i32; default: all of the tiles'): the sum, on the FMA engine in exact f32. Sides and flags as in
    /// `Wgmma`.
    SharedDot {
        terms: Terms,
        transpose_a: bool,
        transpose_b: bool,
    },
    /// Shared tile, stage, pointer block, then mask: `cp.async`. Outside of the mask a swizzled tile is 0 afterwards,
    /// another one unspecified.
    AsyncCopy,
    /// Closes a group of asynchronous copies.
    AsyncCommit,
    /// Waits until at most `pending` groups are in flight.
    AsyncWait {
        pending: u8,
    },
    /// Barrier of all warps of the instance (or of the role).
    Sync,
    /// Barriers in shared memory (type in the result), initialised.
    AllocBarriers,
    /// Barrier, stage, bytes: arrive and expect bytes of asynchronous copies.
    BarrierExpect {
        bytes: u32,
    },
    /// Barrier, stage; `multicast`: arrives in every block of the cluster, as each of them does.
    BarrierArrive {
        multicast: bool,
    },
    /// Barrier, stage, phase (i32).
    BarrierWait,
    /// Shared tile, stage, descriptor, barrier, its stage, starts…: tensor-map load, completing on the barrier.
    /// `multicast`: every block of the cluster executes it; each reads its slice of the tile (of the descriptor's size,
    /// along the first axis) and multicasts it, so that all get the whole tile. Otherwise a descriptor of fewer rows
    /// fills the first rows of the tile; those after them are not defined. Leading axes of size 1 of the descriptor are
    /// dropped.
    TmaLoad {
        multicast: bool,
    },
    /// Descriptor, shared tile, stage, starts…. Leading axes of size 1 of the descriptor are dropped.
    TmaStore,
    /// Waits until at most `pending` stores still read from shared memory.
    TmaStoreWait {
        pending: u8,
    },
    /// Orders a role's accesses to shared memory before tensor-map copies and `wgmma`: writes become visible to them,
    /// and a copy that an arrival lets start does not overtake reads. Stages that are read by `SharedLoad` are released
    /// after it.
    FenceAsync,
    /// Shared tile of a, its stage, shared tile of b, its stage, token or block to add to: token. a is `[M,K]`, or
    /// `[K,M]` with `transpose_a`; b is `[K,N]`, or `[N,K]` with `transpose_b`. If b has fewer columns than the token,
    /// the other columns do not change. In place of a's tile and stage there may be a block `[M,K]` of
    /// 16-bit floats, or of f32, which are read as tf32.
    Wgmma {
        transpose_a: bool,
        transpose_b: bool,
    },
    /// Block: a token of these sums, without a matmul in flight. A loop that carries sums from one iteration's matmul to
    /// the next one's starts from it.
    WgmmaToken,
    WgmmaCommit,
    /// Token: block, once at most `pending` groups are in flight. Without a token it only waits; blocks are left
    /// operands in registers, which do not change before.
    WgmmaWait {
        pending: u8,
    },
    /// One region per role; all run concurrently, each on its own warps.
    Roles(Vec<Role>),
    /// Barrier of all blocks in the cluster.
    ClusterSync,
}

impl Op {
    /// Whether the result depends on the operands alone and is defined for all operands.
    pub fn is_pure(&self) -> bool {
        if let Op::Asm(assembly) = self {
            return assembly.effects == Effects::Pure;
        }
        matches!(
            self,
            Op::Const(_)
                | Op::ProgramId(_)
                | Op::NumPrograms(_)
                | Op::Iota
                | Op::Splat
                | Op::Broadcast
                | Op::ExpandDims(_)
                | Op::Reshape
                | Op::Permute(_)
                | Op::Part { .. }
                | Op::Unpack { .. }
                | Op::Pack { .. }
                | Op::MultipleOf(_)
                | Op::Unary(_)
                | Op::Binary(_)
                | Op::Cmp(_)
                | Op::Select
                | Op::Cast(_)
                | Op::Bitcast
                | Op::CastToZero(_)
                | Op::Fma
                | Op::PtrAdd
                | Op::Reduce { .. }
                | Op::Scan { .. }
                | Op::Join
                | Op::Split(_)
                | Op::Cat { .. }
                | Op::Dot { .. }
                | Op::ConvertLayout
        )
    }
}

/// Bits of a fault that hold its index.
pub const FAULT_INDEX_BITS: u32 = 44;

/// What `check` writes for an index: never 0. An index that does not fit is clamped.
pub fn fault(site: u32, index: i64) -> i64 {
    let last = (1i64 << (FAULT_INDEX_BITS - 1)) - 1;
    let index = index.clamp(-last - 1, last) & ((1 << FAULT_INDEX_BITS) - 1);
    fault_site(site) | index
}
/// The bits of a fault that hold its site.
pub fn fault_site(site: u32) -> i64 {
    /// Sites are nodes of a kernel's body: there are far fewer.
    const MOST: u32 = (1 << 18) - 2;
    i64::from(site.min(MOST) + 1) << FAULT_INDEX_BITS
}
