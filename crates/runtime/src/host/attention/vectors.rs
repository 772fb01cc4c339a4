//! Attention by the micro-kernels of matmuls, in the type of sums. Half types are widened when they are packed.
use super::{
    softmax::{Score, Seen},
    unit::{FEW, Panels, Rows, Unit},
};
use crate::host::gemm::{
    kernel::{DOTS, Kernels, ROWS, Real},
    pack::{Element, Source, pack},
};
use kiln_cpu::Level;
use std::{any::TypeId, marker::PhantomData};

/// With at most this many rows, packing values that can be read in place is not profitable.
const SOME: usize = 160;

/// Columns of values of few queries that are summed together.
const COLUMNS: usize = 256;

/// Vectors of one instruction set.
pub struct Vectors<S: Element<Acc: Score>> {
    level: Level,
    kernels: &'static Kernels<S::Acc>,
    source: PhantomData<S>,
}

impl<S: Element<Acc: Score>> Vectors<S> {
    /// The address and strides of an operand that has the type of sums and one axis for its lanes and for its depth.
    fn plain(from: Source<S>) -> Option<(*const S::Acc, usize, usize)> {
        let same = TypeId::of::<S>() == TypeId::of::<S::Acc>();
        Some((from.at.cast(), from.lanes.stride()?, from.depth.stride()?)).filter(|_| same)
    }
}

impl<S: Element<Acc: Score>> Unit for Vectors<S> {
    type Source = S;
    type Sum = S::Acc;
    type Panel = S::Acc;
    const HIGH: usize = 4;
    const KEYS: usize = 256;

    unsafe fn ready(level: Level) -> Self {
        Vectors { level, kernels: S::Acc::kernels(level), source: PhantomData }
    }
    fn height(&self, rows: usize) -> usize {
        rows.div_ceil(rows.div_ceil(self.kernels.mr).max(1)).max(1)
    }
    fn lanes(&self) -> usize {
        self.kernels.nr
    }
    fn padded(&self, depth: usize) -> usize {
        depth
    }
    fn apart(&self, _: usize) -> usize {
        0
    }
    unsafe fn queries(&self, from: Source<S>, row: [usize; 2], depth: usize, height: usize, to: *mut S::Acc) {
        // SAFETY: this function's contract.
        unsafe { pack(self.level, from, row, [0, depth], to, height) }
    }
    unsafe fn pack(&self, from: Source<S>, lane: [usize; 2], depth: usize, to: *mut S::Acc) {
        // SAFETY: this function's contract.
        unsafe { pack(self.level, from, lane, [0, depth], to, self.kernels.nr) }
    }
    fn keys(&self, from: Source<S>, rows: usize) -> Option<Panels<S::Acc>> {
        let (at, pitch, depth) = Self::plain(from)?;
        (rows <= FEW && depth == 1).then_some(Panels { at, step: 0, pitch, by_key: true })
    }
    fn values(&self, from: Source<S>, rows: usize, width: usize) -> Option<Panels<S::Acc>> {
        let (at, columns, pitch) = Self::plain(from)?;
        let (nr, by_key) = (self.kernels.nr, rows <= FEW);
        let whole = width.is_multiple_of(nr) && rows <= SOME;
        (columns == 1 && (whole || by_key)).then_some(Panels { at, step: nr, pitch, by_key })
    }

