//! What an instance of a schedule does: the elements, accesses and steps of a thread in the layout that code generation gives its tile.
use crate::cost::arithmetic::{Instructions, quotient};
use crate::cost::features::{Access, NestFeatures, SECTOR};
use crate::cost::lanes::{self, lines, lines_of_run, of_run, places, written};
use crate::cost::price::{Bit, TileFootprint, TiledAccess, WARP, log2};
use crate::cost::windows;
use kiln_block::layout::{LANE_BITS, take_lanes};
use kiln_block::passes::layout::{SMALL, VECTOR};
use kiln_plan::{Axis, Schedule, Step};
use std::collections::BTreeMap;

/// Cache lines that take as long as a pass of shared memory.
const PASS: f64 = 2.0;

/// How accesses with some strides see a tile.
#[derive(Clone, Copy)]
struct Way {
    /// The split axis along which they are contiguous.
    along: Option<usize>,
    /// Elements of a tile, and the share of the tiles' elements that are in the nest.
    elements: f64,
    valid: f64,
    /// Bytes, without offsets.
    align: usize,
    /// Most elements of a vector along the last coordinate of a fused axis, and whether memory goes on where it starts again.
    ends: Option<(usize, bool)>,
    /// Instances from one to the next along what is contiguous in memory.
    next: f64,
}

