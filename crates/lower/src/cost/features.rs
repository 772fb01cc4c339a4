//! What the cost model and the proposer of schedules know of a nest.
use crate::cost::arithmetic::{self, Instructions};
use crate::nest::Nest;
use crate::nest::passes::in_passes;
use crate::scalar::dag::{Guard, NodeId, NodeOp, Scene, Store};
use crate::scalar::expr::{Atom, CoordId, Expr};
use kiln_block::passes::layout::WINDOW;
use kiln_graph::DType;
use kiln_machine::{isa::SECTOR, ptxas};
use kiln_plan::exec::Slot;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// One access to memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Access {
    pub slot: Slot,
    /// Bytes of an element.
    pub bytes: usize,
    pub store: bool,
    /// Elements between neighbours along each coordinate of the nest; `None` along one that a quotient, a remainder or
    /// an index that is read depends on.
    pub strides: Vec<Option<i64>>,
    /// Elements from the start of the buffer, where all coordinates are 0.
    pub offset: i64,
    /// Share of the points that are within its bounds.
    pub share: f64,
    /// How many values of each coordinate may be within them; `usize::MAX` without bounds.
    pub within: Vec<usize>,
    /// Needed after the reductions alone.
    pub after_reductions: bool,
    /// Needed for several levels of reductions, or for one and after it.
    pub live_across: bool,
    /// Its index is read from memory.
    pub gathered: bool,
    /// It is within bounds that not all points are in.
    pub guarded: bool,
    /// All its elements are in the sectors of those of an access before it.
    pub shares_sectors: bool,
    /// The first access with the same strides and bytes of an element, by its number, and the first that is also within
    /// the same bounds: itself where none is before it.
    pub same_strides_as: usize,
    pub same_bounds_as: usize,
}

/// A nest in numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NestFeatures {
    /// Extent of each coordinate of the nest, and whether it belongs to the row.
    pub coords: Vec<(usize, bool)>,
    pub accesses: Vec<Access>,
    /// Levels of reductions, each of which needs the results of those before it.
    pub levels: usize,
    /// Passes over rows that do not fit a tile, for these: some levels have what is computed beside those before them.
    pub passes: usize,
    /// Special functions of an element that are needed as [`Access::live_across`] is.
    pub kept: usize,
    /// Reductions and scans.
    pub reductions: usize,
    pub scans: usize,
    /// Reductions and scans that combine a row in its order.
    pub ordered: usize,
    /// Arithmetic, which every element needs.
    pub arithmetic: Vec<Instructions>,
    /// Quotients in index expressions and bounds, which every vector needs.
    pub indices: Vec<Instructions>,
    /// Different bounds within which accesses are.
    pub guards: usize,
    /// Whether several loads are those of a window.
    pub window: bool,
    /// Bytes that are read and written once.
    pub bytes: u64,
}

/// Spans of memory along a coordinate: elements from one to the next, where that is known, and how many.
pub struct SpanAxis {
    pub stride: Option<u64>,
    pub extent: usize,
}

/// Where an access goes in a tile: along each coordinate from span to span, and the elements of a span.
pub struct SpanPattern {
    pub axes: Vec<SpanAxis>,
    pub length: u64,
}

impl SpanPattern {
    /// Number of spans.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|a| a.extent).product()
    }
}

