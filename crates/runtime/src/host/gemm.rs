//! Matrix products on the host, by the `gemm` crate. f32 and f64 go to it as they are; the half types go tile by tile through
//! f32, so that they are accumulated in f32 and rounded once.
//!
//! Never: allocates in warm calls (tiles live in buffers of the threads).
use super::{Parallel, Shared};
use half::{bf16, f16, slice::HalfFloatSliceExt};
use kiln_graph::DType;
use kiln_plan::exec::{GemmCall, Matrix};
use std::cell::Cell;

/// Below this many multiply-adds a product stays on one thread.
const SMALL: usize = 48 * 48 * 64;

/// Rows, columns and depth of the tiles that half types go through. Runs along b's contiguous axis are long, and b's tile
/// stays in the cache of a core.
fn tile(g: &GemmCall) -> [usize; 3] {
    match g.b.row_stride == 1 {
        true => [128, 128, 1024],
        false if g.m <= 32 => [32, 2048, 64],
        false => [128, 512, 256],
    }
}

/// Addresses of the operands' slots (before `Matrix::offset`).
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub a: *const u8,
    pub b: *const u8,
    pub c: *mut u8,
}

/// Computes the product.
///
/// # Safety
/// The operands' slots hold everything that the call's offsets, sizes and strides reach (as `Executable::check` makes sure),
/// are aligned for their dtype, and nothing else touches `c`'s meanwhile.
pub(crate) unsafe fn gemm(p: Parallel, g: &GemmCall, x: Operands) {
    if g.m == 0 || g.n == 0 || g.batch.contains(&0) {
        return;
    }
    // SAFETY: as this function's.
    unsafe {
        match (g.dtype, g.c_dtype) {
            (DType::F64, _) => plain::<f64>(p, g, x),
            (DType::F16, DType::F32) => tiled::<f16, f32>(p, g, x),
            (DType::Bf16, DType::F32) => tiled::<bf16, f32>(p, g, x),
            (DType::F16, _) => tiled::<f16, f16>(p, g, x),
            (DType::Bf16, _) => tiled::<bf16, bf16>(p, g, x),
            // `Executable::check` lets only float products through.
            _ => plain::<f32>(p, g, x),
        }
    }
}

/// A matrix of one batch: address of its first element, row and column stride in elements.
struct View<T> {
    at: *mut T,
    rs: isize,
    cs: isize,
}
impl<T> Clone for View<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for View<T> {}
impl<T> View<T> {
    /// # Safety
    /// Batch `i` (linear, last axis fastest) of `m` lies within the memory at `base`.
    unsafe fn of(base: *const u8, m: &Matrix, batch: &[usize], i: usize) -> View<T> {
        let (mut rest, mut offset) = (i, m.offset);
        for (n, stride) in batch.iter().zip(&m.batch_strides).rev() {
            offset += rest % n * stride;
            rest /= n;
        }
        // SAFETY: within the slot by this function's contract.
        let at = unsafe { base.cast::<T>().cast_mut().add(offset) };
        View { at, rs: m.row_stride as isize, cs: m.col_stride as isize }
    }
    /// The view that starts at an element of this one.
    fn from(self, row: usize, col: usize) -> View<T> {
        View { at: self.at.wrapping_offset(row as isize * self.rs + col as isize * self.cs), ..self }
    }
}

/// A scalar type that `gemm` computes in.
trait Scalar: Copy + Send + Sync + 'static {
    const ZERO: Self;
    const ONE: Self;
}
impl Scalar for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;
}
impl Scalar for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
}

/// `c = a × b`, or `c += a × b`.
///
/// # Safety
/// The views hold `m × k`, `k × n` and `m × n` elements; nothing else touches `c`'s.
unsafe fn product<T: Scalar>(
    [m, n, k]: [usize; 3],
    c: View<T>,
    a: View<T>,
    b: View<T>,
    add: bool,
    threads: gemm::Parallelism,
) {
    if k == 0 && !add {
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            // SAFETY: within `c`.
            unsafe { *c.from(i, j).at = T::ZERO };
        }
        return;
    }
    // SAFETY: as this function's; `c` has been written if it is read.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.at,
            c.cs,
            c.rs,
            add,
            a.at,
            a.cs,
            a.rs,
            b.at,
            b.cs,
            b.rs,
            if add { T::ONE } else { T::ZERO },
            T::ONE,
            false,
            false,
            false,
            threads,
        );
    }
}

