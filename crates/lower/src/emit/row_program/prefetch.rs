//! Prefetch of the rows of a later instance ([`crate::schedule::prefetch`]).
use crate::emit::frame::Frame;
use crate::scalar::dag::Scene;
use crate::schedule::prefetch::rows;
use crate::schedule::row_plan::RowPlan;
use kiln_block::BinaryOp as B;

impl Frame<'_> {
    /// Prefetches the rows of the instance that is so many after this one.
    pub fn prefetch(&mut self, scene: &Scene, plan: &RowPlan, distance: usize) {
        let rows = rows(scene, plan);
        let shape = plan.shape(1);
        let instances = shape.instances();
        let (number, by) = (self.number(), self.em.int(&mut self.b, distance as i64));
        let later = self.b.binary(B::Add, number, by);
        let last = self.em.int(&mut self.b, instances as i64 - 1);
        let later = self.b.binary(B::Min, later, last);
        let coords = self.em.coords.clone();
        self.em.enter();
        self.place_at(&shape, Some(later));
        for lanes in self.em.coords.values_mut() {
            (lanes.lane, lanes.mask) = (None, None);
        }
        for (slot, at, bytes) in rows {
            let p = self.em.address(&mut self.b, slot, &at);
            self.b.prefetch(p, bytes);
        }
        self.em.leave(&mut self.b);
        self.em.coords = coords;
    }
}
