//! The loops around the micro-kernels: blocking for caches, and splitting over threads.
//!
//! K is cut into slices, and the columns of b into blocks. The panels of a block over one slice stay in the L2 cache of
//! a core, with the panels of some rows of a. One panel of b, the wider kind, stays in the L1 cache while the panels of
//! a pass over it. Accumulators are kept in the accumulating type from slice to slice.
use super::{
    Parallel, Shared,
    buffer::{Buffer, Scratch, with_scratch},
    kernel::{Micro, Real},
    pack::{Element, Side, Source, pack},
};
use kiln_cpu::Level;
use kiln_machine::Caches;
use std::{any::TypeId, ops::Range};

/// Matmuls with fewer FMAs run on one thread.
const SMALL: usize = 1 << 18;
/// FMAs of a task: a matmul is split into about one task per this many at most.
const TASK: usize = 1 << 18;
/// Sizes that follow from the caches: of a slice of K, of the blocks of b and a, and what decides the set of a cache.
const CACHES: Caches = Caches::HOST;
/// With at most this many columns, packing an a that can be read in place is not profitable.
const FEW_COLUMNS: usize = 96;
/// With at most this many rows, packing a b that can be read in place is not profitable.
const FEW_ROWS: usize = 160;
/// Most elements of a that are packed at a time.
const CHUNK: usize = 8 << 20;
/// Most elements of b that are packed once and shared by tasks with different rows. Of a larger b each task packs what
/// it reads.
const SHARED: usize = 1 << 20;

/// An operand: strided in memory, or packed into panels over all of K.
pub enum Lanes<'a, S: Element> {
    Strided(Source<'a, S>),
    Packed(*const S::Acc),
}
impl<S: Element> Clone for Lanes<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Element> Copy for Lanes<'_, S> {}

/// The result: its address, and the axes of its rows and columns.
pub struct Result<'a, C> {
    pub at: *mut C,
    pub rows: Side<'a>,
    pub cols: Side<'a>,
}
impl<C> Clone for Result<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<C> Copy for Result<'_, C> {}

/// One matmul, without batch: m × k by k × n.
pub struct Job<'a, S: Element, C> {
    pub level: Level,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Lanes<'a, S>,
    pub b: Lanes<'a, S>,
    pub c: Result<'a, C>,
}
impl<S: Element, C> Clone for Job<'_, S, C> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: Element, C> Copy for Job<'_, S, C> {}

/// Rows of a panel of a: m is split evenly into as few panels as the registers allow.
pub fn pitch_a<T: Real>(level: Level, m: usize) -> usize {
    m.div_ceil(m.div_ceil(T::kernels(level).mr).max(1)).max(1)
}

/// How one matmul is split into tasks.
#[derive(Clone, Copy, Debug)]
struct Split {
    /// Rows and columns of a task, in whole panels.
    rows: usize,
    cols: usize,
}

/// Splits a matmul into at least `tasks` tasks, if it is large enough. `rows_first`: splits rows before columns.
fn split<T: Real>(level: Level, [m, n, k]: [usize; 3], rows_first: bool, tasks: usize) -> Split {
    let (pitch, nr) = (pitch_a::<T>(level, m), T::kernels(level).nr);
    let (high, wide) = (m.div_ceil(pitch), n.div_ceil(nr));
    let tasks = tasks.min((m * n * k).div_ceil(TASK));
    let (mut rows, mut cols) = (high, wide);
    while high.div_ceil(rows) * wide.div_ceil(cols) < tasks && rows * cols > 1 {
        // Each part of the rows packs the columns of b once more.
        match cols == 1 || rows > 1 && (rows_first || rows * pitch > 4 * cols * nr) {
            true => rows = high.div_ceil(high.div_ceil(rows) + 1).min(rows - 1),
            false => cols = wide.div_ceil(wide.div_ceil(cols) + 1).min(cols - 1),
        }
    }
    Split { rows: rows * pitch, cols: cols * nr }
}

