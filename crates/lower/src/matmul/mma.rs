//! Matmuls without pipelining: tiles of masked pointer loads, and the loop over K. Takes operands of any
//! layout.
use crate::emit::emitter::Lanes;
use crate::emit::frame::{Frame, looped};
use crate::emit::math;
use crate::matmul::{Coords, Matmul};
use crate::scalar::dag::NodeId;
use crate::scalar::types;
use crate::schedule::tile::Cut;
use kiln_block::{BinaryOp as B, DotPrecision, Elem, Value};
use kiln_graph::DType;
use kiln_machine::isa::WARP;
use kiln_plan::{Engine, Precision, Step};

/// Tile of one instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tile {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub warps: usize,
    /// Rows of tiles in a group.
    pub group: usize,
}
impl Tile {
    /// The tile as schedules have it.
    pub fn of_schedule(self, engine: Engine) -> kiln_plan::matmul_schedule::MatmulTile {
        let Tile { m, n, k, warps, group } = self;
        let size = [m, n, k];
        let warps = Some(warps);
        kiln_plan::matmul_schedule::MatmulTile {
            size,
            warps,
            group,
            ..kiln_plan::matmul_schedule::MatmulTile::new(engine)
        }
    }
}

/// What multiplies tiles of these operands.
pub fn engine(dtype: DType, p: &Matmul) -> Engine {
    let mma = dtype.bytes() <= 2 || dtype == DType::F32 && p.precision == Precision::Tf32;
    if mma { Engine::Mma } else { Engine::Fma }
}

/// Rows of tiles in a group, which are computed together before the next columns, so that operands stay in the L2
/// cache.
const GROUP: usize = 8;

/// Whether tiles can be taken in groups of so many rows of tiles: the rows are whole groups.
fn groups(p: &Matmul, [m, n]: [usize; 2], group: usize) -> bool {
    let (rows, columns) = (p.m.div_ceil(m), p.n.div_ceil(n));
    rows % group == 0 && rows != group && columns > 1 && p.batch.iter().all(|&b| b == 1)
}

/// The tile that a schedule asks for.
pub fn of_schedule(p: &Matmul, dtype: DType, t: &kiln_plan::matmul_schedule::MatmulTile) -> Result<Tile, String> {
    let [m, n, k] = t.size;
    let multiply = Step::Multiply(t.engine, t.size.to_vec());
    let power = |n: usize, most: usize| n.is_power_of_two() && (16..=most).contains(&n);
    if t.engine != engine(dtype, p) {
        return Err(format!("the matmul is computed by `{}`, not `{}`", engine(dtype, p).name(), t.engine.name()));
    }
    if !power(m, 256) || !power(n, 1 << 13) || !power(k, 256) || m * n > 1 << 19 {
        return Err(format!("`{multiply}` does not fit: sizes are powers of two, from 16 to 256 (columns to 8192)"));
    }
    if t.cluster > 1 || t.persist.is_some() || t.ping_pong {
        return Err(format!("`{multiply}` has no clusters, `persist` or `ping-pong` unless `stage a,b shared N`"));
    }
    let warps = t.warps.unwrap_or(0);
    if !warps.is_power_of_two() || warps > 16 {
        return Err(format!("`{multiply}` needs `bind warp N` with 1 to 16 warps, a power of two"));
    }
    if t.group > 1 && !groups(p, [m, n], t.group) {
        return Err(format!("`{}` does not fit: rows of tiles are not whole groups", Step::Group(t.group)));
    }
    Ok(Tile { m, n, k, warps, group: t.group })
}

/// Rows and columns of tiles.
const SIZES: [[usize; 2]; 6] = [[128, 128], [64, 128], [128, 64], [64, 64], [32, 64], [16, 64]];
/// Rows of tiles that have all columns, which an epilogue reduces.
const ROWS_OF_WHOLE_TILES: [usize; 3] = [64, 32, 16];
/// Most registers of a thread for accumulators.
const MAX_ACCUMULATORS: usize = 128;

/// The tiles that suit a matmul, the largest first.
pub fn tiles(p: &Matmul, dtype: DType) -> Vec<Tile> {
    let fit = |n: usize, most: usize| n.next_power_of_two().clamp(16, most);
    let whole = ROWS_OF_WHOLE_TILES.map(|m| [m, p.n.next_power_of_two().max(16)]);
    let sizes: &[[usize; 2]] = match p.row {
        None => &SIZES,
        Some(len) if len == p.n => &whole,
        Some(_) => &[],
    };
    let k = match dtype.bytes() {
        8 => 16,
        4 => 32,
        _ => 64,
    };
    let one = |[m, n]: [usize; 2]| {
        let warps = match m * n {
            area if area >= 128 * 128 => 8,
            area if area >= 64 * 32 => 4,
            _ => 1,
        };
        let group = if groups(p, [m, n], GROUP) { GROUP } else { 1 };
        Tile { m, n, k: k.min(p.k.next_power_of_two().max(16)), warps, group }
    };
    let registers = dtype.bytes().div_ceil(4);
    let held = |t: &Tile| p.sums() * t.m * t.n * registers / (WARP * t.warps) <= MAX_ACCUMULATORS;
    // Twice the rows, and the warps of so many, may hide more latency.
    let mut all: Vec<Tile> = sizes.iter().map(|&[m, n]| one([fit(2 * p.m, m), fit(p.n, n)])).filter(held).collect();
    all.dedup();
    all
}

