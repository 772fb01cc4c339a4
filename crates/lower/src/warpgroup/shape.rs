//! Sizes of the tiles, by a model of the time a multiprocessor takes for one.
use super::operand::{Major, Strided};
use crate::product::Product;
use kiln_block::{BinaryOp as B, Builder, Value};
use kiln_graph::DType;

/// K of a stage: 128 bytes of 16-bit elements, the swizzle's span.
pub const DEPTH: usize = 64;
/// Multiprocessors that share the tiles.
const PROCESSORS: usize = 132;
/// Shared memory of a block, less what barriers take.
const MEMORY: usize = (227 << 10) - 1024;
/// Buffers of a consumer for results on their way out.
pub const BUFFERS: usize = 2;

/// How the work is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Tile of a block.
    pub m: usize,
    pub n: usize,
    pub stages: usize,
    /// Consumers, each with its rows of the tile.
    pub copies: usize,
    pub cluster: usize,
    pub tiles_m: usize,
    pub tiles_n: usize,
    pub batch: usize,
    /// Stages of K in all.
    pub depths: usize,
}

impl Shape {
    /// Rows of a consumer.
    pub fn rows(&self) -> usize {
        self.m / self.copies
    }
    /// Tiles (of a cluster).
    pub fn tiles(&self) -> usize {
        self.batch * self.tiles_m.div_ceil(self.cluster) * self.tiles_n
    }
    /// Blocks of the launch.
    pub fn blocks(&self) -> usize {
        (self.tiles() * self.cluster).min(PROCESSORS / self.cluster * self.cluster)
    }
    /// First row of a consumer's part.
    pub fn row_of(&self, b: &mut Builder, m: Value, copy: usize) -> Value {
        if copy == 0 {
            return m;
        }
        let rows = b.i32((copy * self.rows()) as i64);
        b.binary(B::Add, m, rows)
    }
    /// Number of a consumer's tile of the left operand in a stage.
    pub fn tile_of(&self, b: &mut Builder, stage: Value, copy: usize) -> Value {
        let (n, copy) = (b.i32(self.copies as i64), b.i32(copy as i64));
        let at = b.binary(B::Mul, stage, n);
        b.binary(B::Add, at, copy)
    }
}

/// Columns of the result that are finished together: a line of 128 bytes of the widest output.
pub fn columns(outputs: &[usize]) -> usize {
    128 / outputs.iter().max().copied().unwrap_or(2).clamp(2, 4)
}

/// Tiles on offer: rows, columns, consumers.
const TILES: [(usize, usize, usize); 6] =
    [(128, 256, 2), (256, 128, 2), (128, 128, 2), (128, 64, 2), (64, 128, 1), (64, 64, 1)];

/// The tile with the least time, if there is room for it. `outputs`: bytes of the types that go out through shared memory.
pub fn choose(
    p: &Product,
    (dtype, tile): (DType, Option<[usize; 2]>),
    right: &Strided,
    outputs: &[usize],
) -> Option<Shape> {
    let batch: usize = p.batch.iter().product();
    // A buffer's row holds a part of the tile in each of the types that go out.
    let line = outputs.iter().sum::<usize>() * columns(outputs);
    let mut best: Option<(f64, Shape)> = None;
    for (m, n, copies) in TILES.into_iter().filter(|t| tile.is_none_or(|wanted| wanted == [t.0, t.1])) {
        // Rows of a tile that runs along the columns must fill the swizzle.
        if right.major == Major::Outer && n < DEPTH {
            continue;
        }
        let (tiles_m, tiles_n) = (p.m.div_ceil(m), p.n.div_ceil(n));
        let stage = DEPTH * (m + n) * dtype.bytes();
        let out = BUFFERS * m * line;
        let stages = ((MEMORY - out) / stage).min(8);
        let pairs = m * n >= 128 * 256 && tiles_m.is_multiple_of(2) && batch * tiles_m * tiles_n >= PROCESSORS;
        let depths = p.k.div_ceil(DEPTH);
        let shape = Shape { m, n, stages, copies, cluster: if pairs { 2 } else { 1 }, tiles_m, tiles_n, batch, depths };
        let time = shape.cycles(p);
        if stages >= 2 && best.as_ref().is_none_or(|(t, _)| time < *t) {
            best = Some((time, shape));
        }
    }
    let (_, shape) = best?;
    (shape.tiles() < 1 << 30 && (p.m.max(p.n).max(p.k) as u64) < 1 << 30).then_some(shape)
}

impl Shape {
    /// Clock cycles of the launch: turns of as many tiles as there are multiprocessors, each by the slowest of the tensor
    /// cores, the copies from the second-level cache, and memory's share. Constants are measured on an H200.
    fn cycles(&self, p: &Product) -> f64 {
        /// Bytes a cycle: from the cache to a multiprocessor, from memory to one, from memory to all.
        const CACHE: f64 = 56.0;
        const ONE: f64 = 21.0;
        const ALL: f64 = 2400.0;
        /// Filling the ring, and finishing a tile of 128 by 256.
        const FILL: f64 = 1500.0;
        const FINISH: f64 = 4000.0;
        let tiles = self.batch * self.tiles_m * self.tiles_n;
        let area = (self.m * self.n) as f64;
        let depths = self.depths as f64;
        // Rows and columns outside of the product are not read.
        let right = self.n.min(p.n) as f64 / self.cluster as f64;
        let copied = (self.m.min(p.m) as f64 + right) * (DEPTH * 2) as f64 * depths;
        // What a tile reads that no other has read before, on average.
        let own = (self.batch * (p.m + p.n) * p.k * 2) as f64 / tiles as f64;
        let turn = |running: usize| {
            let memory = (own / ONE).max(own * running as f64 / ALL);
            (depths * area / 32.0).max(copied / CACHE).max(memory) + FINISH * area / 32768.0
        };
        let processors = PROCESSORS / self.cluster * self.cluster;
        let (whole, rest) = (tiles / processors, tiles % processors);
        FILL + whole as f64 * turn(processors) + if rest > 0 { turn(rest) } else { 0.0 }
    }
}
