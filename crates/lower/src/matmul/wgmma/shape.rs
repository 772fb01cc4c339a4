//! Sizes of tiles and pipeline of matmuls by warpgroups, and which of them fit a matmul.
use crate::matmul::Matmul;
use crate::matmul::wgmma::strided::{Major, SPAN, Side, majors};
use kiln_block::DotPrecision;
pub use kiln_block::passes::warpgroup::persistent::GROUP;
use kiln_block::passes::warpgroup::roles::epilogue::BUFFERS;
use kiln_block::passes::warpgroup::{form, memory, slice};
use kiln_graph::DType;
use kiln_plan::matmul_schedule::MatmulTile;
use kiln_plan::{Engine as Unit, Hardware, Operand, Precision, Step};
use std::fmt;

/// Most columns of a matmul for which there are narrow tiles.
pub const MAX_SKINNY_ROWS: usize = 32;
/// Most stages that are chosen by default, and least beside buffers of what the epilogue reads.
const MAX_STAGES: usize = 12;
const MIN_STAGES: usize = 3;

/// Tiles of tensor cores: rows, columns, consumer warpgroups, copies along K in a stage. Those of 64 columns and more
/// come first. Block programs hold 192 columns in blocks of 256.
const TENSOR_TILES: [(usize, usize, usize, usize); 14] = [
    (128, 256, 2, 1),
    (256, 128, 2, 1),
    (128, 192, 2, 1),
    (128, 128, 2, 1),
    (128, 64, 2, 1),
    (64, 256, 1, 1),
    (64, 192, 1, 1),
    (64, 128, 1, 1),
    (64, 64, 1, 1),
    (64, 64, 1, 2),
    (128, 32, 2, 1),
    (128, 16, 2, 1),
    (64, 32, 1, 1),
    (64, 16, 1, 1),
];
/// How many of them have 64 columns or more.
const WIDE_TILES: usize = 10;

/// The unit that multiplies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Engine {
    /// bf16 and f16 by `wgmma`.
    TensorCores,
    /// f32 in tf32 by `wgmma`, the right operand K-major. Left ones that are M-major go through registers.
    Tf32,
    /// 3xTF32: f32 by three such matmuls, of operands split into two tf32 numbers.
    Tf32x3,
    /// 8-bit floats by `wgmma`, operands K-major.
    F8,
    /// Exact f32 by FMAs.
    Simt,
}

impl Engine {
    pub fn of(dtype: DType, precision: Precision, sides: [Major; 2]) -> Option<Engine> {
        match dtype {
            DType::Bf16 | DType::F16 => Some(Engine::TensorCores),
            DType::F32 => Some(match precision {
                Precision::Tf32 if sides[1] == Major::Depth => Engine::Tf32,
                Precision::Tf32x3 if sides == [Major::Depth; 2] => Engine::Tf32x3,
                _ => Engine::Simt,
            }),
            f8 if f8.is_f8() => (sides == [Major::Depth; 2]).then_some(Engine::F8),
            _ => None,
        }
    }
    /// Its name in schedules.
    pub fn unit(self) -> Unit {
        match self {
            Engine::TensorCores | Engine::Tf32 | Engine::F8 => Unit::Wgmma,
            Engine::Tf32x3 => Unit::Wgmma3xTf32,
            Engine::Simt => Unit::Fma,
        }
    }
    /// The precision of its `dot` in block programs.
    pub fn precision(self) -> DotPrecision {
        if matches!(self, Engine::Tf32 | Engine::Tf32x3) { DotPrecision::Tf32 } else { DotPrecision::Exact }
    }
    /// Whether the accumulator of each stage is zero-initialised and added to the total in f32: tensor cores truncate
    /// when they accumulate, which over a long K always errs towards zero.
    pub fn promotes_each_stage(self) -> bool {
        matches!(self, Engine::Tf32x3 | Engine::F8)
    }
    /// Tiles of an operand in a stage: two for high and low parts.
    pub fn parts(self) -> usize {
        if self == Engine::Tf32x3 { 2 } else { 1 }
    }
    /// Most copies along K in a stage.
    fn most_spans(self) -> usize {
        if matches!(self, Engine::Simt | Engine::F8) { 1 } else { 2 }
    }
    /// Columns that are loaded and multiplied, of a tile of `n` columns of which the matmul has `columns`.
    fn used(self, columns: usize, n: usize, right: Major) -> usize {
        match (self, right) {
            (Engine::Simt, _) => n,
            (_, Major::Depth) => columns.next_multiple_of(8),
            (_, Major::Outer) => columns.next_multiple_of(SPAN / self.bytes()).min(n),
        }
    }
    /// Bytes of an operand's element.
    pub fn bytes(self) -> usize {
        match self {
            Engine::F8 => 1,
            Engine::TensorCores => 2,
            _ => 4,
        }
    }
    /// Elements along K that slices are multiples of: two copies of a stage.
    pub fn slice_depth(self) -> usize {
        2 * SPAN / self.bytes()
    }
    /// The available tiles: rows, columns, consumer warpgroups, copies along K in a stage.
    pub fn tiles(self) -> &'static [(usize, usize, usize, usize)] {
        match self {
            Engine::TensorCores | Engine::F8 => &TENSOR_TILES,
            // tf32 has no tiles narrower than 64 columns.
            Engine::Tf32 | Engine::Tf32x3 => &TENSOR_TILES[..WIDE_TILES],
            Engine::Simt => {
                &[(128, 256, 2, 1), (128, 128, 2, 1), (64, 128, 2, 1), (128, 64, 2, 1), (64, 64, 2, 1), (32, 64, 2, 1)]
            }
        }
    }
    /// Whether a smaller tile has all rows or columns that this one has of a matmul.
    pub fn is_wide(self, p: &Matmul, &(m, n, ..): &(usize, usize, usize, usize)) -> bool {
        let mut others = self.tiles().iter().filter(|t| p.row.is_none() || t.1.is_power_of_two());
        others.any(|t| t.0 == m && t.1 < n && p.n <= t.1 || t.1 == n && t.0 < m && p.m <= t.0)
    }
}

