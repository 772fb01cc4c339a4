//! Schedules of row programs (reductions and scans): how rows and kept coordinates map to tiles, loops and the grid.
//!
//! - a row that fits a tile is held whole; short rows are processed several per tile;
//! - a long row is processed in chunks by a loop, once per level of reductions and once more to store it;
//! - rows that are strided in memory (a leading or middle axis is reduced) have a kept coordinate along the tile's last
//!   axis ([`columns`]);
//! - unaligned rows are peeled to alignment ([`unaligned`]), and short ones are loaded several at once
//!   ([`crate::multi_row`]);
//! - few long rows are split: each level leaves partial results in scratch, which the next one combines in a fixed
//!   order.
//!
//! Takes: a space with a row and its scalar program. Gives: a [`RowPlan`], which [`crate::row_loop`] emits.
use crate::LowerError;
use crate::columns;
use crate::dag::{NodeId, NodeOp, Scene};
use crate::expr::{CoordId, Expr};
use crate::facts;
use crate::multiply::{Forms, Multiply};
use crate::nest::Nest;
use crate::persistent::{self, Reads, Tiles};
use crate::replicate;
use crate::scan::rules::{self as scan, per_thread};
use crate::schedule;
use crate::space::Coord;
use crate::tile::{Cut, Shape};
use crate::unaligned::{self, Unaligned, VECTOR};
use crate::wide_rows;
use kiln_block::passes::persistent_rows;
use kiln_block::{Elem, Kernel};
use kiln_graph::{Type, UnaryOp};
use kiln_machine::Arch;
use kiln_plan::exec::Work;
use kiln_plan::{Axis, Hardware, Schedule, Step};

/// Steps with the scratch they use.
#[derive(Clone, Debug, Default)]
pub struct Emitted {
    pub scratch: Vec<Type>,
    pub steps: Vec<Work<Kernel>>,
    /// The schedule of the matmul or attention among them.
    pub made: Option<Multiply>,
}

impl Emitted {
    /// These steps, then those of `rest`, whose scratch buffers are numbered after these.
    pub fn then(mut self, rest: Emitted) -> Emitted {
        self.scratch.extend(rest.scratch);
        self.steps.extend(rest.steps);
        self.made = self.made.or(rest.made);
        self
    }
    /// One step.
    pub fn step(step: Work<Kernel>) -> Emitted {
        Emitted { steps: vec![step], ..Emitted::default() }
    }
    /// The same, of a matmul in other forms.
    pub fn in_forms(mut self, change: impl FnOnce(&mut Forms)) -> Emitted {
        if let Some(Multiply::Matmul(p)) = &mut self.made {
            change(&mut p.forms);
        }
        self
    }
}

/// The schedule of a row program.
#[derive(Clone, Debug)]
pub struct RowPlan<'m> {
    pub kept: Vec<Cut>,
    pub row: Cut,
    pub rank: usize,
    /// Instances that share a row.
    pub parts: usize,
    pub warps: usize,
    pub blocks: usize,
    pub machine: &'m Hardware<'m>,
    pub unaligned: Option<Unaligned>,
    /// The rows of a tile are one contiguous run in memory, and are loaded and stored as one.
    pub multi_row: bool,
    /// Clusters of a persistent kernel that loop over the rows.
    pub persistent: Option<usize>,
    /// Lanes of the tail, a tile of its own.
    pub tail: Option<usize>,
    /// Instances between one and that whose rows it prefetches.
    pub prefetch: Option<usize>,
    /// Operands that unaligned rows share are copied once for each alignment.
    pub copies: bool,
    /// Each chunk of a scanned row is an instance ([`crate::row_loop::look_back`]).
    pub look_back: bool,
}
impl RowPlan<'_> {
    /// Whether one tile holds the whole row.
    pub fn whole(&self) -> bool {
        self.row.block >= self.row.extent && self.parts == 1
    }
    /// Elements of a part, a multiple of the chunk.
    pub fn part_len(&self) -> usize {
        self.row.extent.div_ceil(self.parts).next_multiple_of(self.row.block)
    }
    /// Accumulator type of a scan of `elem`. A running sum has as many terms as its row: the host accumulates f32 in
    /// f64, as PyTorch does.
    pub fn scanned(&self, elem: Elem) -> Elem {
        if !self.machine.arch.is_gpu() && elem == Elem::F32 { Elem::F64 } else { elem }
    }
    pub fn shape(&self, parts: usize) -> Shape {
        Shape { cuts: self.kept.clone(), rank: self.rank, parts, warps: self.warps, blocks: self.blocks }
    }
}

