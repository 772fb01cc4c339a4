//! Attention in bf16 by the matrix unit (AMX), of a few queries by vectors ([`super::few`]). Probabilities are rounded
//! to bf16, in the layout of its panels of rows.
use super::{
    few,
    softmax::{Seen, avx512::halves},
    unit::{FEW, Panels, Rows, Unit},
};
use crate::host::gemm::{
    amx::{self, LANES, Operand, STEP, padded, words},
    pack::{Side, Source},
};
use half::bf16;
use kiln_cpu::Level;

/// Keys, or values, of few queries in memory, if each is contiguous.
fn by_key(at: *const u16, keys: Side, elements: Side, rows: usize) -> Option<Panels<u16>> {
    let pitch = keys.stride()?;
    (rows <= FEW && elements.stride() == Some(1)).then_some(Panels { at, step: 0, pitch, by_key: true })
}

/// The matrix unit of this thread.
pub struct Tiles(amx::Unit);

impl Unit for Tiles {
    type Source = bf16;
    type Sum = f32;
    type Panel = u16;
    const HIGH: usize = 4;
    const KEYS: usize = 512;

    unsafe fn ready(_: Level) -> Tiles {
        // SAFETY: this function's contract.
        Tiles(unsafe { amx::Unit::ready() })
    }
    fn height(&self, _: usize) -> usize {
        LANES
    }
    fn lanes(&self) -> usize {
        LANES
    }
    fn padded(&self, depth: usize) -> usize {
        padded(depth)
    }
    fn apart(&self, rows: usize) -> usize {
        rows.next_multiple_of(LANES) * Self::KEYS
    }
    unsafe fn queries(&self, from: Source<bf16>, row: [usize; 2], depth: usize, height: usize, to: *mut u16) {
        if height == 1 {
            let (from, whole) = (words(from), padded(depth));
            let at = from.at.wrapping_add(from.lanes.at(row[0]));
            // SAFETY: this function's contract: there is room for the whole depth.
            let to = unsafe { std::slice::from_raw_parts_mut(to, whole) };
            to.fill(0);
            from.depth.stretches(0, depth, |first, count, offset, stride| {
                for (i, to) in to[first..first + count].iter_mut().enumerate() {
                    // SAFETY: the row exists.
                    *to = unsafe { *at.add(offset + i * stride) };
                }
            });
            return;
        }
        // SAFETY: this function's contract; the level includes AVX-512 BW.
        unsafe { amx::pack(Operand::A, words(from), row, depth, to) }
    }
    unsafe fn pack(&self, from: Source<bf16>, [lane, n]: [usize; 2], depth: usize, to: *mut u16) {
        for first in (0..n).step_by(LANES) {
            let to = to.wrapping_add(first * padded(depth));
            // SAFETY: this function's contract; the level includes AVX-512 BW.
            unsafe { amx::pack(Operand::B, words(from), [lane + first, LANES.min(n - first)], depth, to) }
        }
    }

    fn keys(&self, from: Source<bf16>, rows: usize) -> Option<Panels<u16>> {
        by_key(words(from).at, from.lanes, from.depth, rows)
    }
    fn values(&self, from: Source<bf16>, rows: usize, _: usize) -> Option<Panels<u16>> {
        by_key(words(from).at, from.depth, from.lanes, rows)
    }

    unsafe fn scores(
        &self,
        depth: usize,
        queries: *const u16,
        rows: Rows,
        keys: Panels<u16>,
        to: *mut f32,
        pitch: usize,
    ) {
        let whole = padded(depth);
        for (first, _, n) in rows.panels() {
            if keys.by_key {
                // SAFETY: the trait's contract; panels have one row.
                unsafe { few::dots(depth, queries.add(first * whole), keys.at, keys.pitch, n, to.add(first * pitch)) };
                continue;
            }
            for key in (0..n).step_by(LANES) {
                let b = keys.at.wrapping_add(key / LANES * keys.step);
                // SAFETY: the trait's contract.
                unsafe {
                    let to = to.add(first * pitch + key);
                    self.0.multiply(whole / STEP, [queries.add(first * whole), b], to, pitch, false);
                }
            }
        }
    }
    unsafe fn powers(&self, x: *mut f32, [row, n, end]: [usize; 3], old: f32, c: f32, apart: *mut u16) -> Seen<f32> {
        // A panel has two tiles for every `STEP` keys, one after the other.
        let (panel, line) = (row / LANES, row % LANES);
        let to = apart.wrapping_add(panel * LANES * Self::KEYS + line * STEP);
        // SAFETY: the trait's contract; processors with the matrix unit have AVX-512 BF16.
        unsafe {
            for key in (n.next_multiple_of(STEP)..end).step_by(STEP) {
                to.add(key * LANES).write_bytes(0, STEP);
            }
            halves(x, n, old, c, to, LANES * STEP)
        }
    }
    unsafe fn add(
        &self,
        (_, _, apart): (*const f32, usize, *const u16),
        rows: Rows,
        values: Panels<u16>,
        width: usize,
        sums: *mut f32,
        wide: usize,
    ) {
        for (first, _, n) in rows.panels() {
            if values.by_key {
                let p = (apart.wrapping_add(first * STEP), LANES * STEP);
                // SAFETY: the trait's contract; panels have one row.
                unsafe { few::add(p, n, (values.at, values.pitch), width, sums.add(first * wide)) };
                continue;
            }
            for column in (0..width).step_by(LANES) {
                let b = values.at.wrapping_add(column / LANES * values.step);
                // SAFETY: the trait's contract; probabilities beyond the keys are zero.
                unsafe {
                    let a = apart.add(first * Self::KEYS);
                    self.0.multiply(n.div_ceil(STEP), [a, b], sums.add(first * wide + column), wide, true);
                }
            }
        }
    }
}
