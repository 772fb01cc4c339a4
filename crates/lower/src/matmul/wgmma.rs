//! Matmuls by warpgroups, from `sm_90` on: pipelined matmuls by `wgmma`, and exact f32 matmuls by a pipelined FMA
//! (SIMT) engine.
//!
//! Takes: a matmul whose operands are strided arrays with rows of multiples of 16 bytes, and its epilogue. Gives: a
//! block program, or `None` if warpgroups do not apply; the caller then takes another way.
//!
//! This module writes the plain matmul of a tile: a loop over K of tile loads and a `dot`, then the epilogue on the
//! accumulators. The passes of the block IR ([`kiln_block::passes::warpgroup`]) make a persistent kernel of it, with a
//! producer that copies operand tiles by tensor maps into a ring of stages, and consumers. Two blocks of a cluster
//! compute tiles one below the other and share the right operand. [`shape::Shape`] says how many of each there are.
//!
//! Tiles are powers of two, matmuls need not be. Of a tile that is wider than the matmul, `wgmma` computes only the
//! columns that exist, rounded up to 8 if the right operand is K-major, else to panels of 128 bytes. Results whose rows
//! no tensor map describes are stored through the same buffers in shared memory.
pub mod shape;
pub mod strided;

use crate::emit::emitter::{Lanes, TileRow};
use crate::emit::frame::{Frame, Used, loads, open_bare};
use crate::error::LowerError;
use crate::matmul::wgmma::shape::{Engine, MAX_SKINNY_ROWS, Shape, Through};
use crate::matmul::wgmma::strided::{Major, Strided, prefetched};
use crate::matmul::{Coords, Matmul};
use crate::scalar::dag::{NodeId, Scene, Store};
use crate::scalar::expr::CoordId;
use crate::schedule::tile::Cut;
use kiln_block::passes::warpgroup::{Launch, WarpRoles, persistent, roles};
use kiln_block::{BinaryOp as B, BlockProgram, Builder, Const, DotPrecision, Elem, Op, Type, UnaryOp, Value};
use kiln_graph::DType;
use kiln_plan::exec::Work;
use kiln_plan::matmul_schedule::MatmulTile;
use kiln_plan::{Hardware, Step};

/// A matmul to lower, with its epilogue.
pub struct Task<'a> {
    pub name: &'a str,
    pub matmul: &'a Matmul<'a>,
    pub scene: &'a Scene,
    pub coords: &'a Coords,
    pub left: NodeId,
    /// One right operand for each accumulator; `anchors` has the nodes that stand for these.
    pub right: &'a [NodeId],
    /// 3xTF32: the low parts of the left and the right operand.
    pub low: Option<[NodeId; 2]>,
    pub anchors: &'a [NodeId],
    pub dtype: DType,
    /// How the epilogue reduces rows, where it does.
    pub row: Option<TileRow>,
    /// The tile that the schedule asks for.
    pub asked: MatmulTile,
}

/// Why warpgroups do not apply, as an error message.
pub const NEEDS: &str = "stages in shared memory need sm_90, and operands of bf16, f16, f32 or f8 that are strided \
                         arrays with rows of multiples of 16 bytes, those of f8 and of 3xTF32 along K, and right ones \
                         in tf32; `stage a,b global` copies others to such rows";

/// Whether warpgroups take matmuls of this type; [`lower`] looks at the operands.
pub fn takes(dtype: DType, machine: &Hardware) -> bool {
    machine.arch.has_wgmma() && (matches!(dtype, DType::Bf16 | DType::F16 | DType::F32) || dtype.is_f8())
}