/// Computes `batches` matmuls of one size.
///
/// # Safety
/// `job(i)` gives operands that hold `m × k`, `k × n` and `m × n` elements; nothing else accesses the elements of a
/// result, and the results of different `i` are disjoint.
pub unsafe fn run<'a, S, C>(p: Parallel, batches: usize, job: impl Fn(usize) -> Job<'a, S, C> + Send + Sync)
where
    S: Element,
    C: Element<Acc = S::Acc>,
{
    let Job { level, m, n, k, a, b, .. } = job(0);
    let p = p.only_if(m * n * k * batches >= SMALL);
    let threads = p.threads;
    let in_place = [a_in_place(&job(0)).is_some(), b_in_place(&job(0)).is_some()];
    // If b needs no packing and is small, each task packs its own rows of a: reading what another thread has just
    // packed is slow.
    let is_ready = in_place[1] || matches!(b, Lanes::Packed(_));
    let rows_first = is_ready && n * k * size_of::<S::Acc>() <= CACHES.near;
    let tasks = match (threads, rows_first) {
        (1, _) => 1,
        (_, true) => (2 * threads).div_ceil(batches),
        _ => (4 * threads).div_ceil(batches),
    };
    let s = split::<S::Acc>(level, [m, n, k], rows_first, tasks);
    let (high, wide) = (m.div_ceil(s.rows), n.div_ceil(s.cols));
    let part = |t: usize| {
        let (i, j) = (t / wide % high * s.rows, t % wide * s.cols);
        (i..m.min(i + s.rows), j..n.min(j + s.cols))
    };
    // What several tasks read is packed once and shared.
    let share_a = wide > 1 && !in_place[0] && matches!(a, Lanes::Strided(_));
    let share_b = high > 1 && !in_place[1] && matches!(b, Lanes::Strided(_)) && n * k <= SHARED;
    if !share_a && !share_b {
        p.each(batches * high * wide, |t| {
            let (rows, cols) = part(t);
            // SAFETY: this function's contract; parts of a result are disjoint.
            with_scratch(|s| unsafe { task(&job(t / (high * wide)), s, rows, cols) });
        });
        return;
    }
    let [mut panels_a, mut panels_b] = with_scratch(|s| [&mut s.a, &mut s.b].map(std::mem::take));
    for batch in 0..batches {
        let mut job = job(batch);
        if share_b {
            job.b = Lanes::Packed(pack_columns(p, &job, &mut panels_b));
        }
        let chunk = if share_a { (CHUNK / k.max(1)).next_multiple_of(s.rows).max(s.rows) } else { m };
        for first in (0..m).step_by(chunk) {
            let rows = first..m.min(first + chunk);
            let mut job = job;
            if share_a {
                let at = pack_rows_by(p, &job, rows.clone(), &mut panels_a);
                // The address that the panel of row 0 would have.
                job.a = Lanes::Packed(at.wrapping_sub(first * k));
            }
            let job = Shared(job);
            p.each(rows.len().div_ceil(s.rows) * wide, |t| {
                let (i, j) = (first + t / wide * s.rows, t % wide * s.cols);
                let (rows, cols) = (i..rows.end.min(i + s.rows), j..n.min(j + s.cols));
                // SAFETY: this function's contract; parts of a result are disjoint.
                with_scratch(|s| unsafe { task(&job.get(), s, rows, cols) });
            });
        }
    }
    with_scratch(|s| (s.a, s.b) = (panels_a, panels_b));
}

/// Packs some rows of a over all of K, in parallel. The first row begins a panel.
fn pack_rows_by<S: Element, C>(p: Parallel, job: &Job<S, C>, rows: Range<usize>, room: &mut Buffer) -> *const S::Acc {
    let (k, pitch) = (job.k, pitch_a::<S::Acc>(job.level, job.m));
    let to = Shared(room.room::<S::Acc>(rows.len().next_multiple_of(pitch) * k));
    // Two tasks or more per thread, of at most 16 panels each.
    let some = rows.len().div_ceil(pitch).div_ceil(2 * p.threads).clamp(1, 16);
    let (job, each) = (Shared(*job), (4096 / k.max(1)).clamp(1, some) * pitch);
    p.each(rows.len().div_ceil(each), |t| {
        let from = rows.start + t * each;
        // SAFETY: the rows exist in a; tasks write disjoint panels of the buffer.
        unsafe { pack_rows(&job.get(), from..rows.end.min(from + each), pitch, to.get().add(t * each * k)) };
    });
    to.get()
}

