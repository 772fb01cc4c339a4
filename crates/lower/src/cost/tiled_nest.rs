//! A nest in numbers, cut into the tiles of a schedule: axes, blocks, and how each access sees a tile.
use crate::cost::features::{Access, NestFeatures};
use crate::cost::price::{TileFootprint, TiledAccess};
use crate::cost::windows;
use kiln_block::layout::LANE_BITS;
use kiln_machine::isa::SECTOR;
use kiln_plan::{Axis, Schedule, Step};
use std::collections::BTreeMap;

/// The axes of a nest and the blocks into which a schedule cuts them.
pub struct TiledNest<'a> {
    pub facts: &'a NestFeatures,
    /// Coordinates of each axis; an axis of several is fused.
    pub axes: BTreeMap<Axis, Vec<usize>>,
    /// Axes of the tile, and elements of it along each.
    pub splits: Vec<(Axis, usize)>,
    /// Coordinates of the row.
    pub rows: Vec<usize>,
    /// Extents of coordinates inside a tile; `None` for those that are not split.
    pub inner: Vec<Option<usize>>,
    /// Warps of an instance, and blocks that share it.
    pub warps: usize,
    pub blocks: usize,
    /// Instances that share a row, and chunks of it that each visits.
    pub parts: usize,
    pub trips: usize,
    /// Elements of a vector of peeled rows; 0 where they are not peeled.
    pub peel: usize,
    /// Operands of peeled rows are copied to where they are aligned.
    pub copies_operands: bool,
    /// Rows of a tile are loaded as one run.
    pub staged_rows: bool,
    /// Neighbours along the last axis that a thread holds, if a schedule binds them.
    pub bound_vector: Option<usize>,
    /// log2 of the lanes along the contiguous axis, at most.
    pub lane_bits: usize,
}

/// How accesses with some strides see a tile.
#[derive(Clone, Copy)]
struct StridePattern {
    /// The split axis along which they are contiguous.
    along: Option<usize>,
    /// Elements of a tile, and the share of the tiles' elements that are in the nest.
    elements: f64,
    valid: f64,
    /// Bytes, without offsets.
    align: usize,
    /// Most elements of a vector along the last coordinate of a fused axis, and whether memory goes on where it starts
    /// again.
    ends: Option<(usize, bool)>,
    /// Instances from one to the next along what is contiguous in memory.
    next: f64,
}

/// The elements that an access reads of a tile: those of a run, how many spans there are, and elements of one.
#[derive(Clone, Copy)]
struct Spans {
    run: f64,
    count: f64,
    length: f64,
}

