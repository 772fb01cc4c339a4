//! Warp specialisation: a producer role copies tiles into a ring of stages, a consumer role multiplies and computes the
//! epilogue.
//!
//! Takes a program of the upper level with one loop over K ([`super::form`]). Two consumers either share a tile, each
//! with its rows of it, or take whole tiles in ping-pong: one multiplies while the other runs its epilogue. Ping-pong
//! tiles are smaller, so shared memory is read more often, but epilogues are hidden; lowering's cost model weighs both
//! (`crates/lower/src/warpgroup/cost.rs`).
//!
//! A role is a group of four warps, so that a block value has the layout that it would have in a kernel of four warps.
//! Barriers count arrivals of groups; how many threads arrive is up to code generation.
//!
//! Results leave through shared memory, some columns at a time, one slice being stored while the next is computed. In a
//! cluster all blocks read the same right operands: each loads its slice and multicasts it.
pub mod back_to_back_dots;
mod consumer;
mod dynamic_scheduler;
pub mod epilogue;
mod left;
mod prefetched;
mod tile;
mod tile_loop;

use super::copy::Copier;
use super::form::{self, Engine, Form, Load, Side};
use super::ring::{PingPong, Ring, Rings};
use super::{Refusal, uniform};
use crate::passes::dce;
use crate::{BinaryOp as B, BlockProgram, Builder, Inst, Op, Role, Swizzle, Type, Value};
use epilogue::Epilogue;
use kiln_machine::{Machine, isa};
use std::collections::HashMap;
use tile::{Outputs, Tile, alloc};
use tile_loop::{TileTrips, at_tile, bounds_of, over_tiles};

/// How the warps of a block share its work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WarpRoles {
    pub consumers: usize,
    pub stages: usize,
    /// Ping-pong: consumers take whole tiles in alternation.
    pub ping_pong: bool,
    /// Columns of a tile that are used, at most: none after these is stored. `None`: all.
    pub columns: Option<usize>,
    /// The same of its rows.
    pub rows: Option<usize>,
    /// Buffers through which the epilogue of each consumer reads a tile, where it reads one by a descriptor. `None`:
    /// one for each slice of the tile.
    pub buffers: Option<usize>,
    /// Valid elements of K in the last iteration; the others are zero. `None`: all of a tile's.
    pub last: Option<usize>,
}
impl WarpRoles {
    /// Consumers that share a tile.
    fn shares(self) -> usize {
        if self.ping_pong { 1 } else { self.consumers }
    }
}

/// The same program in roles; without a crew, with one that suits the tile.
pub fn run(kernel: &BlockProgram, crew: Option<WarpRoles>, m: &Machine) -> Result<BlockProgram, Refusal> {
    let mut k = kernel.clone();
    dce::run(&mut k);
    let form = form::recognise(&k)?;
    let w = Writer::new(&k, form, crew, m)?;
    w.write(m)
}

/// A start along an axis of which no element of a tile is in the array: copies give zeros.
const BEFORE: i64 = -(1 << 20);

/// Threads of a warpgroup.
const THREADS: usize = isa::GROUP_WARPS * isa::WARP;

/// Registers of a thread of the producer, which takes `few`, and of a consumer: what the multiprocessor's are for each,
/// in the steps in which they are handed over. A single consumer has no producer's to take.
fn registers(m: &Machine, consumers: usize, few: usize) -> [usize; 2] {
    if consumers < 2 {
        return [0, 0];
    }
    let threads = m.limits.registers_per_multiprocessor / THREADS;
    let many = threads.saturating_sub(few) / consumers;
    [few, many.min(m.limits.registers_per_thread) / isa::REGISTERS * isa::REGISTERS]
}

/// What both roles use.
#[derive(Clone)]
struct Shared {
    rings: Rings,
    ping_pong: Option<PingPong>,
    /// A shared tile for each load.
    tiles: Vec<Value>,
    outputs: Outputs,
    /// Barriers of the buffers that the epilogue reads a tile through.
    prefetched: Option<Value>,
    /// Iterations of the loop over K at the tile, where they are no constant.
    trips: Option<TileTrips>,
}

struct Writer<'k> {
    k: &'k BlockProgram,
    form: Form,
    crew: WarpRoles,
    epilogue: Epilogue<'k>,
}

