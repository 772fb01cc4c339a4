//! Reductions and scans along the row of a tile.
use crate::emit::emitter::{Emitter, Lanes, TileRow, joint};
use crate::emit::math;
use kiln_block::{Builder, Elem, Value};
use kiln_graph::{ReduceOp, ScanOp};

impl Emitter<'_> {
    /// Reduces a value along the row's axis of the tile; keeps the axis with size 1 in tiles of rank 2.
    pub(super) fn reduce_in_tile(&mut self, b: &mut Builder, op: ReduceOp, v: Value) -> Value {
        let Some(row) = self.row else { return b.broken("a reduction in a tile without a row") };
        let Some(lanes) = self.coords.get(&row.coord).copied() else {
            return b.broken("a reduction over a row that is not in the tile");
        };
        let v = self.fill_outside(b, op, v, lanes);
        let r = self.reduce_axis(b, op, v, row);
        if matches!(op, ReduceOp::ArgMax | ReduceOp::ArgMin) { b.cast(r, Elem::I64) } else { r }
    }
    /// The value broadcast over the row's lanes, with the reduction's identity outside the row.
    pub fn fill_outside(&mut self, b: &mut Builder, op: ReduceOp, v: Value, lanes: Lanes) -> Value {
        let elem = math::elem(b, v);
        let v = match lanes.lane {
            Some(lane) => {
                let shape = joint(&b.shape(v), &b.shape(lane));
                b.broadcast_to(v, &shape)
            }
            None => v,
        };
        match lanes.mask {
            Some(mask) => {
                let shape = joint(&b.shape(v), &b.shape(mask));
                let v = b.broadcast_to(v, &shape);
                let id = math::identity(b, op, elem);
                b.select(mask, v, id)
            }
            None => v,
        }
    }
    pub fn reduce_axis(&mut self, b: &mut Builder, op: ReduceOp, v: Value, row: TileRow) -> Value {
        let elem = math::elem(b, v);
        let r = b.reduce(math::reduce_op(op, elem), v, row.axis);
        if row.rank > 1 { b.expand_dims(r, row.axis) } else { r }
    }

    /// Inclusive scan along the row's lanes; lanes outside the row come after all others.
    pub fn scan_lanes(&mut self, b: &mut Builder, op: ScanOp, v: Value) -> Value {
        let Some(row) = self.row else { return b.broken("a scan in a tile without a row") };
        let Some(lane) = self.coords.get(&row.coord).and_then(|l| l.lane) else { return v };
        let shape = joint(&b.shape(v), &b.shape(lane));
        let v = b.broadcast_to(v, &shape);
        let op = match op {
            ScanOp::Sum => kiln_block::ScanOp::Sum,
            ScanOp::Prod => kiln_block::ScanOp::Prod,
        };
        b.scan(op, v, row.axis)
    }
}