impl Access {
    /// Whether it reads or writes other elements along some of these coordinates.
    pub fn moves_along(&self, coords: &[usize]) -> bool {
        coords.iter().any(|i| self.strides[*i] != Some(0))
    }
    /// Whether all its elements are in the sectors of those of another access, whose spans have so many elements.
    fn in_lines_of(&self, other: &Access, length: u64, extents: &[usize]) -> bool {
        let near = |bytes: i64| bytes.unsigned_abs() as usize * self.bytes <= SECTOR;
        let distance = (self.offset - other.offset).unsigned_abs();
        let alike = |i: usize| match (self.strides[i], other.strides[i]) {
            (Some(a), Some(b)) => a == b || near(a.abs().max(b.abs()) * extents[i] as i64),
            (a, b) => a == b,
        };
        self.slot == other.slot
            && self.gathered == other.gathered
            && near(self.offset - other.offset)
            && distance < length
            && (0..extents.len()).all(alike)
    }
    /// Where it goes in a tile of these extents: the number of spans of memory without gaps of so many elements or
    /// more, and the elements from the start to the end of one.
    pub fn spans(&self, extents: impl Fn(usize) -> usize, gap: usize) -> (f64, f64) {
        let (spans, length) = self.spans_within(extents, gap);
        (spans * self.share, length)
    }
    /// The same for tiles that are within its bounds.
    pub fn spans_within(&self, extents: impl Fn(usize) -> usize, gap: usize) -> (f64, f64) {
        let pattern = self.span_pattern(&extents, gap);
        let within = (0..self.within.len()).map(|i| extents(i) as f64 / extents(i).min(self.within[i]) as f64);
        (pattern.count() as f64 * within.product::<f64>(), pattern.length as f64)
    }
    /// The spans of one of several tiles that is within its bounds.
    pub fn span_pattern(&self, extents: impl Fn(usize) -> usize, gap: usize) -> SpanPattern {
        let mut axes: Vec<SpanAxis> = vec![];
        for (i, s) in self.strides.iter().enumerate() {
            let extent = extents(i).min(self.within[i]);
            if *s != Some(0) && extent > 1 {
                axes.push(SpanAxis { stride: s.map(i64::unsigned_abs), extent });
            }
        }
        axes.sort_unstable_by_key(|a| (a.stride.unwrap_or(u64::MAX), a.extent));
        let mut pattern = SpanPattern { axes: vec![], length: 1 };
        for axis in axes {
            match axis.stride.filter(|stride| *stride < pattern.length + gap as u64) {
                Some(stride) => pattern.length += stride * (axis.extent as u64 - 1),
                None => pattern.axes.push(axis),
            }
        }
        pattern
    }
    /// Elements that end a span: those of a sector.
    pub fn gap(&self) -> usize {
        SECTOR / self.bytes.clamp(1, SECTOR)
    }
    /// Bytes of the sectors that it touches.
    fn touched(&self, extents: &[usize]) -> f64 {
        let (spans, length) = self.spans(|i| extents[i], self.gap());
        spans * length * self.bytes as f64
    }
}

impl NestFeatures {
    /// Bytes of the widest element along the row, or of a point.
    pub fn widest(&self) -> usize {
        let rows = self.coords.iter().any(|c| c.1);
        let moves = |a: &&Access| !rows || self.coords.iter().zip(&a.strides).any(|(c, s)| c.1 && *s != Some(0));
        self.accesses.iter().filter(moves).map(|a| a.bytes).max().unwrap_or(4).max(1)
    }
    /// Whether results are stored along rows.
    pub fn stored_along(&self) -> bool {
        self.accesses.iter().any(|a| a.store && self.coords.iter().zip(&a.strides).any(|(c, s)| c.1 && *s != Some(0)))
    }
    /// Notes again what accesses have in common, after extents or strides have changed.
    pub fn compare(&mut self) {
        let extents: Vec<usize> = self.coords.iter().map(|c| c.0).collect();
        compare(&mut self.accesses, &extents);
    }
    /// The numbers of a nest.
    pub fn of(nest: &Nest) -> NestFeatures {
        let reader = Reader::new(nest);
        let (scene, space) = (reader.scene, &nest.space);
        let extents: Vec<usize> = space.coords.iter().map(|c| c.extent).collect();
        let mut accesses = reader.accesses();
        compare(&mut accesses, &extents);
        let nodes = || reader.live.iter().map(|n| scene.dag.node(*n));
        let levels = scene.levels();
        let bounds = reader.bounds();
        NestFeatures {
            coords: space.coords.iter().map(|c| (c.extent, c.row)).collect(),
            levels: levels.len(),
            passes: in_passes(scene, &levels, &space.row_ids(), nest.row().unwrap_or(1)).len(),
            kept: reader.kept_functions(),
            reductions: nodes().filter(|n| matches!(n.op, NodeOp::Reduce { .. })).count(),
            scans: nodes().filter(|n| matches!(n.op, NodeOp::Scan { .. })).count(),
            ordered: nodes().filter(|n| !n.sums_in_any_order()).count(),
            arithmetic: reader.arithmetic(),
            indices: reader.indices(&bounds),
            guards: bounds.len(),
            window: has_window(&accesses),
            bytes: transferred(nest, &accesses, &extents),
            accesses,
        }
    }
}