impl TileFootprint {
    /// What an instance of a schedule does; the schedule fits the nest.
    pub fn of(facts: &NestFeatures, schedule: &Schedule) -> TileFootprint {
        let rows: Vec<usize> = (0..facts.coords.len()).filter(|i| facts.coords[*i].1).collect();
        let kept = (0..facts.coords.len()).filter(|i| !facts.coords[*i].1);
        let mut axes: BTreeMap<Axis, Vec<usize>> =
            kept.enumerate().map(|(n, i)| (Axis::Kept(n as u8), vec![i])).collect();
        if !rows.is_empty() {
            axes.insert(Axis::Row, rows.clone());
        }
        let mut splits: Vec<(Axis, usize)> = vec![];
        let (mut warps, mut blocks, mut parts) = (1usize, 1usize, 1usize);
        let (mut peel, mut runs, mut bound, mut lanes_along) = (0usize, false, 1usize, LANE_BITS);
        let mut w = TileFootprint::default();
        for step in &schedule.steps {
            match step {
                Step::Fuse(names) => {
                    let all = names.iter().flat_map(|a| axes.get(a).cloned().unwrap_or_default()).collect();
                    names[1..].iter().for_each(|a| _ = axes.remove(a));
                    axes.insert(names[0], all);
                }
                Step::Split(axis, block) => splits.push((*axis, *block)),
                Step::Widen(_, n) => w.wide = Some(*n),
                Step::Warps(n) => warps = *n,
                Step::Cluster(n) => blocks = *n,
                Step::Vector(n) => bound = *n,
                Step::Lanes(n) => lanes_along = log2(*n) as usize,
                Step::Registers(n) => w.limit = Some(*n as f64),
                Step::SplitReduce(_, n) => parts = *n,
                Step::LookBack(_, group) => w.look_back = Some(*group as f64),
                Step::Peel(_, n) => (peel, w.peeled) = (*n, true),
                Step::StageRows => runs = true,
                Step::Tail(..) => w.tail = true,
                Step::StageOperands => w.copies = true,
                Step::Persist(n) => w.persist = *n as f64,
                Step::Prefetch(_) => w.prefetch = true,
                Step::Reverse(_) => w.reversed = true,
                _ => {}
            }
        }
        let warps = warps * blocks;
        let extent = |a: &Axis| -> usize { axes.get(a).map_or(1, |c| c.iter().map(|i| facts.coords[*i].0).product()) };
        let row: usize = rows.iter().map(|i| facts.coords[*i].0).product();
        let block_of = |a: &Axis| splits.iter().find(|s| s.0 == *a).map(|s| s.1);
        let chunk = block_of(&Axis::Row).unwrap_or(1);
        if w.look_back.is_some() {
            parts = row.div_ceil(chunk);
        }
        let trips = if rows.is_empty() { 1 } else { row.div_ceil(parts).div_ceil(chunk) };
        w.unshared_instances = axes
            .keys()
            .filter(|a| **a != Axis::Row)
            .map(|a| extent(a).div_ceil(block_of(a).unwrap_or(1)) as f64)
            .product();
        (w.parts, w.trips, w.chunk) = (parts as f64, trips as f64, chunk as f64);
        w.instances = w.unshared_instances * w.parts;
        (w.blocks, w.warps) = (blocks as f64, warps as f64);
        let tile: usize = splits.iter().map(|s| s.1).product();
        w.tile = tile as f64;
        w.whole = trips == 1 && parts == 1;
        let uses = |a: &Access, coords: &[usize]| coords.iter().any(|i| a.strides[*i] != Some(0));
        w.halves = facts.accesses.iter().all(|a| a.bytes <= 2);
        w.stored_along = facts.accesses.iter().any(|a| a.store && (rows.is_empty() || uses(a, &rows)));
        w.stores = facts.accesses.iter().filter(|a| a.store && uses(a, &rows)).count() as f64;
        w.rereads_row = facts.levels > 1 || w.stored_along && facts.levels > 0;
        let more = usize::from(w.stored_along && facts.levels > 0);
        // Instances that share the row of a scan read it for their totals first.
        let totals = usize::from(facts.scans > 0 && parts > 1 && w.look_back.is_none());
        let levels = if chunk > 1 { facts.passes } else { facts.levels };
        w.passes = if w.whole || rows.is_empty() { 1.0 } else { (levels.max(1) + more + totals) as f64 };
        // Extents of coordinates inside a tile.
        let mut inner: Vec<Option<usize>> = vec![None; facts.coords.len()];
        for (axis, block) in &splits {
            let coords = axes.get(axis).cloned().unwrap_or_default();
            let mut left = *block;
            for (n, i) in coords.iter().enumerate().rev() {
                let here = if n == 0 { left } else { left.min(facts.coords[*i].0) }.max(1);
                inner[*i] = Some(here);
                left = left.div_ceil(here).max(1);
            }
        }
        let inside = |i: usize| inner[i].unwrap_or(1);
        let threads = 32 * warps;
        let width = |wish: usize| if tile >= threads { wish.min(tile / threads).max(1) } else { 1 };
        // What follows from strides: accesses of a window have the same.
        let way = |access: &Access| -> Way {
            let stride = |i: usize| access.strides[i];
            let along = splits.iter().rposition(|(axis, _)| {
                axes.get(axis).and_then(|c| c.last()).is_some_and(|i| stride(*i) == Some(1) && inside(*i) > 1)
            });
            let elements =
                (0..facts.coords.len()).filter(|i| stride(*i) != Some(0)).map(|i| inside(i) as f64).product();
            let valid = splits.iter().map(|(axis, block)| {
                let coords = axes.get(axis).map_or(&[][..], |c| &c[..]);
                let count = if *axis == Axis::Row { parts * trips } else { extent(axis).div_ceil(*block) };
                let there = extent(axis) as f64 / (count * block) as f64;
                if uses(access, coords) { there.min(1.0) } else { 1.0 }
            });
            let mut align = SECTOR;
            for i in 0..facts.coords.len() {
                // A fused axis may go on where its last coordinate starts again.
                let mut at = i;
                for pair in axes.values().flat_map(|c| c.windows(2)).filter(|c| c[0] >= i) {
                    let whole = stride(pair[1]).map(|s| s * facts.coords[pair[1]].0 as i64);
                    at = if pair[0] == at && whole == stride(at) { pair[1] } else { at };
                }
                let bytes = match stride(at).map(|s| s.unsigned_abs() as usize) {
                    None => access.bytes,
                    Some(0) => SECTOR,
                    Some(1) if inner[at].is_some() => SECTOR,
                    Some(s) => 1 << (s * access.bytes).trailing_zeros(),
                };
                align = align.min(bytes);
            }
            // Vectors end where the last coordinate of a fused axis starts again, unless memory goes on there.
            let of_axis = along.and_then(|n| axes.get(&splits[n].0)).map_or(&[][..], |c| &c[..]);
            let ends = match of_axis {
                [.., before, last] => {
                    let extent = facts.coords[*last].0;
                    let goes_on = stride(*before) == stride(*last).map(|s| s * extent as i64);
                    Some((1 << extent.trailing_zeros().min(4), goes_on))
                }
                _ => None,
            };
            // The last axis is the fastest one of the grid.
            let neighbour = axes.iter().find(|a| a.1.iter().any(|i| stride(*i) == Some(1)));
            let later = axes.iter().filter(|a| *a.0 != Axis::Row && neighbour.is_some_and(|n| a.0 > n.0));
            let next = match neighbour {
                Some((Axis::Kept(_), _)) => {
                    later.map(|(a, _)| extent(a).div_ceil(block_of(a).unwrap_or(1)) as f64).product()
                }
                _ => 0.0,
            };
            Way { along, elements, valid: valid.product(), align, ends, next }
        };
        let mut ways: Vec<Way> = vec![];
        // Elements of a run, spans, and elements of one.
        let mut runs_of: Vec<(f64, f64, f64)> = vec![];
        let mut seen: Vec<TiledAccess> = vec![];
        for (at, access) in facts.accesses.iter().enumerate() {
            let of = if access.same_strides_as < at { ways[access.same_strides_as] } else { way(access) };
            ways.push(of);
            let found = match runs_of.get(access.same_bounds_as) {
                Some(known) => *known,
                None => {
                    let (spans, length) = access.spans_within(inside, access.gap());
                    (access.spans_within(inside, 1).1, spans, length)
                }
            };
            runs_of.push(found);
            let (run, spans, length) = found;
            // Elements at computed positions are taken to be near each other, as in an image that is resampled.
            let near = of.along.is_none() && access.gathered;
            let (spans, length) = if near { (access.share, of.elements) } else { (spans * access.share, length) };
            let read = |a: &Access| a.slot == access.slot && a.gathered;
            let again = !access.store && (access.shares_sectors || near && facts.accesses[..at].iter().any(read));
            let mut align = of.align;
            // What others load beside it is taken out of their vectors.
            let offset = if again { 0 } else { access.offset.unsigned_abs() as usize * access.bytes };
            if offset > 0 {
                align = align.min(1 << offset.trailing_zeros().min(5));
            }
            let along_row = of.along.is_some_and(|n| splits[n].0 == Axis::Row);
            if peel > 0 && along_row {
                let own = (0..facts.coords.len()).any(|i| !facts.coords[i].1 && access.strides[i] != Some(0));
                align = if own || w.copies { align.max((peel * access.bytes).min(16)) } else { access.bytes };
            }
            if runs && along_row {
                align = 16;
            }
            let mut vector =
                if of.along.is_some() { (align.min(16) / access.bytes).min(run as usize).max(1) } else { 1 };
            let mut masked = false;
            if let Some((most, goes_on)) = of.ends.filter(|(most, _)| vector > *most) {
                match goes_on && !(access.guarded && facts.window) {
                    true => masked = access.guarded,
                    false => vector = most,
                }
            }
            seen.push(TiledAccess {
                access,
                along: of.along,
                elements: of.elements,
                spans,
                length,
                align,
                vector: 1 << vector.ilog2(),
                valid: of.valid,
                lines: 0.0,
                written: [0.0; 2],
                masked,
                again,
                loads: None,
                next: of.next,
            });
        }
        windows::share_sectors(&mut seen, inside);
        // The largest contiguous access gives the layout.
        let weight = |s: &TiledAccess| if s.along.is_some() { s.elements * s.access.bytes as f64 } else { 0.0 };
        let largest = seen.iter().rev().max_by(|a, b| weight(a).total_cmp(&weight(b))).filter(|s| s.along.is_some());
        let fastest = largest.and_then(|s| s.along).or(splits.len().checked_sub(1));
        // Blocks of fewer elements have layouts of their own.
        let full = largest.map_or(0.0, |s| s.elements);
        let alike = seen.iter().filter(|s| s.along == fastest && s.elements >= full);
        let most = alike.clone().map(|s| width(s.vector)).max().unwrap_or(1);
        // A vector of the widest type at most: its lanes would not fill sectors.
        let small = |s: &&TiledAccess| s.elements * s.access.bytes as f64 <= SMALL as f64;
        let widest = alike.filter(|s| !small(s)).map(|s| s.access.bytes).max();
        let mut vector = widest.map_or(most, |bytes| most.min((VECTOR / bytes).max(1))).max(width(bound));
        let row_at = splits.iter().position(|s| s.0 == Axis::Row);
        let reduced = row_at.filter(|_| facts.levels > 0 || facts.scans > 0);
        if let (Some(f), Some(r)) = (fastest, reduced)
            && f != r
            && w.whole
            && facts.levels > 0
        {
            let each = splits[f].1 >> (5 + log2(warps));
            let bytes = seen.iter().filter(|s| s.along == fastest).map(|s| s.access.bytes).max().unwrap_or(4);
            if each * bytes >= 4 {
                vector = vector.min(each.max(1));
            }
        }
        if runs && let Some(r) = row_at {
            vector = if splits[r].1 <= 32 { width(splits[r].1.min(16)) } else { 1 };
        }
        if facts.scans > 0
            && fastest == row_at
            && let Some(f) = fastest
        {
            let bytes = seen.iter().map(|s| s.access.bytes).max().unwrap_or(4);
            vector = vector.max(width((16 / bytes).min(splits[f].1)));
        }
        let order = fastest.into_iter().chain((0..splits.len()).rev().filter(|n| Some(*n) != fastest));
        let mut bits: Vec<Bit> = order.flat_map(|n| (0..log2(splits[n].1)).map(move |b| (n, b))).collect();
        let first = log2(vector).min(fastest.map_or(0, |f| log2(splits[f].1))) as usize;
        let mut registers: Vec<Bit> = bits.drain(..first).collect();
        if facts.scans > 0 && fastest != row_at {
            let spare = bits.len().saturating_sub(5 + log2(warps) as usize);
            let own: Vec<Bit> = bits.iter().copied().filter(|b| Some(b.0) == row_at).take(spare).collect();
            bits.retain(|b| !own.contains(b));
            registers.extend(own);
        }
        let along = bits.iter().filter(|b| Some(b.0) == fastest).count();
        let lanes = take_lanes(&mut bits, along, lanes_along);
        let mut of_warps: Vec<Option<Bit>> = vec![];
        for _ in 0..log2(warps) {
            let other = bits.iter().position(|b| Some(b.0) != reduced);
            let last = if facts.scans > 0 { bits.len().saturating_sub(1) } else { 0 };
            of_warps.push((!bits.is_empty()).then(|| bits.remove(other.unwrap_or(last))));
        }
        registers.extend(bits);
        let idle = (5 - lanes.len()) as u32 + of_warps.iter().filter(|b| b.is_none()).count() as u32;
        let idle = f64::from(1u32 << idle);
        // Registers of a tile's lanes that no instance uses are dropped; those of a tail are not in the tile. A thread has neighbours of what is
        // scanned, so that beyond the end of a row there are whole threads.
        let there = |(n, (axis, block)): (usize, &(Axis, usize))| {
            if facts.scans > 0 && *axis == Axis::Row && Some(n) == fastest {
                return 1.0;
            }
            let held = if Some(n) == fastest { first } else { 0 };
            let own = registers.iter().filter(|b| b.0 == n).count().saturating_sub(held);
            // Of a row in a thread the masks are constants.
            let apart = w.tail && *axis == Axis::Row || bound >= *block && Some(n) == fastest;
            let chunk = if apart { 1 } else { *block >> own };
            let lanes = extent(axis).div_ceil(chunk.max(1)) * chunk.max(1);
            (lanes as f64 / *block as f64).min(1.0)
        };
        w.registers_for_tile = f64::from(1u32 << registers.len().min(31));
        w.elements_per_thread = (w.registers_for_tile * splits.iter().enumerate().map(there).product::<f64>()).max(1.0);
        // A vector that crosses the end of an axis has other coordinates in each element.
        let of_vector = fastest.map_or(&[][..], |f| axes.get(&splits[f].0).map_or(&[][..], |c| &c[..]));
        let crosses =
            of_vector.len() > 1 && of_vector.last().is_some_and(|i| !facts.coords[*i].0.is_multiple_of(1 << first));
        w.crosses = crosses;
        w.bounded_elements =
            if crosses { w.elements_per_thread } else { (w.elements_per_thread / f64::from(1u32 << first)).max(1.0) };
        let of = |axis: &Axis| axes.get(axis).map_or(&[][..], |c| &c[..]);
        // Elements of a thread along an axis of the tile; what gives them their places is the same for those of a vector, unless it crosses the
        // end of an axis.
        let elements = |n: usize| {
            let own = registers.iter().filter(|b| b.0 == n).count();
            (f64::from(1u32 << own.min(31)) * there((n, &splits[n]))).max(1.0)
        };
        let vectors = |n: usize| match Some(n) == fastest && !crosses {
            true => (elements(n) / f64::from(1u32 << first)).max(1.0),
            false => elements(n),
        };
        let times = |moves: &dyn Fn(&Axis) -> bool, each: &dyn Fn(usize) -> f64| {
            let own: f64 = (0..splits.len()).filter(|n| moves(&splits[*n].0)).map(each).product();
            own * if moves(&Axis::Row) { w.trips * w.passes } else { 1.0 }
        };
        let all = |list: &[Instructions], each: &dyn Fn(usize) -> f64| -> f64 {
            let one = |i: &Instructions| i.count * times(&|axis| of(axis).iter().any(|c| i.of.contains(c)), each);
            list.iter().map(one).sum()
        };
        let digits = |axis: &Axis| -> f64 {
            let fused = of(axis).iter().skip(1);
            fused.map(|i| quotient(facts.coords[*i].0)).sum::<f64>() * times(&|other| other == axis, &vectors)
        };
        (w.arithmetic, w.indices) = (all(&facts.arithmetic, &elements), all(&facts.indices, &vectors));
        w.indices += splits.iter().map(|(axis, _)| digits(axis)).sum::<f64>();
        let on_row = |b: &Bit| Some(b.0) == row_at && row_at.is_some();
        let own = (log2(warps) - log2(blocks)) as usize;
        w.along = row_at.is_some() && fastest == row_at;
        w.lanes = lanes.iter().filter(|b| on_row(b)).count() as u32;
        w.across_warps = of_warps[..own].iter().flatten().filter(|b| on_row(b)).count() as u32;
        w.across_blocks = of_warps[own..].iter().flatten().filter(|b| on_row(b)).count() as u32;
        w.results = w.elements_per_thread / f64::from(1u32 << registers.iter().filter(|b| on_row(b)).count().min(31));
        let coords: Vec<&[usize]> = splits.iter().map(|(axis, _)| axes.get(axis).map_or(&[][..], |c| &c[..])).collect();
        let places = places(facts, &coords, &lanes);
        w.passes_of_rows = if runs && (lanes_along < LANE_BITS || facts.scans > 0) {
            let apart = if facts.scans > 0 { 1 << first } else { 1 };
            let bytes = seen.iter().map(|s| s.access.bytes).max().unwrap_or(4);
            lanes::passes(row, (w.lanes, apart), bytes)
        } else {
            1.0
        };
        // Windows have many accesses that are alike.
        for n in 0..seen.len() {
            let like = seen[n].access.same_strides_as;
            seen[n].lines = if like < n { seen[like].lines } else { lines(seen[n].access, &places) };
            if seen[n].access.store {
                let vector = if seen[n].along == fastest { seen[n].vector.min(1 << first) } else { 1 };
                seen[n].written = written(seen[n].access, &places, vector * seen[n].access.bytes, seen[n].align);
            }
        }
        if let Some((axis, block)) = fastest.map(|f| &splits[f])
            && let Some(last) = axes.get(axis).and_then(|coords| coords.last().copied())
        {
            // At the end of an axis as many neighbours have one mask as its extent is a multiple of.
            let (n, whole) = (extent(axis), bound >= *block && !crosses);
            let alike = n.is_multiple_of(*block) || whole;
            let masked = if alike { usize::MAX } else { 1 << n.trailing_zeros() };
            let own = if crosses { 1 } else { n.min(1 << first) };
            windows::share_loads(&mut seen, last, windows::Own { neighbours: own, masked, whole });
        }
        for s in seen.iter().filter(|s| !s.access.store) {
            // What is the same for all elements of an axis is loaded once.
            let moves = |n: &usize| of(&splits[*n].0).iter().any(|c| s.access.strides[*c] != Some(0));
            let own: f64 = (0..splits.len()).filter(moves).map(elements).product();
            let vector = if s.along == fastest { s.vector.min(1 << first).min(16 / s.access.bytes.max(1)) } else { 1 };
            let (loads, vector) = s.loads.unwrap_or((1.0 / vector.max(1) as f64, vector));
            w.loaded += own * loads * ((vector * s.access.bytes) as f64 / 4.0).max(1.0);
        }
        for s in &seen {
            w.access(s, (fastest, 1 << first, runs && s.along.is_some_and(|n| splits[n].0 == Axis::Row)), &rows, idle);
        }
        w
    }

