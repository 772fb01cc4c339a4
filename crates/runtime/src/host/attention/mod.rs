//! Attention on the host in blocks, whose scores stay in the caches (as in FlashAttention).
//!
//! Takes: an [`AttentionCall`] and the addresses of its operands. Gives: the result, written in place.
//! Never: allocates in warm calls; panels and scores live in buffers that each thread keeps.
//!
//! A block of rows of q passes over blocks of keys. Its scores are multiplied, masked and turned into powers of two,
//! relative to the greatest score so far ([`softmax`]); sums of values are scaled down when that grows. Keys beyond the
//! last that a row attends to are not computed, whether causality, an end or a mask in memory says so: a panel of rows
//! ends with its longest row. Keys and values are packed once per head if several blocks of rows use them, block by
//! block if one does, and not at all for a few rows.
//!
//! bf16 is multiplied by the matrix unit where there is one ([`matrix`]), everything else by vectors ([`vectors`]).
#[cfg(target_arch = "x86_64")]
mod few;
#[cfg(target_arch = "x86_64")]
mod matrix;
mod rows;
mod softmax;
mod unit;
mod vectors;

use super::{
    Parallel, Shared,
    gemm::{
        buffer::Buffer,
        offset,
        pack::{Element, Side, Source},
    },
};
use half::{bf16, f16};
use kiln_cpu::Level;
use kiln_graph::DType;
use kiln_plan::exec::{AttentionCall, Matrix, Slot};
use rows::{Head, Packed};
use softmax::{Score, Seen};
use std::cell::Cell;
use unit::Unit;
use vectors::Vectors;

/// Attention with fewer FMAs runs on one thread.
const SMALL: usize = 1 << 18;
/// Least keys of a part, in blocks: below, joining the parts costs more than a thread saves.
const PART: usize = 2;

/// Addresses of the operands' buffers, before `Matrix::offset` is added.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    q: *const u8,
    k: *const u8,
    v: *const u8,
    out: *mut u8,
    mask: Option<*const u8>,
    ends: Option<*const u8>,
    sink: Option<*const u8>,
}
impl Operands {
    /// `at`: the address of a slot, called in the order of [`AttentionCall::slots`].
    pub fn new(a: &AttentionCall, mut at: impl FnMut(Slot) -> *mut u8) -> Operands {
        let [q, k, v, out] = [&a.q, &a.k, &a.v, &a.out].map(|m| at(m.slot));
        let mask = a.mask.as_ref().map(|m| at(m.matrix.slot).cast_const());
        let ends = a.ends.as_ref().map(|m| at(m.slot).cast_const());
        let sink = a.sink.as_ref().map(|s| at(s.matrix.slot).cast_const());
        Operands { q, k, v, out, mask, ends, sink }
    }
}

/// Computes attention.
///
/// # Safety
/// The operands' slots hold everything that the call's offsets, sizes and strides reach (as `Executable::check` makes
/// sure), are aligned for their dtype, and nothing else accesses the result during the call.
pub(crate) unsafe fn attention(p: Parallel, a: &AttentionCall, x: Operands) {
    // SAFETY: as this function's.
    unsafe { attention_by(Level::used(), p, a, x) }
}

/// Computes attention with an instruction set that this processor has.
///
/// # Safety
/// As [`attention`].
unsafe fn attention_by(level: Level, p: Parallel, a: &AttentionCall, x: Operands) {
    // SAFETY: as this function's.
    unsafe {
        match (a.dtype, a.out_dtype) {
            #[cfg(target_arch = "x86_64")]
            (DType::Bf16, DType::Bf16) if level == Level::Amx => run::<matrix::Tiles, bf16>(level, p, a, x),
            #[cfg(target_arch = "x86_64")]
            (DType::Bf16, _) if level == Level::Amx => run::<matrix::Tiles, f32>(level, p, a, x),
            (DType::Bf16, DType::Bf16) => run::<Vectors<bf16>, bf16>(level, p, a, x),
            (DType::Bf16, _) => run::<Vectors<bf16>, f32>(level, p, a, x),
            (DType::F16, DType::F16) => run::<Vectors<f16>, f16>(level, p, a, x),
            (DType::F16, _) => run::<Vectors<f16>, f32>(level, p, a, x),
            (DType::F64, _) => run::<Vectors<f64>, f64>(level, p, a, x),
            // `Executable::check` lets no others through.
            _ => run::<Vectors<f32>, f32>(level, p, a, x),
        }
    }
}

