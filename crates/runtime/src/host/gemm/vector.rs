//! Skinny matmuls, with at most three rows: b is read once and in place, so they are bound by memory bandwidth.
use super::{
    Parallel,
    block::{Job, Lanes, b_in_place, put},
    buffer::{Scratch, with_scratch},
    kernel::{DOTS, ROWS, Real},
    pack::{Element, pack},
};
use std::ops::Range;

/// Most rows of a skinny matmul.
const MOST: usize = 3;
/// Matmuls with fewer FMAs run on one thread.
const SMALL: usize = 1 << 17;
/// Most columns of a task.
const COLUMNS: usize = 2048;

/// Whether a matmul with this many rows is skinny.
pub fn few(rows: usize) -> bool {
    rows <= MOST
}

/// Whether this module computes a matmul: it is skinny, b has the type of the accumulators, and its columns or its
/// depth are contiguous.
pub fn fits<S: Element, C>(job: &Job<S, C>) -> bool {
    let Lanes::Strided(b) = job.b else {
        return false;
    };
    let plain = b.lanes.stride().zip(b.depth.stride()).is_some_and(|(l, d)| l == 1 || d == 1);
    // With several rows, `block` reads such a b in place once for all of them.
    let together = job.m > 1 && b_in_place(job).is_some();
    size_of::<S>() == size_of::<S::Acc>() && few(job.m) && plain && !together && matches!(job.a, Lanes::Strided(_))
}

/// # Safety
/// As `block::run`, for matmuls that fit.
pub unsafe fn run<'a, S, C>(p: Parallel, batches: usize, job: impl Fn(usize) -> Job<'a, S, C> + Send + Sync)
where
    S: Element,
    C: Element<Acc = S::Acc>,
{
    let Job { m, n, k, .. } = job(0);
    let p = p.only_if(m * n * k * batches >= SMALL);
    let parts = (4 * p.threads).div_ceil(batches);
    let cols = n.div_ceil(parts).next_multiple_of(64).min(COLUMNS);
    let parts = n.div_ceil(cols);
    p.each(batches * parts, |t| {
        let from = t % parts * cols;
        // SAFETY: this function's contract; parts of a result are disjoint.
        with_scratch(|s| unsafe { task(&job(t / parts), s, from..n.min(from + cols)) });
    });
}

/// # Safety
/// As [`run`]; the columns exist in the result.
unsafe fn task<S, C>(job: &Job<S, C>, s: &mut Scratch, cols: Range<usize>)
where
    S: Element,
    C: Element<Acc = S::Acc>,
{
    let (Lanes::Strided(a), Lanes::Strided(b)) = (job.a, job.b) else {
        return;
    };
    let (Some(lanes), Some(depth)) = (b.lanes.stride(), b.depth.stride()) else {
        return;
    };
    let (k, n) = (job.k, cols.len());
    let rows = s.a.room::<S::Acc>(job.m * k);
    let sums = s.sums.room::<S::Acc>(job.m * n);
    // SAFETY: `fits` ensures that `S` is the type of accumulators; otherwise this function's contract.
    unsafe {
        let at = b.at.cast::<S::Acc>().add(cols.start * lanes);
        for i in 0..job.m {
            pack(job.level, a, [i, 1], [0, k], rows.add(i * k), 1);
        }
        match depth {
            1 => dots(job, rows, (at, lanes), n, sums),
            _ => add_rows(job, rows, (at, depth), n, sums),
        }
        for i in 0..job.m {
            let to = job.c.at.add(job.c.rows.at(i));
            let from = std::slice::from_raw_parts(sums.add(i * n), n);
            job.c.cols.stretches(cols.start, cols.end, |first, count, offset, stride| {
                put(&from[first..first + count], to.add(offset), stride);
            });
        }
    }
}

/// Dot products, for a b that is contiguous along the depth.
///
/// # Safety
/// As [`task`].
unsafe fn dots<S: Element, C>(
    job: &Job<S, C>,
    rows: *const S::Acc,
    (b, lanes): (*const S::Acc, usize),
    n: usize,
    sums: *mut S::Acc,
) {
    let kernels = S::Acc::kernels(job.level);
    for j in (0..n).step_by(DOTS) {
        // The last step overlaps the one before it, so that it does not read beyond the end.
        let whole = n >= DOTS;
        let (j, count) = if whole { (j.min(n - DOTS), DOTS) } else { (j, n - j) };
        for i in 0..job.m {
            // SAFETY: this function's contract; with stride 0 all of the `DOTS` columns are the same one.
            unsafe {
                let b = b.add(j * lanes);
                let out = match whole {
                    true => (kernels.dots)(job.k, rows.add(i * job.k), b, lanes),
                    false => std::array::from_fn(|l| {
                        let b = b.add(l.min(count - 1) * lanes);
                        (kernels.dots)(job.k, rows.add(i * job.k), b, 0)[0]
                    }),
                };
                for (l, x) in out.into_iter().enumerate().take(count) {
                    *sums.add(i * n + j + l) = x;
                }
            }
        }
    }
}

/// Sums of scaled rows, for a b whose rows are contiguous along the columns.
///
/// # Safety
/// As [`task`].
unsafe fn add_rows<S: Element, C>(
    job: &Job<S, C>,
    rows: *const S::Acc,
    (b, depth): (*const S::Acc, usize),
    n: usize,
    sums: *mut S::Acc,
) {
    let kernels = S::Acc::kernels(job.level);
    let whole = job.k - job.k % ROWS;
    // SAFETY: this function's contract.
    unsafe {
        (0..job.m * n).for_each(|l| *sums.add(l) = S::Acc::default());
        for k in (0..whole).step_by(ROWS) {
            for i in 0..job.m {
                let a = &*rows.add(i * job.k + k).cast::<[S::Acc; ROWS]>();
                (kernels.rows)(n, a, b.add(k * depth), depth, sums.add(i * n));
            }
        }
        for k in whole..job.k {
            for (i, l) in (0..job.m).flat_map(|i| (0..n).map(move |l| (i, l))) {
                let sum = sums.add(i * n + l);
                *sum = (*sum).plus((*rows.add(i * job.k + k)).times(*b.add(k * depth + l)));
            }
        }
    }
}
