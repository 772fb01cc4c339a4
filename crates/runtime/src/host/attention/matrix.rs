//! Attention in bf16 by the matrix unit (AMX). Probabilities are rounded to bf16, in the layout of its panels of rows.
use super::{
    softmax::{Seen, avx512::halves},
    unit::{Panels, Rows, Unit},
};
use crate::host::gemm::{
    amx::{self, LANES, Operand, STEP, padded, words},
    pack::Source,
};
use half::bf16;
use kiln_cpu::Level;

/// Rows of a tile.
const TILE: usize = LANES / 2;

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
    fn apart(&self) -> usize {
        Self::KEYS
    }
    unsafe fn queries(&self, from: Source<bf16>, row: [usize; 2], depth: usize, _: usize, to: *mut u16) {
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

    unsafe fn scores(
        &self,
        depth: usize,
        queries: *const u16,
        rows: Rows,
        keys: Panels<u16>,
        to: *mut f32,
        pitch: usize,
    ) {
        let depth = padded(depth);
        for (first, _, n) in rows.panels() {
            for key in (0..n).step_by(LANES) {
                let b = keys.at.wrapping_add(key / LANES * keys.step);
                // SAFETY: the trait's contract.
                unsafe {
                    let to = to.add(first * pitch + key);
                    self.0.multiply(depth / STEP, [queries.add(first * depth), b], to, pitch, false);
                }
            }
        }
    }
    unsafe fn powers(&self, x: *mut f32, [row, n, end]: [usize; 3], old: f32, c: f32, apart: *mut u16) -> Seen<f32> {
        // A panel has two tiles for every `STEP` keys, one after the other.
        let (panel, tile, line) = (row / LANES, row % LANES / TILE, row % TILE);
        let to = apart.wrapping_add(panel * LANES * Self::KEYS + (tile * TILE + line) * STEP);
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
