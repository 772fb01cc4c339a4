//! The one thread that calls libtorch.
//!
//! OpenMP, by which libtorch computes in parallel, keeps a team of threads for each thread that asks for parallel work. Two teams are
//! more threads than there are cores; each then puts its threads to sleep after every loop and wakes them for the next, which
//! makes a model of short operators many times slower. So callers hand their work to one thread and sleep until it is done.
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

/// Work of a caller that waits for its end.
struct Job(Box<dyn FnOnce()>);

// SAFETY: `call` does not return before its job has run or is dropped, and nothing else touches what the job borrows meanwhile.
unsafe impl Send for Job {}

thread_local! {
    static HERE: Cell<bool> = const { Cell::new(false) };
}

/// `None` where the system gives no thread.
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

/// Runs `f` on libtorch's thread and waits for it. Panics of `f` go on in the caller.
pub fn call<R>(f: impl FnOnce() -> R) -> R {
    let Some(sender) = sender().filter(|_| !HERE.get()) else { return f() };
    let mut outcome: Option<Result<R, Box<dyn Any + Send>>> = None;
    let (done, end) = sync_channel::<()>(1);
    let slot = &mut outcome;
    let job: Box<dyn FnOnce() + '_> = Box::new(move || {
        *slot = Some(catch_unwind(AssertUnwindSafe(f)));
        // The caller is there: it waits.
        let _ = done.send(());
    });
    // SAFETY: `end.recv` returns when the job has run or was dropped, so it does not outlive what it borrows.
    let job: Box<dyn FnOnce()> = unsafe { std::mem::transmute(job) };
    // A job that is not taken comes back and is dropped here.
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
        // Also from within, and borrowing from the caller.
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
