//! What an instance of a schedule does: the elements, accesses and steps of a thread in the layout of its tile.
use crate::cost::arithmetic::{Instructions, quotient};
use crate::cost::features::NestFeatures;
use crate::cost::lanes::{self, lines, lines_of_run, of_run, places, written};
use crate::cost::price::{TileFootprint, TiledAccess, WARP, log2};
use crate::cost::tile_layout::TileLayout;
use crate::cost::tiled_nest::TiledNest;
use crate::cost::windows;
use kiln_block::layout::LANE_BITS;
use kiln_machine::isa::SECTOR;
use kiln_plan::{Axis, Schedule};

/// Cache lines that take as long as a pass of shared memory.
const PASS: f64 = 2.0;

/// Elements of a thread along the axes of its tile.
struct ThreadElements<'a> {
    nest: &'a TiledNest<'a>,
    layout: &'a TileLayout,
    /// The tail is a tile of its own.
    has_tail: bool,
    /// A vector crosses the end of an axis, and has other coordinates in each element.
    crosses: bool,
    /// How often an instance visits its part of a row.
    visits: f64,
}

impl ThreadElements<'_> {
    /// Share of the lanes along axis number `n` of a tile that are in the nest. Registers of others are dropped where
    /// no instance uses them; those of a tail are not in the tile. A thread has neighbours of what is scanned, so that
    /// beyond the end of a row there are whole threads.
    fn used_share(&self, n: usize) -> f64 {
        let (nest, layout) = (self.nest, self.layout);
        let (axis, block) = &nest.splits[n];
        let is_fastest = Some(n) == layout.fastest;
        if nest.facts.scans > 0 && *axis == Axis::Row && is_fastest {
            return 1.0;
        }
        let of_vector = if is_fastest { layout.vector_bits } else { 0 };
        let bits = layout.register_bits(n).saturating_sub(of_vector);
        // Of a row in a thread the masks are constants.
        let is_constant = self.has_tail && *axis == Axis::Row || nest.bound_vector.unwrap_or(1) >= *block && is_fastest;
        let chunk = if is_constant { 1 } else { *block >> bits };
        let lanes = nest.extent(axis).div_ceil(chunk.max(1)) * chunk.max(1);
        (lanes as f64 / *block as f64).min(1.0)
    }
    /// Elements along axis number `n`.
    fn along(&self, n: usize) -> f64 {
        (f64::from(1u32 << self.layout.register_bits(n).min(31)) * self.used_share(n)).max(1.0)
    }
    /// The same where those of a vector count once, unless it crosses the end of an axis: what gives them their places
    /// is the same.
    fn vectors_along(&self, n: usize) -> f64 {
        match Some(n) == self.layout.fastest && !self.crosses {
            true => (self.along(n) / f64::from(1u32 << self.layout.vector_bits)).max(1.0),
            false => self.along(n),
        }
    }
    /// How often a thread computes what differs along the axes that `moves` names, with so many elements along each.
    fn times(&self, moves: impl Fn(&Axis) -> bool, elements: &dyn Fn(usize) -> f64) -> f64 {
        let splits = &self.nest.splits;
        let along: f64 = (0..splits.len()).filter(|n| moves(&splits[*n].0)).map(elements).product();
        along * if moves(&Axis::Row) { self.visits } else { 1.0 }
    }
    /// Instructions of all that a list counts.
    fn instructions(&self, list: &[Instructions], elements: &dyn Fn(usize) -> f64) -> f64 {
        let moves = |i: &Instructions, axis: &Axis| self.nest.coords(axis).iter().any(|c| i.of.contains(c));
        list.iter().map(|i| i.count * self.times(|axis| moves(i, axis), elements)).sum()
    }
    /// Instructions that give a thread its coordinates of a fused axis.
    fn coordinates(&self, axis: &Axis) -> f64 {
        let fused = self.nest.coords(axis).iter().skip(1);
        let quotients: f64 = fused.map(|i| quotient(self.nest.facts.coords[*i].0)).sum();
        quotients * self.times(|other| other == axis, &|n| self.vectors_along(n))
    }
}

