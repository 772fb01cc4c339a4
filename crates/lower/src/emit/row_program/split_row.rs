//! Split rows, which several instances share: a step for each level of reductions leaves partial results in scratch,
//! which the next one combines in a fixed order.
use crate::emit::emitter::{TileRow, joint};
use crate::emit::frame::{Frame, Used, loads, looped, open_with};
use crate::emit::row_program::{Acc, RowLoop};
use crate::error::LowerError;
use crate::nest::passes::{Reduced, in_passes};
use crate::scalar::dag::{NodeId, Store};
use crate::scalar::expr::{Expr, linear};
use crate::scalar::types;
use crate::schedule::split_reduce::{MAX_JOINED_PARTIALS, MAX_SERIAL_PARTS, columns_of, joining_warps};
use crate::schedule::tile::Shape;
use kiln_block::{BinaryOp as B, CmpOp, Elem, Value};
use kiln_graph::{DType, ReduceOp, Type};
use kiln_plan::exec::{Slot, Work};

/// Reductions whose partial results are in scratch: the values of their accumulator.
#[derive(Clone, Debug)]
pub struct Partial {
    pub reduced: Reduced,
    pub places: Vec<(Slot, DType)>,
}
/// A step, and the partial results that it leaves.
pub type Step = (Work<kiln_block::BlockProgram>, Vec<Partial>);