    /// Adds what an access costs an instance.
    fn access(
        &mut self,
        s: &TiledAccess,
        (fastest, held, run): (Option<usize>, usize, bool),
        rows: &[usize],
        idle: f64,
    ) {
        let (bytes, store) = (s.access.bytes as f64, s.access.store);
        let times = if rows.iter().any(|i| s.access.strides[*i] != Some(0)) {
            self.trips * if store { 1.0 } else { self.passes }
        } else {
            1.0
        };
        let mut each = if s.elements == self.tile {
            self.elements_per_thread
        } else {
            (self.elements_per_thread * s.elements / self.tile).max(1.0)
        };
        let mut vector = if s.along == fastest && s.along.is_some() { s.vector.min(held) } else { 1 };
        if s.elements == 1.0 {
            (each, vector) = (1.0, 1);
        }
        // Rows of a tile that are aligned differently read what they share at places of their own.
        if self.peeled && self.tile > self.chunk && rows.iter().any(|i| s.access.strides[*i] != Some(0)) {
            each = self.elements_per_thread;
        }
        let small = s.elements.min(self.tile) * bytes <= SMALL as f64;
        let scatters = store && s.vector < held && s.vector * s.access.bytes < 8 && !small;
        let converted = s.along.is_some() && (scatters || s.along != fastest && s.elements >= self.tile);
        if converted || run {
            vector = s.vector.min(16 / s.access.bytes.max(1)).max(1);
        }
        if s.masked && vector > 1 {
            self.masked += each * times;
        }
        if run {
            self.packed += each * times;
            self.lines += (self.passes_of_rows - 1.0) * PASS * each * times * self.warps;
        } else if converted {
            self.moved += each * times;
        }
        // An access takes 16 bytes.
        let vector = vector.min(16 / s.access.bytes.max(1)).max(1);
        let accesses = s.loads.map_or(each / vector as f64, |(loads, _)| each * loads) * times * self.warps / idle;
        self.accesses += accesses;
        // Bulk copies of persistent kernels touch each line once.
        let of_warp = WARP * (vector * s.access.bytes) as f64;
        let contiguous = |bytes: f64| (bytes / lanes::LINE as f64).max(1.0);
        let lines = match s.along {
            Some(_) if converted || run => {
                (of_warp / (s.length * bytes)).max(1.0) * contiguous((s.length * bytes).min(of_warp))
            }
            _ => s.lines,
        };
        self.lines += if self.persist > 0.0 && !store { 0.0 } else { accesses * lines.min(WARP) };
        // What several accesses read of one buffer at computed positions is mostly the same.
        let spans = if s.again { 0.0 } else { s.spans * s.valid };
        let length = s.length * bytes;
        let mut touched = spans * of_run(length as usize, s.align);
        if store {
            // No cache of a multiprocessor combines them.
            let of_warp = WARP * (vector * s.access.bytes) as f64;
            let each = if converted || run {
                let length = length.min(of_warp);
                [of_run(length as usize, s.align), lines_of_run(length as usize, s.align)].map(|n| of_warp / length * n)
            } else {
                s.written
            };
            // Registers outside of the nest are left out of `self.each` already.
            let valid = (s.valid * self.registers_for_tile / self.elements_per_thread).min(1.0);
            let [sectors, lines] = each.map(|n| accesses / times * n * valid * s.access.share);
            touched = touched.max(sectors);
            // Lines of computed positions are not known.
            self.written += if s.access.gathered { 0.0 } else { lines * lanes::LINE as f64 * times };
        }
        self.sectors += touched * SECTOR as f64 * times;
        let whole = match store && s.align < SECTOR && length >= SECTOR as f64 {
            true => lanes::moved(length as usize, s.align),
            false => of_run(length as usize, s.align) * SECTOR as f64,
        };
        let beside = spans * (whole - length);
        if beside > 0.0 && s.next > 0.0 {
            self.shared.push((beside, s.next));
        }
        self.spans += spans * times;
        // A persistent kernel has rows in shared memory.
        if !store && self.persist == 0.0 {
            let words = each * bytes / 4.0 * s.access.share;
            self.words += words;
            self.words_once += if s.again { 0.0 } else { words };
            self.words_live_across += if s.access.held { words } else { 0.0 };
            self.words_after_reduction += if s.access.late { words } else { 0.0 };
        }
    }
}