/// The buffers of a thread.
#[derive(Default)]
struct Room {
    queries: Buffer,
    keys: Buffer,
    values: Buffer,
    scores: Buffer,
    /// Probabilities that are not in place of scores.
    apart: Buffer,
    /// What a mask adds to the scores of a row.
    bias: Buffer,
    sums: Buffer,
    /// Of the calling thread: panels that all threads read, and sums of parts of the keys.
    shared: [Buffer; 2],
    parts: Buffer,
}

thread_local! {
    static ROOM: Cell<Option<Box<Room>>> = const { Cell::new(None) };
}

/// Calls `f` with the buffers of this thread. They are taken out meanwhile, so nested work on the thread gets new ones.
fn with_room<R>(f: impl FnOnce(&mut Room) -> R) -> R {
    ROOM.with(|cell| {
        let mut room = cell.take().unwrap_or_default();
        let result = f(&mut room);
        cell.set(Some(room));
        result
    })
}

/// How an attention is split: blocks of rows of a head, the tasks that these are dealt to, and parts of the keys.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Split {
    /// Rows of a panel, and of a block.
    height: usize,
    rows: usize,
    blocks: usize,
    tasks: usize,
    parts: usize,
}

impl Split {
    fn new<U: Unit>(unit: &U, threads: usize, batches: usize, a: &AttentionCall, height: usize) -> Split {
        let (rows, all) = (U::HIGH * height, a.rows());
        let blocks = all.div_ceil(rows);
        let tasks = match threads {
            1 => 1,
            _ if batches >= 2 * threads => 1,
            _ => (4 * threads).div_ceil(batches).min(blocks),
        };
        let idle = threads / (batches * blocks);
        // The order of sums would depend on the number of tasks.
        let parts = if a.batch_invariant { 1 } else { idle.min(a.keys / (PART * U::KEYS)).max(1) };
        debug_assert!(U::KEYS.is_multiple_of(unit.lanes()) && rows <= rows::MOST);
        Split { height, rows, blocks, tasks: if parts > 1 { blocks } else { tasks }, parts }
    }
}

/// # Safety
/// As [`attention`]; the processor has the level.
unsafe fn run<U: Unit, C: Element<Acc = U::Sum>>(level: Level, p: Parallel, a: &AttentionCall, x: Operands) {
    let batches: usize = a.batch.iter().product();
    if batches * a.rows() * a.width == 0 {
        return;
    }
    let p = p.only_if(batches * a.rows() * a.keys * (a.depth + a.width) >= SMALL);
    let x = Shared(x);
    let head = |i: usize| {
        let x = x.get();
        let first = |m: &Matrix| m.offset + offset(&m.batch_strides, &a.batch, i);
        let source = |at: *const u8, m: &'_ Matrix| at.cast::<U::Source>().wrapping_add(first(m));
        let mask = |at: *const u8| a.mask.as_ref().map(|m| at.wrapping_add(first(&m.matrix) * m.dtype.bytes()));
        let ends = |at: *const u8| a.ends.as_ref().map(|m| at.cast::<i64>().wrapping_add(first(m)));
        let sink = |at: *const u8| a.sink.as_ref().map(|s| at.wrapping_add(first(&s.matrix) * s.dtype.bytes()));
        Head::<U, C> {
            call: a,
            q: Source { at: source(x.q, &a.q), lanes: Side(&a.q.rows), depth: Side(&a.q.cols) },
            k: Source { at: source(x.k, &a.k), lanes: Side(&a.k.rows), depth: Side(&a.k.cols) },
            v: Source { at: source(x.v, &a.v), lanes: Side(&a.v.cols), depth: Side(&a.v.rows) },
            out: x.out.cast::<C>().wrapping_add(first(&a.out)),
            mask: x.mask.and_then(mask),
            ends: x.ends.and_then(ends),
            sink: x.sink.and_then(sink),
            level,
        }
    };
    // SAFETY: this function's contract; results of different rows are disjoint, and so are the panels and parts of
    // different tasks.
    unsafe {
        let (split, in_place, wide) = {
            let unit = U::ready(level);
            let in_place = head(0).in_place(&unit);
            let by_key = in_place[0].is_some_and(|k| k.by_key);
            let height = if by_key { 1 } else { unit.height(a.rows()) };
            let wide = a.width.next_multiple_of(unit.lanes());
            (Split::new(&unit, p.threads, batches, a, height), in_place.map(|p| p.is_some()), wide)
        };
        let (mut shared, mut parts) = with_room(|r| (std::mem::take(&mut r.shared), std::mem::take(&mut r.parts)));
        let whole = split.tasks > 1 && split.blocks > 1 && in_place != [true; 2];
        let packed = whole.then(|| pack_all(p, level, batches, a, &head, &mut shared));
        let part = split.rows * (wide + 2);
        let room = if split.parts > 1 { batches * split.blocks * split.parts * part } else { 0 };
        let sums = Shared(parts.room::<U::Sum>(room));
        p.each(batches * split.tasks * split.parts, |t| {
            let (batch, task, number) =
                (t / (split.tasks * split.parts), t / split.parts % split.tasks, t % split.parts);
            let (unit, head) = (U::ready(level), head(batch));
            with_room(|room| {
                let last = head.last();
                let keys = last.div_ceil(split.parts).next_multiple_of(U::KEYS);
                let keys = (number * keys).min(last)..((number + 1) * keys).min(last);
                let packed = match &packed {
                    Some(packed) => Some(packed.of(batch)),
                    None if split.blocks > split.tasks => Some(head.pack(&unit, last, room)),
                    None => None,
                };
                for block in (task..split.blocks).step_by(split.tasks) {
                    let rows = block * split.rows..a.rows().min((block + 1) * split.rows);
                    let (to, pitch, seen) = head.block(&unit, rows.clone(), split.height, keys.clone(), packed, room);
                    if split.parts == 1 {
                        rows.zip(seen)
                            .enumerate()
                            .for_each(|(i, (row, seen))| head.write(row, to.add(i * pitch), seen));
                        continue;
                    }
                    let at = sums.get().add(((batch * split.blocks + block) * split.parts + number) * part);
                    for (i, seen) in seen.iter().enumerate().take(rows.len()) {
                        let at = at.add(i * (wide + 2));
                        at.copy_from_nonoverlapping(to.add(i * pitch), wide);
                        at.add(wide).cast::<[U::Sum; 2]>().write([seen.greatest, seen.sum]);
                    }
                }
            });
        });
        if split.parts > 1 {
            p.each(batches * split.blocks, |t| {
                let (head, block) = (head(t / split.blocks), t % split.blocks);
                for row in block * split.rows..a.rows().min((block + 1) * split.rows) {
                    let at = sums.get().add(t * split.parts * part + (row - block * split.rows) * (wide + 2));
                    let seen = join(at, part, split.parts, wide, head.power());
                    head.write(row, at, seen);
                }
            });
        }
        with_room(|r| (r.shared, r.parts) = (shared, parts));
    }
}