impl RowLoop<'_> {
    /// One step per level, leaving partial results, and one that writes.
    pub fn in_parts(&mut self) -> Result<Vec<Work<kiln_block::BlockProgram>>, LowerError> {
        self.settle_parts();
        let mut slots: Vec<Partial> = vec![];
        let mut steps = vec![];
        for i in 0..self.levels.len() {
            let (step, partials) = self.level_step(i, &slots)?;
            steps.push(step);
            slots.extend(partials);
        }
        steps.push(self.final_step(&slots)?);
        Ok(steps)
    }
    fn level_step(&mut self, i: usize, before: &[Partial]) -> Result<Step, LowerError> {
        let level = self.levels[i].clone();
        let partials = self.partials(&level);
        Ok((self.partial_step(&format!("{}_part{i}", self.name), &level, before, &partials)?, partials))
    }
    /// The step that leaves partial results of the first level, and where they are.
    pub fn first_level(&mut self) -> Result<Step, LowerError> {
        self.settle_parts();
        self.level_step(0, &[])
    }
    /// The step that combines what [`RowLoop::first_level`] left in another row loop of these reductions, over wide
    /// rows that are `per_wide_row` rows of the matrix each.
    pub fn joined(
        mut self,
        found: Vec<Partial>,
        per_wide_row: usize,
    ) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
        self.per_wide_row = per_wide_row;
        // Of whole rows there are no pairs.
        let levels = in_passes(self.scene, &self.scene.levels(), &[self.plan.row.id], self.plan.row.extent);
        let level = levels.first().into_iter().flatten();
        let slots: Vec<Partial> =
            level.zip(found).map(|(reduced, found)| Partial { reduced: *reduced, ..found }).collect();
        self.final_step(&slots)
    }
    /// The same, but it leaves the results in scratch, one for each column of the matrix.
    pub fn results(&mut self, found: &[Partial], per_wide_row: usize) -> Result<Step, LowerError> {
        self.narrow_to_parts();
        let mut partials = vec![];
        for p in found {
            let count = self.rows();
            let places = p.places.iter().map(|(_, d)| (self.new_scratch(*d, count), *d)).collect();
            partials.push(Partial { reduced: p.reduced, places });
        }
        let used: Vec<Used> = places(found, true).chain(places(&partials, false)).collect();
        let mut f =
            open_with(&format!("{}_joined", self.name), self.scene, &self.plan.shape(1), &used, self.plan.machine);
        for (p, result) in found.iter().zip(&partials) {
            self.per_wide_row = per_wide_row;
            let acc = self.combined(&mut f, p, None);
            self.per_wide_row = 1;
            for (&(slot, dtype), v) in result.places.iter().zip([Some(acc.value), acc.other].into_iter().flatten()) {
                self.store_partial(&mut f, slot, dtype, v);
            }
        }
        Ok((f.finish()?, partials))
    }
    /// The step that stores along wide rows, whose columns belong to `columns` of the matrix with these results.
    pub fn written(&self, results: &[Partial], columns: usize) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
        let mut used = self.reads(self.scene.roots().into_iter(), results);
        used.extend(self.scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
        let mut f = open_with(self.name, self.scene, &self.last_shape(self.plan.parts), &used, self.plan.machine);
        let mut ix: Vec<Expr> = self.plan.kept.iter().map(|c| Expr::coord(c.id, c.extent)).collect();
        let mut shape: Vec<usize> = self.plan.kept.iter().map(|c| c.extent).collect();
        if let (Some(last), Some(n)) = (ix.pop(), shape.last_mut()) {
            ix.push(last.rem(columns as i64));
            *n = columns;
        }
        let at = linear(&ix, &shape);
        let mask = self.mask_of_kept(&mut f);
        for partial in results {
            let mut values = vec![];
            for &(slot, _) in &partial.places {
                let p = f.em.address(&mut f.b, slot, &at);
                values.push(f.b.load(p, mask, None));
            }
            let acc = self.read(&mut f, &partial.reduced, &mut values.into_iter());
            self.settle(&mut f, &partial.reduced, acc);
        }
        let lane = f.iota(self.plan.row);
        self.write(&mut f, lane);
        f.finish()
    }
    /// Which columns of a tile there are.
    fn mask_of_kept(&self, f: &mut Frame) -> Option<Value> {
        let masks: Vec<Value> = self.plan.kept.iter().filter_map(|c| f.em.coords.get(&c.id)?.mask).collect();
        masks.into_iter().reduce(|a, b| f.b.binary(B::And, a, b))
    }
    /// The scratch buffers of the steps so far.
    pub fn scratch(&self) -> Vec<Type> {
        self.scratch.clone()
    }
    /// Recomputes the number of parts from their length, which is whole chunks: there may be fewer.
    pub fn settle_parts(&mut self) {
        self.plan.parts = self.plan.width().div_ceil(self.plan.part_len());
    }
    /// Allocates scratch for a partial result of each part and row.
    pub fn partials(&mut self, level: &[Reduced]) -> Vec<Partial> {
        let count = self.plan.parts * self.rows();
        let mut partials = vec![];
        for reduced in level {
            let places = self.carried(reduced).into_iter().map(|d| (self.new_scratch(d, count), d)).collect();
            partials.push(Partial { reduced: *reduced, places });
        }
        partials
    }
    pub fn new_scratch(&mut self, dtype: DType, count: usize) -> Slot {
        self.scratch.push(Type::new(dtype, [count]));
        Slot::Scratch(self.first_scratch + self.scratch.len() as u32 - 1)
    }
    /// Position of the row in partial results.
    pub fn row_number(&self) -> Expr {
        let ix: Vec<Expr> = self.plan.kept.iter().map(|c| Expr::coord(c.id, c.extent)).collect();
        let mut shape: Vec<usize> = self.plan.kept.iter().map(|c| c.extent).collect();
        if let Some(columns) = shape.last_mut() {
            *columns *= self.per_wide_row;
        }
        linear(&ix, &shape)
    }
    pub fn rows(&self) -> usize {
        self.plan.kept.iter().map(|c| c.extent).product()
    }

    pub fn partial_step(
        &self,
        name: &str,
        level: &[Reduced],
        before: &[Partial],
        partials: &[Partial],
    ) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
        let mut f = self.open_partial(name, level, before, partials);
        self.combine_parts(&mut f, before);
        let lane = f.iota(self.plan.row);
        let done = self.accumulate(&mut f, level, lane);
        for (p, acc) in partials.iter().zip(done) {
            let acc = self.fold_lanes(&mut f, &p.reduced, acc, lane);
            for (&(slot, dtype), v) in p.places.iter().zip([Some(acc.value), acc.other].into_iter().flatten()) {
                self.store_partial(&mut f, slot, dtype, v);
            }
        }
        f.finish()
    }
    /// Starts a step that leaves partial results of `level`.
    fn open_partial(&self, name: &str, level: &[Reduced], before: &[Partial], partials: &[Partial]) -> Frame<'_> {
        let mut used = self.reads(level.iter().map(Reduced::body), before);
        used.extend(places(partials, false));
        open_with(name, self.scene, &self.plan.shape(self.plan.parts), &used, self.plan.machine)
    }
    /// What nodes read where these partial results are known, and these.
    fn reads(&self, roots: impl Iterator<Item = NodeId>, done: &[Partial]) -> Vec<Used> {
        let roots: Vec<NodeId> = roots.chain(done.iter().filter_map(|p| p.reduced.needs())).collect();
        let known = |n: NodeId| done.iter().any(|p| p.reduced.nodes().any(|m| m == n));
        let mut used = loads(&self.scene.dag, &roots, known);
        used.extend(places(done, true));
        used
    }
    pub fn store_partial(&self, f: &mut Frame, slot: Slot, dtype: DType, v: Value) {
        let s = Store::new(slot, dtype, self.row_number(), 0);
        let Some(&p) = f.em.params.get(&slot) else {
            f.b.broken("partial results have no buffer");
            return;
        };
        if let Some(part) = f.part {
            let rows = f.em.int(&mut f.b, self.rows() as i64);
            let offset = f.b.binary(B::Mul, part, rows);
            let moved = f.b.ptr_add(p, offset);
            f.em.params.insert(slot, moved);
        }
        f.store_value(&s, v);
        f.em.params.insert(slot, p);
    }

    /// Sets the reductions whose partial results are in scratch.
    pub fn combine_parts(&self, f: &mut Frame, done: &[Partial]) {
        for p in done {
            let acc = self.combined(f, p, None);
            self.settle(f, &p.reduced, acc);
        }
    }
    /// The partial results of all parts, or of those before part `until`: read and combined in the order of the parts.
    pub(super) fn combined(&self, f: &mut Frame, partial: &Partial, until: Option<Value>) -> Acc {
        if self.combines_in_lanes() {
            self.combine_lanes(f, partial, until)
        } else {
            self.combine_loop(f, partial, until)
        }
    }
    /// Whether the partial results of all rows of a tile are combined as a tile themselves.
    fn combines_in_lanes(&self) -> bool {
        let rows: usize = self.plan.kept.iter().map(|c| c.block).product();
        let tile = rows * self.plan.parts.next_power_of_two();
        let many = (self.plan.parts > MAX_SERIAL_PARTS || self.per_wide_row > 1) && self.scans().is_empty();
        rows == 1 || self.plan.machine.arch.is_gpu() && many && tile <= MAX_JOINED_PARTIALS
    }
    /// Combines all parts as lanes of one block.
    pub(super) fn combine_lanes(&self, f: &mut Frame, partial: &Partial, until: Option<Value>) -> Acc {
        let read = self.read_lanes(f, partial, until);
        let acc = self.read(f, &partial.reduced, &mut read.into_iter());
        let row = self.parts_row();
        let lane = self.part_lanes(f);
        let count = self.count_of_part(f, lane);
        self.folded(f, &partial.reduced, acc, row, Some(count))
    }
    /// The number of each part along the lanes of a tile.
    fn part_lanes(&self, f: &mut Frame) -> Value {
        let row = self.parts_row();
        let mut lane = f.b.iota(self.plan.parts.next_power_of_two());
        for axis in (0..row.rank).filter(|a| *a != row.axis) {
            lane = f.b.expand_dims(lane, axis);
        }
        lane
    }
    /// Elements of the row in this part.
    fn count_of_part(&self, f: &mut Frame, part: Value) -> Value {
        let length = f.b.i32(self.plan.part_len() as i64);
        let (all, none) = (f.b.i32(self.plan.row.extent as i64), f.b.i32(0));
        let before = f.b.binary(B::Mul, part, length);
        let left = f.b.binary(B::Sub, all, before);
        let left = f.b.binary(B::Max, left, none);
        let count = f.b.binary(B::Min, left, length);
        f.b.cast(count, Elem::F32)
    }
    /// The row of a tile whose lanes are parts.
    pub(super) fn parts_row(&self) -> TileRow {
        let p = &self.plan;
        // Tiles of rank 2 take scalars as they are.
        let rank = if p.kept.iter().all(|c| c.block == 1) { 1 } else { p.rank };
        TileRow { coord: p.row.id, axis: if rank == 1 { 0 } else { p.row.axis }, rank }
    }
    /// Loads the partial results of all parts as lanes, each value of the accumulator.
    fn read_lanes(&self, f: &mut Frame, partial: &Partial, until: Option<Value>) -> Vec<Value> {
        let p = &self.plan;
        let lane = self.part_lanes(f);
        let lane = f.b.cast(lane, f.em.index);
        let offset = self.part_offset(f, lane);
        let mut mask = match until {
            Some(part) => Some(f.b.cmp(CmpOp::Lt, lane, part)),
            None => (!p.parts.is_power_of_two()).then(|| f.below(None, lane, p.parts)),
        };
        if let Some(m) = self.mask_of_kept(f) {
            mask = Some(mask.map_or(m, |old| f.b.binary(B::And, old, m)));
        }
        let mut read = vec![];
        for (i, &(slot, dtype)) in partial.places.iter().enumerate() {
            let p = f.em.address(&mut f.b, slot, &self.row_number());
            let shape = joint(&f.b.shape(p), &f.b.shape(offset));
            let p = f.b.broadcast_to(p, &shape);
            let offset = f.b.broadcast_to(offset, &shape);
            let p = f.b.ptr_add(p, offset);
            let other = mask.map(|_| self.nothing(f, &partial.reduced, i, types::stored(dtype)));
            read.push(f.b.load(p, mask, other));
        }
        read
    }
    /// Where a part's results start.
    fn part_offset(&self, f: &mut Frame, part: Value) -> Value {
        let rows = f.em.int(&mut f.b, (self.rows() * self.per_wide_row) as i64);
        if self.per_wide_row == 1 {
            return f.b.binary(B::Mul, part, rows);
        }
        let columns = self.plan.kept.last().map_or(1, |c| c.extent);
        let (per_wide_row, columns) =
            (f.em.int(&mut f.b, self.per_wide_row as i64), f.em.int(&mut f.b, columns as i64));
        let (above, within) = (f.b.binary(B::Div, part, per_wide_row), f.b.binary(B::Rem, part, per_wide_row));
        let (above, within) = (f.b.binary(B::Mul, above, rows), f.b.binary(B::Mul, within, columns));
        f.b.binary(B::Add, above, within)
    }
    fn combine_loop(&self, f: &mut Frame, partial: &Partial, until: Option<Value>) -> Acc {
        let lanes: Vec<Value> = self.plan.kept.iter().filter_map(|c| f.em.coords.get(&c.id)?.lane).collect();
        let shape = lanes.iter().fold(vec![], |s, l| joint(&s, &f.b.shape(*l)));
        let mut start = vec![];
        for (i, &(_, dtype)) in partial.places.iter().enumerate() {
            // Hundreds of parts are added one after the other: f32 sums accumulate in f64, so that they are rounded
            // once.
            let elem = match (&partial.reduced, types::held(dtype)) {
                (Reduced::One { op: ReduceOp::Sum, .. }, Elem::F32) => Elem::F64,
                (_, elem) => elem,
            };
            let nothing = self.nothing(f, &partial.reduced, i, elem);
            start.push(f.b.broadcast_to(nothing, &shape));
        }
        let mut pointers = vec![];
        for &(slot, _) in &partial.places {
            let p = f.em.address(&mut f.b, slot, &self.row_number());
            pointers.push(f.b.broadcast_to(p, &shape));
        }
        let mask = self.mask_of_kept(f);
        let index = f.em.index;
        let until = match until {
            Some(part) => f.b.cast(part, Elem::I32),
            None => f.b.i32(self.plan.parts as i64),
        };
        let bounds = [f.b.i32(0), until, f.b.i32(1)];
        let end = looped(f, bounds, &start, |f, i, now| {
            let part = f.b.cast(i, index);
            let offset = self.part_offset(f, part);
            let mut read = vec![];
            for &p in &pointers {
                let p = f.b.ptr_add(p, offset);
                read.push(f.b.load(p, mask, None));
            }
            let length = f.b.i32(self.plan.part_len() as i64);
            let before = f.b.binary(B::Mul, i, length);
            let before = f.b.cast(before, Elem::F32);
            let count = self.count_of_part(f, i);
            let old = self.read(f, &partial.reduced, &mut now.iter().copied());
            let new = self.read(f, &partial.reduced, &mut read.into_iter());
            let acc = self.both(f, &partial.reduced, [old, new], [before, count]);
            [Some(acc.value), acc.other].into_iter().flatten().collect()
        });
        self.read(f, &partial.reduced, &mut end.into_iter())
    }

    /// Narrows blocks of columns, so that a block has all parts of its columns.
    fn narrow_to_parts(&mut self) {
        if let Some(c) = self.plan.kept.iter_mut().find(|c| c.block > 1) {
            c.block = c.block.min(columns_of(self.plan.parts));
        }
        if self.combines_in_lanes() {
            let rows: usize = self.plan.kept.iter().map(|c| c.block).product();
            let warps = joining_warps(rows * self.plan.parts.next_power_of_two());
            self.plan.warps = self.plan.warps.max(warps);
        }
    }
    /// The shape of the step that stores.
    fn last_shape(&self, parts: usize) -> Shape {
        Shape { reversed: self.plan.reversed, ..self.plan.shape(parts) }
    }
    fn final_step(&mut self, done: &[Partial]) -> Result<Work<kiln_block::BlockProgram>, LowerError> {
        let along = self.scene.stores.iter().any(|s| s.at.uses(self.plan.row.id));
        let parts = if along { self.plan.parts } else { 1 };
        if !along && self.plan.machine.arch.is_gpu() {
            self.narrow_to_parts();
        }
        let mut used = self.reads(self.scene.roots().into_iter(), done);
        used.extend(self.scene.stores.iter().map(|s| (s.slot, s.dtype, false)));
        let mut f = open_with(self.name, self.scene, &self.last_shape(parts), &used, self.plan.machine);
        self.combine_parts(&mut f, done);
        let lane = f.iota(self.plan.row);
        self.write(&mut f, lane);
        f.finish()
    }
}

pub fn places(partial: &[Partial], readonly: bool) -> impl Iterator<Item = Used> + '_ {
    partial.iter().flat_map(move |p| p.places.iter().map(move |&(slot, dtype)| (slot, dtype, readonly)))
}