/// How a matmul is divided into tiles and stages.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub engine: Engine,
    /// MatmulTile of a thread block.
    pub m: usize,
    pub n: usize,
    /// Columns of the tile that are loaded and multiplied: the matmul may have fewer.
    pub used: usize,
    pub stages: usize,
    /// Copies along K in a stage, each of the swizzle's span.
    pub spans: usize,
    /// Consumer warpgroups of a tile, each with rows of its own.
    pub copies: usize,
    /// Tiles of a block in flight: with two, the epilogue of one overlaps the multiplication of the other (ping-pong).
    pub in_flight: usize,
    /// Consumers read the left operand to registers, and round it there.
    pub registers: bool,
    /// Right operands, each with an accumulator of its own: two in a dual GEMM.
    pub sums: usize,
    pub cluster: usize,
    pub tiles_m: usize,
    pub tiles_n: usize,
    pub batch: usize,
    /// Stages along all of K.
    pub depths: usize,
    /// Rows of tiles in a group, which are computed before the next column of tiles.
    pub group: usize,
    /// Buffers of a consumer through which its epilogue reads a tile and stores the result; 0: it reads by address.
    pub buffers: usize,
}

/// What an epilogue stores and reads through shared memory.
#[derive(Clone, Debug, Default)]
pub struct Through {
    /// Element sizes of the types that are stored, each type once.
    pub stored: Vec<usize>,
    /// It reads a tile in the place of its only result.
    pub prefetched: bool,
}

impl Shape {
    /// Columns of the block values that hold a tile.
    pub fn block(&self) -> usize {
        self.n.next_power_of_two()
    }
    /// Elements of K in a stage.
    pub fn depth(&self) -> usize {
        self.spans * SPAN / self.engine.bytes()
    }
    /// Bytes of both operands in a stage.
    pub fn stage_bytes(&self) -> usize {
        self.engine.parts() * self.spans * SPAN * (self.m + self.sums * self.used)
    }
    /// Number of tiles, counting those of a cluster as one.
    pub fn tiles(&self) -> usize {
        self.batch * self.tiles_m.div_ceil(self.cluster) * self.tiles_n
    }
    /// Blocks of the launch.
    pub fn blocks(&self, machine: &Hardware) -> usize {
        (self.tiles() * self.cluster).min(machine.units.multiprocessors / self.cluster * self.cluster)
    }
    /// Columns of the result that the epilogue processes together, for outputs with elements of these bytes.
    fn columns(&self, outputs: &[usize]) -> usize {
        let engine = match self.engine {
            Engine::Simt => form::Engine::Simt,
            _ => form::Engine::TensorCores,
        };
        slice::columns(engine, outputs, self.n)
    }
}

/// What a schedule chooses, beside the tile.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    pub in_flight: usize,
    pub cluster: usize,
    /// By default as many as there is room for.
    pub stages: Option<usize>,
    /// Buffers of what the epilogue reads; 0: none, by address. By default one for each slice where memory has room.
    pub buffers: Option<usize>,
    pub group: usize,
}
impl Choices {
    pub fn of(in_flight: usize) -> Choices {
        Choices { in_flight, cluster: 1, stages: None, buffers: None, group: GROUP }
    }
}

