//! The one thread that calls libtorch. Callers hand it their work and sleep until it is done.
//!
//! libtorch parallelises with OpenMP, which keeps a thread pool ("team") for every thread that starts parallel work.
//! Two teams have more threads than the machine has cores; each team then puts its threads to sleep after every loop
//! and wakes them for the next, which makes a model of short operators many times slower.
use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        OnceLock,
        mpsc::{Sender, channel, sync_channel},
    },
    thread::Builder,
};

/// Work of a caller that blocks until the work has run.
struct Job(Box<dyn FnOnce()>);

// SAFETY: `call` does not return before its job has run or was dropped, and nothing else uses the job's borrows
// meanwhile.
unsafe impl Send for Job {}

thread_local! {
    /// True on libtorch's thread.
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// The queue of libtorch's thread, started on first use; `None` if the thread could not be created.
fn sender() -> Option<&'static Sender<Job>> {
    static SENDER: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let start = || {
        let (sender, jobs) = channel::<Job>();
        let work = move || {
            HERE.set(true);
            jobs.into_iter().for_each(|job| (job.0)());
        };
        Builder::new().name("libtorch".into()).spawn(work).ok().map(|_| sender)
    };
    SENDER.get_or_init(start).as_ref()
}

/// Runs `f` on libtorch's thread and waits for it. A panic of `f` resumes in the caller. Nested calls, and calls when
/// there is no such thread, run `f` on the current thread.
pub fn call<R>(f: impl FnOnce() -> R) -> R {
    let Some(sender) = sender().filter(|_| !HERE.get()) else { return f() };
    let mut outcome: Option<Result<R, Box<dyn Any + Send>>> = None;
    let (done, end) = sync_channel::<()>(1);
    let slot = &mut outcome;
    let job: Box<dyn FnOnce() + '_> = Box::new(move || {
        *slot = Some(catch_unwind(AssertUnwindSafe(f)));
        // Cannot fail: the caller waits at the other end.
        let _ = done.send(());
    });
    // SAFETY: `end.recv` returns only after the job has run or was dropped, so the job does not outlive its borrows.
    let job: Box<dyn FnOnce()> = unsafe { std::mem::transmute(job) };
    // If the queue is closed, the job comes back in the error and is dropped here.
    let _ = sender.send(Job(job));
    let _ = end.recv();
    match outcome {
        Some(Ok(result)) => result,
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("libtorch's thread catches panics of jobs, so it lives and runs every job"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{current, scope};

    #[test]
    fn all_callers_meet_on_one_thread() {
        let here = call(|| current().id());
        assert_ne!(here, current().id());
        // Nested calls stay on that thread, and jobs may borrow from the caller.
        let mut seen = vec![];
        call(|| seen.push(call(|| current().id())));
        assert_eq!(seen, [here]);
        scope(|s| {
            for _ in 0..4 {
                s.spawn(|| assert_eq!(call(|| current().id()), here));
            }
        });
    }

    #[test]
    fn a_panic_is_the_callers() {
        assert!(catch_unwind(|| call(|| panic!("of a job"))).is_err());
        assert_eq!(call(|| 1), 1, "the thread lives on");
    }
}