/// Reads the numbers of a nest from its program.
struct Reader<'a> {
    nest: &'a Nest<'a>,
    scene: &'a Scene,
    live: Vec<NodeId>,
    /// Coordinates that each node depends on, those of reductions included.
    deps: Vec<Vec<CoordId>>,
    phases: Vec<Phase>,
}

impl<'a> Reader<'a> {
    fn new(nest: &'a Nest) -> Reader<'a> {
        let scene: &Scene = &nest.scene;
        let phases = phases(scene, &scene.levels());
        Reader { nest, scene, live: scene.live(), deps: scene.dag.depends(&[]), phases }
    }
    /// Loads, then stores.
    fn accesses(&self) -> Vec<Access> {
        let dag = &self.scene.dag;
        let loads = self.live.iter().filter_map(|&n| match &dag.node(n).op {
            NodeOp::Load { slot, at, guards } => {
                let access = self.access(*slot, dag.node(n).dtype, at, guards);
                let Phase { levels, after } = self.phases[n as usize];
                Some(Access { after_reductions: levels == 0, live_across: levels + usize::from(after) > 1, ..access })
            }
            _ => None,
        });
        let store = |s: &Store| Access { store: true, ..self.access(s.slot, s.dtype, &s.at, &s.guards) };
        loads.chain(self.scene.stores.iter().map(store)).collect()
    }
    /// An access after the reductions, which has nothing in common with others yet.
    fn access(&self, slot: Slot, dtype: DType, at: &Expr, guards: &[Guard]) -> Access {
        let space = &self.nest.space;
        let mut within = vec![usize::MAX; space.coords.len()];
        for (id, count) in guards.iter().filter_map(Guard::bounds) {
            for i in space.among(&[id]) {
                within[i] = within[i].min(count);
            }
        }
        let mut gathered = false;
        at.nodes(&mut |_| gathered = true);
        Access {
            slot,
            bytes: dtype.bytes(),
            store: false,
            strides: self.strides(at),
            offset: at.constant,
            share: guards.iter().map(Guard::share).product(),
            within,
            after_reductions: true,
            live_across: false,
            gathered,
            guarded: !guards.is_empty(),
            shares_sectors: false,
            same_strides_as: 0,
            same_bounds_as: 0,
        }
    }
    /// An index that a node computes has no stride along what the node depends on.
    fn strides(&self, e: &Expr) -> Vec<Option<i64>> {
        let mut computed = vec![];
        e.nodes(&mut |n| computed.extend(self.deps[n as usize].iter().copied()));
        self.nest.space.coords.iter().map(|c| e.stride(c.id).filter(|_| !computed.contains(&c.id))).collect()
    }
    /// Coordinates of the nest that an expression depends on.
    fn coords_of(&self, e: &Expr) -> Vec<usize> {
        let mut ids = vec![];
        e.coords(&mut |c| ids.push(c));
        e.nodes(&mut |n| ids.extend(&self.deps[n as usize]));
        self.nest.space.among(&ids)
    }
    /// Different bounds within which accesses are.
    fn bounds(&self) -> BTreeSet<&'a Guard> {
        let loads = self.live.iter().filter_map(|n| match &self.scene.dag.node(*n).op {
            NodeOp::Load { guards, .. } => Some(guards),
            _ => None,
        });
        loads.chain(self.scene.stores.iter().map(|s| &s.guards)).flatten().collect()
    }
    /// Quotients in index expressions, and bounds.
    fn indices(&self, bounds: &BTreeSet<&Guard>) -> Vec<Instructions> {
        let mut quotients: BTreeSet<(&Expr, i64)> = BTreeSet::new();
        self.scene.exprs(&mut |e| {
            e.walk(&mut |e| {
                quotients.extend(e.terms.iter().filter_map(|(a, _)| match a {
                    Atom::Div(x, k) | Atom::Mod(x, k) => Some((&**x, *k)),
                    _ => None,
                }))
            })
        });
        let mut indices: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
        for (x, k) in quotients {
            *indices.entry(self.coords_of(x)).or_default() += arithmetic::quotient(k.unsigned_abs() as usize);
        }
        for g in bounds {
            *indices.entry(self.coords_of(&g.expr)).or_default() += ptxas().instructions.bound;
        }
        arithmetic::list(indices)
    }
    fn arithmetic(&self) -> Vec<Instructions> {
        let (dag, space) = (&self.scene.dag, &self.nest.space);
        let deps = dag.depends(&space.row_ids());
        let mut found: BTreeMap<Vec<usize>, f64> = BTreeMap::new();
        for (n, count) in arithmetic::arithmetic(dag, &self.live) {
            // A reduction adds up every element of its row.
            let element = match dag.node(n).op {
                NodeOp::Reduce { body, .. } => body,
                _ => n,
            };
            *found.entry(space.among(&deps[element as usize])).or_default() += count;
        }
        arithmetic::list(found)
    }
    /// Special functions of an element that are needed as [`Access::live_across`] is.
    fn kept_functions(&self) -> usize {
        let (dag, row) = (&self.scene.dag, self.nest.space.row_ids());
        let deps = dag.depends(&row);
        let is_along = |n: NodeId| row.is_empty() || row.iter().any(|r| deps[n as usize].contains(r));
        let is_kept = |(n, count): &(NodeId, f64)| {
            let Phase { levels, after } = self.phases[*n as usize];
            is_along(*n) && *count >= ptxas().instructions.recomputed && levels + usize::from(after) > 1
        };
        arithmetic::arithmetic(dag, &self.live).iter().filter(|n| is_kept(n)).count()
    }
}