/// Why tiles do not fit a matmul.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Misfit {
    /// There is no such tile for the engine.
    Size,
    /// Rows of a tile's part in shared memory are shorter than a copy.
    Rows,
    /// Rows that the epilogue reduces are not whole in a tile.
    Cut,
    /// Stages cross rows of a convolution's input.
    Crossed,
    /// Narrow tiles are for few columns.
    Narrow,
    /// The engine has one tile in flight.
    PingPong,
    /// K of a stage is one copy or two.
    Depth,
    /// The accumulators of a thread do not fit its registers.
    Accumulators,
    /// Clusters are pairs of tiles of tensor cores.
    Cluster,
    /// Shared memory has room for so many stages.
    Stages(usize),
    /// The epilogue reads no tile of the type and size of its only result.
    Prefetch,
    /// Buffers divide the slices of a tile, so many.
    Buffers(usize),
    /// Positions do not fit 32 bits.
    Large,
}
impl Misfit {
    /// The text of the refusal, for a tile.
    pub fn of(self, t: &MatmulTile) -> String {
        let multiply = Step::Multiply(t.engine, t.size.to_vec());
        let step = match self {
            Misfit::PingPong => Step::PingPong,
            Misfit::Cluster => Step::Cluster(t.cluster),
            Misfit::Stages(_) => Step::Stage(vec![Operand::A, Operand::B], t.stages.unwrap_or(0)),
            Misfit::Prefetch | Misfit::Buffers(_) => Step::Stage(vec![Operand::C], t.buffers.unwrap_or(0)),
            _ => multiply,
        };
        format!("`{step}` does not fit: {self}")
    }
}
impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Size => f.write_str(
                "tiles are 128x256, 256x128, 128x192, 128x128, 128x64, 128x32, 128x16, 64x256, 64x192, 64x128, 64x64, \
                 64x32, 64x16; exact f32 has 32x64 in place of 256x128, 64x256, those of 192 columns and those \
                 narrower than 64; tf32 none narrower than 64",
            ),
            Misfit::Rows => write!(f, "an operand's rows in a tile have fewer than {SPAN} bytes"),
            Misfit::Cut => f.write_str(
                "the rows that the epilogue reduces are not whole in a tile; `stage c global` computes it by a launch \
                 of its own",
            ),
            Misfit::Crossed => f.write_str("K of a stage crosses the channels of a point"),
            Misfit::Narrow => write!(f, "tiles of fewer than 64 columns are for matmuls of at most {MAX_SKINNY_ROWS}"),
            Misfit::PingPong => f.write_str("fma has one tile in flight"),
            Misfit::Depth => write!(f, "K of a stage is {SPAN} bytes, or with tensor cores {}", 2 * SPAN),
            Misfit::Accumulators => f.write_str("the accumulators do not fit a thread's registers"),
            Misfit::Cluster => f.write_str(
                "two blocks of tensor cores share a right operand, where rows of tiles are \
                 even in number",
            ),
            Misfit::Stages(room) => write!(f, "shared memory has room for 2 to {room} stages"),
            Misfit::Prefetch => f.write_str(
                "the epilogue reads no array of the type and size of its only result, in rows of multiples of 16 bytes",
            ),
            Misfit::Buffers(slices) => write!(
                f,
                "{slices} slices of a tile come through {slices} buffers, or two or \
                 more that divide them"
            ),
            Misfit::Large => f.write_str("positions do not fit 32 bits"),
        }
    }
}

/// The shape of a schedule's tile.
pub fn of_tile(
    p: &Matmul,
    engine: Engine,
    t: &MatmulTile,
    sides: [Side; 2],
    through: &Through,
) -> Result<Shape, Misfit> {
    let [m, n, k] = t.size;
    let copies = engine.tiles().iter().find(|of| (of.0, of.1) == (m, n)).map(|of| of.2).ok_or(Misfit::Size)?;
    let bytes = k * engine.bytes();
    if !bytes.is_multiple_of(SPAN) {
        return Err(Misfit::Depth);
    }
    let in_flight = if t.ping_pong { 2 } else { 1 };
    let buffers = Some(t.buffers.unwrap_or(0));
    let choices = Choices { in_flight, cluster: t.cluster, stages: t.stages, buffers, group: t.group };
    shape(p, engine, [m, n, copies, bytes / SPAN], choices, sides, through)
}

