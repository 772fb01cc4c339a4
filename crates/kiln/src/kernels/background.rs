//! Work on another thread, for variants of kernels that launches do without meanwhile.
//!
//! Takes: tasks. Gives: what they make, when asked after it. One thread works, and only while no caller compiles: a
//! process that compiles one kernel after the other is not slowed down. What is not needed any more is dropped.
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time after a caller has compiled in which nothing starts that nobody waits for.
const QUIET: Duration = Duration::from_millis(100);
/// Most tasks that wait; the oldest are dropped.
const MAX_WAITING: usize = 64;
/// Stack of the thread: lowering and LLVM recurse over expressions.
const STACK_BYTES: usize = 8 << 20;

/// Something that is made on another thread.
pub struct Pending<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// How far it is.
#[derive(Debug)]
pub enum State<T> {
    /// It is still to come.
    Waiting,
    /// It is there.
    Ready(T),
    /// It could not be made.
    Failed,
    /// It was taken, or was dropped before it was made.
    Gone,
}

impl<T: Send + 'static> Pending<T> {
    /// Makes it some time; `None` from `make`: it cannot be made.
    pub fn later(make: impl FnOnce() -> Option<T> + Send + 'static) -> Pending<T> {
        let shared = Arc::new(Shared { state: Mutex::new(State::Waiting), changed: Condvar::new() });
        let promise = Promise(shared.clone());
        let key = Arc::as_ptr(&shared) as usize;
        let run = Box::new(move || {
            let made = catch_unwind(AssertUnwindSafe(make)).ok().flatten();
            promise.0.set(made.map_or(State::Failed, State::Ready));
        });
        enqueue(Task { key, urgent: false, run });
        Pending { shared }
    }
    /// What it has become; what is ready is given once.
    pub fn take(&self) -> State<T> {
        let mut state = lock(&self.shared.state);
        match *state {
            State::Waiting => State::Waiting,
            State::Failed => State::Failed,
            State::Ready(_) | State::Gone => std::mem::replace(&mut *state, State::Gone),
        }
    }
    /// Whether it cannot be made.
    pub fn has_failed(&self) -> bool {
        matches!(*lock(&self.shared.state), State::Failed)
    }
    /// Whether it is still to come.
    pub fn is_waiting(&self) -> bool {
        matches!(*lock(&self.shared.state), State::Waiting)
    }
    /// Waits until it is ready or will not be; it comes before what nobody waits for.
    pub fn wait(&self) {
        if !hurry(Arc::as_ptr(&self.shared) as usize) {
            self.shared.drop_waiting();
        }
        let mut state = lock(&self.shared.state);
        while matches!(*state, State::Waiting) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Shared<T> {
    fn set(&self, to: State<T>) {
        *lock(&self.state) = to;
        self.changed.notify_all();
    }
    fn drop_waiting(&self) {
        let mut state = lock(&self.state);
        if matches!(*state, State::Waiting) {
            *state = State::Gone;
            self.changed.notify_all();
        }
    }
}

/// Whoever waits is told if a task is dropped.
struct Promise<T>(Arc<Shared<T>>);
impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.0.drop_waiting();
    }
}

struct Task {
    key: usize,
    /// Somebody waits for it.
    urgent: bool,
    run: Box<dyn FnOnce() + Send>,
}

struct Queue {
    tasks: VecDeque<Task>,
    worker: Option<Worker>,
    /// From when on tasks start that nobody waits for.
    quiet: Option<Instant>,
    /// Whether the process is about to end.
    over: bool,
}

struct Worker {
    handle: JoinHandle<()>,
    /// A forked process has no threads of the one before.
    process: u32,
    working: bool,
}

static QUEUE: Mutex<Queue> = Mutex::new(Queue { tasks: VecDeque::new(), worker: None, quiet: None, over: false });
static CHANGED: Condvar = Condvar::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A caller compiles now, or has just done so.
pub fn postpone() {
    lock(&QUEUE).quiet = Some(Instant::now() + QUIET);
}

/// Drops all tasks, and waits for the one that runs: before a process ends. From now on nothing starts.
pub fn finish() {
    let (tasks, worker) = {
        let mut queue = lock(&QUEUE);
        queue.over = true;
        (std::mem::take(&mut queue.tasks), queue.worker.take())
    };
    drop(tasks);
    CHANGED.notify_all();
    if let Some(worker) = worker.filter(|w| w.process == std::process::id()) {
        // A task's panic is caught.
        let _ = worker.handle.join();
    }
}

fn enqueue(task: Task) {
    let mut queue = lock(&QUEUE);
    if queue.over {
        return;
    }
    queue.tasks.push_back(task);
    let dropped = if queue.tasks.len() > MAX_WAITING { queue.tasks.pop_front() } else { None };
    if !queue.has_worker() {
        let builder = std::thread::Builder::new().name("kiln-kernels".into()).stack_size(STACK_BYTES);
        queue.worker = match builder.spawn(work) {
            Ok(handle) => Some(Worker { handle, process: std::process::id(), working: true }),
            Err(_) => None,
        };
    }
    drop(queue);
    drop(dropped);
    CHANGED.notify_all();
}

/// Lets a task start before others; false if no thread will run it.
fn hurry(key: usize) -> bool {
    let mut queue = lock(&QUEUE);
    let is_there = queue.has_worker() && !queue.over;
    queue.tasks.iter_mut().filter(|task| task.key == key).for_each(|task| task.urgent = true);
    drop(queue);
    CHANGED.notify_all();
    is_there
}

impl Queue {
    fn has_worker(&self) -> bool {
        self.worker.as_ref().is_some_and(|w| w.working && w.process == std::process::id())
    }
    /// The task that starts now.
    fn next(&mut self) -> Option<Task> {
        let urgent = self.tasks.iter().position(|task| task.urgent);
        let is_quiet = self.quiet.is_none_or(|quiet| quiet <= Instant::now());
        let at = urgent.or(Some(0).filter(|_| is_quiet))?;
        self.tasks.remove(at)
    }
}

/// Runs tasks until there are none.
fn work() {
    let mut queue = lock(&QUEUE);
    loop {
        if let Some(task) = queue.next() {
            drop(queue);
            (task.run)();
            queue = lock(&QUEUE);
        } else if queue.over || queue.tasks.is_empty() {
            if let Some(worker) = &mut queue.worker {
                worker.working = false;
            }
            return;
        } else {
            let pause = queue.quiet.map_or(QUIET, |quiet| quiet.saturating_duration_since(Instant::now()));
            let waited = CHANGED.wait_timeout(queue, pause.max(Duration::from_millis(1)));
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What somebody waits for does not wait for others, and a failure is no result.
    #[test]
    fn what_is_waited_for_comes_first() {
        postpone();
        let (slow, quick) = (Pending::later(|| Some(1)), Pending::later(|| Some(2)));
        let failed: Pending<i32> = Pending::later(|| None);
        let lost: Pending<i32> = Pending::later(|| panic!("lost"));
        quick.wait();
        assert!(matches!(quick.take(), State::Ready(2)));
        assert!(matches!(quick.take(), State::Gone));
        slow.wait();
        assert!(matches!(slow.take(), State::Ready(1)));
        failed.wait();
        lost.wait();
        assert!(matches!(failed.take(), State::Failed));
        assert!(matches!(lost.take(), State::Failed));
    }
}