/// The schedule of a nest with a row.
pub fn default(nest: &Nest) -> Result<Schedule, LowerError> {
    let Some(base) = base(nest) else {
        return Err(LowerError::Unsupported { kernel: nest.name.to_string(), why: "a reduction without a row".into() });
    };
    if let Some(wide) = wide_rows::default(nest, &base)? {
        return Ok(wide);
    }
    let mut schedule = base;
    let mut tiled = schedule::tile(nest, &schedule)?;
    let mut plan = schedule::row_plan(nest, &schedule, &mut tiled)?;
    let mut put = |step: Step| schedule.steps.push(step);
    if crate::multi_row::packs(&plan, &tiled.scene).is_ok() {
        put(Step::StageRows);
        plan.multi_row = true;
    } else if let Some(vector) = unaligned::peeled(&plan, &tiled.scene) {
        put(Step::Peel(Axis::Row, vector));
        plan = unaligned::peel(plan, &tiled.scene, &mut tiled.space, vector)
            .map_err(|why| LowerError::Invariant { kernel: nest.name.to_string(), what: why })?;
        if replicate::large(&plan) && plan.persistent.is_none() {
            put(Step::StageOperands);
        }
    }
    if let Some(lanes) = crate::tail::tail(&plan).filter(|n| crate::tail::fits(&plan, &tiled.scene, *n).is_ok()) {
        put(Step::Tail(Axis::Row, lanes));
    }
    if let Some(n) =
        crate::prefetch::distance(&tiled.scene, &plan).filter(|_| plan.whole() && plan.persistent.is_none())
    {
        put(Step::Prefetch(n));
    }
    Ok(schedule)
}

/// The tiles of a nest with a row.
pub fn base(nest: &Nest) -> Option<Schedule> {
    let kept: Vec<Coord> = nest.kept().copied().collect();
    let row: Vec<Coord> = nest.space.coords.iter().filter(|c| c.row).copied().collect();
    let along = contiguous(&nest.scene, &nest.space.coords, &kept, row.last()?.id);
    let n = nest.row()?;
    let limits = Limits::of(&nest.scene, &nest.space.row_ids(), nest.machine);
    Some(match along.and_then(|id| kept.iter().position(|c| c.id == id)) {
        Some(k) if kept[k].extent > 1 => columns::across(&kept, k, n, nest.machine, &limits),
        _ => inner(&kept, n, nest.machine, &limits),
    })
}

/// The kept coordinate along which accesses of the row's elements are contiguous, if that is so for more elements than
/// along the row.
fn contiguous(scene: &Scene, coords: &[Coord], kept: &[Coord], row: CoordId) -> Option<CoordId> {
    let mut along_row = 0.0;
    let mut votes: Vec<(f64, CoordId)> = kept.iter().map(|c| (0.0, c.id)).collect();
    let mut look = |at: &Expr| {
        // Elements the access touches.
        let weight: f64 = coords.iter().filter(|c| at.uses(c.id)).map(|c| c.extent as f64).product();
        match at.stride(row) {
            Some(0) => {}
            Some(1) | None => along_row += weight,
            Some(_) => votes.iter_mut().filter(|v| at.stride(v.1) == Some(1)).for_each(|v| v.0 += weight),
        }
    };
    for n in scene.live() {
        if let NodeOp::Load { at, .. } = &scene.dag.node(n).op {
            look(at);
        }
    }
    scene.stores.iter().for_each(|s| look(&s.at));
    let best = votes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > along_row).then_some(best.1)
}

