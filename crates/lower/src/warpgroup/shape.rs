//! Sizes of the tiles, by a model of the time a multiprocessor takes for one.
use super::operand::Major;
use crate::product::Product;
use kiln_block::{BinaryOp as B, Builder, Value};
use kiln_graph::DType;

/// Bytes of K that a copy takes: the swizzle's span.
const SPAN: usize = 128;
/// Multiprocessors that share the tiles.
const PROCESSORS: usize = 132;
/// Shared memory of a block, less what barriers take.
const MEMORY: usize = (227 << 10) - 1024;
/// Buffers of a consumer for results on their way out.
pub const BUFFERS: usize = 2;

/// What multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// bf16 and f16 by `wgmma`.
    TensorCores,
    /// f32, exactly.
    MultiplyAdds,
}

impl Engine {
    pub fn of(dtype: DType) -> Option<Engine> {
        match dtype {
            DType::Bf16 | DType::F16 => Some(Engine::TensorCores),
            DType::F32 => Some(Engine::MultiplyAdds),
            _ => None,
        }
    }
    /// Bytes of an operand's element.
    fn bytes(self) -> usize {
        if self == Engine::TensorCores { 2 } else { 4 }
    }
    /// Registers of a producer's thread and of a consumer's, of the 65536 of a multiprocessor.
    pub fn registers(self) -> [usize; 2] {
        if self == Engine::TensorCores { [40, 232] } else { [24, 240] }
    }
    /// Tiles on offer: rows, columns, consumers, copies along K in a stage.
    fn tiles(self) -> &'static [(usize, usize, usize, usize)] {
        match self {
            Engine::TensorCores => &[
                (128, 256, 2, 1),
                (256, 128, 2, 1),
                (128, 128, 2, 1),
                (128, 64, 2, 1),
                (64, 256, 1, 1),
                (64, 128, 1, 1),
                (64, 64, 1, 1),
                (64, 64, 1, 2),
            ],
            Engine::MultiplyAdds => {
                &[(128, 256, 2, 1), (128, 128, 2, 1), (64, 128, 2, 1), (128, 64, 2, 1), (64, 64, 2, 1), (32, 64, 2, 1)]
            }
        }
    }
    /// Multiply-adds a cycle of a multiprocessor for a tile of this many elements: threads with few of them read more.
    /// `turned`: both operands' rows run along the result's axes.
    fn rate(self, area: usize, turned: bool) -> f64 {
        let kinds = match (self, area) {
            (Engine::TensorCores, _) => [2048.0; 2],
            (_, 32768..) => [86.0, 108.0],
            (_, 16384..) => [96.0, 101.0],
            (_, 8192..) => [88.0; 2],
            (_, 4096..) => [70.0; 2],
            _ => [45.0; 2],
        };
        kinds[usize::from(turned)]
    }
}

/// How the work is cut.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub engine: Engine,
    /// Tile of a block.
    pub m: usize,
    pub n: usize,
    pub stages: usize,
    /// Copies along K in a stage, each of the swizzle's span.
    pub spans: usize,
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
    /// Elements of K in a stage.
    pub fn depth(&self) -> usize {
        self.spans * SPAN / self.engine.bytes()
    }
    /// Bytes of both operands in a stage.
    pub fn stage_bytes(&self) -> usize {
        self.spans * SPAN * (self.m + self.n)
    }
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
    /// Columns of the result that are finished together, for outputs of these bytes: a line of 128 bytes of the widest;
    /// where threads hold columns far apart, all that lie in one register.
    pub fn columns(&self, outputs: &[usize]) -> usize {
        match self.engine {
            Engine::TensorCores => 128 / outputs.iter().max().copied().unwrap_or(2).clamp(2, 4),
            Engine::MultiplyAdds => 64,
        }
        .min(self.n)
    }
}