/// Packs all columns of b over all of K, in parallel.
fn pack_columns<S: Element, C>(p: Parallel, job: &Job<S, C>, room: &mut Buffer) -> *const S::Acc {
    let (k, n, nr) = (job.k, job.n, S::Acc::kernels(job.level).nr);
    let to = Shared(room.room::<S::Acc>(n.next_multiple_of(nr) * k));
    let (job, slices) = (Shared(*job), k.div_ceil(CACHES.depth));
    p.each(n.div_ceil(nr) * slices, |t| {
        let (job, first, from) = (job.get(), t / slices * nr, t % slices * CACHES.depth);
        let Lanes::Strided(b) = job.b else { return };
        let to = to.get().wrapping_add(first * k + from * nr);
        // SAFETY: the columns and depths exist in b; tasks write disjoint parts of the buffer.
        unsafe { pack(job.level, b, [first, nr.min(n - first)], [from, CACHES.depth.min(k - from)], to, nr) };
    });
    to.get()
}

/// Packs rows of a over all of K, on this thread.
///
/// # Safety
/// The rows exist in a; `to` has room for them, rounded up to whole panels.
unsafe fn pack_rows<S: Element, C>(job: &Job<S, C>, rows: Range<usize>, pitch: usize, to: *mut S::Acc) {
    let Lanes::Strided(from) = job.a else { return };
    // SAFETY: this function's contract.
    unsafe { pack(job.level, from, [rows.start, rows.len()], [0, job.k], to, pitch) };
}

/// Computes a part of a matmul on this thread.
///
/// # Safety
/// As [`run`], with parts that begin at whole panels.
unsafe fn task<S, C>(job: &Job<S, C>, s: &mut Scratch, rows: Range<usize>, cols: Range<usize>)
where
    S: Element,
    C: Element<Acc = S::Acc>,
{
    let kernels = S::Acc::kernels(job.level);
    let (pitch, nr) = (pitch_a::<S::Acc>(job.level, job.m), kernels.nr);
    // SAFETY: the loops read only what is packed here, or what the operands hold: rows of a and columns of b over
    // slices of K.
    unsafe {
        let packed = |at| Left { at, micro: kernels.micro, lda: pitch, row: job.k, step: pitch };
        let a = match (job.a, a_in_place(job)) {
            (Lanes::Packed(at), _) => packed(at.wrapping_add(rows.start * job.k)),
            (_, Some((at, lda))) => {
                Left { at: at.wrapping_add(rows.start * lda), micro: kernels.by_rows, lda, row: lda, step: 1 }
            }
            _ => {
                let at = s.a.room::<S::Acc>(rows.len().next_multiple_of(pitch) * job.k);
                pack_rows(job, rows.clone(), pitch, at);
                packed(at)
            }
        };
        let depth = job.k.div_ceil(job.k.div_ceil(CACHES.depth).max(1)).max(1);
        let block = (CACHES.columns / (size_of::<S::Acc>() * depth * nr)).max(1) * nr;
        for from in cols.clone().step_by(block) {
            let cols = from..cols.end.min(from + block);
            let out = Sums::new(job, &mut s.sums, rows.clone(), cols.clone());
            // If K is 0, one empty slice writes zeros.
            for k in (0..job.k.max(1)).step_by(depth) {
                let slice = [k, depth.min(job.k - k)];
                let panels = Panels::new(job, &mut s.b, cols.clone(), slice);
                let high = (CACHES.rows / (size_of::<S::Acc>() * depth * pitch)).max(1) * pitch;
                for first in (0..rows.len()).step_by(high) {
                    let some = first..rows.len().min(first + high);
                    for col in (0..cols.len()).step_by(nr) {
                        for i in some.clone().step_by(pitch) {
                            let count = pitch.min(some.end - i);
                            let at = a.at.wrapping_add(i * a.row + k * a.step);
                            let micro = a.micro[count - 1];
                            out.tile(micro, i, col, (at, a.lda), &panels, slice[1], k > 0);
                        }
                    }
                }
            }
            out.finish(job, rows.clone(), cols);
        }
    }
}