/// Packs the keys and values of all heads, in parallel.
///
/// # Safety
/// As [`run`].
unsafe fn pack_all<'a, U: Unit + 'a, C: Element<Acc = U::Sum> + 'a>(
    p: Parallel,
    level: Level,
    batches: usize,
    a: &AttentionCall,
    head: &(impl Fn(usize) -> Head<'a, U, C> + Sync),
    room: &mut [Buffer; 2],
) -> Packed<U::Panel> {
    // SAFETY: this function's contract; tasks write disjoint panels.
    unsafe {
        let packed = Packed::new(&U::ready(level), batches, a, a.keys, room.each_mut());
        let slices = a.keys.div_ceil(U::KEYS);
        p.each(batches * slices, |t| {
            let (head, first) = (head(t / slices), t % slices * U::KEYS);
            let keys = first..head.last().min(first + U::KEYS);
            if !keys.is_empty() {
                head.pack_slice(&U::ready(level), keys, packed.of(t / slices));
            }
        });
        packed
    }
}

/// Joins what parts of the keys have given for a row, in order, in the place of the first part: sums of values, then
/// the greatest score and the sum of the powers.
///
/// # Safety
/// There are `parts`, `step` elements apart.
unsafe fn join<T: Score>(at: *mut T, step: usize, parts: usize, wide: usize, c: T) -> Seen<T> {
    // SAFETY: this function's contract.
    unsafe {
        let seen = |i: usize| {
            let [greatest, sum] = at.add(i * step + wide).cast::<[T; 2]>().read();
            Seen { greatest, sum }
        };
        let greatest = (0..parts).map(|i| seen(i).greatest).fold(T::LOWEST, |a, b| if b > a { b } else { a });
        let mut sum = T::of(0.0);
        for i in 0..parts {
            let factor = T::carried(seen(i).greatest, greatest, c);
            sum = sum.plus(seen(i).sum.times(factor));
            for j in 0..wide {
                let own = (*at.add(i * step + j)).times(factor);
                *at.add(j) = if i == 0 { own } else { (*at.add(j)).plus(own) };
            }
        }
        Seen { greatest, sum }
    }
}

#[cfg(test)]
mod tests;
