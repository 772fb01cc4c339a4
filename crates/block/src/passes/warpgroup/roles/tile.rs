//! The tile of a role's matmuls, and the shared tiles that its results go through.
use super::super::form::Engine;
use crate::{Builder, Elem, Inst, Op, Region, Swizzle, Type, Value};

/// Shared tiles that results go through, by element type and size.
pub type Outputs = Vec<(Elem, [usize; 2], Value)>;

/// Where the sums of a tile are made.
pub struct Tile<'a> {
    pub engine: Engine,
    /// The loop over tiles.
    pub tiles: Option<Inst>,
    /// The instructions of one tile.
    pub body: &'a Region,
    /// Positions in it of the first and the last loop that sums.
    pub loops: [usize; 2],
    /// Size of the sums.
    pub size: [usize; 2],
}

/// A shared tile of so many stages.
pub fn alloc(b: &mut Builder, elem: Elem, shape: [usize; 2], stages: usize, swizzle: Swizzle) -> Value {
    let ty = Type::Shared { elem, shape: shape.to_vec(), stages, swizzle };
    b.inst(Op::AllocShared, &[], &[ty], vec![])[0]
}
