//! Matmuls of bf16 on the processor's matrix unit (AMX), which multiplies tiles of 16 rows of 64 bytes.
//!
//! Both operands are packed into panels of 32 lanes (rows of a, columns of b), with two tiles for every 32 depths. A
//! tile of a holds 16 rows, one after the other; a tile of b holds 16 pairs of depths, each pair for its 16 columns.
//! Panels are padded with zeros to whole tiles. Accumulators are f32.
mod panels;
mod unit;

pub use panels::pack;
pub use unit::Unit;

use super::{
    Parallel, Shared,
    block::{Job, Lanes, put},
    buffer::{Buffer, Scratch, with_scratch},
    pack::{Element, Source},
};
use std::ops::Range;

/// Lanes of a panel.
pub const LANES: usize = 32;
/// Depth of a tile.
pub const STEP: usize = 32;
/// Deepest slice of two panels that are multiplied at once: one of the panels stays in the L1 cache.
const SLICE: usize = 512;
/// Most rows and columns of a task: its accumulators and a slice of the panels of b stay in the L2 cache.
const ROWS: usize = 256;
const COLUMNS: usize = 512;
/// Most elements of an operand that are packed at a time.
const CHUNK: usize = 16 << 20;
/// Elements of a packing task, which packs at least one panel.
const PACKED: usize = 1 << 16;
/// Matmuls with fewer FMAs run on one thread.
const SMALL: usize = 1 << 20;

/// The operand that a panel belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    A,
    B,
}

/// The depth of panels: a multiple of [`STEP`].
pub fn padded(depth: usize) -> usize {
    depth.next_multiple_of(STEP)
}

/// Computes `batches` matmuls of one size with operands in bf16.
///
/// # Safety
/// As `block::run`; the processor has the matrix unit.
pub unsafe fn run<'a, S, C>(p: Parallel, batches: usize, job: impl Fn(usize) -> Job<'a, S, C> + Send + Sync)
where
    S: Element,
    C: Element<Acc = S::Acc>,
{
    let Job { m, n, k, .. } = job(0);
    // SAFETY: this function's contract; results of different batches are disjoint.
    unsafe {
        if batches >= 2 * p.threads || m * n * k * batches < SMALL {
            let p = p.only_if(m * n * k * batches >= SMALL);
            p.each(batches, |i| matmul(Parallel::ALONE, &job(i)));
        } else {
            (0..batches).for_each(|i| matmul(p, &job(i)));
        }
    }
}

/// # Safety
/// As [`run`].
unsafe fn matmul<S: Element, C: Element<Acc = S::Acc>>(p: Parallel, job: &Job<S, C>) {
    let depth = padded(job.k);
    let (high, wide) = parts(p, [job.m, job.n, job.k]);
    let [mut room_a, mut room_b] = with_scratch(|s| [&mut s.a, &mut s.b].map(std::mem::take));
    let chunk = |lanes: &Lanes<S>, all: usize, part: usize| match lanes {
        Lanes::Packed(_) => all,
        Lanes::Strided(_) => (CHUNK / depth.max(1)).max(1).next_multiple_of(part),
    };
    let (rows, cols) = (chunk(&job.a, job.m, high), chunk(&job.b, job.n, wide));
    for from in (0..job.n).step_by(cols) {
        let cols = from..job.n.min(from + cols);
        let b = Shared(panels_of(p, Operand::B, &job.b, cols.clone(), job.k, &mut room_b));
        for from in (0..job.m).step_by(rows) {
            let rows = from..job.m.min(from + rows);
            let a = Shared(panels_of(p, Operand::A, &job.a, rows.clone(), job.k, &mut room_a));
            let job = Shared(*job);
            let across = cols.len().div_ceil(wide);
            p.each(rows.len().div_ceil(high) * across, |t| {
                let (i, j) = (t / across * high, t % across * wide);
                let (a, b) = (a.get().wrapping_add(i * depth), b.get().wrapping_add(j * depth));
                let (i, j) = (rows.start + i, cols.start + j);
                let part = [i..rows.end.min(i + high), j..cols.end.min(j + wide)];
                // SAFETY: the panels hold these rows and columns; parts of a result are disjoint.
                with_scratch(|s| unsafe { task(&job.get(), s, a, b, part) });
            });
        }
    }
    with_scratch(|s| (s.a, s.b) = (room_a, room_b));
}

/// Rows and columns of a task, in whole panels; small enough that there are tasks for all threads.
fn parts(p: Parallel, [m, n, k]: [usize; 3]) -> (usize, usize) {
    let whole = |size: usize, most: usize| size.next_multiple_of(LANES).clamp(LANES, most);
    let (mut high, mut wide) = (whole(m, ROWS), whole(n, COLUMNS));
    let least = if p.threads == 1 { 1 } else { (3 * p.threads).min((m * n * k).div_ceil(SMALL)) };
    while m.div_ceil(high) * n.div_ceil(wide) < least && high.max(wide) > LANES {
        let longer = if wide >= high { &mut wide } else { &mut high };
        *longer = (*longer / 2).next_multiple_of(LANES);
    }
    (high, wide)
}