/// Whether the row's elements are needed more than once: for a second reduction, or to be written.
fn reads_again(scene: &Scene, row: &[CoordId]) -> bool {
    let reduces = |n: NodeId| matches!(scene.dag.node(n).op, NodeOp::Reduce { .. });
    let nested = |n: NodeId| scene.dag.reach(&scene.dag.node(n).operands()).into_iter().any(reduces);
    scene.live().into_iter().any(|n| reduces(n) && nested(n))
        || scene.stores.iter().any(|s| row.iter().any(|r| s.at.uses(*r)))
}

/// Whether special functions are applied to elements after all reductions.
fn late(scene: &Scene, row: &[CoordId]) -> bool {
    let bodies: Vec<NodeId> = (scene.live().into_iter())
        .filter_map(|n| match scene.dag.node(n).op {
            NodeOp::Reduce { body, .. } => Some(body),
            _ => None,
        })
        .collect();
    let early = scene.dag.reach(&bodies);
    let slow = |n: &NodeId| match &scene.dag.node(*n).op {
        NodeOp::Unary(op, _) => !matches!(op, UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Relu | UnaryOp::Not),
        _ => false,
    };
    let deps = scene.dag.depends(row);
    let along = |n: &NodeId| row.iter().any(|r| deps[*n as usize].contains(r));
    scene.live().iter().any(|n| slow(n) && !early.contains(n) && along(n))
}

/// What a block can hold, and what it has to load and store.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Elements that a thread holds: 64 bytes of the widest type, as four vector loads in flight.
    pub thread: usize,
    /// Most elements of a tile, which may be spread over the blocks of a cluster.
    pub tile: usize,
    /// Bytes of the widest and of the narrowest element.
    pub bytes: usize,
    pub narrow: usize,
    /// Elements are needed more than once.
    pub again: bool,
    /// Something that all rows share, such as a gain, is read along the row.
    pub shares: bool,
    /// No scans or arg-reductions.
    pub any_order: bool,
    pub scans: bool,
    /// Rows are strided in memory: columns are reduced.
    pub columns: bool,
    /// So few rows that the blocks of all of them are resident at once.
    pub few: bool,
    /// Elements take so many instructions that more of them in flight for each thread leave too few warps.
    pub heavy: bool,
    pub reads: Reads,
}