/// The shape with a tile of this size, if it fits.
pub fn shape(
    p: &Matmul,
    engine: Engine,
    [m, n, copies, spans]: [usize; 4],
    choices: Choices,
    sides: [Side; 2],
    through: &Through,
) -> Result<Shape, Misfit> {
    let sides = majors(sides);
    let batch: usize = p.batch.iter().product();
    let Choices { in_flight, cluster, group, .. } = choices;
    let copies = if in_flight > 1 { 1 } else { copies };
    let refuse = |is: bool, why: Misfit| if is { Err(why) } else { Ok(()) };
    // Rows of an M/N-major tile must fill the swizzle's span.
    let runs = [m / copies, n].into_iter().zip(sides).any(|(n, s)| s == Major::Outer && n * engine.bytes() < SPAN);
    refuse(runs, Misfit::Rows)?;
    // Rows to reduce that do not fit a tile: heads must be as wide as one. Under split-K the step that sums slices
    // reduces.
    let whole_block = n.is_power_of_two();
    let cut = p.row.is_some_and(|len| p.full_k.is_none() && (!whole_block || n < len || len < p.n && n != len));
    refuse(cut, Misfit::Cut)?;
    // Implicit GEMM: a stage must not cross rows of the array.
    refuse(p.run.is_some_and(|run| run.len % (spans * SPAN / engine.bytes()) != 0), Misfit::Crossed)?;
    // Tensor cores are slower in narrow tiles.
    refuse(n < 64 && p.n > MAX_SKINNY_ROWS, Misfit::Narrow)?;
    refuse(in_flight > 1 && engine == Engine::Simt, Misfit::PingPong)?;
    refuse(!(1..=engine.most_spans()).contains(&spans), Misfit::Depth)?;
    let sums = p.sums();
    // Accumulators of a thread.
    let held = sums * m * n / copies / 128 * (1 + usize::from(engine.promotes_each_stage()));
    refuse(held > 128, Misfit::Accumulators)?;
    let (tiles_m, tiles_n) = (p.m.div_ceil(m), p.n.div_ceil(n));
    let depths = p.k.div_ceil(spans * SPAN / engine.bytes());
    let whole = engine != Engine::Simt && tiles_m.is_multiple_of(2);
    let used = if cluster == 1 { engine.used(n.min(p.n), n, sides[1]) } else { n };
    let registers = engine == Engine::Tf32 && (p.rounded || sides[0] == Major::Outer);
    let (stages, buffers) = (0, 0);
    #[rustfmt::skip]
    let mut shape = Shape {
        engine, m, n, used, stages, spans, copies, in_flight, registers, sums, cluster, tiles_m, tiles_n, batch,
        depths, group, buffers,
    };
    // A row of a buffer holds a part of the tile in each of the output types.
    let columns = shape.columns(&through.stored);
    let line = through.stored.iter().sum::<usize>() * columns;
    let stage = shape.stage_bytes();
    let room_beside = |buffers: usize| memory(p.machine).saturating_sub(buffers * in_flight * m * line) / stage;
    let slices = n.min(p.n).div_ceil(columns);
    let divides = |buffers: &usize| *buffers == slices || *buffers > 1 && slices.is_multiple_of(*buffers);
    shape.buffers = match choices.buffers {
        Some(0) => 0,
        Some(_) if !through.prefetched => return Err(Misfit::Prefetch),
        Some(buffers) if divides(&buffers) => buffers,
        Some(_) => return Err(Misfit::Buffers(slices)),
        None if through.prefetched => {
            let mut some = (1..=slices).rev().filter(divides);
            some.find(|buffers| room_beside(*buffers) >= MIN_STAGES).unwrap_or(0)
        }
        None => 0,
    };
    let room = room_beside(if shape.buffers > 0 { shape.buffers } else { BUFFERS });
    shape.stages = choices.stages.unwrap_or(room.min(MAX_STAGES));
    refuse(!(2..=room).contains(&shape.stages), Misfit::Stages(room))?;
    refuse(!(cluster == 1 || cluster == 2 && whole), Misfit::Cluster)?;
    let counts = shape.tiles() < 1 << 30 && (p.m.max(p.n).max(p.k) as u64) < 1 << 30;
    refuse(!counts, Misfit::Large)?;
    Ok(shape)
}

impl Shape {
    /// The tile as schedules have it.
    pub fn tile(&self, machine: &Hardware) -> MatmulTile {
        MatmulTile {
            engine: self.engine.unit(),
            size: [self.m, self.n, self.depth()],
            stages: Some(self.stages),
            buffers: (self.buffers > 0).then_some(self.buffers),
            warps: None,
            cluster: self.cluster,
            group: self.group,
            persist: Some(self.blocks(machine)),
            ping_pong: self.in_flight > 1,
        }
    }
}