impl<'a> TiledNest<'a> {
    /// The tiles of a schedule that fits the nest; what its steps say of an instance is noted in `w`.
    pub fn new(facts: &'a NestFeatures, schedule: &Schedule, w: &mut TileFootprint) -> TiledNest<'a> {
        let rows: Vec<usize> = (0..facts.coords.len()).filter(|i| facts.coords[*i].1).collect();
        let kept = (0..facts.coords.len()).filter(|i| !facts.coords[*i].1);
        let mut axes: BTreeMap<Axis, Vec<usize>> =
            kept.enumerate().map(|(n, i)| (Axis::Kept(n as u8), vec![i])).collect();
        if !rows.is_empty() {
            axes.insert(Axis::Row, rows.clone());
        }
        let mut nest = TiledNest {
            facts,
            axes,
            splits: vec![],
            rows,
            inner: vec![],
            warps: 1,
            blocks: 1,
            parts: 1,
            trips: 1,
            peel: 0,
            copies_operands: false,
            staged_rows: false,
            bound_vector: None,
            lane_bits: LANE_BITS,
        };
        schedule.steps.iter().for_each(|step| nest.apply(step, w));
        nest.warps *= nest.blocks;
        let (row, chunk) = (nest.row(), nest.chunk());
        if w.look_back.is_some() {
            nest.parts = row.div_ceil(chunk);
        }
        nest.trips = if nest.rows.is_empty() { 1 } else { row.div_ceil(nest.parts).div_ceil(chunk) };
        nest.inner = nest.extents_in_tile();
        nest
    }
    fn apply(&mut self, step: &Step, w: &mut TileFootprint) {
        match step {
            Step::Fuse(names) => {
                let all = names.iter().flat_map(|a| self.axes.get(a).cloned().unwrap_or_default()).collect();
                names[1..].iter().for_each(|a| _ = self.axes.remove(a));
                self.axes.insert(names[0], all);
            }
            Step::Split(axis, block) => self.splits.push((*axis, *block)),
            Step::Widen(_, n) => w.wide = Some(*n),
            Step::Warps(n) => self.warps = *n,
            Step::Cluster(n) => self.blocks = *n,
            Step::Vector(n) => self.bound_vector = Some(*n),
            Step::Lanes(n) => self.lane_bits = n.ilog2() as usize,
            Step::Registers(n) => w.limit = Some(*n as f64),
            Step::SplitReduce(_, n) => self.parts = *n,
            Step::LookBack(_, group) => w.look_back = Some(*group as f64),
            Step::Peel(_, n) => (self.peel, w.peeled) = (*n, true),
            Step::StageRows => self.staged_rows = true,
            Step::Tail(..) => w.tail = true,
            Step::StageOperands => (self.copies_operands, w.copies) = (true, true),
            Step::Persist(n) => w.persist = *n as f64,
            Step::Prefetch(_) => w.prefetch = true,
            Step::Reverse(_) => w.reversed = true,
            // The nest whose schedule this is has its neighbours as elements of its body.
            Step::Unroll(..) => {}
            // Of what multiplies, and of launches beside that.
            Step::Swap
            | Step::DualGemm
            | Step::ImplicitGemm
            | Step::FoldWindow(_)
            | Step::JoinResidues(_)
            | Step::Multiply(..)
            | Step::Stage(..)
            | Step::Copy(_)
            | Step::Group(_)
            | Step::PingPong
            | Step::BlockMask
            | Step::Call
            | Step::Launch(..) => {}
        }
    }
    /// Extents of coordinates inside a tile.
    fn extents_in_tile(&self) -> Vec<Option<usize>> {
        let mut inner = vec![None; self.facts.coords.len()];
        for (axis, block) in &self.splits {
            let mut left = *block;
            for (n, i) in self.coords(axis).iter().enumerate().rev() {
                let here = if n == 0 { left } else { left.min(self.facts.coords[*i].0) }.max(1);
                inner[*i] = Some(here);
                left = left.div_ceil(here).max(1);
            }
        }
        inner
    }

    /// Coordinates of an axis.
    pub fn coords(&self, axis: &Axis) -> &[usize] {
        self.axes.get(axis).map_or(&[][..], |c| &c[..])
    }
    /// Positions along an axis.
    pub fn extent(&self, axis: &Axis) -> usize {
        self.axes.get(axis).map_or(1, |c| c.iter().map(|i| self.facts.coords[*i].0).product())
    }
    fn block(&self, axis: &Axis) -> Option<usize> {
        self.splits.iter().find(|s| s.0 == *axis).map(|s| s.1)
    }
    /// Elements of a row, and of the chunk that a tile has of it.
    pub fn row(&self) -> usize {
        self.rows.iter().map(|i| self.facts.coords[*i].0).product()
    }
    pub fn chunk(&self) -> usize {
        self.block(&Axis::Row).unwrap_or(1)
    }
    /// Elements of a tile.
    pub fn tile(&self) -> usize {
        self.splits.iter().map(|s| s.1).product()
    }
    /// Instances without shared rows.
    pub fn unshared_instances(&self) -> f64 {
        let kept = self.axes.keys().filter(|a| **a != Axis::Row);
        kept.map(|a| self.extent(a).div_ceil(self.block(a).unwrap_or(1)) as f64).product()
    }
    /// Positions of a coordinate inside a tile.
    pub fn inside(&self, coord: usize) -> usize {
        self.inner[coord].unwrap_or(1)
    }

    /// What follows from strides: accesses of a window have the same.
    fn pattern(&self, access: &Access) -> StridePattern {
        let stride = |i: usize| access.strides[i];
        let along = self.splits.iter().rposition(|(axis, _)| {
            self.coords(axis).last().is_some_and(|i| stride(*i) == Some(1) && self.inside(*i) > 1)
        });
        let used = (0..self.facts.coords.len()).filter(|i| stride(*i) != Some(0));
        let elements = used.map(|i| self.inside(i) as f64).product();
        let valid = self.splits.iter().map(|(axis, block)| {
            let count = if *axis == Axis::Row { self.parts * self.trips } else { self.extent(axis).div_ceil(*block) };
            let there = self.extent(axis) as f64 / (count * block) as f64;
            if access.moves_along(self.coords(axis)) { there.min(1.0) } else { 1.0 }
        });
        StridePattern {
            along,
            elements,
            valid: valid.product(),
            align: self.alignment(access),
            ends: self.vector_ends(access, along),
            next: self.distance_of_neighbours(access),
        }
    }
    /// Bytes to which the accesses of instances are aligned, without offsets.
    fn alignment(&self, access: &Access) -> usize {
        let stride = |i: usize| access.strides[i];
        let mut align = SECTOR;
        for i in 0..self.facts.coords.len() {
            // A fused axis may go on where its last coordinate starts again.
            let mut at = i;
            for pair in self.axes.values().flat_map(|c| c.windows(2)).filter(|c| c[0] >= i) {
                let whole = stride(pair[1]).map(|s| s * self.facts.coords[pair[1]].0 as i64);
                at = if pair[0] == at && whole == stride(at) { pair[1] } else { at };
            }
            let bytes = match stride(at).map(|s| s.unsigned_abs() as usize) {
                None => access.bytes,
                Some(0) => SECTOR,
                Some(1) if self.inner[at].is_some() => SECTOR,
                Some(s) => 1 << (s * access.bytes).trailing_zeros(),
            };
            align = align.min(bytes);
        }
        align
    }
    /// Vectors end where the last coordinate of a fused axis starts again, unless memory goes on there.
    fn vector_ends(&self, access: &Access, along: Option<usize>) -> Option<(usize, bool)> {
        let [.., before, last] = along.map_or(&[][..], |n| self.coords(&self.splits[n].0)) else { return None };
        let extent = self.facts.coords[*last].0;
        let goes_on = access.strides[*before] == access.strides[*last].map(|s| s * extent as i64);
        Some((1 << extent.trailing_zeros().min(4), goes_on))
    }
    /// Instances from one to the next along what is contiguous in memory: the last axis is the fastest one of the grid.
    fn distance_of_neighbours(&self, access: &Access) -> f64 {
        let neighbour = self.axes.iter().find(|a| a.1.iter().any(|i| access.strides[*i] == Some(1)));
        let later = self.axes.iter().filter(|a| *a.0 != Axis::Row && neighbour.is_some_and(|n| a.0 > n.0));
        match neighbour {
            Some((Axis::Kept(_), _)) => {
                later.map(|(a, _)| self.extent(a).div_ceil(self.block(a).unwrap_or(1)) as f64).product()
            }
            _ => 0.0,
        }
    }

    /// The accesses of a tile, in the order of the nest's.
    pub fn accesses(&self) -> Vec<TiledAccess<'a>> {
        let facts = self.facts;
        let mut patterns: Vec<StridePattern> = vec![];
        let mut spans: Vec<Spans> = vec![];
        let mut all: Vec<TiledAccess> = vec![];
        for (at, access) in facts.accesses.iter().enumerate() {
            let alike = access.same_strides_as;
            patterns.push(if alike < at { patterns[alike] } else { self.pattern(access) });
            let known = spans.get(access.same_bounds_as).copied();
            spans.push(known.unwrap_or_else(|| {
                let (count, length) = access.spans_within(|i| self.inside(i), access.gap());
                Spans { run: access.spans_within(|i| self.inside(i), 1).1, count, length }
            }));
            all.push(self.tiled(at, &patterns[at], spans[at]));
        }
        windows::share_sectors(&mut all, |i| self.inside(i));
        all
    }
    /// Access number `at` of the nest.
    fn tiled(&self, at: usize, pattern: &StridePattern, spans: Spans) -> TiledAccess<'a> {
        let (facts, access) = (self.facts, &self.facts.accesses[at]);
        // Elements at computed positions are taken to be near each other, as in an image that is resampled.
        let near = pattern.along.is_none() && access.gathered;
        let (count, length) =
            if near { (access.share, pattern.elements) } else { (spans.count * access.share, spans.length) };
        let read = |a: &Access| a.slot == access.slot && a.gathered;
        let again = !access.store && (access.shares_sectors || near && facts.accesses[..at].iter().any(read));
        let align = self.alignment_of_vectors(access, pattern, again);
        let run = spans.run as usize;
        let mut vector = if pattern.along.is_some() { (align.min(16) / access.bytes).min(run).max(1) } else { 1 };
        let mut masked = false;
        if let Some((longest, goes_on)) = pattern.ends.filter(|(longest, _)| vector > *longest) {
            match goes_on && !(access.guarded && facts.window) {
                true => masked = access.guarded,
                false => vector = longest,
            }
        }
        TiledAccess {
            access,
            along: pattern.along,
            elements: pattern.elements,
            spans: count,
            length,
            align,
            run,
            vector: 1 << vector.ilog2(),
            valid: pattern.valid,
            lines: 0.0,
            written: [0.0; 2],
            masked,
            again,
            loads: None,
            next: pattern.next,
        }
    }
    /// Bytes to which vectors of an access are aligned.
    fn alignment_of_vectors(&self, access: &Access, pattern: &StridePattern, again: bool) -> usize {
        let mut align = pattern.align;
        // What others load beside it is taken out of their vectors.
        let offset = if again { 0 } else { access.offset.unsigned_abs() as usize * access.bytes };
        if offset > 0 {
            align = align.min(1 << offset.trailing_zeros().min(5));
        }
        let along_row = pattern.along.is_some_and(|n| self.splits[n].0 == Axis::Row);
        if self.peel > 0 && along_row {
            let coords = 0..self.facts.coords.len();
            let of_row = coords.into_iter().any(|i| !self.facts.coords[i].1 && access.strides[i] != Some(0));
            align = if of_row || self.copies_operands {
                align.max((self.peel * access.bytes).min(16))
            } else {
                access.bytes
            };
        }
        if self.staged_rows && along_row { 16 } else { align }
    }
}
