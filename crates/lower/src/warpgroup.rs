//! Matrix products by warpgroups: the program that reaches the speed of the tensor cores, and in f32 that of multiply-adds, from
//! `sm_90` on.
//!
//! Blocks stay for the whole launch and walk over tiles of the result. A producer copies tiles of the operands by tensor maps
//! into a ring of stages; consumers, each with its rows of the tile, multiply, finish the elements and send them out through
//! shared memory. Two blocks of a cluster lie one below the other and share the right operand.
//!
//! Takes: a product whose operands are strided arrays with rows of multiples of 16 bytes, and what becomes of an element.
//! Anything else is refused with `None`, and the caller takes the other template.
mod consumer;
mod cost;
mod operand;
mod parts;
mod shape;

use crate::Target;
use crate::dag::{NodeId, Scene};
use crate::product::{Coords, Product};
use crate::tile::open_bare;
pub use cost::CLOCK;
use kiln_block::{BinaryOp as B, Builder, CmpOp, Elem, Kernel, Op, Role, Swizzle, Type, Value};
use kiln_graph::DType;
use kiln_plan::exec::{Slot, Work};
pub use operand::{Major, Strided};
pub use parts::{Parts, candidates, parts};
pub use shape::{Asked, GROUP, PROCESSORS};
use shape::{Engine, Shape};

/// What is multiplied, and what is written.
pub struct Task<'a> {
    pub name: &'a str,
    pub product: &'a Product<'a>,
    pub scene: &'a Scene,
    pub coords: &'a Coords,
    pub operands: [NodeId; 2],
    pub anchor: NodeId,
    pub dtype: DType,
    pub asked: Asked,
}

/// What a product must be for this template.
pub const NEEDS: &str = "warpgroups need sm_90, operands of bf16, f16 or f32 that are strided arrays with rows of multiples of 16 bytes, \
                         and one of the tiles 128x256, 256x128, 128x128, 128x64, 64x256, 64x128, 64x64 (in f32 not 256x128 and \
                         64x256 but 32x64); a schedule must fit the product and the memory of a multiprocessor";

/// Whether products of this type go this way, their operands permitting.
pub fn takes(dtype: DType, target: Target) -> bool {
    matches!(target, Target::Gpu { arch } if arch >= 90) && Engine::of(dtype).is_some()
}

pub fn lower(task: &Task, target: Target) -> Option<Work<Kernel>> {
    let p = task.product;
    if !matches!(target, Target::Gpu { arch } if arch >= 90) {
        return None;
    }
    let engine = Engine::of(task.dtype)?;
    let a = Strided::load(task.scene, task.operands[0], p, (task.coords.m, p.m), (task.coords.ka, p.k))?;
    let b = Strided::load(task.scene, task.operands[1], p, (task.coords.n, p.n), (task.coords.kb, p.k))?;
    let outputs: Vec<Option<Strided>> = task
        .scene
        .stores
        .iter()
        .map(|s| Strided::store(s, &p.batch, (task.coords.m, p.m), (task.coords.n, p.n)))
        .collect();
    let widths = consumer::widths(&outputs, &task.scene.stores);
    let shape = shape::choose(p, (engine, task.asked), [a.major, b.major], &widths)?;
    Some(Writer::new(task, shape, a, b, outputs).write())
}

/// Values that every role sees.
struct Shared {
    a: Value,
    b: Value,
    a_map: Value,
    b_map: Value,
    full: Value,
    empty: Value,
    rank: Option<Value>,
    first: Value,
}

/// Where a tile of the result is: positions along the batch axes, its first row and column (i32).
struct Spot {
    batch: Vec<Value>,
    m: Value,
    n: Value,
}

struct Writer<'a> {
    task: &'a Task<'a>,
    shape: Shape,
    a: Strided,
    b: Strided,
    outputs: Vec<Option<Strided>>,
}

