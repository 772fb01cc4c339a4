//! The threads of a host device: the caller's own and workers, who share out the tasks of one loop after the other.
//!
//! A loop of a few microseconds is worth sharing only if workers are there at once, so a worker that is out of work watches for the next
//! loop for a while before it sleeps. Nobody waits for a worker that has not come: the caller takes tasks as well, and only those
//! that a worker has begun are waited for. Each thread begins with a part of its own and goes on with what is left of others.
//! Never: more than one loop at a time. A loop within a task, or of a second session meanwhile, runs on the thread that asks for it.
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

/// How long a worker watches for work before it sleeps: longer than what lies between two loops of a model, and nothing beside
/// the milliseconds that OpenMP's threads do so.
const WATCH: Duration = Duration::from_micros(300);
/// Looks between two readings of the clock, or, of one who waits, between two offers of the core to others.
const LOOKS: usize = 64;

/// Bits of [`Shared::state`]: how many workers are at the loop, whether more may come, and above the loop's number.
const WORKERS: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const NEXT: u64 = 1 << 17;

/// A loop: its body and how many tasks it has.
#[derive(Clone, Copy)]
struct Loop {
    body: unsafe fn(*const (), usize),
    data: *const (),
    tasks: usize,
}

/// On cache lines of its own, so that who watches one field does not slow down who writes another.
#[repr(align(128))]
struct Line<T>(T);

struct Shared {
    state: Line<AtomicU64>,
    /// For each thread, the first task of its part of the loop that nobody has taken.
    next: Vec<Line<AtomicUsize>>,
    /// Written only while no worker is at a loop and none may come.
    current: UnsafeCell<Loop>,
    /// Whether a loop is going on.
    busy: AtomicBool,
    asleep: AtomicUsize,
    stop: AtomicBool,
    door: Mutex<()>,
    bell: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}
// SAFETY: `current` is written only as its comment says, and what it points to outlives the loop, whose tasks are `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

pub(crate) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// A team of the caller and so many workers.
    pub fn new(workers: usize) -> std::io::Result<Team> {
        unsafe fn nothing(_: *const (), _: usize) {}
        let workers = workers.min(WORKERS as usize);
        let shared = Arc::new(Shared {
            state: Line(AtomicU64::new(0)),
            next: (0..=workers).map(|_| Line(AtomicUsize::new(0))).collect(),
            current: UnsafeCell::new(Loop { body: nothing, data: null(), tasks: 0 }),
            busy: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            door: Mutex::new(()),
            bell: Condvar::new(),
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

    /// Calls `f(0..tasks)`, each once, on the threads of the team as they get free, and comes back when all are done.
    pub fn each<F: Fn(usize) + Sync>(&self, tasks: usize, f: F) {
        let shared = &*self.shared;
        if tasks < 2 || shared.busy.swap(true, Ordering::Acquire) {
            return (0..tasks).for_each(f);
        }
        unsafe fn body<F: Fn(usize)>(data: *const (), task: usize) {
            // SAFETY: `data` is the closure that `each` keeps until no worker is at the loop.
            unsafe { (*data.cast::<F>())(task) }
        }
        // SAFETY: no worker is at a loop or may come to one, and `busy` keeps other callers away.
        unsafe { *shared.current.get() = Loop { body: body::<F>, data: (&raw const f).cast(), tasks } };
        for (i, next) in shared.next.iter().enumerate() {
            next.0.store(shared.first(i, tasks), Ordering::Relaxed);
        }
        let number = shared.state.0.load(Ordering::Relaxed) & !(WORKERS | OPEN);
        shared.state.0.store((number.wrapping_add(NEXT)) | OPEN, Ordering::SeqCst);
        // Ends the loop also if a task of this thread panics.
        let end = End(shared);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            drop(shared.door());
            shared.bell.notify_all();
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
        drop(self.shared.door());
        self.shared.bell.notify_all();
        for worker in self.workers.drain(..) {
            // A worker does not panic: what tasks panic with is given to the caller.
            let _ = worker.join();
        }
    }
}

/// Closes the loop and waits for the workers that are at it.
struct End<'a>(&'a Shared);
impl Drop for End<'_> {
    fn drop(&mut self) {
        // Without tasks left a worker that is there goes soon.
        self.0.next.iter().for_each(|next| next.0.store(usize::MAX / 2, Ordering::Relaxed));
        let mut state = self.0.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while state & WORKERS != 0 {
            looks += 1;
            if looks % (LOOKS * 16) == 0 {
                std::thread::yield_now()
            } else {
                std::hint::spin_loop()
            }
            state = self.0.state.0.load(Ordering::Acquire);
        }
        self.0.busy.store(false, Ordering::Release);
    }
}

impl Shared {
    fn door(&self) -> MutexGuard<'_, ()> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first task of a thread's part. Parts are the same in equal loops, so that a thread finds in its caches what it read in
    /// the last run.
    fn first(&self, thread: usize, tasks: usize) -> usize {
        thread * tasks / self.next.len()
    }

    /// Takes tasks of the loop, first of this thread's part, until there are none. Only for the caller, and for workers that are at the
    /// loop.
    fn take_tasks(&self, thread: usize) {
        // SAFETY: the loop stays as it is while this thread is at it.
        let Loop { body, data, tasks } = unsafe { *self.current.get() };
        let threads = self.next.len();
        for part in (thread..threads).chain(0..thread) {
            let (next, end) = (&self.next[part].0, self.first(part + 1, tasks));
            while next.load(Ordering::Relaxed) < end {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task < end {
                    // SAFETY: `each` keeps the closure until this thread has left the loop.
                    unsafe { body(data, task) };
                }
            }
        }
    }

    /// What a worker does all its life.
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

    /// The state with a loop other than the last one, which workers may come to; `None` when the team is dissolved.
    fn wait(&self, last: u64) -> Option<u64> {
        let ready = |order| {
            let state = self.state.0.load(order);
            (state & OPEN != 0 && state & !(WORKERS | OPEN) != last).then_some(state)
        };
        let stop = || self.stop.load(Ordering::SeqCst);
        loop {
            let begin = Instant::now();
            while begin.elapsed() < WATCH {
                for _ in 0..LOOKS {
                    if let Some(state) = ready(Ordering::Relaxed) {
                        return Some(state);
                    }
                    std::hint::spin_loop();
                }
            }
            let mut door = self.door();
            self.asleep.fetch_add(1, Ordering::SeqCst);
            // Who opens a loop after this look sees that somebody sleeps.
            while ready(Ordering::SeqCst).is_none() && !stop() {
                door = self.bell.wait(door).unwrap_or_else(PoisonError::into_inner);
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            drop(door);
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
    fn every_task_is_done_once_in_loops_of_any_length() {
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
                    // Long enough for the workers to sleep.
                    std::thread::sleep(2 * WATCH);
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
        assert!(others.into_inner() > 0, "the caller did all tasks");
    }

    #[test]
    fn loops_within_tasks_and_of_several_callers_run_where_they_are_asked_for() {
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
    fn a_panic_in_a_task_reaches_the_caller_and_leaves_the_team_usable() {
        let team = Team::new(2).unwrap();
        for bad in 0..8 {
            let run = || team.each(8, |i| assert_ne!(i, bad, "task {bad}"));
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "the panic of task {bad} was lost");
        }
        let count = AtomicUsize::new(0);
        team.each(8, |_| {
            count.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(count.into_inner(), 8);
    }
}
