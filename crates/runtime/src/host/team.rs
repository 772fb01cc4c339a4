//! The thread pool of a host device: the calling thread and workers run the tasks of one parallel loop after the other.
//!
//! Takes: a number of tasks and a closure for one task. Gives control back when all tasks are done.
//!
//! Sharing a loop of a few microseconds is profitable only if the workers start at once. A worker without work
//! therefore spins for 0.3 ms, looking for the next loop, before it sleeps. Every thread starts with its own part of
//! the tasks and then steals from the other parts; so does the calling thread, and it waits only for tasks that a
//! worker has started. Nobody waits for a thread that the system has not scheduled.
//!
//! Never: more than one loop at a time. A nested loop, or a loop of another session while one is running, runs on its
//! calling thread.
use std::{
    any::Any,
    cell::UnsafeCell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    ptr::null,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a worker spins before it sleeps: longer than the time between two loops of a model, and far less than the
/// milliseconds for which OpenMP's threads spin.
const SPIN_TIME: Duration = Duration::from_micros(300);
/// Spins between two readings of the clock. The calling thread yields its core once in 16 times as many.
const SPINS: usize = 64;

/// Bits of [`Shared::state`]: the number of workers in the loop, whether more may join, and above these the number of
/// the loop.
const WORKERS: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const GENERATION: u64 = 1 << 17;

/// A loop: its body and how many tasks it has.
#[derive(Clone, Copy)]
struct Loop {
    body: unsafe fn(*const (), usize),
    data: *const (),
    tasks: usize,
}

/// Padded to cache lines of its own, to avoid false sharing.
#[repr(align(128))]
struct Padded<T>(T);

/// The tasks of a loop in as many parts as there are threads. Each thread runs those of its own part first, then what
/// others have left.
pub(super) struct Parts {
    /// For each part, the first task that no thread has taken.
    next: Vec<Padded<AtomicUsize>>,
}

impl Parts {
    /// No tasks, in this many parts.
    pub fn new(parts: usize) -> Parts {
        Parts { next: (0..parts).map(|_| Padded(AtomicUsize::new(0))).collect() }
    }
    pub fn len(&self) -> usize {
        self.next.len()
    }
    /// The first task of a part. Loops of equal length have equal parts, so a thread still has in its caches what it
    /// read in the last run.
    fn first_task(&self, part: usize, tasks: usize) -> usize {
        part * tasks / self.next.len()
    }
    /// Deals out the tasks of a loop; no thread may be in it yet.
    pub fn fill(&self, tasks: usize) {
        for (i, next) in self.next.iter().enumerate() {
            next.0.store(self.first_task(i, tasks), Ordering::Relaxed);
        }
    }
    /// Runs tasks of the loop, those of this part first, until none are left.
    pub fn take(&self, first: usize, tasks: usize, f: impl Fn(usize)) {
        for part in (first..self.next.len()).chain(0..first) {
            let (next, end) = (&self.next[part].0, self.first_task(part + 1, tasks));
            while next.load(Ordering::Relaxed) < end {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task < end {
                    f(task);
                }
            }
        }
    }
    /// Takes away the tasks that are left.
    pub fn drop_rest(&self) {
        self.next.iter().for_each(|next| next.0.store(usize::MAX / 2, Ordering::Relaxed));
    }
}

struct Shared {
    state: Padded<AtomicU64>,
    parts: Parts,
    /// Written only while no worker is in a loop and none may join.
    current: UnsafeCell<Loop>,
    /// Whether a loop is running.
    busy: AtomicBool,
    /// Workers that sleep on `wake`.
    asleep: AtomicUsize,
    stop: AtomicBool,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    /// The panic of a task on a worker; the calling thread resumes it.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}
// SAFETY: `current` is written only as its comment says, and what it points to outlives the loop, whose tasks are
// `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// A pool of this many workers in addition to the calling thread.
    pub fn new(workers: usize) -> std::io::Result<Team> {
        unsafe fn nothing(_: *const (), _: usize) {}
        let workers = workers.min(WORKERS as usize);
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            parts: Parts::new(workers + 1),
            current: UnsafeCell::new(Loop { body: nothing, data: null(), tasks: 0 }),
            busy: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let mut team = Team { shared, workers: vec![] };
        for i in 1..=workers {
            let shared = team.shared.clone();
            let thread = std::thread::Builder::new().name(format!("kiln-{i}"));
            team.workers.push(thread.spawn(move || shared.work(i))?);
        }
        Ok(team)
    }

    /// Calls `f(i)` once for each `i` in `0..tasks`, on the threads as they become free. Returns when all calls have
    /// returned.
    pub fn each<F: Fn(usize) + Sync>(&self, tasks: usize, f: F) {
        let shared = &*self.shared;
        if tasks < 2 || shared.busy.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(f);
        }
        unsafe fn body<F: Fn(usize)>(data: *const (), task: usize) {
            // SAFETY: `data` is the closure, which `each` keeps alive until no worker is in the loop.
            unsafe { (*data.cast::<F>())(task) }
        }
        // SAFETY: no worker is in a loop or may join one, and `busy` excludes other callers.
        unsafe { *shared.current.get() = Loop { body: body::<F>, data: (&raw const f).cast(), tasks } };
        shared.parts.fill(tasks);
        let number = shared.state.0.load(Ordering::Relaxed) & !(WORKERS | OPEN);
        shared.state.0.store((number.wrapping_add(GENERATION)) | OPEN, Ordering::SeqCst);
        // Dropped also if a task on this thread panics.
        let end = LoopGuard(shared);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.sleep_lock());
            shared.wake.notify_all();
        }
        shared.take_tasks(0);
        drop(end);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.sleep_lock());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker does not panic: panics of tasks are passed to the calling thread.
            let _ = worker.join();
        }
    }
}