impl TileFootprint {
    /// What an instance of a schedule does; the schedule fits the nest.
    pub fn of(facts: &NestFeatures, schedule: &Schedule) -> TileFootprint {
        let mut w = TileFootprint::default();
        let nest = TiledNest::new(facts, schedule, &mut w);
        w.count_instances(&nest);
        let mut accesses = nest.accesses();
        let layout = TileLayout::new(&nest, &accesses);
        w.crosses = vectors_cross(&nest, &layout);
        let visits = w.trips * w.passes;
        let thread = ThreadElements { nest: &nest, layout: &layout, has_tail: w.tail, crosses: w.crosses, visits };
        w.count_elements(&thread);
        w.count_bits_of_row(&nest, &layout);
        w.count_lines(&nest, &layout, &mut accesses);
        w.share_loads(&nest, &layout, &mut accesses);
        w.count_loaded(&thread, &accesses);
        for (n, s) in accesses.iter().enumerate() {
            w.access(n, s, &nest, &layout);
        }
        w
    }
    /// Instances, and how each goes over its part of a row.
    fn count_instances(&mut self, nest: &TiledNest) {
        let (w, facts) = (self, nest.facts);
        let chunk = nest.chunk();
        w.unshared_instances = nest.unshared_instances();
        (w.parts, w.trips, w.chunk) = (nest.parts as f64, nest.trips as f64, chunk as f64);
        w.instances = w.unshared_instances * w.parts;
        (w.blocks, w.warps) = (nest.blocks as f64, nest.warps as f64);
        w.tile = nest.tile() as f64;
        w.whole = nest.trips == 1 && nest.parts == 1;
        w.halves = facts.accesses.iter().all(|a| a.bytes <= 2);
        let rows = &nest.rows;
        w.stored_along = facts.accesses.iter().any(|a| a.store && (rows.is_empty() || a.moves_along(rows)));
        w.stores = facts.accesses.iter().filter(|a| a.store && a.moves_along(rows)).count() as f64;
        w.rereads_row = facts.levels > 1 || w.stored_along && facts.levels > 0;
        let more = usize::from(w.stored_along && facts.levels > 0);
        // Instances that share the row of a scan read it for their totals first.
        let totals = usize::from(facts.scans > 0 && nest.parts > 1 && w.look_back.is_none());
        let levels = if chunk > 1 { facts.passes } else { facts.levels };
        w.passes = if w.whole || rows.is_empty() { 1.0 } else { (levels.max(1) + more + totals) as f64 };
    }
    /// Elements of a thread, and the instructions that they take.
    fn count_elements(&mut self, thread: &ThreadElements) {
        let (w, nest, layout) = (self, thread.nest, thread.layout);
        let shares = (0..nest.splits.len()).map(|n| thread.used_share(n));
        w.registers_for_tile = f64::from(1u32 << layout.registers.len().min(31));
        w.elements_per_thread = (w.registers_for_tile * shares.product::<f64>()).max(1.0);
        let of_vectors = (w.elements_per_thread / f64::from(1u32 << layout.vector_bits)).max(1.0);
        w.bounded_elements = if w.crosses { w.elements_per_thread } else { of_vectors };
        w.arithmetic = thread.instructions(&nest.facts.arithmetic, &|n| thread.along(n));
        w.indices = thread.instructions(&nest.facts.indices, &|n| thread.vectors_along(n));
        w.indices += nest.splits.iter().map(|(axis, _)| thread.coordinates(axis)).sum::<f64>();
    }
    /// Where the bits of a row are, and partial results of a thread.
    fn count_bits_of_row(&mut self, nest: &TiledNest, layout: &TileLayout) {
        let w = self;
        let of_block = (log2(nest.warps) - log2(nest.blocks)) as usize;
        w.along = layout.row.is_some() && layout.fastest == layout.row;
        w.lanes = layout.lanes.iter().filter(|b| layout.is_on_row(b)).count() as u32;
        let on_row = |bits: &[Option<_>]| bits.iter().flatten().filter(|b| layout.is_on_row(b)).count() as u32;
        w.across_warps = on_row(&layout.warps[..of_block]);
        w.across_blocks = on_row(&layout.warps[of_block..]);
        let in_registers = layout.registers.iter().filter(|b| layout.is_on_row(b)).count();
        w.results = w.elements_per_thread / f64::from(1u32 << in_registers.min(31));
    }
    /// Cache lines of each access, and passes of shared memory for rows that are staged.
    fn count_lines(&mut self, nest: &TiledNest, layout: &TileLayout, accesses: &mut [TiledAccess]) {
        let (w, facts) = (self, nest.facts);
        let coords: Vec<&[usize]> = nest.splits.iter().map(|(axis, _)| nest.coords(axis)).collect();
        let places = places(facts, &coords, &layout.lanes);
        w.passes_of_rows = if nest.staged_rows && (nest.lane_bits < LANE_BITS || facts.scans > 0) {
            let neighbours = if facts.scans > 0 { layout.vector() } else { 1 };
            let bytes = accesses.iter().map(|s| s.access.bytes).max().unwrap_or(4);
            lanes::passes(nest.row(), (w.lanes, neighbours), bytes)
        } else {
            1.0
        };
        // Windows have many accesses that are alike.
        for n in 0..accesses.len() {
            let like = accesses[n].access.same_strides_as;
            accesses[n].lines = if like < n { accesses[like].lines } else { lines(accesses[n].access, &places) };
            if accesses[n].access.store {
                let s = &accesses[n];
                let vector = if s.along == layout.fastest { s.vector.min(layout.vector()) } else { 1 };
                accesses[n].written = written(s.access, &places, vector * s.access.bytes, s.align);
            }
        }
    }
    /// What neighbours of a thread share of their windows.
    fn share_loads(&self, nest: &TiledNest, layout: &TileLayout, accesses: &mut [TiledAccess]) {
        let Some((axis, block)) = layout.fastest.map(|f| &nest.splits[f]) else { return };
        let Some(last) = nest.axes.get(axis).and_then(|coords| coords.last().copied()) else { return };
        // At the end of an axis as many neighbours have one mask as its extent is a multiple of.
        let (n, whole) = (nest.extent(axis), nest.bound_vector.unwrap_or(1) >= *block && !self.crosses);
        let masked = if n.is_multiple_of(*block) || whole { usize::MAX } else { 1 << n.trailing_zeros() };
        let neighbours = if self.crosses { 1 } else { n.min(layout.vector()) };
        windows::share_loads(accesses, last, windows::ThreadWindow { neighbours, masked, whole });
    }
    /// 32-bit words that a thread loads, each as often as it holds it.
    fn count_loaded(&mut self, thread: &ThreadElements, accesses: &[TiledAccess]) {
        let (nest, layout) = (thread.nest, thread.layout);
        for s in accesses.iter().filter(|s| !s.access.store) {
            // What is the same for all elements of an axis is loaded once.
            let moves = |n: &usize| s.access.moves_along(nest.coords(&nest.splits[*n].0));
            let elements: f64 = (0..nest.splits.len()).filter(moves).map(|n| thread.along(n)).product();
            let vector = match s.along == layout.fastest {
                true => s.vector.min(layout.vector()).min(16 / s.access.bytes.max(1)),
                false => 1,
            };
            let (loads, vector) = s.loads.unwrap_or((1.0 / vector.max(1) as f64, vector));
            self.loaded += elements * loads * ((vector * s.access.bytes) as f64 / 4.0).max(1.0);
        }
    }

