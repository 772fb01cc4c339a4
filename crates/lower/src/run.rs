//! Rows of a tile as one contiguous run in memory ([`crate::multi_row`]).
use crate::emit::Emitter;
use crate::expr::{CoordId, Expr};
use crate::frame::Frame;
use crate::multi_row::{behind, packable};
use crate::row_plan::RowPlan;
use kiln_block::passes::layout::VECTOR;
use kiln_block::{BinaryOp as B, Value};
use kiln_graph::DType;

/// The run of an instance's tile.
#[derive(Clone, Debug)]
pub struct Run {
    kept: CoordId,
    row: CoordId,
    /// Elements of a row.
    pub len: usize,
    /// Rows of the tile, and elements of a row of it.
    pub shape: [usize; 2],
    /// Elements of the block that holds the run.
    pub extent: usize,
    /// Where the instance's run starts.
    base: Option<Value>,
    /// The run's elements.
    lane: Value,
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

impl Frame<'_> {
    /// The run of a tile that [`packs`] holds for.
    pub fn run(&mut self, plan: &RowPlan) -> Option<Run> {
        let kept = plan.kept.first()?;
        let (len, high) = (plan.row.extent, kept.block);
        let extent = (len * high).next_power_of_two();
        let lane = self.b.iota(extent);
        let lane = self.b.cast(lane, self.em.index);
        let first = self.em.coords.get(&kept.id).copied().unwrap_or_default().base;
        let base = first.map(|first| {
            let len = self.em.int(&mut self.b, len as i64);
            self.b.binary(B::Mul, first, len)
        });
        let own = (extent > len * high).then(|| self.below(None, lane, len * high));
        let all = kept.extent * len;
        let ragged = !kept.extent.is_multiple_of(high);
        let all = ragged.then(|| self.below(base, lane, all));
        let mask = match (own, all) {
            (Some(own), Some(all)) => Some(self.b.binary(B::And, own, all)),
            (own, all) => own.or(all),
        };
        let shape = [high, plan.row.block];
        Some(Run { kept: kept.id, row: plan.row.id, len, shape, extent, base, lane, mask })
    }
}

impl Emitter<'_> {
    /// Addresses of a run, at an offset of `more` elements.
    pub fn run_address(&mut self, b: &mut kiln_block::Builder, p: Value, run: &Run, more: i64) -> Value {
        let mut p = p;
        if let Some(base) = run.base {
            p = b.ptr_add(p, base);
        }
        if more != 0 {
            let more = self.int(b, more);
            p = b.ptr_add(p, more);
        }
        b.ptr_add(p, run.lane)
    }
}