    unsafe fn scores(
        &self,
        depth: usize,
        queries: *const S::Acc,
        rows: Rows,
        keys: Panels<S::Acc>,
        to: *mut S::Acc,
        pitch: usize,
    ) {
        // SAFETY: the trait's contract.
        unsafe {
            if keys.by_key {
                for (first, count, n) in rows.panels() {
                    for row in 0..count {
                        self.dots(depth, queries.add((first + row) * depth), keys, n, to.add((first + row) * pitch));
                    }
                }
                return;
            }
            let nr = self.kernels.nr;
            for key in (0..rows.most()).step_by(nr) {
                let keys_at = keys.at.wrapping_add(key / nr * keys.step);
                for (first, count, n) in rows.panels() {
                    if key < n {
                        let (q, to) = (queries.add(first * depth), to.add(first * pitch + key));
                        let micro = self.kernels.micro[count - 1];
                        micro(depth, q, rows.height, keys_at, keys.pitch, to, pitch, nr, false);
                    }
                }
            }
        }
    }
    unsafe fn powers(
        &self,
        x: *mut S::Acc,
        [_, n, end]: [usize; 3],
        old: S::Acc,
        c: S::Acc,
        _: *mut S::Acc,
    ) -> Seen<S::Acc> {
        // SAFETY: this function's contract.
        unsafe {
            let seen = (S::Acc::rows(self.level).powers)(x, n, old, c);
            std::slice::from_raw_parts_mut(x.add(n), end - n).fill(S::Acc::default());
            seen
        }
    }
    unsafe fn add(
        &self,
        (x, pitch, _): (*const S::Acc, usize, *const S::Acc),
        rows: Rows,
        values: Panels<S::Acc>,
        width: usize,
        sums: *mut S::Acc,
        wide: usize,
    ) {
        let nr = self.kernels.nr;
        // SAFETY: this function's contract.
        unsafe {
            if values.by_key {
                for (first, count, n) in rows.panels() {
                    for row in first..first + count {
                        self.add_row(x.add(row * pitch), n, values, width, sums.add(row * wide));
                    }
                }
                return;
            }
            for column in (0..width).step_by(nr) {
                let at = values.at.wrapping_add(column / nr * values.step);
                for (first, count, n) in rows.panels() {
                    let (x, to) = (x.add(first * pitch), sums.add(first * wide + column));
                    (self.kernels.by_rows[count - 1])(n, x, pitch, at, values.pitch, to, wide, nr, true);
                }
            }
        }
    }
}

impl<S: Element<Acc: Score>> Vectors<S> {
    /// Dot products of a query with keys in memory.
    ///
    /// # Safety
    /// The keys exist.
    unsafe fn dots(&self, depth: usize, query: *const S::Acc, keys: Panels<S::Acc>, n: usize, to: *mut S::Acc) {
        for key in (0..n).step_by(DOTS) {
            let (count, stride) = if n - key >= DOTS { (DOTS, keys.pitch) } else { (1, 0) };
            // SAFETY: with stride 0 all of the `DOTS` keys are the same one.
            unsafe {
                if count == DOTS {
                    let out = (self.kernels.dots)(depth, query, keys.at.add(key * keys.pitch), stride);
                    to.add(key).cast::<[S::Acc; DOTS]>().write_unaligned(out);
                } else {
                    for key in key..n {
                        *to.add(key) = (self.kernels.dots)(depth, query, keys.at.add(key * keys.pitch), stride)[0];
                    }
                }
            }
        }
    }
    /// Adds values in memory, scaled by the probabilities of a row. Those of the block are summed apart, so that the
    /// sum over many keys is one of a few numbers.
    ///
    /// # Safety
    /// The values exist.
    unsafe fn add_row(&self, x: *const S::Acc, n: usize, values: Panels<S::Acc>, width: usize, sums: *mut S::Acc) {
        let whole = n - n % ROWS;
        for column in (0..width).step_by(COLUMNS) {
            let mut own = [S::Acc::default(); COLUMNS];
            let (at, own) = (values.at.wrapping_add(column), &mut own[..COLUMNS.min(width - column)]);
            // SAFETY: this function's contract.
            unsafe {
                for key in (0..whole).step_by(ROWS) {
                    let p = &*x.add(key).cast::<[S::Acc; ROWS]>();
                    (self.kernels.rows)(own.len(), p, at.add(key * values.pitch), values.pitch, own.as_mut_ptr());
                }
                for key in whole..n {
                    let (p, value) = (*x.add(key), at.add(key * values.pitch));
                    own.iter_mut().enumerate().for_each(|(i, own)| *own = own.plus(p.times(*value.add(i))));
                }
                let sums = std::slice::from_raw_parts_mut(sums.add(column), own.len());
                sums.iter_mut().zip(own).for_each(|(sum, own)| *sum = sum.plus(*own));
            }
        }
    }
}