impl<'a> Writer<'a> {
    fn new(task: &'a Task, shape: Shape, a: Strided, b: Strided, outputs: Vec<Option<Strided>>) -> Writer<'a> {
        Writer { task, shape, a, b, outputs }
    }
    fn write(self) -> Work<Kernel> {
        let (s, elem) = (self.shape, crate::math::stored(self.task.dtype));
        let used = consumer::used(self.task.scene, &self.outputs);
        let mut f = open_bare(self.task.name, self.task.scene, &used, &self.cuts(), s.blocks());
        f.b.set_cluster(s.cluster);
        let a_tile = tile_shape(self.a.major, s.rows(), s.depth());
        let b_tile = tile_shape(self.b.major, s.n, s.depth());
        let b_part = [b_tile[0] / s.cluster, b_tile[1]];
        let a_map = f.descriptor("a", self.a.slot, self.a.map(elem, a_tile), true);
        let b_map = f.descriptor("b", self.b.slot, self.b.map(elem, b_part), true);
        let outputs = consumer::maps(&mut f, &self.outputs, &self.task.scene.stores, s);
        let b = &mut f.b;
        let tile = |b: &mut Builder, shape: [usize; 2], stages: usize| {
            let ty = Type::Shared { elem, shape: shape.to_vec(), stages, swizzle: Swizzle::B128 };
            b.inst(Op::AllocShared, &[], &[ty], vec![])[0]
        };
        let (at, bt) = (tile(b, a_tile, s.stages * s.copies), tile(b, b_tile, s.stages));
        let outputs = consumer::tiles(b, outputs, s);
        let barriers = |b: &mut Builder, arrivals: usize| {
            b.inst(Op::AllocBarriers, &[], &[Type::Barrier { count: s.stages, arrivals }], vec![])[0]
        };
        let (full, empty) = (barriers(b, 1), barriers(b, s.copies * s.cluster));
        let pid = b.program_id(0);
        let (first, rank) = if s.cluster > 1 {
            let c = b.i32(s.cluster as i64);
            (b.binary(B::Div, pid, c), Some(b.binary(B::Rem, pid, c)))
        } else {
            (pid, None)
        };
        let together = if s.cluster > 1 { Op::ClusterSync } else { Op::Sync };
        b.inst(together, &[], &[], vec![]);
        let shared = Shared { a: at, b: bt, a_map, b_map, full, empty, rank, first };
        let role =
            |name: &str, copies: usize, registers: usize| Role { name: name.into(), warps: 4, copies, registers };
        let [few, many] = if s.copies > 1 { s.engine.registers() } else { [0, 0] };
        let mut outer = std::mem::replace(&mut f.b, Builder::new("", [0; 3], 1));
        outer.roles(vec![
            (role("producer", 1, few), Box::new(|b: &mut Builder, _| self.produce(b, &shared))),
            (
                role("consumer", s.copies, many),
                Box::new(|b: &mut Builder, copy| consumer::consume(&self, &mut f, b, &shared, copy, &outputs)),
            ),
        ]);
        if s.cluster > 1 {
            // The other block may still send here.
            outer.inst(Op::ClusterSync, &[], &[], vec![]);
        }
        f.b = outer;
        f.finish()
    }
    fn cuts(&self) -> Vec<crate::tile::Cut> {
        let (p, c) = (self.task.product, self.task.coords);
        let cut = |id, extent, block, axis| crate::tile::Cut { id, extent, block, axis };
        vec![cut(c.m, p.m, self.shape.m, 0), cut(c.n, p.n, self.shape.n, 1)]
    }
    /// Runs `body` over this block's tiles with the ring's stage and phase carried.
    fn over_tiles(&self, b: &mut Builder, s: &Shared, body: impl FnOnce(&mut Builder, Spot, Ring) -> Ring) {
        let (last, step) = (b.i32(self.shape.tiles() as i64), b.i32((self.shape.blocks() / self.shape.cluster) as i64));
        let zero = b.i32(0);
        b.for_loop([s.first, last, step], &[zero, zero], |b, t, ring| {
            let spot = self.spot(b, s, t);
            body(b, spot, Ring::of(ring)).values().to_vec()
        });
    }
    /// Tile number to place: batch, then groups of rows of tiles, column by column.
    fn spot(&self, b: &mut Builder, s: &Shared, t: Value) -> Spot {
        let z = self.shape;
        let (rows, columns) = (z.tiles_m.div_ceil(z.cluster), z.tiles_n);
        let (mut batch, mut t) = (vec![], t);
        if z.batch > 1 {
            let per = b.i32((rows * columns) as i64);
            let mut rest = b.binary(B::Div, t, per);
            t = b.binary(B::Rem, t, per);
            for &n in self.task.product.batch.iter().rev() {
                let n = b.i32(n as i64);
                batch.push(b.binary(B::Rem, rest, n));
                rest = b.binary(B::Div, rest, n);
            }
            batch.reverse();
        } else {
            let zero = b.i32(0);
            batch.resize(self.task.product.batch.len(), zero);
        }
        let group = (z.group / z.cluster).clamp(1, rows);
        let (g, per) = (b.i32(group as i64), b.i32((group * columns) as i64));
        let (index, within) = (b.binary(B::Div, t, per), b.binary(B::Rem, t, per));
        let start = b.binary(B::Mul, index, g);
        let size = if rows.is_multiple_of(group) {
            g
        } else {
            let all = b.i32(rows as i64);
            let left = b.binary(B::Sub, all, start);
            b.binary(B::Min, left, g)
        };
        let (n, m) = (b.binary(B::Div, within, size), b.binary(B::Rem, within, size));
        let mut m = b.binary(B::Add, start, m);
        if let Some(rank) = s.rank {
            let c = b.i32(z.cluster as i64);
            m = b.binary(B::Mul, m, c);
            m = b.binary(B::Add, m, rank);
        }
        let (tm, tn) = (b.i32(z.m as i64), b.i32(z.n as i64));
        Spot { batch, m: b.binary(B::Mul, m, tm), n: b.binary(B::Mul, n, tn) }
    }
    fn produce(&self, b: &mut Builder, s: &Shared) {
        let z = self.shape;
        let bytes = z.stage_bytes();
        self.over_tiles(b, s, |b, spot, ring| {
            let (zero, one, last) = (b.i32(0), b.i32(1), b.i32(z.depths as i64));
            let part = self.task.product.whole.map(|_| {
                let len = b.i32(self.task.product.k as i64);
                b.binary(B::Mul, spot.batch[0], len)
            });
            let ring = b.for_loop([zero, last, one], &ring.values(), |b, k, ring| {
                let ring = Ring::of(ring);
                let free = b.binary(B::Xor, ring.phase, one);
                b.inst(Op::BarrierWait, &[s.empty, ring.stage, free], &[], vec![]);
                b.inst(Op::BarrierExpect { bytes: bytes as u32 }, &[s.full, ring.stage], &[], vec![]);
                let depth = b.i32(z.depth() as i64);
                let mut k = b.binary(B::Mul, k, depth);
                if let Some(part) = part {
                    k = b.binary(B::Add, part, k);
                }
                for copy in 0..z.copies {
                    let (m, stage) = (z.row_of(b, spot.m, copy), z.tile_of(b, ring.stage, copy));
                    let starts = self.a.starts(&spot.batch, m, k);
                    load(b, [s.a, stage, s.a_map], [s.full, ring.stage], &starts, false);
                }
                let starts = self.b.starts(&spot.batch, spot.n, k);
                load(b, [s.b, ring.stage, s.b_map], [s.full, ring.stage], &starts, z.cluster > 1);
                ring.next(b, z.stages).values().to_vec()
            });
            Ring::of(&ring)
        });
    }
}

fn load(b: &mut Builder, what: [Value; 3], barrier: [Value; 2], starts: &[Value], multicast: bool) {
    let args = [&what[..], &barrier, starts].concat();
    b.inst(Op::TmaLoad { multicast }, &args, &[], vec![]);
}

/// A tile of an operand: `[outer, K]`, or `[K, outer]` where the outer axis is contiguous.
fn tile_shape(major: Major, outer: usize, depth: usize) -> [usize; 2] {
    match major {
        Major::Depth => [outer, depth],
        Major::Outer => [depth, outer],
    }
}

/// Position in the ring: the stage, and the parity of the turn.
#[derive(Clone, Copy)]
struct Ring {
    stage: Value,
    phase: Value,
}
impl Ring {
    fn of(values: &[Value]) -> Ring {
        Ring { stage: values[0], phase: values[1] }
    }
    fn values(self) -> [Value; 2] {
        [self.stage, self.phase]
    }
    fn next(self, b: &mut Builder, stages: usize) -> Ring {
        let (one, zero, all) = (b.i32(1), b.i32(0), b.i32(stages as i64));
        let stage = b.binary(B::Add, self.stage, one);
        let wraps = b.cmp(CmpOp::Eq, stage, all);
        let turn = b.cast(wraps, Elem::I32);
        Ring { stage: b.select(wraps, zero, stage), phase: b.binary(B::Xor, self.phase, turn) }
    }
}

/// A buffer that a program uses by address.
type Used = (Slot, DType, bool);