/// # Safety
/// As [`gemm`].
unsafe fn plain<T: Scalar>(p: Parallel, g: &GemmCall, x: Operands) {
    let batches: usize = g.batch.iter().product();
    let x = Shared(x);
    let views = |i: usize| {
        let x = x.get();
        // SAFETY: as `gemm`'s contract.
        unsafe {
            let a = View::<T>::of(x.a, &g.a, &g.batch, i);
            let b = View::<T>::of(x.b, &g.b, &g.batch, i);
            (a, b, View::<T>::of(x.c, &g.c, &g.batch, i))
        }
    };
    let work = g.m * g.n * g.k;
    if p.threads == 1 || work * batches < SMALL {
        for i in 0..batches {
            let (a, b, c) = views(i);
            // SAFETY: as `gemm`'s contract.
            unsafe { product([g.m, g.n, g.k], c, a, b, false, gemm::Parallelism::None) };
        }
    } else if batches >= p.threads || work < SMALL {
        p.each(batches, |i| {
            let (a, b, c) = views(i);
            // SAFETY: as `gemm`'s contract; batches of `c` are disjoint.
            unsafe { product([g.m, g.n, g.k], c, a, b, false, gemm::Parallelism::None) };
        });
    } else if g.m == 1 || g.n == 1 {
        // A matrix times a vector: the library keeps to one thread, so the long side is split here.
        let (long, by_row) = (g.m.max(g.n), g.n == 1);
        let part = long.div_ceil(4 * p.threads).next_multiple_of(16);
        let parts = long.div_ceil(part);
        p.each(parts * batches, |t| {
            let (a, b, c) = views(t / parts);
            let from = t % parts * part;
            let len = part.min(long - from);
            // SAFETY: a part of the matrices of `gemm`'s contract; parts of `c` are disjoint.
            unsafe {
                match by_row {
                    true => product([len, 1, g.k], c.from(from, 0), a.from(from, 0), b, false, gemm::Parallelism::None),
                    false => {
                        product([1, len, g.k], c.from(0, from), a, b.from(0, from), false, gemm::Parallelism::None)
                    }
                }
            }
        });
    } else {
        for i in 0..batches {
            let (a, b, c) = views(i);
            // SAFETY: as `gemm`'s contract.
            unsafe { product([g.m, g.n, g.k], c, a, b, false, gemm::Parallelism::Rayon(p.threads)) };
        }
    }
}