    /// Adds what access number `n` costs an instance.
    fn access(&mut self, n: usize, s: &TiledAccess, nest: &TiledNest, layout: &TileLayout) {
        let thread = ThreadAccess::of(self, Path::of(self, n, s, nest, layout), s, nest, layout);
        if s.masked && thread.neighbours > 1 {
            self.masked += thread.elements * thread.times;
        }
        match thread.path {
            Path::StagedRows => {
                self.packed += thread.elements * thread.times;
                let passes = self.passes_of_rows - 1.0;
                self.lines += passes * PASS * thread.elements * thread.times * self.warps;
            }
            Path::Converted => self.moved += thread.elements * thread.times,
            Path::Registers => {}
        }
        self.accesses += thread.accesses;
        // Bulk copies of persistent kernels touch each line once.
        let copied = self.persist > 0.0 && !s.access.store;
        self.lines += if copied { 0.0 } else { thread.accesses * thread.lines(s).min(WARP) };
        self.count_sectors(s, &thread);
        // A persistent kernel has rows in shared memory.
        if !s.access.store && self.persist == 0.0 {
            let words = thread.elements * s.access.bytes as f64 / 4.0 * s.access.share;
            self.words += words;
            self.words_once += if s.again { 0.0 } else { words };
            self.words_live_across += if s.access.live_across { words } else { 0.0 };
            self.words_after_reduction += if s.access.after_reductions { words } else { 0.0 };
        }
    }
    /// Sectors that an access touches, and what neighbouring instances share of them.
    fn count_sectors(&mut self, s: &TiledAccess, thread: &ThreadAccess) {
        let (bytes, store) = (s.access.bytes as f64, s.access.store);
        // What several accesses read of one buffer at computed positions is mostly the same.
        let spans = if s.again { 0.0 } else { s.spans * s.valid };
        let length = s.length * bytes;
        let mut touched = spans * of_run(length as usize, s.align);
        if store {
            // Registers outside of the nest are left out of the elements of a thread already.
            let valid = (s.valid * self.registers_for_tile / self.elements_per_thread).min(1.0);
            let [sectors, lines] =
                thread.written(s).map(|n| thread.accesses / thread.times * n * valid * s.access.share);
            touched = touched.max(sectors);
            // Lines of computed positions are not known.
            self.written += if s.access.gathered { 0.0 } else { lines * lanes::LINE as f64 * thread.times };
        }
        self.sectors += touched * SECTOR as f64 * thread.times;
        let whole = match store && s.align < SECTOR && length >= SECTOR as f64 {
            true => lanes::moved(length as usize, s.align),
            false => of_run(length as usize, s.align) * SECTOR as f64,
        };
        let at_edges = spans * (whole - length);
        if at_edges > 0.0 && s.next > 0.0 {
            self.shared.push((at_edges, s.next));
        }
        self.spans += spans * thread.times;
    }
}