impl Limits {
    fn of(scene: &Scene, row: &[CoordId], machine: &Hardware) -> Limits {
        let along = |e: &Expr| row.iter().any(|r| e.uses(*r));
        let loads: Vec<(&Expr, usize)> = scene
            .live()
            .into_iter()
            .filter_map(|n| match &scene.dag.node(n).op {
                NodeOp::Load { at, .. } if along(at) => Some((at, scene.dag.node(n).dtype.bytes())),
                _ => None,
            })
            .collect();
        let stored = scene.stores.iter().filter(|s| along(&s.at)).map(|s| s.dtype.bytes());
        let moved: Vec<usize> = loads.iter().map(|l| l.1).chain(stored).collect();
        let bytes = moved.iter().copied().max().unwrap_or(4);
        let narrow = moved.into_iter().min().unwrap_or(4);
        let alone = |e: &Expr| {
            let mut only = true;
            e.coords(&mut |c| only &= row.contains(&c));
            only
        };
        let shared = loads.iter().filter(|l| alone(l.0)).count();
        let shares = shared > 0 && shared < loads.len();
        let any_order = scene.live().into_iter().all(|n| scene.dag.node(n).sums_in_any_order());
        let scans = scene.live().into_iter().any(|n| matches!(scene.dag.node(n).op, NodeOp::Scan { .. }));
        let tile = match machine.arch {
            // What is kept of a row fits the L2 cache.
            Arch::Cpu => 65536,
            arch if arch.has_clusters() && !scans && bytes <= 4 => 262144,
            _ => 16384,
        };
        // Loads that vary with the innermost coordinate of the row have its full length.
        let long = |e: &Expr| row.last().is_some_and(|r| e.stride(*r).is_some_and(|s| s != 0));
        let own = loads.iter().filter(|l| !alone(l.0) && long(l.0)).count();
        let reduces = |n: &NodeId| matches!(scene.dag.node(*n).op, NodeOp::Reduce { .. });
        let reductions = if any_order { scene.live().iter().filter(|n| reduces(n)).count() } else { 0 };
        let alike = if narrow == bytes { bytes } else { 0 };
        let late = late(scene, row);
        let reads = Reads { own, shared, reductions, bytes: alike, late };
        let thread = per_thread(bytes);
        Limits {
            thread,
            tile,
            bytes,
            narrow,
            again: reads_again(scene, row),
            shares,
            any_order,
            scans,
            columns: false,
            few: false,
            heavy: scene.live().iter().map(|n| facts::weight(&scene.dag.node(*n).op)).sum::<f64>()
                >= machine.rows.heavy,
            reads,
        }
    }
    /// Warps for a tile with `there` valid elements: few warps with many elements each, so that barriers join few warps
    /// and other instances are resident alongside.
    pub fn warps(&self, tile: usize, there: usize, padded: bool) -> usize {
        let of = |there: usize, each: usize| there.div_ceil(32 * each).next_power_of_two().clamp(1, 512);
        // Half types are packed two per register, so 64 of them take a thread no more registers. That measures slower
        // where no lanes are idle (full tiles, nothing slow after the reductions), next to shared weights, and where
        // few rows leave room for more blocks.
        let halves = self.bytes == 2 && (padded || self.reads.late) && !self.shares && !self.columns;
        // Otherwise rather a quarter more elements per thread than twice the warps.
        match tile {
            65536 if halves => of(there, 64),
            65537.. if halves && !self.few => of(there, 64),
            4097.. => of(there * 4 / 5, 32),
            _ => of(there * 4 / 5, self.thread.min(tile.div_ceil(32))),
        }
    }
}

/// Elements of half types that a block of a cluster holds.
const RESIDENT: usize = 16384;

/// Instances that keep the host busy, and that keep a GPU busy per multiprocessor.
const HOST_BUSY: usize = 16;
const BUSY: usize = 4;
/// Instances that keep a machine busy.
pub fn wanted(machine: &Hardware) -> usize {
    if machine.arch.is_gpu() { BUSY * machine.units.multiprocessors } else { HOST_BUSY }
}

/// How many instances share a row so that the machine is busy; each has `wide` rows side by side.
pub fn parts(instances: usize, n: usize, chunk: usize, wide: usize, machine: &Hardware) -> usize {
    let (least, few) = if machine.arch.is_gpu() { (16384, scan::busy(machine)) } else { (65536, 4) };
    if instances >= few || n * instances * wide < least || n < 4 * chunk {
        return 1;
    }
    (wanted(machine) / instances.max(1)).clamp(1, n / (2 * chunk))
}

/// The steps that bind this many warps of a GPU; the host has none.
pub fn bind(warps: usize, machine: &Hardware) -> Vec<Step> {
    let shares = machine.arch.has_clusters() && warps > 16;
    blocks(warps, if shares { (warps / 8).min(machine.limits.cluster()) } else { 1 }, machine)
}
/// The same in so many blocks.
pub fn blocks(warps: usize, cluster: usize, machine: &Hardware) -> Vec<Step> {
    if !machine.arch.is_gpu() {
        return vec![];
    }
    let mut steps = vec![Step::Warps(warps / cluster)];
    steps.extend((cluster > 1).then_some(Step::Cluster(cluster)));
    steps
}