impl<'k> Writer<'k> {
    fn new(k: &'k BlockProgram, form: Form, crew: Option<WarpRoles>, m: &Machine) -> Result<Writer<'k>, Refusal> {
        let mut crew = crew.unwrap_or_else(|| WarpRoles {
            consumers: consumers(&form),
            stages: 0,
            ping_pong: false,
            columns: None,
            rows: None,
            buffers: None,
            last: None,
        });
        let rows = form.m / crew.shares().max(1);
        let stage: usize = form.loads.iter().map(|l| bytes_of(l, held(k, &form, crew, l))).sum();
        let size = [form.m, form.n];
        let tile = Tile { engine: form.engine, tiles: form.tiles, body: &form.tile, loops: [form.at; 2], size };
        let epilogue = Epilogue::new(k, &tile, rows, crew.consumers, crew.columns)?.prefetching(&tile, crew.buffers)?;
        let stages_in = |memory: usize| memory.saturating_sub(epilogue.bytes()) / stage.max(1);
        let room = stages_in(super::memory(m));
        if crew.stages == 0 {
            let shared = stages_in(super::memory_of_two(m));
            let share = form.tiles.is_none() && shared >= m.pipelines.enough_of_two;
            let stages = if share { shared } else { room };
            crew.stages = stages.min(m.pipelines.producer_stages);
        }
        let w = Writer { k, form, crew, epilogue };
        w.check(room, super::max_sums(m))?;
        Ok(w)
    }
    /// Rows of a consumer.
    fn rows(&self) -> usize {
        self.epilogue.part.rows
    }
    /// Checks the limits of the instructions and of a multiprocessor's memory.
    fn check(&self, room: usize, max_sums: usize) -> Result<(), Refusal> {
        let (f, rows) = (&self.form, self.rows());
        let ensure = |holds: bool, what: String| if holds { Ok(()) } else { Err(Refusal(what)) };
        ensure(
            rows * self.crew.shares() == f.m && rows > 0,
            format!("{} rows for {} consumers", f.m, self.crew.consumers),
        )?;
        ensure(f.trips.is_some() || !self.is_left_in_registers(), {
            "left operands in registers need a constant number of iterations over K".into()
        })?;
        ensure(!self.crew.ping_pong || f.tiles.is_some() && f.trips.is_some(), {
            "ping-pong consumers need a loop over tiles, and a constant number of iterations over K".into()
        })?;
        ensure(room >= self.crew.stages && self.crew.stages >= 2, {
            format!(
                "{} stages of these tiles do not fit shared memory, and two are needed; make tiles smaller",
                self.crew.stages.max(2)
            )
        })?;
        let held: usize = f.sums.iter().map(|s| (1 + usize::from(s.apart)) * rows * f.n / THREADS).sum();
        ensure(held <= max_sums, {
            format!("a thread would hold {held} sums, and has room for {max_sums}; make the tile smaller")
        })?;
        if f.engine == Engine::TensorCores {
            ensure(rows.is_multiple_of(isa::GROUP_ROWS) && (8..=isa::GROUP_COLUMNS).contains(&f.n), {
                format!("sums of {}x{} are not a multiple of 64 rows by 8 to 256 columns", f.m, f.n)
            })?;
        }
        for l in &f.loads {
            let [_, row] = self.shape(l);
            ensure(row * l.elem.bytes() >= 128, {
                format!("rows of {row} {} in an operand's tile are shorter than 128 bytes; make them longer", l.elem)
            })?;
            let moves = self.k.cluster == 1 || l.side == Side::Left || uniform::over_cluster(self.k, l.inst);
            ensure(moves, "blocks of a cluster read different right operands; let them share columns".into())?;
        }
        ensure(
            self.k.cluster == 1 || f.engine == Engine::TensorCores,
            "clusters are for tensor cores; matmuls in exact f32 do not use them".into(),
        )
    }
    /// A consumer's part of a left tile; of a right one, the part that is used.
    fn shape(&self, l: &Load) -> [usize; 2] {
        self.part(l, held(self.k, &self.form, self.crew, l))
    }
    /// The part of a load's tile that a consumer has of a left one.
    fn part(&self, l: &Load, mut shape: [usize; 2]) -> [usize; 2] {
        if l.side == Side::Left {
            shape[usize::from(l.swapped)] /= self.crew.shares();
        }
        shape
    }
    /// Bytes that a stage gets.
    fn copied(&self) -> usize {
        self.form.loads.iter().map(|l| bytes_of(l, copied(self.k, &self.form, self.crew, l))).sum()
    }

    // ---- Parameters and memory ----
    /// Types of descriptors, for the tiles that are copied at once.
    fn descriptors(&self) -> Result<HashMap<Value, Type>, Refusal> {
        let copied = self.form.loads.iter().map(|l| {
            let mut shape = self.part(l, copied(self.k, &self.form, self.crew, l));
            if l.side == Side::Right {
                shape[0] /= self.k.cluster;
            }
            (l.desc, shape, Swizzle::B128)
        });
        descriptors(self.k, copied.chain(self.epilogue.descriptors()))
    }
    fn memory(&self, b: &mut Builder) -> (Vec<Value>, Outputs) {
        let tiles = self.form.loads.iter().map(|l| {
            let copies = if l.side == Side::Left { self.crew.shares() } else { 1 };
            alloc(b, l.elem, self.shape(l), self.crew.stages * copies, Swizzle::B128)
        });
        let tiles = tiles.collect();
        (tiles, self.epilogue.buffers(b))
    }

    // ---- The program ----
    fn write(self, m: &Machine) -> Result<BlockProgram, Refusal> {
        let mut b = Builder::new(self.k.name.clone(), self.k.grid, 1);
        b.set_cluster(self.k.cluster);
        b.set_arithmetic(self.k.arithmetic);
        let mut c = Copier::new(self.k);
        params(self.k, &self.descriptors()?, &mut b, &mut c);
        let (tiles, outputs) = self.memory(&mut b);
        let rings = Rings::new(&mut b, self.crew.stages, self.crew.shares(), self.k.cluster);
        let ping_pong = self.crew.ping_pong.then(|| PingPong::new(&mut b, self.crew.consumers));
        let prefetched = self.epilogue.prefetched.as_ref().map(|p| p.barriers(&mut b, self.crew.consumers));
        let outermost = self.form.tiles.unwrap_or(self.form.depth);
        let before: Vec<Inst> = self.k.body.insts.iter().copied().take_while(|i| *i != outermost).collect();
        c.scalars(&mut b, &before);
        let shared = Shared { rings, ping_pong, tiles, outputs, prefetched, trips: None };
        let together = if self.k.cluster > 1 { Op::ClusterSync } else { Op::Sync };
        b.inst(together, &[], &[], vec![]);
        let copies = self.crew.consumers;
        let few = if self.form.engine == Engine::TensorCores { 40 } else { 24 };
        let [few, many] = registers(m, copies, few);
        let role =
            |name: &str, copies: usize, registers: usize| Role { name: name.into(), warps: 4, copies, registers };
        let mut failed = None;
        let (mut mine, mut theirs) = (c.clone(), c);
        b.roles(vec![
            (role("producer", 1, few), Box::new(|b: &mut Builder, _| self.produce(b, &mut mine, &shared))),
            (
                role("consumer", copies, many),
                Box::new(|b: &mut Builder, copy| failed = self.consume(b, &mut theirs, &shared, copy)),
            ),
        ]);
        if self.k.cluster > 1 {
            // The other block may still multicast into this one's shared memory.
            b.inst(Op::ClusterSync, &[], &[], vec![]);
        }
        let missing = mine.missing.or(theirs.missing);
        let missing =
            missing.map(|v| Refusal(format!("the starts of tiles depend on {v}, which is not arithmetic on scalars")));
        failed.or(missing).map_or_else(|| Ok(b.finish()), Err)
    }
    /// Iterations of the loop over K, at least one.
    fn trips(&self, b: &mut Builder, s: &Shared) -> Value {
        match (self.form.trips, &s.trips) {
            (None, Some(trips)) => trips.count,
            (trips, _) => b.i32(trips.unwrap_or(1) as i64),
        }
    }
    /// What both roles use at the tile where the copier is.
    fn at_tile(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared) -> Shared {
        let trips = match self.form.trips {
            Some(_) => None,
            None => TileTrips::of(b, c, self.form.depth),
        };
        Shared { trips, ..s.clone() }
    }
    /// Runs `body` for every tile of this block, with the ring's stage and phase carried, and so many values more that
    /// start at 0.
    fn over_tiles(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        more: usize,
        body: impl FnOnce(&mut Builder, &mut Copier<'k>, &[Value]) -> Vec<Value>,
    ) {
        let start = vec![b.i32(0); 2 + more];
        over_tiles(b, c, (self.form.tiles, &self.form.tile.insts[..self.form.at]), &start, body);
    }
    /// Runs `body` for every tile of this consumer in ping-pong, skipping the stages of the other consumers' tiles.
    fn ping_pong_tiles(
        &self,
        b: &mut Builder,
        c: &mut Copier<'k>,
        (s, ping_pong, consumer): (&Shared, &PingPong, Value),
        more: usize,
        body: impl FnOnce(&mut Builder, &mut Copier<'k>, &[Value]) -> Vec<Value>,
    ) {
        let Some((tiles, [lo, hi, step])) = bounds_of(c, self.form.tiles) else { return };
        let (zero, one) = (b.i32(0), b.i32(1));
        // Ping-pong is for a constant number of iterations.
        let trips = self.form.trips.unwrap_or(1);
        let others = b.i32(((self.crew.consumers - 1) * trips) as i64);
        let (all, trips) = (b.i32(self.crew.consumers as i64), b.i32(trips as i64));
        let ahead = b.binary(B::Mul, consumer, step);
        let (lo, step) = (b.binary(B::Add, lo, ahead), b.binary(B::Mul, step, all));
        let ahead = b.binary(B::Mul, consumer, trips);
        let start = s.rings.skip(b, Ring::of(&[zero, zero]), ahead);
        let carried = [&start.values()[..], &vec![zero; more], &[ping_pong.first(b, consumer)]].concat();
        b.for_loop([lo, hi, step], &carried, |b, t, now| {
            let Some((turn, now)) = now.split_last() else { return vec![] };
            ping_pong.wait(b, consumer, *turn);
            let before = &self.form.tile.insts[..self.form.at];
            let next = at_tile(b, c, (tiles, t), before, |b, c| body(b, c, now));
            let ring = s.rings.skip(b, Ring::of(&next), others);
            [&ring.values()[..], &next[2..], &[b.binary(B::Xor, *turn, one)]].concat()
        });
    }
    fn produce(&self, b: &mut Builder, c: &mut Copier<'k>, s: &Shared) {
        let bytes = self.copied();
        self.over_tiles(b, c, 0, |b, c, now| {
            let s = &self.at_tile(b, c, s);
            let ring = Ring::of(now);
            let data = self.k.inst(self.form.depth);
            let region = &data.regions[0];
            let bounds = c.all(&data.args[..3]);
            let [lo, mut hi, step] = bounds[..] else { return now.to_vec() };
            if s.trips.is_some() {
                let one = b.i32(1);
                let first = b.binary(B::Add, lo, one);
                hi = b.binary(B::Max, hi, first);
            }
            let kept: Vec<Value> = self.form.kept.iter().map(|n| data.args[3 + n]).collect();
            let carried = [&ring.values()[..], &c.all(&kept)].concat();
            let out = b.for_loop([lo, hi, step], &carried, |b, index, now| {
                c.enter();
                c.set(region.params[0], index);
                self.form.kept.iter().zip(&now[2..]).for_each(|(n, v)| c.set(region.params[1 + n], *v));
                let ring = Ring::of(now);
                s.rings.claim(b, ring, bytes);
                for i in &region.insts {
                    match self.form.loads.iter().position(|l| l.inst == *i) {
                        Some(n) => self.copy_tile(b, c, s, n, ring),
                        None => c.scalar(b, *i),
                    }
                }
                let last = region.insts.last().map(|i| &self.k.inst(*i).args[..]).unwrap_or_default();
                let kept: Vec<Value> = self.form.kept.iter().map(|n| last[*n]).collect();
                let next = [&s.rings.next(b, ring).values()[..], &c.all(&kept)].concat();
                c.leave();
                next
            });
            out[..2].to_vec()
        });
    }
    /// Copies a load into its stage: on the left one copy per consumer, on the right one for all.
    fn copy_tile(&self, b: &mut Builder, c: &mut Copier, s: &Shared, n: usize, ring: Ring) {
        let load = &self.form.loads[n];
        let mut starts = c.all(&self.k.inst(load.inst).args[1..]);
        if let (Some(TileTrips { is_empty, .. }), Some(start)) = (&s.trips, starts.last_mut()) {
            let before = b.i32(BEFORE);
            *start = b.select(*is_empty, before, *start);
        }
        let Some(desc) = c.get(load.desc) else { return };
        if load.side == Side::Right {
            let multicast = self.k.cluster > 1;
            return s.rings.load(b, [s.tiles[n], ring.stage, desc], ring, &starts, multicast);
        }
        let axis = starts.len() - 2 + usize::from(load.swapped);
        let shares = self.crew.shares();
        for copy in 0..shares {
            let mut starts = starts.clone();
            if copy > 0 {
                let rows = b.i32((copy * self.rows()) as i64);
                starts[axis] = b.binary(B::Add, starts[axis], rows);
            }
            let copy = (shares > 1).then(|| b.i32(copy as i64));
            let stage = self.left_stage(b, ring, copy);
            s.rings.load(b, [s.tiles[n], stage, desc], ring, &starts, false);
        }
    }
    /// Stage of a consumer's tile of a left operand. `copy`: the consumer, where several share a tile.
    fn left_stage(&self, b: &mut Builder, ring: Ring, copy: Option<Value>) -> Value {
        let Some(copy) = copy else { return ring.stage };
        let n = b.i32(self.crew.shares() as i64);
        let at = b.binary(B::Mul, ring.stage, n);
        b.binary(B::Add, at, copy)
    }
}

/// Columns of a right operand that the blocks of a cluster share are a multiple of this, so that each copies whole rows
/// of the swizzle's pattern.
const SHARED: usize = 64;

/// The part of a load's tile that shared memory holds: of a right operand only the columns that are used. Tensor cores
/// take any multiple of 8 columns of a K-major operand; rows of an N-major one must fill the swizzle's span of 128
/// bytes.
fn held(k: &BlockProgram, form: &Form, crew: WarpRoles, l: &Load) -> [usize; 2] {
    let mut shape = l.shape;
    if let (Side::Right, Engine::TensorCores, Some(n)) = (l.side, form.engine, crew.columns) {
        let least = if k.cluster > 1 { SHARED } else { 8 };
        let (axis, unit) = if l.swapped { (0, least) } else { (1, least.max(128 / l.elem.bytes())) };
        shape[axis] = shape[axis].min(n.next_multiple_of(unit));
    }
    shape
}
/// The part of it that is copied: of a K-major left operand only the rows that are used, where one consumer has them.
/// Tensor cores multiply what is in shared memory after them to rows of the result that are not stored.
fn copied(k: &BlockProgram, form: &Form, crew: WarpRoles, l: &Load) -> [usize; 2] {
    let mut shape = held(k, form, crew, l);
    if let (Side::Left, Engine::TensorCores, Some(m)) = (l.side, form.engine, crew.rows)
        && !l.swapped
        && crew.shares() == 1
    {
        shape[0] = shape[0].min(m.next_multiple_of(8));
    }
    shape
}
fn bytes_of(l: &Load, shape: [usize; 2]) -> usize {
    shape[0] * shape[1] * l.elem.bytes()
}

/// Consumers per tile: each of at least 64 rows, two where there are enough rows.
fn consumers(form: &Form) -> usize {
    match form.engine {
        Engine::TensorCores => (form.m / isa::GROUP_ROWS).clamp(1, 2),
        Engine::Simt => 2,
    }
}

/// The types of descriptors, for tiles of these sizes.
fn descriptors(
    k: &BlockProgram,
    tiles: impl Iterator<Item = (Value, [usize; 2], Swizzle)>,
) -> Result<HashMap<Value, Type>, Refusal> {
    let mut all: HashMap<Value, Type> = HashMap::new();
    for (desc, shape, swizzle) in tiles {
        let Type::Desc { elem, shape: whole, .. } = k.ty(desc) else { continue };
        let lead = vec![1; whole.len().saturating_sub(2)];
        let ty = Type::Desc { elem: *elem, shape: [lead, shape.to_vec()].concat(), swizzle };
        if all.insert(desc, ty.clone()).is_some_and(|known| known != ty) {
            return Err(Refusal("a descriptor is used for tiles of two kinds; give each a parameter".into()));
        }
    }
    Ok(all)
}

/// Declares the parameters of the kernel, descriptors with their new types.
fn params(k: &BlockProgram, types: &HashMap<Value, Type>, b: &mut Builder, c: &mut Copier) {
    for p in &k.params {
        let ty = types.get(&p.value).unwrap_or(k.ty(p.value)).clone();
        let new = b.param_like(p, ty);
        c.set(p.value, new);
    }
}