/// The step, with the tile that it computes; `None` if warpgroups do not apply. A tile that a schedule asks for is
/// refused if it does not fit.
pub fn lower(task: &Task, machine: &Hardware) -> Option<Result<(Work<BlockProgram>, MatmulTile), LowerError>> {
    let p = task.matmul;
    if !machine.arch.has_wgmma() {
        return None;
    }
    let right = |n: NodeId| Strided::load(task.scene, n, p, (task.coords.n, p.n), (task.coords.kb, p.k));
    let left = |n: NodeId| Strided::load(task.scene, n, p, (task.coords.m, p.m), (task.coords.ka, p.k));
    let a = left(task.left)?;
    let b: Vec<Strided> = task.right.iter().copied().map(right).collect::<Option<_>>()?;
    let major = b.first()?.major;
    let engine = Engine::of(task.dtype, p.precision, [a.major, major])?;
    if b.iter().any(|b| b.major != major) {
        return None;
    }
    let low = match task.low {
        Some([a, b]) => Some([left(a)?, right(b)?]),
        None => None,
    };
    let refuse = |why: String| Some(Err(LowerError::Unsupported { kernel: task.name.to_string(), why }));
    let bytes = task.dtype.bytes();
    let sides = [a.side(bytes), b.first()?.side(bytes)];
    let axes = [(task.coords.m, p.m), (task.coords.n, p.n)];
    let outputs: Vec<Option<Output>> = task.scene.stores.iter().map(|s| Output::of(s, p, axes)).collect();
    let through = through(task.scene, p, axes);
    let t = &task.asked;
    if t.engine != engine.unit() {
        return refuse(format!("the matmul is computed by `{}`, not `{}`", engine.unit().name(), t.engine.name()));
    }
    if t.warps.is_some() {
        return refuse("warps follow from a tile whose operands are staged".into());
    }
    let shape = match shape::of_tile(p, engine, t, sides, &through) {
        Ok(shape) => shape,
        Err(misfit) => return refuse(misfit.of(t)),
    };
    let most = shape.blocks(machine);
    let blocks = t.persist.unwrap_or(most);
    if blocks > most || !blocks.is_multiple_of(shape.cluster) {
        let step = Step::Persist(blocks);
        return refuse(format!("`{step}` does not fit: at most {most} blocks have tiles, whole clusters"));
    }
    let prefetched = prefetched(task.scene, p, axes).filter(|_| shape.buffers > 0);
    let tile = MatmulTile { persist: Some(blocks), ..shape.tile(machine) };
    let (code, args) = match (Plain { task, shape, a, b, low, outputs, prefetched }).write() {
        Ok(Work::Block { code, args }) => (code, args),
        Ok(_) => return None,
        Err(defect) => return Some(Err(defect)),
    };
    let launch =
        Launch { blocks, cluster: shape.cluster, group: shape.group, axes: Some([ROWS, COLUMNS]), dynamic: false };
    let last = Some(p.k % shape.depth()).filter(|k| *k > 0 && engine == Engine::Simt);
    let crew = WarpRoles {
        consumers: shape.copies * shape.in_flight,
        stages: shape.stages,
        ping_pong: shape.in_flight > 1,
        columns: Some(p.n.min(shape.n)),
        rows: Some(p.m.min(shape.m)),
        buffers: (shape.buffers > 0).then_some(shape.buffers),
        last,
    };
    let code = roles::run(&persistent::run(&code, launch).ok()?, Some(crew), machine).ok()?;
    Some(Ok((Work::Block { code, args }, tile)))
}

/// What an epilogue stores and reads through shared memory.
pub fn through(scene: &Scene, p: &Matmul, axes: [(CoordId, usize); 2]) -> Through {
    let stored = |s: &Store| {
        let by_map = Output::of(s, p, axes).map(|out| out.transposed);
        by_map.or(strided::in_rows(s, axes[1].0).then_some(false)).map(|transposed| (s.dtype, transposed))
    };
    let mut all: Vec<(DType, bool)> = scene.stores.iter().filter_map(stored).collect();
    all.sort_unstable();
    all.dedup();
    let stored = all.into_iter().map(|t| t.0.bytes()).collect();
    Through { stored, prefetched: prefetched(scene, p, axes).is_some() }
}