/// Bytes that the accesses read and write once.
fn transferred(nest: &Nest, accesses: &[Access], extents: &[usize]) -> u64 {
    let mut sizes: BTreeMap<Slot, f64> = BTreeMap::new();
    for a in accesses.iter().filter(|a| !a.shares_sectors) {
        *sizes.entry(a.slot).or_default() += a.touched(extents);
    }
    let whole = |(slot, bytes): (Slot, f64)| nest.size(slot).map_or(bytes, |size| bytes.min(size as f64));
    sizes.into_iter().map(whole).sum::<f64>() as u64
}

/// Whether several loads are those of a window.
fn has_window(accesses: &[Access]) -> bool {
    let loads = || accesses.iter().filter(|a| !a.store);
    let alike = |a: &Access, b: &Access| b.slot == a.slot && b.strides == a.strides;
    loads().any(|a| loads().filter(|b| alike(a, b)).count() >= WINDOW)
}

/// Notes of each access what others before it have in common with it.
fn compare(accesses: &mut [Access], extents: &[usize]) {
    let lengths: Vec<u64> = accesses.iter().map(|a| a.span_pattern(|i| extents[i], a.gap()).length).collect();
    for at in 0..accesses.len() {
        let (before, from) = accesses.split_at_mut(at);
        let a = &mut from[0];
        a.shares_sectors = before.iter().zip(&lengths).any(|(b, length)| a.in_lines_of(b, *length, extents));
        let alike = |b: &Access| b.bytes == a.bytes && b.strides == a.strides;
        let within = before.iter().position(|b| alike(b) && b.within == a.within);
        (a.same_strides_as, a.same_bounds_as) = (before.iter().position(alike).unwrap_or(at), within.unwrap_or(at));
    }
}

/// Where a node is needed.
#[derive(Clone, Copy, Default)]
struct Phase {
    /// In how many levels of reductions.
    levels: usize,
    /// After all of them.
    after: bool,
}

/// Where each node is needed.
fn phases(scene: &Scene, levels: &[Vec<NodeId>]) -> Vec<Phase> {
    let dag = &scene.dag;
    let reduces = |n: NodeId| matches!(dag.node(n).op, NodeOp::Reduce { .. });
    let mut found = vec![Phase::default(); dag.nodes.len()];
    for level in levels {
        let bodies: Vec<NodeId> = level.iter().flat_map(|n| dag.node(*n).operands()).collect();
        dag.reach_until(&bodies, reduces).into_iter().for_each(|n| found[n as usize].levels += 1);
    }
    let results: Vec<NodeId> = scene.stores.iter().map(|s| s.value).collect();
    dag.reach_until(&results, reduces).into_iter().for_each(|n| found[n as usize].after = true);
    found
}