/// Orders the tiles in groups of rows.
pub fn grouped(f: &mut Frame, p: &Matmul, ids: &Coords, t: Tile) {
    if t.group == 1 {
        return;
    }
    let columns = p.n.div_ceil(t.n);
    let b = &mut f.b;
    let pid = b.program_id(0);
    let pid = b.cast(pid, f.em.index);
    let (g, gc) = (f.em.int(b, t.group as i64), f.em.int(b, (t.group * columns) as i64));
    let (group, within) = (b.binary(B::Div, pid, gc), b.binary(B::Rem, pid, gc));
    let (column, row) = (b.binary(B::Div, within, g), b.binary(B::Rem, within, g));
    let first = b.binary(B::Mul, group, g);
    let row = b.binary(B::Add, first, row);
    let m = f.lanes(Cut { id: ids.m, extent: p.m, block: t.m, axis: 0 }, Some(row));
    let n = f.lanes(Cut { id: ids.n, extent: p.n, block: t.n, axis: 1 }, Some(column));
    f.em.coords.insert(ids.m, m);
    f.em.coords.insert(ids.n, n);
}

pub fn accumulate(
    f: &mut Frame,
    p: &Matmul,
    ids: &Coords,
    t: Tile,
    (a, b): (NodeId, &[NodeId]),
    dtype: DType,
) -> Vec<Value> {
    let held = types::held(dtype);
    let zero = math::float(&mut f.b, held, 0.0);
    let start = f.b.splat(zero, &[t.m, t.n]);
    let ka = Cut { id: ids.ka, extent: p.k, block: t.k, axis: 1 };
    let kb = Cut { id: ids.kb, extent: p.k, block: t.k, axis: 0 };
    let lanes = [f.iota(ka), f.iota(kb)];
    let (lo, hi, step) = (f.b.i32(0), f.b.i32(p.k as i64), f.b.i32(t.k as i64));
    let (first, end) = first_and_end(f, p);
    // Slices are whole tiles, which go on beyond K where it is not so many.
    let covered = p.full_k.map_or(p.k.next_multiple_of(t.k), |_| p.batch[0] * p.k);
    let ragged = covered != end;
    looped(f, [lo, hi, step], &vec![start; b.len()], |f, index, now| {
        let base = f.b.cast(index, f.em.index);
        let position = first.filter(|_| ragged).map_or(base, |first| f.b.binary(B::Add, first, base));
        let mut masks = vec![];
        for (cut, lane) in [ka, kb].iter().zip(lanes) {
            let mask = lane.filter(|_| ragged).map(|l| f.below(Some(position), l, end));
            f.em.coords.insert(cut.id, Lanes { base: Some(base), lane, mask, block: 0 });
            masks.push(mask);
        }
        let a = f.em.operand_tile(&mut f.b, a, dtype, &[t.m, t.k]);
        let a = widened(f, a);
        // Zeroing one operand beyond K is not enough: 0 · NaN is NaN, so both are zeroed.
        let a = zero_outside(f, a, masks[0]);
        let one = |(b, now): (&NodeId, &Value)| {
            let b = f.em.operand_tile(&mut f.b, *b, dtype, &[t.k, t.n]);
            let b = widened(f, b);
            let b = zero_outside(f, b, masks[1]);
            if dtype != DType::F32 {
                return f.b.dot(a, b, *now, DotPrecision::Exact);
            }
            // Each step of K is summed by itself, then added to the total: the rounding error of an f32 sum grows with
            // its number of terms.
            let part = match p.precision {
                Precision::Tf32 => f.b.dot(a, b, start, DotPrecision::Tf32),
                _ => f.b.sum_of(p.terms, a, b, start),
            };
            f.b.binary(B::Add, *now, part)
        };
        b.iter().zip(now).map(one).collect()
    })
}

/// Where along K an instance begins, in the index type, if it has a slice of it
/// ([`Parts`](crate::matmul::slices::Parts)), and where K ends.
fn first_and_end(f: &mut Frame, p: &Matmul) -> (Option<Value>, usize) {
    let Some(end) = p.full_k else { return (None, p.k) };
    let slice = f.em.coords.get(&0).and_then(|lanes| lanes.base);
    let first = slice.map(|slice| {
        let len = f.em.int(&mut f.b, p.k as i64);
        f.b.binary(B::Mul, slice, len)
    });
    (first, end)
}

/// f8 as f16, which represents all of its numbers and which tensor cores take on every target.
fn widened(f: &mut Frame, v: Value) -> Value {
    if f.b.elem(v).is_some_and(Elem::is_f8) { f.b.cast(v, Elem::F16) } else { v }
}

/// Zero where the mask does not hold.
pub fn zero_outside(f: &mut Frame, v: Value, mask: Option<Value>) -> Value {
    let Some(mask) = mask else { return v };
    let elem = math::elem(&mut f.b, v);
    let zero = math::float(&mut f.b, elem, 0.0);
    f.b.select(mask, v, zero)
}