/// A result that is stored by tensor map.
struct Output {
    array: Strided,
    /// Its rows are contiguous: the transpose of a tile is stored.
    transposed: bool,
}
impl Output {
    fn of(s: &Store, p: &Matmul, [m, n]: [(CoordId, usize); 2]) -> Option<Output> {
        let as_is = Strided::store(s, &p.batch, m, n).map(|array| Output { array, transposed: false });
        // Half types in few columns, those of skinny GEMMs, are few bytes: threads store them from registers.
        let few = p.n <= MAX_SKINNY_ROWS && s.dtype != DType::F32;
        let transposed = || Strided::store(s, &p.batch, n, m).filter(|_| !few);
        as_is.or_else(|| transposed().map(|array| Output { array, transposed: true }))
    }
}

/// Axes of the grid.
const ROWS: usize = 0;
const COLUMNS: usize = 1;
const BATCH: usize = 2;

/// Position of the result's tile: indices along the batch axes, first row and column (i32).
struct Spot {
    batch: Vec<Value>,
    m: Value,
    n: Value,
}

/// Descriptors of the operands.
struct Maps {
    left: Value,
    right: Vec<Value>,
    low: Option<[Value; 2]>,
}

/// The program before the passes: one tile of the result per instance.
struct Plain<'a> {
    task: &'a Task<'a>,
    shape: Shape,
    a: Strided,
    /// One for each accumulator.
    b: Vec<Strided>,
    /// 3xTF32: the low parts of the operands.
    low: Option<[Strided; 2]>,
    /// The outputs that are stored by tensor map; others are stored by address.
    outputs: Vec<Option<Output>>,
    /// What the epilogue reads by a tensor map.
    prefetched: Option<(NodeId, Strided)>,
}

/// Descriptors of what the epilogue reads and stores by tensor maps.
struct EpilogueMaps {
    prefetched: Option<Value>,
    outputs: Vec<Option<Value>>,
}