/// Panels of some lanes over all of K; packs them unless they are packed already. The first lane begins a panel.
fn panels_of<S: Element>(
    p: Parallel,
    operand: Operand,
    lanes: &Lanes<S>,
    some: Range<usize>,
    k: usize,
    room: &mut Buffer,
) -> *const u16 {
    let depth = padded(k);
    let from = match lanes {
        Lanes::Packed(at) => return at.cast::<u16>().wrapping_add(some.start * depth),
        Lanes::Strided(from) => Shared(*from),
    };
    let to = Shared(room.room::<u16>(some.len().next_multiple_of(LANES) * depth));
    let panels = some.len().div_ceil(LANES);
    let each = (PACKED / (LANES * depth).max(1)).max(1);
    p.each(panels.div_ceil(each), |t| {
        for panel in t * each..panels.min((t + 1) * each) {
            let first = panel * LANES;
            let lanes = [some.start + first, LANES.min(some.len() - first)];
            // SAFETY: the lanes exist in the operand; tasks write disjoint panels of the buffer.
            unsafe { pack(operand, words(from.get()), lanes, k, to.get().add(first * depth)) };
        }
    });
    to.get()
}

/// A source of bf16, reinterpreted as 16-bit words.
pub fn words<S: Element>(s: Source<S>) -> Source<u16> {
    Source { at: s.at.cast(), lanes: s.lanes, depth: s.depth }
}

/// Computes a part of a matmul on this thread.
///
/// # Safety
/// As [`run`]; the panels begin with these rows and columns.
unsafe fn task<S, C>(job: &Job<S, C>, s: &mut Scratch, a: *const u16, b: *const u16, [rows, cols]: [Range<usize>; 2])
where
    S: Element,
    C: Element<Acc = S::Acc>,
{
    let depth = padded(job.k);
    let (high, wide) = (rows.len().next_multiple_of(LANES), cols.len().next_multiple_of(LANES));
    // If there is only one slice, accumulators are written out panel by panel, from the L1 cache.
    let whole = depth <= SLICE;
    let pitch = if whole { LANES } else { wide };
    let sums = s.sums.room::<f32>(if whole { LANES } else { high } * pitch);
    // SAFETY: this function's contract; the accumulators have room for whole panels.
    unsafe {
        let part = |i: usize, j: usize| {
            let rows = rows.start + i..rows.end.min(rows.start + i + LANES);
            (rows, cols.start + j..cols.end.min(cols.start + j + LANES))
        };
        if depth == 0 {
            sums.write_bytes(0, LANES * pitch);
            let all = (0..high).step_by(LANES).flat_map(|i| (0..wide).step_by(LANES).map(move |j| (i, j)));
            all.for_each(|(i, j)| write(job, sums, pitch, part(i, j)));
        }
        let unit = Unit::ready();
        for k in (0..depth).step_by(SLICE) {
            let steps = SLICE.min(depth - k) / STEP;
            for i in (0..high).step_by(LANES) {
                let a = a.add(i * depth + k * LANES);
                for j in (0..wide).step_by(LANES) {
                    let b = b.add(j * depth + k * LANES);
                    let sums = if whole { sums } else { sums.add(i * pitch + j) };
                    unit.multiply(steps, [a, b], sums, pitch, k > 0);
                    if k + SLICE >= depth {
                        write(job, sums, pitch, part(i, j));
                    }
                }
            }
        }
    }
}

/// Writes the accumulators of a panel of rows and a panel of columns to the result.
///
/// # Safety
/// The rows and columns exist in the result.
unsafe fn write<S, C>(job: &Job<S, C>, sums: *const f32, pitch: usize, (rows, cols): (Range<usize>, Range<usize>))
where
    S: Element,
    C: Element<Acc = S::Acc>,
{
    let (c, row) = (&job.c, rows.start);
    for i in rows {
        // SAFETY: this function's contract; accumulators are f32, because operands are in bf16.
        unsafe {
            let sums = std::slice::from_raw_parts(sums.add((i - row) * pitch).cast::<S::Acc>(), cols.len());
            match (c.rows.stride(), c.cols.stride()) {
                // Avoids the divisions that rows or columns with several axes need.
                (Some(down), Some(1)) => put(sums, c.at.add(i * down + cols.start), 1),
                _ => {
                    let to = c.at.add(c.rows.at(i));
                    c.cols.stretches(cols.start, cols.end, |first, count, offset, stride| {
                        put(&sums[first..first + count], to.add(offset), stride);
                    });
                }
            }
        }
    }
}