/// When dropped, closes the loop and waits for the workers that are in it.
struct LoopGuard<'a>(&'a Shared);
impl Drop for LoopGuard<'_> {
    fn drop(&mut self) {
        // Takes away the tasks that are left, if a task has panicked, so that workers leave the loop soon.
        self.0.parts.drop_rest();
        let mut state = self.0.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while state & WORKERS != 0 {
            spins += 1;
            if spins % (SPINS * 16) == 0 {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            state = self.0.state.0.load(Ordering::Acquire);
        }
        if std::thread::panicking() {
            // The caller's own panic is raised; a worker's is not left to the next loop.
            self.0.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        }
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Shared {
    fn sleep_lock(&self) -> MutexGuard<'_, ()> {
        self.sleep_lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs tasks of the loop, those of this thread's part first, until none are left. Only the calling thread and
    /// workers that have joined the loop may call this.
    fn take_tasks(&self, thread: usize) {
        // SAFETY: the loop does not change while this thread is in it.
        let Loop { body, data, tasks } = unsafe { *self.current.get() };
        // SAFETY: `each` keeps the closure alive until this thread has left the loop.
        self.parts.take(thread, tasks, |task| unsafe { body(data, task) });
    }

    /// The main loop of a worker.
    fn work(&self, thread: usize) {
        let mut last = 0;
        while let Some(state) = self.wait(last) {
            if self.state.0.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_tasks(thread))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            last = state & !(WORKERS | OPEN);
            self.state.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits for a loop other than `last` that workers may join. Returns the state; `None` if the pool is being
    /// dropped.
    fn wait(&self, last: u64) -> Option<u64> {
        let ready = |order| {
            let state = self.state.0.load(order);
            (state & OPEN != 0 && state & !(WORKERS | OPEN) != last).then_some(state)
        };
        let stop = || self.stop.load(Ordering::SeqCst);
        loop {
            let begin = Instant::now();
            while begin.elapsed() < SPIN_TIME {
                for _ in 0..SPINS {
                    if let Some(state) = ready(Ordering::Relaxed) {
                        return Some(state);
                    }
                    std::hint::spin_loop();
                }
            }
            let mut sleep_lock = self.sleep_lock();
            self.asleep.fetch_add(1, Ordering::SeqCst);
            // Whoever opens a loop after this check sees that a worker sleeps.
            while ready(Ordering::SeqCst).is_none() && !stop() {
                sleep_lock = self.wake.wait(sleep_lock).unwrap_or_else(PoisonError::into_inner);
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            drop(sleep_lock);
            if stop() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_loops_of_any_length() {
        for workers in [0, 1, 3, 7] {
            let team = Team::new(workers).unwrap();
            for round in 0..2000 {
                let tasks = round % 41;
                let done: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.each(tasks, |i| {
                    done[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    done.iter().all(|d| d.load(Ordering::Relaxed) == 1),
                    "{workers} workers, round {round}: {done:?}"
                );
                if round % 500 == 0 {
                    // Long enough for the workers to fall asleep.
                    std::thread::sleep(2 * SPIN_TIME);
                }
            }
        }
    }

    #[test]
    fn workers_take_part() {
        let team = Team::new(3).unwrap();
        let here = std::thread::current().id();
        let others = AtomicUsize::new(0);
        team.each(16, |_| {
            std::thread::sleep(Duration::from_millis(2));
            others.fetch_add(usize::from(std::thread::current().id() != here), Ordering::Relaxed);
        });
        assert!(others.into_inner() > 0, "the calling thread ran all tasks");
    }

    #[test]
    fn nested_and_concurrent_loops_run_on_the_calling_thread() {
        let (team, sum) = (Team::new(2).unwrap(), AtomicUsize::new(0));
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..200 {
                        team.each(5, |i| {
                            team.each(3, |j| {
                                sum.fetch_add(i * 3 + j, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 200 * (0..15).sum::<usize>());
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_leaves_the_pool_usable() {
        let team = Team::new(2).unwrap();
        for bad in 0..8 {
            let run = || team.each(8, |i| assert_ne!(i, bad, "task {bad}"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "the panic of task {bad} was lost");
        }
        for _ in 0..100 {
            let all = || team.each(64, |i| panic!("task {i}"));
            assert!(catch_unwind(AssertUnwindSafe(all)).is_err());
            let count = AtomicUsize::new(0);
            team.each(8, |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 8);
        }
    }
}