impl Plain<'_> {
    fn write(self) -> Result<Work<BlockProgram>, LowerError> {
        let (z, elem) = (self.shape, crate::scalar::types::stored(self.task.dtype));
        let mut f =
            open_bare(self.task.name, self.task.scene, &self.used(), (&self.cuts(), 0), self.task.matmul.machine);
        f.b.set_grid([z.tiles_m, z.tiles_n, z.batch]);
        f.b.set_warps(4 * z.copies);
        let mut map = |s: &Strided, name: &str, outer: usize| {
            f.descriptor(name, s.slot, s.map(elem, tile_shape(s.major, outer, z.depth())), true)
        };
        let left = map(&self.a, "a", z.m);
        let right: Vec<Value> = self.b.iter().zip(["b", "dual"]).map(|(s, name)| map(s, name, z.block())).collect();
        let low = self.low.as_ref().map(|[a, b]| [map(a, "a_low", z.m), map(b, "b_low", z.block())]);
        let outputs: Vec<Option<Value>> = (self.outputs.iter().zip(&self.task.scene.stores).enumerate())
            .map(|(i, (out, store))| {
                let out = out.as_ref()?;
                let tile = if out.transposed { [z.block(), z.m] } else { [z.m, z.block()] };
                let ty = out.array.map(crate::scalar::types::stored(store.dtype), tile);
                Some(f.descriptor(&format!("c{i}"), out.array.slot, ty, false))
            })
            .collect();
        let prefetched = self.prefetched.as_ref().map(|(n, s)| {
            let elem = crate::scalar::types::stored(self.task.scene.dag.node(*n).dtype);
            f.descriptor("beside", s.slot, s.map(elem, [z.m, z.block()]), true)
        });
        let spot = self.spot(&mut f.b);
        let sums = self.multiply(&mut f.b, &spot, &Maps { left, right, low });
        self.finish(&mut f, &spot, &sums, &EpilogueMaps { prefetched, outputs });
        f.finish()
    }
    /// Buffers that the program reads and writes by address.
    fn used(&self) -> Vec<Used> {
        let scene = self.task.scene;
        let by_map = |n: NodeId| self.prefetched.as_ref().is_some_and(|p| p.0 == n);
        let mut read = scene.dag.reach_until(&scene.roots(), by_map);
        read.retain(|n| !by_map(*n));
        let mut all = loads(&scene.dag, &read, |_| true);
        let plain = scene.stores.iter().zip(&self.outputs).filter(|(_, o)| o.is_none());
        all.extend(plain.map(|(s, _)| (s.slot, s.dtype, false)));
        all
    }
    fn cuts(&self) -> [Cut; 2] {
        let (p, c) = (self.task.matmul, self.task.coords);
        let cut = |id, extent, block, axis| Cut { id, extent, block, axis };
        [cut(c.m, p.m, self.shape.m, 0), cut(c.n, p.n, self.shape.block(), 1)]
    }
    fn spot(&self, b: &mut Builder) -> Spot {
        let [m, n] = [(ROWS, self.shape.m), (COLUMNS, self.shape.n)].map(|(axis, tile)| {
            let (position, tile) = (b.program_id(axis as u8), b.i32(tile as i64));
            b.binary(B::Mul, position, tile)
        });
        let mut rest = b.program_id(BATCH as u8);
        let mut batch = vec![];
        for &n in self.task.matmul.batch.iter().rev() {
            let n = b.i32(n as i64);
            batch.push(b.binary(B::Rem, rest, n));
            rest = b.binary(B::Div, rest, n);
        }
        batch.reverse();
        Spot { batch, m, n }
    }
    /// Accumulates over K, or over a split-K slice.
    fn multiply(&self, b: &mut Builder, spot: &Spot, maps: &Maps) -> Vec<Value> {
        let z = self.shape;
        let elem = crate::scalar::types::stored(self.task.dtype);
        let terms = self.task.matmul.terms;
        let dot = |b: &mut Builder, left, right, sum| match z.engine.precision() {
            DotPrecision::Exact => b.sum_of(terms, left, right, sum),
            tf32 => b.dot(left, right, sum, tf32),
        };
        let none = b.constant(Type::block(Elem::F32, [z.m, z.block()]), Const::Float(0.0));
        let (zero, one, last) = (b.i32(0), b.i32(1), b.i32(z.depths as i64));
        let part = self.task.matmul.full_k.map(|_| {
            let len = b.i32(self.task.matmul.k as i64);
            b.binary(B::Mul, spot.batch[0], len)
        });
        b.for_loop([zero, last, one], &vec![none; maps.right.len()], |b, k, now| {
            let depth = b.i32(z.depth() as i64);
            let within = b.binary(B::Mul, k, depth);
            let k = [part.map_or(within, |part| b.binary(B::Add, part, within)), within];
            let mut operand = |s: &Strided, map: Value, outer: Value, size: usize, along: Major| {
                let args = [&[map], &s.starts(b, &spot.batch, outer, k)[..]].concat();
                let ty = Type::block(elem, tile_shape(s.major, size, z.depth()));
                let tile = b.inst(Op::TileLoad, &args, &[ty], vec![])[0];
                if s.major == along { tile } else { b.permute(tile, &[1, 0]) }
            };
            let mut left = operand(&self.a, maps.left, spot.m, z.m, Major::Depth);
            let right =
                self.b.iter().zip(&maps.right).map(|(s, map)| operand(s, *map, spot.n, z.block(), Major::Outer));
            let right: Vec<Value> = right.collect();
            let low = self.low.as_ref().zip(maps.low).map(|([x, y], maps)| {
                let left = operand(x, maps[0], spot.m, z.m, Major::Depth);
                (left, operand(y, maps[1], spot.n, z.block(), Major::Outer))
            });
            if z.registers {
                left = b.unary(UnaryOp::Tf32, left);
            }
            let sums = right.iter().zip(now).map(|(&right, &now)| {
                let mut sum = if z.engine.promotes_each_stage() { none } else { now };
                if let Some((left_low, right_low)) = low {
                    // The smaller products first. The product of the two low parts is below f32's precision and left
                    // out.
                    sum = dot(b, left_low, right, sum);
                    sum = dot(b, left, right_low, sum);
                }
                sum = dot(b, left, right, sum);
                if z.engine.promotes_each_stage() { b.binary(B::Add, now, sum) } else { sum }
            });
            sums.collect()
        })
    }
    /// The epilogue.
    fn finish(&self, f: &mut Frame, spot: &Spot, sums: &[Value], maps: &EpilogueMaps) {
        let z = self.shape;
        for (i, position) in spot.batch.iter().enumerate() {
            let base = f.b.cast(*position, f.em.index);
            f.em.coords.insert(i as u32, Lanes::uniform(base));
        }
        for ((cut, first), step) in self.cuts().into_iter().zip([spot.m, spot.n]).zip([z.m, z.n]) {
            let lanes = lanes_every(f, cut, first, step);
            f.em.coords.insert(cut.id, lanes);
        }
        // Addresses do not depend on an axis of one row or column, so its lanes are masked explicitly.
        let single: Vec<CoordId> = self.cuts().iter().filter(|c| c.extent == 1).map(|c| c.id).collect();
        f.em.row = self.task.row;
        for (anchor, sum) in self.task.anchors.iter().zip(sums) {
            f.em.set(*anchor, *sum);
        }
        if let Some(((node, array), map)) = self.prefetched.as_ref().zip(maps.prefetched) {
            let dtype = self.task.scene.dag.node(*node).dtype;
            let args = [&[map], &array.starts(&mut f.b, &spot.batch, spot.m, [spot.n; 2])[..]].concat();
            let ty = Type::block(crate::scalar::types::stored(dtype), [z.m, z.block()]);
            let tile = f.b.inst(Op::TileLoad, &args, &[ty], vec![])[0];
            let tile = f.b.cast(tile, crate::scalar::types::held(dtype));
            f.em.set(*node, tile);
        }
        for ((store, out), map) in self.task.scene.stores.iter().zip(&self.outputs).zip(&maps.outputs) {
            let (Some(out), Some(map)) = (out, map) else {
                f.store_within(store, &single);
                continue;
            };
            let v = f.em.value(&mut f.b, store.value);
            let v = f.b.cast(v, crate::scalar::types::stored(store.dtype));
            let mut v = f.b.broadcast_to(v, &[z.m, z.block()]);
            let [outer, inner] = if out.transposed { [spot.n, spot.m] } else { [spot.m, spot.n] };
            if out.transposed {
                v = f.b.permute(v, &[1, 0]);
            }
            let args = [&[*map, v], &out.array.starts(&mut f.b, &spot.batch, outer, [inner; 2])[..]].concat();
            f.b.inst(Op::TileStore, &args, &[], vec![]);
        }
    }
}

/// A tile of an operand: `[outer, K]`, or `[K, outer]` where the outer axis is contiguous.
fn tile_shape(major: Major, outer: usize, depth: usize) -> [usize; 2] {
    match major {
        Major::Depth => [outer, depth],
        Major::Outer => [depth, outer],
    }
}

/// Lanes of the block of a cut that starts at `first` (i32), a multiple of its size.
pub fn lanes(f: &mut Frame, cut: Cut, first: Value) -> Lanes {
    lanes_every(f, cut, first, cut.block)
}
/// The same where blocks start at multiples of `step`, and lanes from that on are not used.
fn lanes_every(f: &mut Frame, cut: Cut, first: Value, step: usize) -> Lanes {
    let base = f.b.cast(first, f.em.index);
    let lane = f.iota(cut);
    let ragged = !cut.extent.is_multiple_of(step);
    let mask = lane.filter(|_| ragged).map(|l| f.below(Some(base), l, cut.extent));
    Lanes { base: Some(base), lane, mask, block: if step == cut.block { step } else { 0 } }
}