/// The rows of a as the micro-kernels read them: in panels, or in place.
struct Left<T: 'static> {
    at: *const T,
    micro: &'static [Micro<T>],
    lda: usize,
    /// Row `i`, if it begins a panel, is `i * row` elements behind `at`.
    row: usize,
    /// Elements from one depth to the next.
    step: usize,
}

/// Address and row stride of a, if it is read in place: a is K-major, and there are too few columns for packing to be
/// profitable.
fn a_in_place<S: Element, C>(job: &Job<S, C>) -> Option<(*const S::Acc, usize)> {
    let Lanes::Strided(a) = job.a else {
        return None;
    };
    let (stride, depth) = (a.lanes.stride()?, a.depth.stride()?);
    let few = job.n <= FEW_COLUMNS;
    (same::<S, S::Acc>() && few && (depth == 1 || job.k == 1)).then_some((a.at.cast(), stride))
}

/// Address and depth stride of b, if it is read in place: its columns are contiguous, there are too few rows for
/// packing to be profitable, and the lines of a panel do not evict each other from the L1 cache.
pub fn b_in_place<S: Element, C>(job: &Job<S, C>) -> Option<(*const S::Acc, usize)> {
    let Lanes::Strided(b) = job.b else {
        return None;
    };
    let (lanes, stride) = (b.lanes.stride()?, b.depth.stride()?);
    let nr = S::Acc::kernels(job.level).nr;
    let (bytes, wide) = (stride * size_of::<S::Acc>(), nr * size_of::<S::Acc>());
    // Distinct offsets of the rows of b within a page; the offset selects the cache set.
    let places = CACHES.page / gcd(bytes.max(1), CACHES.page);
    let depth = job.k.min(CACHES.depth);
    let fits = depth <= places.min(CACHES.page / wide) * CACHES.ways && (bytes < CACHES.page || depth <= CACHES.pages);
    (same::<S, S::Acc>() && lanes == 1 && job.m <= FEW_ROWS && job.n >= nr && fits).then_some((b.at.cast(), stride))
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Panels of a block of b over one slice of the depth.
struct Panels<T> {
    at: *const T,
    /// Elements from one panel to the next.
    step: usize,
    /// Elements from one depth to the next.
    ldb: usize,
    /// The last panel, packed, if the others are read in place and it is not whole.
    last: Option<*const T>,
}
impl<T: Real> Panels<T> {
    /// # Safety
    /// The columns and the slice exist in b.
    unsafe fn new<S: Element<Acc = T>, C>(
        job: &Job<S, C>,
        room: &mut Buffer,
        cols: Range<usize>,
        [k, depth]: [usize; 2],
    ) -> Panels<T> {
        let nr = T::kernels(job.level).nr;
        let from = match job.b {
            Lanes::Packed(at) => {
                let at = at.wrapping_add(cols.start * job.k + k * nr);
                return Panels { at, step: nr * job.k, ldb: nr, last: None };
            }
            Lanes::Strided(from) => from,
        };
        // SAFETY: this function's contract; the buffer has room for all panels.
        unsafe {
            if let Some((at, ldb)) = b_in_place(job) {
                let tail = cols.len() % nr;
                let last = (tail > 0).then(|| {
                    let to = room.room::<T>(nr * depth);
                    pack(job.level, from, [cols.end - tail, tail], [k, depth], to, nr);
                    to.cast_const()
                });
                return Panels { at: at.wrapping_add(k * ldb + cols.start), step: nr, ldb, last };
            }
            let at = room.room::<T>(cols.len().next_multiple_of(nr) * depth);
            pack(job.level, from, [cols.start, cols.len()], [k, depth], at, nr);
            Panels { at, step: nr * depth, ldb: nr, last: None }
        }
    }
    /// The panel that begins at a column of the block, and its depth stride. `whole`: all of its columns exist.
    fn at(&self, nr: usize, col: usize, whole: bool) -> (*const T, usize) {
        match self.last {
            Some(last) if !whole => (last, nr),
            _ => (self.at.wrapping_add(col / nr * self.step), self.ldb),
        }
    }
}

fn same<S: 'static, T: 'static>() -> bool {
    TypeId::of::<S>() == TypeId::of::<T>()
}

/// Accumulators of a block: the result itself if it has their type and contiguous rows, else a buffer.
struct Sums<T> {
    at: *mut T,
    pitch: usize,
    cols: usize,
    /// Columns of a tile.
    nr: usize,
    direct: bool,
}
impl<T: Real> Sums<T> {
    fn new<S: Element<Acc = T>, C: Element<Acc = T>>(
        job: &Job<S, C>,
        room: &mut Buffer,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Sums<T> {
        let (c, nr) = (&job.c, T::kernels(job.level).nr);
        if let (true, Some(1), Some(pitch)) = (same::<C, T>(), c.cols.stride(), c.rows.stride()) {
            let at = c.at.cast::<T>().wrapping_add(rows.start * pitch + cols.start);
            return Sums { at, pitch, cols: cols.len(), nr, direct: true };
        }
        let pitch = cols.len().next_multiple_of(nr);
        Sums { at: room.room(rows.len() * pitch), pitch, cols: cols.len(), nr, direct: false }
    }

    /// Multiplies a panel of rows by the panel of the block that begins at column `col`, and stores or adds the tile.
    ///
    /// # Safety
    /// The panels hold `depth` steps; the rows belong to the block.
    #[allow(clippy::too_many_arguments)]
    #[inline(always)]
    unsafe fn tile(
        &self,
        micro: Micro<T>,
        row: usize,
        col: usize,
        (a, lda): (*const T, usize),
        b: &Panels<T>,
        depth: usize,
        add: bool,
    ) {
        let nr = self.nr;
        let whole = self.cols - col >= nr;
        let (b, ldb) = b.at(nr, col, whole);
        let c = self.at.wrapping_add(row * self.pitch + col);
        let n = if whole || !self.direct { nr } else { self.cols - col };
        // SAFETY: these rows and columns lie within the accumulators.
        unsafe { micro(depth, a, lda, b, ldb, c, self.pitch, n, add) }
    }

    /// Writes the accumulators to the result, unless they are the result.
    ///
    /// # Safety
    /// The block is a part of the result.
    unsafe fn finish<S: Element<Acc = T>, C: Element<Acc = T>>(
        &self,
        job: &Job<S, C>,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        if self.direct {
            return;
        }
        for (i, row) in rows.enumerate() {
            let to = job.c.at.wrapping_add(job.c.rows.at(row));
            // SAFETY: all slices have been added to row `i` of the accumulators.
            let sums = unsafe { std::slice::from_raw_parts(self.at.add(i * self.pitch), self.cols) };
            job.c.cols.stretches(cols.start, cols.end, |first, count, offset, stride| {
                // SAFETY: elements of the result.
                unsafe { put(&sums[first..first + count], to.add(offset), stride) };
            });
        }
    }
}

/// Narrows accumulators and writes them to a result, `stride` elements apart.
///
/// # Safety
/// All these elements exist, and nothing else accesses them.
pub unsafe fn put<C: Element>(from: &[C::Acc], to: *mut C, stride: usize) {
    // SAFETY: this function's contract.
    unsafe {
        match stride {
            1 => C::narrow(from, std::slice::from_raw_parts_mut(to, from.len())),
            _ => from.iter().enumerate().for_each(|(i, x)| {
                C::narrow(std::slice::from_ref(x), std::slice::from_mut(&mut *to.add(i * stride)));
            }),
        }
    }
}