/// Schedule of rows that are contiguous in memory: the row is the tile's last axis.
fn inner(kept: &[Coord], n: usize, machine: &Hardware, limits: &Limits) -> Schedule {
    let gpu = machine.arch.is_gpu();
    let rows: usize = kept.iter().map(|c| c.extent).product();
    // The number of rows that choices depend on, which is fixed under a batch-invariant contract.
    let many = machine.counted(rows);
    let limits = &Limits { few: many * n <= wanted(machine) * RESIDENT, ..*limits };
    let wide = n.next_power_of_two();
    // Many small blocks hide each other's latency; rows shorter than a warp go through shared memory together.
    let threads = if n < 32 { 128 } else { 64 };
    let (chunk, together) = if gpu { (256 * limits.thread, threads * limits.thread) } else { (4096, 4096) };
    // A cluster is better than a split row where elements are needed again.
    let fits = wide <= limits.tile;
    let shared = if gpu && fits && limits.again { wide.div_ceil(8192).min(16) } else { 1 };
    let held = gpu && fits && limits.again && limits.any_order;
    let mut split = if held { 1 } else { parts(many * shared, n, chunk, 1, machine) };
    if limits.scans && !scan::in_parts(rows, n, chunk, machine) {
        split = 1;
    }
    // A sum keeps no elements, so a thread has registers for eight loads in flight.
    let sum = gpu && limits.any_order && !limits.again;
    let chunk = if sum && !limits.heavy { 2 * chunk } else { chunk };
    if sum && limits.heavy && split > 1 {
        split = (2 * split).min(n / (2 * chunk));
    }
    if !fits || split > 1 {
        let mut steps = vec![Step::Split(Axis::Row, chunk.min(wide))];
        steps.extend(bind(8, machine));
        steps.extend((split > 1).then_some(Step::SplitReduce(Axis::Row, split)));
        return Schedule { steps };
    }
    let vector = VECTOR / limits.narrow.clamp(1, VECTOR);
    // Two long rows per tile: what they share is loaded from the L2 cache once for both, if they have the same
    // alignment.
    let pair = gpu && limits.shares && wide > 8192 && 2 * wide <= limits.tile && n.is_multiple_of(vector);
    let mut together = if pair { 2 * wide } else { together };
    // As many rows per tile as make every tile start at a multiple of a vector.
    let short = limits.narrow == 2 || n < 32;
    if gpu && short && !n.is_multiple_of(vector) && wide * vector <= 16384 {
        together = together.max(wide * vector);
    }
    let mut high = (together / wide).max(1).min(many.next_power_of_two());
    while high > 1 && many / high < wanted(machine) {
        high /= 2;
    }
    // Several rows are distributed over lanes differently from one row.
    if machine.contract.batch_invariant && gpu {
        high = 1;
    }
    let persistent = persistent::of(machine, tiles(rows, n, vector, kept), limits.reads);
    if persistent.is_some() {
        high = 1;
    }
    let warps = if let Some(persistent) = persistent {
        persistent.warps
    } else {
        limits.warps(high * wide, high * n, n < wide)
    };
    let mut steps = vec![];
    if high > 1 {
        let all: Vec<Axis> = (0..kept.len()).map(|n| Axis::Kept(n as u8)).collect();
        steps.extend((all.len() > 1).then_some(Step::Fuse(all)));
        steps.push(Step::Split(Axis::Kept(0), high));
    }
    steps.push(Step::Split(Axis::Row, wide));
    match persistent {
        Some(_) if high == 1 => steps.extend(blocks(warps, warps / persistent_rows::WARPS, machine)),
        _ => steps.extend(bind(warps, machine)),
    }
    steps.extend(persistent.filter(|_| high == 1).map(|p| Step::Persist(p.clusters)));
    Schedule { steps }
}

/// Rows of `n` elements as tiles of a persistent kernel; unaligned rows begin a part of a vector into their tile.
fn tiles(rows: usize, n: usize, vector: usize, kept: &[Coord]) -> Tiles {
    let even = n.is_multiple_of(vector);
    let there = if even { n } else { n + vector - 1 };
    // Rows indexed by several coordinates have a common alignment only after all rows, which rules out a persistent
    // kernel.
    let one = kept.iter().filter(|c| c.extent > 1).count() <= 1;
    let period = if one || even { (vector >> n.trailing_zeros().min(vector.trailing_zeros())).max(1) } else { rows };
    Tiles { count: rows, elements: there.next_power_of_two(), there, period }
}
