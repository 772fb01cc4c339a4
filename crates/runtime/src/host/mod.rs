//! The host as a device: a pool of threads, and grids of kernels, matmuls and attention split over them.
//!
//! Takes: an executable whose code is [`crate::Code::Host`]. Gives: sessions that run it. Never: generates code.
pub(crate) mod attention;
mod caller;
pub(crate) mod gemm;
mod openmp;
mod program;
pub(crate) mod session;
pub(crate) mod shared;
mod team;
mod weights;

use crate::{HostFn, RuntimeError};
use openmp::OpenMp;
pub use program::Pace;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use team::Team;

/// Most threads of a device: far more than processors have, and few enough to start quickly.
pub const MAX_THREADS: usize = 1024;

/// Kernels that take less than this many nanoseconds run on the calling thread.
const INLINE_NS: u64 = 20_000;

/// The processor: the thread that calls a run, and worker threads. Cheap to clone; clones share their threads.
#[derive(Clone)]
pub struct HostDevice {
    /// `None` with one thread.
    team: Option<Arc<Team>>,
    threads: usize,
}

impl HostDevice {
    /// A device with this many threads, the caller included, at most [`MAX_THREADS`]; 0 means one per available core.
    ///
    /// # Errors
    /// [`RuntimeError::Device`] if there are too many threads or they cannot be started, [`RuntimeError::Level`] if
    /// `KILN_CPU` is wrong.
    pub fn new(threads: usize) -> Result<HostDevice, RuntimeError> {
        if threads > MAX_THREADS {
            return Err(RuntimeError::Device {
                device: "cpu".into(),
                what: format!("{threads} threads were requested, the limit is {MAX_THREADS}"),
                remedy: "request at most one thread per core".into(),
            });
        }
        kiln_cpu::Level::chosen()?;
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
            n => n,
        };
        if threads == 1 {
            return Ok(HostDevice { team: None, threads });
        }
        let team = Team::new(threads - 1).map_err(|e| RuntimeError::Device {
            device: "cpu".into(),
            what: format!("{threads} threads could not be started: {e}"),
            remedy: "request fewer threads or raise the process limit (ulimit -u)".into(),
        })?;
        Ok(HostDevice { team: Some(Arc::new(team)), threads })
    }
    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.threads
    }
    /// All of its threads.
    pub(crate) fn parallel(&self) -> Parallel<'_> {
        Parallel { threads: self.threads, pool: self.team.as_deref().map(Pool::Team) }
    }
    /// The same work on the threads of the process's OpenMP, where it has some and not more than the device: for runs
    /// that alternate with operators of libtorch.
    pub(crate) fn parallel_beside_libtorch(&self) -> Parallel<'_> {
        let found = OpenMp::of_process().filter(|openmp| (2..=self.threads).contains(&openmp.threads()));
        let pool = self.team.as_deref().map(|team| found.map_or(Pool::Team(team), Pool::OpenMp));
        Parallel { threads: self.threads, pool }
    }
}

/// The threads that a loop may use: those of the device, or the calling thread alone.
#[derive(Clone, Copy)]
pub(crate) struct Parallel<'a> {
    /// Into how many parts work is divided at least.
    pub threads: usize,
    /// `None`: the calling thread.
    pool: Option<Pool<'a>>,
}

/// Threads that run loops.
#[derive(Clone, Copy)]
enum Pool<'a> {
    Team(&'a Team),
    OpenMp(OpenMp),
}
impl Parallel<'_> {
    /// The calling thread alone.
    pub const ALONE: Parallel<'static> = Parallel { threads: 1, pool: None };

    /// All threads if there is `enough` work for them, else the calling thread alone.
    pub fn only_if(self, enough: bool) -> Self {
        if enough { self } else { Parallel::ALONE }
    }
    /// Calls `f(i)` for each `i` in `0..n`, on the threads as they become free.
    pub fn each(self, n: usize, f: impl Fn(usize) + Send + Sync) {
        match self.pool {
            None => (0..n).for_each(f),
            Some(Pool::Team(team)) => team.each(n, f),
            Some(Pool::OpenMp(openmp)) => openmp.each(n, f),
        }
    }
}

/// Lets a value cross threads. Whoever wraps a value must ensure that this is sound.
pub(crate) struct Shared<T>(pub T);
// SAFETY: only wraps addresses whose users access disjoint or read-only parts of the memory behind them.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
impl<T: Copy> Shared<T> {
    /// A method, so that closures capture the whole wrapper.
    pub fn get(&self) -> T {
        self.0
    }
}

/// Duration of the last run of a step, summed over threads, in nanoseconds; 0 if it has never run.
#[derive(Default)]
pub(crate) struct Tally(AtomicU64);

/// Runs all program instances of a kernel: on the calling thread if the last run was short, else in chunks on all
/// threads.
///
/// # Safety
/// `args` are what `f` expects: one address per parameter, each with its buffer behind it.
pub(crate) unsafe fn run_grid(p: Parallel, f: HostFn, instances: u64, args: &[*mut u8], tally: &Tally) {
    let last = tally.0.load(Ordering::Relaxed);
    if instances == 0 {
        return;
    }
    if p.threads == 1 || instances == 1 || (1..INLINE_NS).contains(&last) {
        let start = Instant::now();
        // SAFETY: this function's contract.
        unsafe { f(args.as_ptr(), 0, instances) };
        tally.0.store((start.elapsed().as_nanos() as u64).max(1), Ordering::Relaxed);
        return;
    }
    let chunks = instances.min(8 * p.threads as u64);
    let args = Shared(args.as_ptr());
    let spent = AtomicU64::new(1);
    p.each(chunks as usize, |c| {
        // The product may exceed 64 bits.
        let bound = |c: u64| (u128::from(instances) * u128::from(c) / u128::from(chunks)) as u64;
        let start = Instant::now();
        // SAFETY: this function's contract; instances are independent of each other.
        unsafe { f(args.get(), bound(c as u64), bound(c as u64 + 1)) };
        spent.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    });
    tally.0.store(spent.into_inner(), Ordering::Relaxed);
}