/// The tile with the least time, if there is room for it. `outputs`: bytes of the types that go out through shared memory.
pub fn choose(
    p: &Product,
    (engine, tile): (Engine, Option<[usize; 2]>),
    sides: [Major; 2],
    outputs: &[usize],
) -> Option<Shape> {
    let batch: usize = p.batch.iter().product();
    let mut best: Option<(f64, Shape)> = None;
    let turned = sides == [Major::Outer; 2];
    for &(m, n, copies, spans) in engine.tiles().iter().filter(|t| tile.is_none_or(|wanted| wanted == [t.0, t.1])) {
        // Rows of a tile that runs along the result's axis must fill the swizzle.
        let runs = [m / copies, n].into_iter().zip(sides).any(|(n, s)| s == Major::Outer && n * engine.bytes() < SPAN);
        if runs {
            continue;
        }
        let (tiles_m, tiles_n) = (p.m.div_ceil(m), p.n.div_ceil(n));
        let depths = p.k.div_ceil(spans * SPAN / engine.bytes());
        let mut shape = Shape { engine, m, n, stages: 0, spans, copies, cluster: 1, tiles_m, tiles_n, batch, depths };
        // A buffer's row holds a part of the tile in each of the types that go out.
        let line = outputs.iter().sum::<usize>() * shape.columns(outputs);
        shape.stages = ((MEMORY - BUFFERS * m * line) / shape.stage_bytes()).min(8);
        let pairs = m * n >= 128 * 256 && tiles_m.is_multiple_of(2) && batch * tiles_m * tiles_n >= PROCESSORS;
        shape.cluster = if pairs && engine == Engine::TensorCores { 2 } else { 1 };
        let time = shape.cycles(p, turned);
        if shape.stages >= 2 && best.as_ref().is_none_or(|(t, _)| time < *t) {
            best = Some((time, shape));
        }
    }
    let (_, shape) = best?;
    (shape.tiles() < 1 << 30 && (p.m.max(p.n).max(p.k) as u64) < 1 << 30).then_some(shape)
}

/// Parts of K on offer.
const PARTS: [usize; 5] = [1, 2, 4, 8, 16];

/// Parts of K with the least time, the second launch included. Parts are whole stages.
pub fn parts(p: &Product, (engine, tile): (Engine, Option<[usize; 2]>), sides: [Major; 2]) -> usize {
    /// Cycles of a launch that sums parts, and bytes a cycle that it reads.
    const LAUNCH: f64 = 4500.0;
    const READ: f64 = 2000.0;
    let time = |parts: usize| {
        let k = p.k / parts;
        if !p.k.is_multiple_of(parts) || parts > 1 && !(k * engine.bytes()).is_multiple_of(4 * SPAN) {
            return None;
        }
        let batch = [&[parts], &p.batch[..]].concat();
        let piece = Product { batch, k, ..*p };
        let outputs = if parts > 1 { 4 } else { engine.bytes() };
        let shape = choose(&piece, (engine, tile), sides, &[outputs])?;
        let elements = (p.batch.iter().product::<usize>() * p.m * p.n) as f64;
        let sum = LAUNCH + elements * (parts as f64 * 4.0) / READ;
        Some(shape.cycles(&piece, sides == [Major::Outer; 2]) + if parts > 1 { sum } else { 0.0 })
    };
    let times = PARTS.iter().filter_map(|&n| Some((n, time(n)?)));
    times.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(1, |t| t.0)
}

impl Shape {
    /// Clock cycles of the launch: turns of as many tiles as there are multiprocessors, each by the slowest of arithmetic,
    /// the copies from the second-level cache, and memory's share. Constants are measured on an H200.
    fn cycles(&self, p: &Product, turned: bool) -> f64 {
        /// Bytes a cycle: from the cache to a multiprocessor, from memory to all.
        const CACHE: f64 = 56.0;
        const ALL: f64 = 1900.0;
        /// Cycles until a copy has come from memory; one multiprocessor gets what is under way in that time.
        const LATENCY: f64 = 4500.0;
        /// Filling the ring, and finishing a tile: any, and more for one of 128 by 256.
        const FILL: f64 = 1500.0;
        const ANY: f64 = 800.0;
        const FINISH: f64 = 3200.0;
        let tiles = self.batch * self.tiles_m * self.tiles_n;
        let area = (self.m * self.n) as f64;
        let depths = self.depths as f64;
        // Rows and columns outside of the product are not read.
        let right = self.n.min(p.n) as f64 / self.cluster as f64;
        let span = (self.spans * SPAN) as f64;
        let copied = (self.m.min(p.m) as f64 + right) * span * depths;
        let one = (self.stages * (self.m.min(p.m) + self.n.min(p.n))) as f64 * span / LATENCY;
        // What a tile reads that no other has read before, on average.
        let own = (self.batch * (p.m + p.n) * p.k * self.engine.bytes()) as f64 / tiles as f64;
        let arithmetic = depths * area * self.depth() as f64 / self.engine.rate(self.m * self.n, turned);
        let turn = |running: usize| {
            let memory = (own / one).max(own * running as f64 / ALL);
            arithmetic.max(copied / CACHE).max(memory) + ANY + FINISH * area / 32768.0
        };
        let processors = PROCESSORS / self.cluster * self.cluster;
        let (whole, rest) = (tiles / processors, tiles % processors);
        FILL + whole as f64 * turn(processors) + if rest > 0 { turn(rest) } else { 0.0 }
    }
}