/// How elements get to or from the layout of the tile.
#[derive(Clone, Copy, PartialEq)]
enum Path {
    Registers,
    /// In a layout of the access, by way of shared memory.
    Converted,
    /// As a run of whole rows through shared memory.
    StagedRows,
}

/// What a thread does for an access.
struct ThreadAccess {
    /// How often an instance makes it.
    times: f64,
    /// Elements of a thread, each time.
    elements: f64,
    path: Path,
    /// Neighbours that lie in the thread's registers, and elements of one of its accesses.
    neighbours: usize,
    vector: usize,
    /// Accesses of all warps.
    accesses: f64,
}

impl ThreadAccess {
    fn of(w: &TileFootprint, path: Path, s: &TiledAccess, nest: &TiledNest, layout: &TileLayout) -> ThreadAccess {
        let bytes = s.access.bytes;
        let moves_along_row = nest.rows.iter().any(|i| s.access.strides[*i] != Some(0));
        let times = match moves_along_row {
            true => w.trips * if s.access.store { 1.0 } else { w.passes },
            false => 1.0,
        };
        let mut neighbours =
            if s.along == layout.fastest && s.along.is_some() { s.vector.min(layout.vector()) } else { 1 };
        if s.elements == 1.0 {
            neighbours = 1;
        }
        if path != Path::Registers {
            neighbours = s.vector.min(16 / bytes.max(1)).max(1);
        }
        // Rows of a tile that are aligned differently read what they share at places of their own.
        let elements = if w.peeled && w.tile > w.chunk && moves_along_row {
            w.elements_per_thread
        } else if s.elements == 1.0 {
            1.0
        } else if s.elements == w.tile {
            w.elements_per_thread
        } else {
            (w.elements_per_thread * s.elements / w.tile).max(1.0)
        };
        // An access takes 16 bytes.
        let vector = neighbours.min(16 / bytes.max(1)).max(1);
        let loads = s.loads.map_or(elements / vector as f64, |(loads, _)| elements * loads);
        let accesses = loads * times * w.warps / layout.copies();
        ThreadAccess { times, elements, path, neighbours, vector, accesses }
    }
    /// Bytes of an access of a warp.
    fn bytes_of_warp(&self, s: &TiledAccess) -> f64 {
        WARP * (self.vector * s.access.bytes) as f64
    }
    /// Cache lines that an access of a warp touches.
    fn lines(&self, s: &TiledAccess) -> f64 {
        let (span, of_warp) = (s.length * s.access.bytes as f64, self.bytes_of_warp(s));
        match s.along {
            Some(_) if self.path != Path::Registers => {
                (of_warp / span).max(1.0) * (span.min(of_warp) / lanes::LINE as f64).max(1.0)
            }
            _ => s.lines,
        }
    }
    /// Sectors and cache lines that a store of a warp touches. No cache of a multiprocessor combines them.
    fn written(&self, s: &TiledAccess) -> [f64; 2] {
        if self.path == Path::Registers {
            return s.written;
        }
        let of_warp = self.bytes_of_warp(s);
        let length = (s.length * s.access.bytes as f64).min(of_warp);
        [of_run(length as usize, s.align), lines_of_run(length as usize, s.align)].map(|n| of_warp / length * n)
    }
}

impl Path {
    fn of(w: &TileFootprint, n: usize, s: &TiledAccess, nest: &TiledNest, layout: &TileLayout) -> Path {
        if nest.staged_rows && s.along.is_some_and(|n| nest.splits[n].0 == Axis::Row) {
            return Path::StagedRows;
        }
        let scatters = s.access.store && layout.scatters(n);
        match s.along.is_some() && (scatters || s.along != layout.fastest && s.elements >= w.tile) {
            true => Path::Converted,
            false => Path::Registers,
        }
    }
}

/// Whether vectors cross the end of an axis: each element has other coordinates then.
fn vectors_cross(nest: &TiledNest, layout: &TileLayout) -> bool {
    let coords = layout.fastest.map_or(&[][..], |f| nest.coords(&nest.splits[f].0));
    let ends = |i: &usize| !nest.facts.coords[*i].0.is_multiple_of(layout.vector());
    coords.len() > 1 && coords.last().is_some_and(ends)
}
