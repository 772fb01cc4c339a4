//! Rows of a tile as one contiguous run in memory ([`crate::schedule::stage_rows`]).
use crate::scalar::expr::{CoordId, Expr};
use crate::schedule::stage_rows::{behind, packable};
use kiln_block::Value;
use kiln_graph::DType;
use kiln_machine::isa::VECTOR;

/// The run of an instance's tile.
#[derive(Clone, Debug)]
pub struct Run {
    pub kept: CoordId,
    pub row: CoordId,
    /// Elements of a row.
    pub len: usize,
    /// Rows of the tile, and elements of a row of it.
    pub shape: [usize; 2],
    /// Elements of the block that holds the run.
    pub extent: usize,
    /// Where the instance's run starts.
    pub base: Option<Value>,
    /// The run's elements.
    pub lane: Value,
    /// The valid ones of these.
    pub mask: Option<Value>,
}

impl Run {
    /// The offset of an access to elements of this dtype from the start of the run, if it is an access to the run.
    pub fn at(&self, at: &Expr, dtype: DType) -> Option<i64> {
        let vector = VECTOR / dtype.bytes().max(1);
        let odd = !self.len.is_multiple_of(vector) && self.shape[0].is_multiple_of(vector);
        (odd && packable(dtype, self.len)).then(|| behind(at, self.kept, self.row, self.len, vector))?
    }
}