/// A type that converts to and from f32 by slices.
trait Narrow: Copy + Send + Sync + 'static {
    fn widen(from: &[Self], to: &mut [f32]);
    fn narrow(from: &[f32], to: &mut [Self]);
}
impl Narrow for f16 {
    fn widen(from: &[f16], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
    fn narrow(from: &[f32], to: &mut [f16]) {
        to.convert_from_f32_slice(from);
    }
}
impl Narrow for bf16 {
    fn widen(from: &[bf16], to: &mut [f32]) {
        for (f, t) in from.iter().zip(to) {
            *t = f32::from_bits(u32::from(f.to_bits()) << 16);
        }
    }
    fn narrow(from: &[f32], to: &mut [bf16]) {
        to.convert_from_f32_slice(from);
    }
}
impl Narrow for f32 {
    fn widen(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    fn narrow(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

thread_local! {
    /// Tiles of a, b and c in f32. Taken while in use, so that nested work on the same thread finds an empty one.
    static TILES: Cell<[Vec<f32>; 3]> = const { Cell::new([const { Vec::new() }; 3]) };
}

/// # Safety
/// As [`gemm`].
unsafe fn tiled<T: Narrow, C: Narrow>(p: Parallel, g: &GemmCall, x: Operands) {
    let batches: usize = g.batch.iter().product();
    let parallel = p.threads > 1 && g.m * g.n * g.k * batches >= SMALL;
    let mut tile = tile(g);
    let count = |t: [usize; 3]| batches * g.m.div_ceil(t[0]) * g.n.div_ceil(t[1]);
    while parallel && count(tile) < 2 * p.threads && (tile[0].min(g.m) > 32 || tile[1].min(g.n) > 32) {
        let wide = usize::from(tile[1].min(g.n) >= tile[0].min(g.m));
        tile[wide] = (tile[wide].min(if wide == 1 { g.n } else { g.m }) / 2).next_multiple_of(16);
    }
    let (rows, cols) = (g.m.div_ceil(tile[0]), g.n.div_ceil(tile[1]));
    let x = Shared(x);
    let one = |t: usize| {
        let x = x.get();
        let (batch, i, j) = (t / (rows * cols), t / cols % rows * tile[0], t % cols * tile[1]);
        let [m, n] = [tile[0].min(g.m - i), tile[1].min(g.n - j)];
        // SAFETY: a tile of the matrices of `gemm`'s contract; tiles of `c` are disjoint.
        unsafe {
            let a = View::<T>::of(x.a, &g.a, &g.batch, batch).from(i, 0);
            let b = View::<T>::of(x.b, &g.b, &g.batch, batch).from(0, j);
            let c = View::<C>::of(x.c, &g.c, &g.batch, batch).from(i, j);
            tile_product([m, n, g.k], tile[2], c, a, b);
        }
    };
    match parallel {
        true => p.each(batches * rows * cols, one),
        false => (0..batches * rows * cols).for_each(one),
    }
}

/// The sum over slices of `depth` is kept in f32 and rounded once.
///
/// # Safety
/// The views hold `m × k`, `k × n` and `m × n` elements; nothing else touches `c`'s.
unsafe fn tile_product<T: Narrow, C: Narrow>([m, n, k]: [usize; 3], depth: usize, c: View<C>, a: View<T>, b: View<T>) {
    TILES.with(|tiles| {
        let mut bufs = tiles.take();
        let [fa, fb, fc] = &mut bufs;
        fc.resize(fc.len().max(m * n), 0.0);
        let by_column = c.rs == 1 && c.cs != 1;
        let (rs, cs) = if by_column { (1, m as isize) } else { (n as isize, 1) };
        let sum = View { at: fc.as_mut_ptr(), rs, cs };
        // Without depth, one empty slice writes the zeros.
        for from in (0..k.max(1)).step_by(depth) {
            let k = depth.min(k - from);
            // SAFETY: slices of the views of this function's contract.
            unsafe {
                let fa = fetch(a.from(0, from), m, k, fa);
                let fb = fetch(b.from(from, 0), k, n, fb);
                product([m, n, k], sum, fa, fb, from > 0, gemm::Parallelism::None);
            }
        }
        // SAFETY: `c` holds `m × n` elements.
        unsafe {
            match by_column {
                true => put(fc, m, n, c.cs, c.rs, c.at),
                false => put(fc, n, m, c.rs, c.cs, c.at),
            }
        }
        tiles.set(bufs);
    });
}

/// Copies a matrix to dense f32, keeping its order if one axis is contiguous.
///
/// # Safety
/// The view holds `rows × cols` elements.
unsafe fn fetch<T: Narrow>(v: View<T>, rows: usize, cols: usize, to: &mut Vec<f32>) -> View<f32> {
    to.resize(to.len().max(rows * cols), 0.0);
    let by_column = v.rs == 1 && v.cs != 1;
    let (lines, len, line, step) = if by_column { (cols, rows, v.cs, v.rs) } else { (rows, cols, v.rs, v.cs) };
    for l in 0..lines {
        let from = v.at.wrapping_offset(l as isize * line);
        let to = &mut to[l * len..(l + 1) * len];
        // SAFETY: element `(l, e)` of the view lies `l·line + e·step` behind its start.
        unsafe {
            match step {
                1 => T::widen(std::slice::from_raw_parts(from, len), to),
                _ => to.iter_mut().enumerate().for_each(|(e, x)| {
                    T::widen(std::slice::from_ref(&*from.offset(e as isize * step)), std::slice::from_mut(x));
                }),
            }
        }
    }
    match by_column {
        true => View { at: to.as_mut_ptr(), rs: 1, cs: rows as isize },
        false => View { at: to.as_mut_ptr(), rs: cols as isize, cs: 1 },
    }
}

/// Writes dense lines of f32 to `at`, element `(l, e)` at `l·line + e·step`.
///
/// # Safety
/// All these elements exist, and nothing else touches them.
unsafe fn put<C: Narrow>(from: &[f32], len: usize, lines: usize, line: isize, step: isize, at: *mut C) {
    for l in 0..lines {
        let from = &from[l * len..(l + 1) * len];
        let at = at.wrapping_offset(l as isize * line);
        // SAFETY: this function's contract.
        unsafe {
            match step {
                1 => C::narrow(from, std::slice::from_raw_parts_mut(at, len)),
                _ => from.iter().enumerate().for_each(|(e, x)| {
                    C::narrow(std::slice::from_ref(x), std::slice::from_mut(&mut *at.offset(e as isize * step)));
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests;
